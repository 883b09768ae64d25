//! Random numbers that depend on a seed and on which piece of work they are for, and on nothing else.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::f64::consts::TAU;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random {
    generator: ChaCha8Rng,
    spare: Option<f64>,
}

impl Random {
    /// The stream of a seed for one piece of work: the same whatever the thread and the order of the pieces.
    pub fn new(seed: u64, piece: u64) -> Random {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(piece);
        Random { generator, spare: None }
    }

    /// Uniform on [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.generator.random()
    }

    /// Uniform on [low, high).
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// A whole number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.generator.random_range(0..n)
    }

    /// Plus or minus 1.
    pub fn sign(&mut self) -> f64 {
        if self.generator.random() { 1.0 } else { -1.0 }
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let (sin, cos) = (TAU * self.uniform()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }

    /// Uniform on the unit sphere in `d` dimensions.
    pub fn direction(&mut self, d: usize) -> Vec<f64> {
        loop {
            let v: Vec<f64> = (0..d).map(|_| self.normal()).collect();
            let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
            if norm > 1e-12 {
                return v.iter().map(|x| x / norm).collect();
            }
        }
    }

    /// The cosine between the centre and a sample of the von Mises-Fisher law of concentration `kappa` on the sphere in three
    /// dimensions, by inversion; `kappa = 0` is the uniform law.
    pub fn cosine_s2(&mut self, kappa: f64) -> f64 {
        let u = self.uniform();
        if kappa == 0.0 { 2.0 * u - 1.0 } else { 1.0 + (u + (1.0 - u) * (-2.0 * kappa).exp()).ln() / kappa }
    }

    /// Shuffles in place (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |seed, piece| {
            (0..4).map(|_| 0).scan(Random::new(seed, piece), |r, _| Some(r.uniform())).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn laws_have_their_moments() {
        let mut random = Random::new(0, 0);
        let n = 200_000;
        let normals: Vec<f64> = (0..n).map(|_| random.normal()).collect();
        let moment = |p: i32| normals.iter().map(|x| x.powi(p)).sum::<f64>() / n as f64;
        assert!(moment(1).abs() < 0.01 && (moment(2) - 1.0).abs() < 0.02 && (moment(4) - 3.0).abs() < 0.15);
        let cosine = (0..n).map(|_| random.cosine_s2(5.0)).sum::<f64>() / n as f64;
        assert!((cosine - (1.0 / 5.0_f64.tanh() - 0.2)).abs() < 0.003, "{cosine}");
        let direction = random.direction(7);
        assert!((direction.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
