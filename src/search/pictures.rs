//! The figures of a search, each with all of its numbers: risks by the number of negatives and how they fall, the
//! temperature, and recall by the size of the corpus.

use super::Analysis;
use super::finite_k::{KPoint, SlopeFit};
use super::temperature::Temperature;
use super::words::{NEAR_LIMIT, plain};
use crate::Result;
use crate::report::figure::{Axis, LineChart, Mark, Point, Rule, Series};
use crate::report::picture::{Cell, Numbers, Picture, Shown, shown};

/// Places in the palette: InfoNCE's risk, the one without the positive, the limit, what is only a reference.
const RISK: usize = 0;
const DCL: usize = 1;
const LIMIT: usize = 2;
const REFERENCE: usize = 6;

/// A recommended number of negatives so many times as large as the largest measured is not drawn.
const FAR: f64 = 30.0;

/// Where R~_k is so many times as far below the limit as R_k gets above it, it is not drawn.
const LOWEST: f64 = 1.5;

/// The line of slope -1 reaches from the last step to a k so many times smaller.
const REACH: f64 = 32.0;

/// All that the analysis has points for: `k_curve`, `k_steps`, `tau_curve`, `divergence`, `recall_vs_m`.
///
/// # Errors
/// What a figure refuses.
pub fn pictures(analysis: &Analysis) -> Result<Vec<Shown>> {
    let steps = k_steps(analysis)?;
    let others = [tau_curve(analysis)?, divergence(analysis)?, recall_vs_m(analysis)?];
    Ok(std::iter::once(k_curve(analysis)?).chain(steps).chain(others).collect())
}

fn series(label: &str, colour: usize, mark: Mark, points: Vec<Point>) -> Series {
    Series { label: label.to_string(), colour, mark, points }
}

/// A picture whose table is not only what is drawn.
fn picture(name: &str, chart: &LineChart, numbers: Numbers) -> Result<Picture> {
    Ok(Picture { numbers, ..Picture::of_lines(name, chart)? })
}

/// A column's name, and its cell of a row.
type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> Cell);

/// A table with the columns' names and how each is read from a row.
fn table<T>(columns: &[Column<T>], rows: &[T]) -> Numbers {
    let names: Vec<&str> = columns.iter().map(|c| c.0).collect();
    let row = |row| columns.iter().map(|(_, cell)| cell(row)).collect();
    Numbers { rows: rows.iter().map(row).collect(), ..Numbers::new(&names) }
}

fn k_curve(analysis: &Analysis) -> Result<Shown> {
    let finite = &analysis.finite_k;
    let limit = analysis.cross_entropy.r_inf;
    let points = &finite.points;
    let of = |value: fn(&KPoint) -> [f64; 2]| -> Vec<Point> {
        let at = |p: &KPoint| {
            let [y, se] = value(p);
            let half = crate::evt::Z_95 * se;
            Point { x: p.k as f64, y, band: Some([y - half, y + half]) }
        };
        points.iter().map(at).collect()
    };
    let risk = of(|p| [p.risk, p.risk_se]);
    // At few negatives R~_k can be so low that nothing else would be seen.
    let highest = risk.iter().map(|p| p.y).fold(f64::NEG_INFINITY, f64::max);
    let mut dcl = of(|p| [p.dcl, p.dcl_se]);
    dcl.retain(|p| finite.r_inf - p.y <= LOWEST * (highest - finite.r_inf).max(NEAR_LIMIT));
    let bare = |points: &[Point]| points.iter().map(|p| Point::new(p.x, p.y)).collect();
    let largest = points.last().map_or(1.0, |p| p.k as f64);
    let ends = [1.0, largest].map(|x| Point { x, y: limit.value, band: Some(limit.interval) });
    let mut rules = Vec::new();
    if (finite.r_inf - limit.value).abs() > 1e-9 {
        rules.push(Rule::Horizontal(finite.r_inf, "R_inf of the sample".into()));
    }
    if let Some(training) = &finite.training {
        rules.push(Rule::Vertical(training.k as f64, "training".into()));
    }
    let near = |k: &u64| *k as f64 <= FAR * largest;
    if let Some((eps, k)) = finite.recommended.iter().find_map(|r| Some((r.eps, r.k.filter(near)?))) {
        rules.push(Rule::Vertical(k as f64, format!("enough for {}", plain(eps))));
    }
    let chart = LineChart {
        title: "Risk by the number of negatives".into(),
        x: Axis::log("negatives, k"),
        y: Axis::linear("nats"),
        series: vec![
            series("R_inf, 95 %", LIMIT, Mark::Line, ends.to_vec()),
            series("", RISK, Mark::Line, bare(&risk)),
            series("", DCL, Mark::Line, bare(&dcl)),
            series("R_k (InfoNCE), 95 %", RISK, Mark::Dots, risk),
            series("R~_k (positive not in the sum), 95 %", DCL, Mark::Dots, dcl),
        ],
        rules,
    };
    let r_inf = finite.r_inf;
    let numbers = table(
        &[
            ("k", &|p: &KPoint| Cell::Number(p.k as f64)),
            ("risk", &|p| p.risk.into()),
            ("risk_se", &|p| p.risk_se.into()),
            ("dcl", &|p| p.dcl.into()),
            ("dcl_se", &|p| p.dcl_se.into()),
            ("positive", &|p| p.positive.into()),
            ("bias", &|p| (p.risk - r_inf).into()),
            ("dcl_bias", &|p| (p.dcl - r_inf).into()),
            ("dcl_step", &|p| p.dcl_step.into()),
            ("positive_step", &|p| p.positive_step.into()),
        ],
        points,
    );
    Ok(shown(
        picture("k_curve", &chart, numbers)?,
        "The loss of this encoder had it been computed with k negatives. Where the blue line has met the green band, more \
         negatives no longer change the loss; left of there they do. The orange line leaves the positive out \
         of the denominator and comes from below; where it is too low to be drawn, the table has it.",
    ))
}

