use super::*;

const QUICK: Plan = Plan { seed: 0, size: Size::Quick };

#[test]
fn every_claim_holds() {
    let claims = check(&QUICK, &Formulas::default(), &[]).unwrap();
    let failed: Vec<String> = claims.iter().filter(|c| !c.pass).map(Claim::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(claims.len() > 150);
    for group in &GROUPS {
        assert!(claims.iter().any(|c| c.id == group.id), "{}", group.id);
    }
}

#[test]
fn a_seed_gives_the_same_numbers_on_any_number_of_threads() {
    let sampled = ["T08", "T09", "T11", "T13", "T15", "T16", "T18", "N01"];
    let on = |threads: usize, seed: u64| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let claims = pool.install(|| check(&Plan { seed, ..QUICK }, &Formulas::default(), &sampled)).unwrap();
        claims.iter().map(|c| c.measured.to_bits()).collect::<Vec<u64>>()
    };
    assert_eq!(on(1, 0), on(3, 0));
    assert_ne!(on(3, 0), on(3, 1));
}

#[test]
fn plots_show_what_is_claimed() {
    let drawn: Vec<Plot> = ["T05", "T08", "T11", "T18", "N01"]
        .iter()
        .flat_map(|id| {
            let group = GROUPS.iter().find(|g| g.id == *id).unwrap();
            let plots = group.check(&QUICK, &Formulas::default()).unwrap().plots;
            assert!(!plots.is_empty(), "{id}");
            plots
        })
        .collect();
    let mut names: Vec<&str> = drawn.iter().map(|p| p.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), drawn.len());
    for plot in &drawn {
        for curve in &plot.curves {
            let at = format!("{}, {}", plot.name, curve.label);
            assert!(!curve.label.is_empty() && curve.points.len() > 1, "{at}");
            assert!(curve.points.iter().flatten().all(|v| v.is_finite() && *v > 0.0), "{at}");
            assert!(curve.errors.is_empty() || curve.errors.len() == curve.points.len(), "{at}");
            let rises = curve.points.windows(2).all(|p| p[0][0] < p[1][0]);
            assert!(rises || curve.draw == Draw::Sampled, "{at}");
        }
    }
    let find = |name: &str, label: &str| {
        let plot = drawn.iter().find(|p| p.name == name).unwrap();
        plot.curves.iter().find(|c| c.label.starts_with(label)).unwrap()
    };
    for name in ["finite-k-sphere", "finite-k-codes", "finite-k-line"] {
        for (of, bounds) in [("D_k", &["D_k is below (Lv)", "D_k is below (L)"][..]), ("P_k", &["P_k is below"])] {
            let exact = find(name, of);
            for bound in bounds {
                let above = find(name, bound).points.iter().zip(&exact.points);
                assert!(above.clone().all(|(b, e)| b[0] == e[0] && b[1] >= e[1]), "{name} {of} {bound}");
            }
        }
        for (of, law) in [("D_k", "E v"), ("P_k", "E a")] {
            let [exact, law] = [of, law].map(|label| find(name, label).points.last().unwrap()[1]);
            assert!((exact / law - 1.0).abs() < 0.02, "{name} {of}: {exact} {law}");
        }
    }
    // G is above every law, and the samples are beside their laws.
    let ceiling = |tau: f64| bounds::ceiling(1.0 / tau) * (1.0 + 1e-9);
    assert!(find("temperature-ceilings", "random laws").points.iter().all(|p| p[1] <= ceiling(p[0])));
    let sampled = find("noise-floor", "Weibit");
    assert!(
        sampled.points.iter().zip(&sampled.errors).all(|(p, e)| (p[1] - 7.136 / p[0]).abs() < 4.5 * e + 0.05 * p[1])
    );
    assert_eq!(sampled.points.len(), 7);
}

#[test]
fn nan_never_passes() {
    let mut ledger = Ledger::new("T00");
    let expected = [Expected::Equal(0.0), Expected::AtMost(0.0), Expected::AtLeast(0.0), Expected::Between(0.0, 1.0)];
    for expected in expected {
        ledger.add("nothing", worst([1.0, f64::NAN, 2.0]), expected, f64::INFINITY);
    }
    assert!(ledger.claims.iter().all(|c| !c.pass));
    assert_eq!(ledger.claims[1].to_string(), "FAIL T00 nothing: NaN, expected <= 0, tolerance inf");
}

/// A wrong formula, and the group that notices it.
type Mutation = (&'static str, &'static str, fn(&mut Formulas));

