//! Compiles the C++ bridge and links LibTorch so that binaries find it, and its CUDA half, at run time.

use std::env;
use std::path::{Path, PathBuf};

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

    let mut bridge = cc::Build::new();
    bridge
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .pic(true)
        .warnings(false)
        .define("AT_PER_OPERATOR_HEADERS", None)
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .include("cpp/include");
    if lib.join("libtorch_cuda.so").exists() {
        add_nccl(&mut bridge, root);
    }
    bridge
        .file("cpp/bridge.cpp")
        .file("cpp/cuda.cpp")
        .file("cpp/dist.cpp")
        .file("cpp/norm.cpp")
        .file("cpp/script.cpp")
        .compile("weince_bridge");
}

/// Compiles NCCL in where all of its headers and CUDA's are found: beside LibTorch, as pip installs them (the compiler's own
/// are the packages `nvidia-cuda-crt` and `nvidia-cuda-cccl`), or in the CUDA toolkit.
fn add_nccl(bridge: &mut cc::Build, root: &Path) {
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let site = std::fs::canonicalize(root).ok().and_then(|root| root.parent().map(|site| site.join("nvidia")));
    let packages = site.and_then(|site| std::fs::read_dir(site).ok()).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = packages.map(|package| package.path().join("include")).collect();
    folders.sort();
    let toolkit = env::var_os("CUDA_HOME").map_or_else(|| PathBuf::from("/usr/local/cuda"), PathBuf::from);
    folders.push(toolkit.join("include"));
    let inner: Vec<PathBuf> = folders.iter().map(|folder| folder.join("cccl")).collect();
    folders.extend(inner);
    folders.retain(|folder| folder.is_dir());
    for header in ["nccl.h", "cuda_runtime.h", "crt/host_config.h", "nv/target"] {
        if !folders.iter().any(|folder| folder.join(header).exists()) {
            return;
        }
    }
    let mut with = bridge.clone();
    with.includes(&folders);
    let mut probe = with.clone();
    // What the probe misses is no news for whoever builds.
    if probe.cargo_warnings(false).file("cpp/nccl_probe.cpp").try_expand().is_ok() {
        with.define("WEINCE_NCCL", None);
        *bridge = with;
    }
}
