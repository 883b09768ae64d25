//! What a diagnosis found, in sentences: findings first, then what a reader has to know about them.

use super::winners::{Link, Winner};
use super::{Analysis, quantile};
use crate::config::loss::{BetaConfig, Evidence, Pivot};
use crate::evt::link::NoBlend;
use crate::evt::pot::HILL_POINTS;
use crate::evt::{GpdFit, Peaks, SHORTFALL_FLOOR};
use crate::theory::weince::{Regime, regime};
use serde::Serialize;

/// A sentence or two.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Word {
    /// It is about how far the findings can be trusted or compared, not a finding itself.
    pub caution: bool,
    /// The text.
    pub text: String,
}

/// What the sign of `xi` is, as far as the sample tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// The most likely value is the least allowed one, -1.
    Boundary,
    /// Below 0: an endpoint.
    Negative,
    /// It may be 0: the exponential tail of the Gumbel domain.
    NearZero,
    /// Above 0: a power law.
    Positive,
}

impl Shape {
    /// Of a fit and the 95 % interval of its `xi`; where there is none, by the likelihood ratio test at 5 %.
    pub fn of(fit: &GpdFit, interval: Option<[f64; 2]>) -> Shape {
        let sign = |xi: f64| if xi < 0.0 { Shape::Negative } else { Shape::Positive };
        match interval {
            _ if fit.at_boundary => Shape::Boundary,
            Some([_, high]) if high < 0.0 => Shape::Negative,
            Some([low, _]) if low > 0.0 => Shape::Positive,
            None if fit.exponential_test.p < 0.05 => sign(fit.gpd.xi),
            _ => Shape::NearZero,
        }
    }
}

/// Of a share of anchors with this evidence above the gate's margin, the gate is told to be saturated.
const SATURATED: f64 = 0.95;

/// So many times as often as by chance two peaks share a candidate: hubs are told.
const HUBS: f64 = 10.0;

/// Over thresholds `xi` may move by this much and is told to be stable, and so may it between anchors and all peaks.
const STABLE: f64 = 0.1;

/// A negative `xi` nearer to 0 is told to be small: its endpoint is ten scales away.
const SMALL: f64 = 0.1;

/// The quantile from which on thresholds are looked at for stability.
const STABLE_FROM: f64 = 0.95;

/// A likelihood ratio's probability.
pub(super) fn probability(p: f64) -> String {
    match p {
        p if p < 1e-300 => "p < 1e-300".to_string(),
        p if p < 1e-3 => format!("p = {p:.0e}"),
        p => format!("p = {p:.3}"),
    }
}

/// Both ends of an interval; without end where it has none.
pub(super) fn range([low, high]: [f64; 2], decimals: usize) -> String {
    match high.is_finite() {
        true => format!("{low:.decimals$} to {high:.decimals$}"),
        false => format!("{low:.decimals$} to no end"),
    }
}

fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent == 0.0 || percent == 100.0 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

#[derive(Default)]
struct Text(Vec<Word>);

impl Text {
    fn find(&mut self, text: String) {
        self.0.push(Word { caution: false, text });
    }

    fn caution(&mut self, text: String) {
        self.0.push(Word { caution: true, text });
    }

    fn done(self) -> Vec<Word> {
        let (cautions, findings): (Vec<Word>, Vec<Word>) = self.0.into_iter().partition(|w| w.caution);
        [findings, cautions].concat()
    }
}

/// Of a fit to exceedances alone.
pub fn of_fit(fit: &GpdFit) -> Vec<Word> {
    let mut text = Text::default();
    shape(&mut text, fit, fit.xi_95(), "");
    if let Some(end) = fit.gpd.endpoint() {
        let error = fit.errors.ok().and_then(|e| e.endpoint);
        let error = error.map_or(String::new(), |e| format!(" (standard error {e:.4})"));
        text.find(format!("The fitted law ends at {end:.4}{error} above the threshold."));
    }
    moments(&mut text, fit);
    for note in fit.notes() {
        text.caution(sentence(&note.to_string()));
    }
    text.done()
}

