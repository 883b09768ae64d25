//! An image file of a common format as RGB bytes, with the numbers of Pillow's `convert("RGB")`.
//!
//! | file | becomes | as in Pillow |
//! |---|---|---|
//! | grey | three equal planes | `L` |
//! | 16-bit grey | values above 255 become 255 | `I;16`, which its `convert` clips |
//! | 16-bit colour | the high bytes | `RGB`, `RGBA` |
//! | palette | its colours, whatever is transparent | `P` |
//! | with alpha | the colours as they are stored, without a background | `RGBA`, `LA` |
//! | CMYK | `(255 - c) (255 - k) / 255` | `CMYK` |
//! | animation | the first frame; where a GIF's does not cover its screen, its transparent colour, or else its first | the first frame |
//! | TIFF with an orientation | upright in any case; other formats where `data.exif_orientation` says so | as it loads TIFF |
//!
//! Pixels are those of Pillow 12, whose JPEG decoder is libjpeg-turbo; `libjpeg_turbo_rs` gives the same bytes. Known to differ are,
//! by 1, BMP of 16 bits, PNM whose largest value is neither 255 nor 65535, and JPEG within TIFF; and two kinds of TIFF that Pillow
//! reads wrongly: grey of 16 bits whose 0 is white, and planes of 16 bits that are apart and not compressed. A file that is cut
//! within its last bytes, after all pixels, may be read.
//!
//! Refused by name: JPEG with a plane of more samples than the first, or with black and inks of different resolutions; TIFF whose
//! planes are apart in tiles, as CMYK or with a sample beside the colours, whose samples begin at the low bit, whose tiles of LZW
//! have no end code, of more than 4 GiB (BigTIFF), compressed by Zstandard, LZMA or fax codes of group 3, or with pixels that are
//! floating-point, CIELAB or YCbCr.

use super::tiff_kinds;
use crate::augment::Planes;
use crate::config::augment::MAX_IMAGE_EDGE;
use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
use libjpeg_turbo_rs::{Decoder as JpegDecoder, JpegError, PixelFormat};
use std::cell::Cell;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tiff::TiffError;

/// What decoding depends on beside the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decoding {
    /// Whether the image is turned as its EXIF orientation says.
    pub exif_orientation: bool,
    /// Larger images are refused.
    pub max_pixels: u64,
}

/// Why a file gives no image.
enum Fault {
    /// It is not whole, or too large.
    Damaged(String),
    /// It may be whole, but it is of a kind that is not read here.
    Unsupported(String),
}

impl Fault {
    fn damaged(reason: impl ToString) -> Fault {
        Fault::Damaged(reason.to_string())
    }
}

impl From<ImageError> for Fault {
    fn from(error: ImageError) -> Fault {
        match error {
            ImageError::Unsupported(_) => Fault::Unsupported(error.to_string()),
            _ => Fault::Damaged(error.to_string()),
        }
    }
}

impl From<JpegError> for Fault {
    fn from(error: JpegError) -> Fault {
        match error {
            JpegError::Unsupported(_) => Fault::Unsupported(error.to_string()),
            _ => Fault::Damaged(error.to_string()),
        }
    }
}

impl From<TiffError> for Fault {
    fn from(error: TiffError) -> Fault {
        match error {
            TiffError::UnsupportedError(_) => Fault::Unsupported(error.to_string()),
            _ => Fault::Damaged(error.to_string()),
        }
    }
}

impl From<gif::DecodingError> for Fault {
    fn from(error: gif::DecodingError) -> Fault {
        Fault::damaged(error)
    }
}

thread_local! {
    /// Whether this thread is in a decoder, whose panic is no more than a damaged file.
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the message of a decoder's panic from the terminal: it is given as an error, with all others.
pub fn silence_decoders() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !DECODING.get() {
            before(info);
        }
    }));
}

/// Bytes that one pixel may take while it is decoded: four channels of 16 bits, and as much again for the format's own needs.
const BYTES_A_PIXEL: u64 = 16;

