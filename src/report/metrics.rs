//! `metrics.jsonl`: the numbers of a run, one JSON object a line, appended while it trains and read by the report.
//!
//! A line is `{"split":"train","step":12,"epoch":0,"loss":5.25,...}`: always these three keys first, then the values in
//! the order in which they were given. Floats are written in the shortest form that reads back as the same f64. JSON has no
//! NaN or infinity, so such a value is `null`, and a last key tells which it was: `"non_finite":{"loss":"NaN"}` (`NaN`,
//! `Infinity` or `-Infinity`). [`read`] undoes this.

use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const NON_FINITE: &str = "non_finite";
const RESERVED: [&str; 4] = ["split", "step", "epoch", NON_FINITE];

/// Which part of a run a line belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// A training step.
    Train,
    /// An evaluation during training.
    Eval,
}

impl Split {
    fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Eval => "eval",
        }
    }
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Training or evaluation.
    pub split: Split,
    /// The training step.
    pub step: u64,
    /// The epoch of that step.
    pub epoch: u64,
    /// Names and values, in the order of the line.
    pub values: Vec<(String, f64)>,
}

impl Record {
    /// A line of a training step, without values yet.
    pub fn train(step: u64, epoch: u64) -> Record {
        Record { split: Split::Train, step, epoch, values: Vec::new() }
    }

    /// A line of an evaluation, without values yet.
    pub fn eval(step: u64, epoch: u64) -> Record {
        Record { split: Split::Eval, step, epoch, values: Vec::new() }
    }

    /// The line with one more value.
    pub fn with(mut self, name: &str, value: f64) -> Record {
        self.values.push((name.to_string(), value));
        self
    }

    /// The value of a name, if the line has it.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }

    fn to_line(&self) -> Result<String> {
        let mut map = Map::new();
        map.insert("split".into(), self.split.name().into());
        map.insert("step".into(), self.step.into());
        map.insert("epoch".into(), self.epoch.into());
        let mut non_finite = Map::new();
        for (name, value) in &self.values {
            if RESERVED.contains(&name.as_str()) || map.contains_key(name) {
                return Err(Error::Input(format!(
                    "metrics: the name `{name}` is given twice or belongs to every line"
                )));
            }
            map.insert(name.clone(), Value::from(*value)); // serde_json makes null of a non-finite f64
            if !value.is_finite() {
                non_finite.insert(name.clone(), spell_non_finite(*value).into());
            }
        }
        if !non_finite.is_empty() {
            map.insert(NON_FINITE.into(), Value::Object(non_finite));
        }
        Ok(Value::Object(map).to_string() + "\n")
    }

    fn from_line(line: &str) -> std::result::Result<Record, String> {
        let map: Map<String, Value> = serde_json::from_str(line).map_err(|e| format!("no JSON object: {e}"))?;
        let split = match map.get("split").and_then(Value::as_str) {
            Some("train") => Split::Train,
            Some("eval") => Split::Eval,
            _ => return Err(format!("`split` must be \"train\" or \"eval\", found {}", found(map.get("split")))),
        };
        let count = |key: &str| {
            map.get(key)
                .and_then(Value::as_u64)
                .ok_or_else(|| format!("`{key}` must be a count from 0 up, found {}", found(map.get(key))))
        };
        let mut record = Record { split, step: count("step")?, epoch: count("epoch")?, values: Vec::new() };
        for (name, value) in map.iter().filter(|(name, _)| !RESERVED.contains(&name.as_str())) {
            let spelt = map.get(NON_FINITE).and_then(|m| m.get(name)).and_then(Value::as_str);
            let number = match value {
                Value::Null => read_non_finite(spelt.unwrap_or("NaN")),
                _ => value.as_f64(),
            };
            let number = number.ok_or_else(|| format!("`{name}` must be a number, found {value}"))?;
            record.values.push((name.clone(), number));
        }
        Ok(record)
    }
}

fn found(value: Option<&Value>) -> String {
    value.map_or("nothing".to_string(), Value::to_string)
}

fn spell_non_finite(value: f64) -> &'static str {
    match (value.is_nan(), value > 0.0) {
        (true, _) => "NaN",
        (_, true) => "Infinity",
        _ => "-Infinity",
    }
}

fn read_non_finite(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Appends lines to a `metrics.jsonl`; each is handed to the operating system before [`MetricsWriter::write`] returns.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
    last_step: u64,
}

