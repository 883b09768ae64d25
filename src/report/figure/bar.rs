//! Bars and intervals: means of groups beside the single values that they are made of.

use super::scale::{Axis, Scale, bounds};
use super::{INK, Key, PLANE_WIDTH, SUBPIXELS, draw, frame, header, mesh, palette, pixels, text, tint};
use crate::error::{Error, Result};
use crate::stats::Spread;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Bars in groups, one bar a series: height is the mean, the whisker one standard deviation, dots are the single values.
#[derive(Debug, Clone)]
pub struct BarChart {
    /// The headline.
    pub title: String,
    /// Ordinate; it starts at 0.
    pub y: String,
    /// Label and palette colour of each series.
    pub series: Vec<(String, usize)>,
    /// A label and, for each series, the values.
    pub groups: Vec<(String, Vec<Vec<f64>>)>,
}

impl BarChart {
    /// The chart as an SVG document.
    ///
    /// # Errors
    /// No finite value at all.
    pub fn to_svg(&self) -> Result<String> {
        let all = self.groups.iter().flat_map(|(_, bars)| bars.iter().flatten()).copied();
        let (least, most) = bounds(all.filter(|v| v.is_finite()))
            .ok_or_else(|| Error::Input(format!("figure `{}`: no finite value to draw", self.title)))?;
        // Room for the figures above the bars; bars without height still get an axis.
        let (low, high) = (least.min(0.0) * 1.12, most.max(0.0) * 1.12);
        let y = Scale { log: false, low, high: if low == high { 1.0 } else { high } };
        let legend: Vec<_> = self.series.iter().map(|(label, colour)| Key::line(label, *colour)).collect();
        let x = Scale { log: false, low: 0.0, high: self.groups.len() as f64 };
        draw(|root| {
            let area = header(root, &self.title, &legend)?;
            let mut chart = frame(&area, x.range(0), y.range(6), 26)?;
            mesh(&mut chart, &x, None, &y, &self.y)?;
            let width = 0.7 / self.series.len().max(1) as f64;
            // Figures shrink with the bars that they stand on, and are left out where they could not be read.
            let size = (f64::from(PLANE_WIDTH) / self.groups.len() as f64 * width / 2.4).min(12.0);
            for (place, (label, bars)) in self.groups.iter().enumerate() {
                let centre = place as f64 + 0.5;
                let at = text(13.0).pos(Pos::new(HPos::Center, VPos::Top));
                let below = EmptyElement::at((centre, y.low)) + Text::new(label.clone(), (0, 8 * SUBPIXELS), at);
                chart.draw_series([below])?;
                for (index, (values, (_, colour))) in bars.iter().zip(&self.series).enumerate() {
                    let values: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
                    let Some(spread) = Spread::of(&values) else { continue };
                    let left = centre - 0.35 + width * (index as f64 + 0.06);
                    let right = centre - 0.35 + width * (index as f64 + 0.94);
                    let middle = (left + right) / 2.0;
                    let colour = palette(*colour);
                    let bar = Rectangle::new([(left, 0.0), (right, spread.mean)], tint(colour).filled());
                    chart.draw_series([bar])?;
                    let std = spread.std.unwrap_or(0.0);
                    if std > 0.0 {
                        let whisker = vec![(middle, spread.mean - std), (middle, spread.mean + std)];
                        chart.draw_series([PathElement::new(whisker, INK.stroke_width(pixels(1.4)))])?;
                    }
                    let dots = values.iter().map(|v| Circle::new((middle, *v), 2 * SUBPIXELS, colour.filled()));
                    if spread.n > 1 {
                        chart.draw_series(dots)?;
                    }
                    let top = values.iter().copied().fold(spread.mean + std, f64::max);
                    if size >= 7.5 {
                        let at = text(size).pos(Pos::new(HPos::Center, VPos::Bottom));
                        let figure = Text::new(format!("{:.1}", spread.mean), (0, -5 * SUBPIXELS), at);
                        chart.draw_series([EmptyElement::at((middle, top)) + figure])?;
                    }
                }
            }
            Ok(())
        })
    }
}

/// Means with their 95 % intervals side by side, each beside its single values; the ordinate spans what there is.
#[derive(Debug, Clone)]
pub struct IntervalChart {
    /// The headline.
    pub title: String,
    /// Ordinate.
    pub y: String,
    /// A label, its palette colour, and the values.
    pub series: Vec<(String, usize, Vec<f64>)>,
}

impl IntervalChart {
    /// The chart as an SVG document.
    ///
    /// # Errors
    /// No finite value at all.
    pub fn to_svg(&self) -> Result<String> {
        let spreads: Vec<Option<Spread>> = self.series.iter().map(|(_, _, values)| Spread::of(values)).collect();
        let ends = spreads.iter().flatten().filter_map(Spread::interval_95).flatten();
        let all = self.series.iter().flat_map(|(_, _, values)| values).copied().chain(ends);
        let y = Scale::new(&Axis::linear(&self.y), all.filter(|v| v.is_finite()), 0.08)
            .ok_or_else(|| Error::Input(format!("figure `{}`: no finite value to draw", self.title)))?;
        let legend: Vec<_> = self.series.iter().map(|(label, colour, _)| Key::line(label, *colour)).collect();
        let x = Scale { log: false, low: 0.0, high: self.series.len() as f64 };
        draw(|root| {
            let area = header(root, &self.title, &legend)?;
            let mut chart = frame(&area, x.range(0), y.range(6), 26)?;
            mesh(&mut chart, &x, None, &y, &self.y)?;
            for (place, ((_, colour, values), spread)) in self.series.iter().zip(&spreads).enumerate() {
                let (centre, colour) = (place as f64 + 0.5, palette(*colour));
                let dots =
                    values.iter().map(|v| Circle::new((centre - 0.12, *v), 2 * SUBPIXELS, tint(colour).filled()));
                chart.draw_series(dots)?;
                let Some(spread) = spread else { continue };
                if let Some([low, high]) = spread.interval_95() {
                    for line in [
                        vec![(centre, low), (centre, high)],
                        vec![(centre - 0.05, low), (centre + 0.05, low)],
                        vec![(centre - 0.05, high), (centre + 0.05, high)],
                    ] {
                        chart.draw_series([PathElement::new(line, colour.stroke_width(pixels(1.8)))])?;
                    }
                }
                chart.draw_series([Circle::new((centre, spread.mean), 4 * SUBPIXELS, colour.filled())])?;
                let at = text(12.0).pos(Pos::new(HPos::Left, VPos::Center));
                let figure = Text::new(format!("{:.2}", spread.mean), (9 * SUBPIXELS, 0), at);
                chart.draw_series([EmptyElement::at((centre, spread.mean)) + figure])?;
            }
            Ok(())
        })
    }
}
