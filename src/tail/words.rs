//! What a diagnosis found, in sentences: findings first, then what a reader has to know about them.

use super::winners::{Link, Winner};
use super::{Analysis, anchors, quantile};
use crate::config::loss::{BetaConfig, Evidence, Pivot};
use crate::evt::gpd::FEW_EXCEEDANCES;
use crate::evt::link::{Blend, EndTest, NoBlend};
use crate::evt::pot::HILL_POINTS;
use crate::evt::{GpdFit, Peaks, SHORTFALL_FLOOR, counted};
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

/// Up to this `xi` the fitted endpoint hugs the largest peak.
pub(super) const HUGS: f64 = -0.5;

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

/// Of a share of anchors from which on a criticality of 0.5 or more is no exception.
const SOME: f64 = 0.05;

/// What an interval is by.
pub(super) const OVER_ANCHORS: &str = "over anchors";
const BY_OWN_ERROR: &str = "by the fit's own error, which takes peaks as independent";

/// A number with some significant digits, of any scale.
fn significant(value: f64, digits: i32) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_string()
    } else if (1e-4..1e5).contains(&size) {
        let decimals = (digits - 1 - size.log10().floor() as i32).max(0) as usize;
        format!("{value:.decimals$}")
    } else {
        let decimals = (digits - 1).max(0) as usize;
        format!("{value:.decimals$e}")
    }
}

/// A number with four significant digits, for sentences.
pub(super) fn number(value: f64) -> String {
    significant(value, 4)
}

/// The same with five, for tables.
pub(super) fn digits(value: f64) -> String {
    significant(value, 5)
}

/// A similarity; very near to 1 as what it is away from it.
pub(super) fn similarity(value: f64) -> String {
    let away = 1.0 - value;
    match away.abs() {
        0.0 => "1".to_string(),
        size if size < 1e-4 => format!("1 {} {size:.1e}", if away > 0.0 { '-' } else { '+' }),
        _ => digits(value),
    }
}

/// Both ends of an interval, each as `text` has it; without end where it has none.
pub(super) fn range([low, high]: [f64; 2], text: fn(f64) -> String) -> String {
    match high.is_finite() {
        true => format!("{} to {}", text(low), text(high)),
        false => format!("{} to no end", text(low)),
    }
}

