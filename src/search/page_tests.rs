//! What is written for people: a small search whose numbers are then set to each case.

use super::analysis::{Figure, Labelled, Settings, analyse};
use super::finite_k::{Certificate, Gap, SlopeFit};
use super::input::{Input, Items, Negatives};
use super::weince::TailLogit;
use super::words::negatives::{Enough, enough};
use super::words::softmax::{Fit, fit};
use super::words::{Section, percent, plain, sections, significant};
use super::{Analysis, compare, pictures, to_markdown, to_text};
use crate::eval::matrix::Matrix;
use crate::eval::rows::Rows;
use crate::report::picture::{Cell, Shown};
use crate::theory::estimators::{AnchorEstimate, curve};
use crate::theory::random::Random;
use std::sync::OnceLock;

/// Anchors on the sphere, positives near them, and a corpus that is uniform.
fn input(n: usize, m: usize, d: usize, noise: f64) -> Input {
    let mut random = Random::new(7, 0);
    let rows = |rows: Vec<Vec<f64>>| rows.concat().iter().map(|v| *v as f32).collect::<Vec<f32>>();
    let anchors: Vec<Vec<f64>> = (0..n).map(|_| random.direction(d)).collect();
    let near = |a: &Vec<f64>, random: &mut Random| -> Vec<f64> {
        let row: Vec<f64> = a.iter().map(|v| v + noise * random.normal()).collect();
        let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
        row.iter().map(|v| v / norm).collect()
    };
    let positives = anchors.iter().map(|a| near(a, &mut random)).collect();
    let corpus = (0..m).map(|_| random.direction(d)).collect();
    let [anchors, positives, corpus] = [("anchors", anchors), ("positives", positives), ("corpus", corpus)]
        .map(|(name, r)| Matrix::of(name, rows(r), d).unwrap());
    Input::new(&anchors, Some(&positives), Items::Corpus(corpus), None).unwrap()
}

fn small() -> Analysis {
    static SMALL: OnceLock<Analysis> = OnceLock::new();
    let make = || {
        let settings = Settings {
            tau: 0.2,
            k: Some(200),
            weince: Some(TailLogit::Fixed { lambda: 0.3, beta: 2.0 }),
            ..Settings::default()
        };
        analyse(&input(300, 2000, 8, 0.3), None, &settings, &mut |_, _, _| ()).unwrap()
    };
    SMALL.get_or_init(make).clone()
}

fn section(analysis: &Analysis, heading: &str) -> Section {
    sections(analysis).into_iter().find(|s| s.heading == heading).unwrap()
}

fn brief(analysis: &Analysis, heading: &str) -> String {
    section(analysis, heading).brief.unwrap_or_default()
}

/// Value and text of the figure.
fn said(analysis: &Analysis, heading: &str, name: &str) -> String {
    let section = section(analysis, heading);
    let fact = section.facts.iter().find(|f| f.name.contains(name)).unwrap_or_else(|| panic!("{name}: {section:?}"));
    format!("{}: {}", fact.value, fact.text)
}

#[track_caller]
fn has(text: &str, expected: &str) {
    assert!(text.contains(expected), "expected `{expected}` in: {text}");
}

const K: &str = "Number of negatives";

/// With that bias and error at the number of negatives in training, whose parts are small.
fn biased(bias: f64, se: f64) -> Analysis {
    let mut analysis = small();
    analysis.cross_entropy.dominated = 0.0;
    let training = analysis.finite_k.training.as_mut().unwrap();
    (training.bias, training.bias_se) = (Some(bias), Some(se));
    let k = training.k;
    let r_inf = analysis.finite_k.r_inf;
    let point = analysis.finite_k.points.iter_mut().find(|p| p.k == k).unwrap();
    (point.risk, point.dcl, point.positive) = (r_inf + bias, r_inf - 0.01, 0.01 + bias.abs());
    analysis
}

