//! T08 and T09: what a temperature allows, and how far the loss moves with the embedding. Random laws and tuples look for what
//! breaks inequalities that hold for each.

use super::plot::{Curve, Draw, Plot};
use super::{Expected, Formulas, Ledger, Plan, least, stream, worst};
use crate::Result;
use crate::theory::bounds::{average_ceiling, jeffreys};
use crate::theory::complexity::{BETAS, Tuple, softmax_factor};
use crate::theory::models::ScoreLaw;
use crate::theory::random::Random;
use rayon::prelude::*;

/// Divergences between a discrete law of scores and its softmax.
struct Tilt {
    forward: f64,
    backward: f64,
    total_variation: f64,
    variance: f64,
}

fn tilt(p: &[f64], s: &[f64], c: f64) -> Tilt {
    let law = ScoreLaw { probabilities: p.to_vec(), scores: s.to_vec() };
    let w = law.weights(c);
    let mean = |f: &dyn Fn(f64) -> f64| p.iter().zip(&w).map(|(p, w)| p * f(*w)).sum::<f64>();
    let ln_z = law.ln_mgf(c);
    Tilt {
        forward: p.iter().zip(&w).zip(s).map(|((p, w), s)| p * w * (c * s - ln_z)).sum(),
        backward: ln_z - c * law.mean(|s| s),
        total_variation: mean(&|w| (w - 1.0).abs()) / 2.0,
        variance: mean(&|w| (w - 1.0).powi(2)),
    }
}

fn random_law(random: &mut Random, points: usize) -> (Vec<f64>, Vec<f64>) {
    let spread = random.between(0.2, 6.0);
    let mut p: Vec<f64> = (0..points).map(|_| (spread * random.normal()).exp()).collect();
    let sum: f64 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
    let ends = random.uniform();
    let s =
        (0..points).map(|_| if random.uniform() < ends { random.sign() } else { random.between(-1.0, 1.0) }).collect();
    (p, s)
}

