use super::super::testing::{numbers, rng};
use super::*;
use rand::Rng;
use serde_json::Value;

const DATA: &[u8] = include_bytes!("../../../tests/golden/link/link_data.safetensors");

/// Sets with winners and anchors, owning their scores.
#[derive(Clone, Default)]
struct Sample {
    scores: Vec<Vec<f64>>,
    winners: Vec<usize>,
    anchors: Vec<usize>,
}

impl Sample {
    fn choices(&self) -> Vec<Choice<'_>> {
        let rows = self.scores.iter().zip(&self.winners).zip(&self.anchors);
        rows.map(|((scores, winner), anchor)| Choice { scores, winner: *winner, anchor: *anchor }).collect()
    }

    fn fit(&self) -> LinkFit {
        LinkFit::of(&self.choices()).unwrap()
    }
}

/// The golden scores with one of the golden lists of winners.
fn golden_sample(case: &Value) -> Sample {
    let scores = numbers(DATA, "scores");
    let mask = case["mask"].as_str().map(|name| numbers(DATA, name));
    let winners = numbers(DATA, case["key"].as_str().unwrap());
    let clusters = case["cluster"].as_str().map(|name| numbers(DATA, name));
    let mut sample = Sample::default();
    for (i, winner) in winners.iter().enumerate() {
        let kept: Vec<usize> = (0..24).filter(|j| mask.as_ref().is_none_or(|m| m[24 * i + j] != 0.0)).collect();
        sample.scores.push(kept.iter().map(|j| scores[24 * i + j]).collect());
        sample.winners.push(kept.iter().position(|j| *j == *winner as usize).unwrap());
        sample.anchors.push(clusters.as_ref().map_or(i, |c| c[i] as usize));
    }
    sample
}

/// Winners drawn from the model with the weights `theta`.
fn draw_winners(scores: Vec<Vec<f64>>, theta: [f64; 2], rng: &mut impl Rng) -> Sample {
    let winners = scores.iter().map(|row| {
        let logits = row.iter().map(|s| theta[0] * s - theta[1] * (1.0 - s).max(SHORTFALL_FLOOR).ln());
        // The largest of logits with Gumbel noise.
        let noisy = logits.map(|v| v - (-rng.random::<f64>().ln()).ln()).enumerate();
        noisy.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0
    });
    let winners: Vec<usize> = winners.collect();
    let anchors = (0..winners.len()).collect();
    Sample { scores, winners, anchors }
}

/// Sets of `k` cosines whose distances from 1 are of very different sizes.
fn sets(n: usize, k: usize, rng: &mut impl Rng) -> Vec<Vec<f64>> {
    let cosine = |rng: &mut dyn rand::RngCore| 1.0 - 1.6 * rng.random::<f64>().powf(0.7);
    (0..n).map(|_| (0..k).map(|_| cosine(rng)).collect()).collect()
}

fn simulated(lambda: f64, kappa: f64, n: usize, k: usize, seed: u64) -> Sample {
    let mut rng = rng(seed);
    let scores = sets(n, k, &mut rng);
    draw_winners(scores, [kappa * (1.0 - lambda), kappa * lambda], &mut rng)
}

