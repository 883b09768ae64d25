//! What `doctor data` finds out about a run's images: how many of which class, their sizes, mean and deviation, damaged files;
//! and a sheet of the views that training would see.

use crate::augment::{Canvas, Views};
use crate::config::augment::AugmentConfig;
use crate::config::run::RunConfig;
use crate::config::vision::VisionConfig;
use crate::data::vision::{BadFile, Decoder};
use crate::data::{self, ImageSet, Sampler, Split, fit_of};
use crate::error::{Error, Result};
use crate::progress::progress_bar;
use crate::report::contact_sheet::{View, contact_sheet};
use rayon::prelude::*;
use serde::Serialize;
use std::fmt::Write;

/// Images of the sheet, a row each.
const SHEET_ROWS: usize = 8;
/// Epochs of the sheet: two views of each.
const SHEET_EPOCHS: u64 = 3;

/// What was found about the parts of a data set.
#[derive(Debug, Serialize)]
pub struct DataFindings {
    /// The configuration's `data.kind` and place.
    pub source: String,
    /// Edge of the views, in pixels.
    pub view_size: usize,
    /// The parts: those to pretrain on, where they are others than those to fit on, to fit on, to test on.
    pub parts: Vec<Part>,
}

/// A part of a data set.
#[derive(Debug, Serialize)]
pub struct Part {
    /// `pretrain`, `train` or `test`.
    pub name: &'static str,
    /// Whole images.
    pub images: usize,
    /// Images of them without a label.
    pub unlabelled: usize,
    /// Images of each class.
    pub class_counts: Vec<usize>,
    /// Names of the classes, where there are some.
    pub class_names: Vec<String>,
    /// Least and greatest height.
    pub heights: [usize; 2],
    /// Least and greatest width.
    pub widths: [usize; 2],
    /// Mean of red, green and blue over all pixels, of values from 0 to 1.
    pub mean: [f64; 3],
    /// Their standard deviation.
    pub std: [f64; 3],
    /// Files that are no whole images.
    pub bad_files: Vec<Bad>,
}

/// A file that is no whole image.
#[derive(Clone, Debug, Serialize)]
pub struct Bad {
    /// Its path.
    pub path: String,
    /// Why.
    pub reason: String,
}

impl From<&BadFile> for Bad {
    fn from(bad: &BadFile) -> Bad {
        Bad { path: bad.path.display().to_string(), reason: bad.reason.clone() }
    }
}

/// The parts of a run's data set by name, what it pretrains on first.
///
/// # Errors
/// Values out of range; a set that is missing, or damaged in more than single image files.
pub fn load_parts(config: &VisionConfig) -> Result<Vec<(&'static str, ImageSet)>> {
    config.validate()?;
    let mut splits = vec![("train", Split::Train), ("test", Split::Test)];
    if config.data.pretrains_apart() {
        splits.insert(0, ("pretrain", Split::Pretrain));
    }
    splits.into_iter().map(|(name, split)| Ok((name, data::load(&config.data, split)?))).collect()
}

