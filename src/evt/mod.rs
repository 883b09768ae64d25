//! Extreme value theory of similarities: how the largest of them behave, and which link the choices of a frozen encoder follow.
//!
//! - [`gpd`]: the generalised Pareto law, fitted to exceedances by maximum likelihood and by probability-weighted moments.
//! - [`pot`]: peaks over threshold: from similarities of many anchors to exceedances, a grid of thresholds, intervals by resampling
//!   anchors, and the tail index where the endpoint is known to be 1.
//! - [`link`]: softmax, Weibit and the family between them, fitted to observed winners.
//! - [`noise_floor`]: what softmax costs where winners follow Weibit, in samples and in their limit.
//!
//! Everything is in float64, without LibTorch. The same input gives the same numbers whatever the number of threads.

pub mod gpd;
pub mod link;
pub mod noise_floor;
pub mod pot;

pub use gpd::{Gpd, GpdFit};
pub use link::{Choice, LinkFit};
pub use noise_floor::NoiseFloor;
pub use pot::{Bootstrap, Hill, Intervals, Peaks};

/// The least shortfall `1 - s`: WEINCE's cap of the endpoint coordinate. What is nearer to 1 counts as being this far from it.
pub const SHORTFALL_FLOOR: f64 = 1e-6;

/// The standard normal law's 0.975 quantile: half the width of a 95 % interval, in standard errors.
pub(crate) const Z_95: f64 = 1.959963984540054;

/// A count with what is counted, in the singular for 1.
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A likelihood ratio test of one restriction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LikelihoodRatio {
    /// Twice the difference of the log-likelihoods, at least 0.
    pub statistic: f64,
    /// Probability of as much or more under the restriction, by chi-squared with one degree of freedom.
    pub p: f64,
}

impl LikelihoodRatio {
    /// Of two log-likelihoods. What the wider model lacks to the narrower one is rounding.
    fn of(wide: f64, narrow: f64) -> LikelihoodRatio {
        let statistic = (2.0 * (wide - narrow)).max(0.0);
        LikelihoodRatio { statistic, p: statrs::function::erf::erfc((statistic / 2.0).sqrt()) }
    }
}

#[cfg(test)]
mod testing {
    //! Samples for the tests: from files and by chance.

    use super::Gpd;
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;
    use safetensors::{Dtype, SafeTensors};

    /// A tensor's numbers, row after row.
    pub(super) fn numbers(file: &[u8], name: &str) -> Vec<f64> {
        let tensors = SafeTensors::deserialize(file).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        let data = tensor.data();
        match tensor.dtype() {
            Dtype::F64 => data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
            Dtype::F32 => data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect(),
            Dtype::I32 => data.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()).into()).collect(),
            Dtype::U8 => data.iter().map(|b| f64::from(*b)).collect(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn rng(seed: u64) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(seed)
    }

    /// Draws from a generalised Pareto law.
    pub(super) fn draws(law: Gpd, n: usize, seed: u64) -> Vec<f64> {
        let mut rng = rng(seed);
        (0..n).map(|_| law.quantile(rng.random::<f64>()).max(f64::MIN_POSITIVE)).collect()
    }
}
