//! Pictures as files: a chart as SVG and PNG beside the numbers that it shows as CSV.
//!
//! PNG is made from the SVG, at twice its size. Its letters are those of DejaVu Sans, which is part of the program, whatever
//! fonts the machine has: equal pictures are equal files everywhere.

use super::figure::{Histogram, LineChart, Rule};
use crate::checkpoint::write_bytes;
use crate::error::{Error, Result};
use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{self, fontdb};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Pixels of a PNG for each of the SVG, along both sides.
const MAGNIFICATION: f32 = 2.0;

/// A chart and the numbers that it shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// What its files are called, without an ending: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// What it shows, in a line.
    pub title: String,
    /// The SVG document.
    pub svg: String,
    /// What it shows, as numbers.
    pub numbers: Numbers,
}

impl Picture {
    /// A picture of lines and dots.
    ///
    /// # Errors
    /// As [`LineChart::to_svg`].
    pub fn of_lines(name: &str, chart: &LineChart) -> Result<Picture> {
        Ok(Picture {
            name: name.to_string(),
            title: chart.title.clone(),
            svg: chart.to_svg()?,
            numbers: Numbers::of_lines(chart),
        })
    }

    /// A picture of a histogram.
    ///
    /// # Errors
    /// As [`Histogram::count`].
    pub fn of_histogram(name: &str, chart: &Histogram) -> Result<Picture> {
        Ok(Picture {
            name: name.to_string(),
            title: chart.title.clone(),
            svg: chart.to_svg()?,
            numbers: Numbers::of_histogram(chart)?,
        })
    }

    /// Writes `NAME.svg`, `NAME.png` and `NAME.csv` into the folder, which must be there; gives their paths in this order.
    /// Each is written beside its place and renamed.
    ///
    /// # Errors
    /// A name that is no file's; a document that is no SVG; rows that do not fit their columns; what the system refuses.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.starts_with('.') || !self.name.chars().all(allowed) {
            return Err(Error::Input(format!(
                "picture `{}`: expected a name of letters, digits, `-`, `_` and `.` that does not begin with `.`",
                self.name
            )));
        }
        let of_picture = |e: Error| Error::Input(format!("picture `{}`: {e}", self.name));
        let png = to_png(&self.svg).map_err(of_picture)?;
        let csv = self.numbers.to_csv().map_err(of_picture)?;
        let files = [("svg", self.svg.as_bytes()), ("png", &png), ("csv", csv.as_bytes())];
        let write = |(ending, bytes): (&str, &[u8])| {
            let path = folder.join(format!("{}.{ending}", self.name));
            write_bytes(&path, bytes).map(|()| path)
        };
        files.into_iter().map(write).collect()
    }
}

/// A value of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// A number, written so that it reads back as the same float64; NaN is written as nothing.
    Number(f64),
    /// A text.
    Text(String),
    /// Nothing.
    Empty,
}

impl From<f64> for Cell {
    fn from(value: f64) -> Cell {
        Cell::Number(value)
    }
}

impl From<Option<f64>> for Cell {
    fn from(value: Option<f64>) -> Cell {
        value.map_or(Cell::Empty, Cell::Number)
    }
}

impl From<&str> for Cell {
    fn from(value: &str) -> Cell {
        Cell::Text(value.to_string())
    }
}

/// A table of what a picture shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers {
    /// The columns' names.
    pub columns: Vec<String>,
    /// Rows, each of a cell a column.
    pub rows: Vec<Vec<Cell>>,
}

impl Numbers {
    /// A table without rows.
    pub fn new(columns: &[&str]) -> Numbers {
        Numbers { columns: columns.iter().map(|c| c.to_string()).collect(), rows: Vec::new() }
    }

    /// The columns `series`, `x`, `y`, `low`, `high`: a row a point, whether or not the axes can show it, and a row a
    /// reference line that has a place, named by its label.
    pub fn of_lines(chart: &LineChart) -> Numbers {
        let mut out = Numbers::new(&["series", "x", "y", "low", "high"]);
        for series in &chart.series {
            let row = |p: &super::figure::Point| {
                let [low, high] = p.band.map_or([Cell::Empty, Cell::Empty], |b| b.map(Cell::Number));
                vec![series.label.as_str().into(), p.x.into(), p.y.into(), low, high]
            };
            out.rows.extend(series.points.iter().map(row));
        }
        for rule in &chart.rules {
            let (label, x, y) = match rule {
                Rule::Horizontal(at, label) => (label, Cell::Empty, Cell::Number(*at)),
                Rule::Vertical(at, label) => (label, Cell::Number(*at), Cell::Empty),
                Rule::Diagonal(_) => continue,
            };
            out.rows.push(vec![label.as_str().into(), x, y, Cell::Empty, Cell::Empty]);
        }
        out
    }

