//! Lines and dots over a common abscissa, with bands, whiskers and reference lines.

use super::rule::{self, Rule};
use super::scale::{Axis, Scale};
use super::{Canvas, Drawn, Key, SUBPIXELS, draw, frame, header, mesh, palette, pixels};
use crate::error::{Error, Result};
use plotters::element::DashedPathElement;
use plotters::prelude::*;

/// A point of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Abscissa.
    pub x: f64,
    /// Ordinate, often a mean.
    pub y: f64,
    /// Lower and upper end of the interval around `y`: a band along lines, a whisker at [`Mark::Dots`]. Ends that the axis
    /// cannot show reach to the edge of the plane; NaN leaves the interval out.
    pub band: Option<[f64; 2]>,
}

impl Point {
    /// A point without an interval.
    pub fn new(x: f64, y: f64) -> Point {
        Point { x, y, band: None }
    }
}

/// How the points of a series are drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mark {
    /// A line through the points; a dot where there is only one.
    #[default]
    Line,
    /// A dashed line.
    Dashed,
    /// Dots alone, with whiskers for their intervals.
    Dots,
    /// A line with a dot at every point.
    LineDots,
}

impl Mark {
    fn has_dots(self) -> bool {
        matches!(self, Mark::Dots | Mark::LineDots)
    }
}

/// Labelled points.
#[derive(Debug, Clone)]
pub struct Series {
    /// The legend's text; empty leaves the series out of the legend.
    pub label: String,
    /// The colour's place in the palette of seven, so that a thing keeps its colour over several charts.
    pub colour: usize,
    /// How the points are drawn.
    pub mark: Mark,
    /// The points, by rising x where a line joins them.
    pub points: Vec<Point>,
}

/// Lines and dots over a common abscissa.
#[derive(Debug, Clone)]
pub struct LineChart {
    /// The headline.
    pub title: String,
    /// Abscissa.
    pub x: Axis,
    /// Ordinate.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// Reference lines; the axes reach as far as they do.
    pub rules: Vec<Rule>,
}

impl LineChart {
    /// The chart as an SVG document. What an axis cannot show is left out: on a logarithmic one, what is not positive.
    ///
    /// # Errors
    /// No point that the axes can show.
    pub fn to_svg(&self) -> Result<String> {
        let shown: Vec<Vec<Point>> = self
            .series
            .iter()
            .map(|s| s.points.iter().copied().filter(|p| self.x.shows(p.x) && self.y.shows(p.y)).collect())
            .collect();
        if shown.iter().all(Vec::is_empty) {
            return Err(Error::Input(format!("figure `{}`: no point that its axes can show", self.title)));
        }
        let points = || shown.iter().flatten();
        let xs = points().map(|p| p.x).chain(self.rules.iter().filter_map(Rule::x).filter(|v| self.x.shows(*v)));
        // Dots would be cut in half at the edges.
        let dotted = self.series.iter().any(|s| s.mark.has_dots());
        // A band may reach below zero, which a logarithmic axis cannot show: it does not stretch that axis.
        let ys = points().flat_map(|p| [Some(p.y), p.band.map(|b| b[0]), p.band.map(|b| b[1])]).flatten();
        let ys = ys.chain(self.rules.iter().filter_map(Rule::y)).filter(|v| self.y.shows(*v));
        let (Some(x), Some(y)) =
            (Scale::new(&self.x, xs, if dotted { 0.02 } else { 0.0 }), Scale::new(&self.y, ys, 0.05))
        else {
            return Err(Error::Input(format!("figure `{}`: no point that its axes can show", self.title)));
        };
        let legend: Vec<_> = keys(&self.series).chain(rule::keys(&self.rules)).collect();
        draw(|root| {
            let area = header(root, &self.title, &legend)?;
            let mut chart = frame(&area, x.range(7), y.range(6), 44)?;
            mesh(&mut chart, &x, Some(&self.x.label), &y, &self.y.label)?;
            let drawn: Vec<_> =
                self.series.iter().zip(&shown).flat_map(|(s, points)| outline(s, points, &x, &y)).collect();
            let labels = rule::draw(&mut chart, &self.rules, &x, &y, &drawn)?;
            // Bands first: none of them covers another series.
            for (series, points) in self.series.iter().zip(&shown).filter(|(series, _)| series.mark != Mark::Dots) {
                intervals(&mut chart, series, points, &x, &y)?;
            }
            for (series, points) in self.series.iter().zip(&shown) {
                if series.mark == Mark::Dots {
                    intervals(&mut chart, series, points, &x, &y)?;
                }
                marks(&mut chart, series, points.iter().map(|p| (x.place(p.x), y.place(p.y))).collect())?;
            }
            rule::write(&mut chart, labels)
        })
    }
}

/// The legend's entries for series.
pub(super) fn keys(series: &[Series]) -> impl Iterator<Item = Key<'_>> {
    series.iter().map(|s| Key { label: &s.label, colour: palette(s.colour), mark: Some(s.mark) })
}

