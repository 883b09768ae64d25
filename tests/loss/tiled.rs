//! A batch in tiles against the whole of it: loss, gradient, statistics and state, whatever the size of the tiles.

use super::{GEOMETRIES, Geometry, batch, config, relative, run, run_new};
use tch::{Device, Kind, Tensor};
use weince::loss::{Layout, Loss};

const KINDS: [&str; 4] = [
    "kind: infonce, temperature: 0.2",
    "kind: weince, gate: {kappa_rho: 2.0}",
    "kind: weince, floor: shift, beta: {kind: hill}, gate: {evidence: likelihood, pivot: {absolute: 0.1}}",
    "kind: weince, beta: {kind: shrunk, global: {ema: {min_points: 20}}}",
];

const LAYOUTS: [Layout; 3] = [Layout::TwoView, Layout::OneWay, Layout::BothWays];

fn tiled(kind: &str, tile: i64) -> weince::config::loss::LossConfig {
    config(&format!("{{{kind}, tile: {tile}}}"))
}

/// Sums in another order: 1e-12 of the loss in float64, 1e-6 in float32, and a hundred times as much of gradients relative to the largest:
/// a shifted floor gives duplicates entries of 1/eps that cancel. Ten times as much where shortfalls are small: of those in the cap, some 1e-4,
/// and of duplicates with a shifted floor of 1e-6, a product's rounding, 2e-16, is more than of others, and products of other shapes round otherwise.
#[test]
fn tiles_of_any_size_are_the_whole() {
    for layout in LAYOUTS {
        for kind in KINDS {
            for geometry in GEOMETRIES {
                let small = matches!(geometry, Geometry::Cap | Geometry::Duplicates);
                let wider = if small { 10.0 } else { 1.0 };
                for (wide, tolerance) in [(Kind::Double, wider * 1e-12), (Kind::Float, 1e-6)] {
                    let (z_i, z_j) = batch(geometry, 23, 8, 5);
                    let (z_i, z_j) = (z_i.to_kind(wide), z_j.to_kind(wide));
                    let whole = run_new(&config(&format!("{{{kind}}}")), layout, &z_i, &z_j);
                    for tile in [1, 5, 22, 23, 45, 46, 1000] {
                        let what = format!("{layout:?} {kind} {geometry:?} {wide:?} {tile}");
                        let parts = run_new(&tiled(kind, tile), layout, &z_i, &z_j);
                        let error = (parts.loss - whole.loss).abs() / whole.loss.abs().max(1e-3);
                        assert!(error <= tolerance, "{what}: loss {} {}", parts.loss, whole.loss);
                        let error = relative(&parts.grads, &whole.grads);
                        assert!(error <= 100.0 * tolerance, "{what}: gradient {error:.1e}");
                        let (a, b) = (parts.diagnostics.scalars(), whole.diagnostics.scalars());
                        let same = a.isclose(&b, 1e-9, 1e-9, true).all().int64_value(&[]) == 1;
                        assert!(same || wide == Kind::Float, "{what}: {a:?} {b:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn further_candidates_and_the_average_go_through_tiles() {
    let (z_i, z_j) = batch(GEOMETRIES[0], 20, 8, 1);
    let (more, _) = batch(GEOMETRIES[0], 13, 8, 2);
    let longer = Tensor::cat(&[&z_j, &more], 0);
    for kind in KINDS {
        let whole = run_new(&config(&format!("{{{kind}}}")), Layout::OneWay, &z_i, &longer);
        let parts = run_new(&tiled(kind, 7), Layout::OneWay, &z_i, &longer);
        assert!((parts.loss - whole.loss).abs() < 1e-12 * whole.loss.abs().max(1.0), "{kind}");
        assert!(relative(&parts.grads, &whole.grads) < 1e-10, "{kind}");
    }
    let mut losses = [config(&format!("{{{}}}", KINDS[3])), tiled(KINDS[3], 3)]
        .map(|config| Loss::new(&config, Layout::TwoView).unwrap());
    for seed in 0..3 {
        let (z_i, z_j) = batch(GEOMETRIES[0], 40, 8, seed);
        let [a, b] = losses.each_mut().map(|loss| run(loss, &z_i, &z_j).loss);
        assert!((a - b).abs() < 1e-9 * a.abs(), "{a} {b}");
    }
    let [a, b] = losses.each_ref().map(|loss| loss.state().unwrap());
    assert!(a != 4.0 && (a - b).abs() < 1e-6, "{a} {b}");
}

#[test]
fn a_tile_has_at_least_one_anchor() {
    let error = Loss::new(&tiled(KINDS[0], 0), Layout::TwoView).err().unwrap().to_string();
    assert_eq!(error, "loss.tile: expected a value in [1, infinity), found 0");
    let one = Tensor::ones([1, 3], (Kind::Double, Device::Cpu));
    assert_eq!(run_new(&tiled(KINDS[0], 1), Layout::TwoView, &one, &one).loss, 0.0);
}