/// Of an analysis and, where there are choices, the links fitted to them.
pub fn of(analysis: &Analysis, link: Option<&Link>) -> Vec<Word> {
    let mut text = Text::default();
    let peaks = &analysis.peaks;
    shape(&mut text, &peaks.fit, analysis.xi_interval(), " over anchors");
    endpoint(&mut text, analysis);
    spread(&mut text, &analysis.peaks);
    stability(&mut text, analysis);
    dimension(&mut text, analysis);
    gate(&mut text, analysis);
    critical(&mut text, analysis);
    if let Some(link) = link {
        choices(&mut text, link);
    }
    moments(&mut text, &peaks.fit);
    for note in analysis.notes() {
        text.caution(sentence(&note.to_string()));
    }
    sample(&mut text, analysis);
    comparable(&mut text, analysis);
    text.done()
}

/// Of an earlier and a later state, with their steps: how far apart they are.
pub fn over_training(first: (u64, &Analysis), last: (u64, &Analysis)) -> Vec<Word> {
    let ((before, a), (after, b)) = (first, last);
    let mut text = Text::default();
    let xi = |x: &Analysis| {
        let interval = x.xi_interval().map_or(String::new(), |i| format!(" ({})", range(i, 3)));
        format!("{:.3}{interval}", x.peaks.fit.gpd.xi)
    };
    let verdict = match (a.xi_interval(), b.xi_interval()) {
        (Some(i), Some(j)) if i[1] < j[0] => ": it rose, and the tail ends less abruptly",
        (Some(i), Some(j)) if j[1] < i[0] => ": it fell, and the tail ends more abruptly",
        (Some(_), Some(_)) => ", and the intervals overlap",
        _ => "",
    };
    text.find(format!("From step {before} to step {after}, xi goes from {} to {}{verdict}.", xi(a), xi(b)));
    let end = |x: &Analysis| x.peaks.endpoint().map_or("none".to_string(), |e| format!("{e:.4}"));
    text.find(format!(
        "The fitted endpoint goes from {} to {}, the tail index from {:.2} to {:.2}.",
        end(a),
        end(b),
        a.tail_index(),
        b.tail_index()
    ));
    let mean = |x: &Analysis| x.anchors.column(|t| t.lambda).iter().sum::<f64>() / x.anchors.tails.len() as f64;
    let near = |x: &Analysis| quantile(x.anchors.column(|t| t.rho), 0.5);
    text.find(format!(
        "The median distance of the hardest negative goes from {:.4} to {:.4}, and lambda, in the mean over anchors, from {:.3} to {:.3}.",
        near(a), near(b), mean(a), mean(b)
    ));
    text.done()
}

/// A note as a sentence of its own.
fn sentence(note: &str) -> String {
    let mut letters = note.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.", letters.as_str())
}

fn shape(text: &mut Text, fit: &GpdFit, interval: Option<[f64; 2]>, by: &str) {
    let xi = fit.gpd.xi;
    let within = interval.map_or(String::new(), |i| format!(" (95 %{by}: {})", range(i, 3)));
    let test =
        format!("likelihood ratio {:.1}, {}", fit.exponential_test.statistic, probability(fit.exponential_test.p));
    text.find(match Shape::of(fit, interval) {
        Shape::Boundary => format!(
            "xi is at the boundary -1 ({test} against xi = 0): the tail ends as abruptly as a uniform law's or more; the fit says no more than that."
        ),
        Shape::Negative => format!(
            "xi = {xi:.3}{within} is clearly negative: the tail has an endpoint (Weibull domain), and the exponential tail of the Gumbel domain fits worse ({test})."
        ),
        Shape::NearZero => format!(
            "xi = {xi:.3}{within} cannot be told from 0 ({test}): an exponential tail, which softmax assumes, fits as well as one with an endpoint."
        ),
        Shape::Positive => format!(
            "xi = {xi:.3}{within} is positive: within the reach of this threshold the tail is a power law and shows no endpoint ({test}); a bounded similarity ends all the same, so that the law does not hold up to the end. Duplicates or clusters near the anchors do this."
        ),
    });
    if Shape::of(fit, interval) == Shape::Negative && xi > -SMALL {
        text.caution(format!(
            "xi = {xi:.3} is small: as far as there are peaks, the tail is nearly exponential, and its endpoint is far from all of them."
        ));
    }
    if let (true, Some(inside)) = (fit.at_boundary, fit.inside) {
        text.caution(format!("The likelihood has another, lower maximum at xi = {:.3}.", inside.xi));
    }
}

