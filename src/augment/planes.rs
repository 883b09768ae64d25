//! Images as the operations take them and change them.

/// An 8-bit image as planes: `channels` (1 for grey, 3 for RGB) planes of `height` rows of `width` bytes, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planes {
    /// 1 (grey) or 3 (RGB).
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// `channels * height * width` bytes.
    pub bytes: Vec<u8>,
}

/// As [`Planes`], borrowed: an image of a data set, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanesRef<'a> {
    /// 1 (grey) or 3 (RGB).
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// `channels * height * width` bytes.
    pub bytes: &'a [u8],
}

impl Planes {
    /// The image, borrowed.
    pub fn borrowed(&self) -> PlanesRef<'_> {
        PlanesRef { channels: self.channels, height: self.height, width: self.width, bytes: &self.bytes }
    }

    /// Bytes of one plane.
    pub fn area(&self) -> usize {
        self.height * self.width
    }

    /// Gives the image a shape; the content is undefined afterwards. Memory is kept.
    pub(crate) fn reshape(&mut self, channels: usize, height: usize, width: usize) {
        (self.channels, self.height, self.width) = (channels, height, width);
        self.bytes.resize(channels * height * width, 0);
    }

    /// The three planes of an RGB image; `None` for a grey one.
    pub(crate) fn rgb_mut(&mut self) -> Option<[&mut [u8]; 3]> {
        if self.channels != 3 {
            return None;
        }
        let area = self.area();
        let (r, rest) = self.bytes.split_at_mut(area);
        let (g, b) = rest.split_at_mut(area);
        Some([r, g, b])
    }
}
