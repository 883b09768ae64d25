//! The cross-entropy of the search softmax, and its temperature.

use super::{
    ITEMS_ADD_LITTLE, ITEMS_RULE, MANY_DOMINATED, NEAR_CEILING, SAME_TEMPERATURE, Section, fact, percent, plain,
    significant, with_unit,
};
use crate::search::analysis::Figure;
use crate::search::{Analysis, Negatives};
use crate::theory::bounds::average_ceiling;

pub(super) fn cross_entropy(analysis: &Analysis) -> Section {
    let (found, m) = (&analysis.cross_entropy, analysis.checks.items);
    let [low, high] = found.r_inf.interval;
    let times = Figure { value: (-found.r_inf.value).exp(), interval: [(-high).exp(), (-low).exp()] };
    let tau = plain(analysis.tau);
    let nats = with_unit(found.r_inf, " nats");
    let brief = if high < 0.0 {
        format!(
            "At temperature {tau} the softmax gives the right item {} the weight of an average one: R_inf is {nats}, \
             lower is better.",
            with_unit(times, " times")
        )
    } else if low <= 0.0 {
        format!(
            "At temperature {tau} it cannot be told whether the softmax gives the right item more weight than an average \
             one: R_inf = {nats}, and 0 is what an encoder gets that treats all items alike."
        )
    } else {
        format!(
            "At temperature {tau} the softmax is worse than treating all items alike, because R_inf is above 0: {nats}. \
             It is sure of wrong items; a higher temperature or better training is needed."
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
            "What InfoNCE's loss tends to with many negatives, by the {}: 0 is an encoder that treats all items alike, \
             and at this temperature none gets below {}. Compare encoders by it at one temperature and on one corpus.",
            found.method,
            plain(-2.0 / analysis.tau)
        ),
    )];
    let share = found.hubness_share;
    let wider = if found.se_anchors_only > 0.0 { found.se / found.se_anchors_only } else { 1.0 };
    let uncertainty = if analysis.checks.negatives != Negatives::Corpus {
        "Anchors and items are the same here, so their shares of the uncertainty cannot be told apart; more pairs narrow \
         the interval."
            .to_string()
    } else if share >= ITEMS_RULE {
        format!(
            "{} of the squared error is the corpus': a few items (hubs) are near to many anchors, and an interval that \
             takes the corpus as fixed is {} times too narrow. More items narrow it, more anchors hardly do.",
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
            "More than 1 %: R_inf is by the delta method and rather too low, and its interval too narrow. Measure at a \
             higher temperature or with many more items before you rely on it."
        } else {
            "At most 1 %: the jackknife can be trusted."
        },
    ));
    facts.push(fact(
        "Softmax loss among all items",
        format!("{} nats", significant(found.loss)),
        format!(
            "-log of the right item's probability among {m} items, log {m} = {} for guessing; the mean reciprocal rank \
             cannot be below e^-loss = {}.",
            significant(((m + 1) as f64).ln()),
            significant(found.mrr_floor)
        ),
    ));
    facts.push(fact(
        "Mean probability of the right item",
        percent(found.probability),
        "What the softmax itself thinks of the right item; recall at 1 far above it is a softmax less sure than it could \
         be.",
    ));
    facts.push(fact(
        "Items that share an anchor's softmax",
        significant(found.median_n2),
        if found.median_n2 < 2.0 {
            "For half of the anchors less than two: one item has nearly everything, and averages over items are noisy."
        } else {
            "Median of 1/Σp²: the softmax of half of the anchors is spread over more items than that, of the other half \
             over fewer."
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
                "As R_inf, with every item of the anchor's class ({} classes) as right: near R_inf, the given positives \
                 stand well for their class; far above it, they are easier than the class is.{without}",
                labelled.classes
            ),
        ));
        facts.push(fact(
            "KL from the class to the softmax",
            format!("{} nats", significant(labelled.kl)),
            "0 if the softmax were spread evenly over exactly the anchor's class; what is above is lost to other classes \
             or to few items of the own.",
        ));
    }
    Section { heading: "Cross-entropy of the search", brief: Some(brief), facts, pictures: &[] }
}

/// What the softmax at the used temperature is, against the one that fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::search) enum Fit {
    /// None fits: positives are nearer than the nearest items.
    TooNear,
    /// None fits: positives are not nearer than others.
    NotNear,
    /// It is about the fitting one.
    Same(f64),
    /// It is lower.
    TooCold(f64),
    /// It is higher.
    TooWarm(f64),
}