fn k_steps(analysis: &Analysis) -> Result<Option<Shown>> {
    let finite = &analysis.finite_k;
    type Step = fn(&KPoint) -> Option<f64>;
    let kinds: [(&str, usize, Step, &Option<SlopeFit>); 2] = [
        ("R~_2k - R~_k", DCL, |p| p.dcl_step, &finite.slope_dcl),
        ("P_k - P_2k, P_k = R_k - R~_k", RISK, |p| p.positive_step, &finite.slope_positive),
    ];
    let mut all = Vec::new();
    let mut references: Vec<Series> = Vec::new();
    for (label, colour, step, fit) in kinds {
        let points: Vec<Point> = finite.points.iter().filter_map(|p| Some(Point::new(p.k as f64, step(p)?))).collect();
        let positive: Vec<Point> = points.iter().copied().filter(|p| p.y > 0.0).collect();
        let Some(mut last) = positive.last().copied() else { continue };
        all.push(series(label, colour, Mark::Dots, points));
        let in_fit = |p: &&Point| fit.as_ref().is_some_and(|f| f.ks.contains(&(p.x as usize)));
        let used: Vec<Point> = positive.iter().filter(in_fit).copied().collect();
        if let (Some(fit), [first, .., end]) = (fit, &used[..]) {
            let height = used.iter().map(|p| p.y.ln() - fit.slope * p.x.ln()).sum::<f64>() / used.len() as f64;
            let line = [first.x, end.x].map(|k| Point::new(k, (height + fit.slope * k.ln()).exp()));
            all.push(series(&format!("slope {:.2}", fit.slope), colour, Mark::Line, line.to_vec()));
            last = line[1];
        }
        let first = (last.x / REACH).max(positive[0].x);
        let label = if references.is_empty() { "slope -1" } else { "" };
        let ends = [Point::new(first, last.y * last.x / first), last];
        references.push(series(label, REFERENCE, Mark::Dashed, ends.to_vec()));
    }
    if references.is_empty() {
        return Ok(None);
    }
    all.extend(references);
    let chart = LineChart {
        title: "What twice the negatives change".into(),
        x: Axis::log("negatives, k"),
        y: Axis::log("nats from k to 2k"),
        series: all,
        rules: Vec::new(),
    };
    let in_fit =
        |fit: &Option<SlopeFit>, k: usize| Cell::Number(f64::from(fit.as_ref().is_some_and(|f| f.ks.contains(&k))));
    let measured: Vec<KPoint> =
        finite.points.iter().copied().filter(|p| p.dcl_step.is_some() || p.positive_step.is_some()).collect();
    let numbers = table(
        &[
            ("k", &|p: &KPoint| Cell::Number(p.k as f64)),
            ("dcl_step", &|p| p.dcl_step.into()),
            ("dcl_in_fit", &|p| in_fit(&finite.slope_dcl, p.k)),
            ("positive_step", &|p| p.positive_step.into()),
            ("positive_in_fit", &|p| in_fit(&finite.slope_positive, p.k)),
        ],
        &measured,
    );
    Ok(Some(shown(
        picture("k_steps", &chart, numbers)?,
        "How much each part of the loss moves when the negatives are doubled. Dots that run along the dashed lines halve \
         with every doubling, as theory says of many negatives; lines are fitted over the k that they cover, and dots off \
         them are either of too few negatives or noise.",
    )))
}

/// The curve with the calibrated temperature in its place, and whether a point is it.
fn by_temperature(analysis: &Analysis) -> Vec<(Temperature, bool)> {
    let temperature = &analysis.temperature;
    let mut all: Vec<(Temperature, bool)> = temperature.points.iter().map(|p| (*p, false)).collect();
    all.extend(temperature.at_calibrated.map(|p| (p, true)));
    all.sort_by(|a, b| a.0.tau.total_cmp(&b.0.tau));
    all
}

fn tau_rules(analysis: &Analysis) -> Vec<Rule> {
    let calibrated = analysis.temperature.calibrated;
    let used = calibrated.is_none_or(|tau| (analysis.tau / tau).ln().abs() > 1e-3);
    let calibrated = calibrated.map(|tau| Rule::Vertical(tau, "calibrated".into()));
    calibrated.into_iter().chain(used.then(|| Rule::Vertical(analysis.tau, "used".into()))).collect()
}