fn endpoint(text: &mut Text, analysis: &Analysis) {
    let peaks = &analysis.peaks;
    let known = peaks.hill.map(|h| {
        format!(
            " If similarities end at 1, the peaks' tail index is {:.2}, and xi would be {:.3}.",
            h.index,
            -1.0 / h.index
        )
    });
    let known = known.unwrap_or_default();
    let Some(end) = peaks.endpoint() else {
        text.find(format!("The fitted law has no endpoint.{known}"));
        return;
    };
    if peaks.fit.at_boundary {
        text.find(format!(
            "The fitted law ends at the largest peak, {end:.4}, as it always does at the boundary: it tells nothing of where similarities end.{known}"
        ));
        return;
    }
    let interval = analysis.intervals.as_ref().ok().map(|i| i.endpoint);
    let within = interval.map_or(String::new(), |i| format!(" (95 % over anchors: {})", range(i, 4)));
    text.find(match interval {
        Some([_, high]) if high < 1.0 => format!(
            "The fitted endpoint is {end:.4}{within}, below 1: that xi is negative is no evidence for WEINCE's endpoint 1.{known}"
        ),
        Some([low, _]) if low <= 1.0 => format!("The fitted endpoint is {end:.4}{within}: an endpoint at 1 agrees with the peaks.{known}"),
        Some(_) => format!(
            "The fitted endpoint is {end:.4}{within}, beyond any cosine: the law holds only approximately at this threshold.{known}"
        ),
        None => format!(
            "The fitted endpoint is {end:.4}, without an interval; that xi is negative would be no evidence that it is 1.{known}"
        ),
    });
}

fn spread(text: &mut Text, peaks: &Peaks) {
    if peaks.anchors_with_peaks * 2 < peaks.anchors {
        text.caution(format!(
            "Only {} of {} anchors have a peak: the tail is that of items which are near to one another and not to the rest, a cluster or \
             a part of the embeddings that has collapsed. What holds for it need not hold for other anchors.",
            peaks.anchors_with_peaks, peaks.anchors
        ));
    }
}

fn stability(text: &mut Text, analysis: &Analysis) {
    let fits = analysis.grid.iter().filter(|(q, _)| *q >= STABLE_FROM);
    let fits: Vec<(f64, f64)> = fits.filter_map(|(q, p)| Some((*q, p.as_ref().ok()?.fit.gpd.xi))).collect();
    let (Some(first), Some(last)) = (fits.first(), fits.last()) else { return };
    if first.0 == last.0 {
        return;
    }
    let low = fits.iter().map(|f| f.1).fold(f64::INFINITY, f64::min);
    let high = fits.iter().map(|f| f.1).fold(f64::NEG_INFINITY, f64::max);
    let over = format!("from the quantile {} to {} it lies between {low:.3} and {high:.3}", first.0, last.0);
    if high - low <= STABLE {
        text.find(format!("xi is stable over thresholds: {over}."));
    } else {
        text.caution(format!("xi depends on the threshold: {over}; no single value describes the tail."));
    }
}

fn moments(text: &mut Text, fit: &GpdFit) {
    let pwm = &fit.moments;
    let Some(error) = pwm.xi_error.filter(|_| !fit.at_boundary) else { return };
    let apart = (pwm.gpd.xi - fit.gpd.xi).abs();
    if apart > 0.1 && apart > 3.0 * error {
        text.caution(format!(
            "Probability-weighted moments give xi = {:.3} and maximum likelihood {:.3}: a generalised Pareto law does not describe the peaks well.",
            pwm.gpd.xi, fit.gpd.xi
        ));
    }
}

fn dimension(text: &mut Text, analysis: &Analysis) {
    let h = analysis.tail_index();
    if !h.is_finite() {
        text.caution("The anchors' nearest negatives are all equally near: they have no tail index.".into());
        return;
    }
    let points = if analysis.negatives > HILL_POINTS { HILL_POINTS } else { analysis.anchors.points };
    text.find(format!(
        "The tail index h is {h:.2} (median over anchors, of the {points} nearest negatives each, for an endpoint at 1): near an anchor the embeddings fill about 2 h = {:.1} dimensions.",
        2.0 * h
    ));
}

