//! Threads on which LibTorch computes without starting threads of its own.
//!
//! A product of a few thousand rows is too small for LibTorch to share among its threads and worth sharing as a whole:
//! then each worker takes products of its own, and the result of each is the same whatever the number of workers.

use crate::error::{Error, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool with as many workers as LibTorch has threads, each of which runs LibTorch's operations by itself.
///
/// # Errors
/// Where the system refuses the threads.
pub fn workers() -> Result<ThreadPool> {
    let threads = tch::get_num_threads();
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads.max(1) as usize)
        .start_handler(|_| {
            // A thread's first question sets its number to the process's: asked before, it can't undo the 1.
            tch::get_num_threads();
            tch::set_num_threads(1);
        })
        .build()
        .map_err(|e| Error::Input(format!("cannot start {threads} threads: {e}")))?;
    // LibTorch's number of threads belongs to the calling thread, and is also what later threads start with: once every
    // worker has its 1, the latter is set back.
    pool.broadcast(|_| ());
    tch::set_num_threads(threads);
    Ok(pool)
}

#[cfg(test)]
mod tests {
    #[test]
    fn workers_compute_alone_and_the_caller_keeps_its_threads() {
        let before = tch::get_num_threads();
        let pool = super::workers().unwrap();
        assert_eq!(pool.current_num_threads(), before as usize);
        assert!(pool.broadcast(|_| tch::get_num_threads()).iter().all(|&n| n == 1));
        assert_eq!(tch::get_num_threads(), before);
    }
}
