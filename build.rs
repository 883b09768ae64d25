//! Compiles the C++ bridge and links LibTorch so that binaries find it, and its CUDA half, at run time.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    let lib = PathBuf::from(
        env::var("DEP_TCH_LIBTORCH_LIB")
            .expect("torch-sys did not say where LibTorch is; run scripts/setup.sh, or set LIBTORCH"),
    );
    let root = lib.parent().expect("LibTorch's lib folder has a parent");
    let include = root.join("include");

    // The run path makes LD_LIBRARY_PATH unnecessary.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    // Nothing refers to libtorch_cuda by symbol: without this the linker drops it and no GPU is ever found.
    if lib.join("libtorch_cuda.so").exists() {
        println!("cargo:rustc-link-arg=-Wl,--no-as-needed,-ltorch_cuda,-ltorch,--as-needed");
    }
    println!("cargo:rustc-env=WEINCE_LIBTORCH={}", root.display());

    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .pic(true)
        .warnings(false)
        .define("AT_PER_OPERATOR_HEADERS", None)
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .file("cpp/bridge.cpp")
        .file("cpp/cuda.cpp")
        .file("cpp/script.cpp")
        .compile("weince_bridge");
}
