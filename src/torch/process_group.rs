//! Processes that compute together, on PyTorch's c10d: the store through which they find one another, their connections, the sums of
//! their gradients, and batch normalisation over all of them. What these mean to a run is in `dist`.

use super::ffi::{RawTensor, check, raw, raws, take_string};
use crate::error::{Error, Result};
use std::ffi::{CString, c_char, c_int};
use std::time::Duration;
use tch::{Device, Tensor};

/// A store, as the bridge holds it.
#[repr(C)]
struct RawKeys {
    _opaque: [u8; 0],
}
/// Connections, as the bridge holds them.
#[repr(C)]
struct RawWire {
    _opaque: [u8; 0],
}
/// A Reducer, as the bridge holds it.
#[repr(C)]
struct RawGradients {
    _opaque: [u8; 0],
}

// SAFETY: these signatures are those of cpp/dist.cpp, compiled with this crate.
unsafe extern "C" {
    fn weince_nccl() -> c_int;
    fn weince_keys_open(
        host: *const c_char,
        port: u16,
        serves: c_int,
        timeout: i64,
        prefix: *const c_char,
        out: *mut *mut RawKeys,
    ) -> *mut c_char;
    fn weince_keys_clone(keys: *mut RawKeys, out: *mut *mut RawKeys) -> *mut c_char;
    fn weince_keys_set(keys: *mut RawKeys, key: *const c_char, value: *const c_char, n: usize) -> *mut c_char;
    fn weince_keys_get(keys: *mut RawKeys, key: *const c_char, out: *mut *mut c_char) -> *mut c_char;
    fn weince_keys_add(keys: *mut RawKeys, key: *const c_char, amount: i64, out: *mut i64) -> *mut c_char;
    fn weince_keys_has(keys: *mut RawKeys, key: *const c_char, out: *mut c_int) -> *mut c_char;
    fn weince_keys_free(keys: *mut RawKeys);
    fn weince_wire_open(
        keys: *mut RawKeys,
        rank: c_int,
        size: c_int,
        cuda: c_int,
        interface: *const c_char,
        address: *const c_char,
        timeout: i64,
        out: *mut *mut RawWire,
    ) -> *mut c_char;
    fn weince_wire_gather(wire: *mut RawWire, mine: RawTensor, all: RawTensor) -> *mut c_char;
    fn weince_wire_sum(wire: *mut RawWire, tensor: RawTensor) -> *mut c_char;
    fn weince_wire_broadcast(wire: *mut RawWire, tensors: *const RawTensor, n: usize) -> *mut c_char;
    fn weince_wire_failed(wire: *mut RawWire) -> c_int;
    fn weince_wire_close(wire: *mut RawWire) -> *mut c_char;
    fn weince_wire_free(wire: *mut RawWire) -> *mut c_char;
    fn weince_sync_batch_norm(
        wire: *mut RawWire,
        x: RawTensor,
        weight: RawTensor,
        bias: RawTensor,
        running_mean: RawTensor,
        running_var: RawTensor,
        momentum: f64,
        eps: f64,
        out: *mut RawTensor,
    ) -> *mut c_char;
    fn weince_gradients_new(
        wire: *mut RawWire,
        params: *const RawTensor,
        names: *const *const c_char,
        n: usize,
        out: *mut *mut RawGradients,
    ) -> *mut c_char;
    fn weince_gradients_arm(gradients: *mut RawGradients) -> *mut c_char;
    fn weince_gradients_finish(gradients: *mut RawGradients) -> *mut c_char;
    fn weince_gradients_free(gradients: *mut RawGradients) -> *mut c_char;
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Input(format!("expected a text without a zero byte, found {text:?}")))
}

fn milliseconds(time: Duration) -> i64 {
    time.as_millis().try_into().unwrap_or(i64::MAX)
}

/// Whether NCCL was compiled in, without which processes cannot compute on CUDA together.
pub fn has_nccl() -> bool {
    // SAFETY: takes and keeps nothing.
    unsafe { weince_nccl() != 0 }
}

/// A connection to the store of a run.
pub struct Keys(*mut RawKeys);

// SAFETY: c10d's TCPStore locks its connection for each request; the handle is freed once, by its owner.
unsafe impl Send for Keys {}
// SAFETY: as above.
unsafe impl Sync for Keys {}

