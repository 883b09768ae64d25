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
//! Pixels are those of Pillow for every format but JPEG, where decoders are free in how they transform, and above all in how
//! they enlarge the colour planes: against libjpeg-turbo single values differ by up to 10 (by up to 2 without subsampling), by
//! less than 0.6 on average; in the last column of an image of even width with colour planes of half the width by up to some
//! 30, where the colours change sharply there.
//!
//! TIFF is read as grey, RGB, RGBA (8 and 16 bits), bilevel and CMYK; its other kinds (palette, floating point, CIELAB, YCbCr) are
//! refused by name.

use crate::augment::Planes;
use crate::config::augment::MAX_IMAGE_EDGE;
use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// What decoding depends on beside the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decoding {
    /// Whether the image is turned as its EXIF orientation says.
    pub exif_orientation: bool,
    /// Larger images are refused.
    pub max_pixels: u64,
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
    let format = image::guess_format(bytes).ok().filter(ImageFormat::reading_enabled).ok_or_else(|| {
        let begin: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
        format!(
            "begins with {}, as no JPEG, PNG, WebP, BMP, GIF, TIFF or PNM does; expected one of these",
            begin.join(" ")
        )
    })?;
    let decoded = catch_unwind(AssertUnwindSafe(|| match format {
        ImageFormat::Jpeg => jpeg(bytes, how, scratch, out),
        ImageFormat::Gif => gif(bytes, how, scratch, out),
        _ => other(bytes, format, how, scratch, out),
    }));
    let orientation = decoded.unwrap_or_else(|_| Err("the decoder gave up".into())).map_err(|reason| {
        let name = format!("{format:?}").to_uppercase();
        let what = if reason.contains("not support") { "a kind of" } else { "no whole" };
        format!("{what} {name} image: {}", reason.trim().replace('\n', " "))
    })?;
    turn(out, orientation);
    Ok(())
}

/// Refuses an image that would take too much memory, before any is taken.
fn check_size(width: usize, height: usize, how: Decoding) -> Result<(), String> {
    let most = how.max_pixels;
    if width == 0 || height == 0 {
        return Err(format!("it has {width} x {height} pixels"));
    }
    if width > MAX_IMAGE_EDGE || height > MAX_IMAGE_EDGE || width as u64 * height as u64 > most {
        return Err(format!(
            "its header says {width} x {height} pixels; expected edges of {MAX_IMAGE_EDGE} and {most} pixels in all at most, \
             beyond which it may be a decompression bomb (data.max_pixels)"
        ));
    }
    Ok(())
}

/// JPEG. The decoder's strict mode is what tells that data is missing; it also minds bytes between segments, which others pass over.
fn jpeg(bytes: &[u8], how: Decoding, scratch: &mut Vec<u8>, out: &mut Planes) -> Result<Orientation, String> {
    let attempt = |strict: bool, scratch: &mut Vec<u8>| {
        let options = DecoderOptions::default()
            .set_strict_mode(strict)
            .set_max_width(MAX_IMAGE_EDGE)
            .set_max_height(MAX_IMAGE_EDGE)
            .jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(|e| e.to_string())?;
        let info = decoder.info().ok_or("it has no header")?;
        let (width, height) = (usize::from(info.width), usize::from(info.height));
        check_size(width, height, how)?;
        scratch.resize(width * height * 3, 0);
        decoder.decode_into(scratch).map_err(|e| e.to_string())?;
        let orientation = decoder.exif().and_then(|exif| Orientation::from_exif_chunk(exif));
        Ok((width, height, orientation))
    };
    let result = attempt(true, scratch).or_else(|reason: String| {
        if reason.contains("Extra bytes between headers") { attempt(false, scratch) } else { Err(reason) }
    });
    let (width, height, orientation) = result?;
    spread(out, width, height, scratch.chunks_exact(3).map(|p| [p[0], p[1], p[2]]));
    Ok(orientation.filter(|_| how.exif_orientation).unwrap_or(Orientation::NoTransforms))
}

/// The first frame of a GIF. A frame that reaches beyond the screen enlarges it; colours that the table lacks are black, or go on
/// with a table of greys.
fn gif(bytes: &[u8], how: Decoding, scratch: &mut Vec<u8>, out: &mut Planes) -> Result<Orientation, String> {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::Indexed);
    let mut decoder = options.read_info(Cursor::new(bytes)).map_err(|e| e.to_string())?;
    let screen = (usize::from(decoder.width()), usize::from(decoder.height()));
    let frame = decoder.next_frame_info().map_err(|e| e.to_string())?.ok_or("it has no frame")?;
    let [left, top, columns, rows] = [frame.left, frame.top, frame.width, frame.height].map(usize::from);
    let (background, local) = (frame.transparent.unwrap_or(0), frame.palette.clone());
    let (width, height) = (screen.0.max(left + columns), screen.1.max(top + rows));
    check_size(width, height, how)?;
    scratch.resize(columns * rows, 0);
    decoder.read_into_buffer(scratch).map_err(|e| e.to_string())?;
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

/// All formats but JPEG and GIF.
fn other(
    bytes: &[u8],
    format: ImageFormat,
    how: Decoding,
    scratch: &mut Vec<u8>,
    out: &mut Planes,
) -> Result<Orientation, String> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_IMAGE_EDGE as u32);
    limits.max_image_height = Some(MAX_IMAGE_EDGE as u32);
    limits.max_alloc = Some(how.max_pixels.saturating_mul(BYTES_A_PIXEL));
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|e| e.to_string())?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    check_size(width, height, how)?;
    // Pillow turns TIFF files in any case.
    let orientation = if how.exif_orientation || format == ImageFormat::Tiff {
        decoder.orientation().map_err(|e| e.to_string())?
    } else {
        Orientation::NoTransforms
    };
    let (kind, stored) = (decoder.color_type(), decoder.original_color_type());
    // Depth and colour type of a PNG's header: grey of 16 bits, to which a transparent value may have added alpha.
    let grey_16 = format == ImageFormat::Png && bytes.get(24..26) == Some(&[16, 0]);
    // At most what `check_size` lets through: eight bytes a pixel.
    scratch.resize(decoder.total_bytes() as usize, 0);
    decoder.read_image(scratch).map_err(|e| e.to_string())?;
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
        _ => return Err(format!("pixels of type {stored:?} are not supported; save it as 8-bit RGB")),
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
