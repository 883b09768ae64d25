//! What was measured on a search, in sentences: each figure with what it means and what to do about it, and what is most important first.
//!
//! Every verdict is a comparison of an interval with a threshold that is named here and in the sentence; where the interval has both
//! sides, the sentence says so.

use super::Analysis;
use super::Negatives;
use super::analysis::{Figure, Z_95};
use super::finite_k::{FEW_TUPLES, Gap, LEAST_K, MOST_IN_TUPLES, NEAR_ONE, SlopeFit, Training};
use crate::theory::weince::{Regime, regime};

/// A risk so near to its limit, in nats, counts as there: a tenth of a softmax probability.
pub(super) const NEAR_LIMIT: f64 = 0.1;
/// From this factor on, a temperature differs from the calibrated one.
const SAME_TEMPERATURE: f64 = 1.25;
/// Shares of the items in the variance of R_inf: from the first on they are most of it, up to the second hardly any.
const ITEMS_RULE: f64 = 0.5;
const ITEMS_ADD_LITTLE: f64 = 0.1;
/// From this share of anchors on of which one item has most of the softmax, the jackknife is not used, and R_inf is uncertain.
const MANY_DOMINATED: f64 = 0.01;
/// From this share of its ceiling on, the temperature is what limits the search.
const NEAR_CEILING: f64 = 0.8;
/// From this share of anchors with ties on, ties decide the ranks.
const MANY_TIES: f64 = 0.01;
/// From this share of anchors on whose criticality is beyond that of a finite variance, they are told.
const MANY_BEYOND: f64 = 0.05;
/// Estimates of R_inf that are no further apart, in nats, agree.
const AGREE: f64 = 0.05;
/// From this difference of recalls on, a second look at the nearest items pays.
const RERANK: f64 = 0.1;

/// A figure, and what it means.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fact {
    /// What is measured.
    pub name: String,
    /// The figure with its unit, and its interval where there is one.
    pub value: String,
    /// What it means, and what to do about it.
    pub text: String,
}

/// Figures of one kind.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Section {
    /// Its headline.
    pub heading: &'static str,
    /// What is to be known first: the most important finding, in a sentence or two.
    pub brief: Option<String>,
    /// Its figures.
    pub facts: Vec<Fact>,
    /// The pictures that belong to it.
    pub pictures: &'static [&'static str],
}

/// All sections, in the order of the page.
pub(super) fn sections(analysis: &Analysis) -> Vec<Section> {
    let mut all = vec![retrieval(analysis), cross_entropy(analysis), negatives(analysis), temperature(analysis)];
    all.push(generalisation(analysis));
    all.extend(weince(analysis));
    all.push(checks(analysis));
    all
}

/// Three significant digits, without an exponent where there need be none.
pub(super) fn significant(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return x.to_string();
    }
    let magnitude = x.abs().log10().floor();
    if !(-4.0..7.0).contains(&magnitude) { format!("{x:.1e}") } else { decimals(x, 2.0 - magnitude) }
}

/// The same without zeros at the end, as people write settings.
pub(super) fn plain(x: f64) -> String {
    let written = significant(x);
    if !written.contains('.') || written.contains('e') {
        return written;
    }
    written.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn decimals(x: f64, count: f64) -> String {
    let written = format!("{x:.*}", count.clamp(0.0, 6.0) as usize);
    // A minus before nothing but zeros.
    if written.bytes().all(|b| b"-0.".contains(&b)) { written.replace('-', "") } else { written }
}

/// The figure and both ends with as many decimals as the interval has two significant digits.
pub(super) fn both(Figure { value, interval: [low, high] }: Figure) -> [String; 2] {
    let width = high - low;
    let count = if width > 0.0 && width.is_finite() { 1.0 - width.log10().floor() } else { 3.0 };
    [decimals(value, count), format!("{} to {}", decimals(low, count), decimals(high, count))]
}

fn within(value: f64, se: f64) -> Figure {
    Figure { value, interval: [value - Z_95 * se, value + Z_95 * se] }
}

fn with_unit(figure: Figure, unit: &str) -> String {
    let [value, interval] = both(figure);
    format!("{value}{unit} (95 %: {interval})")
}

pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 0.0 && percent < 0.1 {
        format!("{} %", plain(percent))
    } else {
        format!("{} %", decimals(percent, 1.0))
    }
}

fn fact(name: impl Into<String>, value: impl Into<String>, text: impl Into<String>) -> Fact {
    Fact { name: name.into(), value: value.into(), text: text.into() }
}

