//! Is the gradient finite: one number on the device, and, once something is wrong, the names of the culprits.

use crate::error::Result;
use crate::torch::total_norm;
use tch::{Device, Kind, Tensor};

/// The gradients themselves, of the parameters that have one.
pub fn gradients(parameters: &[(String, Tensor)]) -> Vec<Tensor> {
    parameters.iter().map(|(_, t)| t.grad()).filter(Tensor::defined).collect()
}

/// The 2-norm of all gradients together, 0-dim, on their device; nothing waits for the device. 0 without any gradient.
///
/// # Numerics
/// Not finite when any element is NaN or infinite, and also when the sum of squares overflows (elements beyond 1e19 in
/// float32).
///
/// # Errors
/// Whatever LibTorch reports.
pub fn gradient_norm(parameters: &[(String, Tensor)]) -> Result<Tensor> {
    let grads = gradients(parameters);
    if grads.is_empty() {
        let device = parameters.first().map_or(Device::Cpu, |(_, t)| t.device());
        return Ok(Tensor::f_zeros([0i64; 0], (Kind::Float, device))?);
    }
    total_norm(&grads)
}

/// The names of the parameters whose gradient holds NaN or infinity. Waits for the device: for reporting, not for each
/// step.
///
/// # Errors
/// Whatever LibTorch reports.
pub fn non_finite_gradients(parameters: &[(String, Tensor)]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (name, t) in parameters {
        let grad = t.grad();
        if grad.defined() && grad.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            names.push(name.clone());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(name: &str, grad: Option<f64>) -> (String, Tensor) {
        let t = Tensor::ones([2, 2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        if let Some(g) = grad {
            (&t * g).sum(Kind::Float).backward();
        }
        (name.to_string(), t)
    }

    #[test]
    fn the_norm_covers_all_gradients_and_skips_those_that_are_not_there() {
        let list = [parameter("a", Some(3.0)), parameter("b", None), parameter("c", Some(4.0))];
        let norm = gradient_norm(&list).unwrap();
        assert_eq!((norm.size(), norm.double_value(&[])), (vec![], 10.0));
        assert!(!norm.requires_grad());
        assert_eq!(gradient_norm(&list[1..2]).unwrap().double_value(&[]), 0.0);
        assert_eq!(gradient_norm(&[]).unwrap().double_value(&[]), 0.0);
    }

    #[test]
    fn non_finite_gradients_are_seen_and_named() {
        let list = [parameter("a", Some(1.0)), parameter("b", Some(f64::NAN)), parameter("c", Some(f64::INFINITY))];
        assert!(!gradient_norm(&list).unwrap().double_value(&[]).is_finite());
        assert_eq!(non_finite_gradients(&list).unwrap(), ["b", "c"]);
        assert!(non_finite_gradients(&list[..1]).unwrap().is_empty());
    }
}
