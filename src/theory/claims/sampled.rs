//! T10 to T17: what needs samples of data.

use super::golden::Golden;
use super::plot::{Curve, Draw, Plot};
use super::{Expected, Formulas, Ledger, Plan, stream, worst};
use crate::Result;
use crate::theory::bounds::{loss_range, lower};
use crate::theory::complexity::{
    BETAS, Ball, Sizes, max_lipschitz, one_net, paper_rademacher, rademacher, uniform_excess,
};
use crate::theory::estimators::{
    Corpus, CurvePoint, Estimates, Ranked, Retrieval, Search, Variances, calibrated_temperature, curve, log_slope,
    recall, slope_test, variance,
};
use crate::theory::models::{Line, Noise, Resolution, Sphere};
use crate::theory::random::Random;
use rayon::prelude::*;

/// Mean and standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    (values.iter().sum::<f64>() / n, (variance(values) / n).sqrt())
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0.0), |(sum, n), v| (sum + v, n + 1.0));
    sum / n
}

pub fn t10(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T10");
    let repeats = plan.pick(150, 600);
    let (few, many) = (1024, 16384);
    let all: Vec<[f64; 10]> = (0..repeats)
        .into_par_iter()
        .map(|i| {
            let mut random = stream(plan, 10, 0, i);
            let normal: Vec<f64> = (0..many).map(|_| random.normal().abs()).collect();
            let student: Vec<f64> = (0..many)
                .map(|_| {
                    let squares: f64 = (0..5).map(|_| random.normal().powi(2)).sum();
                    random.normal().abs() / (squares / 5.0).sqrt()
                })
                .collect();
            let largest = |v: &[f64]| v.iter().copied().fold(0.0, f64::max);
            let mut row = [0.0; 10];
            for (at, values) in [&normal[..few], &normal, &student[..few], &student].into_iter().enumerate() {
                row[at] = largest(values);
                row[4 + at] = (f.power_mean)(values, 2.0);
            }
            row[8] = (f.power_mean)(&normal[..few], 4.0);
            row[9] = (f.power_mean)(&normal, 4.0);
            row
        })
        .collect();
    let of = |i: usize| mean(all.iter().map(|r| r[i]));
    ledger.add("largest of 16k normals over that of 1k", of(1) / of(0), Expected::Between(1.15, 1.25), 0.0);
    ledger.add("largest of 16k of Student's t5 over that of 1k", of(3) / of(2), Expected::AtLeast(1.4), 0.0);
    ledger.add("PM_2 of 16k normals over that of 1k", of(5) / of(4), Expected::Equal(1.0), 0.01);
    ledger.add("PM_4 of 16k normals over that of 1k", of(9) / of(8), Expected::Equal(1.0), 0.02);
    ledger.add("PM_2 of 16k of Student's t5 over that of 1k", of(7) / of(6), Expected::Equal(1.0), 0.02);
    ledger.add("PM_4 of 16k normals", of(9), Expected::Equal(3.0_f64.powf(0.25)), 0.01);
    Ok(ledger)
}

/// The class of Model C's embeddings with frequencies at equal distances: parameter vectors of one number.
#[derive(Clone, Copy)]
struct Frequencies {
    first: f64,
    step: f64,
    count: usize,
}

const TAU: f64 = 0.5;

impl Frequencies {
    fn grid(count: usize) -> Frequencies {
        Frequencies { first: 0.5, step: 2.0 / (count as f64 - 1.0), count }
    }

    fn value(&self, at: usize) -> f64 {
        self.first + self.step * at as f64
    }

    /// The scores of two points at the distance given, of every frequency in turn.
    fn scores(&self, distance: f64, mut each: impl FnMut(usize, f64)) {
        let ((mut sin, mut cos), (turn_sin, turn_cos)) =
            ((self.first * distance).sin_cos(), (self.step * distance).sin_cos());
        for at in 0..self.count {
            each(at, cos);
            (sin, cos) = (sin * turn_cos + cos * turn_sin, cos * turn_cos - sin * turn_sin);
        }
    }

    /// The InfoNCE losses of one tuple of every number of negatives in `ks`, which rise, and every frequency.
    fn losses(&self, x: f64, positive: f64, negatives: &[f64], ks: &[usize]) -> Vec<Vec<f64>> {
        let mut own = vec![0.0; self.count];
        self.scores(x - positive, |at, s| own[at] = s / TAU);
        let mut sums = vec![0.0; self.count];
        let mut done = 0;
        ks.iter()
            .map(|&k| {
                for y in &negatives[done..k] {
                    self.scores(x - y, |at, s| sums[at] += (s / TAU).exp());
                }
                done = k;
                let ln_k = (k as f64).ln();
                sums.iter().zip(&own).map(|(sum, own)| (sum * (-own).exp()).ln_1p() - ln_k).collect()
            })
            .collect()
    }
}

