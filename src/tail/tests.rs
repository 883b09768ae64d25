//! The diagnosis of samples whose law is known, and of what embeddings can have that is wrong.

use super::anchors::tail_points;
use super::record;
use super::words::{self, Shape};
use super::*;
use crate::config::loss::*;
use crate::loss::{Layout, Loss};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tch::Tensor;

fn settings() -> Settings {
    Settings {
        quantile: 0.99,
        bootstrap: Some(Bootstrap { replicates: 100, ..Bootstrap::default() }),
        gate: WeinceConfig::default(),
        gate_of: "WEINCE's defaults".into(),
        batch_negatives: None,
    }
}

fn normals(n: usize, seed: u64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || rng.random::<f64>().max(f64::MIN_POSITIVE);
    (0..n).map(|_| (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()).collect()
}

/// Similarities `end - reach U^(1 / h)`, whose law is a generalised Pareto one with `xi = -1 / h` above every threshold.
fn known(anchors: usize, negatives: usize, h: f64, [end, reach]: [f64; 2], seed: u64) -> Sample {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut row = || (0..negatives).map(|_| end - reach * rng.random::<f64>().powf(1.0 / h)).collect();
    Sample { similarities: (0..anchors).map(|_| row()).collect(), candidates: None, left_out: 0, overlap: 0 }
}

fn text(words: &[words::Word]) -> String {
    words.iter().map(|w| format!("{}{}\n", if w.caution { "! " } else { "" }, w.text)).collect()
}

/// What the loss says of a batch with two views, and what the twin says of the same similarities.
fn both(config: &WeinceConfig, samples: usize, width: usize) -> (crate::loss::Diagnostics, Anchors) {
    let data = normals(2 * samples * width, 5);
    let z = Tensor::from_slice(&data).view([2 * samples as i64, width as i64]);
    let (z_i, z_j) = (z.narrow(0, 0, samples as i64), z.narrow(0, samples as i64, samples as i64));
    let mut loss = Loss::new(&LossConfig::Weince(config.clone()), Layout::TwoView).unwrap();
    let diagnostics = loss.forward(&z_i, &z_j).unwrap().diagnostics;
    let rows = Rows::new(data, width, "rows", |r| r as u64).unwrap();
    let negatives = |a: usize| {
        (0..2 * samples).filter(move |c| c % samples != a % samples).map(|c| rows.cosine(a, &rows, c)).collect()
    };
    let all: Vec<Vec<f64>> = (0..2 * samples).map(negatives).collect();
    let slices: Vec<&[f64]> = all.iter().map(Vec::as_slice).collect();
    (diagnostics, Anchors::of(&slices, usize::MAX, config).unwrap())
}

#[test]
fn each_anchors_statistics_are_the_losss() {
    let calibrated = WeinceConfig {
        gate: GateConfig { evidence: Evidence::Likelihood, pivot: Pivot::Absolute(0.3), ..GateConfig::default() },
        beta: BetaConfig::Hill(HillBeta::default()),
        ..WeinceConfig::default()
    };
    let shrunk = WeinceConfig {
        gate: GateConfig { signals: Signals::Rho, ..GateConfig::default() },
        beta: BetaConfig::Shrunk(ShrunkBeta { global: GlobalBeta::Fixed(3.0), ..ShrunkBeta::default() }),
        ..WeinceConfig::default()
    };
    let fixed = WeinceConfig { beta: BetaConfig::Fixed(FixedBeta { value: 1.5 }), ..WeinceConfig::default() };
    for (config, samples) in [(WeinceConfig::default(), 200), (calibrated, 200), (shrunk, 60), (fixed, 2)] {
        let (loss, twin) = both(&config, samples, 6);
        let close = |name: &str, theirs: Option<&Tensor>, ours: Vec<f64>| {
            let theirs = Vec::<f64>::try_from(theirs.unwrap()).unwrap();
            assert_eq!(theirs.len(), ours.len());
            for (a, (t, o)) in theirs.iter().zip(&ours).enumerate() {
                assert!((t - o).abs() <= 1e-9 * t.abs().max(1.0), "{name} of {a}: {t} {o}");
            }
        };
        close("rho", Some(&loss.rho), twin.column(|t| t.rho));
        close("slope", loss.slope.as_ref(), twin.column(|t| t.slope));
        close("r2", loss.r2.as_ref(), twin.column(|t| t.r2));
        close("hill", loss.hill.as_ref(), twin.column(|t| t.hill));
        close("beta", loss.beta.as_ref(), twin.column(|t| t.beta));
        close("evidence", loss.delta_aic.as_ref(), twin.column(|t| twin.evidence(t)));
        close("lambda_rho", loss.lambda_rho.as_ref(), twin.column(|t| t.lambda_rho));
        close("lambda_aic", loss.lambda_aic.as_ref(), twin.column(|t| t.lambda_aic));
        close("lambda", loss.lambda.as_ref(), twin.column(|t| t.lambda));
        close("criticality", loss.criticality().as_ref(), twin.column(|t| t.lambda * t.beta / t.hill));
        assert!((loss.pivot.unwrap().double_value(&[]) - twin.pivot).abs() < 1e-12);
    }
    assert_eq!(tail_points(510, &TailConfig::default()), 51);
    assert_eq!(tail_points(14, &TailConfig { fraction: 0.75, min_points: 1 }), 10);
}

#[test]
fn an_endpoint_at_one_is_found_and_said() {
    // h = 2.5: xi = -0.4, five dimensions.
    let sample = known(200, 1000, 2.5, [1.0, 2.0], 1);
    let analysis = Analysis::of(&sample, &settings()).unwrap();
    let [low, high] = analysis.xi_interval().unwrap();
    assert!(low < -0.4 && -0.4 < high && high < -0.3, "{low} {high}");
    let i = analysis.intervals.as_ref().unwrap();
    assert!(i.endpoint[0] < 1.0 && 1.0 < i.endpoint[1], "{:?}", i.endpoint);
    assert!((analysis.tail_index() - 2.5).abs() < 0.1, "{}", analysis.tail_index());
    assert_eq!(analysis.exceedances.len(), analysis.peaks.fit.n);
    let said = text(&words::of(&analysis, None));
    assert!(said.contains("clearly negative") && said.contains("an endpoint at 1 agrees"), "{said}");
    assert!(said.contains("2 h = 4.955 ") && said.contains("too low where h is large"), "{said}");
    assert!(said.contains("(95 % over anchors: "), "{said}");
    let rows: Vec<String> = record::table_of(&analysis, None).into_iter().map(|row| row.0).collect();
    for name in ["xi, 95 % over anchors", "endpoint, 95 % over anchors", "anchors' own xi, median (5 % to 95 %)"] {
        assert!(rows.contains(&name.to_string()), "{name}: {rows:?}");
    }
    // The published evidence is above the margin for all, and the words say that it says nothing.
    assert!(said.contains("100 % of the anchors have a delta-AIC above the margin 2"), "{said}");
    assert!(said.contains("at equal k only"), "{said}");
    let json = serde_json::Value::Object(record::of(&analysis, None));
    assert_eq!(json["xi"], analysis.peaks.fit.gpd.xi);
    assert_eq!(json["shape"], "negative");
    assert_eq!(json["xi_interval_by"], "anchors");
    assert_eq!(json["per_anchor"]["delta_aic_above_margin"], 1.0);
    assert_eq!(json["grid"].as_array().unwrap().len(), 10);
    // Without resamples the interval is by the fit's own error.
    let without = Analysis::of(&sample, &Settings { bootstrap: None, ..settings() }).unwrap();
    let said = text(&words::of(&without, None));
    assert!(said.contains("(95 %, by the fit's own error, which takes peaks as independent: -0.4"), "{said}");
    assert!(!said.contains("95 % over anchors") && said.contains("without an interval"), "{said}");
}

#[test]
fn an_endpoint_below_one_is_no_evidence_for_one() {
    let analysis = Analysis::of(&known(200, 1000, 3.0, [0.6, 0.8], 2), &settings()).unwrap();
    let said = text(&words::of(&analysis, None));
    assert!(
        said.contains("below 1: this is no evidence for WEINCE's endpoint 1") && said.contains("none against it"),
        "{said}"
    );
}

#[test]
fn every_shape_has_its_words() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut draws = |xi: f64| -> Vec<f64> {
        let law = crate::evt::Gpd { xi, sigma: 0.1 };
        (0..4000).map(|_| law.quantile(rng.random::<f64>()).max(1e-300)).collect()
    };
    let said = |values: &[f64]| {
        let fit = bare_fit(values).unwrap();
        (Shape::of(&fit, fit.xi_95()), text(&words::of_fit(&fit)), fit)
    };
    let (shape, words, fit) = said(&draws(-0.3));
    assert!(shape == Shape::Negative && words.contains("clearly negative") && words.contains("ends at 0.3"), "{words}");
    assert!(words.contains("(95 %, by the fit's own error, which takes peaks as independent: -0."), "{words}");
    assert!((fit.gpd.xi + 0.3).abs() < 4.0 * fit.errors.unwrap().xi);
    let (shape, words, _) = said(&[draws(-0.06), draws(-0.06), draws(-0.06), draws(-0.06)].concat());
    assert!(shape == Shape::Negative && words.contains("is small: as far as there are peaks"), "{words}");
    let (shape, words, _) = said(&draws(0.0));
    assert!(shape == Shape::NearZero && words.contains("cannot be told from 0"), "{words}");
    let (shape, words, _) = said(&draws(0.4));
    assert!(shape == Shape::Positive && words.contains("is positive"), "{words}");
    // Without standard errors, up to -0.5, the likelihood ratio decides.
    let (shape, words, fit) = said(&draws(-0.7));
    assert!(shape == Shape::Negative && fit.errors.is_err() && words.contains("! No standard errors"), "{words}");
    assert!(
        words.contains("seems negative, without an interval") && words.contains("largest exceedance nearly"),
        "{words}"
    );
    let (shape, words, _) = said(&draws(-1.5));
    assert!(shape == Shape::Boundary && words.contains("at the boundary -1"), "{words}");
    assert!(words.contains("! At the boundary no law with xi >= -1 need fit the peaks: look at the plot"), "{words}");
    let (shape, words, _) = said(&draws(-0.45)[..60]);
    assert!(shape == Shape::Negative && words.contains("seems negative, with so few peaks"), "{words}");
    let (_, words, _) = said(&draws(-0.3)[..30]);
    assert!(words.contains("! Only 30 exceedances"), "{words}");
}