impl Keys {
    /// The store at `host`:`port`, which is served here if `serves`; every key is under `prefix`.
    ///
    /// # Errors
    /// A host that is not reached within `timeout`, a port that is taken.
    pub fn open(host: &str, port: u16, serves: bool, timeout: Duration, prefix: &str) -> Result<Keys> {
        let (host, prefix) = (c_string(host)?, c_string(prefix)?);
        let mut out = std::ptr::null_mut();
        // SAFETY: both texts live through the call; `out` is written unless there is a message.
        let answer = unsafe {
            weince_keys_open(host.as_ptr(), port, serves.into(), milliseconds(timeout), prefix.as_ptr(), &mut out)
        };
        check(answer)?;
        Ok(Keys(out))
    }

    /// The same store by a connection of its own, which answers while this one waits.
    ///
    /// # Errors
    /// A store that is gone.
    pub fn another(&self) -> Result<Keys> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the handle is alive; `out` is written unless there is a message.
        check(unsafe { weince_keys_clone(self.0, &mut out) })?;
        Ok(Keys(out))
    }

    /// Sets a key.
    ///
    /// # Errors
    /// A store that is gone.
    pub fn set(&self, key: &str, value: &str) -> Result<()> {
        let key = c_string(key)?;
        // SAFETY: the handle is alive, and so are both texts through the call.
        check(unsafe { weince_keys_set(self.0, key.as_ptr(), value.as_ptr().cast(), value.len()) })
    }

    /// Waits for a key and gives its value.
    ///
    /// # Errors
    /// None within the store's timeout; a store that is gone.
    pub fn get(&self, key: &str) -> Result<String> {
        let key = c_string(key)?;
        let mut out = std::ptr::null_mut();
        // SAFETY: the handle is alive; `out` is written unless there is a message.
        check(unsafe { weince_keys_get(self.0, key.as_ptr(), &mut out) })?;
        // SAFETY: from the bridge's strndup, taken once.
        Ok(unsafe { take_string(out) })
    }

    /// Adds to a number, which is 0 at first; gives the sum.
    ///
    /// # Errors
    /// A store that is gone.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let key = c_string(key)?;
        let mut out = 0;
        // SAFETY: the handle is alive; `out` is a number.
        check(unsafe { weince_keys_add(self.0, key.as_ptr(), amount, &mut out) })?;
        Ok(out)
    }

    /// Whether a key is there.
    ///
    /// # Errors
    /// A store that is gone.
    pub fn has(&self, key: &str) -> Result<bool> {
        let key = c_string(key)?;
        let mut out = 0;
        // SAFETY: the handle is alive; `out` is a number.
        check(unsafe { weince_keys_has(self.0, key.as_ptr(), &mut out) })?;
        Ok(out != 0)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // SAFETY: made by the bridge, freed once.
        unsafe { weince_keys_free(self.0) }
    }
}

/// The connections of a rank to all others.
pub struct Wire(*mut RawWire);

// SAFETY: the bridge issues collectives under a lock, and c10d's process groups are made for several threads.
unsafe impl Send for Wire {}
// SAFETY: as above.
unsafe impl Sync for Wire {}

impl Wire {
    /// Connects `rank` of `size` with the others: on the CPU by Gloo, through the network interface of this name or that of `address`; on a
    /// CUDA device by NCCL, beside Gloo. A collective that takes longer than `timeout` fails.
    ///
    /// # Errors
    /// Ranks that do not come, an interface that there is not, NCCL that was not compiled in.
    pub fn open(
        keys: &Keys,
        (rank, size): (usize, usize),
        device: Device,
        interface: Option<&str>,
        address: &str,
        timeout: Duration,
    ) -> Result<Wire> {
        let cuda = if let Device::Cuda(index) = device { index as c_int } else { -1 };
        let named = interface.map(c_string).transpose()?;
        let interface = named.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        let address = c_string(address)?;
        let mut out = std::ptr::null_mut();
        // SAFETY: the store is alive, the texts live through the call; `out` is written unless there is a message.
        let answer = unsafe {
            weince_wire_open(
                keys.0,
                rank as c_int,
                size as c_int,
                cuda,
                interface,
                address.as_ptr(),
                milliseconds(timeout),
                &mut out,
            )
        };
        check(answer)?;
        Ok(Wire(out))
    }

    /// Gathers what each rank has; `all` holds as much as `mine` for each rank, both contiguous and of one kind.
    ///
    /// # Errors
    /// A rank that does not answer.
    pub fn gather(&self, mine: &Tensor, all: &Tensor) -> Result<()> {
        // SAFETY: the handle and both tensors are alive; the bridge waits for the end.
        check(unsafe { weince_wire_gather(self.0, raw(mine), raw(all)) })
    }

