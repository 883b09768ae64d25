//! The figures of a diagnosis, with the numbers behind them: the peaks and their law, stability over thresholds, each anchor's
//! statistics, and all of it over training.

use super::anchors::{Anchors, Statistic};
use super::record::COLUMNS;
use super::words::number;
use super::{Analysis, Link, quantile};
use crate::Result;
use crate::evt::gpd::Gpd;
use crate::evt::{GpdFit, Peaks};
use crate::report::figure::{Axis, Histogram, LineChart, Mark, Point, Rule, Sample, Series};
use crate::report::picture::{Cell, Numbers, Picture, Shown, shown};

/// Places in the palette: what was observed, the law with an endpoint, the exponential one.
const OBSERVED: usize = 6;
const WEIBULL: usize = 0;
const GUMBEL: usize = 1;

/// Points of a curve.
const STEPS: usize = 200;

/// So many of the largest peaks are all in a plot of quantiles; the others are thinned out.
const LARGEST: usize = 50;

fn series(label: &str, colour: usize, mark: Mark, points: Vec<Point>) -> Series {
    Series { label: label.to_string(), colour, mark, points }
}

/// A line whose label tells of its 95 % bands where one is drawn.
fn banded(label: &str, points: Vec<Point>) -> Series {
    let bands = if points.iter().any(|p| p.band.is_some()) { ", 95 %" } else { "" };
    series(&format!("{label}{bands}"), WEIBULL, Mark::LineDots, points)
}

/// Both laws with what they are called.
fn laws(fit: &GpdFit) -> [(String, usize, Mark, Gpd); 2] {
    let name = match fit.gpd.xi {
        xi if xi < 0.0 => "Weibull-GPD",
        xi if xi > 0.0 => "Fréchet-GPD",
        _ => "GPD",
    };
    [
        (format!("{name}, xi = {}", number(fit.gpd.xi)), WEIBULL, Mark::Line, fit.gpd),
        ("Gumbel-GPD, xi = 0".to_string(), GUMBEL, Mark::Dashed, fit.exponential),
    ]
}

/// Of a fit and the ascending exceedances that it is of: densities on both kinds of axes, and quantiles.
///
/// # Errors
/// What a figure refuses.
pub fn of_fit(fit: &GpdFit, exceedances: &[f64]) -> Result<Vec<Shown>> {
    Ok(vec![
        shown(
            density(fit, exceedances)?,
            "What peaks exceed the threshold by, and the laws of maximum likelihood with and without an endpoint.",
        ),
        shown(
            density_log(fit, exceedances)?,
            "The same on logarithmic axes, where the far tail can be seen: a law with an endpoint bends down to it.",
        ),
        shown(
            quantiles(fit, exceedances)?,
            "Observed exceedances against those that each law expects at the same rank: the law that holds stays on the diagonal up to the last.",
        ),
    ])
}

fn density(fit: &GpdFit, exceedances: &[f64]) -> Result<Picture> {
    let largest = exceedances.last().copied().unwrap_or(1.0);
    let curve = |law: Gpd| {
        let heights =
            (0..=STEPS).map(|i| largest * i as f64 / STEPS as f64).map(|y| Point::new(y, law.log_density(y).exp()));
        heights.filter(|p| p.y.is_finite()).collect()
    };
    let bins = (2.0 * (exceedances.len() as f64).cbrt()).round() as usize;
    let chart = Histogram {
        title: "Exceedances".into(),
        x: "similarity above the threshold".into(),
        samples: vec![Sample { label: "observed".into(), colour: OBSERVED, values: exceedances.to_vec() }],
        bins: bins.clamp(8, 60),
        density: true,
        curves: laws(fit)
            .into_iter()
            .map(|(name, colour, mark, law)| series(&name, colour, mark, curve(law)))
            .collect(),
        rules: Vec::new(),
    };
    Picture::of_histogram("exceedances", &chart)
}