#[test]
fn whether_k_is_enough_follows_from_the_interval() {
    let yes = biased(0.014, 0.003);
    assert!(matches!(enough(&yes), Enough::Yes(_)));
    // 0.014 + 1.96 * 0.003 = 0.01988.
    assert_eq!(
        brief(&yes, K),
        "k=200 is within 0.02 nats of its limit; a larger batch will hardly change this encoder's InfoNCE loss (WEINCE's own is another)."
    );
    let no = biased(0.5, 0.1);
    has(&brief(&no, K), "k=200 is 0.50 nats (95 %: 0.30 to 0.70) from its limit, more than 0.1");
    has(&brief(&no, K), "; k = ");
    assert!(matches!(enough(&biased(-0.5, 0.1)), Enough::No(_)));
    let either = biased(0.09, 0.02);
    has(&brief(&either, K), "cannot be decided");
    assert!(matches!(enough(&biased(0.0, 0.06)), Enough::Undecided(_)));
    let mut cancels = biased(0.001, 0.001);
    let r_inf = cancels.finite_k.r_inf;
    let point = cancels.finite_k.points.iter_mut().find(|p| p.k == 200).unwrap();
    // A part that is above the threshold cancels only where the other takes most of it.
    (point.dcl, point.positive) = (r_inf - 0.3, 0.301);
    has(
        &brief(&cancels, K),
        "two errors cancel: the positive in the denominator adds 0.301 nats, and too few negatives take 0.300",
    );
    let mut one = biased(0.09, 0.001);
    one.finite_k.points.iter_mut().for_each(|p| p.positive = 0.11);
    assert!(matches!(enough(&one), Enough::Yes(_)));
    let mut dominated = biased(0.0, 0.001);
    dominated.cross_entropy.dominated = 0.02;
    has(&brief(&dominated, K), "is not known: for 2.0 % of the anchors one item has most of the softmax");
    let mut few = biased(0.0, 0.001);
    let training = few.finite_k.training.as_mut().unwrap();
    (training.k, training.bias, training.bias_se) = (65_536, None, None);
    has(&brief(&few, K), "Whether k=65536 negatives are enough cannot be measured on 2000 items");
    has(&said(&few, K, "R_k - R_inf"), "not measured");
    let mut unknown = biased(0.0, 0.001);
    unknown.finite_k.training = None;
    unknown.finite_k.recommended[0].k = Some(77);
    has(&brief(&unknown, K), "k = 77 is enough for 0.1 nats");
    unknown.finite_k.recommended.iter_mut().for_each(|r| r.k = None);
    has(&brief(&unknown, K), "No number of negatives can be recommended");
    has(&said(&unknown, K, "Recommended"), "more than 2^62 for 0.1 nats, more than 2^62 for 0.01 nats");
}