pub fn t08(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T08");
    let laws = 1800;
    let all: Vec<([f64; 6], [f64; 2])> = (0..laws)
        .into_par_iter()
        .map(|i| {
            let mut random = stream(plan, 8, 0, i);
            let points = 2 + random.below(20);
            let (p, s) = random_law(&mut random, points);
            let c = random.between(0.1_f64.ln(), 20.0_f64.ln()).exp();
            let t = tilt(&p, &s, c);
            let ceiling = (f.ceiling)(c);
            let more = tilt(&p, &s, c * 1.01);
            let scale = (f.largest_variance)(c);
            let excess = [
                worst([t.forward, t.backward]) - ceiling,
                ceiling - (c * c / 2.0).min(2.0 * c),
                t.forward + t.backward - jeffreys(c),
                t.total_variation - (f.total_variation)(c),
                (t.variance - scale) / scale.max(1.0),
                t.forward - more.forward,
            ];
            (excess, [1.0 / c, t.forward])
        })
        .collect();
    let (excess, of_laws): (Vec<[f64; 6]>, Vec<[f64; 2]>) = all.into_iter().unzip();
    let names = [
        "KL(Q||pi) or KL(pi||Q) minus G(1/tau)",
        "G(c) minus min(c^2/2, 2c)",
        "KL(Q||pi) + KL(pi||Q) minus min(c^2, 2c tanh(c/2))",
        "TV(Q, pi) minus tanh(c/2)",
        "chi^2(Q||pi) minus sinh(c)^2, relative beyond 1",
        "KL(Q||pi) falling as 1/tau grows by 1 %",
    ];
    for (i, what) in names.into_iter().enumerate() {
        ledger.add(
            format!("{what}, {laws} random laws"),
            worst(excess.iter().map(|e| e[i])),
            Expected::AtMost(0.0),
            1e-10,
        );
    }
    // Two scores at both ends attain all three ceilings. π is the softmax of Q at -c where KL(Q||π) is largest.
    let mut off = [0.0_f64; 4];
    for c in [0.05, 0.3, 1.0, 5.0, 10.0, 14.0_f64] {
        let two = |p: f64| tilt(&[p, 1.0 - p], &[1.0, -1.0], c);
        let mean = 1.0 / c.tanh() - 1.0 / c;
        let odds = (1.0 + mean) / (1.0 - mean);
        let from_q = odds * (-2.0 * c).exp();
        let forward = two(from_q / (1.0 + from_q)).forward;
        let backward = two(1.0 / (1.0 + odds)).backward;
        let at_middle = two(1.0 / (1.0 + c.exp())).total_variation;
        // Z = 1/cosh(c).
        let p = (1.0 / c.cosh() - (-c).exp()) / (2.0 * c.sinh());
        let found = [forward, backward, at_middle, two(p).variance];
        let ceilings = [(f.ceiling)(c), (f.ceiling)(c), (f.total_variation)(c), (f.largest_variance)(c)];
        for (off, (found, ceiling)) in off.iter_mut().zip(found.into_iter().zip(ceilings)) {
            *off = worst([*off, (found / ceiling - 1.0).abs()]);
        }
    }
    for (what, off) in ["KL(Q||pi) of G", "KL(pi||Q) of G", "TV of tanh(c/2)", "v of sinh(c)^2"].into_iter().zip(off) {
        ledger.add(format!("two scores attain the ceiling, {what}, relative"), off, Expected::AtMost(0.0), 1e-8);
    }
    // Averages over anchors that are the corpus.
    let codes = 400;
    let all: Vec<([f64; 3], [f64; 2])> = (0..codes)
        .into_par_iter()
        .map(|i| {
            let mut random = stream(plan, 8, 1, i);
            let (d, n) = (2 + random.below(10), 2 + random.below(40));
            let (p, _) = random_law(&mut random, n);
            let cone = random.uniform() < 0.5;
            let points: Vec<Vec<f64>> = (0..n)
                .map(|_| {
                    let mut v = random.direction(d);
                    if cone {
                        v[0] += 2.0;
                        let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
                        v.iter_mut().for_each(|x| *x /= norm);
                    }
                    v
                })
                .collect();
            let c = random.between(0.1_f64.ln(), 20.0_f64.ln()).exp();
            let (mut forward, mut backward, mut r_inf) = (0.0, 0.0, 0.0);
            for (x, p_x) in points.iter().zip(&p) {
                let s: Vec<f64> =
                    points.iter().map(|y| x.iter().zip(y).map(|(a, b)| a * b).sum::<f64>().clamp(-1.0, 1.0)).collect();
                let t = tilt(&p, &s, c);
                forward += p_x * t.forward;
                backward += p_x * t.backward;
                // The best positive is the anchor itself.
                r_inf += p_x * (t.backward + c * p.iter().zip(&s).map(|(p, s)| p * s).sum::<f64>() - c);
            }
            let ceiling = (f.ceiling)(c).min((f.average_ceiling)(1.0 / c));
            let excess = [forward - ceiling, backward - ceiling, -(f.average_ceiling)(1.0 / c) - r_inf];
            (excess, [1.0 / c, forward])
        })
        .collect();
    let (excess, of_codes): (Vec<[f64; 3]>, Vec<[f64; 2]>) = all.into_iter().unzip();
    for (i, what) in ["E KL(Q||pi) minus min(G, 1/tau)", "E KL(pi||Q) minus min(G, 1/tau)", "R_inf below -1/tau"]
        .into_iter()
        .enumerate()
    {
        ledger.add(
            format!("{what}, {codes} random codes"),
            worst(excess.iter().map(|e| e[i])),
            Expected::AtMost(0.0),
            1e-10,
        );
    }
    // N = e^{0.95/τ} orthogonal codes come within 5 % of the ceiling 1/τ.
    let c: f64 = 500.0;
    let n = (0.95 * c).exp();
    let z = 1.0 + c.exp_m1() / n;
    let used = (c * c.exp() / (n * z) - z.ln()) / (f.average_ceiling)(1.0 / c);
    ledger.add(
        "share of the ceiling 1/tau that e^(0.95/tau) codes use, tau 0.002",
        used,
        Expected::Between(0.94, 1.0),
        0.0,
    );
    let whole = average_ceiling(0.002) - (f.ceiling)(c).min((f.average_ceiling)(0.002));
    ledger.add("min(G, 1/tau) of the library less that of its parts", whole, Expected::Equal(0.0), 1e-12);
    let taus: Vec<f64> = (0..=60).map(|i| 0.05 * 200.0_f64.powf(f64::from(i) / 60.0)).collect();
    // Divergences go down to nothing; the upper end is what the ceilings are about.
    let above = |all: Vec<[f64; 2]>| all.into_iter().filter(|p| p[1] >= 1e-3).collect();
    ledger.plots.push(Plot {
        name: "temperature-ceilings",
        title: "What a temperature allows: nats between a search and the data".into(),
        x: "temperature tau",
        y: "KL(Q||pi), nats",
        log_y: true,
        curves: vec![
            Curve::new("random laws, from 0.001 nats", Draw::Sampled, 5, above(of_laws)),
            Curve::new("random codes, averages", Draw::Sampled, 4, above(of_codes)),
            Curve::of("1/(2 tau^2)", Draw::Bound, 2, &taus, |tau| 0.5 / (tau * tau)),
            Curve::of("G(1/tau), of an anchor", Draw::Bound, 0, &taus, |tau| (f.ceiling)(1.0 / tau)),
            Curve::of("1/tau, of averages", Draw::Bound, 1, &taus, f.average_ceiling),
        ],
        levels: Vec::new(),
    });
    Ok(ledger)
}

