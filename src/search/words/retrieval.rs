//! Ranks, and what is odd about the embeddings.

use super::{Fact, MANY_TIES, RERANK, Section, decimals, fact, percent, significant, with_unit};
use crate::search::{Analysis, Negatives};

pub(super) fn retrieval(analysis: &Analysis) -> Section {
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
        // Better than guessing at one rank is better than guessing.
        let beats = |end: usize| recall.iter().any(|r| r.figure.interval[end] > chance(r.rank));
        let verdict = match [beats(0), beats(1)] {
            [true, _] => "",
            [_, true] => " Intervals at all ranks have guessing in them: so few anchors cannot tell this encoder from \
                none.",
            _ => " That is no better than guessing: are anchors and positives in the same order, and of the same encoder?",
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
                "That is what a slower, better model that orders these items again could win at most: worth a try from 10 \
                 points on."
            } else {
                "Ordering these items again by a better model can win no more than that: below 10 points, better \
                 embeddings are the way."
            };
            let name = format!("Recall at {} less recall at {}", last.rank, first.rank);
            facts.push(fact(name, format!("{} points", decimals(100.0 * gain, 1.0)), text));
        }
    }
    facts.push(fact(
        "Mean reciprocal rank",
        with_unit(retrieval.mrr, ""),
        format!(
            "1 if the right item always comes first, 1/2 if always second; it is never below {}, which the loss \
             guarantees.",
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
            "The price of a corpus so much larger: expect a still larger one to cost more, and measure on one as large as \
             yours."
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

pub(super) fn checks(analysis: &Analysis) -> Section {
    let checks = &analysis.checks;
    let ties = analysis.retrieval.anchors_with_ties;
    let tied = ties as f64 / checks.anchors as f64;
    let same = checks.positive_is_anchor as f64 / checks.anchors as f64;
    let mut brief = Vec::new();
    let themselves = analysis.retrieval.anchors_among_items;
    if themselves as f64 >= MANY_TIES * checks.anchors as f64 {
        brief.push(format!(
            "{} of the anchors have an item at a cosine of 1: the anchors themselves are among the items, or duplicates of them, or \
             a part of the embeddings has collapsed to a point. Such an item comes before the right one and takes most of the \
             softmax; leave anchors and duplicates out of the corpus before anything else here is read.",
            percent(themselves as f64 / checks.anchors as f64)
        ));
    }
    if tied >= MANY_TIES {
        brief.push(format!(
            "{} of the anchors have items exactly as near as their positive, each of which counts against them: {}.",
            percent(tied),
            if tied >= 0.5 && checks.negatives == Negatives::Corpus {
                "most likely the positives are in the corpus themselves, and then all ranks are at least one too high; \
                 say which rows they are"
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
            "R_k is the sum's logarithm less log k; libraries that report the loss itself have log k more, and those that \
             take the positive as one of k + 1 have log(1 + 1/k) less.",
        ),
        fact(
            "Rows that are not of norm 1",
            checks.not_unit.to_string(),
            if checks.not_unit == 0 {
                "None is off by more than 0.001."
            } else {
                "Cosines are taken of all, so that figures are right for a cosine search; a search by plain products \
                 would rank otherwise."
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
            "Anchors with an item at a cosine of 1",
            themselves.to_string(),
            match themselves {
                0 => "No anchor is among the items, and none has a duplicate there.",
                _ => {
                    "Anchors that are items, duplicates of them, or embeddings that have collapsed: these are found first."
                }
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