/// A pair of Model C with ρ = 0.9.
fn pair(random: &mut Random) -> (f64, f64) {
    let x = random.normal();
    (x, 0.9 * x + 0.19_f64.sqrt() * random.normal())
}

fn root_mean_square(values: impl Iterator<Item = f64>) -> f64 {
    mean(values.map(|v| v * v)).sqrt()
}

/// The sizes of a sample's inputs.
fn sizes(pairs: &[(f64, f64)], negatives: &[Vec<f64>], k: usize) -> Sizes {
    let of_anchors: Vec<[f64; BETAS.len() + 1]> = negatives
        .par_iter()
        .map(|z| {
            let mut sums = [0.0; BETAS.len() + 1];
            for z in &z[..k] {
                let size = z.abs();
                sums[BETAS.len()] = f64::max(sums[BETAS.len()], size);
                for (sum, beta) in sums.iter_mut().zip(BETAS) {
                    *sum += size.powi(beta as i32);
                }
            }
            for (sum, beta) in sums.iter_mut().zip(BETAS) {
                *sum = (*sum / k as f64).powf(1.0 / beta);
            }
            sums
        })
        .collect();
    Sizes {
        anchors: root_mean_square(pairs.iter().map(|p| p.0)),
        positives: root_mean_square(pairs.iter().map(|p| p.1)),
        negatives: (0..BETAS.len()).map(|b| root_mean_square(of_anchors.iter().map(|s| s[b]))).collect(),
        largest: root_mean_square(of_anchors.iter().map(|s| s[BETAS.len()])),
        k: k as f64,
    }
}

/// Pairs, and negatives of each.
fn tuples(plan: &Plan, group: u64, n: usize, k: usize) -> (Vec<(f64, f64)>, Vec<Vec<f64>>) {
    (0..n)
        .into_par_iter()
        .map(|i| {
            let mut random = stream(plan, group, 0, i);
            (pair(&mut random), (0..k).map(|_| random.normal()).collect::<Vec<f64>>())
        })
        .unzip()
}

