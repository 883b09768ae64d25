//! A diagnosis as one JSON object, and as the table of a terminal.

use super::anchors::Statistic;
use super::words::{OVER_ANCHORS, Shape, digits, probability, range, similarity};
use super::{Analysis, Link, quantile};
use crate::evt::gpd::FEW_EXCEEDANCES;
use crate::evt::link::EndTest;
use crate::evt::{GpdFit, LikelihoodRatio, Peaks, counted};
use serde_json::{Map, Value, json};

/// The keys of a fit: `xi`, `sigma`, `se_xi`, ... `endpoint` is from the threshold on, in the unit of the exceedances. What does not
/// exist, such as errors at the boundary, is null, and `notes` say why.
pub fn of_fit(fit: &GpdFit) -> Map<String, Value> {
    let errors = fit.errors.ok();
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| {
        map.insert(key.to_string(), value);
    };
    put("n", json!(fit.n));
    put("distinct", json!(fit.distinct));
    put("xi", json!(fit.gpd.xi));
    put("sigma", json!(fit.gpd.sigma));
    put("se_xi", json!(errors.map(|e| e.xi)));
    put("se_sigma", json!(errors.map(|e| e.sigma)));
    put("xi_interval", json!(fit.xi_95()));
    put("xi_interval_by", json!(fit.xi_95().map(|_| "information")));
    put("shape", json!(Shape::of(fit, fit.xi_95())));
    put("endpoint", json!(fit.gpd.endpoint()));
    put("se_endpoint", json!(errors.and_then(|e| e.endpoint)));
    put("log_likelihood", json!(fit.log_likelihood));
    put("at_boundary", json!(fit.at_boundary));
    put("inside", json!(fit.inside.map(|law| json!({ "xi": law.xi, "sigma": law.sigma }))));
    put("few_exceedances", json!(fit.n < FEW_EXCEEDANCES));
    put("exponential_sigma", json!(fit.exponential.sigma));
    put("exponential_log_likelihood", json!(fit.exponential_log_likelihood));
    put("exponential_lr", json!(fit.exponential_test.statistic));
    put("exponential_p", json!(fit.exponential_test.p));
    put("moments_xi", json!(fit.moments.gpd.xi));
    put("moments_sigma", json!(fit.moments.gpd.sigma));
    put("moments_se_xi", json!(fit.moments.xi_error));
    put("moments_endpoint", json!(fit.moments.gpd.endpoint()));
    put("moments_infeasible", json!(fit.moments.infeasible));
    put("notes", json!(fit.notes().iter().map(ToString::to_string).collect::<Vec<_>>()));
    map
}

/// Those of peaks: `endpoint` is a similarity.
fn of_peaks(peaks: &Peaks) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("quantile".into(), json!(peaks.quantile));
    map.insert("threshold".into(), json!(peaks.threshold));
    map.extend(of_fit(&peaks.fit));
    map.insert("endpoint".into(), json!(peaks.endpoint()));
    let moments = peaks.fit.moments.gpd.endpoint().map(|end| peaks.threshold + end);
    map.insert("moments_endpoint".into(), json!(moments));
    map.insert("modified_scale".into(), json!(peaks.modified_scale()));
    map.insert("known_endpoint_index".into(), json!(peaks.hill.map(|h| h.index)));
    map.insert("se_known_endpoint_index".into(), json!(peaks.hill.map(|h| h.error)));
    map.insert("similarities".into(), json!(peaks.similarities));
    map.insert("anchors".into(), json!(peaks.anchors));
    map.insert("anchors_with_peaks".into(), json!(peaks.anchors_with_peaks));
    map.insert("notes".into(), json!(peaks.notes().iter().map(ToString::to_string).collect::<Vec<_>>()));
    map
}

