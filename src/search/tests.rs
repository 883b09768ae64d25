//! The whole analysis on laws whose figures are known, and on embeddings with something odd.

use super::*;
use crate::eval::matrix::Matrix;
use crate::theory::estimators::{AnchorEstimate, calibrated_temperature, ranked};
use crate::theory::models::Sphere;
use crate::theory::random::Random;

/// Points of the sphere in three dimensions: anchors and their positives by von Mises and Fisher's law, and uniform items.
fn sphere(n: usize, m: usize, kappa: f64, seed: u64) -> [Vec<f32>; 3] {
    let mut random = Random::new(seed, 0);
    let (mut anchors, mut positives) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let x = random.direction(3);
        let t = random.cosine_s2(kappa);
        // A direction across x.
        let y = random.direction(3);
        let along: f64 = x.iter().zip(&y).map(|(a, b)| a * b).sum();
        let across: Vec<f64> = y.iter().zip(&x).map(|(b, a)| b - along * a).collect();
        let norm = across.iter().map(|v| v * v).sum::<f64>().sqrt();
        positives.extend(x.iter().zip(&across).map(|(a, b)| (t * a + (1.0 - t * t).sqrt() * b / norm) as f32));
        anchors.extend(x.into_iter().map(|v| v as f32));
    }
    let items = (0..m).flat_map(|_| random.direction(3)).map(|v| v as f32).collect();
    [anchors, positives, items]
}

fn input(parts: &[Vec<f32>; 3], d: usize) -> Input {
    let [anchors, positives, items] = parts.each_ref().map(|v| Matrix::of("rows", v.clone(), d).unwrap());
    Input::new(&anchors, Some(&positives), Items::Corpus(items), None).unwrap()
}

fn run(input: &Input, settings: &Settings) -> Analysis {
    analyse(input, None, settings, &mut |_, _, _| ()).unwrap()
}

fn inside(figure: analysis::Figure, value: f64) {
    let [low, high] = figure.interval;
    // Four errors, so that a right program fails once in ten thousand.
    let half = (high - low) / 2.0 * (4.0 / 1.96);
    assert!((figure.value - value).abs() < half, "{figure:?} {value}");
}

#[test]
fn on_the_sphere_figures_are_those_of_the_closed_forms() {
    let (tau, kappa) = (0.2, 10.0);
    let model = Sphere::new(3, tau, kappa).unwrap();
    let moments = model.moments();
    let input = input(&sphere(6000, 30_000, kappa, 1), 3);
    let settings = Settings { tau, k: Some(256), ..Settings::default() };
    let got = run(&input, &settings);
    assert!(got.violations.is_empty(), "{:?}", got.violations);
    inside(got.cross_entropy.r_inf, model.r_inf());
    assert!(got.cross_entropy.se < 0.03 && got.cross_entropy.se > 0.0005);
    assert!((got.finite_k.c1 / moments.c1() - 1.0).abs() < 0.05, "{} {}", got.finite_k.c1, moments.c1());
    let exact = model.finite_k();
    for point in &got.finite_k.points {
        let (risk, dcl) = (exact.risk(point.k as f64), exact.dcl(point.k as f64));
        assert!((point.risk - risk).abs() < 4.0 * point.risk_se, "{point:?} {risk}");
        assert!((point.dcl - dcl).abs() < 4.0 * point.dcl_se, "{point:?} {dcl}");
    }
    assert!(got.finite_k.slope_dcl.as_ref().unwrap().is_one, "{:?}", got.finite_k.slope_dcl);
    assert!(got.finite_k.slope_positive.as_ref().unwrap().is_one, "{:?}", got.finite_k.slope_positive);
    for other in [got.finite_k.r_inf_richardson, got.finite_k.r_inf_curvature] {
        assert!((other.unwrap() - got.finite_k.r_inf).abs() < 0.03, "{other:?} {}", got.finite_k.r_inf);
    }
    let k_asymptotic = moments.k_asymptotic();
    assert!((got.finite_k.k_asymptotic.unwrap() / k_asymptotic - 1.0).abs() < 0.15, "{k_asymptotic}");
    // The model's own temperature is 1/kappa.
    let tau_cal = got.temperature.calibrated.unwrap();
    assert!((tau_cal * kappa - 1.0).abs() < 0.06, "{tau_cal}");
    let training = got.finite_k.training.unwrap();
    let bias = exact.risk(256.0) - model.r_inf();
    assert!(
        (training.bias.unwrap() - bias).abs() < 0.01 && (training.leading - bias).abs() < 0.005,
        "{training:?} {bias}"
    );
    let certificate = got.generalisation.certificate.unwrap();
    assert_eq!(certificate.tuples, 30_000 / 256);
    assert!(certificate.bound > exact.risk(256.0) && certificate.r_inf_bound > certificate.bound);
    // E rank - 1 is m times the chance of an item to be nearer, so that small corpora have higher recall.
    let recalls: Vec<f64> = got.retrieval.by_size.iter().map(|r| r.recall_at_1).collect();
    assert!(recalls.windows(2).all(|w| w[0] > w[1]));
    assert!((recalls[recalls.len() - 1] - got.retrieval.recall[0].figure.value).abs() < 1e-9);
}