#[test]
fn the_regime_and_its_slopes_are_told() {
    let mut analysis = small();
    let training = analysis.finite_k.training.as_mut().unwrap();
    (training.in_regime, training.leading) = (Some(true), 0.0123);
    has(
        &said(&analysis, K, "The 1/k regime"),
        "k=200 is in the 1/k regime: twice as many negatives halve what is left, c1/k = 0.0123",
    );
    analysis.finite_k.training.as_mut().unwrap().in_regime = Some(false);
    analysis.finite_k.k_asymptotic = Some(1234.5);
    has(&said(&analysis, K, "The 1/k regime"), "begins at k = 1235: k=200 is not in the 1/k regime");
    let mut slope = |slope: f64, half: f64, excludes_half: bool| {
        let is_one = (slope + 1.0).abs() <= 0.15;
        analysis.finite_k.slope_dcl =
            Some(SlopeFit { slope, interval: [slope - half, slope + half], ks: vec![64, 128], is_one, excludes_half });
        said(&analysis, K, "Slope of R~_2k")
    };
    has(&slope(-1.02, 0.05, true), "-1.02 (95 %: -1.07 to -0.97): -1 as theory has it, within 0.15");
    has(&slope(-1.02, 0.6, false), "-1/2 is not ruled out");
    has(&slope(-0.8, 0.3, false), "not decided");
    has(&slope(-0.7, 0.1, true), "Not -1: at the numbers of negatives that a corpus of this size allows");
    analysis.finite_k.slope_dcl = None;
    has(&said(&analysis, K, "Slope of R~_2k"), "not measured: Fewer than two doublings");
    (analysis.finite_k.c1, analysis.finite_k.c1_dcl) = (0.1, -4.0);
    has(&said(&analysis, K, "c1"), "They nearly cancel");
    (analysis.finite_k.c1, analysis.finite_k.c1_dcl) = (3.0, -1.0);
    let c1 = said(&analysis, K, "c1");
    has(&c1, "4.00 from the positive in the denominator, less 1.00");
    assert!(!c1.contains("cancel"), "{c1}");
    let r_inf = analysis.finite_k.r_inf;
    (analysis.finite_k.r_inf_richardson, analysis.finite_k.r_inf_curvature) = (Some(r_inf + 0.04), Some(r_inf));
    has(&said(&analysis, K, "R_inf by other ways"), "agree");
    analysis.finite_k.r_inf_curvature = Some(r_inf + 0.2);
    has(&said(&analysis, K, "R_inf by other ways"), "by up to 0.200 nats");
}

#[test]
fn cross_entropy_is_told_by_its_sign_and_its_errors() {
    const C: &str = "Cross-entropy of the search";
    let mut analysis = small();
    analysis.cross_entropy.dominated = 0.0;
    let mut set = |value: f64, half: f64| {
        analysis.cross_entropy.r_inf = Figure { value, interval: [value - half, value + half] };
        brief(&analysis, C)
    };
    // e^2 = 7.39, and from e^1.9 = 6.69 to e^2.1 = 8.17.
    has(
        &set(-2.0, 0.1),
        "the right item 7.4 times (95 %: 6.7 to 8.2) the weight of an average one: R_inf is -2.00 nats",
    );
    has(&set(0.1, 0.2), "it cannot be told");
    has(&set(0.5, 0.2), "worse than treating all items alike");
    let error = |share: f64, negatives: Negatives| {
        let mut analysis = small();
        (analysis.cross_entropy.hubness_share, analysis.checks.negatives) = (share, negatives);
        (analysis.cross_entropy.se, analysis.cross_entropy.se_anchors_only) = (0.2, 0.1);
        said(&analysis, C, "Standard error")
    };
    has(&error(0.75, Negatives::Corpus), "0.200 nats: 75.0 % of the squared error is the corpus'");
    has(&error(0.75, Negatives::Corpus), "2.00 times too narrow");
    has(&error(0.3, Negatives::Corpus), "both narrow");
    has(&error(0.05, Negatives::Corpus), "Only 5.0 %");
    has(&error(0.0, Negatives::Positives), "cannot be told apart");
    analysis.cross_entropy.dominated = 0.2;
    has(&brief(&analysis, C), "uncertain: for 20.0 % of the anchors");
    has(&said(&analysis, C, "Anchors with one item"), "More than 1 %");
    analysis.cross_entropy.labelled = Some(Labelled { ece: -1.5, kl: 0.7, without: 3, classes: 10 });
    has(&said(&analysis, C, "ECE"), "(10 classes)");
    has(&said(&analysis, C, "ECE"), "3 anchors have no item of their class");
}

