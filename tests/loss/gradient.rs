//! The closed-form gradient against its twin by automatic differentiation, and both against finite differences.

use super::{GEOMETRIES, Geometry, batch, config, relative, run};
use tch::{Kind, Tensor};
use weince::loss::{Layout, Loss};

/// Configurations that reach every kind of term, floor and list.
const CONFIGS: [&str; 13] = [
    "{kind: infonce}",
    "{kind: infonce, temperature: 0.05}",
    "{kind: weince}",
    "{kind: weince, temperature: 0.05, gate: {kappa_rho: 1.5, kappa_aic: 0.03, margin: 40.0}}",
    "{kind: weince, floor: shift, beta: {kind: hill}, gate: {evidence: likelihood, pivot: {absolute: 0.1}, kappa_rho: 2.0}}",
    "{kind: weince, beta: {kind: shrunk, global: {ema: {min_points: 64}}}, gate: {signals: rho}}",
    "{kind: weince, beta: {kind: fixed, value: 2.0}, gate: {signals: aic}}",
    "{kind: reference, policy: weibit, weib_beta: 1.3}",
    "{kind: reference, policy: soft, weib_beta: 2.0, soft_lambda: 0.3}",
    "{kind: reference, policy: gate, auto_weib_beta: true, gate_rho0: 0.3, gate_scale: 2.0, r2_min: 0.0}",
    "{kind: reference, policy: weibit_shrink, anchor_min_tail_points: 10}",
    "{kind: reference, policy: soft_select, select_weib_top_m: 5, select_kappa_rho: 1.5}",
    "{kind: reference, policy: tlambda_select, auto_weib_beta: true, use_weib_topm: true, weib_lambda: 0.5, weib_top_m: 50, \
     use_pl_topm: true, pl_lambda: 0.5, pl_top_m: 7}",
];

/// Every layout, and whether further candidates follow the second views.
const LAYOUTS: [(Layout, bool); 5] = [
    (Layout::TwoView, false),
    (Layout::OneWay, false),
    (Layout::OneWay, true),
    (Layout::BothWays, false),
    (Layout::BothWays, true),
];

/// The second views with a further candidate for each sample but one, of another draw.
fn with_further(z_j: &Tensor, geometry: Geometry) -> Tensor {
    let (n, d) = z_j.size2().unwrap();
    Tensor::cat(&[z_j, &batch(geometry, n.max(4), d, 12).0.narrow(0, 0, n - 1)], 0)
}

fn greatest(grads: &[Tensor]) -> f64 {
    grads.iter().map(|g| g.abs().max().double_value(&[])).fold(0.0, f64::max)
}

fn twin(frozen: &weince::loss::Frozen, z_i: &Tensor, z_j: &Tensor) -> (f64, [Tensor; 2]) {
    let leaf = |z: &Tensor| z.detach().copy().set_requires_grad(true);
    let (a, b) = (leaf(z_i), leaf(z_j));
    let loss = frozen.loss(&a, &b);
    loss.backward();
    (loss.double_value(&[]), [a.grad().to_kind(Kind::Double), b.grad().to_kind(Kind::Double)])
}