#[test]
fn the_sample_of_all_is_the_plain_estimators() {
    let parts = sphere(40, 300, 5.0, 3);
    let input = input(&parts, 3);
    let tau = 0.3;
    let got = run(&input, &Settings { tau, ..Settings::default() });
    let unit = |v: &[f32]| {
        let norm = v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        v.iter().map(|x| f64::from(*x) / norm).collect::<Vec<f64>>()
    };
    let dot = |a: &[f32], b: &[f32]| unit(a).iter().zip(unit(b)).map(|(x, y)| x * y).sum::<f64>();
    let [anchors, positives, items] = parts.each_ref().map(|v| v.chunks(3).collect::<Vec<_>>());
    let scores: Vec<f64> = anchors.iter().flat_map(|a| items.iter().map(|i| dot(a, i)).collect::<Vec<_>>()).collect();
    let own: Vec<f64> = anchors.iter().zip(&positives).map(|(a, p)| dot(a, p)).collect();
    // With the positive among the items: the least of the log-loss, by steps of a thousandth.
    let loss = |tau: f64| -> f64 {
        let each = scores
            .chunks(300)
            .zip(&own)
            .map(|(row, own)| row.iter().map(|s| ((s - own) / tau).exp()).sum::<f64>().ln_1p());
        each.sum()
    };
    let tau_cal = got.temperature.calibrated.unwrap();
    assert!([0.999, 1.001].iter().all(|f| loss(tau_cal * f) > loss(tau_cal)), "{tau_cal}");
    // Without it, the estimator of the theory is near.
    let without = calibrated_temperature(&scores, &own).unwrap().unwrap();
    assert!((tau_cal / without - 1.0).abs() < 0.15, "{tau_cal} {without}");
    let logits: Vec<Vec<f64>> = scores.chunks(300).map(|r| r.iter().map(|s| s / tau).collect()).collect();
    let each: Vec<AnchorEstimate> =
        logits.iter().zip(&own).map(|(l, p)| AnchorEstimate::of(l, p / tau).unwrap()).collect();
    let mean = |f: &dyn Fn(&AnchorEstimate) -> f64| each.iter().map(f).sum::<f64>() / 40.0;
    assert!((got.cross_entropy.jackknife - mean(&|a| a.jackknife)).abs() < 2e-5);
    assert!((got.cross_entropy.plug_in - mean(&|a| a.plug_in)).abs() < 2e-5);
    let all: Vec<_> = logits.iter().zip(&own).map(|(l, p)| ranked(l, p / tau)).collect();
    assert!((got.cross_entropy.loss - all.iter().map(|r| r.loss).sum::<f64>() / 40.0).abs() < 2e-5);
    assert!((got.retrieval.mrr.value - all.iter().map(|r| 1.0 / r.rank as f64).sum::<f64>() / 40.0).abs() < 1e-12);
}

