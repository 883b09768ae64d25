//! Which device a command computes on. A device that was asked for and is not there is an error, never another device.

use crate::error::{Error, Result};
use crate::torch::cuda_status;
use tch::{Cuda, Device};

/// Reads `auto`, `cpu`, `cuda` (the first GPU) or `cuda:N`. `auto` is the first GPU where there is one, else the CPU. Of several
/// processes on a machine, each takes the GPU of its own number, `local_rank`, in place of the first.
///
/// # Errors
/// [`Error::Config`] for any other text, and for one GPU for several processes; [`Error::Input`] for a GPU that is not there, with the reason.
pub fn parse(text: &str, local_rank: Option<usize>) -> Result<Device> {
    match text {
        "cpu" => Ok(Device::Cpu),
        "auto" if !Cuda::is_available() => Ok(Device::Cpu),
        "auto" | "cuda" => gpu(text, local_rank.unwrap_or(0)),
        _ if local_rank.is_some() && text.starts_with("cuda:") => Err(Error::Config(format!(
            "device `{text}`: each of several processes needs a GPU of its own; use `cuda`, with which each takes that of its number"
        ))),
        _ => {
            let index = text.strip_prefix("cuda:").and_then(|n| n.parse().ok()).ok_or_else(|| {
                Error::Config(format!("device `{text}` is not known: expected `auto`, `cpu`, `cuda` or `cuda:N`"))
            })?;
            gpu(text, index)
        }
    }
}

/// A device's name as commands take it: `cpu`, `cuda:0`.
pub fn name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        Device::Cpu => "cpu".to_string(),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn gpu(text: &str, index: usize) -> Result<Device> {
    if !Cuda::is_available() {
        return Err(Error::Input(format!(
            "device `{text}` was asked for, and of CUDA devices there are {}. Use `--device cpu` to compute on the CPU",
            cuda_status()
        )));
    }
    let count = usize::try_from(Cuda::device_count()).unwrap_or(0);
    if index >= count {
        return Err(Error::Input(format!(
            "device `{text}` was asked for, but LibTorch sees {count} GPU(s), numbered from 0; CUDA_VISIBLE_DEVICES may hide some"
        )));
    }
    Ok(Device::Cuda(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_others_are_usage_errors() {
        assert_eq!(parse("cpu", None).unwrap(), Device::Cpu);
        for wrong in ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cpu:0"] {
            let e = parse(wrong, None).unwrap_err();
            assert_eq!(e.exit_code(), 2, "{wrong}: {e}");
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error() {
        let e = parse("cuda:4096", None).unwrap_err();
        assert_eq!(e.exit_code(), 1);
        assert!(e.to_string().contains("cuda:4096"), "{e}");
    }
}
