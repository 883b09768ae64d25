use super::super::Gpd;
use super::super::testing::{draws, numbers, rng};
use super::*;
use rand::seq::SliceRandom;
use serde_json::Value;

const SAMPLES: &[u8] = include_bytes!("../../../tests/golden/pot/pot_samples.safetensors");

fn slices(anchors: &[Vec<f64>]) -> Vec<&[f64]> {
    anchors.iter().map(Vec::as_slice).collect()
}

/// Similarities of `anchors` anchors to `negatives` negatives each. Their shortfall is a power law of the index `h`, an anchor's
/// shortfalls share a factor of `spread` at most.
fn similarities(anchors: usize, negatives: usize, h: f64, spread: f64, seed: u64) -> Vec<Vec<f64>> {
    let mut rng = rng(seed);
    let mut one = || {
        let factor = spread.powf(rng.random::<f64>());
        (0..negatives).map(|_| 1.0 - rng.random::<f64>().powf(1.0 / h) / factor).collect()
    };
    (0..anchors).map(|_| one()).collect()
}

#[test]
fn thresholds_and_fits_equal_the_golden_ones() {
    let golden: Value = serde_json::from_str(include_str!("../../../tests/golden/pot/pot_golden.json")).unwrap();
    let scores = numbers(SAMPLES, "scores_sphere6");
    let mut seen = 0;
    for case in golden["thresholds"].as_array().unwrap().iter().filter(|c| c["scores"] == "scores_sphere6") {
        let of = |what: &str| case[what].as_f64().unwrap();
        let mle = |what: &str| case["mle"][what].as_f64().unwrap();
        // To whom a similarity belongs does not matter to the fit.
        for anchors in [vec![scores.clone()], scores.chunks(100).map(<[f64]>::to_vec).collect()] {
            let peaks = Peaks::over(&slices(&anchors), of("q")).unwrap();
            assert_eq!(peaks.threshold, of("u"));
            assert_eq!((peaks.fit.n, peaks.similarities), (case["n_exceed"].as_u64().unwrap() as usize, 20_000));
            assert!((peaks.fit.gpd.xi - mle("xi")).abs() < 1e-9);
            assert!((peaks.fit.gpd.sigma - mle("sigma")).abs() < 1e-9);
            assert!((peaks.fit.log_likelihood - mle("ll")).abs() < 1e-8);
            assert!((peaks.endpoint().unwrap() - mle("xF")).abs() < 1e-9);
            assert!((peaks.fit.errors.unwrap().xi - mle("se_xi")).abs() < 1e-8);
            assert!((peaks.hill.unwrap().index - of("hill_endpoint1")).abs() < 1e-10);
        }
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn a_grid_has_what_each_quantile_gives() {
    let anchors = similarities(40, 250, 2.5, 1.5, 1);
    let grid = Peaks::grid(&slices(&anchors), &QUANTILE_GRID).unwrap();
    for (row, quantile) in grid.iter().zip(QUANTILE_GRID) {
        assert_eq!(row.as_ref().unwrap(), &Peaks::over(&slices(&anchors), quantile).unwrap());
    }
    let short = Peaks::grid(&slices(&anchors), &[0.9995, 0.9]).unwrap();
    let why = short[0].as_ref().unwrap_err().to_string();
    assert_eq!(
        why,
        "5 of 10000 similarities exceed their 0.9995 quantile; expected at least 20; take a quantile below 0.9980, or more anchors"
    );
    assert!(short[1].is_ok());
}

#[test]
fn above_the_right_threshold_the_estimates_are_stable() {
    // A generalised Pareto law above 0 is one above every threshold: xi and the modified scale stay.
    let law = Gpd { xi: -0.4, sigma: 0.4 };
    let sample = draws(law, 200_000, 4);
    let anchors: Vec<Vec<f64>> = sample.chunks(500).map(<[f64]>::to_vec).collect();
    for row in Peaks::grid(&slices(&anchors), &[0.5, 0.8, 0.9, 0.95, 0.98]).unwrap() {
        let peaks = row.unwrap();
        let error = peaks.fit.errors.unwrap().xi;
        assert!((peaks.fit.gpd.xi + 0.4).abs() < 4.0 * error, "{peaks:?}");
        assert!((peaks.modified_scale() - 0.4).abs() < 4.0 * error, "{peaks:?}");
        assert!((peaks.endpoint().unwrap() - 1.0).abs() < 0.02, "{peaks:?}");
        assert!((peaks.hill.unwrap().index - 2.5).abs() < 4.0 * peaks.hill.unwrap().error, "{peaks:?}");
    }
}

#[test]
fn a_resample_equals_the_fit_of_its_anchors_written_out() {
    // Few anchors with very different tails: many resamples reach below the short tail.
    let anchors: Vec<Vec<f64>> = (0..6).map(|a| similarities(1, 300, 2.0, 1.0, a).remove(0)).collect();
    let anchors: Vec<Vec<f64>> =
        anchors.iter().enumerate().map(|(i, a)| a.iter().map(|s| s - i as f64).collect()).collect();
    let slices = slices(&anchors);
    let bootstrap = Bootstrap { replicates: 40, level: 0.5, seed: 9 };
    let got = bootstrap.intervals(&slices, 0.95).unwrap();
    let mut xi = Vec::new();
    let mut too_short = 0;
    let tail = Tail::new(&slices, 4 * needed(1800, 0.95) + 64);
    for replicate in 0..40 {
        let weights = draw(6, 9, replicate);
        too_short += usize::from(tail.cut(&weights, 1800, 0.95).is_none());
        let written: Vec<&[f64]> =
            slices.iter().zip(&weights).flat_map(|(a, w)| std::iter::repeat_n(*a, *w as usize)).collect();
        xi.push(Peaks::over(&written, 0.95).unwrap().fit.gpd.xi);
    }
    assert!(too_short > 0, "the whole sample was never needed");
    xi.sort_unstable_by(f64::total_cmp);
    assert_eq!(got.xi, [xi[9], xi[30]]);
    assert_eq!((got.fitted, got.failed), (40, 0));
}

#[test]
fn resampling_is_the_same_for_every_number_of_threads() {
    let anchors = similarities(30, 200, 2.5, 2.0, 2);
    let bootstrap = Bootstrap { replicates: 100, ..Bootstrap::default() };
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| bootstrap.intervals(&slices(&anchors), 0.95).unwrap())
    };
    let one = with(1);
    assert_eq!(one, with(2));
    assert_eq!(one, with(5));
    assert_ne!(one, Bootstrap { seed: 1, ..bootstrap }.intervals(&slices(&anchors), 0.95).unwrap());
    // The order within an anchor and of equal values changes nothing.
    let mut shuffled = anchors.clone();
    shuffled.iter_mut().for_each(|a| a.shuffle(&mut rng(3)));
    assert_eq!(bootstrap.intervals(&slices(&shuffled), 0.95).unwrap(), one);
}

