use super::super::testing::{draws, numbers, rng};
use super::*;
use rand::Rng;
use rand::seq::SliceRandom;
use serde_json::Value;

const SAMPLES: &[u8] = include_bytes!("../../../tests/golden/pot/pot_samples.safetensors");

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../tests/golden/pot/pot_golden.json")).unwrap()
}

fn cases<'a>(golden: &'a Value, list: &str) -> &'a Vec<Value> {
    golden[list].as_array().unwrap()
}

/// A number, or an infinity as text.
fn f(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
}

fn near(got: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((got - expected).abs() <= tolerance, "{what}: {got}, expected {expected} within {tolerance}");
}

fn log_likelihood(law: Gpd, sample: &[f64]) -> f64 {
    sample.iter().map(|y| law.log_density(*y)).sum()
}

/// The highest log-likelihood over `xi >= -1` by plain search: every `tau` on a fine grid in both scales, then golden sections.
fn slow_maximum(sample: &[f64]) -> (f64, f64) {
    let n = sample.len() as f64;
    let largest = sample.iter().copied().fold(0.0, f64::max);
    let height = |tau: f64| {
        let xi = sample.iter().map(|y| (tau * y / largest).ln_1p()).sum::<f64>() / n;
        let xi = xi.max(-1.0);
        (log_likelihood(Gpd { xi, sigma: xi / tau * largest }, sample), xi)
    };
    let place = |x: f64| x.exp_m1();
    let mut best = (-n * largest.ln(), -1.0);
    let grid: Vec<f64> = (0..6000).map(|i| -36.0 + 0.011 * f64::from(i) + 1e-5).collect();
    let heights: Vec<f64> = grid.iter().map(|x| height(place(*x)).0).collect();
    for i in 1..grid.len() - 1 {
        if heights[i] >= heights[i - 1] && heights[i] >= heights[i + 1] {
            let (mut a, mut b) = (grid[i - 1], grid[i + 1]);
            for _ in 0..80 {
                let (c, d) = (b - 0.618033988749895 * (b - a), a + 0.618033988749895 * (b - a));
                if height(place(c)).0 > height(place(d)).0 { b = d } else { a = c }
            }
            let found = height(place(0.5 * (a + b)));
            if found.0 > best.0 {
                best = found;
            }
        }
    }
    best
}

#[test]
fn the_law_equals_scipys() {
    let golden = golden();
    for case in cases(&golden, "dist") {
        let (law, y) = (Gpd { xi: f(&case["xi"]), sigma: f(&case["sigma"]) }, f(&case["y"]));
        let (density, cdf) = (f(&case["scipy_logpdf"]), f(&case["cdf"]));
        if density.is_finite() {
            near(law.log_density(y), density, 1e-11 * (1.0 + density.abs()), &format!("log density of {case}"));
        } else {
            assert_eq!(law.log_density(y), density, "{case}");
        }
        near(law.cdf(y), cdf, 1e-13 * cdf, &format!("cdf of {case}"));
    }
    for case in cases(&golden, "quantile") {
        let (law, q) = (Gpd { xi: f(&case["xi"]), sigma: f(&case["sigma"]) }, f(&case["q"]));
        near(law.quantile(f(&case["p"])), q, 1e-12 * q, &format!("{case}"));
    }
}