fn density_log(fit: &GpdFit, exceedances: &[f64]) -> Result<Picture> {
    let (least, largest) = (quantile(exceedances.to_vec(), 0.002), exceedances.last().copied().unwrap_or(1.0));
    let least = least.max(largest * 1e-4);
    // Up to just beyond the last, so that it falls into a bin.
    let edge = |i: usize, of: usize| least * (largest / least).powf(i as f64 / of as f64);
    let bins = ((exceedances.len() as f64).cbrt() * 1.5).round().clamp(6.0, 40.0) as usize;
    let observed = (0..bins).filter_map(|i| {
        let (low, high) = (edge(i, bins), edge(i + 1, bins));
        let from = exceedances.partition_point(|y| *y < low);
        let to = if i + 1 == bins { exceedances.len() } else { exceedances.partition_point(|y| *y < high) };
        let count = (to - from) as f64;
        let scale = exceedances.len() as f64 * (high - low);
        // Two standard errors of a count.
        let band = [(count - 1.96 * count.sqrt()).max(0.0) / scale, (count + 1.96 * count.sqrt()) / scale];
        (count > 0.0).then(|| Point { x: (low * high).sqrt(), y: count / scale, band: Some(band) })
    });
    let mut all = vec![series("observed, 95 %", OBSERVED, Mark::Dots, observed.collect())];
    let floor = all[0].points.iter().map(|p| p.y).fold(f64::INFINITY, f64::min) / 10.0;
    for (name, colour, mark, law) in laws(fit) {
        let points = (0..=STEPS).map(|i| edge(i, STEPS)).map(|y| Point::new(y, law.log_density(y).exp()));
        all.push(series(&name, colour, mark, points.filter(|p| p.y >= floor && p.y.is_finite()).collect()));
    }
    let chart = LineChart {
        title: "Exceedances, logarithmic".into(),
        x: Axis::log("similarity above the threshold"),
        y: Axis::log("density"),
        series: all,
        rules: Vec::new(),
    };
    Picture::of_lines("exceedances_log", &chart)
}

fn quantiles(fit: &GpdFit, exceedances: &[f64]) -> Result<Picture> {
    let n = exceedances.len();
    // From the largest down: all of those, and of the others one for each step that the eye can see.
    let step = exceedances.last().copied().unwrap_or(0.0) / STEPS as f64;
    let (mut ranks, mut last) = (Vec::new(), f64::INFINITY);
    for rank in (0..n).rev() {
        if n - rank <= LARGEST || last - exceedances[rank] >= step {
            ranks.push(rank);
            last = exceedances[rank];
        }
    }
    ranks.reverse();
    let dots = |law: Gpd| {
        let at = |i: &usize| Point::new(law.quantile((*i as f64 + 0.5) / n as f64), exceedances[*i]);
        ranks.iter().map(at).collect()
    };
    let chart = LineChart {
        title: "Quantiles of exceedances".into(),
        x: Axis::linear("expected by the law"),
        y: Axis::linear("observed"),
        series: laws(fit)
            .into_iter()
            .map(|(name, colour, _, law)| series(&name, colour, Mark::Dots, dots(law)))
            .collect(),
        rules: vec![Rule::Diagonal("the law holds".into())],
    };
    Picture::of_lines("quantiles", &chart)
}

/// Of an analysis: those of its peaks, stability over thresholds, and each anchor's statistics.
///
/// # Errors
/// What a figure refuses.
pub fn of(analysis: &Analysis) -> Result<Vec<Shown>> {
    let mut all = of_fit(&analysis.peaks.fit, &analysis.exceedances)?;
    all.extend(stability(analysis)?);
    all.extend(anchors(analysis)?);
    Ok(all)
}

