//! Decoded images of a set of files in one file, which is mapped into memory from the second start on.
//!
//! The file is safetensors: `pixels` (bytes, image after image, in each the planes), `offsets`, `shapes` [n, 2], and `files`: a line
//! of JSON for each file with its path, length, time of change, SHA-256 and, where it is no image, the reason. A file of the
//! set that has another length or another content than its line says makes the cache anew; a mere change of its time does not.

use super::files::{BadFile, Decoder, Files, bad_files, hash_of_files, pool};
use crate::augment::{Planes, PlanesRef};
use crate::checkpoint::{sha256_of, write_atomically};
use crate::error::{Error, Result};
use crate::lock::{try_lock, wait_for_lock};
use crate::progress::progress_bar;
use crate::torch::Mapped;
use rayon::prelude::*;
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Room for the header, which is written last.
const HEADER: usize = 1024;
/// Files decoded before they are written, for each thread.
const AHEAD: usize = 16;
/// Part of the cache's name: another number where its content would be another.
const VERSION: u32 = 2;

/// The decoded images of a set.
#[derive(Debug)]
pub(super) struct Cache {
    map: Mapped,
    /// Where the pixels begin in the file.
    begin: usize,
    /// Where each image begins among the pixels, and the end.
    offsets: Vec<u64>,
    /// Height and width.
    shapes: Vec<[u32; 2]>,
}

/// What the cache says of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Line(String, u64, u64, String, Option<String>);

impl Line {
    /// The length and the time of the last change, in nanoseconds, of a file as it is now.
    fn stamp(path: &Path) -> Result<(u64, u64)> {
        let data = path.metadata().map_err(Error::io(path, "cannot read"))?;
        let time = data.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        Ok((data.len(), time.map_or(0, |t| t.as_nanos() as u64)))
    }
}

/// What a cache gives: the images, their hash, and the files that are none.
pub(super) struct Opened {
    pub images: Cache,
    pub sha256: String,
    pub bad: Vec<BadFile>,
}

/// Maps the cache of a set in `folder`, made first if it is not there or of other files. Where `skip` is set, files that are no
/// images are taken out of `files`.
///
/// # Errors
/// A file that is no image, without `skip`; no image left; a folder that cannot be written.
pub(super) fn open(folder: &Path, files: &mut Files, skip: bool, threads: usize) -> Result<Opened> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "cannot make the cache's folder (data.cache)"))?;
    let path = folder.join(format!("{}.safetensors", key(files)?));
    // Two processes that need the same cache make it one after the other: the second finds it.
    let lock = path.with_extension("lock");
    let file = std::fs::File::create(&lock).map_err(Error::io(&lock, "cannot lock the cache (data.cache)"))?;
    if !try_lock(&file).map_err(Error::io(&lock, "cannot lock the cache"))? {
        eprintln!("waiting for another process that fills {}", path.display());
        wait_for_lock(&file).map_err(Error::io(&lock, "cannot lock the cache"))?;
    }
    let opened = match read(&path, files, threads) {
        Ok(Some(opened)) => opened,
        found => {
            if let Err(e) = found {
                eprintln!("note: the cache is made anew, as it cannot be read: {e}");
            }
            pack(&path, files, skip, threads)?;
            read(&path, files, threads)?.ok_or_else(|| {
                Error::data(&path, None, "a file of the set changed while the cache was made; start again")
            })?
        }
    };
    if let Some(first) = opened.bad.first().filter(|_| !skip) {
        return Err(first.clone().error());
    }
    let bad: std::collections::HashSet<&PathBuf> = opened.bad.iter().map(|bad| &bad.path).collect();
    let root = files.root.clone();
    files.files.retain(|file| !bad.contains(&root.join(&file.path)));
    files.refuse_empty(&opened.bad)?;
    Ok(opened)
}

/// The name of a set's cache: where it lies, which files it has, and how they are decoded.
fn key(files: &Files) -> Result<String> {
    let root = files.root.canonicalize().map_err(Error::io(&files.root, "cannot find"))?;
    let mut hash = Sha256::new();
    hash.update(json!([VERSION, root.to_string_lossy(), files.how.exif_orientation, files.how.max_pixels]).to_string());
    for file in &files.files {
        hash.update(file.path.as_os_str().as_encoded_bytes());
        hash.update([0]);
    }
    let hex = format!("{:x}", hash.finalize());
    Ok(hex[..24].to_string())
}