/// Lower and upper ends of the points' intervals, as far as the plane reaches.
fn ends<'a>(points: &'a [Point], x: &Scale, y: &Scale) -> impl Iterator<Item = [(f64, f64); 2]> + use<'a> {
    let (x, y) = (*x, *y);
    points.iter().filter_map(move |p| {
        let band = p.band.filter(|b| !b.iter().any(|v| v.is_nan()))?;
        Some(band.map(|value| (x.place(p.x), y.place(value).clamp(y.low, y.high))))
    })
}

/// The polylines that a series is seen as.
fn outline(series: &Series, points: &[Point], x: &Scale, y: &Scale) -> Vec<Vec<(f64, f64)>> {
    let places = points.iter().map(|p| (x.place(p.x), y.place(p.y)));
    match series.mark {
        Mark::Dots => places.map(|at| vec![at, at]).chain(ends(points, x, y).map(Vec::from)).collect(),
        _ => vec![places.collect()],
    }
}

fn intervals(chart: &mut Canvas, series: &Series, points: &[Point], x: &Scale, y: &Scale) -> Drawn<()> {
    let colour = palette(series.colour);
    let ends: Vec<_> = ends(points, x, y).collect();
    if series.mark == Mark::Dots {
        let cap = 3 * SUBPIXELS;
        let style = colour.stroke_width(pixels(1.2));
        for [low, high] in ends {
            chart.draw_series([PathElement::new(vec![low, high], style)])?;
            // What reaches beyond the plane has no end to be marked.
            let caps = [low, high].into_iter().filter(|at| at.1 > y.low && at.1 < y.high);
            let caps = caps.map(|at| EmptyElement::at(at) + PathElement::new(vec![(-cap, 0), (cap, 0)], style));
            chart.draw_series(caps)?;
        }
    } else if ends.len() >= 2 {
        let mut band: Vec<_> = ends.iter().map(|[_, high]| *high).collect();
        band.extend(ends.iter().rev().map(|[low, _]| *low));
        chart.draw_series([Polygon::new(band, colour.mix(0.18).filled())])?;
    }
    Ok(())
}

/// Draws a series at places of the plane.
pub(super) fn marks(chart: &mut Canvas, series: &Series, places: Vec<(f64, f64)>) -> Drawn<()> {
    let colour = palette(series.colour);
    if series.mark.has_dots() {
        // Many dots are smaller, so that they stay apart.
        let radius = pixels(if places.len() > 150 { 1.75 } else { 2.75 });
        chart.draw_series(places.iter().map(|at| Circle::new(*at, radius as i32, colour.filled())))?;
    } else if let [only] = places[..] {
        chart.draw_series([Circle::new(only, 3 * SUBPIXELS, colour.filled())])?;
    }
    let style = colour.stroke_width(pixels(1.6));
    match series.mark {
        _ if places.len() < 2 => {}
        Mark::Dots => {}
        Mark::Dashed => dashes(chart, places, style)?,
        Mark::Line | Mark::LineDots => {
            chart.draw_series([PathElement::new(places, style)])?;
        }
    }
    Ok(())
}

/// A dashed line through places of the plane.
pub(super) fn dashes(chart: &mut Canvas, places: Vec<(f64, f64)>, style: ShapeStyle) -> Drawn<()> {
    chart.draw_series([DashedPathElement::new(places, 6 * SUBPIXELS, 4 * SUBPIXELS, style)])?;
    Ok(())
}

/// The parts of a polyline that are inside the plane, cut at its edges; places that are not finite interrupt it.
pub(super) fn inside(places: &[(f64, f64)], x: &Scale, y: &Scale) -> Vec<Vec<(f64, f64)>> {
    let mut parts: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut open = false;
    for pair in places.windows(2) {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]];
        let (mut from, mut to) = (0.0_f64, 1.0_f64);
        for (start, step, low, high) in [(x0, x1 - x0, x.low, x.high), (y0, y1 - y0, y.low, y.high)] {
            if step == 0.0 {
                // Parallel to this pair of edges: all of it or nothing.
                to = if start < low || start > high { -1.0 } else { to };
            } else {
                let (a, b) = ((low - start) / step, (high - start) / step);
                (from, to) = (from.max(a.min(b)), to.min(a.max(b)));
            }
        }
        let finite = [x0, y0, x1, y1].iter().all(|v| v.is_finite());
        if !finite || from > to {
            open = false;
            continue;
        }
        let at = |share: f64| (x0 + share * (x1 - x0), y0 + share * (y1 - y0));
        let end = if to == 1.0 { pair[1] } else { at(to) };
        match parts.last_mut() {
            Some(part) if open && from == 0.0 => part.push(end),
            _ => parts.push(vec![at(from), end]),
        }
        open = to == 1.0;
    }
    parts
}
