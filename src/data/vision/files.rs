//! Images that stay in their files and are decoded each time they are asked for.

use super::decode::{Decoding, decode};
use super::set::list_sha256;
use crate::augment::Planes;
use crate::checkpoint::sha256_of;
use crate::error::{Error, Result};
use crate::progress::progress_bar;
use rayon::{ThreadPool, ThreadPoolBuilder, prelude::*};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A file larger than this for each pixel that it may have is no image.
const MOST_BYTES_A_PIXEL: u64 = 16;

/// Buffers for reading images, to be used again: one for each thread.
#[derive(Debug, Default)]
pub struct Decoder {
    file: Vec<u8>,
    scratch: Vec<u8>,
    planes: Planes,
}

impl Decoder {
    /// The bytes of the file that was read last.
    pub(super) fn file(&self) -> &[u8] {
        &self.file
    }

    /// The image that was decoded last.
    pub(super) fn take_planes(&mut self) -> Planes {
        std::mem::take(&mut self.planes)
    }
}

/// A file of a set.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ImageFile {
    /// Within the root.
    pub path: PathBuf,
    /// Its class; -1 where the set has none.
    pub label: i64,
}

/// A file that is no whole image, or cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub struct BadFile {
    /// Its path.
    pub path: PathBuf,
    /// Why it was left out.
    pub reason: String,
}

impl BadFile {
    /// The error that it is where such files are not left out.
    pub(super) fn error(self) -> Error {
        let hint = "mend or remove it (`doctor data` lists all of them), or leave such files out: data.bad_files: skip";
        Error::data(self.path, None, format!("{}; {hint}", self.reason))
    }
}

/// The files of a set, in order.
#[derive(Clone, Debug)]
pub(super) struct Files {
    /// The folder that all are in.
    pub root: PathBuf,
    /// The files.
    pub files: Vec<ImageFile>,
    /// How they are decoded.
    pub how: Decoding,
    /// Height and width that every image must have, where the set's format says so.
    pub shape: Option<[usize; 2]>,
}

impl Files {
    /// Where a file is.
    pub fn path(&self, index: usize) -> PathBuf {
        self.root.join(&self.files[index].path)
    }

    /// SHA-256 of the files' classes and names.
    pub fn list_sha256(&self) -> String {
        list_sha256(self.files.iter().map(|file| (file.label, Some(file.path.as_path()))))
    }

    /// Decodes a file into the decoder's planes.
    ///
    /// # Errors
    /// A file that cannot be read, and the reason why one is no image of the set.
    pub fn read<'a>(&self, index: usize, decoder: &'a mut Decoder) -> Result<&'a Planes> {
        self.bytes(index, decoder)?;
        self.decode(decoder).map_err(|reason| BadFile { path: self.path(index), reason }.error())?;
        Ok(&decoder.planes)
    }

    /// Reads a file's bytes.
    fn bytes(&self, index: usize, decoder: &mut Decoder) -> Result<()> {
        use std::io::Read;
        decoder.file.clear();
        let path = self.path(index);
        let file = std::fs::File::open(&path).map_err(Error::io(&path, "cannot open the image"))?;
        let most = self.how.max_pixels.saturating_mul(MOST_BYTES_A_PIXEL).saturating_add(1 << 20);
        file.take(most).read_to_end(&mut decoder.file).map_err(Error::io(&path, "cannot read the image"))?;
        Ok(())
    }

    fn decode(&self, decoder: &mut Decoder) -> std::result::Result<(), String> {
        let Decoder { file, scratch, planes } = decoder;
        decode(file, self.how, scratch, planes)?;
        match self.shape {
            Some([height, width]) if (planes.height, planes.width) != (height, width) => Err(format!(
                "has {} x {} pixels; expected {height} x {width} as every image of this set",
                planes.height, planes.width
            )),
            _ => Ok(()),
        }
    }

    /// Decodes a file into the decoder's planes; gives why it cannot be used, if so.
    pub fn examine(&self, index: usize, decoder: &mut Decoder) -> Option<String> {
        match self.bytes(index, decoder) {
            Err(e) => Some(e.to_string()),
            Ok(()) => self.decode(decoder).err(),
        }
    }

    /// Takes the files that are no whole images out of the set, and gives them. All are decoded, on `threads` threads.
    ///
    /// # Errors
    /// No file left.
    pub fn leave_out_bad(&mut self, threads: usize) -> Result<Vec<BadFile>> {
        let bar = progress_bar("images checked");
        bar.set_length(self.files.len() as u64);
        let reasons: Vec<Option<String>> = pool(threads)?.install(|| {
            (0..self.files.len())
                .into_par_iter()
                .map_init(Decoder::default, |decoder, index| {
                    let reason = self.examine(index, decoder);
                    bar.inc(1);
                    reason
                })
                .collect()
        });
        bar.finish_and_clear();
        let bad = bad_files(self, &reasons);
        let mut reasons = reasons.into_iter();
        self.files.retain(|_| reasons.next().flatten().is_none());
        self.refuse_empty(&bad)?;
        Ok(bad)
    }

    /// Refuses a set that has no image left.
    pub fn refuse_empty(&self, bad: &[BadFile]) -> Result<()> {
        match bad.first() {
            Some(first) if self.files.is_empty() => Err(Error::data(
                &self.root,
                None,
                format!(
                    "none of {} files is a whole image; {}, for one: {}",
                    bad.len(),
                    first.path.display(),
                    first.reason
                ),
            )),
            _ => Ok(()),
        }
    }

    /// SHA-256 of all labels and of the files' bytes, and of how they are decoded.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn sha256(&self, threads: usize) -> Result<String> {
        let bar = progress_bar("images hashed");
        bar.set_length(self.files.len() as u64);
        let hashes: Vec<String> = pool(threads)?.install(|| {
            (0..self.files.len())
                .into_par_iter()
                .map(|index| {
                    let hash = sha256_of(&self.path(index));
                    bar.inc(1);
                    hash
                })
                .collect::<Result<_>>()
        })?;
        bar.finish_and_clear();
        Ok(hash_of_files(self.how, self.files.iter().map(|f| f.label).zip(hashes.iter().map(String::as_str))))
    }
}

/// A pool of so many threads.
pub(super) fn pool(threads: usize) -> Result<ThreadPool> {
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|e| Error::Input(format!("{threads} threads for reading images cannot be started: {e}")))
}

/// The files that have a reason.
pub(super) fn bad_files(files: &Files, reasons: &[Option<String>]) -> Vec<BadFile> {
    let bad = reasons.iter().enumerate().filter_map(|(index, reason)| Some((index, reason.as_ref()?)));
    bad.map(|(index, reason)| BadFile { path: files.path(index), reason: reason.clone() }).collect()
}

/// The hash of a set of files: of labels, hashes of the files, and how they are decoded.
pub(super) fn hash_of_files<'a>(how: Decoding, files: impl Iterator<Item = (i64, &'a str)>) -> String {
    let mut hash = Sha256::new();
    hash.update([u8::from(how.exif_orientation)]);
    for (label, file) in files {
        hash.update(label.to_le_bytes());
        hash.update(file);
    }
    format!("{:x}", hash.finalize())
}

/// Whether a file's name ends as that of an image: torchvision's list, and GIF.
pub(super) fn is_image_name(path: &Path) -> bool {
    const ENDINGS: [&str; 10] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif"];
    let ending = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
}
