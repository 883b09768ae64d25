//! Charts as SVG: lines with a spread band, bars and means with the runs' own points, histograms; sheets of several charts.
//!
//! Text stays text (the viewer's font draws it), and coordinates are drawn on a grid finer than a pixel. The colours are
//! those of Okabe and Ito, which people with any of the common colour deficiencies can tell apart.

use crate::error::{Error, Result};
use crate::stats::Spread;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(226, 226, 226);
const FONT: &str = "Helvetica, Arial, sans-serif";
/// plotters rounds coordinates to integers: drawing on a finer grid keeps curves smooth.
const SUBPIXELS: i32 = 4;
const WIDTH: i32 = 640;
const HEIGHT: i32 = 380;
/// Left of the plane: the ordinate's label and ticks.
const LEFT: i32 = 64;
const MARGIN: i32 = 8;
const RIGHT_MARGIN: i32 = 20;
const PLANE_WIDTH: i32 = WIDTH - MARGIN - LEFT - RIGHT_MARGIN;

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
    fn shows(&self, value: f64) -> bool {
        value.abs() <= 1e300 && (!self.log || value > 0.0)
    }
}

/// A point of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Abscissa.
    pub x: f64,
    /// Ordinate, often a mean.
    pub y: f64,
    /// Half the height of the band around it, often a standard deviation.
    pub spread: Option<f64>,
}

/// A labelled line.
#[derive(Debug, Clone)]
pub struct Series {
    /// The legend's text.
    pub label: String,
    /// The colour's place in the palette of seven, so that a thing keeps its colour over several charts.
    pub colour: usize,
    /// The points, by rising x.
    pub points: Vec<Point>,
}

/// Lines over a common abscissa.
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
}

impl LineChart {
    /// The chart as an SVG document.
    ///
    /// # Errors
    /// No point that the axes can show.
    pub fn to_svg(&self) -> Result<String> {
        let shown: Vec<Vec<Point>> = self
            .series
            .iter()
            .map(|s| s.points.iter().copied().filter(|p| self.x.shows(p.x) && self.y.shows(p.y)).collect())
            .collect();
        let x = Scale::new(&self.x, shown.iter().flatten().map(|p| p.x), 0.0);
        // A band may reach below zero, which a logarithmic axis cannot show: it does not stretch that axis.
        let ys =
            shown.iter().flatten().flat_map(|p| [p.y, p.y - p.spread.unwrap_or(0.0), p.y + p.spread.unwrap_or(0.0)]);
        let y = Scale::new(&self.y, ys.filter(|v| self.y.shows(*v)), 0.05);
        let (Some(x), Some(y)) = (x, y) else {
            return Err(Error::Input(format!("figure `{}`: no point that its axes can show", self.title)));
        };
        let legend: Vec<_> = self.series.iter().map(|s| (s.label.as_str(), s.colour)).collect();
        draw(|root| {
            let area = header(root, &self.title, &legend)?;
            let mut chart = frame(&area, x.range(7), y.range(6), 44)?;
            mesh(&mut chart, &x, Some(&self.x.label), &y, &self.y.label)?;
            for (series, points) in self.series.iter().zip(&shown) {
                let colour = palette(series.colour);
                let edge = |sign: f64| {
                    let y = &y;
                    let x = &x;
                    points.iter().filter_map(move |p| {
                        let value = p.y + sign * p.spread.filter(|s| s.is_finite())?;
                        Some((x.place(p.x), y.place(value).clamp(y.low, y.high)))
                    })
                };
                let mut band: Vec<_> = edge(1.0).collect();
                band.extend(edge(-1.0).collect::<Vec<_>>().into_iter().rev());
                if band.len() >= 4 {
                    chart.draw_series([Polygon::new(band, colour.mix(0.18).filled())])?;
                }
                let line: Vec<_> = points.iter().map(|p| (x.place(p.x), y.place(p.y))).collect();
                if let [only] = line[..] {
                    chart.draw_series([Circle::new(only, 3 * SUBPIXELS, colour.filled())])?;
                } else {
                    chart.draw_series([PathElement::new(line, colour.stroke_width(pixels(1.6)))])?;
                }
            }
            Ok(())
        })
    }
}

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
        let legend: Vec<_> = self.series.iter().map(|(label, colour)| (label.as_str(), *colour)).collect();
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
        let legend: Vec<_> = self.series.iter().map(|(label, colour, _)| (label.as_str(), *colour)).collect();
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