pub fn t11(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T11");
    let (n, class, signs) = (150, Frequencies::grid(81), plan.pick(2000, 4000));
    let ks = [1, 2, 4, 16, 64, 256, 1024];
    let (pairs, negatives) = tuples(plan, 11, n, 1024);
    let of: Vec<Vec<Vec<f64>>> =
        pairs.par_iter().zip(&negatives).map(|((x, p), z)| class.losses(*x, *p, z, &ks)).collect();
    let limit: Vec<Vec<f64>> = pairs
        .par_iter()
        .map(|(x, p)| {
            (0..class.count)
                .map(|at| {
                    let model = Line::new(TAU, class.value(at), Noise::OrnsteinUhlenbeck(0.9))?;
                    Ok(model.ln_z(*x) - (class.value(at) * (x - p)).cos() / TAU)
                })
                .collect()
        })
        .collect::<Result<_>>()?;
    // The same signs for all.
    let signs_of = |t: usize| stream(plan, 11, 1, t);
    let (at_limit, error) = rademacher(&limit, signs, signs_of)?;
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    for (i, k) in ks.into_iter().enumerate() {
        let losses: Vec<Vec<f64>> = of.iter().map(|l| l[i].clone()).collect();
        let (value, error) = rademacher(&losses, signs, signs_of)?;
        errors.push(error);
        let columns = (0..class.count).map(|m| {
            // The length without the row means, which the complexity does not see.
            let terms = losses.iter().map(|row| row[m] - mean(row.iter().copied()));
            terms.map(|l| l * l).sum::<f64>().sqrt()
        });
        rows.push((k as f64, value, (f.massart)(worst(columns), class.count as f64, n as f64)));
    }
    let value_at = |k: f64| rows.iter().find(|r| r.0 == k).map_or(f64::NAN, |r| r.1);
    let spread = error / at_limit;
    ledger.add("Rad(256)/Rad(inf), n 150", value_at(256.0) / at_limit, Expected::Equal(1.0), 0.06);
    ledger.add("Rad(1024)/Rad(inf)", value_at(1024.0) / at_limit, Expected::Equal(1.0), 0.04);
    ledger.add("relative standard error of Rad(inf)", spread, Expected::AtMost(0.02), 0.0);
    let over = worst(rows.iter().map(|(_, value, massart)| value / massart));
    ledger.add("Rad over Massart's bound, k 1 to 1024", over, Expected::AtMost(1.0), 0.0);
    let ball = Ball { parameters: 1.0, radius: 1.0 };
    let mut over = Vec::new();
    let mut bounds = [Vec::new(), Vec::new()];
    for (k, value, _) in &rows {
        let lipschitz = (f.lipschitz)(&sizes(&pairs, &negatives, *k as usize), TAU, 1.0);
        let b_tau = root_mean_square(pairs.iter().map(|p| p.0))
            + root_mean_square(pairs.iter().map(|p| p.1))
            // The exponent 2/min(1, τ) is 4.
            + mean(negatives.iter().flat_map(|z| z[..*k as usize].iter().map(|z| z.powi(4)))).powf(0.25);
        let ours = (f.dudley)(ball, n as f64, lipschitz, TAU, *k).min(one_net(ball, n as f64, lipschitz, TAU, *k));
        let paper = paper_rademacher(ball, n as f64, TAU, b_tau, 1.0);
        over.push(worst([value / ours, ours / paper]));
        bounds[0].push([*k, ours]);
        bounds[1].push([*k, paper]);
    }
    ledger.add("Rad over our bound, and that over the paper's Prop 5", worst(over), Expected::AtMost(1.0), 0.0);
    // The bounds as functions of the golden sample's constants.
    let golden = Golden::read()?.part("rademacher")?;
    let mut off = [0.0_f64; 3];
    for row in golden.list("rows")? {
        let (k, l) = (row.number("k")?, row.number("L_ours")?);
        let got = [
            ("dudley_ours", (f.dudley)(ball, n as f64, l, TAU, k)),
            ("onestep_ours", one_net(ball, n as f64, l, TAU, k)),
            ("paper_prop5", paper_rademacher(ball, n as f64, TAU, row.number("B_tau")?, 1.0)),
        ];
        for (off, (key, got)) in off.iter_mut().zip(got) {
            *off = worst([*off, (got / row.number(key)? - 1.0).abs()]);
        }
    }
    // The net is searched on a grid there.
    for ((what, tolerance), off) in
        [("Dudley's integral", 1e-9), ("one net", 1e-4), ("Prop 5", 1e-9)].into_iter().zip(off)
    {
        ledger.add(format!("{what} of golden constants, relative"), off, Expected::AtMost(0.0), tolerance);
    }
    let measured = rows.iter().map(|(k, value, _)| [*k, *value]).collect();
    let measured = Curve { errors, ..Curve::new(format!("Rad, {n} tuples"), Draw::Sampled, 0, measured) };
    let massart = rows.iter().map(|(k, _, massart)| [*k, *massart]).collect();
    let [ours, paper] = bounds;
    let level = vec![(at_limit, format!("k = inf, {at_limit:.4}"))];
    let plot = |name: &'static str, title: &str, log_y: bool, curves: Vec<Curve>| Plot {
        name,
        title: title.into(),
        x: "negatives k",
        y: "Rademacher complexity",
        log_y,
        curves,
        levels: level.clone(),
    };
    ledger.plots = vec![
        plot("rademacher", "Rademacher complexity settles in k", false, vec![measured.clone()]),
        plot(
            "rademacher-bounds",
            "Rademacher complexity and its bounds",
            true,
            vec![
                measured,
                Curve::new("Massart's", Draw::Bound, 2, massart),
                Curve::new("ours", Draw::Bound, 4, ours),
                Curve::new("the paper's Prop 5", Draw::Bound, 1, paper),
            ],
        ),
    ];
    Ok(ledger)
}