/// The keys of an analysis and of the links fitted beside it, where they were.
pub fn of(analysis: &Analysis, link: Option<&Link>) -> Map<String, Value> {
    let mut map = of_peaks(&analysis.peaks);
    let mut put = |key: &str, value: Value| {
        map.insert(key.to_string(), value);
    };
    put("negatives", json!(analysis.negatives));
    put("tail_index", json!(analysis.tail_index()));
    put("intrinsic_dimension", json!(2.0 * analysis.tail_index()));
    put("shape", json!(Shape::of(&analysis.peaks.fit, analysis.xi_interval())));
    if let Ok(i) = &analysis.intervals {
        put("xi_interval", json!(i.xi));
        put("xi_interval_by", json!("anchors"));
        put("sigma_interval", json!(i.sigma));
        put("threshold_interval", json!(i.threshold));
        // Without end where it is infinite, which JSON writes as null; no interval where it would not be valid.
        put("endpoint_interval", json!(analysis.endpoint_interval()));
        put("moments_xi_interval", json!(i.moments_xi));
        put("bootstrap_se_xi", json!(i.xi_error));
        put("bootstrap_fitted", json!(i.fitted));
        put("bootstrap_failed", json!(i.failed));
        put("bootstrap_at_boundary", json!(i.at_boundary));
    }
    put("duplicate_pairs", json!(analysis.duplicates.pairs));
    put("anchors_with_duplicates", json!(analysis.duplicates.anchors));
    put("left_out", json!(analysis.left_out));
    put("anchors_that_are_candidates", json!(analysis.overlap));
    put("hub_ratio", json!(analysis.hubs.map(|h| h.ratio)));
    put("hub_largest", json!(analysis.hubs.map(|h| h.largest)));
    put("candidates", json!(analysis.hubs.map(|h| h.candidates)));
    put("per_anchor", of_anchors(analysis));
    let grid = analysis.grid.iter().map(|(q, found)| match found {
        Ok(peaks) => Value::Object(of_peaks(peaks)),
        Err(why) => json!({ "quantile": q, "error": why }),
    });
    put("grid", Value::Array(grid.collect()));
    put("notes", json!(analysis.notes().iter().map(ToString::to_string).collect::<Vec<_>>()));
    put("link", link.map_or(Value::Null, of_link));
    map
}

/// What is told of each anchor: name, and the number.
pub const COLUMNS: [(&str, Statistic); 12] = [
    ("xi", |t| t.xi.unwrap_or(f64::NAN)),
    ("beta", |t| t.beta),
    ("rho", |t| t.rho),
    ("delta_aic", |t| t.delta_aic),
    ("likelihood_evidence", |t| t.likelihood),
    ("lambda", |t| t.lambda),
    ("lambda_rho", |t| t.lambda_rho),
    ("lambda_aic", |t| t.lambda_aic),
    ("hill", |t| t.hill),
    ("tail_index", |t| t.index),
    ("criticality", |t| t.criticality),
    ("r2", |t| t.r2),
];

