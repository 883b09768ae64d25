//! Pictures as files: a chart as SVG and PNG beside the numbers that it shows as CSV.
//!
//! PNG is made from the SVG, at twice its size. Its letters are those of DejaVu Sans, which is part of the program (its licence,
//! Bitstream Vera's, is in the font itself), whatever fonts the machine has: equal pictures are equal files everywhere.

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

/// A picture and the sentence that goes with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// The picture.
    pub picture: Picture,
    /// What to look at.
    pub caption: String,
}

pub(crate) fn shown(picture: Picture, caption: impl Into<String>) -> Shown {
    Shown { picture, caption: caption.into() }
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

#[cfg(test)]
mod tests {
    use super::super::figure::{Axis, Mark, Point, Sample, Series};
    use super::*;

    fn chart(title: &str) -> LineChart {
        let points = vec![
            Point { x: 1.0, y: 0.1, band: Some([1e-300, 0.5]) },
            Point { x: 2.0, y: f64::NAN, band: None },
            Point { x: 1.0 / 3.0, y: 1e21, band: None },
        ];
        LineChart {
            title: title.into(),
            x: Axis::linear("x"),
            y: Axis::log("y"),
            series: vec![Series { label: "a, \"b\"\nc".into(), colour: 0, mark: Mark::Line, points }],
            rules: vec![Rule::Horizontal(0.25, "limit".into()), Rule::Diagonal("y = x".into())],
        }
    }

    /// The share of dark pixels between those corners, in pixels of the SVG.
    fn ink(png: &[u8], [left, top, right, bottom]: [u32; 4]) -> f64 {
        let image = image::load_from_memory(png).unwrap().to_luma8();
        let mut dark = 0;
        for y in 2 * top..2 * bottom {
            dark += (2 * left..2 * right).filter(|x| image.get_pixel(*x, y).0[0] < 128).count();
        }
        dark as f64 / f64::from(4 * (right - left) * (bottom - top))
    }

    #[test]
    fn a_png_is_twice_as_large_and_has_the_text() {
        let png = to_png(&chart("MMMMMMMMMM").to_svg().unwrap()).unwrap();
        assert_eq!(png, to_png(&chart("MMMMMMMMMM").to_svg().unwrap()).unwrap());
        let image = image::load_from_memory(&png).unwrap();
        assert_eq!((image.width(), image.height()), (1280, 760));
        assert_eq!(image.to_rgba8().get_pixel(0, 0).0, [255; 4]);
        // Ten bold M of 15 pixels are about 150 wide, and about a fourth of their box is ink; without a headline there is none.
        let headline = [16, 12, 150, 27];
        let empty = to_png(&chart("").to_svg().unwrap()).unwrap();
        assert_eq!(ink(&empty, headline), 0.0);
        let share = ink(&png, headline);
        assert!((0.1..0.6).contains(&share), "{share}");
        // The same letters in a regular face have less ink.
        let regular = to_png(&chart("MMMMMMMMMM").to_svg().unwrap().replace("font-weight=\"bold\"", "")).unwrap();
        assert!(ink(&regular, headline) < 0.85 * share);
        // The ordinate's label is turned and at the left edge; Greek and signs have shapes of their own.
        assert!(ink(&png, [4, 150, 24, 300]) > 0.0);
        let letters =
            ["ξ", "σ", "β", "λ", "→", "∞", "≤", "±", "−", "é"].map(|c| to_png(&chart(c).to_svg().unwrap()).unwrap());
        for (i, letter) in letters.iter().enumerate() {
            assert!(letters[..i].iter().all(|other| other != letter), "letter {i} looks as another one");
        }
        assert!(to_png("no svg").unwrap_err().to_string().contains("not an SVG document"));
    }

    #[test]
    fn csv_is_read_back_by_another_reader() {
        let csv = Numbers::of_lines(&chart("t")).to_csv().unwrap();
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        assert_eq!(reader.headers().unwrap(), vec!["series", "x", "y", "low", "high"]);
        let rows: Vec<Vec<String>> = reader.records().map(|r| r.unwrap().iter().map(String::from).collect()).collect();
        assert_eq!(
            rows,
            [
                ["a, \"b\"\nc", "1", "0.1", "1e-300", "0.5"],
                ["a, \"b\"\nc", "2", "", "", ""],
                ["a, \"b\"\nc", "0.3333333333333333", "1e21", "", ""],
                ["limit", "", "0.25", "", ""],
            ]
        );
        for value in [1.0 / 3.0, -1e-300, 5e-324, f64::MAX, 0.0, 123_456_789.125, 9.999e15, 1e16, f64::NEG_INFINITY] {
            assert_eq!(written(&value.into()).parse::<f64>().unwrap().to_bits(), value.to_bits());
        }
        let odd = Numbers { rows: vec![vec![Cell::Empty]], ..Numbers::new(&["a", "b"]) };
        assert!(odd.to_csv().unwrap_err().to_string().contains("row 0 of its numbers has 1 cells"));
    }

    #[test]
    fn a_histograms_numbers_are_its_bins_and_curves() {
        let chart = Histogram {
            title: "t".into(),
            x: "x".into(),
            samples: vec![Sample { label: "s".into(), colour: 0, values: vec![0.0, 0.1, 1.0] }],
            bins: 2,
            density: true,
            curves: vec![Series {
                label: "law".into(),
                colour: 1,
                mark: Mark::Line,
                points: vec![Point::new(0.25, 1.5), Point::new(0.75, 0.5)],
            }],
            rules: vec![Rule::Vertical(0.5, "median".into())],
        };
        let csv = Numbers::of_histogram(&chart).unwrap().to_csv().unwrap();
        let bins = "s,0,0.5,2,1.3333333333333333\ns,0.5,1,1,0.6666666666666666\n";
        let others = "law,0.25,0.25,,1.5\nlaw,0.75,0.75,,0.5\nmedian,0.5,0.5,,\n";
        assert_eq!(csv, format!("series,low,high,count,density\n{bins}{others}"));
        let counts = Numbers::of_histogram(&Histogram { density: false, ..chart }).unwrap().to_csv().unwrap();
        assert!(counts.contains("law,0.25,0.25,1.5,\n"));
    }

    #[test]
    fn a_picture_is_three_files() {
        let folder = tempfile::tempdir().unwrap();
        let picture = Picture::of_lines("tail-1.a_b", &chart("T")).unwrap();
        let paths = picture.write(folder.path()).unwrap();
        let names = ["tail-1.a_b.svg", "tail-1.a_b.png", "tail-1.a_b.csv"];
        assert_eq!(paths, names.map(|name| folder.path().join(name)));
        let read = || paths.iter().map(|p| std::fs::read(p).unwrap()).collect::<Vec<_>>();
        let first = read();
        assert_eq!(first[0], picture.svg.as_bytes());
        assert!(first[1].starts_with(b"\x89PNG"));
        picture.write(folder.path()).unwrap();
        assert_eq!(read(), first);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing unfinished is left");
        for name in ["", "a/b", "..", ".a", "a b"] {
            let refused = Picture { name: name.into(), ..picture.clone() }.write(folder.path());
            assert!(refused.unwrap_err().to_string().contains("expected a name of"), "{name}");
        }
        let broken = Picture { svg: "<svg".into(), name: "broken".into(), ..picture };
        assert!(broken.write(folder.path()).unwrap_err().to_string().contains("picture `broken`: not an SVG"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