fn retrieval(analysis: &Analysis) -> Section {
    let (retrieval, m) = (&analysis.retrieval, analysis.checks.items);
    let mut recall: Vec<_> = retrieval.recall.iter().collect();
    recall.sort_by_key(|r| r.rank);
    recall.dedup_by_key(|r| r.rank);
    let chance = |rank: usize| (rank as f64 / (m + 1) as f64).min(1.0);
    let brief = recall.first().map(|first| {
        let place = if first.rank == 1 { "first".to_string() } else { format!("among the first {}", first.rank) };
        let next = recall.iter().find(|r| r.rank > first.rank && r.rank >= 10);
        let next = next.map_or(String::new(), |r| format!(", and among the first {} for {}", r.rank, percent(r.figure.value)));
        let found = percent(first.figure.value);
        let ends = first.figure.interval.map(percent).join(" to ");
        let [low, high] = first.figure.interval;
        let guess = percent(chance(first.rank));
        let verdict = if high <= chance(first.rank) {
            format!(" That is no better than guessing ({guess}): are anchors and positives in the same order, and of the same encoder?")
        } else if low <= chance(first.rank) {
            format!(" The interval has guessing in it ({guess}): so few anchors cannot tell this encoder from none.")
        } else {
            String::new()
        };
        format!("Of {m} items the right one comes {place} for {found} of the anchors (95 %: {ends}){next}.{verdict}")
    });
    let mut facts: Vec<Fact> = Vec::new();
    for r in &recall {
        let floor = match r.floor {
            floor if floor > 0.0 => format!("the loss alone guarantees {}", percent(floor)),
            _ => "the loss alone guarantees nothing here".to_string(),
        };
        facts.push(fact(
            format!("Recall at {}", r.rank),
            format!("{} (95 %: {})", percent(r.figure.value), r.figure.interval.map(percent).join(" to ")),
            format!(
                "The share of anchors whose {}; guessing would find {}, and {floor}.",
                match r.rank {
                    1 => "nearest item is the right one".to_string(),
                    rank => format!("right item is among the {rank} nearest"),
                },
                percent(chance(r.rank))
            ),
        ));
    }
    if let (Some(first), Some(last)) = (recall.first(), recall.iter().rfind(|r| r.rank <= 100)) {
        let gain = last.figure.value - first.figure.value;
        if last.rank > first.rank {
            let text = if gain >= RERANK {
                "That is what a slower, better model that orders these items again could win at most: worth a try from 10 points on."
            } else {
                "Ordering these items again by a better model can win no more than that: below 10 points, better embeddings are the way."
            };
            let name = format!("Recall at {} less recall at {}", last.rank, first.rank);
            facts.push(fact(name, format!("{} points", decimals(100.0 * gain, 1.0)), text));
        }
    }
    facts.push(fact(
        "Mean reciprocal rank",
        with_unit(retrieval.mrr, ""),
        format!(
            "1 if the right item always comes first, 1/2 if always second; it is never below {}, which the loss guarantees.",
            significant(analysis.cross_entropy.mrr_floor)
        ),
    ));
    let median = retrieval.median_rank;
    facts.push(fact(
        "Median rank",
        format!("{} (95 %: {} to {})", median.value, median.interval[0], median.interval[1]),
        "Half of the anchors find their right item at this rank or before; a list shown to people should not be shorter.",
    ));
    if let Some((now, tenth)) = retrieval
        .by_size
        .last()
        .and_then(|now| Some((now, retrieval.by_size.iter().rfind(|s| s.items * 10 <= now.items)?)))
    {
        let lost = 100.0 * (tenth.recall_at_1 - now.recall_at_1);
        let text = if lost >= 1.0 {
            "The price of a corpus so much larger: expect a still larger one to cost more, and measure on one as large as yours."
        } else {
            "Less than a point: at these sizes the corpus hardly matters. Nothing is known about much larger ones."
        };
        facts.push(fact(
            format!("Recall at 1 lost from {} to {} items", tenth.items, now.items),
            format!("{} points", decimals(lost, 1.0)),
            text,
        ));
    }
    Section { heading: "Retrieval", brief, facts, pictures: &["recall_vs_m"] }
}

