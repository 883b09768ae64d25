//! What is refused: configurations out of range, tensors that are no batch, states that do not fit.

use super::config;
use tch::{Device, Kind, Tensor};
use weince::config::loss::{BetaConfig, LossConfig, Pivot, WeinceConfig};
use weince::config::loss_reference::{Policy, ReferenceConfig};
use weince::loss::{Layout, Loss};

fn refused(yaml: &str) -> String {
    let parsed: Result<LossConfig, _> = weince::config::parse(yaml, "run.yaml", &[]);
    let error = parsed.and_then(|c| c.validate()).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    error.to_string()
}

#[test]
fn defaults_are_the_papers() {
    assert_eq!(config(""), LossConfig::default());
    assert_eq!(config("{temperature: 0.5}"), config("{kind: infonce}"));
    let written = "{kind: weince, temperature: 0.5, tail: {fraction: 0.1, min_points: 32}, gate: {signals: both, evidence: aic, \
                   margin: 2.0, kappa_aic: 1.0, pivot: {quantile: 0.2}, kappa_rho: 10.0}, beta: {kind: slope, min: 0.5, \
                   max: 16.0, fallback: 4.0}, floor: clamp, eps: 1.0e-6}";
    assert_eq!(config(written), LossConfig::Weince(WeinceConfig::default()));
    let LossConfig::Weince(c) = config("{kind: weince, gate: {pivot: {absolute: 0.05}}, beta: {max: 8.0}}") else {
        panic!()
    };
    assert_eq!(c.gate.pivot, Pivot::Absolute(0.05));
    assert!(matches!(c.beta, BetaConfig::Slope(b) if b.max == 8.0 && b.min == 0.5));
}

#[test]
fn configurations_survive_writing() {
    for yaml in [
        "{kind: infonce, temperature: 0.1}",
        "{kind: weince, gate: {pivot: {absolute: 0.1}}, beta: {kind: shrunk, global: {ema: {momentum: 0.5}}}}",
        "{kind: weince, beta: {kind: shrunk, global: {fixed: 2.0}, shrink_c: 10.0}, floor: shift}",
        "{kind: reference, policy: tlambda, use_weib_topm: true, weib_lambda: 0.5}",
    ] {
        let parsed = config(yaml);
        assert_eq!(config(&serde_yaml::to_string(&parsed).unwrap()), parsed);
        assert_eq!(serde_json::from_value::<LossConfig>(serde_json::to_value(&parsed).unwrap()).unwrap(), parsed);
    }
}

#[test]
fn values_out_of_range_name_key_value_and_range() {
    for (yaml, key) in [
        ("{temperature: 0}", "loss.temperature"),
        ("{temperature: .nan}", "loss.temperature"),
        ("{temperature: .inf}", "loss.temperature"),
        ("{kind: weince, tail: {fraction: 1.5}}", "loss.tail.fraction"),
        ("{kind: weince, tail: {min_points: 0}}", "loss.tail.min_points"),
        ("{kind: weince, gate: {margin: .inf}}", "loss.gate.margin"),
        ("{kind: weince, gate: {kappa_rho: -1}}", "loss.gate.kappa_rho"),
        ("{kind: weince, gate: {pivot: {quantile: 1.2}}}", "loss.gate.pivot.quantile"),
        ("{kind: weince, gate: {pivot: {absolute: 0}}}", "loss.gate.pivot.absolute"),
        ("{kind: weince, beta: {min: 4, max: 2}}", "loss.beta.max"),
        ("{kind: weince, beta: {kind: fixed, value: -1}}", "loss.beta.value"),
        ("{kind: weince, beta: {kind: shrunk, global: {ema: {momentum: 2}}}}", "loss.beta.global.ema.momentum"),
        ("{kind: weince, eps: 0}", "loss.eps"),
        ("{kind: reference, weib_top_m: 0}", "loss.weib_top_m"),
        ("{kind: reference, beta_min: 17}", "loss.beta_max"),
        ("{kind: reference, select_tail_frac: 1.5}", "loss.select_tail_frac"),
    ] {
        let error = refused(yaml);
        assert!(
            error.contains(key) && error.contains("expected a value in") && error.contains("found"),
            "{yaml}: {error}"
        );
    }
}

#[test]
fn unknown_keys_and_kinds_are_refused_with_the_nearest_known_one() {
    for (yaml, hint) in [
        ("{kind: weinse}", "`weince`"),
        ("{kind: infonce, temprature: 0.1}", "`temperature`"),
        ("{kind: weince, gate: {kapa_rho: 1}}", "`kappa_rho`"),
        ("{kind: weince, beta: {kind: slop}}", "`slope`"),
        ("{kind: weince, beta: {kind: hill, fallback: 1}}", "`fallback`"),
        ("{kind: weince, gate: {evidence: likelyhood}}", "`likelihood`"),
        ("{kind: reference, policy: tlambda_selct}", "`tlambda_select`"),
        ("{kind: reference, select_kapa_rho: 1}", "`select_kappa_rho`"),
    ] {
        let error = refused(yaml);
        assert!(error.contains("unknown") && error.contains(hint), "{yaml}: {error}");
    }
    assert!(refused("{kind: weince, gate: {margin: many}}").contains("margin"));
    assert!(refused("{kind: weince, gate: {pivot: {quantile: 0.1, absolute: 0.2}}}").contains("pivot"));
    assert!(refused("{kind: 3}").contains("kind"));
}

