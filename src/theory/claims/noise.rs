//! N01: the noise-floor experiment of the WEINCE paper, in which winners follow a known link and another one is fitted.

use super::golden::Golden;
use super::plot::{Curve, Draw, Plot};
use super::{Expected, Formulas, Ledger, Plan, least, worst};
use crate::Result;
use crate::evt::noise_floor::{Errors, LogOdds};
use crate::evt::{Choice, LinkFit, NoiseFloor};
use crate::theory::estimators::log_slope;
use rayon::prelude::*;

/// How far a fit to counts is from one to the choices themselves, in relation to it; both links.
fn off_choices(experiment: &NoiseFloor, seed: u64, replicate: u32) -> Result<f64> {
    let winners = experiment.winners(1000, seed, replicate);
    let choice = |(anchor, winner): (usize, &usize)| Choice { scores: experiment.scores(), winner: *winner, anchor };
    let choices: Vec<Choice> = winners.iter().enumerate().map(choice).collect();
    let fit = LinkFit::of(&choices)?;
    let mut wins = vec![0; experiment.scores().len()];
    winners.iter().for_each(|winner| wins[*winner] += 1);
    // Without a fit there is nothing to agree on.
    let (Some(by_counts), Some(softmax), Some(weibit)) = (experiment.fit(&wins), fit.softmax, fit.weibit) else {
        return Ok(f64::NAN);
    };
    Ok(worst([by_counts[0] / softmax.theta - 1.0, by_counts[1] / weibit.theta - 1.0].map(f64::abs)))
}