fn stability(analysis: &Analysis) -> Result<Vec<Shown>> {
    let there: Vec<(f64, &Peaks)> = analysis.grid.iter().filter_map(|(q, p)| Some((*q, p.as_ref().ok()?))).collect();
    if there.is_empty() {
        return Ok(Vec::new());
    }
    let line = |value: &dyn Fn(&Peaks) -> Option<Point>| {
        there.iter().filter_map(|(q, p)| value(p).map(|point| Point { x: *q, ..point })).collect::<Vec<Point>>()
    };
    let chosen = || Rule::Vertical(analysis.peaks.quantile, "chosen".into());
    let x = || Axis::linear("quantile of similarities that is the threshold");
    let shapes = LineChart {
        title: "Shape over thresholds".into(),
        x: x(),
        y: Axis::linear("xi"),
        series: vec![
            banded("maximum likelihood", line(&|p| Some(Point { x: 0.0, y: p.fit.gpd.xi, band: p.fit.xi_95() }))),
            series(
                "probability-weighted moments",
                2,
                Mark::Dashed,
                line(&|p| Some(Point::new(0.0, p.fit.moments.gpd.xi))),
            ),
            series(
                "-1 / index, if the end is 1",
                3,
                Mark::Line,
                line(&|p| p.hill.map(|h| Point::new(0.0, -1.0 / h.index))),
            ),
        ],
        rules: vec![Rule::Horizontal(0.0, "Gumbel".into()), chosen()],
    };
    let mut all = vec![shown(
        Picture::of_lines("stability_xi", &shapes)?,
        "xi at each threshold: where the law holds, it no longer changes but by chance (bands take peaks as independent). Where similarities end at 1, it meets the line of the known endpoint.",
    )];
    let ends = LineChart {
        title: "Endpoint over thresholds".into(),
        x: x(),
        y: Axis::linear("fitted endpoint, a similarity"),
        series: vec![banded(
            "maximum likelihood",
            line(&|p| {
                let error = p.fit.errors.ok().and_then(|e| e.endpoint);
                let end = p.endpoint()?;
                Some(Point { x: 0.0, y: end, band: error.map(|e| [end - 1.96 * e, end + 1.96 * e]) })
            }),
        )],
        rules: vec![Rule::Horizontal(1.0, "1".into()), chosen()],
    };
    if !ends.series[0].points.is_empty() {
        all.push(shown(
            Picture::of_lines("stability_endpoint", &ends)?,
            "Where the fitted law ends, at each threshold: WEINCE takes the end to be 1.",
        ));
    }
    Ok(all)
}

/// A histogram of a number an anchor.
struct PerAnchor {
    name: &'static str,
    title: &'static str,
    x: &'static str,
    value: Statistic,
    caption: &'static str,
}

const PER_ANCHOR: [PerAnchor; 7] = [
    PerAnchor {
        name: "anchors_xi",
        title: "Shape, anchor by anchor",
        x: "xi of the anchor's own tail",
        value: |t| t.xi.unwrap_or(f64::NAN),
        caption: "xi of each anchor's own tail; of so few points it scatters widely around its true value.",
    },
    PerAnchor {
        name: "anchors_beta",
        title: "Exponent, anchor by anchor",
        x: "beta",
        value: |t| t.beta,
        caption: "The exponent of the Weibull link, as the gate's loss takes it.",
    },
    PerAnchor {
        name: "anchors_rho",
        title: "Hardest negative, anchor by anchor",
        x: "rho, its shortfall 1 - s",
        value: |t| t.rho,
        caption: "How far the hardest negative is; left of the pivot the gate opens.",
    },
    PerAnchor {
        name: "anchors_delta_aic",
        title: "Published evidence, anchor by anchor",
        x: "delta-AIC",
        value: |t| t.delta_aic,
        caption: "delta-AIC of the two published lines: where nearly all of it is far above the margin, the gate's evidence says nothing.",
    },
    PerAnchor {
        name: "anchors_likelihood",
        title: "Likelihood evidence, anchor by anchor",
        x: "twice the log-likelihood ratio, power law against exponential tail",
        value: |t| t.likelihood,
        caption: "The evidence by likelihoods of the same data: above 0 a power law with the endpoint 1 is likelier, below 0 an exponential tail.",
    },
    PerAnchor {
        name: "anchors_lambda",
        title: "Share of the Weibull link, anchor by anchor",
        x: "lambda",
        value: |t| t.lambda,
        caption: "What the gate makes of both signals.",
    },
    PerAnchor {
        name: "anchors_criticality",
        title: "Criticality, anchor by anchor",
        x: "lambda beta / h",
        value: |t| t.criticality,
        caption: "From 0.5 on the weights of the negatives have no finite variance, from 1 on no finite mean.",
    },
];