fn cross_entropy(analysis: &Analysis) -> Section {
    let (found, m) = (&analysis.cross_entropy, analysis.checks.items);
    let [low, high] = found.r_inf.interval;
    let times = Figure { value: (-found.r_inf.value).exp(), interval: [(-high).exp(), (-low).exp()] };
    let tau = plain(analysis.tau);
    let nats = with_unit(found.r_inf, " nats");
    let brief = if high < 0.0 {
        format!(
            "At temperature {tau} the softmax gives the right item {} the weight of an average one: R_inf is {nats}, lower is better.",
            with_unit(times, " times")
        )
    } else if low <= 0.0 {
        format!(
            "At temperature {tau} it cannot be told whether the softmax gives the right item more weight than an average one: R_inf = \
             {nats}, and 0 is what an encoder gets that treats all items alike."
        )
    } else {
        format!(
            "At temperature {tau} the softmax is worse than treating all items alike, because R_inf is above 0: {nats}. It is sure of \
             wrong items; a higher temperature or better training is needed."
        )
    };
    let unsure = found.dominated > MANY_DOMINATED;
    let brief = if unsure {
        format!(
            "{brief} That is uncertain: for {} of the anchors one item has most of the softmax.",
            percent(found.dominated)
        )
    } else {
        brief
    };
    let mut facts = vec![fact(
        "R_inf, the search cross-entropy",
        nats,
        format!(
            "What InfoNCE's loss tends to with many negatives, by the {}: 0 is an encoder that treats all items alike, and at this \
             temperature none gets below {}. Compare encoders by it at one temperature and on one corpus.",
            found.method,
            plain(-2.0 / analysis.tau)
        ),
    )];
    let share = found.hubness_share;
    let wider = if found.se_anchors_only > 0.0 { found.se / found.se_anchors_only } else { 1.0 };
    let uncertainty = if analysis.checks.negatives != Negatives::Corpus {
        "Anchors and items are the same here, so their shares of the uncertainty cannot be told apart; more pairs narrow the interval."
            .to_string()
    } else if share >= ITEMS_RULE {
        format!(
            "{} of the squared error is the corpus': a few items (hubs) are near to many anchors, and an interval that takes the corpus \
             as fixed is {} times too narrow. More items narrow it, more anchors hardly do.",
            percent(share),
            significant(wider)
        )
    } else if share <= ITEMS_ADD_LITTLE {
        format!(
            "Only {} of the squared error is the corpus': more anchors narrow the interval, more items hardly do.",
            percent(share)
        )
    } else {
        format!(
            "{} of the squared error is the corpus': more anchors and more items both narrow the interval.",
            percent(share)
        )
    };
    facts.push(fact("Standard error of R_inf", format!("{} nats", significant(found.se)), uncertainty));
    facts.push(fact(
        "Anchors with one item above half of the softmax",
        percent(found.dominated),
        if unsure {
            "More than 1 %: R_inf is by the delta method and rather too low, and its interval too narrow. Measure at a higher temperature \
             or with many more items before you rely on it."
        } else {
            "At most 1 %: the jackknife can be trusted."
        },
    ));
    facts.push(fact(
        "Softmax loss among all items",
        format!("{} nats", significant(found.loss)),
        format!(
            "-log of the right item's probability among {m} items, log {m} = {} for guessing; the mean reciprocal rank cannot be below \
             e^-loss = {}.",
            significant(((m + 1) as f64).ln()),
            significant(found.mrr_floor)
        ),
    ));
    facts.push(fact(
        "Mean probability of the right item",
        percent(found.probability),
        "What the softmax itself thinks of the right item; recall at 1 far above it is a softmax less sure than it could be.",
    ));
    facts.push(fact(
        "Items that share an anchor's softmax",
        significant(found.median_n2),
        if found.median_n2 < 2.0 {
            "For half of the anchors less than two: one item has nearly everything, and averages over items are noisy."
        } else {
            "Median of 1/Σp²: the softmax of half of the anchors is spread over more items than that, of the other half over fewer."
        },
    ));
    if let Some(labelled) = &found.labelled {
        let without = match labelled.without {
            0 => String::new(),
            count => format!(" {count} anchors have no item of their class, and count as if all were."),
        };
        facts.push(fact(
            "ECE, cross-entropy with all items of the class",
            format!("{} nats", significant(labelled.ece)),
            format!(
                "As R_inf, with every item of the anchor's class ({} classes) as right: near R_inf, the given positives stand well for \
                 their class; far above it, they are easier than the class is.{without}",
                labelled.classes
            ),
        ));
        facts.push(fact(
            "KL from the class to the softmax",
            format!("{} nats", significant(labelled.kl)),
            "0 if the softmax were spread evenly over exactly the anchor's class; what is above is lost to other classes or to few items of the own.",
        ));
    }
    Section { heading: "Cross-entropy of the search", brief: Some(brief), facts, pictures: &[] }
}

/// Whether the number of negatives in training is large enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Enough {
    /// It is not known.
    NotGiven,
    /// The limit is uncertain, because single items have most of the softmax.
    LimitUnsure,
    /// The sample has fewer items.
    TooFewItems,
    /// All of the bias' interval is near 0, but its parts are not: most of the larger one is lost against the other.
    Cancels {
        /// P_k, which raises the risk.
        positive: f64,
        /// R_inf - R~_k, which lowers it.
        missing: f64,
    },
    /// All of the bias' interval is near 0.
    Yes(Figure),
    /// None of it is.
    No(Figure),
    /// Some of it is.
    Undecided(Figure),
}

pub(super) fn enough(analysis: &Analysis) -> Enough {
    let finite = &analysis.finite_k;
    let Some(training) = &finite.training else { return Enough::NotGiven };
    if analysis.cross_entropy.dominated > MANY_DOMINATED {
        return Enough::LimitUnsure;
    }
    let (Some(bias), Some(se)) = (training.bias, training.bias_se) else { return Enough::TooFewItems };
    let bias = within(bias, se);
    let [low, high] = bias.interval;
    if low > NEAR_LIMIT || high < -NEAR_LIMIT {
        return Enough::No(bias);
    }
    if low < -NEAR_LIMIT || high > NEAR_LIMIT {
        return Enough::Undecided(bias);
    }
    match finite.points.iter().find(|p| p.k == training.k) {
        Some(p) if p.positive.max(finite.r_inf - p.dcl) > NEAR_LIMIT.max(2.0 * bias.value.abs()) => {
            Enough::Cancels { positive: p.positive, missing: finite.r_inf - p.dcl }
        }
        _ => Enough::Yes(bias),
    }
}

/// The recommendation that is nearest to the threshold, and not above it.
fn recommended(analysis: &Analysis) -> Option<(f64, u64)> {
    let met = analysis.finite_k.recommended.iter().filter(|r| r.eps <= NEAR_LIMIT);
    let best = met.max_by(|a, b| a.eps.total_cmp(&b.eps))?;
    Some((best.eps, best.k?))
}