#[test]
fn fits_equal_the_exact_maxima_and_scipys() {
    let golden = golden();
    assert_eq!(cases(&golden, "fits").len(), 9);
    for case in cases(&golden, "fits") {
        let key = case["key"].as_str().unwrap();
        let sample = numbers(SAMPLES, key);
        let fit = GpdFit::of(&sample).unwrap();
        let of = |what: &str| f(&case["mle"][what]);
        near(fit.gpd.xi, of("xi"), 1e-9, key);
        near(fit.gpd.sigma, of("sigma"), 1e-10, key);
        near(fit.log_likelihood, of("ll"), 1e-9, key);
        near(log_likelihood(fit.gpd, &sample), of("ll"), 1e-9, key);
        assert!(fit.log_likelihood >= f(&case["scipy"]["ll"]) - 1e-6, "{key}");
        near(fit.gpd.xi, f(&case["scipy"]["xi"]), 1e-4, key);
        near(fit.gpd.sigma, f(&case["scipy"]["sigma"]), 1e-4, key);
        let errors = fit.errors.unwrap();
        near(errors.xi, of("se_xi"), 1e-8, key);
        near(errors.log_sigma, of("se_logsigma"), 1e-8, key);
        near(errors.covariance, of("cov_xi_logsigma"), 1e-9, key);
        if let Some(end) = case["mle"]["endpoint"].as_f64() {
            near(fit.gpd.endpoint().unwrap(), end, 1e-7 * end, key);
        }
        near(fit.exponential.sigma, f(&case["exponential"]["sigma"]), 1e-14, key);
        near(fit.exponential_log_likelihood, f(&case["exponential"]["ll"]), 1e-9, key);
        near(fit.exponential_test.statistic, f(&case["lrt_vs_exponential"]), 1e-8, key);
        for (p, q) in case["quantiles_mle"].as_object().unwrap() {
            near(fit.gpd.quantile(p.parse().unwrap()), f(q), 1e-9, key);
        }
    }
}

#[test]
fn fits_of_small_and_irregular_samples_are_no_lower_than_scipys() {
    let golden = golden();
    assert_eq!(cases(&golden, "more").len(), 18);
    for case in cases(&golden, "more") {
        let key = case["key"].as_str().unwrap();
        let fit = GpdFit::of(&numbers(SAMPLES, key)).unwrap();
        // SciPy's optimum is polished by Nelder-Mead: about seven digits of the parameters.
        assert!(fit.log_likelihood >= f(&case["ll"]) - 1e-6, "{key}: {fit:?}");
        near(fit.gpd.xi, f(&case["xi"]), 1e-4, key);
        near(fit.gpd.sigma, f(&case["sigma"]), 1e-4, key);
        near(fit.log_likelihood, f(&case["ll"]), 1e-6, key);
    }
}

#[test]
fn no_plain_search_finds_a_higher_likelihood() {
    let mut at_boundary = 0;
    for (number, xi) in [-2.5, -1.2, -1.0, -0.9, -0.7, -0.5, -0.2, 0.0, 0.3, 1.2, 3.0].into_iter().enumerate() {
        for (n, repeats) in [(20, 6), (37, 3), (200, 1)] {
            for repeat in 0..repeats {
                let sample = draws(Gpd { xi, sigma: 1.0 }, n, 1000 * number as u64 + repeat);
                let (slow, slow_xi) = slow_maximum(&sample);
                let fit = GpdFit::of(&sample).unwrap();
                let what = format!("xi {xi}, n {n}, {repeat}: {fit:?}");
                at_boundary += usize::from(fit.at_boundary);
                near(fit.log_likelihood, slow, 1e-8 * (1.0 + slow.abs()), &what);
                near(fit.gpd.xi, slow_xi, 2e-5 * (1.0 + slow_xi.abs()), &what);
                assert_eq!(fit.at_boundary, fit.gpd.xi == -1.0);
                assert!(fit.inside.is_none() || fit.at_boundary);
            }
        }
    }
    assert!((20..90).contains(&at_boundary), "{at_boundary} of 110 samples at the boundary");
}