#[test]
fn criticality_has_three_verdicts() {
    let sample = known(100, 500, 2.0, [1.0, 2.0], 4);
    let said = |beta: f64| {
        // lambda is 1 for all: only the evidence opens the gate.
        let gate = WeinceConfig {
            gate: GateConfig { signals: Signals::Aic, ..GateConfig::default() },
            beta: BetaConfig::Fixed(FixedBeta { value: beta }),
            ..WeinceConfig::default()
        };
        text(&words::of(&Analysis::of(&sample, &Settings { gate, bootstrap: None, ..settings() }).unwrap(), None))
    };
    assert!(said(0.2).contains("Criticality lambda beta / h is 0.5 or more for 0 % and"), "{}", said(0.2));
    assert!(
        said(0.2).contains("nears its limit as 1/k") && !said(0.2).contains("not of the run's loss"),
        "{}",
        said(0.2)
    );
    // Some anchors, not most: h scatters from anchor to anchor.
    let some = said(0.85);
    assert!(some.contains("! Criticality") && some.contains("does not near a limit as 1/k"), "{some}");
    assert!(said(1.5).contains("! Criticality") && said(1.5).contains("infinite variance"), "{}", said(1.5));
    assert!(said(6.0).contains("the loss has no limit"), "{}", said(6.0));
    assert!(said(6.0).contains("There are no intervals over anchors: none were asked for."));
}