/// Rounded up to two significant digits, so that what is within the number is within what is written.
fn at_most(x: f64) -> String {
    if x <= 1e-6 {
        return "0.000001".into();
    }
    let unit = 10f64.powf(x.log10().floor() - 1.0);
    let up = (x / unit - 1e-9).ceil() * unit;
    let count = 1.0 - up.log10().floor();
    let written = decimals(up, count);
    if written.contains('.') { written.trim_end_matches('0').trim_end_matches('.').to_string() } else { written }
}

fn k_brief(analysis: &Analysis) -> String {
    let best = recommended(analysis).map(|(eps, k)| format!("k = {k} is enough for {} nats", plain(eps)));
    let then = best.as_ref().map_or(String::new(), |best| format!("; {best}"));
    let k = analysis.finite_k.training.map_or(0, |t| t.k);
    match enough(analysis) {
        Enough::NotGiven => match best {
            Some(best) => format!(
                "{best}: with as many negatives in training or more, a larger batch will not help this encoder."
            ),
            None => "No number of negatives can be recommended from these embeddings.".into(),
        },
        Enough::LimitUnsure => format!(
            "Whether k={k} negatives are enough is not known: for {} of the anchors one item has most of the softmax, and the limit is \
             uncertain. Measure at a higher temperature or with more items.",
            percent(analysis.cross_entropy.dominated)
        ),
        Enough::TooFewItems => format!(
            "Whether k={k} negatives are enough cannot be measured on {} items: give a larger corpus{then}.",
            analysis.finite_k.sample[1]
        ),
        Enough::Cancels { positive, missing } => format!(
            "At k={k} the loss is near its limit only because two errors cancel: the positive in the denominator adds {} nats, and too \
             few negatives take {} away. More negatives may still change what is learnt{then}.",
            significant(positive),
            significant(missing)
        ),
        Enough::Yes(bias) => format!(
            "k={k} is within {} nats of its limit; a larger batch will not help this encoder.",
            at_most(bias.interval[0].abs().max(bias.interval[1].abs()))
        ),
        Enough::No(bias) => format!(
            "k={k} is {} from its limit, more than {NEAR_LIMIT}: more negatives will still change what is learnt{then}.",
            with_unit(bias, " nats")
        ),
        Enough::Undecided(bias) => format!(
            "Whether k={k} negatives are enough cannot be decided: the loss is {} from its limit, and {NEAR_LIMIT} nats is in the \
             interval. More anchors would tell{then}.",
            with_unit(bias, " nats")
        ),
    }
}

fn negatives(analysis: &Analysis) -> Section {
    let finite = &analysis.finite_k;
    let mut facts = Vec::new();
    if let Some(training) = &finite.training {
        let bias = match (training.bias, training.bias_se) {
            (Some(bias), Some(se)) => with_unit(within(bias, se), " nats"),
            _ => "not measured".into(),
        };
        facts.push(fact(
            format!("R_k - R_inf at k = {}", training.k),
            bias,
            format!(
                "How far the loss with as many negatives is from its limit; up to {NEAR_LIMIT} nats, a tenth of a probability, more \
                 negatives are not worth their memory. It is about this encoder's loss: that a larger batch also has steps with less \
                 noise is not measured."
            ),
        ));
        facts.push(in_regime(training, finite.k_asymptotic));
    } else if let Some(k) = finite.k_asymptotic {
        facts.push(fact(
            "The 1/k regime begins",
            format!("at k = {}", whole(k)),
            "From there on twice the negatives halve what the loss lacks; below, do not extrapolate by 1/k.",
        ));
    }
    let ks: Vec<String> = finite
        .recommended
        .iter()
        .map(|r| format!("{} for {} nats", r.k.map_or("more than 2^62".into(), |k| format!("k = {k}")), plain(r.eps)))
        .collect();
    if !ks.is_empty() {
        facts.push(fact(
            "Recommended negatives",
            ks.join(", "),
            "So many bring the loss as near to its limit. Cautious, because two errors of opposite sign are bounded one by one, but no \
             guarantee: the weights in it are estimates. Fewer can do where the measured loss is already near its limit.",
        ));
    }
    let (positive, missing) = (finite.c1 - finite.c1_dcl, -finite.c1_dcl);
    facts.push(fact(
        "c1, the error's leading term",
        format!("{} nats / k", significant(finite.c1)),
        format!(
            "With many negatives the loss is off by c1/k: {} from the positive in the denominator, less {} from too few negatives.{}",
            significant(positive),
            significant(missing),
            if finite.c1.abs() < 0.2 * positive {
                " They nearly cancel here, so that R_k alone tells nothing about the rate: look at both parts."
            } else {
                ""
            }
        ),
    ));
    // As the fit chooses its numbers of negatives.
    let from = LEAST_K.max(finite.k_asymptotic.filter(|k| *k <= finite.sample[1] as f64 / 4.0).unwrap_or(0.0));
    facts.push(slope("Slope of R~_2k - R~_k", finite.slope_dcl.as_ref(), from, "what too few negatives take away"));
    facts.push(slope(
        "Slope of P_k - P_2k",
        finite.slope_positive.as_ref(),
        from,
        "what the positive in the denominator adds",
    ));
    let other = [finite.r_inf_richardson, finite.r_inf_curvature];
    let names = ["2 R~_2k - R~_k", "a fit of 1, 1/k and 1/k²"];
    let found: Vec<(f64, &str)> = other.iter().zip(names).filter_map(|(r, name)| Some(((*r)?, name))).collect();
    if !found.is_empty() {
        let apart = found.iter().map(|(r, _)| (r - finite.r_inf).abs()).fold(0.0, f64::max);
        let text = if apart <= AGREE {
            format!(
                "They agree with {} within {AGREE} nats: the limit does not depend on how it is estimated.",
                significant(finite.r_inf)
            )
        } else {
            format!(
                "They differ from {} by up to {} nats, more than {AGREE}: take the limit as no better known than that; more items help.",
                significant(finite.r_inf),
                significant(apart)
            )
        };
        let value =
            found.iter().map(|(r, name)| format!("{} by {name}", significant(*r))).collect::<Vec<_>>().join(", ");
        facts.push(fact("R_inf by other ways", value, text));
    }
    Section { heading: "Number of negatives", brief: Some(k_brief(analysis)), facts, pictures: &["k_curve", "k_steps"] }
}