#[test]
fn closed_form_equals_automatic_differentiation() {
    let mut wrong = Vec::new();
    for (layout, further) in LAYOUTS {
        for yaml in CONFIGS {
            for geometry in GEOMETRIES {
                // 400 samples are several blocks of rows a view, the last one shorter.
                for (n, d) in [(2, 3), (5, 4), (24, 16), (400, 8)] {
                    if n == 2 && matches!(geometry, Geometry::Duplicates) {
                        continue;
                    }
                    if n == 400 && !matches!(geometry, Geometry::Random) {
                        continue;
                    }
                    let (n, d) = if matches!(geometry, Geometry::Duplicates) { (n.max(4), d) } else { (n, d) };
                    let (z_i, mut z_j) = batch(geometry, n, d, 11);
                    if further {
                        z_j = with_further(&z_j, geometry);
                    }
                    for kind in [Kind::Double, Kind::Float] {
                        let (z_i, z_j) = (z_i.to_kind(kind), z_j.to_kind(kind));
                        let frozen = Loss::new(&config(yaml), layout).unwrap().freeze(&z_i, &z_j).unwrap();
                        // The twin computes in float64 whatever it is given.
                        let (wide_i, wide_j) = (z_i.to_kind(Kind::Double), z_j.to_kind(Kind::Double));
                        let (expected, expected_grads) = twin(&frozen, &wide_i, &wide_j);
                        let outcome = run(&mut Loss::new(&config(yaml), layout).unwrap(), &z_i, &z_j);
                        let (loss_tolerance, grad_tolerance) =
                            if kind == Kind::Double { (1e-11, 1e-8) } else { (2e-6, 2e-4) };
                        let loss_error = (outcome.loss - expected).abs();
                        let grad_error = relative(&outcome.grads, &expected_grads);
                        // The twin subtracts probabilities near 1: of a small gradient it has only the rounding of 1.
                        let vanishes = outcome.grads.iter().all(|g| g.abs().max().double_value(&[]) < 1e-6)
                            && grad_error * greatest(&expected_grads) < 1e-14;
                        let right = loss_error <= loss_tolerance * expected.abs().max(1.0)
                            && (grad_error <= grad_tolerance || vanishes);
                        if !right {
                            wrong.push(format!(
                                "{layout:?} {further} {yaml} {geometry:?} {n}x{d} {kind:?}: loss {loss_error:.1e}, grad {grad_error:.1e}"
                            ));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Central differences of the frozen loss. Their own error, about 1e-9 of the largest entry here, sets the tolerance.
#[test]
fn closed_form_equals_finite_differences() {
    let step = 1e-5;
    for (layout, further) in LAYOUTS {
        for yaml in CONFIGS {
            let (z_i, mut z_j) = batch(Geometry::Random, 6, 5, 3);
            if further {
                z_j = with_further(&z_j, Geometry::Random);
            }
            let frozen = Loss::new(&config(yaml), layout).unwrap().freeze(&z_i, &z_j).unwrap();
            let grads = run(&mut Loss::new(&config(yaml), layout).unwrap(), &z_i, &z_j).grads;
            let value = |view: usize, row: i64, column: i64, by: f64| {
                let moved = [z_i.copy(), z_j.copy()];
                let mut cell = moved[view].narrow(0, row, 1).narrow(1, column, 1);
                cell += by;
                let [a, b] = &moved;
                frozen.loss(a, b).double_value(&[])
            };
            let scale = greatest(&grads);
            for (view, grad) in grads.iter().enumerate() {
                for (row, column) in [(0, 0), (2, 3), (5, 4), (grad.size()[0] - 1, 1)] {
                    let difference = (value(view, row, column, step) - value(view, row, column, -step)) / (2.0 * step);
                    let found = grad.double_value(&[row, column]);
                    assert!((found - difference).abs() < 2e-7 * scale, "{layout:?} {yaml}: {found} {difference}");
                }
            }
        }
    }
}

#[test]
fn upstream_gradients_scale_it_and_other_graphs_go_on() {
    let (z, w) = batch(Geometry::Random, 8, 4, 5);
    let plain = run(&mut Loss::new(&config("{kind: weince}"), Layout::TwoView).unwrap(), &(&z * 2.0), &w);
    let (leaf, other) = (z.copy().set_requires_grad(true), w.copy().set_requires_grad(true));
    let output =
        Loss::new(&config("{kind: weince}"), Layout::TwoView).unwrap().forward(&(&leaf * 2.0), &other).unwrap();
    (output.loss * 3.0 + other.sum(Kind::Double)).backward();
    assert!(relative(&[leaf.grad()], &[&plain.grads[0] * 6.0]) < 1e-14);
    assert!(relative(&[other.grad()], &[&plain.grads[1] * 3.0 + 1.0]) < 1e-14);
}

#[test]
fn without_gradient_the_value_is_the_same() {
    let (z, w) = batch(Geometry::Cap, 8, 4, 5);
    for yaml in CONFIGS {
        let outcome = run(&mut Loss::new(&config(yaml), Layout::TwoView).unwrap(), &z, &w);
        let output = Loss::new(&config(yaml), Layout::TwoView).unwrap().forward(&z, &w).unwrap();
        assert!(!output.loss.requires_grad());
        assert_eq!(output.loss.double_value(&[]), outcome.loss);
        let (leaf, other) = (z.copy().set_requires_grad(true), w.shallow_clone());
        let one_sided = Loss::new(&config(yaml), Layout::TwoView).unwrap().forward(&leaf, &other).unwrap();
        one_sided.loss.backward();
        assert!(leaf.grad().equal(&outcome.grads[0]));
    }
}