#[test]
fn a_cluster_that_has_all_peaks_is_told() {
    // A fifth of the anchors is near to a tenth of the items, with similarities that end like a uniform law's.
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let mut row = |near: bool| -> Vec<f64> {
        let far = |rng: &mut ChaCha8Rng| rng.random_range(-0.5..0.5);
        (0..500).map(|j| if near && j < 50 { rng.random_range(0.8..0.9) } else { far(&mut rng) }).collect()
    };
    let rows = (0..100).map(|i| row(i < 20)).collect();
    let analysis = Analysis::of(&Sample::of_matrix(rows).unwrap(), &settings()).unwrap();
    let said = text(&words::of(&analysis, None));
    assert!(said.contains("! Only 20 of 100 anchors have a peak"), "{said}");
    assert!(analysis.peaks.fit.at_boundary == said.contains("as it always does at the boundary"), "{said}");
    assert!(analysis.peaks.fit.at_boundary != said.contains("from the quantile"), "{said}");
    let known = known(100, 500, 2.0, [1.0, 2.0], 4);
    assert!(!text(&words::of(&Analysis::of(&known, &settings()).unwrap(), None)).contains("anchors have a peak"));
}

#[test]
fn duplicates_and_hubs_are_told() {
    // The first 40 of 600 items are the same.
    let (items, width) = (600, 16);
    let mut data = normals(items * width, 6);
    for row in 1..40 {
        data.copy_within(0..width, row * width);
    }
    let draw = Draw::of(items, 300, 1000, 0).unwrap();
    assert_eq!((draw.anchors.len(), draw.candidates.len(), draw.negatives), (300, 600, 599));
    let rows = |numbers: &[usize]| {
        let data = numbers.iter().flat_map(|i| data[i * width..][..width].to_vec()).collect();
        Rows::new(data, width, "rows", |r| numbers[r] as u64).unwrap()
    };
    let sample = Sample::of_rows(&draw, &rows(&draw.anchors), &rows(&draw.candidates), None).unwrap();
    assert!(sample.similarities.iter().all(|s| s.len() == 599));
    assert_eq!(sample.overlap, 300);
    let analysis = Analysis::of(&sample, &settings()).unwrap();
    let same = draw.anchors.iter().filter(|a| **a < 40).count();
    assert_eq!(analysis.duplicates, Duplicates { pairs: same * 39, anchors: same });
    let said = text(&words::of(&analysis, None));
    assert!(said.contains("are duplicates"), "{said}");
    assert!(said.contains("300 of 300 anchors are candidates of others too"), "{said}");
    assert!(analysis.hubs.unwrap().ratio < 10.0 && !said.contains("hubs"), "{said}");

    // A hub: a candidate that lies in the direction that all have in common.
    let width = 64;
    let mut data = normals(items * width, 15);
    data.chunks_exact_mut(width).for_each(|row| row[0] += 4.0);
    data[50 * width..51 * width].fill(0.0);
    data[50 * width] = 1.0;
    let draw = Draw::of(items, 600, 1000, 0).unwrap();
    let rows = |numbers: &[usize]| {
        let data = numbers.iter().flat_map(|i| data[i * width..][..width].to_vec()).collect();
        Rows::new(data, width, "rows", |r| numbers[r] as u64).unwrap()
    };
    let sample = Sample::of_rows(&draw, &rows(&draw.anchors), &rows(&draw.candidates), None).unwrap();
    let mut analysis = Analysis::of(&sample, &settings()).unwrap();
    let hubs = analysis.hubs.unwrap();
    assert!(hubs.largest > 150 && hubs.ratio > 2.0 && hubs.candidates == 600, "{hubs:?}");
    analysis.hubs = Some(Hubs { ratio: 25.0, ..hubs });
    let said = text(&words::of(&analysis, None));
    assert!(said.contains("There are hubs: two peaks share their candidate 25 times"), "{said}");
}

