//! Numbers that Python and Rust make alike from a formula; the Python half is scripts/fixtures/formula.py.

use tch::{Kind, Tensor};

/// Values in [0, 1) with 24 bits: the finaliser of SplitMix64 over (seed, position).
pub fn uniform(seed: u64, n: usize) -> Vec<f64> {
    let value = |i: usize| {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = ((seed << 32) + i as u64).wrapping_mul(STEP).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 40) as f64 / (1u64 << 24) as f64
    };
    (0..n).map(value).collect()
}

/// Values in [-scale, scale), in float64.
pub fn symmetric(seed: u64, shape: &[i64], scale: f64) -> Tensor {
    let n = shape.iter().product::<i64>() as usize;
    let values: Vec<f64> = uniform(seed, n).iter().map(|u| (2.0 * u - 1.0) * scale).collect();
    Tensor::from_slice(&values).reshape(shape)
}

/// The value of the `position`-th entry of an encoder's state_dict, in float64 (integers for the counter).
pub fn state_value(position: usize, name: &str, shape: &[i64]) -> Tensor {
    let seed = 1000 + position as u64;
    if name.ends_with("num_batches_tracked") {
        return Tensor::from(3i64);
    }
    let batch_norm = ["running_var", "bn1.weight", "bn2.weight", "bn3.weight", "downsample.1.weight"];
    let layer_norm = ["norm.weight", "norm1.weight", "norm2.weight"];
    if batch_norm.iter().chain(&layer_norm).any(|end| name.ends_with(end)) {
        let n = shape.iter().product::<i64>() as usize;
        let values: Vec<f64> = uniform(seed, n).iter().map(|u| 0.5 + u).collect();
        return Tensor::from_slice(&values).reshape(shape);
    }
    if shape.len() == 1 {
        return symmetric(seed, shape, 0.25);
    }
    let fan_in = shape[1..].iter().product::<i64>() as f64;
    symmetric(seed, shape, (6.0 / fan_in).sqrt())
}

/// A fingerprint of a tensor: norm, and the elements at the beginning, the middle and the end.
pub fn fingerprint(t: &Tensor) -> Vec<f64> {
    let flat = t.detach().to_kind(Kind::Double).reshape([-1]);
    let n = flat.numel() as i64;
    let mut print = vec![flat.norm().double_value(&[])];
    print.extend([0, n / 2, n - 1].map(|i| flat.double_value(&[i])));
    print
}

/// Asserts that two fingerprints agree to `tolerance` of the first one's norm.
pub fn assert_close(what: &str, expected: &[f64], found: &[f64], tolerance: f64) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (e, f) in expected.iter().zip(found) {
        let bound = tolerance * expected[0].abs().max(1e-12);
        assert!((e - f).abs() <= bound, "{what}: expected {expected:?}, found {found:?}, bound {bound:e}");
    }
}