/// Charts of this module in rows of `columns`, as one SVG document.
pub fn sheet(charts: &[String], columns: usize) -> String {
    let columns = columns.min(charts.len()).max(1);
    let rows = charts.len().div_ceil(columns);
    let (width, height) = (WIDTH as usize * columns, HEIGHT as usize * rows);
    let mut out = format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\">\n"
    );
    for (place, chart) in charts.iter().enumerate() {
        let (x, y) = (WIDTH as usize * (place % columns), HEIGHT as usize * (place / columns));
        out += &chart.replacen("<svg ", &format!("<svg x=\"{x}\" y=\"{y}\" "), 1);
        out.push('\n');
    }
    out + "</svg>\n"
}

/// How often values fall into bins of equal width.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// The headline.
    pub title: String,
    /// What the values are, with their unit.
    pub x: String,
    /// The values; those that are not finite are left out.
    pub values: Vec<f64>,
    /// The number of bins.
    pub bins: usize,
}

impl Histogram {
    /// Bin edges (one more than bins) and counts; the last bin includes its upper edge, as in numpy.
    ///
    /// # Errors
    /// No bins, or no finite value.
    pub fn count(&self) -> Result<(Vec<f64>, Vec<u64>)> {
        let values: Vec<f64> = self.values.iter().copied().filter(|v| v.is_finite()).collect();
        let (mut low, mut high) = bounds(values.iter().copied()).filter(|_| self.bins > 0).ok_or_else(|| {
            let (n, bins) = (values.len(), self.bins);
            Error::Input(format!("figure `{}`: {n} finite values and {bins} bins; it needs one of each", self.title))
        })?;
        if low == high {
            (low, high) = (low - 0.5, high + 0.5);
        }
        let width = (high - low) / self.bins as f64;
        let edges: Vec<f64> = (0..self.bins).map(|i| low + width * i as f64).chain([high]).collect();
        let mut counts = vec![0; self.bins];
        for value in values {
            // The last edge that is not above the value; comparing with the edges themselves avoids a rounded division.
            let bin = edges.partition_point(|e| *e <= value).saturating_sub(1).min(self.bins - 1);
            counts[bin] += 1;
        }
        Ok((edges, counts))
    }

    /// The chart as an SVG document.
    ///
    /// # Errors
    /// As [`Histogram::count`].
    pub fn to_svg(&self) -> Result<String> {
        let (edges, counts) = self.count()?;
        let most = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
        let x = Scale { log: false, low: edges[0], high: edges[self.bins] };
        let y = Scale { log: false, low: 0.0, high: most * 1.05 };
        draw(|root| {
            let area = header(root, &self.title, &[])?;
            let mut chart = frame(&area, x.range(7), y.range(6), 44)?;
            mesh(&mut chart, &x, Some(&self.x), &y, "count")?;
            let style = tint(palette(0)).filled();
            chart.draw_series(edges.windows(2).zip(&counts).map(|(edge, count)| {
                let mut bar = Rectangle::new([(edge[0], 0.0), (edge[1], *count as f64)], style);
                bar.set_margin(0, 0, SUBPIXELS as u32 / 2, SUBPIXELS as u32 / 2);
                bar
            }))?;
            Ok(())
        })
    }
}

/// The interval that an axis shows, in decades where it is logarithmic.
#[derive(Debug, Clone, Copy)]
struct Scale {
    log: bool,
    low: f64,
    high: f64,
}

impl Scale {
    /// Covers the values, with a share of the interval added at both ends; `None` without values.
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, padding: f64) -> Option<Scale> {
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

    fn place(&self, value: f64) -> f64 {
        if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value }
    }

    /// Tick places, about `count` of them.
    fn ticks(&self, count: usize) -> Vec<f64> {
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

    fn range(&self, ticks: usize) -> Ticked {
        Ticked { low: self.low, high: self.high, ticks: self.ticks(ticks) }
    }

    fn label(&self, place: f64) -> String {
        if self.log { number(10f64.powf(place), 0.0) } else { number(place, self.high - self.low) }
    }
}

/// A linear coordinate of plotters with our ticks.
struct Ticked {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
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

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
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

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T> = std::result::Result<T, DrawingAreaErrorKind<std::io::Error>>;
type Plane = Cartesian2d<Ticked, Ticked>;

fn palette(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// A lighter shade that covers what is below it.
fn tint(RGBColor(r, g, b): RGBColor) -> RGBColor {
    let lighter = |c: u8| 255 - (255 - c) / 5 * 3;
    RGBColor(lighter(r), lighter(g), lighter(b))
}

fn pixels(size: f64) -> u32 {
    (size * f64::from(SUBPIXELS)).round() as u32
}

fn text(size: f64) -> TextStyle<'static> {
    // plotters' SVG divides sizes by 1.24.
    (FONT, size * 1.24 * f64::from(SUBPIXELS)).into_font().color(&INK)
}

fn draw(body: impl FnOnce(&Area) -> Drawn<()>) -> Result<String> {
    let (width, height) = ((WIDTH * SUBPIXELS) as u32, (HEIGHT * SUBPIXELS) as u32);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        root.fill(&WHITE)
            .and_then(|()| body(&root))
            .and_then(|()| root.present())
            .map_err(|e| Error::Input(format!("figure: it cannot be drawn: {e}")))?;
    }
    Ok(svg.replacen(
        &format!("width=\"{width}\" height=\"{height}\""),
        &format!("width=\"{WIDTH}\" height=\"{HEIGHT}\""),
        1,
    ))
}