#[test]
fn chance_has_the_hub_ratio_one() {
    let mut sample = known(300, 200, 2.0, [1.0, 2.0], 7);
    sample.candidates = Some(vec![(0..200).collect(); 300]);
    let hubs = Analysis::of(&sample, &settings()).unwrap().hubs.unwrap();
    assert!((hubs.ratio - 1.0).abs() < 0.2 && hubs.peaks == 600, "{hubs:?}");
}

#[test]
fn classes_are_left_out_only_where_labels_are_given() {
    let (items, width) = (200, 8);
    let rows = |numbers: &[usize]| {
        let all = normals(items * width, 8);
        let data = numbers.iter().flat_map(|i| all[i * width..][..width].to_vec()).collect();
        Rows::new(data, width, "rows", |r| numbers[r] as u64).unwrap()
    };
    let draw = Draw::of(items, 50, 100, 1).unwrap();
    assert!(draw.anchors.iter().all(|a| !draw.candidates.contains(a)), "items suffice: none is both");
    let (anchors, candidates) = (rows(&draw.anchors), rows(&draw.candidates));
    let labels = |numbers: &[usize]| numbers.iter().map(|i| (*i % 4) as i64).collect::<Vec<i64>>();
    let (own, theirs) = (labels(&draw.anchors), labels(&draw.candidates));
    let sample = Sample::of_rows(&draw, &anchors, &candidates, Some((&own, &theirs))).unwrap();
    let expected: usize = own.iter().map(|own| theirs[..100].iter().filter(|theirs| *theirs == own).count()).sum();
    assert_eq!((sample.left_out, sample.overlap), (expected, 0));
    assert_eq!(sample.similarities.iter().map(Vec::len).sum::<usize>(), 50 * 100 - expected);
    // One class: nothing is left.
    let one = vec![3; 101];
    let error = Sample::of_rows(&draw, &anchors, &candidates, Some((&one[..50], &one))).unwrap_err();
    assert!(error.to_string().contains("of its class"), "{error}");
}