fn anchors(analysis: &Analysis) -> Result<Vec<Shown>> {
    let anchors = &analysis.anchors;
    let margin = anchors.gate.gate.margin;
    let mut all = Vec::new();
    for per in PER_ANCHOR {
        let values: Vec<f64> = anchors.column(per.value).into_iter().filter(|v| v.is_finite()).collect();
        if values.is_empty() {
            continue;
        }
        let (low, high) = (quantile(values.clone(), 0.0), quantile(values.clone(), 1.0));
        // A reference line far from all values would leave no room for them.
        let near = |at: f64| at >= low - (high - low) && at <= high + (high - low);
        let rule = |at: f64, label: &str| near(at).then(|| Rule::Vertical(at, label.to_string()));
        let rules = match per.name {
            "anchors_xi" => vec![rule(analysis.peaks.fit.gpd.xi, "of all peaks"), rule(0.0, "Gumbel")],
            "anchors_beta" => vec![rule(analysis.tail_index(), "tail index h")],
            "anchors_rho" => vec![rule(anchors.pivot, "pivot")],
            "anchors_delta_aic" => vec![rule(margin, &format!("margin {margin}"))],
            "anchors_likelihood" => vec![rule(0.0, "equal"), rule(margin, &format!("margin {margin}"))],
            "anchors_criticality" => vec![rule(0.5, "no variance"), rule(1.0, "no mean")],
            _ => Vec::new(),
        };
        let bins = (2.0 * (values.len() as f64).cbrt()).round() as usize;
        let chart = Histogram {
            title: per.title.into(),
            x: per.x.into(),
            samples: vec![Sample { label: String::new(), colour: WEIBULL, values }],
            bins: bins.clamp(8, 40),
            density: false,
            curves: Vec::new(),
            rules: rules.into_iter().flatten().collect(),
        };
        all.push(shown(Picture::of_histogram(per.name, &chart)?, per.caption));
    }
    Ok(all)
}

/// What the pictures are called that a diagnosis can have.
pub fn names() -> Vec<&'static str> {
    let peaks = ["exceedances", "exceedances_log", "quantiles", "stability_xi", "stability_endpoint"];
    let over_training = OF_STATES.iter().map(|s| s.name).chain(OF_ANCHORS.iter().map(|s| s.0));
    peaks.into_iter().chain(PER_ANCHOR.iter().map(|p| p.name)).chain(over_training).collect()
}

/// All statistics of each anchor, a row each.
pub fn anchor_numbers(anchors: &Anchors) -> Numbers {
    let mut numbers = Numbers::new(&[&["anchor"], COLUMNS.map(|c| c.0).as_slice()].concat());
    for (index, tail) in anchors.tails.iter().enumerate() {
        let cells = COLUMNS.iter().map(|(_, value)| Cell::Number(value(tail)));
        numbers.rows.push(std::iter::once(Cell::Number(index as f64)).chain(cells).collect());
    }
    numbers
}

/// A state of training, and what was found in it.
#[derive(Debug, Clone, Copy)]
pub struct State<'a> {
    /// Its step.
    pub step: u64,
    /// The analysis.
    pub analysis: &'a Analysis,
    /// The links, where they were fitted.
    pub link: Option<&'a Link>,
}

impl State<'_> {
    /// A quantity at the step.
    fn point(&self, y: f64, band: Option<[f64; 2]>) -> Point {
        Point { x: self.step as f64, y, band }
    }
}

