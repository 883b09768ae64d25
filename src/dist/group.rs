//! A group of processes and what they do together. Where one of them is gone, each of the others says which one.
//!
//! Every process moves a number in the store, its pulse, twice a second. When a collective fails, pulses that stand still tell who is
//! gone, and who has left with an error of its own has written it there. Nothing here waits without a limit.

use super::Place;
use crate::error::{Error, Result};
use crate::torch::{Keys, Wire, as_bytes, has_nccl};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

/// Between two beats of a pulse.
const BEAT: Duration = Duration::from_millis(500);
/// A pulse that stands still for so long is that of a dead process.
const STILL: Duration = Duration::from_secs(3);
/// How long the store may take to answer where it may be gone.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the process that serves the store waits for the others' ends.
const FAREWELL: Duration = Duration::from_secs(60);

/// What to try when a process is gone.
const RESUME: &str = "--resume continues the run from its newest checkpoint";

/// The processes of a run; a clone is the same group.
#[derive(Clone)]
pub struct Group(Option<Arc<Joined>>);

struct Joined {
    place: Place,
    wire: Wire,
    /// A connection for what is not a collective.
    keys: Arc<Keys>,
    /// Set when this process leaves.
    over: Arc<AtomicBool>,
    /// Set when a collective has failed: no other can follow, and this process is not the cause.
    broken: AtomicBool,
    /// Where this process serves the store, it does so as long as this is here; dropped last.
    _store: Keys,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl Group {
    /// One process: what it does together is done.
    pub fn alone() -> Group {
        Group(None)
    }

    /// Meets the other processes at the store of their run and connects with them. `device` is where this one computes.
    ///
    /// # Errors
    /// A store that is not reached, processes that do not come within the place's timeout, that claim the same rank, or that were started
    /// with another world size or version; a CUDA device where NCCL was not compiled in.
    pub fn join(place: &Place, device: Device) -> Result<Group> {
        if device.is_cuda() && !has_nccl() {
            return Err(Error::Input(
                "several processes on CUDA need NCCL, whose headers were not found when weince was built: install nvidia-cuda-crt and \
                 nvidia-cuda-cccl 13.0 beside PyTorch (pip install --no-deps), or set CUDA_HOME to a CUDA 13 toolkit, and build again; \
                 --device cpu needs none"
                    .into(),
            ));
        }
        let serves = place.serves();
        let prefix = format!("weince/{}", place.attempt);
        let keys = Keys::open(&place.host, place.port, serves, place.timeout, &prefix).map_err(|e| {
            let at = format!("{}:{}", place.host, place.port);
            Error::Peer(if serves {
                format!("rank 0 cannot serve the run's store at {at}: {e}; choose a free MASTER_PORT (scripts/launch.sh --port)")
            } else {
                format!(
                    "rank {} reached no store at {at} within {}: {e}; is rank 0 running, and can this machine reach it?",
                    place.rank,
                    seconds(place.timeout)
                )
            })
        })?;
        meet(&keys, place)?;
        // Named, as a machine has several addresses, and its name may have none.
        let interface = std::env::var("GLOO_SOCKET_IFNAME").ok().filter(|name| !name.is_empty());
        let address = own_address(place)?;
        let wire = Wire::open(&keys, (place.rank, place.size), device, interface.as_deref(), &address, place.timeout)
            .map_err(|e| {
            Error::Peer(format!("rank {} cannot connect with the others from {address}: {e}", place.rank))
        })?;
        let over = Arc::new(AtomicBool::new(false));
        let (pulse, control) = (keys.another()?, keys.another()?);
        let (key, stop) = (format!("pulse/{}", place.rank), over.clone());
        std::thread::Builder::new()
            .name("pulse".into())
            .spawn(move || {
                while !stop.load(Ordering::Relaxed) && pulse.add(&key, 1).is_ok() {
                    std::thread::park_timeout(BEAT);
                }
            })
            .map_err(|e| Error::Input(format!("a thread for the pulse can't be started: {e}")))?;
        let (place, broken) = (place.clone(), AtomicBool::new(false));
        Ok(Group(Some(Arc::new(Joined { place, wire, keys: Arc::new(control), over, broken, _store: keys }))))
    }

    /// This process's number, from 0.
    pub fn rank(&self) -> usize {
        self.0.as_ref().map_or(0, |joined| joined.place.rank)
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.0.as_ref().map_or(1, |joined| joined.place.size)
    }

    /// The number of processes on this machine.
    pub fn local_size(&self) -> usize {
        self.0.as_ref().map_or(1, |joined| joined.place.local_size)
    }

    /// Whether this is the only process.
    pub fn is_alone(&self) -> bool {
        self.0.is_none()
    }

    /// Whether this is the first one, which writes and narrates.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    pub(crate) fn wire(&self) -> Option<&Wire> {
        self.0.as_ref().map(|joined| &joined.wire)
    }