/// Decodes all files, a block at a time, and writes what came of them.
fn pack(path: &Path, files: &Files, skip: bool, threads: usize) -> Result<()> {
    let bar = progress_bar("images decoded into the cache");
    bar.set_length(files.files.len() as u64);
    let pool = pool(threads)?;
    let wrong = Error::io;
    write_atomically(path, |out| {
        out.write_all(&[b' '; HEADER]).map_err(wrong(path, "cannot write the cache"))?;
        let (mut offsets, mut shapes, mut lines) = (vec![0u64], Vec::<u8>::new(), Vec::<u8>::new());
        let indices: Vec<usize> = (0..files.files.len()).collect();
        for block in indices.chunks(AHEAD * threads) {
            let made: Vec<(Line, Planes)> = pool.install(|| {
                block
                    .par_iter()
                    .map_init(Decoder::default, |decoder, &index| one(files, index, decoder))
                    .collect::<Result<_>>()
            })?;
            for (line, planes) in made {
                if let (Some(reason), false) = (&line.4, skip) {
                    return Err(BadFile { path: files.root.join(&line.0), reason: reason.clone() }.error());
                }
                if line.4.is_none() {
                    out.write_all(&planes.bytes).map_err(wrong(path, "cannot write the cache"))?;
                    offsets.push(offsets[offsets.len() - 1] + planes.bytes.len() as u64);
                    shapes.extend([planes.height as u32, planes.width as u32].iter().flat_map(|n| n.to_le_bytes()));
                }
                lines.extend(json!(line).to_string().into_bytes());
                lines.push(b'\n');
                bar.inc(1);
            }
        }
        let pixels = offsets[offsets.len() - 1] as usize;
        let images = offsets.len() - 1;
        let offsets: Vec<u8> = offsets.iter().flat_map(|n| n.to_le_bytes()).collect();
        let mut end = 0;
        let mut entry = |dtype: &str, shape: &[usize], bytes: usize| {
            let begin = end;
            end += bytes;
            json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]})
        };
        let header = json!({
            "pixels": entry("U8", &[pixels], pixels),
            "offsets": entry("U64", &[images + 1], offsets.len()),
            "shapes": entry("U32", &[images, 2], shapes.len()),
            "files": entry("U8", &[lines.len()], lines.len()),
        });
        let mut header = header.to_string().into_bytes();
        header.resize(HEADER - 8, b' ');
        for part in [offsets, shapes, lines] {
            out.write_all(&part).map_err(wrong(path, "cannot write the cache"))?;
        }
        out.seek(SeekFrom::Start(0)).map_err(wrong(path, "cannot write the cache"))?;
        out.write_all(&(header.len() as u64).to_le_bytes()).map_err(wrong(path, "cannot write the cache"))?;
        out.write_all(&header).map_err(wrong(path, "cannot write the cache"))
    })?;
    bar.finish_and_clear();
    Ok(())
}

/// A file's line, and its image if it is one.
fn one(files: &Files, index: usize, decoder: &mut Decoder) -> Result<(Line, Planes)> {
    let path = files.path(index);
    let name = files.files[index].path.to_string_lossy().into_owned();
    // Before it is read: a change while it is being read is then seen as one.
    let (length, time) = Line::stamp(&path).unwrap_or_default();
    let reason = files.examine(index, decoder);
    let sha256 = format!("{:x}", Sha256::digest(decoder.file()));
    Ok((Line(name, length, time, sha256, reason), decoder.take_planes()))
}

/// Maps a cache; none where there is none, or where the files are others.
fn read(path: &Path, files: &Files, threads: usize) -> Result<Option<Opened>> {
    if !path.is_file() {
        return Ok(None);
    }
    let map = Mapped::open(path)?;
    let damaged = |what: &str| Error::data(path, None, format!("is no whole cache of images: {what}"));
    let bytes = map.bytes();
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| damaged(&e.to_string()))?;
    let data = |name: &str| tensors.tensor(name).map(|t| t.data()).map_err(|e| damaged(&e.to_string()));
    let mut lines = Vec::new();
    for line in data("files")?.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        lines.push(serde_json::from_slice::<Line>(line).map_err(|e| damaged(&e.to_string()))?);
    }
    if lines.len() != files.files.len() || !pool(threads)?.install(|| still_so(files, &lines)) {
        return Ok(None);
    }
    let reasons: Vec<Option<String>> = lines.iter().map(|line| line.4.clone()).collect();
    let bad = bad_files(files, &reasons);
    let good = lines.iter().zip(&files.files).filter(|(line, _)| line.4.is_none());
    let sha256 = hash_of_files(files.how, good.map(|(line, file)| (file.label, line.3.as_str())));

    let offsets: Vec<u64> =
        data("offsets")?.chunks_exact(8).filter_map(|b| Some(u64::from_le_bytes(b.try_into().ok()?))).collect();
    let numbers: Vec<u32> =
        data("shapes")?.chunks_exact(4).filter_map(|b| Some(u32::from_le_bytes(b.try_into().ok()?))).collect();
    let shapes: Vec<[u32; 2]> = numbers.chunks_exact(2).map(|s| [s[0], s[1]]).collect();
    let pixels = data("pixels")?;
    let whole = offsets.len() == shapes.len() + 1
        && shapes.len() + bad.len() == lines.len()
        && offsets.first() == Some(&0)
        && offsets.last() == Some(&(pixels.len() as u64))
        && offsets.windows(2).zip(&shapes).all(|(o, [h, w])| {
            let area = u64::from(*h) * u64::from(*w);
            area > 0 && o[0].checked_add(3 * area) == Some(o[1])
        });
    if !whole {
        return Err(damaged("its images do not fit its pixels"));
    }
    let begin = pixels.as_ptr() as usize - bytes.as_ptr() as usize;
    Ok(Some(Opened { images: Cache { map, begin, offsets, shapes }, sha256, bad }))
}

/// Whether the files are those of the lines: of the same length and time or, where only the time differs, of the same content.
fn still_so(files: &Files, lines: &[Line]) -> bool {
    (0..lines.len()).into_par_iter().all(|index| {
        let Line(name, length, time, sha256, reason) = &lines[index];
        let path = files.path(index);
        if files.files[index].path.to_string_lossy() != *name {
            return false;
        }
        // One that was no image may have been mended in a way that its length and time do not show.
        if reason.is_some() {
            return files.examine(index, &mut Decoder::default()).is_some();
        }
        let Ok((length_now, time_now)) = Line::stamp(&path) else { return false };
        length_now == *length && (time_now == *time || sha256_of(&path).is_ok_and(|now| now == *sha256))
    })
}

impl Cache {
    /// An image.
    pub fn image(&self, index: usize) -> PlanesRef<'_> {
        let [begin, end] = [self.offsets[index], self.offsets[index + 1]].map(|o| self.begin + o as usize);
        let [height, width] = self.shapes[index].map(|n| n as usize);
        PlanesRef { channels: 3, height, width, bytes: &self.map.bytes()[begin..end] }
    }
}
