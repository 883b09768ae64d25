//! The kinds of TIFF that the `image` crate refuses, or reads otherwise than Pillow: tables of colours, grey of 2 and 4 bits or with
//! alpha, colours that are multiplied by their alpha or have an unnamed sample beside them, and CMYK. The `tiff` crate reads their samples.
//!
//! Layout: TIFF 6.0, sections 2 to 5, 16 and 18 (<https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf>).

use super::decode::without;
use std::borrow::Cow;
use std::io::Cursor;
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;
use tiff::{ColorType, TiffError, TiffFormatError, TiffResult};

/// What `PhotometricInterpretation` says of a table of colours, and of grey.
const PALETTE: u16 = 3;
const GREY: u16 = 1;
/// What `ExtraSamples` says: nothing, of an alpha that the colours are multiplied by, and of one that they are not.
const UNSPECIFIED: u16 = 0;
const ASSOCIATED_ALPHA: u16 = 1;
const ALPHA: u16 = 2;

/// An image, row by row.
pub(super) struct Pixels {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<[u8; 3]>,
    /// The number of the orientation in which it is stored, from 1.
    pub orientation: u8,
}

/// Reads a file of one of these kinds; none for any other. `check` may refuse its width and height before memory is taken, by
/// an error of its own.
pub(super) fn read<E: From<TiffError>>(
    bytes: &[u8],
    most_bytes: usize,
    check: impl FnOnce(usize, usize) -> Result<(), E>,
) -> Result<Option<Pixels>, E> {
    let (bytes, changed) =
        recast(bytes).map_or((Cow::Borrowed(bytes), Recast::default()), |(copy, changed)| (Cow::Owned(copy), changed));
    let mut decoder = Decoder::new(Cursor::new(&*bytes))?;
    let mut limits = Limits::unlimited();
    (limits.decoding_buffer_size, limits.intermediate_buffer_size) = (most_bytes, most_bytes);
    decoder = decoder.with_limits(limits);
    let (width, height) = decoder.dimensions()?;
    let (width, height) = (width as usize, height as usize);
    check(width, height)?;
    let Some(pixels) = pixels(&mut decoder, width, changed)? else { return Ok(None) };
    if pixels.len() < width * height {
        return Err(TiffError::FormatError(TiffFormatError::InconsistentSizesEncountered).into());
    }
    let orientation = decoder.find_tag_unsigned(Tag::Orientation)?.unwrap_or(1);
    Ok(Some(Pixels { width, height, pixels, orientation }))
}

/// What was changed in a file's header so that the `tiff` crate reads its samples.
#[derive(Clone, Copy, Default)]
struct Recast {
    /// A table of colours, which it refuses: the indices are said to be grey.
    table: bool,
    /// A sample beside the colours of which nothing is said, by which it gets lost: it is said to be alpha.
    beside: bool,
}

/// A copy of the file with its header changed, if that is needed.
fn recast(bytes: &[u8]) -> Option<(Vec<u8>, Recast)> {
    let little = match bytes.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let part = |at: usize, size: usize| bytes.get(at..at.checked_add(size)?);
    let short = |at: usize| {
        let two = part(at, 2)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(two) } else { u16::from_be_bytes(two) })
    };
    let long = |at: usize| {
        let four = part(at, 4)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(four) } else { u32::from_be_bytes(four) })
    };
    let directory = long(4)? as usize;
    let (mut changed, mut changes) = (Recast::default(), Vec::new());
    for entry in (0..usize::from(short(directory)?)).map(|entry| directory + 2 + 12 * entry) {
        let (tag, count, value) = (short(entry)?, long(entry + 4)?, short(entry + 8)?);
        if tag == Tag::PhotometricInterpretation.to_u16() && value == PALETTE {
            changed.table = true;
            changes.push((entry + 8, GREY));
        } else if tag == Tag::ExtraSamples.to_u16() && count == 1 && value == UNSPECIFIED {
            changed.beside = true;
            changes.push((entry + 8, ALPHA));
        }
    }
    if changes.is_empty() {
        return None;
    }
    let mut copy = bytes.to_vec();
    for (at, value) in changes {
        copy[at..at + 2].copy_from_slice(&if little { value.to_le_bytes() } else { value.to_be_bytes() });
    }
    Some((copy, changed))
}