    /// The rows of all processes in the order of their ranks, of which each has given its own; `rows` are their numbers. Without gradient.
    ///
    /// # Shapes
    /// [rows of this rank, ..] to [all rows, ..], of any kind.
    ///
    /// # Errors
    /// Rows that are not as many as announced, and a process that does not answer.
    pub fn gather(&self, local: &Tensor, rows: &[i64]) -> Result<Tensor> {
        let Some(joined) = &self.0 else { return Ok(local.shallow_clone()) };
        let size = local.size();
        if rows.len() != joined.place.size || size.first() != Some(&rows[joined.place.rank]) {
            return Err(Error::Input(format!(
                "rows of {} processes: expected {rows:?} in their order, found {size:?} on rank {}",
                joined.place.size, joined.place.rank
            )));
        }
        // As bytes, since not every kind of number is known to every backend; as many for each rank.
        let numbers: i64 = size[1..].iter().product();
        let width = numbers * local.kind().elt_size_in_bytes() as i64;
        let most = rows.iter().max().copied().unwrap_or(0) * width;
        let options = (Kind::Uint8, local.device());
        let mine = Tensor::f_zeros([most], options)?;
        mine.f_narrow(0, 0, rows[joined.place.rank] * width)?.f_copy_(&as_bytes(local)?)?;
        let all = Tensor::f_empty([most * joined.place.size as i64], options)?;
        self.watch(joined.wire.gather(&mine, &all))?;
        let of_ranks = rows.iter().enumerate().map(|(rank, &count)| {
            let mut shape = size.clone();
            shape[0] = count;
            if count * width == 0 {
                return Ok(Tensor::f_empty(&shape, (local.kind(), local.device()))?);
            }
            let bytes = all.f_narrow(0, rank as i64 * most, count * width)?;
            Ok(bytes.f_view_dtype(local.kind())?.f_view(&shape[..])?)
        });
        Ok(Tensor::f_cat(&of_ranks.collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// Sums a tensor over the processes, in place.
    ///
    /// # Errors
    /// A process that does not answer.
    pub fn sum(&self, tensor: &mut Tensor) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |joined| self.watch(joined.wire.sum(tensor)))
    }

    /// Gives all processes the first one's tensors, in place.
    ///
    /// # Errors
    /// A process that does not answer.
    pub fn broadcast(&self, tensors: &mut [Tensor]) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |joined| self.watch(joined.wire.broadcast(tensors)))
    }

    /// Whether any process says so.
    ///
    /// # Errors
    /// A process that does not answer.
    pub fn any(&self, here: bool) -> Result<bool> {
        if self.is_alone() {
            return Ok(here);
        }
        let mut count = Tensor::from_slice(&[i64::from(here)]);
        self.sum(&mut count)?;
        Ok(count.f_int64_value(&[0])? > 0)
    }

    /// A text of each process.
    ///
    /// # Errors
    /// A process that does not answer.
    pub fn texts(&self, here: &str) -> Result<Vec<String>> {
        if self.is_alone() {
            return Ok(vec![here.to_string()]);
        }
        let length = Tensor::from_slice(&[here.len() as i64]);
        let lengths = Vec::<i64>::try_from(self.gather(&length, &vec![1; self.size()])?)?;
        let all = Vec::<u8>::try_from(self.gather(&Tensor::f_from_slice(here.as_bytes())?, &lengths)?)?;
        let mut rest = all.as_slice();
        Ok(lengths
            .iter()
            .map(|length| {
                let (text, more) = rest.split_at(*length as usize);
                rest = more;
                String::from_utf8_lossy(text).into_owned()
            })
            .collect())
    }

    /// The first process that has something to say, and what.
    ///
    /// # Errors
    /// A process that does not answer.
    pub fn first_said(&self, here: Option<String>) -> Result<Option<(usize, String)>> {
        let texts = self.texts(&here.unwrap_or_default())?;
        Ok(texts.into_iter().enumerate().find(|(_, text)| !text.is_empty()))
    }

    /// Batch normalisation over the rows of all processes.
    ///
    /// # Errors
    /// A group of one; a process that does not answer, and whatever LibTorch reports.
    pub(crate) fn batch_norm(
        &self,
        x: &Tensor,
        affine: (&Tensor, &Tensor),
        running: (&Tensor, &Tensor),
        momentum: f64,
        eps: f64,
    ) -> Result<Tensor> {
        let wire = self.wire().ok_or_else(|| Error::Input("batch normalisation over a group of one process".into()))?;
        self.watch(wire.batch_norm(x, affine, running, momentum, eps))
    }

    /// Tells the others why this process leaves before the end, as far as they can still be told.
    pub fn fail(&self, message: &str) {
        let Some(joined) = &self.0 else { return };
        if joined.broken.load(Ordering::Relaxed) {
            return;
        }
        let (keys, key, message) = (joined.keys.clone(), format!("failed/{}", joined.place.rank), message.to_string());
        within(ANSWER, move || keys.set(&key, &message));
        joined.broken.store(true, Ordering::Relaxed);
        joined.wire.close();
    }

    /// The result of work in which a collective may have failed: its error then names the processes that are gone.
    ///
    /// # Errors
    /// That of the result, or what became of the others.
    pub fn watch<T>(&self, result: Result<T>) -> Result<T> {
        let (Some(joined), Err(cause)) = (&self.0, &result) else { return result };
        if matches!(cause, Error::Peer(_)) || !joined.wire.has_failed() {
            return result;
        }
        joined.broken.store(true, Ordering::Relaxed);
        // Whoever waits for this process has an error now, too.
        joined.wire.close();
        Err(Error::Peer(joined.who_is_gone(cause)))
    }
}