pub(in crate::search) fn fit(analysis: &Analysis) -> Fit {
    let temperature = &analysis.temperature;
    let Some(calibrated) = temperature.calibrated else {
        let ends = temperature.points.first().zip(temperature.points.last());
        let falls = ends.is_some_and(|(cold, warm)| cold.r_inf.value < warm.r_inf.value);
        return if falls { Fit::TooNear } else { Fit::NotNear };
    };
    match analysis.tau / calibrated {
        ratio if ratio > SAME_TEMPERATURE => Fit::TooWarm(calibrated),
        ratio if ratio < 1.0 / SAME_TEMPERATURE => Fit::TooCold(calibrated),
        _ => Fit::Same(calibrated),
    }
}

pub(super) fn temperature(analysis: &Analysis) -> Section {
    let temperature = &analysis.temperature;
    let tau = plain(analysis.tau);
    // Both of one sample; the fitting temperature has the least, but for noise.
    let cost = temperature.at_calibrated.map_or(0.0, |at| (analysis.finite_k.r_inf - at.r_inf.value).max(0.0));
    let cost = significant(cost);
    let brief = match fit(analysis) {
        Fit::Same(at) => format!(
            "The temperature {tau} fits: {} would be best, which is within a factor of {SAME_TEMPERATURE}.",
            plain(at)
        ),
        Fit::TooCold(at) => format!(
            "The temperature {tau} is too low for these embeddings, {} fits: the softmax is surer than it is right, which \
             costs {cost} nats. Divide similarities by {} where they are read as probabilities; ranks do not change.",
            plain(at),
            plain(at)
        ),
        Fit::TooWarm(at) => format!(
            "The temperature {tau} is higher than these embeddings need, {} fits: the softmax is less sure than it could \
             be, which costs {cost} nats. Divide similarities by {} where they are read as probabilities; ranks do not \
             change.",
            plain(at),
            plain(at)
        ),
        Fit::TooNear => {
            format!(
                "No temperature from 0.005 to 10 fits: on the sample's {} items nearly every positive is the nearest, and a lower \
                 temperature is always better. Take more or harder items, or look for duplicates of anchors among the positives.",
                temperature.sample[1]
            )
        }
        Fit::NotNear => {
            "No temperature from 0.005 to 10 fits: on average the positives are not nearer than other items. \
            Are anchors and positives in the same order, and of the same encoder?"
                .into()
        }
    };
    let mut facts = vec![fact(
        "Used temperature",
        tau.clone(),
        "All figures but the curve by temperature are at it. Compare encoders either all at one temperature, or each at \
         its own calibrated one.",
    )];
    facts.push(match temperature.calibrated {
        Some(at) => fact(
            "Calibrated temperature",
            plain(at),
            "There the softmax over the items and the positive expects exactly the similarity that positives have, and its \
             loss is least; it is measured on the sample, without an interval. In training another one can be better: this one \
             describes the encoder that there is.",
        ),
        None => fact("Calibrated temperature", "none", "The loss has no minimum from 0.005 to 10; see above."),
    });
    let (items, divergence) = (analysis.checks.items as f64, analysis.cross_entropy.divergence.max(0.0));
    let allowed = average_ceiling(analysis.tau);
    // All of the softmax on one item: no temperature goes beyond.
    let ceiling = allowed.min(items.ln());
    let share = divergence / ceiling;
    let verdict = if share < NEAR_CEILING {
        "below 80 % the encoder limits the search, not the temperature"
    } else if allowed < items.ln() {
        "from 80 % on the temperature is what limits the search: a lower one can tell more items apart"
    } else {
        "from 80 % on the number of items is what limits it: nearly all of the softmax is on one"
    };
    facts.push(fact(
        format!("How selective the softmax is at {tau}"),
        format!("{} nats from the uniform law, {} of the ceiling", significant(divergence), percent(share)),
        format!(
            "An anchor's softmax is as selective as one spread evenly over {} of {items} items. On average no encoder gets \
             beyond {} nats at this temperature with as many items, where anchors and items have one law: {verdict}.",
            significant(items * (-divergence).exp()),
            significant(ceiling)
        ),
    ));
    Section { heading: "Temperature", brief: Some(brief), facts, pictures: &["tau_curve", "divergence"] }
}