/// A random tuple under two embeddings: some with all of its points moved, some with few, and some whose loss changes as much as it
/// can.
fn two_embeddings(random: &mut Random) -> Result<(Tuple, Tuple, f64)> {
    let tau = [1.0, 0.5, 0.2, 0.1, 0.07][random.below(5)];
    let d = [2, 3, 8, 32][random.below(4)];
    let k = [1, 2, 8, 64, 256][random.below(5)];
    let size = random.between(1e-3_f64.ln(), 2.0_f64.ln()).exp();
    let kind = random.below(6);
    let anchor = random.direction(d);
    let near = random.between(0.0, 3.0);
    let towards = |v: &[f64], centre: &[f64], share: f64| {
        let sum: Vec<f64> = v.iter().zip(centre).map(|(a, b)| a + share * b).collect();
        let norm = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        sum.iter().map(|x| x / norm).collect::<Vec<f64>>()
    };
    let positive = towards(&random.direction(d), &anchor, near);
    let negatives: Vec<Vec<f64>> =
        (0..k).map(|_| towards(&random.direction(d), &anchor, random.between(-1.5, 1.5))).collect();
    let here = Tuple::new(anchor, positive, negatives)?;
    let mut there = here.clone();
    let mut moved = |v: &mut Vec<f64>| {
        let direction = random.direction(d);
        *v = towards(v, &direction, size);
    };
    match kind {
        0 | 1 => {
            moved(&mut there.anchor);
            moved(&mut there.positive);
            there.negatives.iter_mut().for_each(&mut moved);
        }
        2 => moved(&mut there.anchor),
        3 => moved(&mut there.positive),
        // The negative nearest to the anchor moves alone.
        4 => {
            let score = |n: &Vec<f64>| n.iter().zip(&here.anchor).map(|(a, b)| a * b).sum::<f64>();
            let nearest = (0..k).max_by(|i, j| score(&here.negatives[*i]).total_cmp(&score(&here.negatives[*j])));
            if let Some(nearest) = nearest {
                moved(&mut there.negatives[nearest]);
            }
        }
        // All negatives in one place, the positive opposite, and the anchor moving between them: 2/τ a unit of the way.
        _ => {
            let centre = random.direction(d);
            let opposite = centre.iter().map(|x| -x).collect();
            let mut across = random.direction(d);
            let along: f64 = across.iter().zip(&centre).map(|(a, b)| a * b).sum();
            across.iter_mut().zip(&centre).for_each(|(a, b)| *a -= along * b);
            let across = towards(&across, &across, 0.0);
            let (here, there) = (towards(&across, &centre, -0.01), towards(&across, &centre, 0.01 + size * 0.01));
            let negatives = vec![centre; k];
            return Ok((
                Tuple::new(here, opposite, negatives.clone())?,
                Tuple::new(there, negatives[0].iter().map(|x| -x).collect(), negatives)?,
                tau,
            ));
        }
    }
    Ok((here, there, tau))
}