impl Joined {
    /// What became of the others.
    fn who_is_gone(&self, cause: &Error) -> String {
        let (keys, place) = (self.keys.clone(), self.place.clone());
        let found = within(ANSWER, move || inquire(&keys, &place));
        let at = format!("{}:{}", self.place.host, self.place.port);
        match found {
            Some(Ok(found)) => found.join("; "),
            _ if self.place.agent_store => {
                format!("torchrun, which serves the run's store at {at}, no longer answers: {cause}; {RESUME}")
            }
            _ => format!("rank 0, which serves the run's store at {at}, no longer answers: {cause}; {RESUME}"),
        }
    }

    /// Whether a process has said its farewell, or its pulse has not moved since `seen`.
    fn has_left(&self, rank: usize, seen: &mut (i64, Instant)) -> bool {
        if self.keys.has(&format!("bye/{rank}")).unwrap_or(true) {
            return true;
        }
        let beat = self.keys.add(&format!("pulse/{rank}"), 0).unwrap_or(seen.0);
        if beat != seen.0 {
            *seen = (beat, Instant::now());
        }
        seen.1.elapsed() > STILL
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let (keys, key) = (self.keys.clone(), format!("bye/{}", self.place.rank));
        within(ANSWER, move || keys.set(&key, ""));
        if self.place.serves() {
            // The others may still ask who is gone.
            let begun = Instant::now();
            let mut seen = vec![(-1, begun); self.place.size];
            while begun.elapsed() < FAREWELL && !(1..self.place.size).all(|rank| self.has_left(rank, &mut seen[rank])) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.over.store(true, Ordering::Relaxed);
        // Who still waits for this process waits in vain.
        self.wire.close();
    }
}

/// What each of the others does that keeps this process from going on: those that left with an error, else the dead, else the busy,
/// else those that gave up before.
fn inquire(keys: &Keys, place: &Place) -> Result<Vec<String>> {
    keys.set(&format!("waited/{}", place.rank), "")?;
    let others: Vec<usize> = (0..place.size).filter(|rank| *rank != place.rank).collect();
    let pulse = |rank: &usize| keys.add(&format!("pulse/{rank}"), 0);
    let before = others.iter().map(pulse).collect::<Result<Vec<i64>>>()?;
    let begun = Instant::now();
    while begun.elapsed() <= STILL {
        let mut failed = Vec::new();
        for rank in &others {
            let key = format!("failed/{rank}");
            if keys.has(&key)? {
                failed.push(stopped(*rank, &keys.get(&key)?));
            }
        }
        if !failed.is_empty() {
            return Ok(failed);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let now = others.iter().map(pulse).collect::<Result<Vec<i64>>>()?;
    let still = others.iter().zip(before.iter().zip(&now)).filter(|(_, (before, now))| before == now);
    let gone: Vec<String> = still.map(|(rank, _)| format!("rank {rank} no longer answers")).collect();
    if !gone.is_empty() {
        return Ok(vec![format!("{}; {RESUME}", gone.join("; "))]);
    }
    // Whoever waited for others, too, has noticed by now.
    let (mut busy, mut waited) = (Vec::new(), Vec::new());
    for rank in others {
        if keys.has(&format!("waited/{rank}"))? {
            waited.push(format!("rank {rank} gave up waiting for others"));
        } else {
            let timeout = seconds(place.timeout);
            busy.push(format!("rank {rank} is busy with something else for longer than the timeout of {timeout}"));
        }
    }
    Ok(if busy.is_empty() { waited } else { busy })
}

/// What the others say of a process that left with an error.
pub(crate) fn stopped(rank: usize, message: &str) -> String {
    format!("rank {rank} stopped: {message}")
}

impl Place {
    /// Whether this process serves the store of the run.
    fn serves(&self) -> bool {
        self.rank == 0 && !self.agent_store
    }
}

/// Checks that all processes are there, once each, and were started alike.
fn meet(keys: &Keys, place: &Place) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let at = format!("{}:{}", place.host, place.port);
    let gone = |e: Error| Error::Peer(format!("the run's store at {at} no longer answers: {e}"));
    if keys.add(&format!("claim/{}", place.rank), 1).map_err(gone)? > 1 {
        return Err(Error::Config(format!(
            "another process at {at} claims rank {} as well; expected each rank once: start another run at another MASTER_PORT",
            place.rank
        )));
    }
    let begun = Instant::now();
    keys.set(&format!("hello/{}", place.rank), &format!("{} {version}", place.size)).map_err(gone)?;
    let mut known: Vec<Option<String>> = vec![None; place.size];
    let mut told = None;
    while told.is_none() && known.iter().any(Option::is_none) {
        for (rank, known) in known.iter_mut().enumerate().filter(|(_, known)| known.is_none()) {
            let key = format!("hello/{rank}");
            if keys.has(&key).map_err(gone)? {
                let hello = keys.get(&key).map_err(gone)?;
                told = told.or(difference(place, version, rank, &hello));
                *known = Some(hello);
            }
        }
        let missing: Vec<String> =
            (0..place.size).filter(|rank| known[*rank].is_none()).map(|rank| rank.to_string()).collect();
        if told.is_none() && !missing.is_empty() && begun.elapsed() > place.timeout {
            return Err(Error::Peer(format!(
                "of {} processes, rank {} did not come to {at} within {}; start all of them, or name fewer (WORLD_SIZE)",
                place.size,
                missing.join(", rank "),
                seconds(place.timeout)
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = keys.set(&format!("told/{}", place.rank), "");
    let Some(told) = told else { return Ok(()) };
    if place.serves() {
        // The others shall see it, too, before the store is gone.
        let others = |known: &Option<String>, rank: usize| known.is_some() && rank != place.rank;
        let begun = Instant::now();
        while begun.elapsed() < STILL
            && known
                .iter()
                .enumerate()
                .any(|(rank, k)| others(k, rank) && !keys.has(&format!("told/{rank}")).unwrap_or(true))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Err(Error::Config(told))
}

/// How a process was started otherwise than this one.
fn difference(place: &Place, version: &str, rank: usize, hello: &str) -> Option<String> {
    let (size, other) = hello.split_once(' ').unwrap_or((hello, ""));
    if size != place.size.to_string() {
        return Some(format!(
            "rank {rank} was started with world size {size}, rank {} with {}; expected one number for all (WORLD_SIZE)",
            place.rank, place.size
        ));
    }
    (other != version).then(|| {
        format!("rank {rank} is weince {other}, rank {} is {version}; expected one version for all", place.rank)
    })
}

/// The address of this machine from which it reaches the store's host. No packet is sent.
fn own_address(place: &Place) -> Result<String> {
    let target = (place.host.as_str(), place.port);
    let address = |bind: &str| {
        let socket = UdpSocket::bind(bind)?;
        socket.connect(target)?;
        socket.local_addr()
    };
    let found = address("0.0.0.0:0").or_else(|_| address("[::]:0"));
    let found = found.map_err(|e| Error::Peer(format!("no way from this machine to {}: {e}", place.host)))?;
    Ok(found.ip().to_string())
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// Work that may never end, on a thread that is left behind then.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> Result<T> + Send + 'static) -> Option<Result<T>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .spawn(move || {
            // Nobody may be there any more.
            let _ = sender.send(work());
        })
        .ok()?;
    receiver.recv_timeout(limit).ok()
}