#[test]
fn rows_without_a_direction_are_refused() {
    let error = |data: Vec<f64>| Rows::new(data, 2, "f.npy", |r| 10 + r as u64).unwrap_err();
    let zero = error(vec![1.0, 0.0, 0.0, 0.0]);
    assert!(zero.to_string().contains("f.npy: row 11") && zero.exit_code() == 1, "{zero}");
    let nan = error(vec![f64::NAN, 0.0, 0.0, 0.0]);
    assert!(nan.to_string().contains("row 10") && nan.exit_code() == 3, "{nan}");
    assert!(error(vec![1.0; 3]).to_string().contains("no rows of 2"));
    // Lengths do not count, however long or short.
    let rows = Rows::new(vec![1e300, 0.0, 1e-300, 1e-300], 2, "f", |r| r as u64).unwrap();
    assert!((rows.cosine(0, &rows, 1) - 0.5f64.sqrt()).abs() < 1e-15);
}

#[test]
fn matrices_are_of_cosines_and_not_of_rows_with_themselves() {
    let refused = |rows: Vec<Vec<f64>>| Sample::of_matrix(rows).unwrap_err().to_string();
    assert!(refused(vec![vec![0.1, 20.0]]).contains("not by a temperature"));
    assert!(refused(vec![vec![0.1, f64::NAN]]).contains("row 0, column 1"));
    assert!(refused(vec![vec![1.0, 0.2], vec![0.2, 1.0]]).contains("diagonal"));
    assert!(refused(vec![]).contains("at least 1"));
    let sample = Sample::of_matrix(vec![vec![1.0 + 1e-6, 0.2]]).unwrap();
    assert_eq!(sample.similarities, [[1.0, 0.2]]);
}

#[test]
fn small_samples_are_errors_or_notes() {
    assert!(Draw::of(1, 10, 10, 0).unwrap_err().to_string().contains("2 items"));
    // One anchor: peaks, and no interval.
    let analysis = Analysis::of(&known(1, 5000, 2.0, [1.0, 2.0], 9), &settings()).unwrap();
    let said = text(&words::of(&analysis, None));
    assert!(said.contains("There are no intervals over anchors: a bootstrap over anchors got 1 anchor"), "{said}");
    assert!(said.contains("! Only 1 anchor: "), "{said}");
    // Fewer negatives than the tail has points.
    let analysis = Analysis::of(&known(200, 20, 2.0, [1.0, 2.0], 9), &settings()).unwrap();
    assert_eq!(analysis.anchors.points, 20);
    let said = text(&words::of(&analysis, None));
    assert!(said.contains("An anchor's tail is 20 of its 20 negatives"), "{said}");
    // Too few peaks.
    let error = Analysis::of(&known(10, 20, 2.0, [1.0, 2.0], 9), &settings()).unwrap_err();
    assert!(error.to_string().contains("take a quantile below"), "{error}");
    // All the same.
    let equal = Sample { similarities: vec![vec![0.5; 400]; 20], candidates: None, left_out: 0, overlap: 0 };
    let error = Analysis::of(&equal, &settings()).unwrap_err().to_string();
    assert!(error.contains("as 8000 are equal to it, 0.5"), "{error}");
}