#[test]
fn fits_equal_the_golden_ones() {
    let golden: Value = serde_json::from_str(include_str!("../../../tests/golden/link/link_golden.json")).unwrap();
    let cases = golden["data"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        let expected = &case["fit"];
        let near = |got: f64, value: &Value, what: &str| {
            let value = value.as_f64().unwrap();
            let tolerance = 1e-8 * value.abs().max(if what.starts_with('p') { 1e-30 } else { 1e-3 });
            assert!((got - value).abs() <= tolerance, "{} {what}: {got}, expected {value}", case["key"]);
        };
        let sample = golden_sample(case);
        let fit = sample.fit();
        near(fit.uniform_log_likelihood, &expected["ll_uniform"], "uniform");
        near(fit.softmax.unwrap().log_likelihood, &expected["ll_softmax"], "softmax");
        near(fit.softmax.unwrap().theta, &expected["theta_softmax"], "theta of softmax");
        near(fit.softmax.unwrap().aic(), &expected["aic"]["softmax"], "AIC of softmax");
        near(fit.weibit.unwrap().log_likelihood, &expected["ll_weibull"], "Weibit");
        near(fit.weibit.unwrap().theta, &expected["theta_weibull"], "theta of Weibit");
        near(fit.weibit.unwrap().aic(), &expected["aic"]["weibull"], "AIC of Weibit");
        let blend = fit.blend.unwrap();
        near(blend.log_likelihood, &expected["ll_mix"], "blend");
        near(blend.aic(), &expected["aic"]["mix"], "AIC of the blend");
        near(blend.theta[0], &expected["theta1"], "theta 1");
        near(blend.theta[1], &expected["theta2"], "theta 2");
        near(blend.kappa, &expected["kappa"], "kappa");
        near(blend.lambda, &expected["lam"], "lambda");
        near(blend.lambda_error, &expected["se_lam"], "error");
        near(blend.lambda_error_robust, &expected["se_lam_robust"], "robust error");
        near(blend.lambda_constrained, &expected["lam_constrained"], "constrained");
        near(blend.lambda_share.unwrap(), &expected["lam_share"], "share");
        for axis in 0..2 {
            near(blend.theta_errors[axis], &expected["se_theta"][axis], "error of theta");
            near(blend.theta_errors_robust[axis], &expected["se_theta_robust"][axis], "robust error of theta");
            near(blend.deviations[axis], &expected[["sd_s", "sd_x"][axis]], "deviation");
        }
        near(blend.softmax_test.two_sided.statistic, &expected["lrt_lam0"], "statistic of 0");
        near(blend.weibit_test.two_sided.statistic, &expected["lrt_lam1"], "statistic of 1");
        near(blend.softmax_test.two_sided.p, &expected["p_lam0"], "p of 0");
        near(blend.softmax_test.p_boundary, &expected["p_lam0_boundary"], "p of 0 at the boundary");
        near(blend.weibit_test.two_sided.p, &expected["p_lam1"], "p of 1");
        if let Some(expected) = expected.get("anchored") {
            let got = LinkFit::anchored(&sample.choices(), [2.0, 1.5]).unwrap();
            near(got.lambda, &expected["lam"], "anchored");
            near(got.error, &expected["se"], "error of anchored");
            near(got.error_robust, &expected["se_robust"], "robust error of anchored");
            near(got.log_likelihood, &expected["ll"], "likelihood of anchored");
            near(got.softmax_test.two_sided.statistic, &expected["lrt_lam0"], "test of anchored");
        }
    }
}

#[test]
fn known_lambdas_lie_in_their_intervals() {
    for (lambda, kappa) in [(0.0, 4.0), (0.2, 3.0), (0.33, 3.0), (0.5, 2.5), (0.8, 2.0)] {
        let blend = simulated(lambda, kappa, 2000, 64, (100.0 * lambda) as u64).fit().blend.unwrap();
        let what = format!("{lambda}: {blend:?}");
        for [low, high] in [blend.lambda_95(), blend.lambda_95_robust()] {
            assert!(low <= lambda && lambda <= high && high - low < 0.4, "{what}");
        }
        assert!((blend.kappa - kappa).abs() < 0.4, "{what}");
        let found = blend.softmax_test.two_sided.p < 1e-3;
        assert_eq!(found, lambda > 0.0, "{what}");
        // The test against 1 has power 0.7 at 0.8.
        assert!(blend.weibit_test.two_sided.p < 1e-3 || lambda > 0.5, "{what}");
    }
}