/// What the interval of an analysis' `xi` is by.
fn interval_by(analysis: &Analysis) -> &'static str {
    if analysis.intervals.is_ok() { OVER_ANCHORS } else { BY_OWN_ERROR }
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
    shape(&mut text, fit, fit.xi_95(), BY_OWN_ERROR);
    if let Some(end) = fit.gpd.endpoint() {
        let error = fit.errors.ok().and_then(|e| e.endpoint);
        let error = error.map_or(String::new(), |e| format!(" (standard error {})", number(e)));
        let hugs = match fit.gpd.xi {
            _ if fit.at_boundary => ", at the largest exceedance, as it always does at the boundary",
            xi if xi <= HUGS => ", which is that of the largest exceedance nearly",
            _ => "",
        };
        text.find(format!("The fitted law ends at {}{error} above the threshold{hugs}.", number(end)));
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
    shape(&mut text, &peaks.fit, analysis.xi_interval(), interval_by(analysis));
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
    // At the boundary there is none that says anything.
    let interval = |x: &Analysis| x.xi_interval().filter(|_| !x.peaks.fit.at_boundary);
    let xi = |x: &Analysis| {
        let within = match interval(x) {
            Some(i) => format!(" (95 % {}: {})", interval_by(x), range(i, number)),
            None if x.peaks.fit.at_boundary => " (the boundary)".to_string(),
            None => String::new(),
        };
        format!("{}{within}", number(x.peaks.fit.gpd.xi))
    };
    let verdict = match (interval(a), interval(b)) {
        (Some(i), Some(j)) if i[1] < j[0] => ": it rose, and the tail ends less abruptly",
        (Some(i), Some(j)) if j[1] < i[0] => ": it fell, and the tail ends more abruptly",
        (Some(_), Some(_)) => ", and the intervals overlap",
        _ => "",
    };
    text.find(format!("From step {before} to step {after}, xi goes from {} to {}{verdict}.", xi(a), xi(b)));
    if !a.peaks.fit.at_boundary && !b.peaks.fit.at_boundary {
        let end = |x: &Analysis| x.peaks.endpoint().map_or("none".to_string(), similarity);
        text.find(format!("The fitted endpoint goes from {} to {}.", end(a), end(b)));
    }
    text.find(format!("The tail index goes from {} to {}.", number(a.tail_index()), number(b.tail_index())));
    let with = |x: &Analysis| x.peaks.anchors_with_peaks;
    if 2 * with(b) <= with(a) {
        text.find(format!(
            "{} of {} anchors have peaks before, and {} of {} after: the peaks have drawn together to a part of the anchors.",
            with(a),
            a.peaks.anchors,
            with(b),
            b.peaks.anchors
        ));
    }
    let mean = |x: &Analysis| x.anchors.column(|t| t.lambda).iter().sum::<f64>() / x.anchors.tails.len() as f64;
    let near = |x: &Analysis| quantile(x.anchors.column(|t| t.rho), 0.5);
    text.find(format!(
        "The median distance of the hardest negative goes from {} to {}, and lambda, in the mean over anchors, from {} to {}.",
        number(near(a)),
        number(near(b)),
        number(mean(a)),
        number(mean(b))
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
    let xi = number(fit.gpd.xi);
    let comma = if by == OVER_ANCHORS { "" } else { "," };
    let within = interval.map_or(String::new(), |i| format!(" (95 %{comma} {by}: {})", range(i, number)));
    let test =
        format!("likelihood ratio {:.1}, {}", fit.exponential_test.statistic, probability(fit.exponential_test.p));
    text.find(match Shape::of(fit, interval) {
        Shape::Boundary => format!(
            "xi is at the boundary -1 ({test} against xi = 0): the tail ends as abruptly as a uniform law's or more; the fit says no more than that."
        ),
        Shape::Negative if interval.is_some() && fit.n >= FEW_EXCEEDANCES => format!(
            "xi = {xi}{within} is clearly negative: the tail has an endpoint (Weibull domain), and the exponential tail of the Gumbel domain fits worse ({test})."
        ),
        Shape::Negative => {
            let lacks = if interval.is_none() { "without an interval" } else { "with so few peaks" };
            format!(
                "xi = {xi}{within} seems negative, {lacks}: the tail would have an endpoint (Weibull domain), and the exponential tail of the Gumbel domain fits worse ({test})."
            )
        }
        Shape::NearZero if fit.exponential_test.p < 0.05 => format!(
            "xi = {xi}{within} cannot be told from 0, as the interval {by} is too wide to tell an exponential tail from one with an endpoint or a power law; the likelihood ratio, which takes peaks as independent, is against xi = 0 ({test})."
        ),
        Shape::NearZero => format!(
            "xi = {xi}{within} cannot be told from 0 ({test}): an exponential tail, which softmax assumes, fits as well as one with an endpoint."
        ),
        Shape::Positive => format!(
            "xi = {xi}{within} is positive: within the reach of this threshold the tail is a power law and shows no endpoint ({test}); a bounded similarity ends all the same, so that the law does not hold up to the end. Duplicates or clusters near the anchors do this."
        ),
    });
    if Shape::of(fit, interval) == Shape::Negative && fit.gpd.xi > -SMALL {
        text.caution(format!(
            "xi = {xi} is small: as far as there are peaks, the tail is nearly exponential, and its endpoint is far from all of them."
        ));
    }
    if fit.at_boundary {
        text.caution(
            "At the boundary no law with xi >= -1 need fit the peaks: look at the plot of quantiles before any number of the fit is used.".into(),
        );
        if let Some(inside) = fit.inside {
            text.caution(format!("The likelihood has another, lower maximum at xi = {}.", number(inside.xi)));
        }
    }
}

fn endpoint(text: &mut Text, analysis: &Analysis) {
    let peaks = &analysis.peaks;
    let known = peaks.hill.map(|h| {
        format!(
            " If similarities end at 1, the peaks' tail index is {}, and xi would be {}.",
            number(h.index),
            number(-1.0 / h.index)
        )
    });
    let known = known.unwrap_or_default();
    let Some(end) = peaks.endpoint() else {
        text.find(format!("The fitted law has no endpoint.{known}"));
        return;
    };
    let end = similarity(end);
    if peaks.fit.at_boundary {
        text.find(format!(
            "The fitted law ends at the largest peak, {end}, as it always does at the boundary: it tells nothing of where similarities end.{known}"
        ));
        return;
    }
    if peaks.fit.gpd.xi <= HUGS {
        text.find(format!(
            "The fitted endpoint is {end}, that of the largest peak nearly, as it always is up to xi = {HUGS}: an interval by resampling cannot reach beyond what was seen, so that it tells nothing of whether the endpoint is 1, and there is none.{known}"
        ));
        return;
    }
    let interval = analysis.endpoint_interval();
    let within = interval.map_or(String::new(), |i| format!(" (95 % over anchors: {})", range(i, similarity)));
    text.find(match interval {
        Some([_, high]) if high < 1.0 => format!(
            "The fitted endpoint is {end}{within}, below 1: this is no evidence for WEINCE's endpoint 1, as xi < 0 alone is none, and none against it either where the law holds only approximately. Uniform directions in 32 dimensions give 0.84, although they end at 1.{known}"
        ),
        Some([low, _]) if low <= 1.0 => format!("The fitted endpoint is {end}{within}: an endpoint at 1 agrees with the peaks.{known}"),
        Some(_) => format!(
            "The fitted endpoint is {end}{within}, beyond any cosine: the law holds only approximately at this threshold.{known}"
        ),
        None => format!(
            "The fitted endpoint is {end}, without an interval; that xi is negative would be no evidence that it is 1.{known}"
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
    if analysis.peaks.fit.at_boundary {
        return;
    }
    let fits = analysis.grid.iter().filter(|(q, _)| *q >= STABLE_FROM);
    let fits: Vec<(f64, f64)> = fits.filter_map(|(q, p)| Some((*q, p.as_ref().ok()?.fit.gpd.xi))).collect();
    let (Some(first), Some(last)) = (fits.first(), fits.last()) else { return };
    if first.0 == last.0 {
        return;
    }
    let low = fits.iter().map(|f| f.1).fold(f64::INFINITY, f64::min);
    let high = fits.iter().map(|f| f.1).fold(f64::NEG_INFINITY, f64::max);
    let over =
        format!("from the quantile {} to {} it lies between {} and {}", first.0, last.0, number(low), number(high));
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
            "Probability-weighted moments give xi = {} and maximum likelihood {}: a generalised Pareto law does not describe the peaks well.",
            number(pwm.gpd.xi),
            number(fit.gpd.xi)
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
        "The tail index h is {} (median over anchors, of the {points} nearest negatives each, for an endpoint at 1): near an anchor the embeddings fill about 2 h = {} dimensions. It is too low where h is large (uniform spheres, 64 of 5000: h = 3.5 gives 3.2, 7.5 gives 6.1, 15.5 gives 10.4), and depends on the number of negatives.",
        number(h),
        number(2.0 * h)
    ));
}

fn gate(text: &mut Text, analysis: &Analysis) {
    let anchors = &analysis.anchors;
    let gate = &anchors.gate.gate;
    let tails = &anchors.tails;
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    text.find(format!(
        "lambda is {} in the mean over anchors (5 % and 95 % quantiles {} and {}), by {}, with {} and a tail of {}.",
        number(mean(anchors.column(|t| t.lambda))),
        number(quantile(anchors.column(|t| t.lambda), 0.05)),
        number(quantile(anchors.column(|t| t.lambda), 0.95)),
        analysis.gate_of,
        counted(anchors.negatives, "negative"),
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
    let start = format!(
        "Criticality lambda beta / h is 0.5 or more for {} and 1 or more for {} of the anchors (median {})",
        percent(half),
        percent(one),
        number(middle)
    );
    let whose = match analysis.gate_of.starts_with(anchors::NOT_OF_RUN) {
        true => " This is of WEINCE's gate on these embeddings, not of the run's loss.",
        false => "",
    };
    if one >= 0.5 {
        text.caution(format!(
            "{start}: with more and more negatives the loss has no limit; its value is set by the cap {SHORTFALL_FLOOR:e} and by k.{whose}"
        ));
    } else if half >= 0.5 {
        // The median may lie a rank away from what the shares say.
        let rate = 1.0 / middle.clamp(0.5, 1.0) - 1.0;
        text.caution(format!(
            "{start}: the weights of the negatives have an infinite variance, the bias of k negatives falls as k^-{rate:.2} only, and losses at different k are not comparable.{whose}"
        ));
    } else if half >= SOME {
        text.caution(format!(
            "{start}: for those the weights of the negatives have an infinite variance, from 1 on no mean either, and the loss, a mean over anchors, does not near a limit as 1/k; losses at different k are not comparable.{whose}"
        ));
    } else {
        text.find(format!(
            "{start}: the weights of the negatives have a finite variance for nearly all, and the loss nears its limit as 1/k.{whose}"
        ));
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
            let within = blend.lambda_95_wider();
            let interval = range(within, number);
            let verdict = match within {
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
                "{start}: lambda = {} (95 %, the wider of the intervals by the information and robust over anchors: {interval}); {verdict}. Softmax is tested with {} (boundary: {}), Weibit with {} (boundary: {}). By AIC: {}.{}",
                number(blend.lambda),
                probability(blend.softmax_test.two_sided.p),
                probability(blend.softmax_test.p_boundary),
                probability(blend.weibit_test.two_sided.p),
                probability(blend.weibit_test.p_boundary),
                link.by_aic(),
                disagreement(blend)
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
        text.caution("Choices of one anchor depend on each other: the interval knows that where it is the robust one; the tests and AIC take them as independent.".into());
    }
}

/// Ends of the blend that the interval excludes and the likelihood ratio does not, or the other way round.
fn disagreement(blend: &Blend) -> String {
    let [low, high] = blend.lambda_95_wider();
    let ends = [("softmax", 0.0, &blend.softmax_test), ("Weibit", 1.0, &blend.weibit_test)];
    let differ = |(_, end, test): &&(&str, f64, &EndTest)| (low <= *end && *end <= high) == (test.two_sided.p < 0.05);
    let names: Vec<&str> = ends.iter().filter(differ).map(|end| end.0).collect();
    match names.as_slice() {
        [] => String::new(),
        names => format!(
            " On {} the interval and the likelihood ratio disagree: more choices are needed to tell.",
            names.join(" and on ")
        ),
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
            "{}, of {} of the {}, are duplicates: similarities within {SHORTFALL_FLOOR:e} of 1. They pull xi up and beta down, and the link gives them no gradient; leave duplicates out of the data.",
            counted(d.pairs, "pair"),
            d.anchors,
            counted(analysis.peaks.anchors, "anchor")
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
            "Left out: {} of the anchor's own class, which the loss has.",
            counted(analysis.left_out, "negative")
        ));
    }
    let anchors = &analysis.anchors;
    if anchors.points * 2 > anchors.negatives {
        text.caution(format!(
            "An anchor's tail is {} of its {}, which is no tail: rho, beta and delta-AIC describe the bulk; take more candidates.",
            anchors.points,
            counted(anchors.negatives, "negative")
        ));
    }
    let own = quantile(anchors.xis(), 0.5);
    if (own - analysis.peaks.fit.gpd.xi).abs() > STABLE {
        text.caution(format!(
            "The anchors' own tails have xi = {} in the median, and all peaks together {}: over one threshold, peaks are of the anchors that are near to others, and mix tails of different reach.",
            number(own),
            number(analysis.peaks.fit.gpd.xi)
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
