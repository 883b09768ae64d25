//! Mixed precision: regions of automatic casting, gradients scaled back, TensorFloat-32.

use super::ffi::{
    AutocastState, check, raw, raws, weince_allow_tf32, weince_autocast_enter, weince_autocast_leave, weince_unscale,
};
use crate::error::{Error, Result};
use std::ffi::c_int;
use tch::{Device, Kind, Tensor};

/// Runs `body` with automatic casting to `kind` on `device`, as Python's `torch.autocast(device, kind)`: matrix products and
/// convolutions compute in `kind`, what needs range or precision in float32. Regions are not nested with different kinds.
///
/// # Errors
/// A device without autocast, and whatever `body` returns.
pub fn autocast<T>(device: Device, kind: Kind, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let device = match device {
        Device::Cpu => 0,
        Device::Cuda(_) => 1,
        other => return Err(Error::Input(format!("autocast: expected the CPU or a CUDA device, found {other:?}"))),
    };
    // c10::ScalarType's numbers.
    let dtype = match kind {
        Kind::Half => 5,
        Kind::BFloat16 => 15,
        other => return Err(Error::Input(format!("autocast: expected Half or BFloat16, found {other:?}"))),
    };
    let mut before = AutocastState::default();
    // SAFETY: `before` lives through the call.
    check(unsafe { weince_autocast_enter(device, dtype, &mut before) })?;
    let region = Region { device, before };
    let out = body();
    drop(region);
    out
}

/// Ends the region also where `body` panics.
struct Region {
    device: c_int,
    before: AutocastState,
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `before` is what entering wrote. That leaving fails is unheard of, and dropping cannot tell.
        let _ = check(unsafe { weince_autocast_leave(self.device, &self.before) });
    }
}

/// Multiplies gradients by `inv_scale`, in place; `found_inf` becomes 1 where an element of them is not finite. Nothing waits
/// for the device.
///
/// # Shapes
/// `inv_scale` and `found_inf` float32 of one element, on the gradients' device.
///
/// # Errors
/// Whatever LibTorch reports.
pub fn unscale(grads: &[Tensor], inv_scale: &Tensor, found_inf: &Tensor) -> Result<()> {
    let list = raws(grads);
    // SAFETY: `list` holds as many live tensors as its length says; the bridge copies the handles before it returns.
    check(unsafe { weince_unscale(list.as_ptr(), list.len(), raw(inv_scale), raw(found_inf)) })
}

/// Whether CUDA's float32 products and convolutions may round their factors to TensorFloat-32 (10 bits of mantissa).
///
/// # Errors
/// Whatever LibTorch reports.
pub fn allow_tf32(allow: bool) -> Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { weince_allow_tf32(allow.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_casts_products_and_ends() {
        let a = Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
        let product = || Ok(a.f_mm(&a.tr())?.kind());
        assert_eq!(autocast(Device::Cpu, Kind::BFloat16, product).unwrap(), Kind::BFloat16);
        assert_eq!(product().unwrap(), Kind::Float);
        let failed: Result<()> = autocast(Device::Cpu, Kind::BFloat16, || Err(Error::Input("stop".into())));
        assert!(failed.is_err());
        assert_eq!(product().unwrap(), Kind::Float);
        assert!(autocast(Device::Mps, Kind::Half, || Ok(())).is_err());
    }

    #[test]
    fn gradients_are_scaled_back_and_infinity_is_found() {
        let gradient = Tensor::from_slice(&[2f32, 4.0]);
        let (half, found) = (Tensor::from(0.5f32), Tensor::from(0f32));
        unscale(&[gradient.shallow_clone()], &half, &found).unwrap();
        assert_eq!(Vec::<f32>::try_from(&gradient).unwrap(), [1.0, 2.0]);
        assert_eq!(found.double_value(&[]), 0.0);
        let broken = Tensor::from_slice(&[f32::INFINITY]);
        unscale(&[gradient, broken], &half, &found).unwrap();
        assert_eq!(found.double_value(&[]), 1.0);
        allow_tf32(false).unwrap();
    }
}
