//! Whatever bytes a file has: reading it as one of `torch.save` gives a value or an error. A file whose checksums are wrong is
//! refused early, so the input is also put, as a pickle, into an archive whose checksums are right.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weince::checkpoint::torch_file;

#[path = "file.rs"]
mod file;

fuzz_target!(|data: &[u8]| {
    let _ = file::with(data, torch_file::load);
    let _ = file::with(&file::archive(data), torch_file::load);
});