/// Each formula once, a constant of it changed.
const MUTATIONS: [Mutation; 34] = [
    ("Prop 1 with e^(1/tau) for e^(2/tau)", "T05", |f| f.paper_upper = |tau, k| bounds::paper_upper(2.0 * tau, k)),
    ("Prop 1 with 16 for 8", "T05", |f| f.paper_lower = |tau, k| bounds::paper_lower(tau, k) / 2.0),
    ("(U) with half of E[a]", "T05", |f| f.upper = |a, k| bounds::upper(a / 2.0, k)),
    ("(L) with e^(1/(2 tau))", "T05", |f| f.lower_rate = |tau, k| bounds::lower_rate(2.0 * tau, k)),
    ("(Lv) with v/3 for v/2", "T05", |f| f.lower_v = |v, ln, k| bounds::lower_v(v / 1.5, ln, k)),
    ("G without its last term", "T08", |f| f.ceiling = |c| bounds::ceiling(c) + 1.0),
    ("TV ceiling of twice the temperature", "T08", |f| f.total_variation = |c| bounds::total_variation(c / 2.0)),
    ("v ceiling (e^c - 1)^2/4 for sinh^2", "T08", |f| f.largest_variance = |c| c.exp_m1().powi(2) / 4.0),
    ("average ceiling 0.9/tau", "T08", |f| f.average_ceiling = |tau| 0.9 / tau),
    ("Prop 2 with 1/4 for 4", "T07", |f| f.paper_search = |ratio, tau, k| bounds::paper_search(ratio, tau, k) / 16.0),
    ("search bound without chi-square", "T07", |f| f.search = |_, tau, m| bounds::search(1.0, tau, m)),
    ("c1 with v for v/2", "T04", |f| f.c1 = |m| m.a - m.v),
    ("c2 with 1/2 for 3/4", "T04", |f| f.c2 = |m| m.c2() + 0.25 * m.v2),
    ("Prop 4 with 1.5 for 4", "T09", |f| {
        f.paper_continuity = |m, tau, b| complexity::paper_continuity(m, tau, b) - 2.5 * m.anchor / tau;
    }),
    ("(C1) with 1.9 for 2", "T09", |f| {
        f.continuity = |m, tau, b| complexity::continuity(m, tau, b) - 0.1 * m.anchor / tau
    }),
    ("(18) with sqrt 3 for sqrt 6", "T09", |f| {
        f.max_continuity = |m, tau| complexity::max_continuity(m, tau) / 2.0_f64.sqrt()
    }),
    ("power mean without its root", "T10", |f| f.power_mean = |v, b| complexity::power_mean(v, b).powf(b)),
    ("L with 4 for 2", "T12", |f| {
        f.lipschitz = |s, tau, c| complexity::lipschitz(s, tau, c) + 2.0 * c * s.anchors / tau
    }),
    ("Dudley with 6 for 12", "T11", |f| f.dudley = |ball, n, l, tau, k| complexity::dudley(ball, n, l, tau, k) / 2.0),
    ("Massart with a twentieth of log M", "T11", |f| {
        f.massart = |l, m, n| complexity::massart(l, m, n) / 20.0_f64.sqrt()
    }),
    ("half of the jackknife", "T14", |f| {
        f.anchor = |x, p| {
            let e = AnchorEstimate::of(x, p)?;
            Ok(AnchorEstimate { jackknife: f64::midpoint(e.plug_in, e.jackknife), ..e })
        };
    }),
    ("standard error of anchors alone", "T14", |f| f.standard_error = |v| (v.anchors / v.n).sqrt()),
    ("ties in favour", "T16", |f| {
        f.ranked = |x, p| {
            let ties = x.iter().filter(|x| **x == p).count();
            let r = estimators::ranked(x, p);
            estimators::Ranked { rank: r.rank - ties, ..r }
        };
    }),
    ("recall at r + 1", "T16", |f| f.recall_at_size = |h, m, size, r| estimators::recall_at_size(h, m, size, r + 1)),
    ("certificate at twice its delta", "T17", |f| {
        f.held_out_bound = |l, k, tau, d| estimators::held_out_bound(l, k, tau, 2.0 * d)
    }),
    ("Z_W without 2^-gamma", "T18", |f| f.kernel_mean = |k, d| Ok(k.ln_z_sphere(d)? + k.gamma() * 2.0_f64.ln())),
    ("exponent alpha for alpha - 1", "T18", |f| f.decay = |alpha| weince::decay(alpha + 1.0)),
    ("constant without pi", "T18", |f| {
        f.decay_constant = |c, alpha| weince::decay_constant(c, alpha) / std::f64::consts::PI
    }),
    ("growth without Euler's constant", "T18", |f| {
        f.divergent_mean_log =
            |c, alpha, k| weince::divergent_mean_log(c, alpha, k) - weince::EULER * (1.0 / alpha - 1.0);
    }),
    ("smallest shortfall with 1 for 2", "T18", |f| f.least_shortfall = |h, k| weince::least_shortfall(h, k) / 2.0),
    ("Hill's inverse", "T18", |f| f.hill = |x, r| Ok(1.1 / weince::hill(x, r)?)),
    ("Weibit with softmax's variance", "N01", |f| f.weibit_mse = |p, n| p.softmax_rate / n),
    ("softmax without a floor", "N01", |f| f.softmax_mse = |p, n| p.softmax_mse(n) - p.floor()),
    ("softmax without its drift", "N01", |f| f.softmax_mse = |p, n| p.floor() + p.softmax_rate / n),
];

#[test]
fn a_wrong_constant_makes_a_claim_fail() {
    // Each alone; unharmed, the groups pass (`every_claim_holds`).
    let unnoticed: Vec<&str> = MUTATIONS
        .iter()
        .filter(|(_, group, mutate)| {
            let mut formulas = Formulas::default();
            mutate(&mut formulas);
            check(&QUICK, &formulas, &[*group]).unwrap().iter().all(|c| c.pass)
        })
        .map(|(name, ..)| *name)
        .collect();
    assert!(unnoticed.is_empty(), "no claim failed for: {}", unnoticed.join("; "));
}

#[test]
fn numbers_are_shown_briefly() {
    let show = |x: f64| Short(x).to_string();
    assert_eq!(
        [show(0.0), show(1.0), show(-0.25), show(1.5e-9), show(2.5e7)],
        ["0", "1", "-0.25", "1.50e-9", "2.50e7"]
    );
}