fn gate(text: &mut Text, analysis: &Analysis) {
    let anchors = &analysis.anchors;
    let gate = &anchors.gate.gate;
    let tails = &anchors.tails;
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    text.find(format!(
        "lambda is {:.3} in the mean over anchors (5 % and 95 % quantiles {:.3} and {:.3}), by {}, with {} negatives and a tail of {}.",
        mean(anchors.column(|t| t.lambda)),
        quantile(anchors.column(|t| t.lambda), 0.05),
        quantile(anchors.column(|t| t.lambda), 0.95),
        analysis.gate_of,
        anchors.negatives,
        anchors.points
    ));
    let above = tails.iter().filter(|t| t.delta_aic > gate.margin).count() as f64 / tails.len() as f64;
    let likelihood = tails.iter().filter(|t| t.likelihood > gate.margin).count() as f64 / tails.len() as f64;
    if above >= SATURATED {
        let acts = match gate.evidence {
            Evidence::Aic => "lambda_aic is about 1 for them whatever their tails are",
            Evidence::Likelihood => "the gate of this loss does not use it",
        };
        text.caution(format!(
            "{} of the anchors have a delta-AIC above the margin {}: {acts}, as the published delta-AIC compares lines with different responses and is nearly always large. Twice the log-likelihood ratio of a power law against an exponential tail, on the same data, is above it for {}.",
            percent(above),
            gate.margin,
            percent(likelihood)
        ));
    }
    if let Pivot::Quantile(q) = gate.pivot {
        text.caution(format!(
            "The pivot of rho is a quantile of these very anchors: lambda_rho is above one half for {} of any set of anchors, whether its tails have an endpoint or not.",
            percent(q)
        ));
    }
    let limits = match &anchors.gate.beta {
        BetaConfig::Slope(b) => Some((b.min, b.max)),
        BetaConfig::Hill(b) => Some((b.min, b.max)),
        BetaConfig::Shrunk(b) => Some((b.min, b.max)),
        BetaConfig::Fixed(_) => None,
    };
    if let Some((min, max)) = limits {
        let at = anchors.share(|t| t.beta <= min || t.beta >= max);
        if at > 0.05 {
            text.caution(format!(
                "beta is at an end of its range, {min} or {max}, for {} of the anchors.",
                percent(at)
            ));
        }
    }
}

fn critical(text: &mut Text, analysis: &Analysis) {
    let anchors = &analysis.anchors;
    let middle = quantile(anchors.column(|t| t.criticality), 0.5);
    let (half, one) = (anchors.share(|t| t.criticality >= 0.5), anchors.share(|t| t.criticality >= 1.0));
    let shares = format!("it is 0.5 or more for {} and 1 or more for {} of the anchors", percent(half), percent(one));
    let start = format!("Criticality lambda beta / h is {middle:.3} (median)");
    let worst = if one >= 0.5 {
        Regime::NoLimit
    } else if half >= 0.5 {
        Regime::InfiniteVariance
    } else {
        regime(middle)
    };
    match worst {
        Regime::FiniteVariance => text.find(format!(
            "{start}, below 0.5: the weights of the negatives have a finite variance, and the loss nears its limit as 1/k; {shares}."
        )),
        Regime::InfiniteVariance => text.caution(format!(
            "{start}, between 0.5 and 1: the weights of the negatives have an infinite variance, the bias of k negatives falls as k^-{:.2} only, and losses at different k are not comparable; {shares}.",
            1.0 / middle - 1.0
        )),
        Regime::NoLimit => text.caution(format!(
            "{start}, 1 or more: with more and more negatives the loss has no limit; its value is set by the cap {SHORTFALL_FLOOR:e} and by k; {shares}."
        )),
    }
}

fn choices(text: &mut Text, link: &Link) {
    let fit = &link.fit;
    let what = match link.winner {
        Winner::Fresh => "the candidate nearest to a fresh view of the anchor",
        Winner::Positive => "the anchor's other view",
    };
    let start = format!(
        "Link selection over {} choices of {} anchors among {} candidates (winner: {what})",
        fit.choices, fit.anchors, link.candidates
    );
    match &fit.blend {
        Ok(blend) => {
            let robust = blend.lambda_95_robust();
            let interval = range(robust, 3);
            let verdict = match robust {
                [low, high] if low <= 0.0 && high >= 1.0 => "neither softmax nor Weibit can be excluded",
                [low, high] if low <= 0.0 && high >= 0.0 => "softmax (lambda = 0) cannot be excluded",
                [low, high] if low <= 1.0 && high >= 1.0 => "Weibit (lambda = 1) cannot be excluded",
                [_, high] if high < 0.0 => {
                    "the endpoint coordinate counts against a candidate: near 1, choices rise less steeply than softmax's"
                }
                [low, _] if low > 1.0 => "choices rise near 1 more steeply than Weibit's",
                _ => "a blend: neither softmax nor Weibit alone",
            };
            text.find(format!(
                "{start}: lambda = {:.3} (95 %, robust over anchors: {interval}); {verdict}. Softmax is tested with {} (boundary: {}), Weibit with {} (boundary: {}). By AIC: {}.",
                blend.lambda,
                probability(blend.softmax_test.two_sided.p),
                probability(blend.softmax_test.p_boundary),
                probability(blend.weibit_test.two_sided.p),
                probability(blend.weibit_test.p_boundary),
                link.by_aic()
            ));
        }
        Err(why @ (NoBlend::Separated | NoBlend::NearlySeparated { .. })) => {
            text.find(format!("{start} gives no lambda: {why}."));
        }
        Err(why) => text.find(format!("{start} gives no lambda: {why}.")),
    }
    text.caution(
        "This lambda is of choices between similarity and endpoint coordinate on one scale, and depends on their units and on the candidates; it is not the lambda of the loss's gate.".into(),
    );
    if link.draws > 1 {
        text.caution("Choices of one anchor depend on each other: only the robust interval counts; the tests and AIC take them as independent.".into());
    }
}

