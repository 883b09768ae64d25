//! Rows of numbers that evaluations read block by block: in a user's file, which is mapped, or in memory.

use super::array::{Array, Wanted};
use crate::error::{Error, Result};
use half::{bf16, f16};
use sha2::{Digest, Sha256};
use std::ops::Range;
use tch::Kind;

const FLOATS: &[Kind] = &[Kind::Half, Kind::BFloat16, Kind::Float, Kind::Double];

const ROWS: Wanted = Wanted {
    what: "two-dimensional floating-point numbers, [rows, columns]",
    kinds: FLOATS,
    fits: |shape| shape.len() == 2,
    names: &["features", "embeddings"],
};

const NUMBERS: Wanted = Wanted {
    what: "floating-point numbers in one dimension, [n], [n, 1] or [1, n]",
    kinds: FLOATS,
    fits: |shape| matches!(shape, [_] | [_, 1] | [1, _]),
    names: &[],
};

const LABELS: Wanted = Wanted {
    what: "integers in one dimension, [n]",
    kinds: &[Kind::Uint8, Kind::Int8, Kind::Int16, Kind::Int, Kind::Int64],
    fits: |shape| shape.len() == 1,
    names: &["labels"],
};

/// Rows of floating-point numbers: in a mapped file, or in memory.
///
/// # Shapes
/// [rows, columns], both at least 1.
#[derive(Debug)]
pub struct Matrix {
    place: Place,
    rows: usize,
    columns: usize,
}

#[derive(Debug)]
enum Place {
    File(Box<Array>),
    Memory { name: String, values: Vec<f32> },
}

impl Matrix {
    /// Opens FILE or FILE:KEY; its numbers are read when they are asked for.
    ///
    /// FILE is a `.npy` (float16, float32 or float64, little-endian, in C or Fortran order) or a safetensors file (F16,
    /// BF16, F32 or F64). Without KEY it is the only two-dimensional floating-point tensor, or, among several, the one
    /// that is called `features` or `embeddings`. A file whose name has a colon is found, too: the longest name that is
    /// there counts.
    ///
    /// # Errors
    /// A file that cannot be read, is cut off or of another kind; an array of other numbers or dimensions, or an empty one; no
    /// tensor or several that would serve, with the names of all.
    pub fn open(text: &str) -> Result<Matrix> {
        let array = Array::open(text, &ROWS)?;
        let (rows, columns) = (array.shape()[0], array.shape()[1]);
        Ok(Matrix { place: Place::File(Box::new(array)), rows, columns })
    }

    /// Takes numbers, row after row; `name` says in errors and records what they were made from.
    ///
    /// # Errors
    /// No numbers, or such as are not whole rows: [`Error::Input`]. NaN or infinity: [`Error::NonFinite`].
    pub fn of(name: &str, values: Vec<f32>, columns: usize) -> Result<Matrix> {
        if columns == 0 || values.is_empty() || !values.len().is_multiple_of(columns) {
            return Err(Error::Input(format!(
                "{name}: {} numbers in rows of {columns}; expected at least one row, and whole ones",
                values.len()
            )));
        }
        refuse_not_finite(name, &values, columns, 0)?;
        let rows = values.len() / columns;
        Ok(Matrix { place: Place::Memory { name: name.to_string(), values }, rows, columns })
    }

    /// FILE or FILE:KEY as it was given, or what the numbers were made from.
    pub fn name(&self) -> &str {
        match &self.place {
            Place::File(array) => array.name(),
            Place::Memory { name, .. } => name,
        }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Some rows as float32, row after row. float64 is rounded; a row of zeros is allowed.
    ///
    /// # Errors
    /// NaN, infinity, and numbers beyond the range of float32: [`Error::NonFinite`] with file and row. A row that float32 would
    /// make 0; rows that there are not; a file that was written to since it was opened.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<f32>> {
        self.check(&range)?;
        let array = match &self.place {
            Place::Memory { values, .. } => {
                return Ok(values[range.start * self.columns..range.end * self.columns].to_vec());
            }
            Place::File(array) => array,
        };
        let values = match array.kind() {
            Kind::Double => return self.rounded(&self.read_f64(range.clone())?, range.start),
            Kind::Half => each(&array.bytes(range.clone())?, |b| f16::from_le_bytes(b).to_f32()),
            Kind::BFloat16 => each(&array.bytes(range.clone())?, |b| bf16::from_le_bytes(b).to_f32()),
            _ => each(&array.bytes(range.clone())?, f32::from_le_bytes),
        };
        refuse_not_finite(self.name(), &values, self.columns, range.start)?;
        Ok(values)
    }

    /// Some rows as float64, row after row, without rounding.
    ///
    /// # Errors
    /// As [`Matrix::read`], but for the range of float32.
    pub fn read_f64(&self, range: Range<usize>) -> Result<Vec<f64>> {
        match &self.place {
            Place::File(array) if array.kind() == Kind::Double => {
                self.check(&range)?;
                let values = doubles(array, range.clone())?;
                refuse_not_finite(self.name(), &values, self.columns, range.start)?;
                Ok(values)
            }
            _ => Ok(self.read(range)?.into_iter().map(f64::from).collect()),
        }
    }