#[test]
fn temperatures_are_compared_with_the_calibrated_one() {
    const T: &str = "Temperature";
    let mut analysis = small();
    let mut with = |tau: f64, calibrated: Option<f64>| {
        (analysis.tau, analysis.temperature.calibrated) = (tau, calibrated);
        (fit(&analysis), brief(&analysis, T))
    };
    has(&with(0.2, Some(0.2)).1, "The temperature 0.2 fits");
    assert_eq!(with(0.2, Some(0.17)).0, Fit::Same(0.17));
    has(&with(0.2, Some(0.1)).1, "0.2 is higher than these embeddings need, 0.1 fits");
    has(&with(0.05, Some(0.1)).1, "0.05 is too low");
    (analysis.tau, analysis.temperature.calibrated) = (0.2, None);
    let [cold, warm] = [0, 11].map(|i| small().temperature.points[i]);
    analysis.temperature.points[0].r_inf.value = warm.r_inf.value + 1.0;
    assert_eq!(fit(&analysis), Fit::NotNear);
    has(&brief(&analysis, T), "the positives are not nearer than other items");
    analysis.temperature.points[0].r_inf.value = warm.r_inf.value - 1.0;
    assert_eq!(fit(&analysis), Fit::TooNear);
    assert!(cold.tau < warm.tau);
    has(&brief(&analysis, T), "nearly every positive is the nearest");
    has(&said(&analysis, T, "Calibrated"), "none: The loss has no minimum");
}

#[test]
fn gaps_and_certificates_are_told_by_their_errors() {
    const G: &str = "Generalisation";
    let mut analysis = small();
    assert!(section(&analysis, G).brief.is_none());
    has(&said(&analysis, G, "Held-out less training"), "No embeddings of training pairs were given");
    let mut gap = |gap: f64| {
        analysis.generalisation.gap = Some(Gap { train: -1.0, gap, se: 0.1 });
        brief(&analysis, G)
    };
    has(&gap(0.5), "higher on held-out data than in training by 0.50 nats (95 %: 0.30 to 0.70)");
    has(&gap(-0.5), "lower on held-out data");
    // 0.1 + 1.96 * 0.1 = 0.296.
    has(&gap(0.1), "No gap between held-out and training data can be told");
    has(&gap(0.1), "hardly more than 0.3.");
    analysis.generalisation.k = 10;
    // log(1 + 1/10) = 0.0953.
    let mut certified = |bound: f64| {
        analysis.generalisation.certificate =
            Some(Certificate { tuples: 50, mean: -1.0, bound, r_inf_bound: bound + 0.1 });
        said(&analysis, G, "Certified")
    };
    has(&certified(0.09), "Holds with probability 0.95");
    has(&certified(0.1), "Says nothing: an encoder that treats all items alike has 0.0953");
    let mut none = small();
    none.generalisation.certificate = None;
    none.generalisation.k = 200;
    has(&said(&none, G, "Certified"), "there are 10: give more anchors");
    none.generalisation.k = 10;
    has(&said(&none, G, "Certified"), "the positives are items of the corpus");
    none.checks.negatives = Negatives::Anchors;
    has(&said(&none, G, "Certified"), "the items are pairs' own");
}

#[test]
fn criticality_has_three_cases() {
    const W: &str = "WEINCE's logit";
    let mut analysis = small();
    let mut at = |criticality: f64| {
        let tail = analysis.weince.as_mut().unwrap();
        tail.criticality = [criticality - 0.01, criticality, criticality + 0.01];
        brief(&analysis, W)
    };
    has(&at(0.4), "finite variance for the median anchor (criticality 0.400");
    has(&at(0.8), "only as k^-0.250, and losses at different numbers of negatives must not be compared");
    has(&at(1.0), "has no limit");
    assert!(!at(0.4).contains("Yet"));
    analysis.weince.as_mut().unwrap().shares = [0.25, 0.5, 0.25];
    has(&said(&analysis, W, "Criticality"), "Below 0.5 for 25.0 % of the anchors (fine), from 0.5 to 1 for 50.0 %");
    analysis.weince.as_mut().unwrap().criticality = [0.3, 0.4, 0.6];
    has(&brief(&analysis, W), "Yet for 75.0 % of the anchors the criticality is 0.5 or more.");
    analysis.weince = None;
    assert!(sections(&analysis).iter().all(|s| s.heading != W));
}