pub fn n01(plan: &Plan, f: &Formulas) -> Result<Ledger> {
    let mut ledger = Ledger::new("N01");
    let experiment = NoiseFloor::paper()?;
    let p = experiment.population();
    let (c, floor) = ((f.weibit_mse)(p, 1.0), (f.softmax_mse)(p, f64::INFINITY));

    let golden = Golden::noise_floor()?;
    let entry = golden.part("population")?;
    let pairs = [
        ("true_log_odds", p.log_odds),
        ("theta_pseudo", p.softmax_theta),
        ("softmax_pseudo_log_odds", p.softmax_log_odds),
        ("softmax_bias_floor", floor),
        ("softmax_var_floor_log_odds", p.softmax_rate),
        ("fisher_x", p.weibit_information),
        ("weibit_floor_log_odds", c),
        ("kl_pstar_qpseudo", p.divergence),
    ];
    let off = pairs.iter().map(|(key, got)| Ok((got / entry.number(key)? - 1.0).abs()));
    let off = worst(off.collect::<Result<Vec<f64>>>()?);
    ledger.add("the population's constants beside golden ones, relative", off, Expected::AtMost(0.0), 1e-9);

    // Over all samples: what 1/n is multiplied by, its own first term in 1/n taken out.
    let sizes: [usize; 2] = plan.pick([50, 100], [100, 200]);
    let [half, whole] = [experiment.exact(sizes[0])?, experiment.exact(sizes[1])?];
    let limit = |of: &dyn Fn(&Errors) -> f64| 2.0 * sizes[1] as f64 * of(&whole) - sizes[0] as f64 * of(&half);
    let ratio = limit(&|e| e.weibit.mse) / c;
    let what = format!("n MSE of Weibit over c, all samples of {} and {} choices", sizes[0], sizes[1]);
    ledger.add(what, ratio, Expected::Equal(1.0), 0.01);
    let ratio = limit(&|e| e.softmax.mse - floor) / ((f.softmax_mse)(p, 1.0) - floor);
    ledger.add("n (MSE - floor) of softmax over its law, the same", ratio, Expected::Equal(1.0), 0.01);

    // Samples.
    let rows = golden.list("rows")?;
    let ns = rows.iter().map(|row| row.count("n")).collect::<Result<Vec<usize>>>()?;
    let replicates = plan.pick(1500, 12_000);
    let sampled = ns.iter().map(|n| experiment.simulate(*n, replicates, plan.seed)).collect::<Result<Vec<Errors>>>()?;
    let mut apart = Vec::new();
    for (row, errors) in rows.iter().zip(&sampled) {
        for (name, link) in [("weibit", errors.weibit), ("softmax", errors.softmax)] {
            let error = row.number(&format!("mse_{name}_mc_se"))?.hypot(link.mse_error);
            apart.push((link.mse - row.number(&format!("mse_{name}"))?).abs() / error);
        }
    }
    let what = format!("MSE of {replicates} samples less golden ones in standard errors, n 100 to 10000, worst");
    ledger.add(what, worst(apart), Expected::AtMost(4.0), 0.0);
    let exact = if sizes[0] == 100 { half } else { whole };
    let z = |got: LogOdds, exact: LogOdds| (got.mse - exact.mse).abs() / got.mse_error;
    let off = worst([z(sampled[0].weibit, exact.weibit), z(sampled[0].softmax, exact.softmax)]);
    ledger.add("the same of n = 100 less that over all samples", off, Expected::AtMost(4.0), 0.0);
    let off = (0..plan.pick(4, 20)).into_par_iter().map(|replicate| off_choices(&experiment, plan.seed, replicate));
    let off = worst(off.collect::<Result<Vec<f64>>>()?);
    ledger.add("fits to counts less those to choices, relative", off, Expected::AtMost(0.0), 1e-9);

    // The well-specified link goes on falling, the other one stops.
    let (Some(before), Some(last)) = (sampled.iter().rev().nth(1), sampled.last()) else { return Ok(ledger) };
    let n = last.n as f64;
    let relative = |link: LogOdds| link.mse_error / link.mse;
    let ratio = n * last.weibit.mse / c;
    ledger.add("n MSE of Weibit over c, n 10000", ratio, Expected::Equal(1.0), 4.0 * relative(last.weibit));
    let ratio = last.softmax.mse / (f.softmax_mse)(p, n);
    ledger.add("MSE of softmax over its law, n 10000", ratio, Expected::Equal(1.0), 4.0 * relative(last.softmax));
    let mse: Vec<f64> = sampled.iter().map(|e| e.weibit.mse).collect();
    let slope = log_slope(&ns, &mse, &vec![1.0; ns.len()]);
    ledger.add("slope in n of Weibit's MSE", slope, Expected::Equal(-1.0), plan.pick(0.08, 0.03));
    let slope = (last.softmax.mse / before.softmax.mse).ln() / (n / before.n as f64).ln();
    ledger.add("slope of softmax's at the end, n 5000 to 10000", slope, Expected::Between(-0.12, 0.05), 0.0);
    let least_of = least(sampled.iter().map(|e| e.softmax.mse / floor));
    ledger.add("least MSE of softmax over the floor", least_of, Expected::Between(1.0, 1.08), 0.02);
    let ratio = last.softmax.mse / last.weibit.mse;
    ledger.add("MSE of softmax over Weibit's, n 10000", ratio, Expected::AtLeast(50.0), 0.0);

    let link = |label: &str, colour: usize, of: fn(&Errors) -> LogOdds| Curve {
        errors: sampled.iter().map(|e| of(e).mse_error).collect(),
        ..Curve::new(label, Draw::Sampled, colour, sampled.iter().map(|e| [e.n as f64, of(e).mse]).collect())
    };
    let x: Vec<f64> = (0..=40).map(|i| 100.0 * 10.0_f64.powf(f64::from(i) / 20.0)).collect();
    ledger.plots.push(Plot {
        name: "noise-floor",
        title: "Winners by Weibit: error of the fitted log-odds".into(),
        x: "choices n",
        y: "mean squared error",
        log_y: true,
        curves: vec![
            link("Weibit", 0, |e| e.weibit),
            Curve::of(format!("c/n, c = {c:.3}"), Draw::Law, 0, &x, |n| (f.weibit_mse)(p, n)),
            link("softmax", 1, |e| e.softmax),
            Curve::of("floor + c'/n", Draw::Law, 1, &x, |n| (f.softmax_mse)(p, n)),
        ],
        levels: vec![(floor, format!("softmax's floor, {floor:.4}"))],
    });
    Ok(ledger)
}