fn tau_curve(analysis: &Analysis) -> Result<Shown> {
    let points = by_temperature(analysis);
    let at = |(p, _): &(Temperature, bool)| Point { x: p.tau, y: p.r_inf.value, band: Some(p.r_inf.interval) };
    let chart = LineChart {
        title: "Cross-entropy by temperature".into(),
        x: Axis::log("temperature"),
        y: Axis::linear("R_inf, nats"),
        series: vec![series("R_inf, 95 %", LIMIT, Mark::LineDots, points.iter().map(at).collect())],
        rules: tau_rules(analysis),
    };
    type Row = (Temperature, bool);
    let numbers = table(
        &[
            ("tau", &|p: &Row| p.0.tau.into()),
            ("r_inf", &|p| p.0.r_inf.value.into()),
            ("r_inf_low", &|p| p.0.r_inf.interval[0].into()),
            ("r_inf_high", &|p| p.0.r_inf.interval[1].into()),
            ("divergence", &|p| p.0.divergence.into()),
            ("largest_divergence", &|p| p.0.largest_divergence.into()),
            ("effective_items", &|p| p.0.effective_items.into()),
            ("n2", &|p| p.0.n2.into()),
            ("largest_probability", &|p| p.0.largest_probability.into()),
            ("ceiling", &|p| p.0.ceiling.into()),
            ("average_ceiling", &|p| p.0.average_ceiling.into()),
            ("calibrated", &|p| Cell::Number(f64::from(p.1))),
        ],
        &points,
    );
    Ok(shown(
        picture("tau_curve", &chart, numbers)?,
        "Lower is better: the lowest point is the temperature at which the softmax over similarities describes best where \
         positives are. Left of it the softmax is surer than it is right, right of it less sure than it could be. The \
         order of the items is the same everywhere.",
    ))
}

fn divergence(analysis: &Analysis) -> Result<Shown> {
    let points = by_temperature(analysis);
    let line = |label: &str, colour: usize, mark: Mark, value: fn(&Temperature) -> f64| {
        series(label, colour, mark, points.iter().map(|(p, _)| Point::new(p.tau, value(p))).collect())
    };
    let chart = LineChart {
        title: "How selective the softmax is".into(),
        x: Axis::log("temperature"),
        y: Axis::log("nats from the uniform law"),
        series: vec![
            line("mean of anchors", RISK, Mark::LineDots, |p| p.divergence),
            line("largest", DCL, Mark::LineDots, |p| p.largest_divergence),
            line("ceiling of every anchor, G(1/tau)", REFERENCE, Mark::Dashed, |p| p.ceiling),
            line("ceiling of the mean, 1/tau", LIMIT, Mark::Dashed, |p| p.average_ceiling),
        ],
        rules: tau_rules(analysis),
    };
    type Row = (Temperature, bool);
    let numbers = table(
        &[
            ("tau", &|p: &Row| p.0.tau.into()),
            ("divergence", &|p| p.0.divergence.into()),
            ("largest_divergence", &|p| p.0.largest_divergence.into()),
            ("ceiling", &|p| p.0.ceiling.into()),
            ("average_ceiling", &|p| p.0.average_ceiling.into()),
            ("calibrated", &|p| Cell::Number(f64::from(p.1))),
        ],
        &points,
    );
    Ok(shown(
        picture("divergence", &chart, numbers)?,
        "How far the softmax over the items is from treating them all alike, and the most that the temperature lets any \
         encoder reach. Where the mean runs close below its ceiling the temperature is what limits the search; far below \
         it, the encoder is. The ceiling 1/tau of the mean takes anchors and items to be alike.",
    ))
}

fn recall_vs_m(analysis: &Analysis) -> Result<Shown> {
    let sizes = &analysis.retrieval.by_size;
    type Size = super::analysis::RecallBySize;
    let line = |label: &str, colour: usize, value: fn(&Size) -> f64| {
        series(
            label,
            colour,
            Mark::LineDots,
            sizes.iter().map(|s| Point::new(s.items as f64, 100.0 * value(s))).collect(),
        )
    };
    let chart = LineChart {
        title: "Recall by the size of the corpus".into(),
        x: Axis::log("items that are searched"),
        y: Axis::linear("recall, %"),
        series: vec![line("at 1", RISK, |s| s.recall_at_1), line("at 10", DCL, |s| s.recall_at_10)],
        rules: Vec::new(),
    };
    let numbers = table(
        &[
            ("items", &|s: &Size| Cell::Number(s.items as f64)),
            ("recall_at_1", &|s| s.recall_at_1.into()),
            ("recall_at_10", &|s| s.recall_at_10.into()),
        ],
        sizes,
    );
    Ok(shown(
        picture("recall_vs_m", &chart, numbers)?,
        "Recall in random parts of this corpus: exact, not simulated. Compare encoders at the same number of items only, \
         and read off what a larger corpus is likely to cost by how steeply the lines end.",
    ))
}