impl MetricsWriter {
    /// Starts a new file.
    ///
    /// # Errors
    /// The file is there already, or cannot be made.
    pub fn create(path: &Path) -> Result<MetricsWriter> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(Error::io(path, "cannot start the metrics file"))?;
        Ok(MetricsWriter { path: path.to_path_buf(), file, last_step: 0 })
    }

    /// Goes on with a file whose run is resumed, `first_step` being the first step that will be written again: lines from
    /// that step on are cut off, and so is a last line that an interruption left torn.
    ///
    /// # Errors
    /// A file that cannot be read or cut, or a damaged line.
    pub fn resume(path: &Path, first_step: u64) -> Result<MetricsWriter> {
        let lines = Lines::read(path)?;
        let kept = lines.complete.iter().take_while(|l| l.record.step < first_step).collect::<Vec<_>>();
        let (end, closed, last_step) = kept.last().map_or((0, true, 0), |l| (l.end, l.closed, l.record.step));
        let refused = "cannot cut the metrics file back to the step to resume at";
        let mut file = OpenOptions::new().write(true).open(path).map_err(Error::io(path, refused))?;
        file.set_len(end).map_err(Error::io(path, refused))?;
        file.seek(SeekFrom::End(0)).map_err(Error::io(path, refused))?;
        if !closed {
            file.write_all(b"\n").map_err(Error::io(path, refused))?;
        }
        Ok(MetricsWriter { path: path.to_path_buf(), file, last_step })
    }

    /// Appends one line.
    ///
    /// # Errors
    /// A step before that of the line above, a name that is given twice or reserved, or a failed write.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        if record.step < self.last_step {
            let (step, last) = (record.step, self.last_step);
            return Err(Error::Input(format!("metrics: step {step} after step {last}; steps may not go back")));
        }
        // One write call a line: an interruption can tear the last line only.
        let line = record.to_line()?;
        self.file.write_all(line.as_bytes()).map_err(Error::io(&self.path, "cannot append to the metrics file"))?;
        self.last_step = record.step;
        Ok(())
    }
}

/// What a `metrics.jsonl` holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    /// The lines, in the order of the file.
    pub records: Vec<Record>,
    /// Whether the file ends in a line that an interruption tore; it is left out.
    pub torn: bool,
}

impl Metrics {
    /// Step and value of every line of a split that has the name and a finite value.
    pub fn series(&self, split: Split, name: &str) -> Vec<(u64, f64)> {
        let of_split = self.records.iter().filter(|r| r.split == split);
        of_split.filter_map(|r| Some((r.step, r.get(name).filter(|v| v.is_finite())?))).collect()
    }
}

/// Reads a `metrics.jsonl`.
///
/// # Errors
/// A file that cannot be read, or a line other than a torn last one that is no record, with its number.
pub fn read(path: &Path) -> Result<Metrics> {
    let lines = Lines::read(path)?;
    Ok(Metrics { records: lines.complete.into_iter().map(|l| l.record).collect(), torn: lines.torn })
}

struct Line {
    record: Record,
    /// Offset of the byte after it, its newline included.
    end: u64,
    /// Whether it ends in a newline.
    closed: bool,
}

struct Lines {
    complete: Vec<Line>,
    torn: bool,
}

