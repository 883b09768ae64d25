//! Products in float32 of all rows of one set with all of another, on a CPU.
//!
//! LibTorch's product packs both sides anew in every call and writes every number, of which a search wants one in a hundred.
//! Here a side is packed once for many products, and those of some rows go to their reader from the vector registers that
//! hold them. Each is summed in the order of its terms: the same number on every processor that fuses products with sums.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Rows of the left side whose products are summed at once; with two vectors of the right side, sums and operands fill the
/// sixteen registers of AVX2.
const LEFT: usize = 6;
/// The same of the right side, in vectors.
const RIGHT_VECTORS: usize = 2;
/// The most numbers that a vector of any processor has.
const MOST_LANES: usize = 16;

/// Takes the products of rows of the left side.
pub(crate) trait Reader {
    /// Products of a row of the left side that are all below this need not be read.
    fn floor(&self, row: usize) -> f32;

    /// The products of a row of the left side with the rows `first..` of the right side.
    fn read(&mut self, row: usize, products: &[f32], first: usize);
}

/// Rows in the order in which the kernel reads them: `width` rows side by side, the last of them filled up with 0.
pub(crate) struct Panels {
    values: Vec<f32>,
    width: usize,
    rows: usize,
    d: usize,
}

impl Panels {
    /// Rows of length `d` as a left side.
    pub fn left(rows: &[f32], d: usize) -> Panels {
        let count = rows.len() / d;
        let mut values = vec![0f32; count.next_multiple_of(LEFT) * d];
        let panels = values.chunks_exact_mut(LEFT * d).zip(rows.chunks(LEFT * d));
        panels.for_each(|(panel, rows)| pack(panel, rows, d, LEFT));
        Panels { values, width: LEFT, rows: count, d }
    }

    /// Rows of length `d` as a right side, for this processor.
    pub fn right(rows: &[f32], d: usize) -> Panels {
        Panels::right_of(rows.len() / d, d, |i, row| row.copy_from_slice(&rows[i * d..][..d]))
    }

    /// So many rows of length `d`, each written by `fill`, as a right side, for this processor.
    pub fn right_of(rows: usize, d: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Panels {
        let width = Arch::new().dispatch(Width);
        let mut values = vec![0f32; rows.next_multiple_of(width) * d];
        values.par_chunks_exact_mut(width * d).enumerate().for_each_init(
            || vec![0f32; width * d],
            |filled, (i, panel)| {
                let (first, count) = (i * width, width.min(rows - i * width));
                let filled = &mut filled[..count * d];
                filled.chunks_exact_mut(d).enumerate().for_each(|(place, row)| fill(first + place, row));
                pack(panel, filled, d, width);
            },
        );
        Panels { values, width, rows, d }
    }

    /// The columns of rows of length `count` as a right side, for this processor.
    pub fn right_of_columns(rows: &[f32], count: usize) -> Panels {
        let (d, width) = (rows.len() / count, Arch::new().dispatch(Width));
        let mut values = vec![0f32; count.next_multiple_of(width) * d];
        for (panel, first) in values.chunks_exact_mut(width * d).zip((0..).step_by(width)) {
            let filled = width.min(count - first);
            for (to, row) in panel.chunks_exact_mut(width).zip(rows.chunks_exact(count)) {
                to[..filled].copy_from_slice(&row[first..first + filled]);
            }
        }
        Panels { values, width, rows: count, d }
    }

    /// Gives all products of the rows with the rows `begin..end` of `right` to the reader; `begin` is the first of a panel.
    pub fn products(&self, right: &Panels, begin: usize, end: usize, reader: &mut impl Reader) {
        Arch::new().dispatch(Products { left: self, right, begin, end, reader });
    }

    /// Adds the products of all rows with the first rows of `right` to a matrix, of which each column is one of these.
    pub fn add_products(&self, right: &Panels, matrix: &mut [f32]) {
        let columns = matrix.len() / self.rows;
        self.products(right, 0, columns, &mut Sums { matrix, columns });
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The multiple of a panel's rows that is next to `rows` upwards.
    pub fn whole(&self, rows: usize) -> usize {
        rows.next_multiple_of(self.width)
    }
}

/// Copies rows to a panel, a few columns of all rows after another.
fn pack(panel: &mut [f32], rows: &[f32], d: usize, width: usize) {
    const COLUMNS: usize = 16;
    for (first, panel) in (0..d).step_by(COLUMNS).zip(panel.chunks_mut(COLUMNS * width)) {
        for (place, row) in rows.chunks_exact(d).enumerate() {
            let row = &row[first..d.min(first + COLUMNS)];
            panel.chunks_exact_mut(width).zip(row).for_each(|(column, v)| column[place] = *v);
        }
    }
}

/// Adds products to a matrix.
struct Sums<'a> {
    matrix: &'a mut [f32],
    columns: usize,
}

impl Reader for Sums<'_> {
    #[inline(always)]
    fn floor(&self, _: usize) -> f32 {
        f32::NEG_INFINITY
    }