#[test]
fn intervals_over_anchors_cover_where_those_of_independent_values_do_not() {
    // Every anchor has its negatives four times over, all but equal: a quarter of the values are independent.
    let (mut over_anchors, mut independent, repeats) = (0, 0, 200);
    for repeat in 0..repeats {
        let distinct = draws(Gpd { xi: -0.3, sigma: 0.3 }, 2500, 300 + repeat);
        let copies = |y: &f64| [*y, y * (1.0 + 1e-9), y * (1.0 + 2e-9), y * (1.0 + 3e-9)];
        let anchors: Vec<Vec<f64>> = distinct.chunks(25).map(|a| a.iter().flat_map(copies).collect()).collect();
        let slices = slices(&anchors);
        let inside = |[low, high]: [f64; 2]| usize::from((low..=high).contains(&-0.3));
        let bootstrap = Bootstrap { replicates: 199, level: 0.95, seed: repeat };
        over_anchors += inside(bootstrap.intervals(&slices, 0.9).unwrap().xi);
        independent += Peaks::over(&slices, 0.9).unwrap().fit.xi_95().map_or(0, inside);
    }
    let share = |count: usize| count as f64 / repeats as f64;
    // Three standard deviations of a share of 200 are 0.05. Percentiles of 250 independent peaks lack a little.
    assert!(share(over_anchors) > 0.85, "{}", share(over_anchors));
    assert!(share(independent) < 0.75, "{}", share(independent));
}