/// Items of which each has drawn another one by a blend's probabilities: a positive whose set is filled up with random others is chosen by
/// the same blend (McFadden's sampling of alternatives).
#[test]
fn a_known_lambda_is_recovered() {
    let (items, width) = (1500, 6);
    let data = normals(items * width, 10);
    let numbers: Vec<usize> = (0..items).collect();
    let rows = Rows::new(data.clone(), width, "rows", |r| r as u64).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for (kappa, lambda) in [(4.0, 0.0), (3.0, 0.4), (1.5, 1.0)] {
        let mut second = Vec::new();
        for a in 0..items {
            let value = |c: usize| {
                let s = rows.cosine(a, &rows, c);
                kappa * ((1.0 - lambda) * s - lambda * (1.0 - s).max(1e-6).ln())
            };
            let weights: Vec<f64> = numbers.iter().map(|c| if *c == a { 0.0 } else { value(*c).exp() }).collect();
            let mut left = rng.random::<f64>() * weights.iter().sum::<f64>();
            let drawn = weights.iter().position(|w| {
                left -= w;
                left < 0.0
            });
            second.extend(&data[drawn.unwrap_or(0) * width..][..width]);
        }
        let second = Rows::new(second, width, "rows", |r| r as u64).unwrap();
        let draw = Draw { anchors: numbers.clone(), candidates: numbers.clone(), negatives: items - 1 };
        let winners = Winners::of(Winner::Positive, &draw, &rows, &rows, &[second], 64, 1).unwrap();
        let link = winners.fit().unwrap();
        let blend = link.fit.blend.unwrap();
        let [low, high] = blend.lambda_95_robust();
        assert!(low <= lambda && lambda <= high, "{lambda}: {low} {high}");
        assert_eq!((link.candidates, link.draws, link.fit.choices), (65, 1, items));
    }
}

#[test]
fn a_fresh_view_chooses_among_the_anchors_own_candidates() {
    let (items, width) = (80, 5);
    let data = normals(items * width, 12);
    let rows = |data: Vec<f64>| Rows::new(data, width, "rows", |r| r as u64).unwrap();
    let clean = rows(data.clone());
    let noisy = |seed: u64| rows(data.iter().zip(normals(items * width, seed)).map(|(v, e)| v + 0.5 * e).collect());
    let numbers: Vec<usize> = (0..items).collect();
    let draw = Draw { anchors: numbers.clone(), candidates: numbers, negatives: items - 1 };
    let views = [noisy(13), noisy(14)];
    // As many candidates as there are: no matter how they are drawn.
    let winners = Winners::of(Winner::Fresh, &draw, &clean, &clean, &views, 1000, 0).unwrap();
    assert_eq!((winners.candidates, winners.draws, winners.choices().len()), (79, 2, 160));
    for (number, (scores, winner, anchor)) in winners.choices().iter().enumerate() {
        let view = &views[number % 2];
        let best = (0..items)
            .filter(|c| c != anchor)
            .max_by(|i, j| view.cosine(*anchor, &clean, *i).total_cmp(&view.cosine(*anchor, &clean, *j)));
        assert_eq!(scores[*winner], clean.cosine(*anchor, &clean, best.unwrap()));
    }
    // The anchors' own rows as views: all agree, and nothing is to be fitted.
    let link =
        Winners::of(Winner::Fresh, &draw, &clean, &clean, std::slice::from_ref(&clean), 20, 0).unwrap().fit().unwrap();
    assert_eq!(link.agreement, 1.0);
    assert!(link.fit.blend.is_err());
    let analysis = Analysis::of(&known(50, 100, 2.0, [1.0, 2.0], 1), &settings()).unwrap();
    let said = text(&words::of(&analysis, Some(&link)));
    assert!(said.contains("gives no lambda: separated"), "{said}");
    let link = winners.fit().unwrap();
    let said = text(&words::of(&analysis, Some(&link)));
    assert!(
        said.contains("160 choices of 80 anchors among 79 candidates") && said.contains("robust over anchors"),
        "{said}"
    );
    let json = record::of(&analysis, Some(&link));
    assert_eq!(json["link"]["winner"], "fresh");
    assert!(json["link"]["lambda_interval_robust"].is_array());
}

