//! What claims compute that is best seen, as plain numbers: `report` draws them.

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    /// Samples, with their errors: dots.
    Sampled,
    /// Exact values: dots joined by a line.
    Exact,
    /// What they go to: a dashed line.
    Law,
    /// What they stay below: a line.
    Bound,
}

/// One curve of a [`Plot`].
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// What it is, in a few words.
    pub label: String,
    /// How it is drawn.
    pub draw: Draw,
    /// Its colour's place in a palette of seven: a law has the colour of what it is the law of.
    pub colour: usize,
    /// Its points, by rising x except for samples.
    pub points: Vec<[f64; 2]>,
    /// Standard errors of the ordinates, one a point, or none at all.
    pub errors: Vec<f64>,
}

impl Curve {
    /// Without errors.
    pub(super) fn new(label: impl Into<String>, draw: Draw, colour: usize, points: Vec<[f64; 2]>) -> Curve {
        Curve { label: label.into(), draw, colour, points, errors: Vec::new() }
    }

    /// A function on some abscissas.
    pub(super) fn of(label: impl Into<String>, draw: Draw, colour: usize, x: &[f64], y: impl Fn(f64) -> f64) -> Curve {
        Curve::new(label, draw, colour, x.iter().map(|x| [*x, y(*x)]).collect())
    }
}

/// Curves over one plane.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// The picture's name, fit for a file.
    pub name: &'static str,
    /// The headline.
    pub title: String,
    /// The abscissa, on a logarithmic scale.
    pub x: &'static str,
    /// The ordinate.
    pub y: &'static str,
    /// Whether the ordinate's scale is logarithmic.
    pub log_y: bool,
    /// The curves.
    pub curves: Vec<Curve>,
    /// Ordinates of their own, and what they are.
    pub levels: Vec<(f64, String)>,
}
