//! A sheet of small images in a grid, such as the augmented views of some samples, as PNG.

use crate::error::{Error, Result};
use image::{ImageFormat, Rgb, RgbImage};
use std::io::Cursor;

/// White pixels between images and around them.
const GAP: usize = 4;
/// Beyond this no viewer shows a sheet with ease.
const MOST_PIXELS: usize = 64 << 20;

/// A picture in LibTorch's order: all of red, then green, then blue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// The bytes of [3, height, width].
    pub pixels: Vec<u8>,
}

/// The images as PNG, each row of `rows` one row of the sheet, each pixel a square of `scale` by `scale`.
///
/// # Errors
/// No images; images of unequal size, or whose bytes are not 3 x height x width; a sheet of more than 64 megapixels.
pub fn contact_sheet(rows: &[Vec<View>], scale: usize) -> Result<Vec<u8>> {
    let refuse = |what: String| Err(Error::Input(format!("contact sheet: {what}")));
    let Some(first) = rows.iter().flatten().next() else {
        return refuse("there are no images to show".to_string());
    };
    let (height, width) = (first.height, first.width);
    for view in rows.iter().flatten() {
        let (h, w, found) = (view.height, view.width, view.pixels.len());
        if (h, w) != (height, width) {
            return refuse(format!("all images must have one size; found {h}x{w} beside {height}x{width}"));
        }
        if h.checked_mul(w).and_then(|n| n.checked_mul(3)) != Some(found) || found == 0 {
            return refuse(format!("an image of 3x{h}x{w} must have that many bytes and at least one; found {found}"));
        }
    }
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let extent = |count: usize, size: usize| {
        let cell = size.checked_mul(scale)?.checked_add(GAP)?;
        cell.checked_mul(count)?.checked_add(GAP)
    };
    let size = extent(columns, width).zip(extent(rows.len(), height));
    let Some((sheet_width, sheet_height)) =
        size.filter(|(w, h)| scale > 0 && w.checked_mul(*h).is_some_and(|n| n <= MOST_PIXELS))
    else {
        let sheet = format!("{} rows of {columns} images of {height}x{width}", rows.len());
        return refuse(format!(
            "{sheet} at scale {scale}; the scale must be 1 or more, the sheet within 64 megapixels"
        ));
    };
    // Both fit: the product is at most 64 Mi.
    let mut sheet = RgbImage::from_pixel(sheet_width as u32, sheet_height as u32, Rgb([255; 3]));
    for (row, views) in rows.iter().enumerate() {
        for (column, view) in views.iter().enumerate() {
            let (left, top) = (GAP + column * (width * scale + GAP), GAP + row * (height * scale + GAP));
            for y in 0..height * scale {
                for x in 0..width * scale {
                    let source = (y / scale) * width + x / scale;
                    let colour = [0, 1, 2].map(|c| view.pixels[c * height * width + source]);
                    sheet.put_pixel((left + x) as u32, (top + y) as u32, Rgb(colour));
                }
            }
        }
    }
    let mut png = Cursor::new(Vec::new());
    sheet
        .write_to(&mut png, ImageFormat::Png)
        .map_err(|e| Error::Input(format!("contact sheet: it cannot be encoded as PNG: {e}")))?;
    Ok(png.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(height: usize, width: usize, colour: [u8; 3]) -> View {
        View { height, width, pixels: colour.iter().flat_map(|c| vec![*c; height * width]).collect() }
    }

    #[test]
    fn pixels_land_where_they_belong() {
        let mut marked = view(2, 3, [10, 20, 30]);
        marked.pixels[5] = 99; // red of the last pixel
        let png = contact_sheet(&[vec![view(2, 3, [1, 2, 3]), marked], vec![view(2, 3, [7, 8, 9])]], 2).unwrap();
        let sheet = image::load_from_memory(&png).unwrap().to_rgb8();
        let gap = GAP as u32;
        assert_eq!(sheet.dimensions(), (3 * gap + 12, 3 * gap + 8));
        assert_eq!(sheet.get_pixel(0, 0).0, [255; 3]);
        assert_eq!(sheet.get_pixel(gap, gap).0, [1, 2, 3]);
        assert_eq!(sheet.get_pixel(gap + 5, gap + 3).0, [1, 2, 3]);
        assert_eq!(sheet.get_pixel(gap + 6, gap).0, [255; 3]);
        assert_eq!(sheet.get_pixel(2 * gap + 6, gap).0, [10, 20, 30]);
        assert_eq!(sheet.get_pixel(2 * gap + 11, gap + 3).0, [99, 20, 30]);
        assert_eq!(sheet.get_pixel(gap, 2 * gap + 4).0, [7, 8, 9]);
        assert_eq!(sheet.get_pixel(2 * gap + 6, 2 * gap + 4).0, [255; 3], "a short row stays white");
    }

    #[test]
    fn what_cannot_be_a_sheet_is_refused() {
        let good = view(2, 2, [0; 3]);
        let short = View { pixels: vec![0; 11], ..good.clone() };
        let huge = View { height: usize::MAX, width: 2, pixels: vec![0; 12] };
        for (rows, scale) in [
            (vec![], 1),
            (vec![vec![]], 1),
            (vec![vec![good.clone(), view(2, 3, [0; 3])]], 1),
            (vec![vec![short]], 1),
            (vec![vec![huge]], 1),
            (vec![vec![view(0, 2, [0; 3])]], 1),
            (vec![vec![good.clone()]], 0),
            (vec![vec![good.clone()]], 1 << 20),
            (vec![vec![good]], usize::MAX),
        ] {
            assert!(contact_sheet(&rows, scale).is_err());
        }
    }
}
