//! The kinds of TIFF that the `image` crate refuses, or reads otherwise than Pillow: tables of colours, grey of 2 and 4 bits or with
//! alpha, colours that are multiplied by their alpha, and CMYK. The `tiff` crate reads their samples.
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
/// What `ExtraSamples` says of an alpha that the colours are multiplied by.
const ASSOCIATED_ALPHA: u16 = 1;

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
    let indexed = as_grey(bytes);
    let has_table = indexed.is_some();
    let bytes = indexed.map_or(Cow::Borrowed(bytes), Cow::Owned);
    let mut decoder = Decoder::new(Cursor::new(&*bytes))?;
    let mut limits = Limits::unlimited();
    (limits.decoding_buffer_size, limits.intermediate_buffer_size) = (most_bytes, most_bytes);
    decoder = decoder.with_limits(limits);
    let (width, height) = decoder.dimensions()?;
    let (width, height) = (width as usize, height as usize);
    check(width, height)?;
    let Some(pixels) = pixels(&mut decoder, width, has_table)? else { return Ok(None) };
    if pixels.len() < width * height {
        return Err(TiffError::FormatError(TiffFormatError::InconsistentSizesEncountered).into());
    }
    let orientation = decoder.find_tag_unsigned(Tag::Orientation)?.unwrap_or(1);
    Ok(Some(Pixels { width, height, pixels, orientation }))
}

/// A file with a table of colours as one of grey pixels, which are the indices: the `tiff` crate refuses it as it is.
fn as_grey(bytes: &[u8]) -> Option<Vec<u8>> {
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
    let four = part(4, 4)?.try_into().ok()?;
    let directory = if little { u32::from_le_bytes(four) } else { u32::from_be_bytes(four) } as usize;
    let mut entries = (0..usize::from(short(directory)?)).map(|entry| directory + 2 + 12 * entry);
    let entry = entries.find(|&entry| short(entry) == Some(Tag::PhotometricInterpretation.to_u16()))?;
    if short(entry + 8)? != PALETTE {
        return None;
    }
    let mut grey = bytes.to_vec();
    grey[entry + 8..entry + 10].copy_from_slice(&if little { GREY.to_le_bytes() } else { GREY.to_be_bytes() });
    Some(grey)
}

fn pixels(decoder: &mut Decoder<Cursor<&[u8]>>, width: usize, has_table: bool) -> TiffResult<Option<Vec<[u8; 3]>>> {
    let unsupported = |kind| TiffError::UnsupportedError(tiff::TiffUnsupportedError::UnsupportedColorType(kind));
    let kind = decoder.colortype()?;
    if decoder.find_tag_unsigned(Tag::FillOrder)?.unwrap_or(1u16) != 1 {
        // The low bit of a byte comes first, which no crate minds.
        return Err(unsupported(kind));
    }
    let extra = decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples)?.unwrap_or_default();
    let multiplied = extra.first() == Some(&ASSOCIATED_ALPHA);
    let ours = match kind {
        ColorType::Gray(bits) => has_table || matches!(bits, 2 | 4),
        ColorType::Multiband { bit_depth: 8, num_samples: 2 } | ColorType::CMYK(8) => true,
        ColorType::RGBA(8 | 16) => multiplied,
        _ => false,
    };
    if !ours {
        return Ok(None);
    }
    if decoder.find_tag_unsigned(Tag::PlanarConfiguration)?.unwrap_or(1u16) != 1 {
        return Err(unsupported(kind));
    }
    let samples = decoder.read_image()?;
    Ok(Some(match (kind, samples) {
        (ColorType::Gray(bits @ (1 | 2 | 4 | 8)), DecodingResult::U8(packed)) => {
            let levels = unpacked(&packed, bits, width);
            if has_table {
                let colours = colours(&decoder.get_tag_u16_vec(Tag::ColorMap)?);
                levels.map(|index| colours.get(usize::from(index)).copied().unwrap_or_default()).collect()
            } else {
                let step = u8::MAX / (u8::MAX >> (8 - bits));
                levels.map(|level| [level * step; 3]).collect()
            }
        }
        (ColorType::Multiband { .. }, DecodingResult::U8(samples)) if !multiplied => {
            samples.chunks_exact(2).map(|p| [p[0]; 3]).collect()
        }
        (ColorType::CMYK(8), DecodingResult::U8(samples)) => {
            samples.chunks_exact(4).map(|p| [p[0], p[1], p[2]].map(|ink| without(255 - ink, 255 - p[3]))).collect()
        }
        (ColorType::RGBA(8), DecodingResult::U8(samples)) => {
            samples.chunks_exact(4).map(|p| divided([p[0], p[1], p[2]], p[3])).collect()
        }
        (ColorType::RGBA(16), DecodingResult::U16(samples)) => {
            let high = |v: u16| (v >> 8) as u8;
            samples.chunks_exact(4).map(|p| divided([p[0], p[1], p[2]].map(high), high(p[3]))).collect()
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
