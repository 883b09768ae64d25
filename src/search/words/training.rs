//! What depends on the training: held-out against training data, certificates, and WEINCE's logit.

use super::{MANY_BEYOND, Section, at_most, fact, percent, plain, significant, with_unit, within};
use crate::search::finite_k::{FEW_TUPLES, Gap, MOST_IN_TUPLES};
use crate::search::{Analysis, Negatives};
use crate::theory::weince::{Regime, regime};

fn gap_brief(gap: &Gap) -> String {
    let figure = within(gap.gap, gap.se);
    let [low, high] = figure.interval;
    let nats = with_unit(figure, " nats");
    if low > 0.0 {
        format!(
            "The loss is higher on held-out data than in training by {nats}: the encoder fits its training data better \
             than the world; more data, stronger augmentation or fewer steps are the remedies."
        )
    } else if high < 0.0 {
        format!(
            "The loss is lower on held-out data than in training by {nats}: held-out data are easier, so look whether \
             both have the same law, items and augmentation."
        )
    } else {
        format!(
            "No gap between held-out and training data can be told: it is {nats}, and 0 is in the interval; it is hardly \
             more than {}.",
            at_most(high.max(0.0))
        )
    }
}

pub(super) fn generalisation(analysis: &Analysis) -> Section {
    let found = &analysis.generalisation;
    let k = found.k;
    let mut facts = vec![fact(
        format!("R_k on held-out data, k = {k}"),
        with_unit(within(found.risk, found.risk_se), " nats"),
        format!(
            "Below {} with 95 % confidence, as far as anchors and items are many; an encoder that treats all items alike \
             has {}.",
            significant(found.asymptotic_bound),
            significant((1.0 / k as f64).ln_1p())
        ),
    )];
    match &found.gap {
        Some(gap) => facts.push(fact(
            format!("Held-out less training, k = {k}"),
            with_unit(within(gap.gap, gap.se), " nats"),
            format!(
                "Training has {}. The interval takes both as samples of their own: that one encoder has seen one of them \
                 is what is tested.",
                significant(gap.train)
            ),
        )),
        None => facts.push(fact(
            "Held-out less training",
            "not measured",
            "No embeddings of training pairs were given; with them the gap tells whether the encoder has learnt its data \
             by heart.",
        )),
    }
    facts.push(match &found.certificate {
        Some(certificate) => {
            let alike = (1.0 / k as f64).ln_1p();
            let text = if certificate.bound < alike {
                let limit = match certificate.r_inf_bound {
                    bound if bound < 0.0 => format!("; R_inf is at most {}", significant(bound)),
                    _ => "; of R_inf it says nothing".to_string(),
                };
                format!(
                    "Holds with probability 0.95 for this encoder whatever it is, from {} tuples without a common item, \
                     and is below {} of an encoder that treats all items alike{limit}. It takes the encoder not to have seen \
                     these data.",
                    certificate.tuples,
                    significant(alike)
                )
            } else {
                format!(
                    "Says nothing: an encoder that treats all items alike has {}, which is less. {} tuples without a \
                     common item are too few; more anchors and items, or a smaller k, sharpen it.",
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
        "A certificate needs tuples without a common item, and here the items are pairs' own: give a corpus of other \
         items."
            .into()
    } else if tuples < FEW_TUPLES {
        format!(
            "A certificate needs at least {FEW_TUPLES} tuples of an anchor, its positive and k = {k} items of its own, \
             and there are {tuples}: give more anchors and items, or a smaller k."
        )
    } else {
        "A certificate needs tuples without a common item, and here the positives are items of the corpus.".into()
    }
}

pub(super) fn weince(analysis: &Analysis) -> Option<Section> {
    let tail = analysis.weince.as_ref()?;
    let [low, median, high] = tail.criticality;
    let at = significant(median);
    let brief = match regime(median) {
        Regime::FiniteVariance => format!(
            "WEINCE's weights have a finite variance for the median anchor (criticality {at}, below 0.5): more negatives \
             bring its loss to a limit as 1/k, as with InfoNCE."
        ),
        Regime::InfiniteVariance => format!(
            "WEINCE's weights have no finite variance for the median anchor (criticality {at}, from 0.5 to 1): its loss \
             nears its limit only as k^-{}, and losses at different numbers of negatives must not be compared.",
            significant(1.0 / median - 1.0)
        ),
        Regime::NoLimit => format!(
            "WEINCE's loss has no limit for the median anchor (criticality {at}, 1 or more): its value is set by k and by \
             the clamp of the logit, so compare it with nothing; lower lambda or beta."
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
                "Below 0.5 for {fine} of the anchors (fine), from 0.5 to 1 for {wide} (infinite variance), from 1 on for \
                 {none} (no limit): the more anchors are beyond 0.5, the less a loss at one number of negatives says \
                 about another."
            ),
        ),
        fact(
            "Tail index h",
            quartiles(tail.index),
            "How fast items thin out towards the anchor, by Hill's estimate from the nearest; lower is a heavier tail of \
             the weights. It is the encoder's, not a setting.",
        ),
        fact("lambda", quartiles(tail.lambda), "The share of the Weibull link: lower it to lower the criticality."),
        fact("beta", quartiles(tail.beta), "The exponent of the Weibull link: lower it to lower the criticality."),
        fact(
            "Items that share an anchor's softmax under WEINCE's logit",
            quartiles(tail.n2),
            if tail.n2[1] < 2.0 {
                "Less than two for half of the anchors: one negative owns the softmax, and most of a batch gives no \
                 gradient."
                    .to_string()
            } else {
                format!(
                    "It is {} without the Weibull link: the fewer there are with it, the fewer negatives give the \
                     gradient.",
                    plain(analysis.cross_entropy.median_n2)
                )
            },
        ),
        fact(
            "R_inf under WEINCE's logit",
            with_unit(tail.r_inf, " nats"),
            "By the plug-in on the sample's items, with an interval over anchors alone. Not to be compared with an \
             InfoNCE encoder: for that take R_inf at the calibrated temperature, the mean reciprocal rank, recall and ECE.",
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