    #[inline(always)]
    fn read(&mut self, row: usize, products: &[f32], first: usize) {
        let sums = self.matrix[row * self.columns + first..].iter_mut();
        sums.zip(products).for_each(|(sum, product)| *sum += product);
    }
}

/// The rows of a panel of the right side.
struct Width;

impl WithSimd for Width {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        RIGHT_VECTORS * S::F32_LANES
    }
}

struct Products<'a, R> {
    left: &'a Panels,
    right: &'a Panels,
    begin: usize,
    end: usize,
    reader: &'a mut R,
}

impl<R: Reader> WithSimd for Products<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Products { left, right, begin, end, reader } = self;
        let (d, width) = (right.d, RIGHT_VECTORS * S::F32_LANES);
        let mut memory = [0f32; RIGHT_VECTORS * MOST_LANES];
        let panels = right.values[begin * d..].chunks_exact(width * d);
        for (first, right) in (begin..end).step_by(width).zip(panels) {
            let count = width.min(end - first);
            for (place, panel) in left.values.chunks_exact(LEFT * d).enumerate() {
                let rows = LEFT * place..left.rows.min(LEFT * (place + 1));
                for (row, products) in rows.zip(multiply(simd, panel, right)) {
                    let floor = simd.splat_f32s(reader.floor(row));
                    // What is not below the floor: NaN too.
                    let [left, right] = products.map(|products| simd.less_than_f32s(products, floor));
                    if simd.first_true_m32s(simd.not_m32s(simd.and_m32s(left, right))) < S::F32_LANES {
                        S::as_mut_simd_f32s(&mut memory).0[..RIGHT_VECTORS].copy_from_slice(&products);
                        reader.read(row, &memory[..count], first);
                    }
                }
            }
        }
    }
}

/// The products of one panel with another, row by row.
#[inline(always)]
fn multiply<S: Simd>(simd: S, left: &[f32], right: &[f32]) -> [[S::f32s; RIGHT_VECTORS]; LEFT] {
    let (left, _) = left.as_chunks::<LEFT>();
    let (right, _) = S::as_simd_f32s(right).0.as_chunks::<RIGHT_VECTORS>();
    let mut sums = [[simd.splat_f32s(0.0); RIGHT_VECTORS]; LEFT];
    for (left, right) in left.iter().zip(right) {
        for (sums, x) in sums.iter_mut().zip(left) {
            let x = simd.splat_f32s(*x);
            for (sum, y) in sums.iter_mut().zip(right) {
                *sum = simd.mul_add_f32s(x, *y, *sum);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    struct Table {
        columns: usize,
        values: Vec<Option<f32>>,
    }

    impl Reader for Table {
        fn floor(&self, _: usize) -> f32 {
            f32::NEG_INFINITY
        }

        fn read(&mut self, row: usize, products: &[f32], first: usize) {
            for (cell, product) in self.values[row * self.columns + first..].iter_mut().zip(products) {
                assert!(cell.replace(*product).is_none(), "each product comes once");
            }
        }
    }

    #[test]
    fn every_product_comes_once_and_is_that_of_float64() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        for (rows, columns, d) in [(1, 1, 1), (5, 15, 3), (6, 16, 8), (7, 17, 9), (13, 70, 130), (40, 33, 1)] {
            let mut random = |count| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.0..1.0)).collect() };
            let (x, y) = (random(rows * d), random(columns * d));
            let (left, right) = (Panels::left(&x, d), Panels::right(&y, d));
            let mut table = Table { columns, values: vec![None; rows * columns] };
            let step = right.whole(20);
            for begin in (0..columns).step_by(step) {
                left.products(&right, begin, (begin + step).min(columns), &mut table);
            }
            let mut turned = vec![0f32; d * columns];
            y.iter().enumerate().for_each(|(i, v)| turned[i % d * columns + i / d] = *v);
            for right in [&right, &Panels::right_of_columns(&turned, columns)] {
                let mut out = vec![1.0; rows * columns];
                left.add_products(right, &mut out);
                assert!(out.iter().zip(&table.values).all(|(a, b)| Some(*a) == b.map(|product| 1.0 + product)));
            }
            let mut out = vec![0.0; columns];
            Panels::left(&vec![f32::NAN; d], d).add_products(&right, &mut out);
            assert!(out.iter().all(|v| v.is_nan()), "what is no number is written too");
            for (i, product) in table.values.iter().enumerate() {
                let (x, y) = (&x[i / columns * d..][..d], &y[i % columns * d..][..d]);
                let exact: f64 = x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                // At most d roundings of sums of at most d, relative 2^-24 each.
                let bound = (d * d) as f64 * f64::from(f32::EPSILON) / 2.0;
                assert!(
                    (f64::from(product.unwrap()) - exact).abs() <= bound,
                    "{rows} {columns} {d}: {product:?} {exact}"
                );
            }
        }
    }
}