#[test]
fn hill_finds_the_index_in_any_order_and_unit() {
    let mut sample = draws(Gpd { xi: -0.5, sigma: 0.5 }, 4000, 1);
    // Shortfalls 1 - s with P(< u) = u^2.
    sample.iter_mut().for_each(|y| *y = 1.0 - *y);
    let hill = Hill::of(&sample, 400).unwrap();
    assert!((hill.index - 2.0).abs() < 4.0 * hill.error && (hill.error - hill.index / 20.0).abs() < 1e-12, "{hill:?}");
    let mut sorted = sample.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let plain = 399.0 / sorted[..400].iter().map(|d| (sorted[400] / d).ln()).sum::<f64>();
    assert!((hill.index - plain).abs() < 1e-12);
    assert_eq!(Hill::of(&sorted, 400).unwrap(), hill);
    assert!((hill.criticality(0.4, 3.0) - 1.2 / hill.index).abs() < 1e-15);
    assert!(Hill::of(&sample, 1).unwrap_err().to_string().contains("at least 2 points"));
    assert!(Hill::of(&sample[..64], 64).unwrap_err().to_string().contains("got 64 shortfalls"));
    assert!(Hill::of(&[0.3; 100], 64).unwrap_err().to_string().contains("65 smallest shortfalls are all 0.3"));
    assert!(Hill::of(&[0.0; 100], 64).unwrap_err().to_string().contains("duplicated"));
    sample[3] = f64::NAN;
    assert!(Hill::of(&sample, 64).unwrap_err().to_string().starts_with("shortfall 3, counted from 0, is NaN"));
}

#[test]
fn what_cannot_be_looked_at_says_why() {
    let anchors = similarities(5, 100, 2.5, 1.5, 1);
    let refused = |anchors: &[&[f64]], quantile: f64| Peaks::over(anchors, quantile).unwrap_err().to_string();
    for quantile in [0.0, 1.0, -0.1, f64::NAN] {
        assert!(refused(&slices(&anchors), quantile).contains("expected a number between 0 and 1, such as 0.99"));
    }
    assert!(refused(&[], 0.9).contains("got 0 anchors"));
    assert!(refused(&[&[0.1], &[]], 0.9).contains("anchor 1, counted from 0, has no similarities"));
    let why = refused(&[&[0.1], &[0.2, f64::NAN]], 0.9);
    assert!(why.starts_with("similarity 1 of anchor 1, both counted from 0, is NaN"), "{why}");
    assert!(refused(&slices(&anchors), 0.99).starts_with("5 of 500 similarities exceed their 0.99 quantile"));
    assert!(refused(&[&[0.1]], 0.99).ends_with("take more anchors"));
    // All in a tie at the top: nothing exceeds it.
    assert!(refused(&[&[0.5; 1000]], 0.9).starts_with("0 of 1000 similarities exceed"));
    let mut capped = vec![0.1; 1000];
    capped[..50].fill(0.9);
    let why = refused(&[&capped], 0.9);
    assert!(why.contains("all 50 exceedances are 0.8") && why.contains("duplicated images"), "{why}");
    let bootstrap = |b: Bootstrap, n: usize| b.intervals(&slices(&anchors)[..n], 0.9).unwrap_err().to_string();
    assert!(bootstrap(Bootstrap { replicates: 3, ..Bootstrap::default() }, 5).contains("at least 20 replicates"));
    assert!(bootstrap(Bootstrap { level: 95.0, ..Bootstrap::default() }, 5).contains("such as 0.95"));
    assert!(bootstrap(Bootstrap::default(), 1).contains("got 1 anchor"));
}

#[test]
fn notes_say_few_anchors_and_impossible_endpoints() {
    let anchors = similarities(5, 1000, 2.5, 1.5, 1);
    let peaks = Peaks::over(&slices(&anchors), 0.9).unwrap();
    assert!(peaks.notes().contains(&Note::FewAnchors { anchors: 5 }));
    assert!((1..=5).contains(&peaks.anchors_with_peaks));
    let normal: Vec<Vec<f64>> = (0..50).map(|a| draws(Gpd { xi: -0.05, sigma: 0.2 }, 200, a)).collect();
    let notes = Peaks::over(&slices(&normal), 0.9).unwrap().notes();
    assert!(notes.iter().any(|n| matches!(n, Note::BeyondOne { .. })), "{notes:?}");
    assert!(notes.iter().any(|n| n.to_string().contains("more than any cosine")), "{notes:?}");
}

#[test]
fn ties_at_the_quantile_are_named() {
    let tied = vec![vec![0.5; 400]; 20];
    let slices: Vec<&[f64]> = tied.iter().map(Vec::as_slice).collect();
    let error = Peaks::over(&slices, 0.99).unwrap_err().to_string();
    assert!(error.contains("as 8000 are equal to it, 0.5;") && !error.contains("take a quantile"), "{error}");
    assert_eq!(Note::FewAnchors { anchors: 1 }.to_string().split(':').next(), Some("only 1 anchor"));
}