pub fn t12(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T12");
    let (few, many) = (4096, 65536);
    let (pairs, negatives) = tuples(plan, 12, 150, many);
    let (few, many) = (sizes(&pairs, &negatives, few), sizes(&pairs, &negatives, many));
    let ours = |s: &Sizes| (f.lipschitz)(s, TAU, 1.0);
    ledger.add("our L at k = 64k over that at 4k", ours(&many) / ours(&few), Expected::Between(0.995, 1.01), 0.0);
    let others = max_lipschitz(&many, TAU, 1.0) / max_lipschitz(&few, TAU, 1.0);
    ledger.add("the max-type L at k = 64k over that at 4k", others, Expected::AtLeast(1.10), 0.0);
    // For sizes of a standard normal law, S_-(β) is known.
    let exact = Sizes {
        anchors: 1.0,
        positives: 1.0,
        negatives: BETAS.map(|b| normal_moment(b).powf(1.0 / b)).to_vec(),
        largest: 0.0,
        k: 65536.0,
    };
    let off = ours(&many) - ours(&exact) - (2.0 * (many.anchors - 1.0) + many.positives - 1.0) / TAU;
    ledger.add("our L less its population value, given the pairs' sizes", off, Expected::Equal(0.0), 0.1);
    let least = |k: f64| {
        let factor = (k / (1.0 + (k - 1.0) * (-2.0 / TAU).exp())).ln();
        BETAS.iter().zip(&exact.negatives).map(|(b, s)| (factor / b).exp() * s).fold(f64::INFINITY, f64::min)
    };
    ledger.add("that value", ours(&exact), Expected::Equal((3.0 + least(65536.0)) / TAU), 1e-9);
    Ok(ledger)
}

/// E |z|^β of a standard normal z: 2^{β/2} Γ((β+1)/2)/√π.
fn normal_moment(beta: f64) -> f64 {
    let ln = beta / 2.0 * 2.0_f64.ln() + crate::theory::special::ln_gamma(f64::midpoint(beta, 1.0));
    (ln - 0.5 * std::f64::consts::PI.ln()).exp()
}

pub fn t13(plan: &Plan, _: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T13");
    let class = Frequencies::grid(31);
    let ns = [50, 200, 800];
    for (k, repeats) in [(4, plan.pick(200, 500)), (64, plan.pick(0, 200))] {
        if repeats == 0 {
            continue;
        }
        let risks = (0..class.count)
            .into_par_iter()
            .map(|at| {
                let model = Line::new(TAU, class.value(at), Noise::OrnsteinUhlenbeck(0.9))?;
                Ok(model.finite_k(Resolution::FAST).risk(k as f64))
            })
            .collect::<Result<Vec<f64>>>()?;
        let all: Vec<[[f64; 2]; 3]> = (0..repeats)
            .into_par_iter()
            .map(|i| {
                ns.map(|n| {
                    let mut random = stream(plan, 13, (1000 * k + n) as u64, i);
                    let mut sums = vec![0.0; class.count];
                    let mut signed = vec![[0.0; 4]; class.count];
                    for _ in 0..n {
                        let (x, positive) = pair(&mut random);
                        let negatives: Vec<f64> = (0..k).map(|_| random.normal()).collect();
                        let losses = class.losses(x, positive, &negatives, &[k]).concat();
                        let signs = [0; 4].map(|_| random.sign());
                        for ((sum, signed), loss) in sums.iter_mut().zip(&mut signed).zip(losses) {
                            *sum += loss;
                            signed.iter_mut().zip(signs).for_each(|(s, sign)| *s += sign * loss);
                        }
                    }
                    let gap = worst(risks.iter().zip(&sums).map(|(r, sum)| r - sum / n as f64));
                    let complexity = mean((0..4).map(|s| worst(signed.iter().map(|m| m[s])) / n as f64));
                    [gap, complexity]
                })
            })
            .collect();
        let of = |n: usize, which: usize| mean(all.iter().map(|r| r[n][which]));
        let gaps: Vec<f64> = (0..3).map(|n| of(n, 0)).collect();
        let slope = log_slope(&ns, &gaps, &[1.0; 3]);
        ledger.add(format!("slope in n of E sup(R_k - mean loss), k {k}"), slope, Expected::Between(-0.62, -0.38), 0.0);
        let over = worst((0..3).map(|n| gaps[n] / (2.0 * of(n, 1))));
        ledger.add(format!("E sup(R_k - mean loss) over 2 Rad, k {k}"), over, Expected::AtMost(1.0), 0.0);
        // With probability 0.95 each.
        let holds = mean((0..3).flat_map(|n| {
            let excess = 2.0 * of(n, 1) + uniform_excess(loss_range(TAU, k as f64), 0.05, ns[n] as f64);
            all.iter().map(move |r| f64::from(u8::from(r[n][0] <= excess)))
        }));
        ledger.add(format!("share of samples with the uniform bound, k {k}"), holds, Expected::AtLeast(0.95), 0.0);
    }
    Ok(ledger)
}

