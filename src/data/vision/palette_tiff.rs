//! TIFF files whose samples are indices of a table of colours.
//!
//! The `tiff` crate refuses them, and reads the same samples from the same bytes where their header says that they are grey.
//! Layout: TIFF 6.0, sections 2 and 5 (<https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf>).

use std::io::Cursor;
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;
use tiff::{ColorType, TiffError, TiffResult};

/// What `PhotometricInterpretation` says of a table of colours, and of grey.
const PALETTE: u16 = 3;
const GREY: u16 = 1;

/// The file as one of grey pixels, which are the indices; none where it has no table of colours.
pub(super) fn as_grey(bytes: &[u8]) -> Option<Vec<u8>> {
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

/// Indices row by row, with their colours.
pub(super) struct Indexed {
    pub width: usize,
    pub height: usize,
    pub indices: Vec<u8>,
    pub colours: Vec<[u8; 3]>,
    /// The number of the orientation in which it is stored, from 1.
    pub orientation: u8,
}

/// Reads what [`as_grey`] gave; `check` may refuse its width and height before memory is taken, by an error of its own.
pub(super) fn read<E: From<TiffError>>(
    grey: &[u8],
    most_bytes: usize,
    check: impl FnOnce(usize, usize) -> Result<(), E>,
) -> Result<Indexed, E> {
    let mut decoder = Decoder::new(Cursor::new(grey))?;
    let mut limits = Limits::unlimited();
    (limits.decoding_buffer_size, limits.intermediate_buffer_size) = (most_bytes, most_bytes);
    decoder = decoder.with_limits(limits);
    let (width, height) = decoder.dimensions()?;
    let (width, height) = (width as usize, height as usize);
    check(width, height)?;
    Ok(samples(&mut decoder, width, height)?)
}

fn samples(decoder: &mut Decoder<Cursor<&[u8]>>, width: usize, height: usize) -> TiffResult<Indexed> {
    let unsupported = |kind| TiffError::UnsupportedError(tiff::TiffUnsupportedError::UnsupportedColorType(kind));
    let kind = decoder.colortype()?;
    let ColorType::Gray(bits @ (1 | 2 | 4 | 8)) = kind else { return Err(unsupported(kind)) };
    // Reds, then greens, then blues, of 16 bits.
    let table = decoder.get_tag_u16_vec(Tag::ColorMap)?;
    let count = table.len() / 3;
    let colours = (0..count).map(|i| [i, count + i, 2 * count + i].map(|at| (table[at] >> 8) as u8)).collect();
    let orientation = decoder.find_tag_unsigned(Tag::Orientation)?.unwrap_or(1);
    let DecodingResult::U8(packed) = decoder.read_image()? else { return Err(unsupported(kind)) };
    // The first index is in the high bits; each row begins with a byte of its own.
    let in_byte = usize::from(8 / bits);
    let mask = u8::MAX >> (8 - bits);
    let row = |row: &[u8]| -> Vec<u8> {
        let index = |x: usize| row[x / in_byte] >> (8 - bits - bits * (x % in_byte) as u8) & mask;
        (0..width).map(index).collect()
    };
    let indices = packed.chunks_exact(width.div_ceil(in_byte)).take(height).flat_map(row).collect();
    Ok(Indexed { width, height, indices, colours, orientation })
}