fn sample(text: &mut Text, analysis: &Analysis) {
    if let Err(why) = &analysis.intervals {
        text.caution(format!("There are no intervals over anchors: {why}."));
    }
    if let Ok(i) = &analysis.intervals {
        let all = i.fitted + i.failed;
        if i.at_boundary * 20 > i.fitted {
            text.caution(format!("{} of {all} resamples have their fit at the boundary xi = -1.", i.at_boundary));
        }
        if i.failed * 20 > all {
            text.caution(format!("{} of {all} resamples gave no fit.", i.failed));
        }
    }
    let d = analysis.duplicates;
    if d.pairs > 0 {
        text.caution(format!(
            "{} pairs, of {} of the {} anchors, are duplicates: similarities within {SHORTFALL_FLOOR:e} of 1. They pull xi up and beta down, and the link gives them no gradient; leave duplicates out of the data.",
            d.pairs, d.anchors, analysis.peaks.anchors
        ));
    }
    if let Some(h) = analysis.hubs.filter(|h| h.ratio >= HUBS) {
        text.caution(format!(
            "There are hubs: two peaks share their candidate {:.0} times as often as by chance; one candidate has {} of {} peaks. Intervals over anchors do not know that, and are too narrow.",
            h.ratio, h.largest, h.peaks
        ));
    }
    if analysis.overlap > 0 {
        text.caution(format!(
            "{} of {} anchors are candidates of others too, as there are not enough items to keep them apart: pairs of them may count both ways, and errors that take peaks as independent are too small.",
            analysis.overlap, analysis.peaks.anchors
        ));
    }
    if analysis.left_out > 0 {
        text.caution(format!(
            "{} negatives of the anchor's own class were left out; the loss has them.",
            analysis.left_out
        ));
    }
    let anchors = &analysis.anchors;
    if anchors.points * 2 > anchors.negatives {
        text.caution(format!(
            "An anchor's tail is {} of its {} negatives, which is no tail: rho, beta and delta-AIC describe the bulk; take more candidates.",
            anchors.points, anchors.negatives
        ));
    }
    let own = quantile(anchors.xis(), 0.5);
    if (own - analysis.peaks.fit.gpd.xi).abs() > STABLE {
        text.caution(format!(
            "The anchors' own tails have xi = {own:.3} in the median, and all peaks together {:.3}: over one threshold, peaks are of the anchors that are near to others, and mix tails of different reach.",
            analysis.peaks.fit.gpd.xi
        ));
    }
    let with = anchors.xis().len();
    if with < anchors.tails.len() {
        text.caution(format!(
            "{} of {} anchors have no xi of their own: too few points in their tail, or equal ones.",
            anchors.tails.len() - with,
            anchors.tails.len()
        ));
    }
    let at_boundary = anchors.tails.iter().filter(|t| t.at_boundary).count();
    if at_boundary * 20 > anchors.tails.len() {
        text.caution(format!(
            "{at_boundary} of {} anchors have their own fit at the boundary xi = -1.",
            anchors.tails.len()
        ));
    }
}

fn comparable(text: &mut Text, analysis: &Analysis) {
    text.caution(format!(
        "rho, beta and lambda depend on the number of negatives ({} here): the nearest of more is nearer. Compare them, and WEINCE losses, at equal k only; encoders, by figures that know no lambda, such as retrieval.",
        analysis.anchors.negatives
    ));
    if analysis.intervals.is_ok() {
        text.caution("The likelihood ratio against xi = 0 takes peaks as independent; those of one anchor are not. Trust the interval over anchors where they differ.".into());
    }
}