pub fn t09(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("T09");
    let tuples = plan.pick(600, 3000);
    let all = (0..tuples)
        .into_par_iter()
        .map(|i| {
            let mut random = stream(plan, 9, 0, i);
            let (here, there, tau) = two_embeddings(&mut random)?;
            let moves = here.moves(&there);
            let change = (here.loss(tau) - there.loss(tau)).abs();
            let betas = [1.0, 2.0, 4.0, f64::max(1.0, 2.0 / tau)];
            let paper = least(betas.map(|b| (f.paper_continuity)(&moves, tau, b)));
            let ours = least(BETAS.map(|b| (f.continuity)(&moves, tau, b)));
            let path = here.path_bound(&there, tau, 24);
            let (mean, by_power) = here.softmax_move(&moves, tau);
            let k = moves.negatives.len() as f64;
            let worst_power = softmax_factor(k, tau, 2.0) * (f.power_mean)(&moves.negatives, 2.0);
            Ok([
                change - paper,
                change - ours,
                change - path,
                mean - by_power,
                by_power - worst_power,
                change - (f.max_continuity)(&moves, tau),
                // Shares of the bounds that are used.
                change / ours,
                change / (f.max_continuity)(&moves, tau),
                paper / ours,
            ])
        })
        .collect::<Result<Vec<[f64; 9]>>>()?;
    let column = |i: usize| worst(all.iter().map(|e| e[i]));
    let names = [
        ("|dl| minus the paper's Prop 4", 1e-12),
        ("|dl| minus (C1)", 1e-12),
        // 24 Gauss points on the way.
        ("|dl| minus (C2)", 1e-9),
        ("(C3) mean move minus sqrt(k/N2) PM_2", 1e-12),
        ("(C3) sqrt(k/N2) PM_2 minus K_2 PM_2", 1e-12),
        ("|dl| minus (18)", 1e-12),
    ];
    for (i, (what, tolerance)) in names.into_iter().enumerate() {
        ledger.add(format!("{what}, {tuples} random tuples"), column(i), Expected::AtMost(0.0), tolerance);
    }
    ledger.add("largest share of (C1) that a tuple uses", column(6), Expected::Between(0.95, 1.0), 1e-12);
    ledger.add("largest share of (18) that a tuple uses", column(7), Expected::Between(0.6, 1.0), 1e-12);
    let mut ratios: Vec<f64> = all.iter().map(|e| e[8]).collect();
    ratios.sort_by(f64::total_cmp);
    ledger.add("the paper's bound over (C1), median", ratios[ratios.len() / 2], Expected::AtLeast(1.5), 0.0);
    ledger.add("the paper's bound over (C1), least", ratios[0], Expected::AtLeast(1.0), 1e-12);
    // K_β at many negatives and its limit e^{2/(βτ)}, which the paper has with a factor of 3.
    let factor = softmax_factor(1e12, 0.5, 3.0);
    ledger.add("K_3 of many negatives at tau 0.5", factor, Expected::Equal((4.0_f64 / 3.0).exp()), 1e-6);
    Ok(ledger)
}
