//! Whatever bytes a file has: reading it as safetensors gives tensors or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weince::checkpoint::safetensors;

#[path = "file.rs"]
mod file;

fuzz_target!(|data: &[u8]| {
    let _ = file::with(data, safetensors::load);
});