fn whole(k: f64) -> String {
    if k < 1e15 { format!("{:.0}", k.ceil()) } else { format!("{k:.1e}") }
}

fn in_regime(training: &Training, from: Option<f64>) -> Fact {
    let Training { k, leading, in_regime, .. } = *training;
    let name = "The 1/k regime";
    let value = from.map_or("not known".into(), |from| format!("begins at k = {}", whole(from)));
    let text = match in_regime {
        Some(true) => format!(
            "k={k} is in the 1/k regime: twice as many negatives halve what is left, c1/k = {} nats.",
            significant(leading)
        ),
        Some(false) => format!(
            "k={k} is not in the 1/k regime, or not surely: twice as many negatives need not halve what is left, and c1/k = {} nats can \
             be off; go by the curve.",
            significant(leading)
        ),
        None => "All items weigh the same at this temperature, so there is nothing to fall.".into(),
    };
    fact(name, value, text)
}

fn slope(name: &str, fit: Option<&SlopeFit>, from: f64, of: &str) -> Fact {
    let Some(fit) = fit else {
        return fact(
            name,
            "not measured",
            format!(
                "Fewer than two doublings of k, from k = {} on, are there that stand out of the noise (five standard errors): a larger \
                 corpus, or more anchors, would tell how {of} falls.",
                whole(from)
            ),
        );
    };
    let figure = Figure { value: fit.slope, interval: fit.interval };
    let has_one = fit.interval[0] <= -1.0 && fit.interval[1] >= -1.0;
    let text = match (fit.is_one, fit.excludes_half) {
        (true, true) => format!("-1 as theory has it, within {NEAR_ONE}: {of} halves with every doubling of k."),
        (true, false) => format!(
            "Within {NEAR_ONE} of -1, but so uncertain that -1/2 is not ruled out: more anchors are needed to tell how {of} falls."
        ),
        (false, _) if has_one => {
            format!("Not within {NEAR_ONE} of -1, but -1 is in the interval: whether {of} falls as 1/k is not decided.")
        }
        (false, _) => format!(
            "Not -1: at the numbers of negatives that a corpus of this size allows, {of} does not fall as 1/k yet. That does not refute \
             the theory; a larger corpus shows more of the curve."
        ),
    };
    fact(name, with_unit(figure, ""), text)
}

/// What the softmax at the used temperature is, against the one that fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fit {
    /// None fits: positives are nearer than the nearest items.
    TooNear,
    /// None fits: positives are not nearer than others.
    NotNear,
    /// It is the fitting one itself, because none was given.
    Calibrated(f64),
    /// It is about the fitting one.
    Same(f64),
    /// It is lower.
    TooCold(f64),
    /// It is higher.
    TooWarm(f64),
}

pub(super) fn fit(analysis: &Analysis) -> Fit {
    let temperature = &analysis.temperature;
    let Some(calibrated) = temperature.calibrated else {
        let ends = temperature.points.first().zip(temperature.points.last());
        let falls = ends.is_some_and(|(cold, warm)| cold.r_inf.value < warm.r_inf.value);
        return if falls { Fit::TooNear } else { Fit::NotNear };
    };
    match analysis.tau / calibrated {
        _ if !analysis.tau_given => Fit::Calibrated(calibrated),
        ratio if ratio > SAME_TEMPERATURE => Fit::TooWarm(calibrated),
        ratio if ratio < 1.0 / SAME_TEMPERATURE => Fit::TooCold(calibrated),
        _ => Fit::Same(calibrated),
    }
}

