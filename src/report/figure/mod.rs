//! Charts as SVG: lines and dots with bands and reference lines, bars and means with the runs' own points, histograms with
//! curves over them; sheets of several charts. [`super::picture`] writes them as files, with PNG and numbers.
//!
//! Text stays text (the viewer's font draws it), and coordinates are drawn on a grid finer than a pixel. The colours are
//! those of Okabe and Ito, which people with any of the common colour deficiencies can tell apart.

mod bar;
mod histogram;
mod line;
mod rule;
mod scale;
#[cfg(test)]
mod tests;

pub use bar::{BarChart, IntervalChart};
pub use histogram::{Bins, Histogram, Sample};
pub use line::{LineChart, Mark, Point, Series};
pub use rule::Rule;
pub use scale::Axis;

use crate::error::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use scale::{Scale, Ticked};

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
const RULE: RGBColor = RGBColor(110, 110, 110);
const FONT: &str = "Helvetica, Arial, sans-serif";
/// plotters rounds coordinates to integers: drawing on a finer grid keeps curves smooth.
const SUBPIXELS: i32 = 4;
/// The size of the ticks' labels, in pixels.
const TICK_SIZE: f64 = 12.0;
const WIDTH: i32 = 640;
const HEIGHT: i32 = 380;
/// Left of the plane: the ordinate's label and ticks; more where the ticks' labels are long.
const LEFT: i32 = 64;
const MARGIN: i32 = 8;
/// Half a tick's label is beyond the plane.
const RIGHT_MARGIN: i32 = 24;
const PLANE_WIDTH: i32 = WIDTH - MARGIN - LEFT - RIGHT_MARGIN;

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

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T> = std::result::Result<T, DrawingAreaErrorKind<std::io::Error>>;
type Plane = Cartesian2d<Ticked, Ticked>;
type Canvas<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Plane>;

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

/// An entry of a legend.
struct Key<'a> {
    label: &'a str,
    colour: RGBColor,
    /// What stands before the label; `None` is the shade of a bar.
    mark: Option<Mark>,
}

impl<'a> Key<'a> {
    fn line(label: &'a str, colour: usize) -> Key<'a> {
        Key { label, colour: palette(colour), mark: Some(Mark::Line) }
    }

    fn draw(&self, root: &Area, x: i32, y: i32, size: f64) -> Drawn<()> {
        let px = |v: i32| v * SUBPIXELS;
        let line = |from: i32, to: i32| {
            let style = self.colour.stroke_width(pixels(3.0));
            root.draw(&PathElement::new([(x + px(from), y), (x + px(to), y)], style))
        };
        match self.mark {
            None => {
                let swatch = [(x, y - px(5)), (x + px(16), y + px(5))];
                root.draw(&Rectangle::new(swatch, tint(self.colour).filled()))?;
            }
            Some(Mark::Dots) => {}
            Some(Mark::Dashed) => {
                line(0, 6)?;
                line(10, 16)?;
            }
            _ => line(0, 16)?,
        }
        if matches!(self.mark, Some(Mark::Dots | Mark::LineDots)) {
            root.draw(&Circle::new((x + px(8), y), px(4), self.colour.filled()))?;
        }
        let at = text(size).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new(self.label.to_string(), (x + px(22), y), at))
    }
}

/// About the width of a text in pixels. The viewer's font is unknown: these are the widths of a broad one, in em.
fn breadth(text: &str, size: f64) -> f64 {
    let of = |c: char| match c {
        'i' | 'j' | 'l' | 'I' | ' ' | '.' | ',' | ':' | ';' | '|' | '!' | '\'' => 0.32,
        'f' | 'r' | 't' | '-' | '(' | ')' | '/' => 0.41,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.96,
        '=' | '+' | '<' | '>' | '→' | '∞' | '≤' | '≥' | 'A'..='Z' => 0.75,
        // Scripts whose letters fill a square.
        '\u{2e80}'.. => 1.0,
        _ => 0.63,
    };
    size * text.chars().map(of).sum::<f64>()
}

/// The largest size up to `size` at which the text is no wider than so many pixels.
fn fitting(text: &str, size: f64, width: f64) -> f64 {
    size.min(width / breadth(text, 1.0).max(1.0))
}

/// Headline and legend; what is left below them. Long texts are set smaller.
fn header<'a>(root: &Area<'a>, title: &str, legend: &[Key]) -> Drawn<Area<'a>> {
    let px = |v: i32| v * SUBPIXELS;
    // Bold letters are wider.
    let size = fitting(title, 15.0, f64::from(WIDTH - 32) / 1.15);
    let headline = (FONT, size * 1.24 * f64::from(SUBPIXELS)).into_font().style(FontStyle::Bold).color(&INK);
    root.draw(&Text::new(title.to_string(), (px(16), px(12)), headline))?;
    let (mut x, mut y) = (px(16), px(46));
    for key in legend.iter().filter(|key| !key.label.is_empty()) {
        let size = fitting(key.label, 12.0, f64::from(WIDTH - 32 - 22));
        let wide = px(22) + pixels(breadth(key.label, size)) as i32;
        if x + wide > px(WIDTH) && x > px(16) {
            (x, y) = (px(16), y + px(18));
        }
        key.draw(root, x, y, size)?;
        x += wide + px(16);
    }
    let top = if legend.iter().all(|key| key.label.is_empty()) { px(38) } else { y + px(14) };
    Ok(root.split_vertically(top).1)
}

/// The plane inside its axes, with that many pixels below it for what describes the abscissa.
fn frame<'a, 'b>(area: &'b Area<'a>, x: Ticked, y: Ticked, below: i32) -> Drawn<Canvas<'a, 'b>> {
    // The ordinate's label takes 26 pixels with what is around the ticks' labels.
    let left = LEFT.max(26 + y.breadth.ceil() as i32);
    ChartBuilder::on(area)
        .margin_right(RIGHT_MARGIN * SUBPIXELS)
        .margin_left(MARGIN * SUBPIXELS)
        .margin_bottom(MARGIN * SUBPIXELS)
        .margin_top(6 * SUBPIXELS)
        .x_label_area_size(below * SUBPIXELS)
        .y_label_area_size(left * SUBPIXELS)
        .build_cartesian_2d(x, y)
}

fn mesh(chart: &mut Canvas, x: &Scale, x_label: Option<&str>, y: &Scale, y_label: &str) -> Drawn<()> {
    let format_x = |v: &f64| x.label(*v);
    let format_y = |v: &f64| y.label(*v);
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(GRID.stroke_width(pixels(1.0)))
        .light_line_style(TRANSPARENT)
        .axis_style(INK.stroke_width(pixels(1.0)))
        .x_label_style(text(TICK_SIZE))
        .y_label_style(text(TICK_SIZE))
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