/// Headline and legend; what is left below them.
fn header<'a>(root: &Area<'a>, title: &str, legend: &[(&str, usize)]) -> Drawn<Area<'a>> {
    let px = |v: i32| v * SUBPIXELS;
    let headline = (FONT, 15.0 * 1.24 * f64::from(SUBPIXELS)).into_font().style(FontStyle::Bold).color(&INK);
    root.draw(&Text::new(title.to_string(), (px(16), px(12)), headline))?;
    let (mut x, mut y) = (px(16), px(46));
    for (label, colour) in legend {
        // The fonts of the viewer are unknown: 0.6 em a character is generous for any of the family.
        let wide = px(22) + (label.chars().count() as f64 * 0.6 * 12.0) as i32 * SUBPIXELS + px(16);
        if x + wide > px(WIDTH) && x > px(16) {
            (x, y) = (px(16), y + px(18));
        }
        root.draw(&PathElement::new([(x, y), (x + px(16), y)], palette(*colour).stroke_width(pixels(3.0))))?;
        let at = text(12.0).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new((*label).to_string(), (x + px(22), y), at))?;
        x += wide;
    }
    let top = if legend.is_empty() { px(38) } else { y + px(14) };
    Ok(root.split_vertically(top).1)
}

/// The plane inside its axes, with that many pixels below it for what describes the abscissa.
fn frame<'a, 'b>(
    area: &'b Area<'a>,
    x: Ticked,
    y: Ticked,
    below: i32,
) -> Drawn<ChartContext<'b, SVGBackend<'a>, Plane>> {
    ChartBuilder::on(area)
        .margin_right(RIGHT_MARGIN * SUBPIXELS)
        .margin_left(MARGIN * SUBPIXELS)
        .margin_bottom(MARGIN * SUBPIXELS)
        .margin_top(6 * SUBPIXELS)
        .x_label_area_size(below * SUBPIXELS)
        .y_label_area_size(LEFT * SUBPIXELS)
        .build_cartesian_2d(x, y)
}

