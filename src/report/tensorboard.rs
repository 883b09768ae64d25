//! TensorBoard event files with scalars: TFRecord framing around `tensorflow.Event` messages, encoded by hand because
//! three messages with a handful of fields need no protobuf compiler.

use crate::error::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A stream of events; the first one names the format's version.
///
/// # Source
/// Fields: `tensorboard/compat/proto/{event,summary}.proto`. Framing: `tensorboard.summary.writer.record_writer`.
#[derive(Debug)]
pub struct Events<W> {
    out: W,
}

impl<W: Write> Events<W> {
    /// Begins the stream.
    ///
    /// # Units
    /// `wall_time` in seconds since 1970, here as in the other methods.
    ///
    /// # Errors
    /// A failed write, here as in the other methods.
    pub fn start(out: W, wall_time: f64) -> io::Result<Events<W>> {
        let mut events = Events { out };
        let mut event = Message::event(wall_time, 0);
        event.bytes(3, b"brain.Event:2");
        events.write(&event)?;
        Ok(events)
    }

    /// Says that a run goes on at `step`: TensorBoard then drops the points from that step on of earlier files.
    ///
    /// # Errors
    /// A failed write.
    pub fn session_start(&mut self, wall_time: f64, step: u64) -> io::Result<()> {
        const START: u64 = 1;
        let mut log = Message::default();
        log.integer(1, START);
        let mut event = Message::event(wall_time, step);
        event.bytes(7, &log.0);
        self.write(&event)
    }

    /// Writes the scalars of one step as one event; TensorBoard keeps them as float32.
    ///
    /// # Errors
    /// A failed write.
    pub fn scalars(&mut self, wall_time: f64, step: u64, scalars: &[(&str, f64)]) -> io::Result<()> {
        let mut summary = Message::default();
        for (tag, value) in scalars {
            let mut entry = Message::default();
            entry.bytes(1, tag.as_bytes());
            entry.float(2, *value as f32);
            summary.bytes(1, &entry.0);
        }
        let mut event = Message::event(wall_time, step);
        event.bytes(5, &summary.0);
        self.write(&event)
    }

    fn write(&mut self, event: &Message) -> io::Result<()> {
        let length = (event.0.len() as u64).to_le_bytes();
        let record =
            [&length[..], &masked_crc(&length).to_le_bytes(), &event.0, &masked_crc(&event.0).to_le_bytes()].concat();
        // One write call a record: a reader never waits for the rest of one.
        self.out.write_all(&record)?;
        self.out.flush()
    }
}

/// TFRecord's checksum: CRC-32C, rotated and shifted so that data holding checksums keeps them distinct.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    const VARINT: u64 = 0;
    const FIXED64: u64 = 1;
    const DELIMITED: u64 = 2;
    const FIXED32: u64 = 5;

    fn event(wall_time: f64, step: u64) -> Message {
        let mut event = Message::default();
        event.varint(1 << 3 | Message::FIXED64);
        event.0.extend(wall_time.to_le_bytes());
        // proto3 leaves a zero out.
        if step != 0 {
            event.integer(2, step);
        }
        event
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | Message::VARINT);
        self.varint(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | Message::FIXED32);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | Message::DELIMITED);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }
}

/// An event file of a run's `tb/` folder, with the clock's times; every call leaves it complete on disk.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    events: Events<File>,
}

impl EventWriter {
    /// Opens the first event file of a run, making the folder if needed.
    ///
    /// # Errors
    /// A folder or file that cannot be made or written.
    pub fn create(folder: &Path) -> Result<EventWriter> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "cannot make the TensorBoard folder"))?;
        let (file, path) = new_file(folder)?;
        let events = Events::start(file, now()).map_err(Error::io(&path, "cannot write the event file"))?;
        Ok(EventWriter { path, events })
    }

    /// Opens one more event file for a resumed run, `first_step` being the first step that will be written again; older
    /// files stay as they are, and TensorBoard ignores their points from that step on.
    ///
    /// # Errors
    /// As [`EventWriter::create`].
    pub fn resume(folder: &Path, first_step: u64) -> Result<EventWriter> {
        let mut writer = EventWriter::create(folder)?;
        let started = writer.events.session_start(now(), first_step);
        started.map_err(Error::io(&writer.path, "cannot write the event file"))?;
        Ok(writer)
    }

    /// Writes the scalars of one step.
    ///
    /// # Errors
    /// A failed write.
    pub fn scalars(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<()> {
        self.events.scalars(now(), step, scalars).map_err(Error::io(&self.path, "cannot write the event file"))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// `events.out.tfevents.<seconds>.<host>.<process>.<count>`, as TensorBoard's own writers name them.
///
/// TensorBoard reads a folder's files in the order of their names, so the seconds are made later than those of any file
/// that is there: otherwise a run resumed within a second could sort before the file that it continues.
fn new_file(folder: &Path) -> Result<(File, PathBuf)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    const PREFIX: &str = "events.out.tfevents.";
    let entries = std::fs::read_dir(folder).map_err(Error::io(folder, "cannot list the TensorBoard folder"))?;
    let newest = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok()
        })
        .max();
    let seconds = newest.map_or(0, |s| s.saturating_add(1)).max(now() as u64);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = folder.join(format!("{PREFIX}{seconds:010}.{host}.{process}.{count}"));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(Error::io(&path, "cannot start the event file"))?;
    Ok((file, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_crc_equals_the_published_vectors() {
        // RFC 3720 B.4 gives CRC-32C of 32 zero bytes as 0x8a9136aa; the mask is TFRecord's.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked_crc(&[0; 32]), 0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn varints_take_seven_bits_a_byte() {
        for (value, expected) in [(0, vec![0]), (127, vec![127]), (300, vec![0xac, 2])] {
            let mut message = Message::default();
            message.varint(value);
            assert_eq!(message.0, expected);
        }
        let mut message = Message::default();
        message.varint(u64::MAX);
        assert_eq!(message.0.len(), 10);
    }

    #[test]
    fn later_files_sort_after_earlier_ones() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("events.out.tfevents.4000000000.zz.9.9"), b"").unwrap();
        let first = EventWriter::create(folder.path()).unwrap().path;
        let second = EventWriter::resume(folder.path(), 3).unwrap().path;
        assert!(first.to_str().unwrap().contains("tfevents.4000000001."));
        assert!(first < second);
    }
}