#[test]
fn no_plain_search_finds_a_higher_likelihood_of_odd_samples() {
    let base = draws(Gpd { xi: -0.3, sigma: 1.0 }, 40, 5);
    let two_scales: Vec<f64> = base.iter().enumerate().map(|(i, y)| if i % 2 == 0 { *y } else { 1e-6 * y }).collect();
    let rounded: Vec<f64> = base.iter().map(|y| (y * 8.0).ceil() / 8.0).collect();
    let one_large: Vec<f64> = base.iter().enumerate().map(|(i, y)| if i == 7 { 1e9 } else { *y }).collect();
    let one_small: Vec<f64> = base.iter().enumerate().map(|(i, y)| if i == 7 { 1e-9 } else { *y }).collect();
    let ties_on_top: Vec<f64> = base.iter().map(|y| y.min(0.6)).collect();
    let nearly_equal: Vec<f64> = base.iter().map(|y| 1.0 + 1e-6 * y).collect();
    let evenly: Vec<f64> = (1..=30).map(f64::from).collect();
    let two_values: Vec<f64> = (0..40).map(|i| if i < 39 { 1.0 } else { 2.0 }).collect();
    for (name, sample) in [
        ("two scales", two_scales),
        ("rounded", rounded),
        ("one large", one_large),
        ("one small", one_small),
        ("ties on top", ties_on_top),
        ("nearly equal", nearly_equal),
        ("evenly", evenly),
        ("two values", two_values),
    ] {
        let (slow, slow_xi) = slow_maximum(&sample);
        let fit = GpdFit::of(&sample).unwrap();
        near(fit.log_likelihood, slow, 1e-8 * (1.0 + slow.abs()), name);
        near(fit.gpd.xi, slow_xi, 1e-4 * (1.0 + slow_xi.abs()), name);
    }
}

#[test]
fn known_shapes_are_found_in_samples_of_every_size() {
    for (number, xi) in [-0.9, -0.5, -0.2, 0.0, 0.3, 1.2].into_iter().enumerate() {
        for n in [20, 200, 2_000, 100_000] {
            let law = Gpd { xi, sigma: 0.08 };
            let sample = draws(law, n, 31 * number as u64 + n as u64);
            let fit = GpdFit::of(&sample).unwrap();
            let what = format!("xi {xi}, n {n}: {fit:?}");
            assert!(fit.log_likelihood >= log_likelihood(law, &sample) - 1e-9 * n as f64, "{what}");
            assert!(fit.log_likelihood >= fit.exponential_log_likelihood, "{what}");
            if n >= 200 {
                // Below -0.5 it converges faster than the root of n.
                let error = (1.0 + xi.max(-0.5)) / (n as f64).sqrt();
                near(fit.gpd.xi, xi, 4.0 * error, &what);
                near(fit.gpd.sigma, 0.08, 0.08 * 8.0 / (n as f64).sqrt(), &what);
                assert_eq!(fit.errors.is_ok(), fit.gpd.xi > -0.5, "{what}");
            }
            if n == 100_000 && xi < 0.0 {
                near(fit.gpd.endpoint().unwrap(), -0.08 / xi, 0.004, &what);
                near(fit.moments.gpd.xi, xi, 0.03, &what);
            }
        }
    }
}

#[test]
fn near_the_exponential_law_nothing_cancels() {
    // Quantiles of the exponential law, moved so that the best xi comes to lie as near to 0 as wanted.
    let n = 1000;
    let sample = |xi: f64| -> Vec<f64> {
        let law = Gpd { xi, sigma: 1.0 };
        (0..n).map(|i| law.quantile((f64::from(i) + 0.5) / f64::from(n))).collect()
    };
    let at = |xi: f64| GpdFit::of(&sample(xi)).unwrap();
    // The parameter that makes xi-hat 0, by bisection on the sign of the slope at 0: half the second moment against the squared mean.
    let slope = |xi: f64| {
        let y = sample(xi);
        let mean = y.iter().sum::<f64>() / y.len() as f64;
        y.iter().map(|y| y * y).sum::<f64>() / 2.0 / y.len() as f64 - mean * mean
    };
    let (mut low, mut high) = (-0.1, 0.1);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if slope(middle) < 0.0 { low = middle } else { high = middle }
    }
    let zero = low;
    assert!(at(zero).gpd.xi.abs() < 1e-12, "{:?}", at(zero));
    assert!(at(zero).exponential_test.statistic < 1e-9 && at(zero).exponential_test.p > 0.9999);
    // About one for one, and smooth, through all the formulas' ranges.
    let steps: Vec<f64> = (3..10).flat_map(|k| [-(10f64.powi(-k)), 10f64.powi(-k)]).collect();
    let rate = (at(zero + 1e-3).gpd.xi - at(zero - 1e-3).gpd.xi) / 2e-3;
    for step in steps {
        let fit = at(zero + step);
        near(fit.gpd.xi, rate * step, 1e-11 + 2.0 * step * step, &format!("step {step}"));
        near(fit.gpd.sigma, fit.exponential.sigma, 2.0 * step.abs(), &format!("step {step}"));
        near(
            fit.errors.unwrap().xi,
            at(zero).errors.unwrap().xi,
            3.0 * step.abs() / f64::from(n).sqrt() + 1e-12,
            "error",
        );
    }
}