fn pixels(decoder: &mut Decoder<Cursor<&[u8]>>, width: usize, changed: Recast) -> TiffResult<Option<Vec<[u8; 3]>>> {
    let unsupported = |kind| TiffError::UnsupportedError(tiff::TiffUnsupportedError::UnsupportedColorType(kind));
    let kind = decoder.colortype()?;
    if decoder.find_tag_unsigned(Tag::FillOrder)?.unwrap_or(1u16) != 1 {
        // The low bit of a byte comes first, which no crate minds.
        return Err(unsupported(kind));
    }
    let extra = decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples)?.unwrap_or_default();
    let multiplied = extra.first() == Some(&ASSOCIATED_ALPHA);
    let ours = match kind {
        ColorType::Gray(bits) => changed.table || matches!(bits, 2 | 4),
        ColorType::Multiband { bit_depth: 8, num_samples: 2 } | ColorType::CMYK(8) => true,
        ColorType::RGBA(8 | 16) => multiplied || changed.beside,
        _ => false,
    };
    if !ours {
        return Ok(None);
    }
    if decoder.find_tag_unsigned(Tag::PlanarConfiguration)?.unwrap_or(1u16) != 1 {
        return Err(unsupported(kind));
    }
    let samples = decoder.read_image()?;
    let table = if changed.table { Some(colours(&decoder.get_tag_u16_vec(Tag::ColorMap)?)) } else { None };
    // What a sample of up to 8 bits shows.
    let seen = |sample: u8, bits: u8| match &table {
        Some(colours) => colours.get(usize::from(sample)).copied().unwrap_or_default(),
        None => [sample * (u8::MAX / (u8::MAX >> (8 - bits))); 3],
    };
    let whole = |colours: [u8; 3], alpha: u8| if multiplied { divided(colours, alpha) } else { colours };
    Ok(Some(match (kind, samples) {
        (ColorType::Gray(bits @ (1 | 2 | 4 | 8)), DecodingResult::U8(packed)) => {
            unpacked(&packed, bits, width).map(|sample| seen(sample, bits)).collect()
        }
        (ColorType::Multiband { .. }, DecodingResult::U8(samples)) if !multiplied => {
            samples.chunks_exact(2).map(|p| seen(p[0], 8)).collect()
        }
        (ColorType::CMYK(8), DecodingResult::U8(samples)) => {
            samples.chunks_exact(4).map(|p| [p[0], p[1], p[2]].map(|ink| without(255 - ink, 255 - p[3]))).collect()
        }
        (ColorType::RGBA(8), DecodingResult::U8(samples)) => {
            samples.chunks_exact(4).map(|p| whole([p[0], p[1], p[2]], p[3])).collect()
        }
        (ColorType::RGBA(16), DecodingResult::U16(samples)) => {
            let high = |v: u16| (v >> 8) as u8;
            samples.chunks_exact(4).map(|p| whole([p[0], p[1], p[2]].map(high), high(p[3]))).collect()
        }
        _ => return Err(unsupported(kind)),
    }))
}

/// Reds, then greens, then blues, of 16 bits.
fn colours(table: &[u16]) -> Vec<[u8; 3]> {
    let count = table.len() / 3;
    (0..count).map(|i| [i, count + i, 2 * count + i].map(|at| (table[at] >> 8) as u8)).collect()
}

/// Samples of up to 8 bits: the first is in the high bits of a byte, and each row begins with a byte of its own.
fn unpacked(packed: &[u8], bits: u8, width: usize) -> impl Iterator<Item = u8> {
    let in_byte = usize::from(8 / bits);
    packed.chunks_exact(width.div_ceil(in_byte)).flat_map(move |row| {
        let sample =
            move |x: usize| row[x / in_byte] >> (8 - bits - bits * (x % in_byte) as u8) & (u8::MAX >> (8 - bits));
        (0..width).map(sample)
    })
}

/// Colours without the alpha that they are multiplied by, in Pillow's rounding.
fn divided(colours: [u8; 3], alpha: u8) -> [u8; 3] {
    colours.map(|v| (u32::from(v) * 255).checked_div(alpha.into()).unwrap_or(0).min(255) as u8)
}