fn of_anchors(analysis: &Analysis) -> Value {
    let anchors = &analysis.anchors;
    let mut map = Map::new();
    map.insert("negatives".into(), json!(anchors.negatives));
    map.insert("tail_points".into(), json!(anchors.points));
    map.insert("pivot".into(), json!(anchors.pivot));
    map.insert("gate".into(), json!(anchors.gate));
    map.insert("gate_of".into(), json!(analysis.gate_of));
    let margin = anchors.gate.gate.margin;
    map.insert("delta_aic_above_margin".into(), json!(anchors.share(|t| t.delta_aic > margin)));
    map.insert("likelihood_evidence_above_margin".into(), json!(anchors.share(|t| t.likelihood > margin)));
    map.insert("criticality_from_half".into(), json!(anchors.share(|t| t.criticality >= 0.5)));
    map.insert("criticality_from_one".into(), json!(anchors.share(|t| t.criticality >= 1.0)));
    map.insert("xi_at_boundary".into(), json!(anchors.tails.iter().filter(|t| t.at_boundary).count()));
    for (name, value) in COLUMNS {
        let values: Vec<f64> = anchors.column(value).into_iter().filter(|v| !v.is_nan()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let place = |share: f64| quantile(values.clone(), share);
        map.insert(
            name.into(),
            json!({ "n": values.len(), "mean": mean, "min": place(0.0), "q05": place(0.05), "q50": place(0.5), "q95": place(0.95), "max": place(1.0) }),
        );
    }
    Value::Object(map)
}

fn of_link(link: &Link) -> Value {
    let fit = &link.fit;
    let single = |s: &Option<crate::evt::link::Single>| {
        s.map(|s| json!({ "theta": s.theta, "se_theta": s.error, "log_likelihood": s.log_likelihood, "aic": s.aic() }))
    };
    let ratio = |t: LikelihoodRatio, p: f64| json!({ "lr": t.statistic, "p": t.p, "p_boundary": p });
    let test = |t: &EndTest| ratio(t.two_sided, t.p_boundary);
    let blend = fit.blend.as_ref().ok();
    json!({
        "winner": link.winner,
        "candidates": link.candidates,
        "draws": link.draws,
        "choices": fit.choices,
        "anchors": fit.anchors,
        "agreement": link.agreement,
        "lambda": blend.map(|b| b.lambda),
        "se_lambda": blend.map(|b| b.lambda_error),
        "se_lambda_robust": blend.map(|b| b.lambda_error_robust),
        "lambda_interval": blend.map(|b| b.lambda_95()),
        "lambda_interval_robust": blend.map(|b| b.lambda_95_robust()),
        "lambda_constrained": blend.map(|b| b.lambda_constrained),
        "lambda_share": blend.and_then(|b| b.lambda_share),
        "kappa": blend.map(|b| b.kappa),
        "theta": blend.map(|b| b.theta),
        "se_theta": blend.map(|b| b.theta_errors),
        "se_theta_robust": blend.map(|b| b.theta_errors_robust),
        "deviations": blend.map(|b| b.deviations),
        "log_likelihood": blend.map(|b| b.log_likelihood),
        "aic": blend.map(|b| b.aic()),
        "softmax_test": blend.map(|b| test(&b.softmax_test)),
        "weibit_test": blend.map(|b| test(&b.weibit_test)),
        "no_lambda": fit.blend.as_ref().err().map(ToString::to_string),
        "softmax": single(&fit.softmax),
        "weibit": single(&fit.weibit),
        "uniform_log_likelihood": fit.uniform_log_likelihood,
        "by_aic": link.by_aic(),
    })
}

/// Lines of the table: a name, and what there is.
pub fn table_of_fit(fit: &GpdFit) -> Vec<(String, String)> {
    let mut rows = vec![("exceedances".to_string(), fit.n.to_string())];
    fit_rows(&mut rows, fit, fit.xi_95(), "by the fit's own error", fit.gpd.endpoint().map(digits));
    rows
}

/// `by` says what the interval of `xi` is by.
fn fit_rows(
    rows: &mut Vec<(String, String)>,
    fit: &GpdFit,
    interval: Option<[f64; 2]>,
    by: &str,
    endpoint: Option<String>,
) {
    let mut row = |name: &str, text: String| rows.push((name.to_string(), text));
    let error = |e: Option<f64>| e.map_or(String::new(), |e| format!(" ± {}", digits(e)));
    let errors = fit.errors.ok();
    row("xi", format!("{}{}", digits(fit.gpd.xi), error(errors.map(|e| e.xi))));
    // At the boundary it says nothing.
    match interval.filter(|_| !fit.at_boundary) {
        Some(interval) => row(&format!("xi, 95 % {by}"), range(interval, digits)),
        None => row("xi, 95 % interval", "-".to_string()),
    }
    row("sigma", format!("{}{}", digits(fit.gpd.sigma), error(errors.map(|e| e.sigma))));
    row("endpoint", endpoint.map_or("none".to_string(), |e| format!("{e}{}", error(errors.and_then(|e| e.endpoint)))));
    row("log-likelihood", digits(fit.log_likelihood));
    row(
        "against xi = 0",
        format!("likelihood ratio {:.2}, {}", fit.exponential_test.statistic, probability(fit.exponential_test.p)),
    );
    row("xi by moments", format!("{}{}", digits(fit.moments.gpd.xi), error(fit.moments.xi_error)));
}

/// The same of an analysis.
pub fn table_of(analysis: &Analysis, link: Option<&Link>) -> Vec<(String, String)> {
    let peaks = &analysis.peaks;
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, text: String| rows.push((name.to_string(), text));
    row("anchors", format!("{} with up to {}", peaks.anchors, counted(analysis.negatives, "negative")));
    row("threshold", format!("{}, the {} quantile", similarity(peaks.threshold), peaks.quantile));
    row("peaks", format!("{} of {}", peaks.fit.n, counted(peaks.anchors_with_peaks, "anchor")));
    let by = if analysis.intervals.is_ok() { OVER_ANCHORS } else { "by the fit's own error" };
    fit_rows(&mut rows, &peaks.fit, analysis.xi_interval(), by, peaks.endpoint().map(similarity));
    let mut row = |name: &str, text: String| rows.push((name.to_string(), text));
    if let Some(interval) = analysis.endpoint_interval() {
        row("endpoint, 95 % over anchors", range(interval, similarity));
    }
    if let Some(h) = peaks.hill {
        row("index if the end is 1", format!("{}, xi = {}", digits(h.index), digits(-1.0 / h.index)));
    }
    for (name, value) in COLUMNS {
        let values: Vec<f64> = analysis.anchors.column(value).into_iter().filter(|v| !v.is_nan()).collect();
        if !values.is_empty() {
            let place = |share: f64| quantile(values.clone(), share);
            row(
                &format!("anchors' own {}, median (5 % to 95 %)", name.replace('_', " ")),
                format!("{} ({} to {})", digits(place(0.5)), digits(place(0.05)), digits(place(0.95))),
            );
        }
    }
    if let Some(blend) = link.and_then(|l| l.fit.blend.as_ref().ok()) {
        row("link: lambda", digits(blend.lambda));
        row("link: lambda, 95 %, the wider", range(blend.lambda_95_wider(), digits));
        row("link: kappa", digits(blend.kappa));
    }
    if let Some(link) = link {
        row("link: by AIC", link.by_aic());
    }
    rows
}