#[test]
fn ties_duplicates_and_chance_are_told() {
    let mut analysis = small();
    assert!(section(&analysis, "Checks").brief.is_none());
    analysis.retrieval.anchors_with_ties = 300;
    has(&brief(&analysis, "Checks"), "100.0 % of the anchors have items exactly as near as their positive");
    has(&brief(&analysis, "Checks"), "the positives are in the corpus themselves");
    analysis.retrieval.anchors_with_ties = 30;
    has(&brief(&analysis, "Checks"), "remove duplicates");
    analysis.retrieval.anchors_with_ties = 2;
    assert!(section(&analysis, "Checks").brief.is_none());
    has(&said(&analysis, "Checks", "exactly as near"), "2: Less than 1 %");
    (analysis.checks.positive_is_anchor, analysis.checks.not_unit) = (150, 5);
    has(&brief(&analysis, "Checks"), "50.0 % of the positives are the anchor itself");
    has(&said(&analysis, "Checks", "norm 1"), "5: Cosines are taken of all");
    let retrieval = brief(&analysis, "Retrieval");
    has(&retrieval, "Of 2000 items the right one comes first for");
    assert!(!retrieval.contains("guessing"), "{retrieval}");
    let all = |analysis: &mut Analysis, figure: Figure| {
        analysis.retrieval.recall.iter_mut().for_each(|r| r.figure = figure);
        brief(analysis, "Retrieval")
    };
    has(
        &all(&mut analysis, Figure { value: 0.003, interval: [0.0, 0.01] }),
        "Intervals at all ranks have guessing in them",
    );
    has(&all(&mut analysis, Figure { value: 0.0, interval: [0.0, 0.0] }), "no better than guessing");
    // 10 of 2001 by chance: above that at one rank is enough.
    analysis.retrieval.recall[2].figure = Figure { value: 0.01, interval: [0.006, 0.02] };
    assert!(!brief(&analysis, "Retrieval").contains("guessing"));
}

fn columns(shown: &Shown, name: &str) -> Vec<f64> {
    let numbers = &shown.picture.numbers;
    let place =
        numbers.columns.iter().position(|c| c == name).unwrap_or_else(|| panic!("{name}: {:?}", numbers.columns));
    let number = |row: &Vec<Cell>| if let Cell::Number(v) = row[place] { v } else { f64::NAN };
    numbers.rows.iter().map(number).collect()
}