#[test]
fn intervals_cover_and_tests_have_their_size() {
    let repeats = 300;
    for (lambda, kappa) in [(0.0, 4.0), (0.33, 3.0), (0.8, 2.0)] {
        let (mut covered, mut rejected, mut rejected_at_boundary, mut sum) = (0, 0, 0, 0.0);
        for repeat in 0..repeats {
            let blend = simulated(lambda, kappa, 400, 24, 5000 + repeat).fit().blend.unwrap();
            let [low, high] = blend.lambda_95();
            covered += usize::from(low <= lambda && lambda <= high);
            rejected += usize::from(blend.softmax_test.two_sided.p < 0.05);
            rejected_at_boundary += usize::from(blend.softmax_test.p_boundary < 0.05);
            sum += blend.lambda;
        }
        let share = |count: usize| count as f64 / repeats as f64;
        // Three standard deviations of a share of 300 are 0.038.
        assert!((0.91..0.99).contains(&share(covered)), "lambda {lambda}: coverage {}", share(covered));
        assert!((sum / repeats as f64 - lambda).abs() < 0.03, "lambda {lambda}: mean {}", sum / repeats as f64);
        if lambda == 0.0 {
            let sizes = [share(rejected), share(rejected_at_boundary)];
            assert!(sizes.iter().all(|s| (0.01..0.09).contains(s)), "{sizes:?}");
        }
    }
}

#[test]
fn the_state_has_the_derivatives_of_its_likelihood() {
    let sample = simulated(0.4, 3.0, 50, 12, 1);
    let sets = Sets::new(&sample.choices()).unwrap();
    for theta in [[0.0, 0.0], [1.5, 1.0], [-2.0, 3.0], [30.0, 20.0]] {
        let state = sets.state(theta);
        let plain: f64 = sample
            .choices()
            .iter()
            .map(|c| {
                let logit = |s: f64| theta[0] * s - theta[1] * (1.0 - s).max(SHORTFALL_FLOOR).ln();
                logit(c.scores[c.winner]) - c.scores.iter().map(|s| logit(*s).exp()).sum::<f64>().ln()
            })
            .sum();
        assert!((state.log_likelihood - plain).abs() < 1e-9 * plain.abs());
        for i in 0..2 {
            let moved = |by: f64| {
                let mut place = theta;
                place[i] += by;
                sets.state(place)
            };
            let (up, down) = (moved(1e-5), moved(-1e-5));
            let slope = (up.log_likelihood - down.log_likelihood) / 2e-5;
            assert!((slope - state.gradient[i]).abs() < 1e-5 * (1.0 + slope.abs()), "{theta:?}");
            for j in 0..2 {
                let curvature = -(up.gradient[j] - down.gradient[j]) / 2e-5;
                assert!((curvature - state.information[i][j]).abs() < 1e-5 * (1.0 + curvature.abs()), "{theta:?}");
            }
        }
    }
}

#[test]
fn clusters_widen_robust_errors_alone() {
    let once = simulated(0.3, 3.0, 300, 24, 2);
    let blend = once.fit().blend.unwrap();
    // Every choice four times over, by the same anchor.
    let mut copied = Sample::default();
    for _ in 0..4 {
        copied.scores.extend(once.scores.clone());
        copied.winners.extend(once.winners.clone());
        copied.anchors.extend(once.anchors.iter().map(|a| 7 * a + 3));
    }
    let fit = copied.fit();
    let other = fit.blend.unwrap();
    assert_eq!((fit.choices, fit.anchors), (1200, 300));
    assert!((other.lambda - blend.lambda).abs() < 1e-10);
    assert!((other.lambda_error * 2.0 - blend.lambda_error).abs() < 1e-10);
    assert!((other.lambda_error_robust - blend.lambda_error_robust).abs() < 1e-10);
}

#[test]
fn the_result_is_the_same_for_every_number_of_threads() {
    let sample = simulated(0.3, 3.0, 1000, 16, 3);
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| sample.fit())
    };
    assert_eq!(with(1), with(2));
    assert_eq!(with(1), with(7));
}