    /// Sums a tensor over the ranks, in place.
    ///
    /// # Errors
    /// A rank that does not answer.
    pub fn sum(&self, tensor: &mut Tensor) -> Result<()> {
        // SAFETY: as above.
        check(unsafe { weince_wire_sum(self.0, raw(tensor)) })
    }

    /// Gives all ranks rank 0's tensors, in place.
    ///
    /// # Errors
    /// A rank that does not answer.
    pub fn broadcast(&self, tensors: &mut [Tensor]) -> Result<()> {
        let raws = raws(tensors);
        // SAFETY: as above.
        check(unsafe { weince_wire_broadcast(self.0, raws.as_ptr(), raws.len()) })
    }

    /// Whether a collective has failed, after which none can follow.
    pub fn has_failed(&self) -> bool {
        // SAFETY: the handle is alive.
        unsafe { weince_wire_failed(self.0) != 0 }
    }

    /// Ends the connections, so that other ranks stop waiting for this one.
    pub fn close(&self) {
        // SAFETY: the handle is alive. An error leaves nothing to be done: the connections are at an end either way.
        let _ = check(unsafe { weince_wire_close(self.0) });
    }

    /// Batch normalisation of `x` [B, C, ..] over the rows of all ranks; running statistics move, gradients are those of the whole batch.
    ///
    /// # Errors
    /// A rank that does not answer, a single value a channel, whatever LibTorch reports.
    pub fn batch_norm(
        &self,
        x: &Tensor,
        (weight, bias): (&Tensor, &Tensor),
        (running_mean, running_var): (&Tensor, &Tensor),
        momentum: f64,
        eps: f64,
    ) -> Result<Tensor> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the handle and the tensors are alive; `out` is a new tensor unless there is a message. The graph keeps the connections.
        let answer = unsafe {
            weince_sync_batch_norm(
                self.0,
                raw(x),
                raw(weight),
                raw(bias),
                raw(running_mean),
                raw(running_var),
                momentum,
                eps,
                &mut out,
            )
        };
        check(answer)?;
        // SAFETY: a tensor that the bridge made for us.
        Ok(unsafe { Tensor::from_ptr(out.cast()) })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: made by the bridge, freed once. What cannot be closed in order is left behind, as the bridge says.
        let _ = check(unsafe { weince_wire_free(self.0) });
    }
}

/// c10d's Reducer: sums gradients over the ranks in buckets, while the backward pass goes on.
pub struct Reducer(*mut RawGradients);

// SAFETY: used by one thread at a time, as its methods take it whole; LibTorch's autograd threads call it under its own lock.
unsafe impl Send for Reducer {}

impl Reducer {
    /// Over these parameters, all of which have a gradient in every pass.
    ///
    /// # Errors
    /// Ranks whose parameters differ, and whatever LibTorch reports.
    pub fn new(wire: &Wire, parameters: &[(String, Tensor)]) -> Result<Reducer> {
        let texts = parameters.iter().map(|(name, _)| c_string(name)).collect::<Result<Vec<_>>>()?;
        let names: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let raws: Vec<RawTensor> = parameters.iter().map(|(_, t)| raw(t)).collect();
        let mut out = std::ptr::null_mut();
        // SAFETY: handles, names and tensors live through the call; the Reducer keeps its own references.
        let answer = unsafe { weince_gradients_new(wire.0, raws.as_ptr(), names.as_ptr(), raws.len(), &mut out) };
        check(answer)?;
        Ok(Reducer(out))
    }

    /// The next backward pass ends in sums; passes before it only add up.
    ///
    /// # Errors
    /// A rank that does not answer, and whatever LibTorch reports.
    pub fn arm(&mut self) -> Result<()> {
        // SAFETY: the handle is alive.
        check(unsafe { weince_gradients_arm(self.0) })
    }

    /// Asks after the pass whether everything is summed.
    ///
    /// # Errors
    /// A parameter without a gradient.
    pub fn finish(&mut self) -> Result<()> {
        // SAFETY: the handle is alive.
        check(unsafe { weince_gradients_finish(self.0) })
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: made by the bridge, freed once; an error means that LibTorch has let go of it.
        let _ = check(unsafe { weince_gradients_free(self.0) });
    }
}
