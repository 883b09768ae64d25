//! Whatever bytes a file has: opening it as rows, numbers or labels, as a .npy or a safetensors file, gives them or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weince::eval::matrix::{Matrix, read_labels, read_numbers};

#[path = "file.rs"]
mod file;

fuzz_target!(|data: &[u8]| {
    file::with(data, |path| {
        let text = path.display().to_string();
        if let Ok(matrix) = Matrix::open(&text) {
            let _ = matrix.read(0..matrix.rows());
            let _ = matrix.read_f64(matrix.rows() - 1..matrix.rows());
        }
        let _ = (read_numbers(&text), read_labels(&text));
    });
});
