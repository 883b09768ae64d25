//! What an axis shows: which values, between which ends, with which ticks and how they are written.

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

/// An axis of a chart.
#[derive(Debug, Clone, Default)]
pub struct Axis {
    /// What is measured, with its unit.
    pub label: String,
    /// Whether the scale is logarithmic; values that are not positive are then left out.
    pub log: bool,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: &str) -> Axis {
        Axis { label: label.to_string(), log: false }
    }

    /// A logarithmic axis.
    pub fn log(label: &str) -> Axis {
        Axis { label: label.to_string(), log: true }
    }

    /// Beyond 1e300 the length of the axis itself could overflow.
    pub(super) fn shows(&self, value: f64) -> bool {
        value.abs() <= 1e300 && (!self.log || value > 0.0)
    }
}

/// The interval that an axis shows, in decades where it is logarithmic.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) log: bool,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Scale {
    /// Covers the values, with a share of the interval added at both ends; `None` without values.
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64>, padding: f64) -> Option<Scale> {
        let (least, most) = bounds(values)?;
        let (mut low, mut high) = if axis.log { (least.log10(), most.log10()) } else { (least, most) };
        // Equal values, or as good as equal ones: room around them keeps the ticks apart.
        let room = 1e-9 * low.abs().max(high.abs()).max(1e-300);
        if high - low <= room {
            let half = if axis.log { 0.5 } else { (low.abs() * 0.1).max(if low == 0.0 { 0.5 } else { 0.0 }) };
            (low, high) = (low - half, high + half);
        }
        let pad = (high - low) * padding;
        Some(Scale { log: axis.log, low: low - pad, high: high + pad })
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value }
    }

    /// Tick places, about `count` of them.
    pub(super) fn ticks(&self, count: usize) -> Vec<f64> {
        if count == 0 {
            return Vec::new();
        }
        if self.log && self.high - self.low >= 1.0 {
            let inside = |v: &f64| *v >= self.low - 1e-9 && *v <= self.high + 1e-9;
            let every = (((self.high - self.low) / count as f64).ceil() as i32).max(1);
            let decades = (self.low.floor() as i32..=self.high.ceil() as i32).filter(|d| d.rem_euclid(every) == 0);
            let between: &[f64] = if self.high - self.low < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            return decades.flat_map(|d| between.iter().map(move |m| d as f64 + m.log10())).filter(inside).collect();
        }
        let (low, high) = if self.log { (10f64.powf(self.low), 10f64.powf(self.high)) } else { (self.low, self.high) };
        let step = nice_step((high - low) / count as f64);
        let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
        (first..=last).map(|i| i as f64 * step).map(|v| if self.log { self.place(v) } else { v }).collect()
    }

    pub(super) fn range(&self, ticks: usize) -> Ticked {
        let ticks = self.ticks(ticks);
        let breadth = ticks.iter().map(|t| super::breadth(&self.label(*t), super::TICK_SIZE)).fold(0.0, f64::max);
        Ticked { low: self.low, high: self.high, ticks, breadth }
    }

    pub(super) fn label(&self, place: f64) -> String {
        if self.log { number(10f64.powf(place), 0.0) } else { number(place, self.high - self.low) }
    }
}

/// A linear coordinate of plotters with our ticks.
pub(super) struct Ticked {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    /// About the width of the widest tick's label in pixels.
    pub(super) breadth: f64,
}

impl Ranged for Ticked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        (f64::from(limit.0) + share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Asked for minor lines too, plotters would draw each line twice.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

pub(super) fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |seen, v| Some(seen.map_or((v, v), |(low, high): (f64, f64)| (low.min(v), high.max(v)))))
}

/// The next of 1, 2, 5 times a power of ten.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    power * [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * power >= least * (1.0 - 1e-9)).unwrap_or(10.0)
}

/// A tick's number, without the noise of binary fractions; zero is what is tiny beside the axis's length.
fn number(value: f64, length: f64) -> String {
    if value.abs() <= length * 1e-9 {
        return "0".to_string();
    }
    if !(0.999e-3..1e6).contains(&value.abs()) {
        let text = format!("{value:.2e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'));
    }
    // Six significant digits, and those of the axis's length where its values are far from zero.
    let digits = |v: f64| (5 - v.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let decimals = if length > 0.0 { digits(value).max(digits(length).saturating_sub(3)) } else { digits(value) };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}