/// Reads every image of the parts of a run's data set.
///
/// # Errors
/// Images of no common size without a size for the views; a part without a whole image.
pub fn examine_data(config: &VisionConfig, parts: &[(&'static str, ImageSet)]) -> Result<DataFindings> {
    let mut view_size = 0;
    let mut found = Vec::new();
    for (name, set) in parts {
        view_size = config.augment.view_size(set.shape())?;
        found.push(examine_part(name, set)?);
    }
    Ok(DataFindings { source: config.data.location(), view_size, parts: found })
}

/// Sums over images; all of them exact, so that their order is of no matter.
#[derive(Clone, Default)]
struct Sums {
    images: usize,
    heights: Option<[usize; 2]>,
    widths: Option<[usize; 2]>,
    pixels: u64,
    values: [u64; 3],
    squares: [u128; 3],
    bad: Vec<Bad>,
}

/// The range that has both; none has nothing.
fn widen(a: Option<[usize; 2]>, b: Option<[usize; 2]>) -> Option<[usize; 2]> {
    match (a, b) {
        (Some(a), Some(b)) => Some([a[0].min(b[0]), a[1].max(b[1])]),
        (a, b) => a.or(b),
    }
}

impl Sums {
    fn add(mut self, other: Sums) -> Sums {
        self.images += other.images;
        self.heights = widen(self.heights, other.heights);
        self.widths = widen(self.widths, other.widths);
        self.pixels += other.pixels;
        for c in 0..3 {
            self.values[c] += other.values[c];
            self.squares[c] += other.squares[c];
        }
        self.bad.extend(other.bad);
        self
    }

    fn of(set: &ImageSet, index: usize, decoder: &mut Decoder) -> Sums {
        let image = match set.image(index, decoder) {
            Ok(image) => image,
            Err(Error::Data { path, message, .. }) => {
                let bad = Bad { path: path.display().to_string(), reason: message };
                return Sums { bad: vec![bad], ..Sums::default() };
            }
            Err(e) => {
                return Sums {
                    bad: vec![Bad { path: format!("image {index}"), reason: e.to_string() }],
                    ..Sums::default()
                };
            }
        };
        let area = image.height * image.width;
        let mut sums = Sums {
            images: 1,
            heights: Some([image.height; 2]),
            widths: Some([image.width; 2]),
            pixels: area as u64,
            ..Sums::default()
        };
        for channel in 0..3 {
            let plane = &image.bytes[if image.channels == 1 { 0 } else { channel } * area..][..area];
            // A block's sums fit 32 bits, which the compiler adds several at a time.
            for block in plane.chunks(1 << 15) {
                sums.values[channel] += u64::from(block.iter().map(|v| u32::from(*v)).sum::<u32>());
                sums.squares[channel] += u128::from(block.iter().map(|v| u32::from(*v) * u32::from(*v)).sum::<u32>());
            }
        }
        sums
    }
}

fn examine_part(name: &'static str, set: &ImageSet) -> Result<Part> {
    let bar = progress_bar("images read");
    bar.set_length(set.len() as u64);
    let sums = (0..set.len())
        .into_par_iter()
        .map_init(Decoder::default, |decoder, index| {
            bar.inc(1);
            Sums::of(set, index, decoder)
        })
        .reduce(Sums::default, Sums::add);
    bar.finish_and_clear();
    let (Some(heights), Some(widths)) = (sums.heights, sums.widths) else {
        let first = sums.bad.first().map(|bad| format!("{}: {}", bad.path, bad.reason)).unwrap_or_default();
        return Err(Error::Input(format!("no image of the {name} part can be read; {first}")));
    };
    let n = sums.pixels as f64;
    let mean = sums.values.map(|v| v as f64 / n / 255.0);
    let variance = |c: usize| (sums.squares[c] as f64 / n / 255.0 / 255.0 - mean[c] * mean[c]).max(0.0);
    let mut bad_files: Vec<Bad> = set.bad_files.iter().map(Bad::from).chain(sums.bad).collect();
    bad_files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Part {
        name,
        images: sums.images,
        unlabelled: set.labels.iter().filter(|label| **label < 0).count(),
        class_counts: set.class_counts(),
        class_names: set.class_names.clone(),
        heights,
        widths,
        mean,
        std: [0, 1, 2].map(|c| variance(c).sqrt()),
        bad_files,
    })
}

impl DataFindings {
    /// The findings for a terminal.
    pub fn to_text(&self) -> String {
        let range =
            |[least, most]: [usize; 2]| if least == most { least.to_string() } else { format!("{least} to {most}") };
        let numbers = |values: [f64; 3]| values.map(|v| format!("{v:.4}")).join(", ");
        let mut out = format!("{:<10} {}\n{:<10} {} x {1}\n", "data", self.source, "views", self.view_size);
        for part in &self.parts {
            let (counts, names) = (&part.class_counts, &part.class_names);
            let _ = writeln!(out, "\n{:<10} {} images, {} classes", part.name, part.images, counts.len());
            let mut line = |name: &str, text: String| {
                let _ = writeln!(out, "  {name:<8} {text}");
            };
            line("pixels", format!("{} high, {} wide", range(part.heights), range(part.widths)));
            line("mean", format!("[{}]", numbers(part.mean)));
            line("std", format!("[{}]", numbers(part.std)));
            if part.unlabelled > 0 {
                line("unlabelled", part.unlabelled.to_string());
            }
            if let (Some(least), Some(most)) = (counts.iter().min(), counts.iter().max()) {
                line("a class", format!("{} images", range([*least, *most])));
            }
            if counts.len() <= 20 {
                for (label, count) in counts.iter().enumerate() {
                    line("", format!("{label:>3} {count:>8}  {}", names.get(label).map_or("", String::as_str)));
                }
            }
            if !part.bad_files.is_empty() {
                line("damaged", format!("{} files", part.bad_files.len()));
                for bad in part.bad_files.iter().take(20) {
                    line("", format!("{}: {}", bad.path, bad.reason));
                }
            }
        }
        out
    }

    /// Files that are no whole images, in all parts.
    pub fn damaged(&self) -> usize {
        self.parts.iter().map(|part| part.bad_files.len()).sum()
    }
}

/// A sheet of the first images that a run pretrains on, as PNG: in each row the image as evaluation sees it, then its pairs of views in the first
/// epochs, the very ones that training computes with, without the normalisation.
///
/// # Errors
/// What the data set reports.
pub fn preview(config: &VisionConfig, set: &ImageSet) -> Result<Vec<u8>> {
    let size = config.augment.view_size(set.shape())?;
    let views = Views::new(&AugmentConfig { normalize: None, ..config.augment.clone() }, size)?;
    let order = Sampler::new(set.len(), config.train.batch_size.min(set.len()), config.seed)?.order(0);
    let (mut decoder, mut canvas) = (Decoder::default(), Canvas::default());
    let mut numbers = vec![0.0; 3 * size * size];
    let shown = |numbers: &[f32]| View {
        height: size,
        width: size,
        pixels: numbers.iter().map(|x| (x * 255.0).round() as u8).collect(),
    };
    let mut rows = Vec::new();
    for sample in order.into_iter().take(SHEET_ROWS) {
        let image = set.image(sample as usize, &mut decoder)?;
        views.plain(image, fit_of(set), &mut canvas, &mut numbers);
        let mut row = vec![shown(&numbers)];
        for (epoch, view) in (0..SHEET_EPOCHS).flat_map(|epoch| [(epoch, 0), (epoch, 1)]) {
            views.make(image, [config.seed, epoch, u64::from(sample)], view, &mut canvas, &mut numbers);
            row.push(shown(&numbers));
        }
        rows.push(row);
    }
    contact_sheet(&rows, 64usize.div_ceil(size).clamp(1, 6))
}