    /// SHA-256, in hexadecimal, of the whole file, or of the numbers in memory: float32, little-endian, row after row.
    ///
    /// # Errors
    /// A file that was written to since it was opened.
    pub fn sha256(&self) -> Result<String> {
        match &self.place {
            Place::File(array) => array.sha256(),
            Place::Memory { values, .. } => {
                let mut hash = Sha256::new();
                for row in values.chunks(self.columns) {
                    hash.update(row.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
                }
                Ok(format!("{:x}", hash.finalize()))
            }
        }
    }

    fn check(&self, range: &Range<usize>) -> Result<()> {
        if range.start > range.end || range.end > self.rows {
            let message =
                format!("{}: rows {} to {} were asked for, of {}", self.name(), range.start, range.end, self.rows);
            return Err(Error::Input(message));
        }
        Ok(())
    }

    /// float64 as float32, from row `first` on.
    fn rounded(&self, values: &[f64], first: usize) -> Result<Vec<f32>> {
        let rounded: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        let rows = values.chunks(self.columns).zip(rounded.chunks(self.columns)).enumerate();
        for (row, (values, rounded)) in rows {
            let row = first + row;
            if let Some(column) = rounded.iter().position(|v| !v.is_finite()) {
                return Err(Error::NonFinite(format!(
                    "{}: row {row}, column {column}, counted from 0: {:e} is beyond the range of float32; scale the rows \
                     down",
                    self.name(),
                    values[column]
                )));
            }
            if rounded.iter().all(|&v| v == 0.0) && values.iter().any(|&v| v != 0.0) {
                return Err(Error::Input(format!(
                    "{}: row {row}, counted from 0, is not 0 but too small for float32, which would make it 0; scale the \
                     rows up",
                    self.name()
                )));
            }
        }
        Ok(rounded)
    }
}

/// One-dimensional numbers of FILE or FILE:KEY as float64, without rounding. Files and kinds are those of [`Matrix::open`].
///
/// # Shapes
/// `[n]`, [n, 1] or [1, n], n at least 1.
///
/// # Errors
/// As [`Matrix::open`]; NaN or infinity: [`Error::NonFinite`].
pub fn read_numbers(text: &str) -> Result<Vec<f64>> {
    let array = Array::open(text, &NUMBERS)?;
    let values = doubles(&array, 0..array.shape()[0])?;
    if let Some(at) = values.iter().position(|v| !v.is_finite()) {
        return Err(Error::NonFinite(format!(
            "{text}: number {at}, counted from 0, is {}; expected finite numbers",
            values[at]
        )));
    }
    Ok(values)
}

/// One-dimensional integers of FILE or FILE:KEY: a `.npy` or safetensors file of uint8, int8, int16, int32 or int64.
/// Without KEY it is the only such tensor, or, among several, `labels`. How many there are is for the caller to check.
///
/// # Shapes
/// `[n]`, n at least 1.
///
/// # Errors
/// As [`Matrix::open`].
pub fn read_labels(text: &str) -> Result<Vec<i64>> {
    let array = Array::open(text, &LABELS)?;
    let bytes = array.bytes(0..array.shape()[0])?;
    Ok(match array.kind() {
        Kind::Uint8 => each(&bytes, |b| u8::from_le_bytes(b).into()),
        Kind::Int8 => each(&bytes, |b| i8::from_le_bytes(b).into()),
        Kind::Int16 => each(&bytes, |b| i16::from_le_bytes(b).into()),
        Kind::Int => each(&bytes, |b| i32::from_le_bytes(b).into()),
        _ => each(&bytes, i64::from_le_bytes),
    })
}

/// The elements of an array of floating-point numbers.
fn doubles(array: &Array, rows: Range<usize>) -> Result<Vec<f64>> {
    let bytes = array.bytes(rows)?;
    Ok(match array.kind() {
        Kind::Half => each(&bytes, |b| f16::from_le_bytes(b).to_f64()),
        Kind::BFloat16 => each(&bytes, |b| bf16::from_le_bytes(b).to_f64()),
        Kind::Float => each(&bytes, |b| f32::from_le_bytes(b).into()),
        _ => each(&bytes, f64::from_le_bytes),
    })
}

/// A number from each N bytes.
fn each<const N: usize, T>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|chunk| number(*chunk)).collect()
}

/// Refuses NaN and infinity, in rows that begin with row `first`.
fn refuse_not_finite<T: Copy + Into<f64>>(name: &str, values: &[T], columns: usize, first: usize) -> Result<()> {
    let finite = |v: &T| (*v).into().is_finite();
    // All of them, without an early end, is a loop of vector instructions.
    if values.iter().fold(true, |all, v| all & finite(v)) {
        return Ok(());
    }
    let at = values.iter().position(|v| !finite(v)).unwrap_or_default();
    Err(Error::NonFinite(format!(
        "{name}: row {}, column {}, counted from 0, is {}; expected finite numbers: find where they were made, or leave the \
         row out",
        first + at / columns,
        at % columns,
        values[at].into()
    )))
}

#[cfg(test)]
mod tests;