#[test]
fn the_authors_own_file_is_read() {
    let text = "nodes: 1\nbatch_size: 256\nresnet: resnet18\ntemperature: 0.5\npolicy: tlambda_select\nauto_weib_beta: true\n\
                use_weib_topm: true\nweib_lambda: 0.5\nweib_top_m: 50\neval_seeds: [1]\nselect_aic_margin: 2\nweib_shrink_k: 5\n";
    let read = ReferenceConfig::from_authors_file(text, "config.yaml").unwrap();
    assert_eq!(read.policy, Policy::TlambdaSelect);
    assert!(read.auto_weib_beta && read.use_weib_topm && !read.use_pl_topm);
    assert_eq!((read.weib_top_m, read.select_aic_margin), (50, 2.0));
    for (text, part) in [
        ("policy: hard\n", "unknown variant"),
        ("polcy: pl\n", "unknown field"),
        ("policy: pl\ntemperature: 0\n", "loss.temperature"),
        ("policy: pl\nuse_weib_topm: 'False'\n", "use_weib_topm"),
        ("- 1\n", "config.yaml"),
    ] {
        let error = ReferenceConfig::from_authors_file(text, "config.yaml").unwrap_err();
        assert!(error.to_string().contains(part) && error.exit_code() == 2, "{error}");
    }
}

#[test]
fn what_is_no_batch_is_refused() {
    let zeros = |size: &[i64], kind| Tensor::zeros(size, (kind, Device::Cpu));
    let good = zeros(&[4, 3], Kind::Float);
    for (z_i, z_j, part) in [
        (zeros(&[4], Kind::Float), zeros(&[4], Kind::Float), "two matrices"),
        (zeros(&[4, 3], Kind::Float), zeros(&[5, 3], Kind::Float), "[5, 3]"),
        (zeros(&[4, 2], Kind::Float), good.shallow_clone(), "[4, 2]"),
        (zeros(&[0, 3], Kind::Float), zeros(&[0, 3], Kind::Float), "at least one"),
        (zeros(&[4, 0], Kind::Float), zeros(&[4, 0], Kind::Float), "at least one"),
        (zeros(&[4, 3], Kind::Int64), zeros(&[4, 3], Kind::Int64), "Int64"),
        (zeros(&[4, 3], Kind::Double), good.shallow_clone(), "Double"),
        (zeros(&[2, 2, 3], Kind::Float), zeros(&[2, 2, 3], Kind::Float), "[2, 2, 3]"),
    ] {
        for yaml in ["{kind: infonce}", "{kind: weince}", "{kind: reference}"] {
            let error = Loss::new(&config(yaml), Layout::TwoView).unwrap().forward(&z_i, &z_j).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn non_finite_rows_are_named() {
    let z = Tensor::ones([30, 3], (Kind::Half, Device::Cpu));
    assert!(Loss::check_finite(&z, &z).is_ok());
    let (bad, mut worse) = (z.copy(), z.copy());
    let _ = bad.get(7).get(1).fill_(f64::NAN);
    let _ = bad.get(29).get(0).fill_(f64::INFINITY);
    let _ = worse.fill_(f64::NEG_INFINITY);
    let error = Loss::check_finite(&bad, &worse).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    let text = error.to_string();
    assert!(
        text.contains("2 of 30 rows of z_i") && text.contains("7, 29") && text.contains("all 30 rows of z_j"),
        "{text}"
    );
    for yaml in ["{kind: infonce}", "{kind: weince}", "{kind: reference, policy: tlambda_select}"] {
        let mut loss = Loss::new(&config(yaml), Layout::TwoView).unwrap();
        assert!(
            loss.forward(&bad.to_kind(Kind::Float), &z.to_kind(Kind::Float)).unwrap().loss.double_value(&[]).is_nan()
        );
    }
}

#[test]
fn states_fit_their_configuration() {
    let new = |yaml: &str| Loss::new(&config(yaml), Layout::TwoView).unwrap();
    let mut with = new("{kind: reference, policy: weibit, auto_weib_beta: true, weib_beta: 3.3}");
    // Kept as float32.
    assert_eq!(with.state(), Some(3.3f32 as f64));
    with.set_state(Some(2.5)).unwrap();
    assert_eq!(with.state(), Some(2.5));
    assert!(with.set_state(None).is_err() && with.set_state(Some(f64::NAN)).is_err());
    for yaml in ["{kind: infonce}", "{kind: weince}", "{kind: reference}"] {
        let mut without = new(yaml);
        assert_eq!(without.state(), None);
        without.set_state(None).unwrap();
        assert!(without.set_state(Some(1.0)).is_err());
    }
    assert!(new("{kind: weince, beta: {kind: shrunk, global: {ema: {}}}}").state().is_some());
}
