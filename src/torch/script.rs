//! TorchScript modules as they are: every parameter and buffer under its exact name, train and evaluation mode, saved again.
//!
//! tch's own wrappers rename parameters and lose buffers.

use super::ffi::{RawTensor, check, raws, take_string};
use crate::error::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use tch::Tensor;

/// A `torch::jit::Module`.
enum RawModule {}

type Visit = extern "C" fn(*mut c_void, *const c_char, RawTensor, c_int);

// SAFETY: these signatures are those of cpp/script.cpp, compiled with this crate.
unsafe extern "C" {
    fn weince_script_load(path: *const c_char, out: *mut *mut RawModule) -> *mut c_char;
    fn weince_script_free(module: *mut RawModule);
    fn weince_script_train(module: *mut RawModule, on: c_int) -> *mut c_char;
    fn weince_script_named(module: *mut RawModule, context: *mut c_void, visit: Visit) -> *mut c_char;
    fn weince_script_forward(
        module: *mut RawModule,
        inputs: *const RawTensor,
        n: usize,
        out: *mut RawTensor,
    ) -> *mut c_char;
    fn weince_script_baked(module: *mut RawModule, modes: *mut *mut c_char, devices: *mut *mut c_char) -> *mut c_char;
    fn weince_script_save(module: *mut RawModule, path: *const c_char) -> *mut c_char;
}

/// A TorchScript module on the CPU as it was saved; its tensors can be moved and trained in place.
pub struct Script {
    module: *mut RawModule,
}

/// A tensor of a module.
#[derive(Debug)]
pub struct Member {
    /// Its name in Python's `state_dict()`, to the letter.
    pub name: String,
    /// A handle to the module's own tensor.
    pub tensor: Tensor,
    /// A parameter; else a buffer.
    pub is_parameter: bool,
}

/// What a module's code carries as constants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baked {
    /// Operations that behave in one way in training and evaluation, whatever the module's mode.
    pub modes: Vec<String>,
    /// Devices that the code names.
    pub devices: Vec<String>,
}

impl Script {
    /// Loads what `torch.jit.save` wrote.
    ///
    /// The file is a program, which runs when the module does: load only files that you trust.
    ///
    /// # Errors
    /// A file that cannot be read or is no TorchScript module.
    pub fn load(path: &Path) -> Result<Script> {
        std::fs::File::open(path).map_err(Error::io(path, "cannot open the TorchScript module"))?;
        let name = c_path(path)?;
        let mut module = std::ptr::null_mut();
        // SAFETY: `name` lives through the call; `module` receives a new module that we own.
        check(unsafe { weince_script_load(name.as_ptr(), &mut module) }).map_err(|e| {
            Error::data(
                path,
                None,
                format!(
                    "no TorchScript module ({}); save it in Python: torch.jit.save(torch.jit.script(model), path)",
                    first_line(&e)
                ),
            )
        })?;
        Ok(Script { module })
    }

    /// Sets training or evaluation mode, as `train(on)`.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn train(&self, on: bool) -> Result<()> {
        // SAFETY: the module lives as long as `self`.
        check(unsafe { weince_script_train(self.module, on.into()) })
    }

    /// Parameters and buffers in the order of Python's `state_dict()`.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn members(&self) -> Result<Vec<Member>> {
        extern "C" fn visit(context: *mut c_void, name: *const c_char, tensor: RawTensor, is_parameter: c_int) {
            // SAFETY: `context` is the list below, which lives through the call and is used by nobody else meanwhile.
            let list = unsafe { &mut *context.cast::<Vec<Member>>() };
            // SAFETY: the bridge gives a NUL-terminated name that lives through this call.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            // SAFETY: the bridge gives a fresh torch::Tensor* that nobody else holds.
            let tensor = unsafe { Tensor::from_ptr(tensor) };
            list.push(Member { name, tensor, is_parameter: is_parameter != 0 });
        }
        let mut list: Vec<Member> = Vec::new();
        // SAFETY: the module lives as long as `self`, and `list` through the call.
        check(unsafe { weince_script_named(self.module, (&raw mut list).cast(), visit) })?;
        Ok(list)
    }

    /// Runs `forward`.
    ///
    /// # Errors
    /// Whatever the module or LibTorch report; an output that is not one tensor.
    pub fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let list = raws(inputs);
        let mut out: RawTensor = std::ptr::null_mut();
        // SAFETY: `list` holds as many live tensors as its length says; `out` receives a new tensor that we own.
        check(unsafe { weince_script_forward(self.module, list.as_ptr(), list.len(), &mut out) })?;
        // SAFETY: on success `out` is a fresh torch::Tensor* that nobody else holds.
        Ok(unsafe { Tensor::from_ptr(out) })
    }

    /// What the code of `forward` carries as constants.
    ///
    /// # Errors
    /// A module without `forward`.
    pub fn baked(&self) -> Result<Baked> {
        let (mut modes, mut devices) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the module lives as long as `self`; both pointers receive strings made by strdup for us.
        check(unsafe { weince_script_baked(self.module, &mut modes, &mut devices) })?;
        // SAFETY: as above, set on success.
        let (modes, devices) = unsafe { (take_string(modes), take_string(devices)) };
        let lines = |text: String| text.lines().map(str::to_string).collect();
        Ok(Baked { modes: lines(modes), devices: lines(devices) })
    }

    /// Writes the module, as `torch.jit.save`, with the tensors that it has now.
    ///
    /// # Errors
    /// What LibTorch or the system report.
    pub fn save(&self, path: &Path) -> Result<()> {
        let name = c_path(path)?;
        // SAFETY: the module lives as long as `self`, and `name` through the call.
        check(unsafe { weince_script_save(self.module, name.as_ptr()) })
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // SAFETY: loaded by us, freed once.
        unsafe { weince_script_free(self.module) }
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}

fn c_path(path: &Path) -> Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::Input(format!("{}: a path cannot contain a zero byte", path.display())))
}

/// The first line of LibTorch's text that says something.
fn first_line(e: &Error) -> String {
    e.to_string().lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown error").to_string()
}
