//! Locks on files, by which processes keep out of one another's way; the system gives them up when their process ends.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;

/// Takes the lock on a file; false where another process has it.
///
/// # Errors
/// What the system refuses.
pub fn try_lock(file: &File) -> std::io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Takes the lock on a file, and waits for the process that has it.
///
/// # Errors
/// What the system refuses.
pub fn wait_for_lock(file: &File) -> std::io::Result<()> {
    flock(file, FlockOperation::LockExclusive).map_err(Into::into)
}
