//! The losses against numbers that others made, against their slow twin, and against what must hold for any batch.

mod command;
mod golden;
mod gradient;
mod input;
mod properties;
mod tiled;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};
use weince::config::loss::LossConfig;
use weince::loss::{Diagnostics, Layout, Loss};

/// A folder or file under tests/golden.
fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path)
}

fn tensors(path: &Path) -> HashMap<String, Tensor> {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

/// A `loss:` value in YAML.
fn config(yaml: &str) -> LossConfig {
    weince::config::parse(yaml, "test", &[]).unwrap()
}

/// Value, gradients and diagnostics of a batch.
struct Outcome {
    loss: f64,
    grads: [Tensor; 2],
    diagnostics: Diagnostics,
}

fn run(loss: &mut Loss, z_i: &Tensor, z_j: &Tensor) -> Outcome {
    let leaf = |z: &Tensor| z.detach().copy().set_requires_grad(true);
    let (a, b) = (leaf(z_i), leaf(z_j));
    let output = loss.forward(&a, &b).unwrap();
    output.loss.backward();
    Outcome {
        loss: output.loss.double_value(&[]),
        grads: [a.grad().to_kind(Kind::Double), b.grad().to_kind(Kind::Double)],
        diagnostics: output.diagnostics,
    }
}

fn run_new(config: &LossConfig, layout: Layout, z_i: &Tensor, z_j: &Tensor) -> Outcome {
    run(&mut Loss::new(config, layout).unwrap(), z_i, z_j)
}

/// Greatest difference of two lists of tensors, relative to the greatest entry of the second.
fn relative(found: &[Tensor], expected: &[Tensor]) -> f64 {
    let greatest = |t: &Tensor| t.abs().max().double_value(&[]);
    let scale = expected.iter().map(greatest).fold(0.0, f64::max);
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs().max().double_value(&[]));
    // NaN must not vanish in the maximum.
    let difference = differences.fold(0.0, |m: f64, d| if d.is_nan() || m.is_nan() { f64::NAN } else { m.max(d) });
    if difference == 0.0 { 0.0 } else { difference / scale }
}

/// Shapes of embeddings that stress a loss differently.
#[derive(Debug, Clone, Copy)]
enum Geometry {
    /// Directions without structure, positives near.
    Random,
    /// Everything in one small cap.
    Cap,
    /// Exact duplicates across samples and one identical positive.
    Duplicates,
    /// Few dominant directions.
    Anisotropic,
    /// One sample opposite to all others.
    Isolated,
}

const GEOMETRIES: [Geometry; 5] =
    [Geometry::Random, Geometry::Cap, Geometry::Duplicates, Geometry::Anisotropic, Geometry::Isolated];

/// A batch of two views, float64 [n, d], rows of different norms.
fn batch(geometry: Geometry, n: i64, d: i64, seed: i64) -> (Tensor, Tensor) {
    tch::manual_seed(seed);
    let normal = || Tensor::randn([n, d], (Kind::Double, Device::Cpu));
    let scales = Tensor::rand([n, 1], (Kind::Double, Device::Cpu)) * 3.0 + 0.5;
    let direction = Tensor::randn([1, d], (Kind::Double, Device::Cpu));
    let base = match geometry {
        Geometry::Random | Geometry::Duplicates => normal(),
        Geometry::Cap => &direction + normal() * 0.02,
        Geometry::Anisotropic => normal() * (Tensor::arange(d, (Kind::Double, Device::Cpu)) * -0.4).exp(),
        Geometry::Isolated => &direction + normal() * 0.5,
    };
    let noise = if matches!(geometry, Geometry::Cap) { 0.005 } else { 0.3 };
    let (z_i, z_j) = (&base + normal() * noise, &base + normal() * noise);
    match geometry {
        Geometry::Duplicates => {
            z_i.get(1).copy_(&z_i.get(0));
            z_j.get(2).copy_(&(z_i.get(0) * 2.0));
            z_j.get(3).copy_(&z_i.get(3));
        }
        Geometry::Isolated => {
            z_i.get(0).copy_(&-direction.get(0));
            z_j.get(0).copy_(&-direction.get(0));
        }
        Geometry::Random | Geometry::Cap | Geometry::Anisotropic => {}
    }
    (z_i * &scales, z_j * scales)
}