fn temperature(analysis: &Analysis) -> Section {
    let temperature = &analysis.temperature;
    let tau = plain(analysis.tau);
    // Both of one sample; the fitting temperature has the least, but for noise.
    let cost = temperature.at_calibrated.map_or(0.0, |at| (analysis.finite_k.r_inf - at.r_inf.value).max(0.0));
    let cost = significant(cost);
    let brief = match fit(analysis) {
        Fit::Calibrated(at) => {
            format!("The temperature that fits these embeddings is {}; all is measured at it, because none was given.", plain(at))
        }
        Fit::Same(at) => format!("The temperature {tau} fits: {} would be best, which is within a factor of {SAME_TEMPERATURE}.", plain(at)),
        Fit::TooCold(at) => format!(
            "The temperature {tau} is too low for these embeddings, {} fits: the softmax is surer than it is right, which costs {cost} \
             nats. Divide similarities by {} where they are read as probabilities; ranks do not change.",
            plain(at),
            plain(at)
        ),
        Fit::TooWarm(at) => format!(
            "The temperature {tau} is higher than these embeddings need, {} fits: the softmax is less sure than it could be, which costs \
             {cost} nats. Divide similarities by {} where they are read as probabilities; ranks do not change.",
            plain(at),
            plain(at)
        ),
        Fit::TooNear => "No temperature from 0.005 to 10 fits: the positives are nearer than nearly all items at any of them. Take more or \
                         harder items, and look for duplicates of anchors among the positives."
            .into(),
        Fit::NotNear => "No temperature from 0.005 to 10 fits: on average the positives are not nearer than other items. Are anchors and \
                         positives in the same order, and of the same encoder?"
            .into(),
    };
    let mut facts = vec![fact(
        "Used temperature",
        tau.clone(),
        "All figures but the curve by temperature are at it. Compare encoders either all at one temperature, or each at its own calibrated one.",
    )];
    facts.push(match temperature.calibrated {
        Some(at) => fact(
            "Calibrated temperature",
            plain(at),
            "There the softmax expects exactly the similarity that positives have, and R_inf is least; no interval is measured for it. In \
             training another one can be better: this one describes the encoder that there is.",
        ),
        None => fact("Calibrated temperature", "none", "R_inf has no minimum from 0.005 to 10; see above."),
    });
    let nearest = |tau: f64| {
        let away = |p: &&super::temperature::Temperature| (p.tau / tau).ln().abs();
        let all = temperature.points.iter().chain(temperature.at_calibrated.as_ref());
        all.min_by(|a, b| away(a).total_cmp(&away(b))).copied()
    };
    if let Some(point) = nearest(analysis.tau) {
        let ceiling = point.ceiling.min(point.average_ceiling);
        let share = point.divergence / ceiling;
        let verdict = if share >= NEAR_CEILING {
            "from 80 % on the temperature is what limits the search: a lower one can tell more items apart"
        } else {
            "below 80 % the encoder limits the search, not the temperature"
        };
        facts.push(fact(
            format!("How selective the softmax is at {}", plain(point.tau)),
            format!("{} nats from the uniform law, {} of the ceiling", significant(point.divergence), percent(share)),
            format!(
                "An anchor's softmax is as selective as one spread evenly over {} of {} items. On average no encoder gets beyond {} nats \
                 at this temperature where anchors and items have one law: {verdict}.",
                significant(point.effective_items),
                temperature.sample[1],
                significant(ceiling)
            ),
        ));
    }
    Section { heading: "Temperature", brief: Some(brief), facts, pictures: &["tau_curve", "divergence"] }
}

fn gap_brief(gap: &Gap) -> String {
    let figure = within(gap.gap, gap.se);
    let [low, high] = figure.interval;
    let nats = with_unit(figure, " nats");
    if low > 0.0 {
        format!(
            "The loss is higher on held-out data than in training by {nats}: the encoder fits its training data better than the world; \
             more data, stronger augmentation or fewer steps are the remedies."
        )
    } else if high < 0.0 {
        format!(
            "The loss is lower on held-out data than in training by {nats}: held-out data are easier, so look whether both have the same \
             law, items and augmentation."
        )
    } else {
        format!(
            "No gap between held-out and training data can be told: it is {nats}, and 0 is in the interval; it is hardly more than {}.",
            at_most(high.max(0.0))
        )
    }
}

fn generalisation(analysis: &Analysis) -> Section {
    let found = &analysis.generalisation;
    let k = found.k;
    let mut facts = vec![fact(
        format!("R_k on held-out data, k = {k}"),
        with_unit(within(found.risk, found.risk_se), " nats"),
        format!(
            "At most {} with 95 % where there are many anchors and items; an encoder that treats all items alike has {}.",
            significant(found.asymptotic_bound),
            significant((1.0 / k as f64).ln_1p())
        ),
    )];
    match &found.gap {
        Some(gap) => facts.push(fact(
            format!("Held-out less training, k = {k}"),
            with_unit(within(gap.gap, gap.se), " nats"),
            format!(
                "Training has {}. The interval takes both as samples of their own: that one encoder has seen one of them is what is tested.",
                significant(gap.train)
            ),
        )),
        None => facts.push(fact(
            "Held-out less training",
            "not measured",
            "No embeddings of training pairs were given; with them the gap tells whether the encoder has learnt its data by heart.",
        )),
    }
    facts.push(match &found.certificate {
        Some(certificate) => {
            let alike = (1.0 / k as f64).ln_1p();
            let text = if certificate.bound < alike {
                format!(
                    "Holds with probability 0.95 for this encoder whatever it is, from {} tuples without a common item, and is below {} of \
                     an encoder that treats all items alike; R_inf is at most {}. It takes the encoder not to have seen these data.",
                    certificate.tuples,
                    significant(alike),
                    significant(certificate.r_inf_bound)
                )
            } else {
                format!(
                    "Says nothing: an encoder that treats all items alike has {}, which is less. {} tuples without a common item are too \
                     few; more anchors and items, or a smaller k, sharpen it.",
                    significant(alike),
                    certificate.tuples
                )
            };
            fact(format!("Certified R_k, k = {k}"), format!("at most {} nats", significant(certificate.bound)), text)
        }
        None => fact("Certified R_k", "none", no_certificate(analysis)),
    });
    Section { heading: "Generalisation", brief: found.gap.as_ref().map(gap_brief), facts, pictures: &[] }
}