#[test]
fn a_gate_belongs_to_its_loss() {
    let weince = WeinceConfig { temperature: 0.2, ..WeinceConfig::default() };
    assert_eq!(gate_of(&LossConfig::Weince(weince.clone())).0, weince);
    let (gate, whose) = gate_of(&LossConfig::Infonce(InfonceConfig { temperature: 0.2, tile: None }));
    assert!(gate == weince && whose.contains("InfoNCE"));
    use crate::config::loss_reference::{Policy, ReferenceConfig};
    let reference = |policy| ReferenceConfig { policy, select_q: 0.3, ..ReferenceConfig::default() };
    let (gate, whose) = gate_of(&LossConfig::Reference(reference(Policy::TlambdaSelect)));
    assert_eq!(gate.gate.pivot, Pivot::Quantile(0.3));
    assert!(gate.beta == BetaConfig::Fixed(FixedBeta { value: 1.0 }) && whose.contains("reference"));
    assert!(gate_of(&LossConfig::Reference(reference(Policy::Weibit))).1.contains("defaults"));
}

#[test]
fn an_endpoint_that_hugs_the_largest_peak_has_no_interval() {
    // h = 1.25: xi = -0.8.
    let analysis = Analysis::of(&known(200, 1000, 1.25, [1.0, 2.0], 21), &settings()).unwrap();
    assert!(!analysis.peaks.fit.at_boundary && analysis.peaks.fit.gpd.xi < -0.5, "{:?}", analysis.peaks.fit.gpd);
    assert!(analysis.intervals.is_ok() && analysis.endpoint_interval().is_none());
    let said = text(&words::of(&analysis, None));
    assert!(said.contains("cannot reach beyond what was seen") && !said.contains("no evidence for WEINCE"), "{said}");
    let json = record::of(&analysis, None);
    assert!(json["endpoint_interval"].is_null() && json["xi_interval"].is_array());
    assert!(record::table_of(&analysis, None).iter().all(|row| !row.0.starts_with("endpoint, 95 %")));
}

#[test]
fn an_interval_that_reaches_zero_is_too_wide_to_tell() {
    let mut analysis = Analysis::of(&known(200, 1000, 5.0, [1.0, 2.0], 22), &settings()).unwrap();
    assert!(analysis.peaks.fit.exponential_test.p < 0.05);
    if let Ok(intervals) = &mut analysis.intervals {
        intervals.xi = [-0.5, 0.1];
    }
    let said = text(&words::of(&analysis, None));
    assert!(said.contains("the interval over anchors is too wide to tell") && !said.contains("fits as well"), "{said}");
}

#[test]
fn criticality_of_another_loss_is_told_to_be_of_the_gate() {
    let infonce = gate_of(&LossConfig::Infonce(InfonceConfig { temperature: 0.2, tile: None }));
    let given = Settings { gate: infonce.0, gate_of: infonce.1.into(), ..settings() };
    let said = text(&words::of(&Analysis::of(&known(100, 500, 2.0, [1.0, 2.0], 4), &given).unwrap(), None));
    assert!(said.contains("This is of WEINCE's gate on these embeddings, not of the run's loss."), "{said}");
}