fn mesh(
    chart: &mut ChartContext<SVGBackend, Plane>,
    x: &Scale,
    x_label: Option<&str>,
    y: &Scale,
    y_label: &str,
) -> Drawn<()> {
    let format_x = |v: &f64| x.label(*v);
    let format_y = |v: &f64| y.label(*v);
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(GRID.stroke_width(pixels(1.0)))
        .light_line_style(TRANSPARENT)
        .axis_style(INK.stroke_width(pixels(1.0)))
        .x_label_style(text(12.0))
        .y_label_style(text(12.0))
        .axis_desc_style(text(13.0))
        .x_label_formatter(&format_x)
        .y_label_formatter(&format_y)
        .set_all_tick_mark_size(4 * SUBPIXELS)
        .y_desc(y_label);
    match x_label {
        Some(label) => mesh.x_desc(label),
        None => mesh.disable_x_mesh(),
    };
    mesh.draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(y: Axis, points: &[(f64, f64)]) -> LineChart {
        let points = points.iter().map(|(x, y)| Point { x: *x, y: *y, spread: Some(0.1) }).collect();
        let series = vec![Series { label: "a <b> & \"c\"".into(), colour: 0, points }];
        LineChart { title: "T".into(), x: Axis::linear("step"), y, series }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = |axis: Axis, low: f64, high: f64| Scale::new(&axis, [low, high].into_iter(), 0.0).unwrap();
        let labels = |s: Scale| s.ticks(6).into_iter().map(|t| s.label(t)).collect::<Vec<_>>();
        assert_eq!(labels(scale(Axis::linear(""), 0.0, 1.0)), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels(scale(Axis::linear(""), -0.3, 0.3)), ["-0.3", "-0.2", "-0.1", "0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(scale(Axis::log(""), 1e-5, 1.0)), ["1e-5", "1e-4", "0.001", "0.01", "0.1", "1"]);
        assert_eq!(labels(scale(Axis::log(""), 1.0, 20.0)), ["1", "2", "5", "10", "20"]);
        assert_eq!(labels(scale(Axis::log(""), 4.0, 5.0)), ["4", "4.2", "4.4", "4.6", "4.8", "5"]);
        assert_eq!(labels(scale(Axis::linear(""), 0.0, 3e7)), ["0", "5e6", "1e7", "1.5e7", "2e7", "2.5e7", "3e7"]);
        for (low, high) in [(5.0, 5.0), (0.0, 0.0), (1e-12, 2e-12), (-1e300, 1e300), (1e9, 1e9 + 1.0)] {
            let s = scale(Axis::linear(""), low, high);
            assert!((2..=14).contains(&s.ticks(6).len()), "{low} {high}: {:?}", s.ticks(6));
        }
    }

    #[test]
    fn charts_are_whole_documents_with_escaped_text() {
        let svg = chart(Axis::linear("loss (nats)"), &[(0.0, 1.0), (1.0, 2.0)]).to_svg().unwrap();
        assert!(
            svg.starts_with("<svg width=\"640\" height=\"380\" viewBox=\"0 0 2560 1520\"")
                && svg.trim_end().ends_with("</svg>")
        );
        assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot;") && svg.contains("loss (nats)"));
        assert!(svg.contains("<polygon"), "the band is drawn");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn what_an_axis_cannot_show_is_left_out() {
        let odd = [(0.0, f64::NAN), (1.0, -1.0), (2.0, 0.01), (3.0, 1.0), (f64::INFINITY, 1.0)];
        let svg = chart(Axis::log("l"), &odd).to_svg().unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(chart(Axis::log("l"), &odd[..2]).to_svg().is_err());
        assert!(chart(Axis::linear("l"), &[]).to_svg().is_err());
        assert!(chart(Axis::linear("l"), &[(1.0, 1.0)]).to_svg().unwrap().contains("<circle"));
    }

    #[test]
    fn histogram_counts_as_numpy() {
        // numpy.histogram([0, 0.1, 0.5, 0.5, 0.9, 1.0], 4) gives [2, 0, 2, 2].
        let h = Histogram {
            title: "t".into(),
            x: "x".into(),
            values: vec![0.0, 0.1, 0.5, 0.5, 0.9, 1.0, f64::NAN],
            bins: 4,
        };
        assert_eq!(h.count().unwrap(), (vec![0.0, 0.25, 0.5, 0.75, 1.0], vec![2, 0, 2, 2]));
        assert!(h.to_svg().unwrap().matches("<rect").count() >= 4);
        let constant = Histogram { values: vec![3.0; 5], ..h.clone() };
        assert_eq!(constant.count().unwrap().1.iter().sum::<u64>(), 5);
        assert!(Histogram { values: vec![f64::NAN], ..h.clone() }.to_svg().is_err());
        assert!(Histogram { bins: 0, ..h }.to_svg().is_err());
    }

    #[test]
    fn intervals_show_means_ends_and_single_values() {
        let chart = IntervalChart {
            title: "t".into(),
            y: "accuracy (%)".into(),
            series: vec![("a".into(), 0, vec![80.0, 84.0]), ("b".into(), 1, vec![90.0]), ("c".into(), 2, vec![])],
        };
        let svg = chart.to_svg().unwrap();
        assert!(svg.contains("82.00") && svg.contains("90.00"));
        assert_eq!(svg.matches("<circle").count(), 5, "three values and two means");
        // The interval of 80 and 84 is 82 +- 25.4: the axis shows it, and a single value has none.
        assert!(svg.contains("\n100\n") && svg.contains("\n60\n"));
        assert!(IntervalChart { series: vec![("x".into(), 0, vec![])], ..chart.clone() }.to_svg().is_err());
        let sheet = sheet(&[svg.clone(), svg.clone(), svg], 2);
        assert!(sheet.starts_with("<svg width=\"1280\" height=\"760\""));
        assert_eq!((sheet.matches("<svg").count(), sheet.matches("</svg>").count()), (4, 4));
        assert!(sheet.contains("<svg x=\"640\" y=\"0\"") && sheet.contains("<svg x=\"0\" y=\"380\""));
    }

    #[test]
    fn bars_show_means_and_single_values() {
        let bars = BarChart {
            title: "t".into(),
            y: "accuracy (%)".into(),
            series: vec![("a".into(), 0), ("b".into(), 1)],
            groups: vec![
                ("linear".into(), vec![vec![80.0, 84.0], vec![90.0]]),
                ("kNN".into(), vec![vec![], vec![70.0]]),
            ],
        };
        let svg = bars.to_svg().unwrap();
        assert!(svg.contains("82.0") && svg.contains("90.0") && svg.contains("70.0"));
        assert_eq!(svg.matches("<circle").count(), 2, "dots where there is more than one value");
        assert!(BarChart { groups: vec![("x".into(), vec![vec![]])], ..bars }.to_svg().is_err());
    }
}