#[test]
fn pictures_have_all_numbers_of_what_they_show() {
    let analysis = small();
    let shown = pictures(&analysis).unwrap();
    let names: Vec<&str> = shown.iter().map(|s| s.picture.name.as_str()).collect();
    assert_eq!(names, ["k_curve", "k_steps", "tau_curve", "divergence", "recall_vs_m"]);
    let finite = &analysis.finite_k;
    // Every number of a row of the record is a column.
    let record = serde_json::to_value(finite.points[0]).unwrap();
    for name in record.as_object().unwrap().keys() {
        assert_eq!(columns(&shown[0], name).len(), finite.points.len(), "{name}");
    }
    let k: Vec<f64> = finite.points.iter().map(|p| p.k as f64).collect();
    assert_eq!(columns(&shown[0], "k"), k);
    assert!(k.contains(&200.0) && k.contains(&512.0));
    for (bias, p) in columns(&shown[0], "bias").iter().zip(&finite.points) {
        assert_eq!(*bias, p.risk - finite.r_inf);
    }
    assert_eq!(columns(&shown[1], "k"), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]);
    let in_fit = columns(&shown[1], "dcl_in_fit").into_iter().zip(columns(&shown[1], "k")).filter(|(v, _)| *v == 1.0);
    let in_fit: Vec<usize> = in_fit.map(|(_, k)| k as usize).collect();
    assert_eq!(in_fit, finite.slope_dcl.as_ref().map_or(Vec::new(), |f| f.ks.clone()));
    let record = serde_json::to_value(analysis.temperature.points[0]).unwrap();
    for name in record.as_object().unwrap().keys() {
        // Twelve, and the calibrated one in its place.
        assert_eq!(columns(&shown[2], name).len(), 13, "{name}");
    }
    assert_eq!(columns(&shown[2], "calibrated").iter().sum::<f64>(), 1.0);
    assert!(columns(&shown[2], "tau").is_sorted() && columns(&shown[3], "tau").is_sorted());
    let least = columns(&shown[2], "r_inf").into_iter().fold(f64::INFINITY, f64::min);
    // The jackknife's least value need not be exactly where the plug-in's is.
    assert!((least - analysis.temperature.at_calibrated.unwrap().r_inf.value).abs() < 0.02);
    assert_eq!(columns(&shown[4], "items"), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]);
    let last = *columns(&shown[4], "recall_at_1").last().unwrap();
    assert!((last - analysis.retrieval.recall[0].figure.value).abs() < 1e-9);
    // Curve, steps, temperatures, ceilings, recalls: as many dots as there are points that their axes can show.
    let dots = |shown: &Shown| shown.picture.svg.matches("<circle").count();
    assert!(dots(&shown[0]) >= 2 * k.len(), "{}", dots(&shown[0]));
    assert!(dots(&shown[4]) >= 16, "{}", dots(&shown[4]));
    let mut low = analysis.clone();
    low.finite_k.points[0].dcl = -100.0;
    let shown_low = pictures(&low).unwrap();
    assert_eq!(dots(&shown_low[0]), dots(&shown[0]) - 1);
    assert_eq!(columns(&shown_low[0], "dcl")[0], -100.0);
    for label in ["R_inf, 95 %", "training"] {
        has(&shown[0].picture.svg, label);
    }
    has(&shown[2].picture.svg, "calibrated");
    has(&shown[3].picture.svg, "ceiling");
    // Of two items there is nothing that twice as many negatives change.
    let mut bare = analysis;
    bare.finite_k.points.iter_mut().for_each(|p| (p.dcl_step, p.positive_step) = (None, None));
    assert_eq!(pictures(&bare).unwrap().len(), 4);
}

#[test]
fn the_page_has_everything_once() {
    let mut analysis = small();
    let shown = pictures(&analysis).unwrap();
    let page = to_markdown("A search", &analysis, &shown);
    assert!(page.starts_with("# A search\n\n## In short\n\n- Of 2000 items"), "{page}");
    for Shown { picture, caption } in &shown {
        assert_eq!(page.matches(&format!("({}.png)", picture.name)).count(), 1);
        has(&page, caption);
    }
    for section in sections(&analysis) {
        has(&page, &format!("\n## {}\n", section.heading));
        for fact in &section.facts {
            has(&page, &format!("- **{}: {}.** {}", fact.name, fact.value, fact.text));
            assert!(fact.text.ends_with('.') && !fact.text.contains("  "), "{fact:?}");
        }
    }
    let short = page.split("## In short").nth(1).unwrap().split("An *anchor*").next().unwrap();
    assert!((3..=6).contains(&short.matches("\n- ").count()), "{short}");
    assert!(!page.contains("NaN") && !page.contains("Broken"), "{page}");
    assert!(!to_markdown("t", &analysis, &[]).contains(".png"));
    analysis.violations.push("anchor 3: rank 7 is above e^loss = 6.500".into());
    let page = to_markdown("A search", &analysis, &shown);
    has(&page, "## Broken inequalities");
    has(&page, "- anchor 3: rank 7");
    let text = to_text(&analysis);
    has(&text, "BROKEN: anchor 3");
    has(&text, "recall@1 (%)");
    has(&text, "R_k - R_inf, k = 200 (nats)");
    has(&text, &brief(&analysis, K));
}

