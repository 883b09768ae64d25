//! The number of negatives: whether that in training is enough, and how the loss falls.

use super::{
    AGREE, Fact, MANY_DOMINATED, NEAR_LIMIT, Section, at_most, fact, percent, plain, significant, with_unit, within,
};
use crate::search::Analysis;
use crate::search::analysis::Figure;
use crate::search::finite_k::{LEAST_K, NEAR_ONE, SlopeFit, Training};

/// Whether the number of negatives in training is large enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::search) enum Enough {
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

pub(in crate::search) fn enough(analysis: &Analysis) -> Enough {
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

fn k_brief(analysis: &Analysis) -> String {
    let best = recommended(analysis).map(|(eps, k)| format!("k = {k} is enough for {} nats", plain(eps)));
    let then = best.as_ref().map_or(String::new(), |best| format!("; {best}"));
    let k = analysis.finite_k.training.map_or(0, |t| t.k);
    // WEINCE's logits are others: of its own loss at other k nothing is measured.
    let loss = if analysis.weince.is_some() { "InfoNCE loss (WEINCE's own is another)" } else { "loss" };
    match enough(analysis) {
        Enough::NotGiven if analysis.cross_entropy.dominated > MANY_DOMINATED => format!(
            "How many negatives are enough is not known: for {} of the anchors one item has most of the softmax, and the \
             limit is uncertain. Measure at a higher temperature or with more items.",
            percent(analysis.cross_entropy.dominated)
        ),
        Enough::NotGiven => match best {
            Some(best) => format!(
                "{best}: with as many negatives in training or more, a larger batch will hardly change this encoder's {loss}."
            ),
            None => "No number of negatives can be recommended from these embeddings.".into(),
        },
        Enough::LimitUnsure => format!(
            "Whether k={k} negatives are enough is not known: for {} of the anchors one item has most of the softmax, and \
             the limit is uncertain. Measure at a higher temperature or with more items.",
            percent(analysis.cross_entropy.dominated)
        ),
        Enough::TooFewItems => format!(
            "Whether k={k} negatives are enough cannot be measured on {} items: give a larger corpus{then}.",
            analysis.finite_k.sample[1]
        ),
        Enough::Cancels { positive, missing } => format!(
            "At k={k} the loss is near its limit only because two errors cancel: the positive in the denominator adds {} \
             nats, and too few negatives take {} away. More negatives may still change what is learnt{then}.",
            significant(positive),
            significant(missing)
        ),
        Enough::Yes(bias) => format!(
            "k={k} is within {} nats of its limit; a larger batch will hardly change this encoder's {loss}.",
            at_most(bias.interval[0].abs().max(bias.interval[1].abs()))
        ),
        Enough::No(bias) => format!(
            "k={k} is {} from its limit, more than {NEAR_LIMIT}: more negatives will still change this encoder's {loss}{then}.",
            with_unit(bias, " nats")
        ),
        Enough::Undecided(bias) => format!(
            "Whether k={k} negatives are enough cannot be decided: the loss is {} from its limit, and {NEAR_LIMIT} nats \
             is in the interval. More anchors would tell{then}.",
            with_unit(bias, " nats")
        ),
    }
}

pub(super) fn negatives(analysis: &Analysis) -> Section {
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
                "How far the loss with as many negatives is from its limit; up to {NEAR_LIMIT} nats, a tenth of a \
                 probability, more negatives are not worth their memory. It is about this encoder's loss: that a larger \
                 batch also has steps with less noise is not measured."
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
            "So many bring the loss as near to its limit. Cautious, because two errors of opposite sign are bounded one \
             by one, but no guarantee: the weights in it are estimates. Fewer can do where the measured loss is already \
             near its limit.",
        ));
    }
    let (positive, missing) = (finite.c1 - finite.c1_dcl, -finite.c1_dcl);
    facts.push(fact(
        "c1, the error's leading term",
        format!("{} nats / k", significant(finite.c1)),
        format!(
            "With many negatives the loss is off by c1/k: {} from the positive in the denominator, less {} from too few \
             negatives.{}",
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
    facts.push(slope("Slope of R~_2k - R~_k", finite.slope_dcl.as_ref(), from, "the part of too few negatives"));
    facts.push(slope(
        "Slope of P_k - P_2k",
        finite.slope_positive.as_ref(),
        from,
        "the part of the positive in the denominator",
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
                "They differ from {} by up to {} nats, more than {AGREE}: take the limit as no better known than that; \
                 more items help.",
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
            "k={k} is not in the 1/k regime, or not surely: twice as many negatives need not halve what is left, and c1/k \
             = {} nats can be off; go by the curve.",
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
                "Fewer than two doublings of k, from k = {} on, are there that stand out of the noise (five standard \
                 errors): a larger corpus, or more anchors, would tell how {of} falls.",
                whole(from)
            ),
        );
    };
    let figure = Figure { value: fit.slope, interval: fit.interval };
    let has_one = fit.interval[0] <= -1.0 && fit.interval[1] >= -1.0;
    let text = match (fit.is_one, fit.excludes_half) {
        (true, true) => format!("-1 as theory has it, within {NEAR_ONE}: {of} halves with every doubling of k."),
        (true, false) => format!(
            "Within {NEAR_ONE} of -1, but so uncertain that -1/2 is not ruled out: more anchors are needed to tell how \
             {of} falls."
        ),
        (false, _) if has_one => {
            format!("Not within {NEAR_ONE} of -1, but -1 is in the interval: whether {of} falls as 1/k is not decided.")
        }
        (false, _) => format!(
            "Not -1: at the numbers of negatives that a corpus of this size allows, {of} does not fall as 1/k yet. That \
             does not refute the theory; a larger corpus shows more of the curve."
        ),
    };
    fact(name, with_unit(figure, ""), text)
}