    /// The columns `series`, `low`, `high`, `count`, `density`: a row a sample and bin. A curve's point, with its place as both
    /// ends, has its height in `density` or else in `count`, as the chart shows; a vertical reference line has its place alone.
    ///
    /// # Errors
    /// As [`Histogram::count`].
    pub fn of_histogram(chart: &Histogram) -> Result<Numbers> {
        let mut out = Numbers::new(&["series", "low", "high", "count", "density"]);
        let bins = chart.count()?;
        for ((sample, counts), densities) in chart.samples.iter().zip(&bins.counts).zip(bins.densities()) {
            for ((edge, count), density) in bins.edges.windows(2).zip(counts).zip(densities) {
                let label = sample.label.as_str().into();
                out.rows.push(vec![label, edge[0].into(), edge[1].into(), (*count as f64).into(), density.into()]);
            }
        }
        let height = |y: Cell| if chart.density { [Cell::Empty, y] } else { [y, Cell::Empty] };
        for curve in &chart.curves {
            for p in &curve.points {
                let [count, density] = height(p.y.into());
                out.rows.push(vec![curve.label.as_str().into(), p.x.into(), p.x.into(), count, density]);
            }
        }
        for rule in &chart.rules {
            let (label, at, y) = match rule {
                Rule::Horizontal(at, label) => (label, Cell::Empty, Cell::Number(*at)),
                Rule::Vertical(at, label) => (label, Cell::Number(*at), Cell::Empty),
                Rule::Diagonal(_) => continue,
            };
            let [count, density] = height(y);
            out.rows.push(vec![label.as_str().into(), at.clone(), at, count, density]);
        }
        Ok(out)
    }

    /// The table as RFC 4180 has it, but for line ends of one byte: texts are quoted where they must be, numbers read back as
    /// the same float64.
    ///
    /// # Errors
    /// A row that has another number of cells than there are columns.
    pub fn to_csv(&self) -> Result<String> {
        let mut out = self.columns.iter().map(|c| quoted(c)).collect::<Vec<_>>().join(",") + "\n";
        for (index, row) in self.rows.iter().enumerate() {
            if row.len() != self.columns.len() {
                return Err(Error::Input(format!(
                    "row {index} of its numbers has {} cells, expected one for each of the {} columns",
                    row.len(),
                    self.columns.len()
                )));
            }
            out += &row.iter().map(written).collect::<Vec<_>>().join(",");
            out.push('\n');
        }
        Ok(out)
    }
}

fn written(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => quoted(text),
        Cell::Number(v) if v.is_nan() => String::new(),
        // Without an exponent 1e-300 has 302 digits. Both forms are the shortest that read back as the same number.
        Cell::Number(v) if v.is_finite() && *v != 0.0 && !(1e-5..1e16).contains(&v.abs()) => format!("{v:e}"),
        Cell::Number(v) => v.to_string(),
        Cell::Empty => String::new(),
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_string() }
}

/// The document as PNG at twice its size; every font of the document is DejaVu Sans, regular or bold.
///
/// # Errors
/// A text that is no SVG document.
pub fn to_png(svg: &str) -> Result<Vec<u8>> {
    let options = usvg::Options { fontdb: fonts(), ..usvg::Options::default() };
    let tree = usvg::Tree::from_str(svg, &options).map_err(|e| Error::Input(format!("not an SVG document: {e}")))?;
    let size = tree.size();
    let pixels = |length: f32| (length * MAGNIFICATION).round() as u32;
    let (width, height) = (pixels(size.width()), pixels(size.height()));
    let mut map = Pixmap::new(width, height)
        .ok_or_else(|| Error::Input(format!("an SVG document too large for a PNG: {width} x {height} pixels")))?;
    map.fill(Color::WHITE);
    resvg::render(&tree, Transform::from_scale(MAGNIFICATION, MAGNIFICATION), &mut map.as_mut());
    map.encode_png().map_err(|e| Error::Input(format!("the PNG cannot be encoded: {e}")))
}

fn fonts() -> Arc<fontdb::Database> {
    static FONTS: OnceLock<Arc<fontdb::Database>> = OnceLock::new();
    let load = || {
        let mut fonts = fontdb::Database::new();
        for font in [dejavu::sans::regular(), dejavu::sans::bold()] {
            fonts.load_font_source(fontdb::Source::Binary(Arc::new(font)));
        }
        // What a document's list of fonts ends in; none of the others is there.
        fonts.set_sans_serif_family("DejaVu Sans");
        Arc::new(fonts)
    };
    FONTS.get_or_init(load).clone()
}