/// Decodes the bytes of a file; `scratch` is memory to be used again.
///
/// # Errors
/// The reason why it is no whole image, without the file's name.
pub(super) fn decode(bytes: &[u8], how: Decoding, scratch: &mut Vec<u8>, out: &mut Planes) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("the file is empty; expected an image".into());
    }
    let format = image::guess_format(bytes)
        .ok()
        .filter(|format| *format == ImageFormat::Jpeg || format.reading_enabled())
        .ok_or_else(|| {
            let begin: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
            format!(
                "begins with {}, as no JPEG, PNG, WebP, BMP, GIF, TIFF or PNM does; expected one of these",
                begin.join(" ")
            )
        })?;
    DECODING.set(true);
    let decoded = catch_unwind(AssertUnwindSafe(|| match format {
        ImageFormat::Jpeg => jpeg(bytes, how, scratch, out),
        ImageFormat::Gif => gif(bytes, how, scratch, out),
        ImageFormat::Tiff => tiff(bytes, how, scratch, out),
        _ => other(bytes, format, how, scratch, out),
    }));
    DECODING.set(false);
    let orientation = decoded
        .unwrap_or_else(|_| Err(Fault::damaged("or one that its decoder can't read: it gave up")))
        .map_err(|fault| {
            let (what, reason) = match fault {
                Fault::Damaged(reason) => ("no whole", reason),
                Fault::Unsupported(reason) => ("a kind of", reason),
            };
            let name = format!("{format:?}").to_uppercase();
            format!("{what} {name} image: {}", reason.trim().replace('\n', " "))
        })?;
    turn(out, orientation);
    Ok(())
}

/// Refuses an image that would take too much memory, before any is taken.
fn check_size(width: usize, height: usize, how: Decoding) -> Result<(), Fault> {
    let most = how.max_pixels;
    if width == 0 || height == 0 {
        return Err(Fault::Damaged(format!("it has {width} x {height} pixels")));
    }
    if width > MAX_IMAGE_EDGE || height > MAX_IMAGE_EDGE || width as u64 * height as u64 > most {
        return Err(Fault::Damaged(format!(
            "its header says {width} x {height} pixels; expected edges of {MAX_IMAGE_EDGE} and {most} pixels in all at most, \
             beyond which it may be a decompression bomb (data.max_pixels)"
        )));
    }
    Ok(())
}

/// JPEG. As in Pillow, CMYK is stored inverted, and a file without its end marker is cut off even where all pixels are there.
fn jpeg(bytes: &[u8], how: Decoding, scratch: &mut Vec<u8>, out: &mut Planes) -> Result<Orientation, Fault> {
    let mut decoder = JpegDecoder::new(bytes)?;
    let header = decoder.header();
    let (width, height) = (usize::from(header.width), usize::from(header.height));
    let sampling: Vec<_> = header.components.iter().map(|c| (c.horizontal_sampling, c.vertical_sampling)).collect();
    let cmyk = sampling.len() == 4;
    let finer = |plane: &(u8, u8)| plane.0 > sampling[0].0 || plane.1 > sampling[0].1;
    if sampling.iter().skip(1).any(finer) || cmyk && (sampling[3] != sampling[0] || sampling[1] != sampling[2]) {
        let planes: Vec<String> = sampling.iter().map(|(h, v)| format!("{h}x{v}")).collect();
        let planes = planes.join(", ");
        return Err(Fault::Unsupported(format!("planes of resolutions {planes} are not supported; save it as RGB")));
    }
    check_size(width, height, how)?;
    let marker = |code: u8| move |pair: &[u8]| pair == [0xff, code];
    if bytes.windows(2).position(marker(0xda)) > bytes.windows(2).rposition(marker(0xd9)) {
        return Err(Fault::damaged("unexpected end of data: its end marker is missing"));
    }
    decoder.set_output_format(if cmyk { PixelFormat::Cmyk } else { PixelFormat::Rgb });
    scratch.resize(width * height * if cmyk { 4 } else { 3 }, 0);
    decoder.decode_image_into(scratch)?;
    if cmyk {
        spread(out, width, height, scratch.chunks_exact(4).map(|p| [p[0], p[1], p[2]].map(|ink| without(ink, p[3]))));
    } else {
        spread(out, width, height, scratch.chunks_exact(3).map(|p| [p[0], p[1], p[2]]));
    }
    let orientation = decoder.exif_data().and_then(Orientation::from_exif_chunk);
    Ok(orientation.filter(|_| how.exif_orientation).unwrap_or(Orientation::NoTransforms))
}