/// A quantity of peaks or choices.
struct OfState {
    name: &'static str,
    title: &'static str,
    y: &'static str,
    /// A reference line.
    rule: Option<(f64, &'static str)>,
    /// The quantity and its 95 % interval, at the step.
    value: fn(&State) -> Option<Point>,
}

const OF_STATES: [OfState; 4] = [
    OfState {
        name: "training_xi",
        title: "Shape over training",
        y: "xi",
        rule: Some((0.0, "Gumbel")),
        value: |s| Some(s.point(s.analysis.peaks.fit.gpd.xi, s.analysis.xi_interval())),
    },
    OfState {
        name: "training_sigma",
        title: "Scale over training",
        y: "sigma",
        rule: None,
        value: |s| Some(s.point(s.analysis.peaks.fit.gpd.sigma, s.analysis.intervals.as_ref().ok().map(|i| i.sigma))),
    },
    OfState {
        name: "training_endpoint",
        title: "Endpoint over training",
        y: "fitted endpoint, a similarity",
        rule: Some((1.0, "1")),
        value: |s| Some(s.point(s.analysis.peaks.endpoint()?, s.analysis.endpoint_interval())),
    },
    OfState {
        name: "training_link",
        title: "Link of the choices over training",
        y: "lambda of the link",
        rule: Some((0.0, "softmax")),
        value: |s| s.link.and_then(|l| l.fit.blend.as_ref().ok()).map(|b| s.point(b.lambda, Some(b.lambda_95_wider()))),
    },
];

/// Names, titles and ordinates of what anchors have.
const OF_ANCHORS: [(&str, &str, &str, Statistic); 8] = [
    ("training_anchors_xi", "The anchors' own shapes over training", "xi of an anchor's own tail", |t| {
        t.xi.unwrap_or(f64::NAN)
    }),
    ("training_index", "Tail index over training", "h", |t| t.index),
    ("training_beta", "Exponent over training", "beta", |t| t.beta),
    ("training_rho", "Hardest negative over training", "rho, its shortfall 1 - s", |t| t.rho),
    ("training_delta_aic", "Published evidence over training", "delta-AIC", |t| t.delta_aic),
    ("training_likelihood", "Likelihood evidence over training", "twice the log-likelihood ratio", |t| t.likelihood),
    ("training_lambda", "Share of the Weibull link over training", "lambda", |t| t.lambda),
    ("training_criticality", "Criticality over training", "lambda beta / h", |t| t.criticality),
];

/// The same quantities against the step, for several states by rising step.
///
/// # Errors
/// What a figure refuses.
pub fn over_training(states: &[State]) -> Result<Vec<Shown>> {
    let mut all = Vec::new();
    for OfState { name, title, y, rule, value } in OF_STATES {
        let line = banded("most likely", states.iter().filter_map(value).collect());
        let rules = rule.map(|(at, label)| Rule::Horizontal(at, label.to_string())).into_iter().collect();
        all.extend(over_steps(name, title, y, line, rules)?);
    }
    for (name, title, y, value) in OF_ANCHORS {
        let points = states.iter().filter_map(|s| {
            let values: Vec<f64> = s.analysis.anchors.column(value).into_iter().filter(|v| v.is_finite()).collect();
            let place = |share: f64| quantile(values.clone(), share);
            (!values.is_empty()).then(|| Point {
                x: s.step as f64,
                y: place(0.5),
                band: Some([place(0.05), place(0.95)]),
            })
        });
        let line = series("median of anchors, 5 % to 95 %", WEIBULL, Mark::LineDots, points.collect());
        all.extend(over_steps(name, title, y, line, Vec::new())?);
    }
    Ok(all)
}

/// None where no state has the quantity.
fn over_steps(name: &str, title: &str, y: &str, line: Series, rules: Vec<Rule>) -> Result<Option<Shown>> {
    if line.points.is_empty() {
        return Ok(None);
    }
    let chart =
        LineChart { title: title.into(), x: Axis::linear("step"), y: Axis::linear(y), series: vec![line], rules };
    let caption = format!("{title}: {y}, in each state that was given.");
    Ok(Some(shown(Picture::of_lines(name, &chart)?, caption)))
}