fn no_certificate(analysis: &Analysis) -> String {
    let checks = &analysis.checks;
    let k = analysis.generalisation.k;
    let tuples = checks.anchors.min(checks.items.min(MOST_IN_TUPLES) / k);
    if checks.negatives != Negatives::Corpus {
        "A certificate needs tuples without a common item, and here the items are pairs' own: give a corpus of other items.".into()
    } else if tuples < FEW_TUPLES {
        format!(
            "A certificate needs at least {FEW_TUPLES} tuples of an anchor, its positive and k = {k} items of its own, and there are \
             {tuples}: give more anchors and items, or a smaller k."
        )
    } else {
        "A certificate needs tuples without a common item, and here the positives are items of the corpus.".into()
    }
}

fn weince(analysis: &Analysis) -> Option<Section> {
    let tail = analysis.weince.as_ref()?;
    let [low, median, high] = tail.criticality;
    let at = significant(median);
    let brief = match regime(median) {
        Regime::FiniteVariance => format!(
            "WEINCE's weights have a finite variance for the median anchor (criticality {at}, below 0.5): more negatives bring its loss \
             to a limit as 1/k, as with InfoNCE."
        ),
        Regime::InfiniteVariance => format!(
            "WEINCE's weights have no finite variance for the median anchor (criticality {at}, from 0.5 to 1): its loss nears its limit \
             only as k^-{}, and losses at different numbers of negatives must not be compared.",
            significant(1.0 / median - 1.0)
        ),
        Regime::NoLimit => format!(
            "WEINCE's loss has no limit for the median anchor (criticality {at}, 1 or more): its value is set by k and by the clamp of the \
             logit, so compare it with nothing; lower lambda or beta."
        ),
    };
    let beyond = tail.shares[1] + tail.shares[2];
    let brief = if median < 0.5 && beyond >= MANY_BEYOND {
        format!("{brief} Yet for {} of the anchors the criticality is 0.5 or more.", percent(beyond))
    } else {
        brief
    };
    let [fine, wide, none] = tail.shares.map(percent);
    let quartiles = |q: [f64; 3]| match q[0] < q[2] {
        true => format!("{} (quartiles {} and {})", plain(q[1]), plain(q[0]), plain(q[2])),
        false => plain(q[1]),
    };
    let mut facts = vec![
        fact(
            "Criticality, lambda beta / h",
            format!("{at} (quartiles {} and {})", significant(low), significant(high)),
            format!(
                "Below 0.5 for {fine} of the anchors (fine), from 0.5 to 1 for {wide} (infinite variance), from 1 on for {none} (no limit): \
                 the more anchors are beyond 0.5, the less a loss at one number of negatives says about another."
            ),
        ),
        fact(
            "Tail index h",
            quartiles(tail.index),
            "How fast items thin out towards the anchor, by Hill's estimate from the nearest; lower is a heavier tail of the weights. It is the encoder's, not a setting.",
        ),
        fact("lambda", quartiles(tail.lambda), "The share of the Weibull link: lower it to lower the criticality."),
        fact("beta", quartiles(tail.beta), "The exponent of the Weibull link: lower it to lower the criticality."),
        fact(
            "Items that share an anchor's softmax under WEINCE's logit",
            quartiles(tail.n2),
            if tail.n2[1] < 2.0 {
                "Less than two for half of the anchors: one negative owns the softmax, and most of a batch gives no gradient.".to_string()
            } else {
                format!(
                    "It is {} without the Weibull link: the fewer there are with it, the fewer negatives give the gradient.",
                    plain(analysis.cross_entropy.median_n2)
                )
            },
        ),
        fact(
            "R_inf under WEINCE's logit",
            with_unit(tail.r_inf, " nats"),
            "By the plug-in on the sample's items, with an interval over anchors alone. Not to be compared with an InfoNCE encoder: for that \
             take R_inf at the calibrated temperature, the mean reciprocal rank, recall and ECE.",
        ),
    ];
    if tail.without_index > 0 {
        facts.push(fact(
            "Anchors without a tail index",
            tail.without_index.to_string(),
            "Their nearest items are all equally near: look for duplicates.",
        ));
    }
    Some(Section { heading: "WEINCE's logit", brief: Some(brief), facts, pictures: &[] })
}