#[test]
fn separated_winners_are_told_and_not_fitted() {
    // Every winner at the top, or at the bottom.
    for top in [true, false] {
        let mut sample = simulated(0.3, 3.0, 100, 8, 4);
        for (row, winner) in sample.scores.iter().zip(&mut sample.winners) {
            let order = |a: &(usize, &f64), b: &(usize, &f64)| a.1.total_cmp(b.1);
            let places = row.iter().enumerate();
            *winner = if top { places.max_by(order) } else { places.min_by(order) }.unwrap().0;
        }
        let fit = sample.fit();
        assert_eq!((fit.softmax, fit.weibit, fit.blend), (None, None, Err(NoBlend::Separated)));
        assert!(fit.uniform_log_likelihood < 0.0);
        assert!(fit.blend.unwrap_err().to_string().starts_with("separated"));
        let why = LinkFit::anchored(&sample.choices(), [2.0, 1.0]);
        // The anchored form may have a maximum, but for winners that are separated along its own direction.
        assert!(why.is_ok() || why.unwrap_err().to_string().contains("separated"));
    }
    // One winner elsewhere is enough for a maximum.
    let mut sample = simulated(0.3, 3.0, 100, 8, 4);
    let best = |row: &Vec<f64>| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    for (row, winner) in sample.scores.iter().zip(&mut sample.winners) {
        *winner = best(row);
    }
    sample.winners[17] = (sample.winners[17] + 1) % 8;
    let fit = sample.fit();
    assert!(fit.softmax.is_some() && fit.weibit.is_some());
}

#[test]
fn winners_that_are_separated_but_for_ties_are_told() {
    // The best wins by far, but for three choices between two that are as good as alike: a maximum far out, of no use.
    let mut sample = Sample {
        scores: (0..3000).map(|i| vec![0.9, 0.1 * (1.0 + f64::from(i) / 3000.0)]).collect(),
        winners: vec![0; 3000],
        anchors: (0..3000).collect(),
    };
    sample.scores[5] = vec![0.5, 0.5 + 1e-9];
    sample.scores[6] = vec![0.655, 0.655 + 1e-9];
    sample.scores[7] = vec![-0.3, -0.3 + 1e-9];
    let fit = sample.fit();
    assert!(matches!(fit.blend, Err(NoBlend::NearlySeparated { per_choice }) if per_choice > -1e-3), "{fit:?}");
    let why = LinkFit::anchored(&sample.choices(), [2.0, 1.5]).unwrap_err().to_string();
    assert!(why.contains("the winners are separated"), "{why}");
}

#[test]
fn separation_by_both_weights_is_told_where_no_single_one_separates() {
    // Winners by s - 0.4 x: no noise, so that the weights (1, -0.4) separate them, though s and x alone do not.
    let mut sample = simulated(0.3, 3.0, 200, 12, 5);
    for (row, winner) in sample.scores.iter().zip(&mut sample.winners) {
        let utility = |s: f64| s + 0.4 * (1.0 - s).max(SHORTFALL_FLOOR).ln();
        *winner = row.iter().enumerate().max_by(|a, b| utility(*a.1).total_cmp(&utility(*b.1))).unwrap().0;
    }
    let fit = sample.fit();
    assert!(fit.softmax.is_some() && fit.weibit.is_some(), "{fit:?}");
    assert_eq!(fit.blend, Err(NoBlend::Separated));
    // As noise grows the blend is there, with a negative lambda where it has one.
    let noisy = draw_winners(sample.scores.clone(), [20.0, -4.0], &mut rng(6)).fit();
    let blend = noisy.blend.unwrap();
    assert!(blend.lambda < 0.0 && blend.lambda_constrained == 0.0 && blend.softmax_test.p_boundary == 1.0, "{blend:?}");
}