/// What is left of white light by an ink and by black, both as the light that they let through, in Pillow's rounding.
pub(super) fn without(ink: u8, black: u8) -> u8 {
    let black = u32::from(black);
    let taken = u32::from(255 - ink) * black + 128;
    (black - ((taken + (taken >> 8)) >> 8)) as u8
}

/// The first frame of a GIF. A frame that reaches beyond the screen enlarges it; colours that the table lacks are black, or go on
/// with a table of greys.
fn gif(bytes: &[u8], how: Decoding, scratch: &mut Vec<u8>, out: &mut Planes) -> Result<Orientation, Fault> {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::Indexed);
    let mut decoder = options.read_info(Cursor::new(bytes))?;
    let screen = (usize::from(decoder.width()), usize::from(decoder.height()));
    let frame = decoder.next_frame_info()?.ok_or_else(|| Fault::damaged("it has no frame"))?;
    let [left, top, columns, rows] = [frame.left, frame.top, frame.width, frame.height].map(usize::from);
    let (background, local) = (frame.transparent.unwrap_or(0), frame.palette.clone());
    let (width, height) = (screen.0.max(left + columns), screen.1.max(top + rows));
    check_size(width, height, how)?;
    scratch.resize(columns * rows, 0);
    decoder.read_into_buffer(scratch)?;
    let table = local.as_deref().or(decoder.global_palette()).unwrap_or_default();
    let (table, _) = table.as_chunks::<3>();
    let ramp = table.iter().zip(0..).all(|(colour, index)| *colour == [index; 3]);
    let colour = |index: u8| table.get(usize::from(index)).copied().unwrap_or([if ramp { index } else { 0 }; 3]);
    let covered = |x: usize, y: usize| (left..left + columns).contains(&x) && (top..top + rows).contains(&y);
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let indices = places.map(|(x, y)| if covered(x, y) { scratch[(y - top) * columns + x - left] } else { background });
    spread(out, width, height, indices.map(colour));
    Ok(Orientation::NoTransforms)
}

/// TIFF; the kinds that `image` reads as Pillow does, by that.
fn tiff(bytes: &[u8], how: Decoding, scratch: &mut Vec<u8>, out: &mut Planes) -> Result<Orientation, Fault> {
    let most = usize::try_from(how.max_pixels.saturating_mul(BYTES_A_PIXEL)).unwrap_or(usize::MAX);
    let Some(image) = tiff_kinds::read(bytes, most, |width, height| check_size(width, height, how))? else {
        return other(bytes, ImageFormat::Tiff, how, scratch, out);
    };
    spread(out, image.width, image.height, image.pixels.iter().copied());
    Ok(Orientation::from_exif(image.orientation).unwrap_or(Orientation::NoTransforms))
}