#[test]
fn series_meet_the_formulas() {
    for u in [SERIES_BELOW, -SERIES_BELOW] {
        let inside = u * (1.0 - 1e-12);
        near(remainder(inside), remainder(u), 1e-12, "remainder");
        near(remainder_slope(inside), remainder_slope(u), 1e-10, "its slope");
    }
    assert_eq!((remainder(0.0), remainder_slope(0.0)), (0.5, -2.0 / 3.0));
    for u in [-0.9, -0.3, 0.02, 0.3, 5.0] {
        let slope = (remainder(u + 1e-5) - remainder(u - 1e-5)) / 2e-5;
        // What the difference quotient is off by.
        near(remainder_slope(u), slope, 1e-7 * (1.0 + slope.abs()), "slope");
    }
}

#[test]
fn plain_logarithms_of_products_equal_the_careful_sums() {
    for (xi, n) in [(-0.4, 5000), (0.0, 5000), (1.2, 5000), (-0.4, 70)] {
        let mut sample = draws(Gpd { xi, sigma: 1.0 }, n, 9);
        sample.sort_unstable_by(f64::total_cmp);
        let largest = sample[n - 1];
        sample.iter_mut().for_each(|y| *y /= largest);
        let profile = Profile::new(&sample);
        for tau in [-0.999999, -0.9, -0.3, 0.2, 4.0, 1e3, 1e9, 1e18] {
            let (plain, careful) = (profile.at(tau, 0.0), profile.at(tau, f64::INFINITY));
            near(plain.xi, careful.xi, 1e-14 * (1.0 + careful.xi.abs()), "xi");
            let accuracy = 1e-15 / (tau * profile.mean).powi(2).min(1.0);
            near(plain.slope, careful.slope, accuracy * (1.0 + tau.abs()) + 1e-14 * careful.slope.abs(), "slope");
        }
    }
}

#[test]
fn order_changes_no_bit_and_the_unit_only_rounding() {
    for (xi, n) in [(-0.4, 500), (0.05, 500), (0.8, 500), (-0.97, 30)] {
        let sample = draws(Gpd { xi, sigma: 1.0 }, n, 3);
        let fit = GpdFit::of(&sample).unwrap();
        let mut shuffled = sample.clone();
        shuffled.shuffle(&mut rng(1));
        assert_eq!(GpdFit::of(&shuffled).unwrap(), fit);
        shuffled.sort_unstable_by(f64::total_cmp);
        assert_eq!(GpdFit::of(&shuffled).unwrap(), fit);
        for unit in [1e-290, 1e-9, 0.1, 3.0, 1e12, 1e290] {
            let scaled: Vec<f64> = sample.iter().map(|y| y * unit).collect();
            let other = GpdFit::of(&scaled).unwrap();
            let count = n as f64;
            near(other.gpd.xi, fit.gpd.xi, 1e-11, "xi");
            near(other.gpd.sigma / unit, fit.gpd.sigma, 1e-11 * fit.gpd.sigma, "sigma");
            near(other.moments.gpd.xi, fit.moments.gpd.xi, 1e-11, "moments");
            near(other.exponential_test.statistic, fit.exponential_test.statistic, 1e-9, "statistic");
            near(other.log_likelihood + count * unit.ln(), fit.log_likelihood, 1e-9 * count, "likelihood");
            if let (Ok(a), Ok(b)) = (other.errors, fit.errors) {
                near(a.xi, b.xi, 1e-10, "error of xi");
                near(a.sigma / unit, b.sigma, 1e-9, "error of sigma");
            }
            assert_eq!(other.at_boundary, fit.at_boundary);
        }
    }
}