#[test]
fn encoders_are_compared_by_common_figures() {
    let one = small();
    let mut two = small();
    two.weince = None;
    two.cross_entropy.labelled = Some(Labelled { ece: -1.5, kl: 0.7, without: 0, classes: 10 });
    two.temperature.calibrated = None;
    let both = compare(&[("weince".into(), one.clone()), ("infonce".into(), two.clone())]);
    let lines: Vec<&str> = both.lines().collect();
    assert!(lines[0].starts_with(
        "| encoder | calibrated temperature | R_inf there (nats) | MRR | recall@1 | recall@10 | ECE (nats) |"
    ));
    assert!(lines[2].starts_with("| weince | ") && lines[2].ends_with("| - |"), "{}", lines[2]);
    assert!(lines[3].starts_with("| infonce | none | - | ") && lines[3].ends_with("| -1.50 at 0.2 |"), "{}", lines[3]);
    let at = one.temperature.at_calibrated.unwrap();
    has(lines[2], &plain(at.tau));
    has(lines[2], &format!("{:.2}", at.r_inf.value));
    has(&both, "| temperature | weince | infonce |");
    has(&both, "| 0.03 | ");
    has(&both, "Encoders trained with WEINCE and with InfoNCE are compared by these figures alone");
    has(&both, "An encoder without a calibrated temperature");
    assert!(!both.contains("cannot be compared"));
    // Measured at the calibrated temperature, all items count and not the sample's alone.
    let mut whole = one.clone();
    whole.temperature.calibrated = Some(whole.tau);
    whole.cross_entropy.r_inf = Figure { value: -9.0, interval: [-9.1, -8.9] };
    has(&compare(&[("a".into(), whole)]), "| -9.00 (-9.10 to -8.90) |");
    two.checks.items = 7;
    two.retrieval.recall.clear();
    let other = compare(&[("a".into(), one), ("b".into(), two)]);
    has(&other, "their numbers cannot be compared");
    assert_eq!(compare(&[]).lines().count(), 4);
}

#[test]
fn the_bias_and_its_error_are_those_of_the_anchors() {
    let analysis = small();
    let input = input(300, 2000, 8, 0.3);
    let ks: Vec<usize> = analysis.finite_k.points.iter().map(|p| p.k).collect();
    let place = ks.iter().position(|k| *k == 200).unwrap();
    let items = Rows::new(input.corpus.read(0..2000).unwrap(), 8);
    let one = |i: usize| {
        let logits: Vec<f64> = (0..2000).map(|j| input.anchors.similarities(i, &items, [j])[0] / 0.2).collect();
        let positive = input.positives[i] / 0.2;
        let risk = curve(&logits, positive, &ks, 4, &mut Random::new(0, i as u64)).unwrap()[place].risk;
        risk - AnchorEstimate::of(&logits, positive).unwrap().jackknife
    };
    let biases: Vec<f64> = (0..300).map(one).collect();
    let mean = biases.iter().sum::<f64>() / 300.0;
    let se = (biases.iter().map(|b| (b - mean).powi(2)).sum::<f64>() / 299.0 / 300.0).sqrt();
    let training = analysis.finite_k.training.unwrap();
    assert!((training.bias.unwrap() - mean).abs() < 1e-5, "{training:?} {mean}");
    assert!((training.bias_se.unwrap() / se - 1.0).abs() < 1e-3, "{training:?} {se}");
    let at = analysis.temperature.at_calibrated.unwrap();
    assert_eq!(Some(at.tau), analysis.temperature.calibrated);
}

#[test]
fn numbers_are_written_with_their_digits() {
    let written = [0.0, 1.0, -2.2149, 0.02134, 12.345, 123_456.7, 2e-5, 1e9].map(significant);
    assert_eq!(written, ["0", "1.00", "-2.21", "0.0213", "12.3", "123457", "2.0e-5", "1.0e9"]);
    assert_eq!([0.1, 0.05, 2.0, 100.0, 0.0722].map(plain), ["0.1", "0.05", "2", "100", "0.0722"]);
    assert_eq!([0.0, 1.0, 0.123, 0.0005, 0.00001].map(percent), ["0.0 %", "100.0 %", "12.3 %", "0.05 %", "0.001 %"]);
}