#[test]
fn classes_give_the_search_cross_entropy() {
    let parts = sphere(30, 200, 5.0, 5);
    let [anchors, positives, items] = parts.each_ref().map(|v| Matrix::of("rows", v.clone(), 3).unwrap());
    let class = |v: &[f32]| i64::from(v[0] > 0.3) + 2 * i64::from(v[1] > 0.0);
    let labels = |v: &Vec<f32>| v.chunks(3).map(class).collect::<Vec<i64>>();
    let mut given = Labels { anchors: labels(&parts[0]), items: labels(&parts[2]) };
    given.anchors[4] = 77;
    let input = Input::new(&anchors, Some(&positives), Items::Corpus(items), Some(given.clone())).unwrap();
    let got = run(&input, &Settings { tau: 0.2, ..Settings::default() });
    let found = got.cross_entropy.labelled.unwrap();
    assert_eq!((found.classes, found.without), (4, 1));
    let rows = crate::eval::rows::Rows::new(parts[2].clone(), 3);
    let mut expected = 0.0;
    for i in 0..30 {
        let logits: Vec<f64> = (0..200).map(|j| input.anchors.similarities(i, &rows, [j])[0] / 0.2).collect();
        let same: Vec<bool> = given.items.iter().map(|l| *l == given.anchors[i]).collect();
        expected += crate::theory::estimators::labelled_cross_entropy(&logits, &same).unwrap() / 30.0;
    }
    assert!((found.ece - expected).abs() < 2e-5, "{found:?} {expected}");
    // Of one class M^ is uniform, and so KL(M^ || Q^) is the reverse divergence, which is not below 0.
    let one = Labels { anchors: vec![3; 30], items: vec![3; 200] };
    let [anchors, positives, items] = parts.map(|v| Matrix::of("rows", v, 3).unwrap());
    let input = Input::new(&anchors, Some(&positives), Items::Corpus(items), Some(one)).unwrap();
    let found = run(&input, &Settings { tau: 0.2, ..Settings::default() }).cross_entropy.labelled.unwrap();
    assert!(found.kl > 0.0 && found.classes == 1 && (found.kl - found.ece).abs() < 1e-12);
}

#[test]
fn items_that_are_the_positives_leave_their_own_out() {
    let [anchors, positives, _] = sphere(500, 1, 8.0, 7);
    let [anchors, positives] = [anchors, positives].map(|v| Matrix::of("rows", v, 3).unwrap());
    let settings = Settings { tau: 0.2, sample: [100, 300], ..Settings::default() };
    let same = Input::new(&anchors, Some(&positives), Items::Positives, None).unwrap();
    let got = run(&same, &settings);
    assert_eq!((got.checks.items, got.finite_k.sample), (499, [100, 299]));
    assert!(got.violations.is_empty() && got.retrieval.anchors_with_ties == 0);
    // By numbers in a corpus the same is found; but for the errors, which then are those of two samples.
    let corpus = Matrix::of("rows", positives.read(0..500).unwrap(), 3).unwrap();
    let among = Input::new(&anchors, None, Items::Among(corpus, (0..500).collect()), None).unwrap();
    let other = run(&among, &settings);
    assert_eq!(got.retrieval, other.retrieval);
    assert_eq!(got.cross_entropy.r_inf.value, other.cross_entropy.r_inf.value);
    // Positives that are in the corpus and not left out are ties of themselves.
    let corpus = Matrix::of("rows", positives.read(0..500).unwrap(), 3).unwrap();
    let tied = run(&Input::new(&anchors, Some(&positives), Items::Corpus(corpus), None).unwrap(), &settings);
    assert_eq!(tied.retrieval.anchors_with_ties, 500);
    assert!(tied.retrieval.recall[0].figure.value == 0.0);
}