#[test]
fn intervals_cover_and_the_test_has_its_size() {
    let repeats = 600;
    for (xi, n) in [(-0.3, 500), (0.0, 300), (0.3, 300)] {
        let (mut covered, mut rejected, mut moments, mut moment_errors, mut ends) = (0, 0, Vec::new(), 0.0, 0);
        for repeat in 0..repeats {
            let fit = GpdFit::of(&draws(Gpd { xi, sigma: 1.0 }, n, 77_000 + repeat)).unwrap();
            let inside = |[low, high]: [f64; 2], value: f64| usize::from(low <= value && value <= high);
            covered += fit.xi_95().map_or(0, |interval| inside(interval, xi));
            rejected += usize::from(fit.exponential_test.p < 0.05);
            moments.push(fit.moments.gpd.xi);
            moment_errors += fit.moments.xi_error.unwrap_or(f64::NAN) / repeats as f64;
            if let (Some(end), Some(error)) = (fit.gpd.endpoint(), fit.errors.ok().and_then(|e| e.endpoint)) {
                ends += inside([end - 1.96 * error, end + 1.96 * error], -1.0 / xi);
            }
        }
        let share = |count: usize| count as f64 / repeats as f64;
        // Three standard deviations of a share of 600 are 0.027; small samples lack a little more.
        assert!((0.91..0.98).contains(&share(covered)), "xi {xi}: coverage {}", share(covered));
        if xi == 0.0 {
            assert!((0.02..0.08).contains(&share(rejected)), "size {}", share(rejected));
        } else {
            assert!(share(rejected) > 0.9, "power {}", share(rejected));
        }
        if xi == -0.3 {
            assert!((0.85..0.98).contains(&share(ends)), "coverage of the endpoint {}", share(ends));
        }
        let mean = moments.iter().sum::<f64>() / repeats as f64;
        let spread = (moments.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / repeats as f64).sqrt();
        near(mean, xi, 0.02, "mean of the moments' xi");
        if xi <= 0.0 {
            near(moment_errors / spread, 1.0, 0.1, "the moments' error");
        }
    }
}

#[test]
fn moments_are_hosking_and_walliss() {
    // a0 and a1 by their definition.
    let sample = draws(Gpd { xi: -0.2, sigma: 2.0 }, 50, 8);
    let mut sorted = sample.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let a0 = sorted.iter().sum::<f64>() / n;
    let a1 = sorted.iter().enumerate().map(|(i, y)| (n - 1.0 - i as f64) / (n - 1.0) * y).sum::<f64>() / n;
    let moments = GpdFit::of(&sample).unwrap().moments;
    near(moments.gpd.xi, 2.0 - a0 / (a0 - 2.0 * a1), 1e-12, "xi");
    near(moments.gpd.sigma, 2.0 * a0 * a1 / (a0 - 2.0 * a1), 1e-12, "sigma");
}

#[test]
fn what_cannot_be_fitted_says_why() {
    let refused = |sample: &[f64]| GpdFit::of(sample).unwrap_err().to_string();
    let with = |value: f64| {
        let mut sample = draws(Gpd { xi: 0.1, sigma: 1.0 }, 30, 1);
        sample[4] = value;
        refused(&sample)
    };
    assert!(with(f64::NAN).starts_with("exceedance 4, counted from 0, is NaN: find where it comes from"));
    assert!(with(f64::INFINITY).starts_with("exceedance 4, counted from 0, is inf"));
    assert!(with(f64::NEG_INFINITY).contains("is -inf, below the threshold"));
    assert!(with(-0.5).contains("is -0.5, below the threshold: subtract"), "{}", with(-0.5));
    assert!(with(0.0).contains("is 0, which exceeds nothing"));
    assert!(with(-0.0).contains("is 0, which exceeds nothing"));
    assert!(refused(&[]).contains("got 0 exceedances; expected at least 20"));
    assert!(refused(&draws(Gpd { xi: 0.1, sigma: 1.0 }, 19, 1)).contains("got 19 exceedances; expected at least 20"));
    assert!(refused(&[0.25; 40]).contains("all 40 exceedances are 0.25; expected values that differ"));
}