#[test]
fn states_at_the_boundary_have_no_endpoint_over_training() {
    let first = Analysis::of(&known(100, 500, 2.0, [1.0, 2.0], 4), &settings()).unwrap();
    let said = text(&words::over_training((1, &first), (2, &first)));
    assert!(said.contains("The fitted endpoint goes from") && !said.contains("have peaks before"), "{said}");
    let mut last = first.clone();
    (last.peaks.fit.at_boundary, last.peaks.fit.gpd.xi) = (true, -1.0);
    last.peaks.anchors_with_peaks = first.peaks.anchors_with_peaks / 2;
    let said = text(&words::over_training((1, &first), (2, &last)));
    assert!(!said.contains("endpoint") && said.contains("to -1.000 (the boundary)."), "{said}");
    let before = first.peaks.anchors_with_peaks;
    assert!(
        said.contains(&format!("{before} of 100 anchors have peaks before, and {} of 100 after", before / 2)),
        "{said}"
    );
    let at = text(&words::of(&last, None));
    assert!(!at.contains("over thresholds: from") && !at.contains("95 % over anchors"), "{at}");
    let rows = record::table_of(&last, None);
    assert!(rows.contains(&("xi, 95 % interval".to_string(), "-".to_string())), "{rows:?}");
}

#[test]
fn numbers_of_any_scale_can_be_read() {
    for (value, expected) in [
        (0.0, "0"),
        (0.123456, "0.12346"),
        (-1.0, "-1.0000"),
        (2.5e-7, "2.5000e-7"),
        (12345678.0, "1.2346e7"),
        (1234.56, "1234.6"),
    ] {
        assert_eq!(words::digits(value), expected);
    }
    for (value, expected) in [(1.0, "1"), (1.0 - 3e-6, "1 - 3.0e-6"), (1.0 + 2e-5, "1 + 2.0e-5"), (0.84, "0.84000")] {
        assert_eq!(words::similarity(value), expected);
    }
}

#[test]
fn a_link_is_judged_by_the_wider_interval() {
    let (items, width) = (200, 5);
    let data = normals(items * width, 12);
    let rows = |data: Vec<f64>| Rows::new(data, width, "rows", |r| r as u64).unwrap();
    let clean = rows(data.clone());
    let noisy = rows(data.iter().zip(normals(items * width, 13)).map(|(v, e)| v + 0.5 * e).collect());
    let numbers: Vec<usize> = (0..items).collect();
    let draw = Draw { anchors: numbers.clone(), candidates: numbers, negatives: items - 1 };
    let mut link = Winners::of(Winner::Fresh, &draw, &clean, &clean, &[noisy], 30, 0).unwrap().fit().unwrap();
    let analysis = Analysis::of(&known(50, 100, 2.0, [1.0, 2.0], 1), &settings()).unwrap();
    let mut said = |error: f64, robust: f64, p: f64| {
        let blend = link.fit.blend.as_mut().unwrap();
        (blend.lambda, blend.lambda_error, blend.lambda_error_robust) = (0.5, error, robust);
        (blend.softmax_test.two_sided.p, blend.weibit_test.two_sided.p) = (p, 1e-4);
        text(&words::of(&analysis, Some(&link)))
    };
    for (error, robust) in [(0.1, 0.2), (0.2, 0.1)] {
        let words = said(error, robust, 1e-4);
        assert!(words.contains("0.1080 to 0.8920); a blend") && !words.contains("disagree"), "{words}");
    }
    let words = said(0.1, 0.2, 0.3);
    assert!(
        words.contains("On softmax the interval and the likelihood ratio disagree: more choices are needed"),
        "{words}"
    );
    let words = said(1.0, 0.2, 1e-4);
    assert!(words.contains("neither softmax nor Weibit can be excluded"), "{words}");
    assert!(words.contains("On softmax and on Weibit the interval"), "{words}");
}

#[test]
fn legends_tell_of_bands_only_where_there_are_some() {
    let labels = |settings: &Settings| -> String {
        let analysis = Analysis::of(&known(100, 500, 1.25, [1.0, 2.0], 4), settings).unwrap();
        let states = [1, 2].map(|step| pictures::State { step, analysis: &analysis, link: None });
        let shown = pictures::over_training(&states).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let sigma = shown.iter().find(|s| s.picture.name == "training_sigma").unwrap();
        sigma.picture.write(folder.path()).unwrap();
        std::fs::read_to_string(folder.path().join("training_sigma.csv")).unwrap()
    };
    assert!(labels(&settings()).contains("most likely, 95 %"));
    let without = labels(&Settings { bootstrap: None, ..settings() });
    assert!(without.contains("most likely") && !without.contains("95 %"), "{without}");
}