fn checks(analysis: &Analysis) -> Section {
    let checks = &analysis.checks;
    let ties = analysis.retrieval.anchors_with_ties;
    let tied = ties as f64 / checks.anchors as f64;
    let same = checks.positive_is_anchor as f64 / checks.anchors as f64;
    let mut brief = Vec::new();
    if tied >= MANY_TIES {
        brief.push(format!(
            "{} of the anchors have items exactly as near as their positive, each of which counts against them: {}.",
            percent(tied),
            if tied >= 0.5 && checks.negatives == Negatives::Corpus {
                "most likely the positives are in the corpus themselves, and then all ranks are at least one too high; say which rows they are"
            } else {
                "remove duplicates"
            }
        ));
    }
    if same >= MANY_TIES {
        brief.push(format!(
            "{} of the positives are the anchor itself or as good as that, which makes the search easier than it is.",
            percent(same)
        ));
    }
    let law = match checks.negatives {
        Negatives::Corpus => "items of a corpus: how it was chosen decides what all figures are about",
        Negatives::Positives => {
            "the positives of other anchors: in training with one batch the negatives have this law too"
        }
        Negatives::Anchors => "the other anchors: all figures are about a search among anchors",
    };
    let facts = vec![
        fact(
            "Anchors, items, dimensions",
            format!("{}, {}, {}", checks.anchors, checks.items, checks.dimensions),
            format!(
                "Curves by k and by temperature are measured on a sample of {} anchors and {} items.",
                analysis.finite_k.sample[0], analysis.finite_k.sample[1]
            ),
        ),
        fact("Negatives", format!("{:?}", checks.negatives).to_lowercase(), format!("They are {law}.")),
        fact(
            "Normalisation",
            "log k",
            "R_k is the sum's logarithm less log k; libraries that report the loss itself have log k more, and those that take the positive as one of k + 1 have log(1 + 1/k) less.",
        ),
        fact(
            "Rows that are not of norm 1",
            checks.not_unit.to_string(),
            if checks.not_unit == 0 {
                "None is off by more than 0.001."
            } else {
                "Cosines are taken of all, so that figures are right for a cosine search; a search by plain products would rank otherwise."
            },
        ),
        fact(
            "Anchors with items exactly as near as the positive",
            ties.to_string(),
            match ties {
                0 => "No ties: ranks do not depend on how they are counted.",
                _ if tied >= MANY_TIES => "1 % of the anchors or more: ties change the ranks; see above.",
                _ => "Less than 1 % of the anchors: ties hardly change the ranks.",
            },
        ),
        fact(
            "Positives that are their anchor",
            checks.positive_is_anchor.to_string(),
            match checks.positive_is_anchor {
                0 => "None has a cosine of 1 with its anchor.",
                _ => {
                    "Their cosine is 1 within a millionth: duplicates make every figure better than it is; remove them."
                }
            },
        ),
    ];
    let brief = (!brief.is_empty()).then(|| brief.join(" "));
    Section { heading: "Checks", brief, facts, pictures: &[] }
}

/// The most important figures, with their intervals: a name, and two cells each.
pub(super) fn rows(analysis: &Analysis) -> Vec<(String, Vec<String>)> {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut alone = |name: &str, value: String| rows.push((name.to_string(), vec![value, String::new()]));
    alone("anchors", analysis.checks.anchors.to_string());
    alone("items", analysis.checks.items.to_string());
    alone("temperature", format!("{}{}", plain(analysis.tau), if analysis.tau_given { "" } else { " (calibrated)" }));
    if analysis.tau_given {
        alone("calibrated temperature", analysis.temperature.calibrated.map_or("none".into(), plain));
    }
    for r in &analysis.retrieval.recall {
        let cells = [r.figure.value, r.figure.interval[0], r.figure.interval[1]].map(|v| decimals(100.0 * v, 1.0));
        let [value, low, high] = cells;
        rows.push((format!("recall@{} (%)", r.rank), vec![value, format!("{low} to {high}")]));
    }
    let mut figure = |name: String, figure: Figure| rows.push((name, both(figure).to_vec()));
    figure("MRR".into(), analysis.retrieval.mrr);
    figure("median rank".into(), analysis.retrieval.median_rank);
    figure("R_inf (nats)".into(), analysis.cross_entropy.r_inf);
    let found = &analysis.generalisation;
    figure(format!("R_k, k = {} (nats)", found.k), within(found.risk, found.risk_se));
    if let Some(gap) = &found.gap {
        figure(format!("held-out - training, k = {} (nats)", found.k), within(gap.gap, gap.se));
    }
    if let Some(Training { k, bias: Some(bias), bias_se: Some(se), .. }) = analysis.finite_k.training {
        figure(format!("R_k - R_inf, k = {k} (nats)"), within(bias, se));
    }
    let mut alone = |name: String, value: String| rows.push((name, vec![value, String::new()]));
    if let Some(labelled) = &analysis.cross_entropy.labelled {
        alone("ECE (nats)".into(), significant(labelled.ece));
    }
    for r in &analysis.finite_k.recommended {
        alone(format!("k for {} nats", plain(r.eps)), r.k.map_or("none".into(), |k| k.to_string()));
    }
    if let Some(tail) = &analysis.weince {
        alone("criticality, median".into(), significant(tail.criticality[1]));
    }
    rows
}