#[test]
fn odd_embeddings_are_measured_or_refused_with_a_reason() {
    let tau = Settings { tau: 0.1, k: Some(256), ..Settings::default() };
    // A corpus smaller than k, of three items.
    let small = input(&sphere(20, 3, 5.0, 1), 3);
    let got = run(&small, &tau);
    assert_eq!(got.finite_k.training.unwrap().bias, None);
    assert!(got.finite_k.slope_dcl.is_none() && got.generalisation.certificate.is_none());
    assert_eq!(got.generalisation.k, 1);
    // All items one point: nothing is nearer than anything.
    let one_point = [vec![1.0f32; 30], [0.5f32, 1.0, 1.0].repeat(10), vec![1.0; 300]];
    let got = run(&input(&one_point, 3), &tau);
    assert!(got.violations.is_empty(), "{:?}", got.violations);
    assert_eq!(got.checks.not_unit, 120);
    assert_eq!(got.retrieval.recall[0].figure.value, 0.0);
    assert_eq!(got.temperature.calibrated, None);
    // Anchors of one side, to which the same few of not many items are near: most of the error is the items'.
    let mut parts = sphere(2000, 60, 20.0, 9);
    parts[..2].iter_mut().for_each(|rows| rows.chunks_mut(3).for_each(|row| row[0] += 1.5));
    let got = run(&input(&parts, 3), &tau);
    assert!(got.cross_entropy.hubness_share > 0.5, "{:?}", got.cross_entropy);
    assert!(got.cross_entropy.se > 1.5 * got.cross_entropy.se_anchors_only);
}

#[test]
fn training_pairs_and_the_tail_logit() {
    let held_out = input(&sphere(400, 3000, 10.0, 1), 3);
    let train = input(&sphere(400, 3000, 40.0, 2), 3);
    let settings = Settings {
        tau: 0.2,
        k: Some(64),
        weince: Some(weince::TailLogit::Fixed { lambda: 0.6, beta: 1.0 }),
        ..Settings::default()
    };
    let got = analyse(&held_out, Some(&train), &settings, &mut |_, _, _| ()).unwrap();
    let (near, far) = (Sphere::new(3, 0.2, 40.0).unwrap(), Sphere::new(3, 0.2, 10.0).unwrap());
    let expected = far.finite_k().risk(64.0) - near.finite_k().risk(64.0);
    let gap = got.generalisation.gap.unwrap();
    assert!((gap.gap - expected).abs() < 4.0 * gap.se && gap.se < 0.1, "{gap:?} {expected}");
    let tail = got.weince.unwrap();
    // On the sphere in three dimensions h is 1; Hill's estimate of it from 64 points is off by an eighth.
    assert!((tail.index[1] - 1.0).abs() < 0.05 && (tail.criticality[1] - 0.6).abs() < 0.03, "{tail:?}");
    assert_eq!(tail.regime, "infinite variance");
    let none = Settings { weince: Some(weince::TailLogit::Fixed { lambda: 0.0, beta: 1.0 }), ..settings.clone() };
    let plain = analyse(&held_out, None, &none, &mut |_, _, _| ()).unwrap();
    assert!((plain.weince.unwrap().r_inf.value - plain.cross_entropy.plug_in).abs() < 1e-4);
    let wrong = Settings { weince: Some(weince::TailLogit::Fixed { lambda: 1.5, beta: 1.0 }), ..settings };
    assert!(analyse(&held_out, None, &wrong, &mut |_, _, _| ()).is_err());
}

#[test]
fn the_same_seed_gives_the_same_figures_on_any_threads() {
    let input = input(&sphere(300, 2500, 10.0, 1), 3);
    let settings = Settings { sample: [120, 900], ..Settings::default() };
    let threads = tch::get_num_threads();
    let found = [1, 3].map(|count| {
        tch::set_num_threads(count);
        serde_json::to_string(&run(&input, &settings)).unwrap()
    });
    tch::set_num_threads(threads);
    assert_eq!(found[0], found[1]);
    let other = Settings { seed: 1, ..settings };
    assert_ne!(found[0], serde_json::to_string(&run(&input, &other)).unwrap());
}