#[test]
fn the_likelihood_has_a_maximum_exactly_where_the_rule_says() {
    // Small samples: about half are separated. Climbing far decides.
    let mut separated = 0;
    for seed in 0..200 {
        let sample = simulated(0.3, 14.0, 20, 3, 9000 + seed);
        let sets = Sets::new(&sample.choices()).unwrap();
        let rule = sets.undetermined().is_some();
        separated += usize::from(rule);
        // Along no direction does every loser fall, if there is a maximum: looked at on a fine circle.
        let circle = (0..20_000).map(|i| f64::from(i) * std::f64::consts::TAU / 20_000.0);
        let falls = circle.filter(|a| {
            let v = [a.cos(), a.sin()];
            sets.losers.iter().all(|d| v[0] * d[0] + v[1] * d[1] <= 0.0)
        });
        assert_eq!(falls.count() > 0, rule, "seed {seed}");
    }
    assert!((20..180).contains(&separated), "{separated} of 200");
}

#[test]
fn what_cannot_be_told_apart_or_has_no_meaning_says_so() {
    // Two similarities in all: s and x differ by one factor.
    let mut rng = rng(7);
    let scores = vec![vec![0.2, 0.6, 0.2, 0.6]; 60];
    let fit = draw_winners(scores, [1.0, 0.0], &mut rng).fit();
    assert_eq!(fit.blend, Err(NoBlend::Collinear));
    assert!(fit.softmax.is_some() && fit.weibit.is_some());
    // Winners are the unlike ones.
    let scores = sets(400, 8, &mut rng);
    let fit = draw_winners(scores, [-3.0, 0.0], &mut rng).fit();
    let why = fit.blend.unwrap_err();
    assert!(matches!(why, NoBlend::NotPositive { .. }) && why.to_string().contains("do not prefer"), "{why:?}");
}

#[test]
fn what_cannot_be_fitted_says_why() {
    let good = simulated(0.3, 3.0, 30, 8, 8);
    let refused = |change: &dyn Fn(&mut Sample)| {
        let mut sample = good.clone();
        change(&mut sample);
        LinkFit::of(&sample.choices()).unwrap_err().to_string()
    };
    assert!(refused(&|s| s.winners.truncate(19)).contains("got 19 choices; expected at least 20"));
    assert!(refused(&|s| s.winners[3] = 8).contains("choice 3, counted from 0, has 8 candidates and the winner 8"));
    assert!(refused(&|s| s.scores[4].truncate(1)).contains("choice 4, counted from 0, has 1 candidates"));
    assert!(refused(&|s| s.scores[5][2] = f64::NAN).contains("score 2 of choice 5, both counted from 0, is NaN"));
    assert!(refused(&|s| s.scores[5][2] = 7.5).contains("give them without a temperature"));
    assert!(refused(&|s| s.scores = vec![vec![0.3; 8]; 30]).contains("look for collapsed features"));
    for scales in [[0.0, 1.0], [1.0, -2.0], [f64::NAN, 1.0]] {
        let why = LinkFit::anchored(&good.choices(), scales).unwrap_err().to_string();
        assert!(why.contains("expected positive finite numbers"), "{why}");
    }
}

#[test]
fn duplicates_at_the_cap_are_candidates_like_others() {
    let mut sample = simulated(0.33, 3.0, 500, 16, 9);
    // A second image like the anchor: both coordinates at their cap, also where the winner is the copy.
    for row in &mut sample.scores {
        row[0] = 1.0;
        row[1] = 1.0 + 1e-7;
    }
    let fit = draw_winners(sample.scores, [2.0, 1.0], &mut rng(10)).fit();
    // Nearly every winner is a copy; there may be nothing to tell, but no number is broken.
    if let Ok(blend) = fit.blend {
        assert!(blend.lambda.is_finite() && blend.lambda_error.is_finite(), "{blend:?}");
    }
}