#[test]
fn notes_say_what_the_numbers_do_not() {
    let texts =
        |sample: &[f64]| -> Vec<String> { GpdFit::of(sample).unwrap().notes().iter().map(|n| n.to_string()).collect() };
    assert!(texts(&draws(Gpd { xi: -0.2, sigma: 1.0 }, 500, 2)).is_empty());
    let uniform = texts(&(1..=50).map(f64::from).collect::<Vec<_>>());
    assert!(uniform[0].starts_with("only 50 exceedances") && uniform[1].contains("boundary xi = -1"), "{uniform:?}");
    let irregular = texts(&draws(Gpd { xi: -0.7, sigma: 1.0 }, 5000, 2));
    assert!(irregular[0].contains("up to xi = -0.5 the likelihood is not regular"), "{irregular:?}");
    let heavy = texts(&draws(Gpd { xi: 0.9, sigma: 1.0 }, 5000, 2));
    assert!(heavy[0].starts_with("probability-weighted moments give xi = 0."), "{heavy:?}");
    let rounded: Vec<f64> =
        draws(Gpd { xi: -0.2, sigma: 1.0 }, 500, 2).iter().map(|y| (y * 100.0).ceil() / 100.0).collect();
    assert!(texts(&rounded)[0].contains("of 500 exceedances are distinct"), "{:?}", texts(&rounded));
}

#[test]
fn a_maximum_inside_is_told_beside_the_boundary() {
    let mut found = 0;
    for seed in 0..300 {
        let sample = draws(Gpd { xi: -0.7, sigma: 1.0 }, 20, seed);
        let fit = GpdFit::of(&sample).unwrap();
        let Some(inside) = fit.inside else { continue };
        found += 1;
        assert!(fit.at_boundary && fit.errors == Err(NoErrors::Boundary));
        assert_eq!((fit.gpd.xi, fit.gpd.endpoint()), (-1.0, Some(fit.gpd.sigma)));
        let height = log_likelihood(inside, &sample);
        assert!(inside.xi > -1.0 && height <= fit.log_likelihood, "{fit:?}");
        for (xi, sigma) in [(1e-4, 0.0), (-1e-4, 0.0), (0.0, 1e-4), (0.0, -1e-4)] {
            let near = Gpd { xi: inside.xi + xi, sigma: inside.sigma * (1.0 + sigma) };
            assert!(log_likelihood(near, &sample) < height, "{fit:?}");
        }
    }
    assert!((5..200).contains(&found), "{found} of 300");
}

#[test]
fn what_spreads_too_far_is_refused() {
    // exp(100 z) of normal z, by Box and Muller.
    let mut rng = rng(4);
    let mut normal = || {
        let (radius, angle) = (rng.random::<f64>().max(1e-300), rng.random::<f64>());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    };
    let sample: Vec<f64> = (0..500).map(|_| (100.0 * normal()).exp()).collect();
    let error = GpdFit::of(&sample).unwrap_err().to_string();
    assert!(error.contains("spread over too many orders of magnitude to be fitted"), "{error}");
    // A wide sample that has a law is fitted, and at least as likely by it as by the exponential one.
    let fit = GpdFit::of(&draws(Gpd { xi: 3.0, sigma: 1e-200 }, 500, 4)).unwrap();
    assert!(fit.log_likelihood >= fit.exponential_log_likelihood && (fit.gpd.xi - 3.0).abs() < 1.0, "{fit:?}");
}