/// All formats but JPEG and GIF, and most of TIFF.
fn other(
    bytes: &[u8],
    format: ImageFormat,
    how: Decoding,
    scratch: &mut Vec<u8>,
    out: &mut Planes,
) -> Result<Orientation, Fault> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_IMAGE_EDGE as u32);
    limits.max_image_height = Some(MAX_IMAGE_EDGE as u32);
    limits.max_alloc = Some(how.max_pixels.saturating_mul(BYTES_A_PIXEL));
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    check_size(width, height, how)?;
    // Pillow turns TIFF files in any case.
    let orientation = if how.exif_orientation || format == ImageFormat::Tiff {
        decoder.orientation()?
    } else {
        Orientation::NoTransforms
    };
    let (kind, stored) = (decoder.color_type(), decoder.original_color_type());
    // Depth and colour type of a PNG's header: grey of 16 bits, to which a transparent value may have added alpha.
    let grey_16 = format == ImageFormat::Png && bytes.get(24..26) == Some(&[16, 0]);
    // At most what `check_size` lets through: eight bytes a pixel.
    scratch.resize(decoder.total_bytes() as usize, 0);
    decoder.read_image(scratch)?;
    let high = |b: &[u8]| (u16::from_ne_bytes([b[0], b[1]]) >> 8) as u8;
    let clipped = |b: &[u8]| u16::from_ne_bytes([b[0], b[1]]).min(255) as u8;
    match kind {
        ColorType::L8 => spread(out, width, height, scratch.iter().map(|&v| [v; 3])),
        ColorType::La8 => spread(out, width, height, scratch.chunks_exact(2).map(|p| [p[0]; 3])),
        ColorType::Rgb8 => spread(out, width, height, scratch.chunks_exact(3).map(|p| [p[0], p[1], p[2]])),
        ColorType::Rgba8 => spread(out, width, height, scratch.chunks_exact(4).map(|p| [p[0], p[1], p[2]])),
        ColorType::L16 => spread(out, width, height, scratch.chunks_exact(2).map(|p| [clipped(p); 3])),
        ColorType::La16 if grey_16 => {
            spread(out, width, height, scratch.chunks_exact(4).map(|p| [clipped(p); 3]));
        }
        ColorType::La16 => spread(out, width, height, scratch.chunks_exact(4).map(|p| [high(p); 3])),
        ColorType::Rgb16 => {
            spread(out, width, height, scratch.chunks_exact(6).map(|p| [high(p), high(&p[2..]), high(&p[4..])]));
        }
        ColorType::Rgba16 => {
            spread(out, width, height, scratch.chunks_exact(8).map(|p| [high(p), high(&p[2..]), high(&p[4..])]));
        }
        _ => {
            return Err(Fault::Unsupported(format!(
                "pixels of type {stored:?} are not supported; save it as 8-bit RGB"
            )));
        }
    }
    Ok(orientation)
}

/// Writes pixels into planes.
fn spread(out: &mut Planes, width: usize, height: usize, pixels: impl Iterator<Item = [u8; 3]>) {
    out.reshape(3, height, width);
    if let Some([red, green, blue]) = out.rgb_mut() {
        for (((pixel, r), g), b) in pixels.zip(red).zip(green).zip(blue) {
            [*r, *g, *b] = pixel;
        }
    }
}

/// Turns the image so that it is seen upright.
fn turn(image: &mut Planes, orientation: Orientation) {
    let (h, w) = (image.height, image.width);
    // For a pixel of the new image, the one of the old that it shows.
    let source: fn(usize, usize, usize, usize) -> (usize, usize) = match orientation {
        Orientation::NoTransforms => return,
        Orientation::FlipHorizontal => |y, x, _, w| (y, w - 1 - x),
        Orientation::Rotate180 => |y, x, h, w| (h - 1 - y, w - 1 - x),
        Orientation::FlipVertical => |y, x, h, _| (h - 1 - y, x),
        Orientation::Rotate90FlipH => |y, x, _, _| (x, y),
        Orientation::Rotate90 => |y, x, h, _| (h - 1 - x, y),
        Orientation::Rotate270FlipH => |y, x, h, w| (h - 1 - x, w - 1 - y),
        Orientation::Rotate270 => |y, x, _, w| (x, w - 1 - y),
    };
    let upright =
        matches!(orientation, Orientation::FlipHorizontal | Orientation::Rotate180 | Orientation::FlipVertical);
    let (height, width) = if upright { (h, w) } else { (w, h) };
    let old = std::mem::take(&mut image.bytes);
    image.reshape(image.channels, height, width);
    for (plane, new) in old.chunks_exact(h * w).zip(image.bytes.chunks_exact_mut(h * w)) {
        for (y, row) in new.chunks_exact_mut(width).enumerate() {
            for (x, value) in row.iter_mut().enumerate() {
                let (y, x) = source(y, x, h, w);
                *value = plane[y * w + x];
            }
        }
    }
}