impl Lines {
    fn read(path: &Path) -> Result<Lines> {
        let bytes = std::fs::read(path).map_err(Error::io(path, "cannot read the metrics"))?;
        let mut lines = Lines { complete: Vec::new(), torn: false };
        let mut start = 0;
        for (index, line) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
            let (offset, end) = (start as u64, (start + line.len()) as u64);
            start += line.len();
            let closed = line.ends_with(b"\n");
            let parsed = std::str::from_utf8(line).map_err(|e| format!("no UTF-8: {e}")).and_then(Record::from_line);
            match parsed {
                Ok(record) => lines.complete.push(Line { record, end, closed }),
                Err(_) if !closed => lines.torn = true,
                Err(reason) => {
                    let message =
                        format!("line {} is no metrics line: {reason}; remove it to read the rest", index + 1);
                    return Err(Error::data(path, Some(offset), message));
                }
            }
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_lines(path: &Path) {
        let mut writer = MetricsWriter::create(path).unwrap();
        writer.write(&Record::train(0, 0).with("loss", 0.1).with("lr", 3e-4)).unwrap();
        writer.write(&Record::train(1, 0).with("loss", 1.0)).unwrap();
        writer.write(&Record::eval(1, 0).with("knn_accuracy", 0.5)).unwrap();
    }

    #[test]
    fn lines_are_ordered_short_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        three_lines(&path);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"split\":\"train\",\"step\":0,\"epoch\":0,\"loss\":0.1,\"lr\":0.0003}\n\
             {\"split\":\"train\",\"step\":1,\"epoch\":0,\"loss\":1.0}\n\
             {\"split\":\"eval\",\"step\":1,\"epoch\":0,\"knn_accuracy\":0.5}\n"
        );
        let metrics = read(&path).unwrap();
        assert!(!metrics.torn);
        assert_eq!(metrics.series(Split::Train, "loss"), [(0, 0.1), (1, 1.0)]);
        assert_eq!(metrics.series(Split::Eval, "knn_accuracy"), [(1, 0.5)]);
        assert!(MetricsWriter::create(&path).is_err(), "an existing file is never overwritten");
    }

    #[test]
    fn every_finite_float_reads_back_to_the_bit() {
        use rand::{RngCore, SeedableRng};
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let special = [-0.0, f64::MIN_POSITIVE, f64::from_bits(1), f64::MAX, 1.0 / 3.0, 1e23];
        for value in special.into_iter().chain((0..5000).map(|_| f64::from_bits(rng.next_u64()))) {
            if value.is_finite() {
                let line = Record::train(1, 1).with("x", value).to_line().unwrap();
                assert_eq!(Record::from_line(&line).unwrap().get("x").unwrap().to_bits(), value.to_bits(), "{line}");
            }
        }
    }

    #[test]
    fn non_finite_values_are_null_and_named() {
        let record = Record::train(3, 1).with("a", f64::NAN).with("b", 2.0).with("c", f64::NEG_INFINITY);
        let line = record.to_line().unwrap();
        let end = r#""a":null,"b":2.0,"c":null,"non_finite":{"a":"NaN","c":"-Infinity"}}"#;
        assert!(line.trim_end().ends_with(end), "{line}");
        let back = Record::from_line(&line).unwrap();
        assert!(back.get("a").unwrap().is_nan());
        assert_eq!((back.get("b"), back.get("c")), (Some(2.0), Some(f64::NEG_INFINITY)));
    }

    #[test]
    fn names_of_every_line_and_steps_backwards_are_refused() {
        assert!(Record::train(0, 0).with("step", 1.0).to_line().is_err());
        assert!(Record::train(0, 0).with("a", 1.0).with("a", 1.0).to_line().is_err());
        let folder = tempfile::tempdir().unwrap();
        let mut writer = MetricsWriter::create(&folder.path().join("m")).unwrap();
        writer.write(&Record::train(5, 0)).unwrap();
        assert!(writer.write(&Record::train(4, 0)).unwrap_err().to_string().contains("step 4 after step 5"));
    }

    #[test]
    fn resuming_cuts_later_and_torn_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        three_lines(&path);
        let whole = std::fs::read_to_string(&path).unwrap();
        let first_line = whole.lines().next().unwrap().to_string() + "\n";

        std::fs::write(&path, format!("{whole}{{\"split\":\"tra")).unwrap();
        assert!(read(&path).unwrap().torn);
        MetricsWriter::resume(&path, 2).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);

        MetricsWriter::resume(&path, 1).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first_line);
        // A last line that only lacks its newline counts, and gets it.
        std::fs::write(&path, first_line.trim_end()).unwrap();
        assert_eq!(read(&path).unwrap().records.len(), 1);
        MetricsWriter::resume(&path, 9).unwrap().write(&Record::train(9, 0)).unwrap();
        assert_eq!(read(&path).unwrap().records.len(), 2);
        MetricsWriter::resume(&path, 0).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_bad_line_is_named_and_nothing_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let good = r#"{"split":"train","step":0,"epoch":0}"#;
        let cases: [(&[u8], &str); 6] = [
            (b"{\"split\":\"train\"", "no JSON object"),
            (b"{\"split\":\"test\",\"step\":0,\"epoch\":0}", "\"test\""),
            (b"{\"split\":\"train\",\"step\":-1,\"epoch\":0}", "`step` must be a count from 0 up, found -1"),
            (b"{\"split\":\"train\",\"step\":0,\"epoch\":0,\"loss\":\"high\"}", "`loss` must be a number"),
            (b"\xff\xfe", "no UTF-8"),
            (b"", "no JSON object"),
        ];
        for (bad, expected) in cases {
            let text = [good.as_bytes(), b"\n", bad, b"\n", good.as_bytes(), b"\n"].concat();
            std::fs::write(&path, &text).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains("line 2") && message.contains(expected), "{message}");
            assert!(MetricsWriter::resume(&path, 0).is_err());
            assert_eq!(std::fs::read(&path).unwrap(), text);
        }
        assert!(read(&folder.path().join("none")).unwrap_err().to_string().contains("cannot read the metrics"));
    }
}