/// How the data of T14 are drawn.
#[derive(Clone, Copy)]
enum Design {
    /// Uniform points on a sphere, an independent corpus.
    Sphere { n: usize, m: usize, tau: f64, kappa: f64 },
    /// Normal points on a circle, with items that are near all anchors; an independent corpus.
    Hubs { n: usize, m: usize, tau: f64, omega: f64 },
    /// The same, where the corpus is the positives.
    Same { n: usize, tau: f64, omega: f64 },
}

impl Design {
    fn r_inf(self) -> Result<f64> {
        match self {
            Design::Sphere { tau, kappa, .. } => Ok(Sphere::new(3, tau, kappa)?.r_inf()),
            Design::Hubs { tau, omega, .. } | Design::Same { tau, omega, .. } => {
                Ok(Line::new(tau, omega, Noise::OrnsteinUhlenbeck(0.9))?.r_inf())
            }
        }
    }

    fn draw(self, random: &mut Random, f: &Formulas) -> Result<Estimates> {
        match self {
            Design::Sphere { n, m, tau, kappa } => {
                let corpus: Vec<Vec<f64>> = (0..m).map(|_| random.direction(3)).collect();
                let mut search = Search::new(Corpus::Independent, m);
                for _ in 0..n {
                    let x = random.direction(3);
                    let logits: Vec<f64> = corpus.iter().map(|y| dot3(&x, y) / tau).collect();
                    search.push_with(&logits, random.cosine_s2(kappa) / tau, f.anchor)?;
                }
                search.finish()
            }
            Design::Hubs { n, m, tau, omega } => {
                let corpus: Vec<f64> = (0..m).map(|_| random.normal()).collect();
                let mut search = Search::new(Corpus::Independent, m);
                for _ in 0..n {
                    let (x, positive) = pair(random);
                    let logits: Vec<f64> = corpus.iter().map(|y| (omega * (x - y)).cos() / tau).collect();
                    search.push_with(&logits, (omega * (x - positive)).cos() / tau, f.anchor)?;
                }
                search.finish()
            }
            Design::Same { n, tau, omega } => {
                let pairs: Vec<(f64, f64)> = (0..n).map(|_| pair(random)).collect();
                let mut search = Search::new(Corpus::SameItems, n);
                for (x, positive) in &pairs {
                    let logits: Vec<f64> = pairs.iter().map(|(_, y)| (omega * (x - y)).cos() / tau).collect();
                    search.push_with(&logits, (omega * (x - positive)).cos() / tau, f.anchor)?;
                }
                search.finish()
            }
        }
    }
}

fn dot3(a: &[f64], b: &[f64]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

pub fn t14(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T14");
    // A small corpus, so that the bias is large; all three estimates have exact expectations.
    let (repeats, m, tau, kappa) = (plan.pick(1000, 4000), 30, 0.2, 10.0);
    let design = Design::Sphere { n: 100, m, tau, kappa };
    let all: Vec<Estimates> =
        (0..repeats).into_par_iter().map(|i| design.draw(&mut stream(plan, 14, 0, i), f)).collect::<Result<_>>()?;
    let finite = Sphere::new(3, tau, kappa)?.finite_k();
    let (r_inf, size) = (finite.r_inf(), m as f64);
    let left_out = size * finite.dcl(size) - (size - 1.0) * finite.dcl(size - 1.0);
    let of = |value: fn(&Estimates) -> f64| mean_and_error(&all.iter().map(value).collect::<Vec<f64>>());
    let (plug_in, error) = of(|e| e.plug_in);
    ledger.add(
        "plug-in, m 30: standard errors from R~_m",
        (plug_in - finite.dcl(size)) / error,
        Expected::Equal(0.0),
        3.6,
    );
    let (jackknife, error) = of(|e| e.jackknife);
    ledger.add(
        "jackknife: standard errors from its exact mean",
        (jackknife - left_out) / error,
        Expected::Equal(0.0),
        3.6,
    );
    let bias = (plug_in - r_inf).abs();
    ledger.add(
        "the plug-in's bias over v/(2m)",
        (r_inf - plug_in) * 2.0 * size / finite_v(tau)?,
        Expected::Equal(1.0),
        0.25,
    );
    ledger.add("the jackknife's bias over the plug-in's", (jackknife - r_inf).abs() / bias, Expected::AtMost(0.2), 0.0);
    let (delta, _) = of(|e| e.delta);
    ledger.add("the delta method's bias over the plug-in's", (delta - r_inf).abs() / bias, Expected::AtMost(0.3), 0.0);
    let designs = [
        ("an independent corpus, n 300, m 300", Design::Sphere { n: 300, m: 300, tau: 0.5, kappa: 5.0 }),
        ("hubs, n 3000, m 60", Design::Hubs { n: 3000, m: 60, tau: 0.5, omega: 0.7 }),
        ("the same items, n 200", Design::Same { n: 200, tau: 0.5, omega: 1.5 }),
    ];
    for (part, (name, design)) in (1..).zip(designs) {
        let repeats = plan.pick(600, 1200);
        let truth = design.r_inf()?;
        let all: Vec<[f64; 4]> = (0..repeats)
            .into_par_iter()
            .map(|i| {
                let e = design.draw(&mut stream(plan, 14, part, i), f)?;
                let off = (e.r_inf() - truth).abs();
                let covers = |error: f64| f64::from(u8::from(off <= 1.959_964 * error));
                Ok([covers((f.standard_error)(&e.variances)), covers(e.anchors_only), e.c1(), e.c1_dcl()])
            })
            .collect::<Result<_>>()?;
        let of = |i: usize| mean(all.iter().map(|r| r[i]));
        ledger.add(format!("coverage of the 95 % interval, {name}"), of(0), Expected::Between(0.91, 0.985), 0.0);
        if let Design::Sphere { tau, kappa, .. } = design {
            // Means over a corpus are off by terms of order 1/m.
            let exact = Sphere::new(3, tau, kappa)?.moments();
            ledger.add(format!("c1 by plug-in over its value, {name}"), of(2) / exact.c1(), Expected::Equal(1.0), 0.03);
            ledger.add(
                format!("that without the positive, {name}"),
                of(3) / exact.c1_dcl(),
                Expected::Equal(1.0),
                0.03,
            );
        }
        if matches!(design, Design::Hubs { .. }) {
            ledger.add(format!("coverage with the anchors' error alone, {name}"), of(1), Expected::AtMost(0.85), 0.0);
        }
    }
    Ok(ledger)
}

fn finite_v(tau: f64) -> Result<f64> {
    Ok(Sphere::new(3, tau, 0.0)?.moments().v)
}

pub fn t15(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T15");
    let (n, m, tau, kappa) = (1500, plan.pick(2048, 4096), 0.5, 5.0);
    let model = Sphere::new(3, tau, kappa)?;
    let (finite, moments) = (model.finite_k(), model.moments());
    let mut random = stream(plan, 15, 0, 0);
    let corpus: Vec<Vec<f64>> = (0..m).map(|_| random.direction(3)).collect();
    let ks: Vec<usize> = std::iter::successors(Some(1), |k| Some(2 * k)).take_while(|k| *k <= m / 2).collect();
    let rows: Vec<(Vec<f64>, f64)> = (0..n)
        .map(|_| {
            let x = random.direction(3);
            (corpus.iter().map(|y| dot3(&x, y) / tau).collect(), random.cosine_s2(kappa) / tau)
        })
        .collect();
    let curves = rows
        .par_iter()
        .enumerate()
        .map(|(i, (logits, own))| curve(logits, *own, &ks, 4, &mut stream(plan, 15, 1, i)))
        .collect::<Result<Vec<_>>>()?;
    let mut search = Search::new(Corpus::Independent, m);
    for (logits, own) in &rows {
        search.push_with(logits, *own, f.anchor)?;
    }
    let estimates = search.finish()?;
    let mut off = [0.0_f64; 2];
    for (j, k) in ks.iter().enumerate() {
        let columns =
            [curves.iter().map(|c| c[j].risk).collect::<Vec<f64>>(), curves.iter().map(|c| c[j].dcl).collect()];
        for ((off, values), exact) in off.iter_mut().zip(&columns).zip([finite.risk(*k as f64), finite.dcl(*k as f64)])
        {
            let variances = Variances { anchors: variance(values), ..estimates.variances };
            *off = worst([*off, ((mean(values.iter().copied()) - exact) / (f.standard_error)(&variances)).abs()]);
        }
    }
    for (off, name) in off.into_iter().zip(["R_k", "R~_k"]) {
        ledger.add(
            format!("{name} from data: standard errors from exact, {} k", ks.len()),
            off,
            Expected::AtMost(3.5),
            0.0,
        );
    }
    // D_k - D_2k and P_k - P_2k of every anchor.
    let d = |c: &[CurvePoint], j: usize| c[j + 1].dcl - c[j].dcl;
    let p = |c: &[CurvePoint], j: usize| c[j].risk - c[j].dcl - c[j + 1].risk + c[j + 1].dcl;
    let differences = |of: &dyn Fn(&[CurvePoint], usize) -> f64| -> Vec<Vec<f64>> {
        curves.iter().map(|c| (0..ks.len() - 1).map(|j| of(c, j)).collect()).collect()
    };
    let from = if moments.k_asymptotic() <= m as f64 / 4.0 { moments.k_asymptotic().max(32.0) } else { 32.0 };
    let halves = &ks[..ks.len() - 1];
    for (name, rows) in [("D_k", differences(&d)), ("P_k", differences(&p))] {
        let exact = |k: f64| {
            let of = |k: f64| if name == "D_k" { finite.d(k) } else { finite.p(k) };
            of(k) - of(2.0 * k)
        };
        let found = slope_test(&rows, halves, from, 200, &mut stream(plan, 15, 2, 0));
        let (measured, expected, error) = found.map_or((f64::NAN, f64::NAN, f64::NAN), |s| {
            let values: Vec<f64> = s.ks.iter().map(|k| exact(*k as f64)).collect();
            (s.slope, log_slope(&s.ks, &values, &s.weights), s.se)
        });
        ledger.add(
            format!("slope of {name} from data less that of exact risks"),
            measured - expected,
            Expected::Equal(0.0),
            0.04,
        );
        ledger.add(format!("slope of {name} from data"), measured, Expected::Equal(-1.0), 0.12);
        ledger.add(
            format!("upper end of its 99 % interval, {name}"),
            measured + 2.576 * error,
            Expected::AtMost(-0.6),
            0.0,
        );
    }
    Ok(ledger)
}

pub fn t16(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T16");
    let problems = plan.pick(100, 300);
    let all: Vec<[f64; 4]> = (0..problems)
        .into_par_iter()
        .map(|i| {
            let mut random = stream(plan, 16, 0, i);
            let tau = random.between(0.02_f64.ln(), 2.0_f64.ln()).exp();
            let (m, share) = (1 + random.below(300), random.between(-0.5, 2.0));
            let ranked: Vec<Ranked> = (0..40)
                .map(|_| {
                    let own = (share * random.uniform()).clamp(-1.0, 1.0);
                    // Some items are as near as the positive.
                    let logits: Vec<f64> =
                        (0..m).map(|_| if random.below(50) == 0 { own } else { random.cosine_s2(0.0) } / tau).collect();
                    (f.ranked)(&logits, own / tau)
                })
                .collect();
            let over = worst(ranked.iter().map(|r| (r.rank as f64).ln() - r.loss));
            let Some(r) = Retrieval::of(&ranked) else { return [f64::NAN; 4] };
            let recalls = [1, 5, 10, 100].map(|at| r.recall_floor(at) - recall(&ranked, at));
            [over, r.probability - r.mrr, r.mrr_floor() - r.probability, worst(recalls)]
        })
        .collect();
    let names = [
        "log rank minus the loss",
        "mean probability of the positive minus MRR",
        "e^(-mean loss) minus that probability",
        "1 - mean loss/log(r + 1) minus recall at r",
    ];
    for (i, what) in names.into_iter().enumerate() {
        ledger.add(
            format!("{what}, {problems} problems"),
            worst(all.iter().map(|r| r[i])),
            Expected::AtMost(0.0),
            1e-12,
        );
    }
    // One item as near as the positive and none else: rank 2, loss log 2.
    let tie = (f.ranked)(&[7.0], 7.0);
    ledger.add("loss less log rank of one tie", tie.loss - (tie.rank as f64).ln(), Expected::Equal(0.0), 1e-12);
    // On the sphere in three dimensions an item is above the positive with probability (1 - s⁺)/2.
    let mut share = Vec::new();
    for (tau, kappa) in [(0.1, 10.0), (0.5, 5.0), (0.2, 20.0)] {
        let model = Sphere::new(3, tau, kappa)?;
        for m in [1.0, 10.0, 100.0, 1000.0] {
            let mrr = model.positives().mean(|s| {
                let q = (1.0 - s) / 2.0;
                -((m + 1.0) * (-q).ln_1p()).exp_m1() / ((m + 1.0) * q)
            });
            share.push((-model.r_inf()).exp() / (m + model.moments().a) / mrr);
        }
    }
    ledger.add("e^(-R_inf)/(m + E a) over the exact MRR", worst(share), Expected::Between(0.3, 1.0), 0.0);
    let mut random = stream(plan, 16, 1, 0);
    let (n, m, small, kappa) = (4000, 1500, 150, 20.0);
    let mut points = |count: usize| (0..count).map(|_| random.direction(3)).collect::<Vec<Vec<f64>>>();
    let (anchors, corpus) = (points(n), points(m));
    let own: Vec<f64> = (0..n).map(|_| random.cosine_s2(kappa)).collect();
    let harder: Vec<usize> =
        anchors.par_iter().zip(&own).map(|(x, own)| corpus.iter().filter(|y| dot3(x, y) >= *own).count()).collect();
    for r in [1, 5] {
        let predicted = (f.recall_at_size)(&harder, m, small, r)?;
        // Parts that are drawn, one an anchor.
        let drawn: Vec<bool> = anchors
            .par_iter()
            .zip(&own)
            .enumerate()
            .map(|(i, (x, own))| {
                let mut random = stream(plan, 16, 1 + r as u64, i);
                let mut items: Vec<usize> = (0..m).collect();
                random.shuffle(&mut items);
                items[..small].iter().filter(|j| dot3(x, &corpus[**j]) >= *own).count() < r
            })
            .collect();
        let measured = drawn.iter().filter(|hit| **hit).count() as f64 / n as f64;
        ledger.add(
            format!("recall at {r} of drawn parts of 150 of 1500 less the prediction"),
            measured - predicted,
            Expected::Equal(0.0),
            0.03,
        );
        if r == 1 {
            let exact = Sphere::new(3, 1.0, kappa)?.positives().mean(|s| f64::midpoint(1.0, s).powi(small as i32));
            ledger.add(
                "the prediction less the population's recall at 1",
                predicted - exact,
                Expected::Equal(0.0),
                0.03,
            );
        }
    }
    let (n, m, kappa) = (1000, 1000, 5.0);
    let scores: Vec<f64> = (0..n * m).map(|_| random.cosine_s2(0.0)).collect();
    let own: Vec<f64> = (0..n).map(|_| random.cosine_s2(kappa)).collect();
    let tau = calibrated_temperature(&scores, &own)?.unwrap_or(f64::NAN);
    ledger.add("calibrated 1/tau over the positives' concentration", 1.0 / (tau * kappa), Expected::Equal(1.0), 0.12);
    Ok(ledger)
}

pub fn t17(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T17");
    let (repeats, n, k, tau, kappa) = (200, 10_000, 16, 0.5, 5.0);
    let model = Sphere::new(3, tau, kappa)?;
    let risk = model.finite_k().risk(k as f64);
    let all: Vec<[f64; 2]> = (0..repeats)
        .into_par_iter()
        .map(|i| {
            let mut random = stream(plan, 17, 0, i);
            let losses: Vec<f64> = (0..n)
                .map(|_| {
                    let own = random.cosine_s2(kappa);
                    // The scores of uniform points in three dimensions are uniform.
                    let sum: f64 = (0..k).map(|_| ((random.cosine_s2(0.0) - own) / tau).exp()).sum();
                    sum.ln_1p() - (k as f64).ln()
                })
                .collect();
            let bound = (f.held_out_bound)(&losses, k as f64, tau, 0.05)?;
            Ok([f64::from(u8::from(risk <= bound)), bound - risk])
        })
        .collect::<Result<_>>()?;
    ledger.add("share of 200 certificates that hold", mean(all.iter().map(|r| r[0])), Expected::AtLeast(0.95), 0.0);
    ledger.add(
        "what they give away in the mean, n 10000",
        mean(all.iter().map(|r| r[1])),
        Expected::Between(0.0, 0.04),
        0.0,
    );
    let limit = model.r_inf() - risk - lower(tau, k as f64);
    ledger.add("R_inf less R_k minus what the certificate adds for it", limit, Expected::AtMost(0.0), 0.0);
    // Two losses of 0 and 1, k = 1: mean 1/2, variance 1/2, range 4.
    let log = 40.0_f64.ln();
    let by_hand = 0.5 + (0.5 * log).sqrt() + 28.0 * log / 3.0;
    ledger.add(
        "the certificate of two losses, less that by hand",
        (f.held_out_bound)(&[0.0, 1.0], 1.0, tau, 0.05)? - by_hand,
        Expected::Equal(0.0),
        1e-12,
    );
    Ok(ledger)
}
