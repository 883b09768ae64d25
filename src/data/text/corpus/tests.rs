//! Corpora of small files written byte by byte, and random ones beside plain readings.

use super::record::MOST_BYTES;
use super::{Corpus, Example, LeftOut};
use crate::config::parse;
use crate::config::text_data::CorpusConfig;
use flate2::Compression;
use flate2::write::GzEncoder;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn write(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A configuration of a file and further keys.
fn config(path: &Path, keys: &str) -> CorpusConfig {
    parse(&format!("{{path: {:?}, {keys}}}", path.display().to_string()), "c", &[]).unwrap()
}

fn open(path: &Path, keys: &str) -> Corpus {
    Corpus::open(&config(path, keys)).unwrap()
}

fn err(path: &Path, keys: &str) -> String {
    let text = Corpus::open(&config(path, keys)).unwrap_err().to_string();
    assert!(text.contains(&path.display().to_string()), "{text}");
    text
}

fn examples(corpus: &Corpus) -> Vec<Example> {
    (0..corpus.len()).map(|i| corpus.get(i).unwrap()).collect()
}

fn texts(corpus: &Corpus) -> Vec<String> {
    examples(corpus).into_iter().map(|example| example.text).collect()
}

fn left_out(count: u64, first_lines: &[u64]) -> LeftOut {
    LeftOut { count, first_lines: first_lines.to_vec() }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn a_line_is_a_sentence() {
    let folder = folder();
    let path = write(
        &folder,
        "a.txt",
        b"\xef\xbb\xbffirst\r\n\n  two  words\t\r\n\xe2\x80\x8b\xe2\x80\x8c\xe2\x80\x8d\xe2\x81\xa0\xef\xbb\xbf\xc2\xad \n\
        la\xff\xfe\nnul\0\n\0\n\x01\x7f\n\xe2\x80\x8bkept\rinside\xe2\x80\x8b\n\xe3\x80\x80\xc2\xa0\nlast\r",
    );
    let corpus = open(&path, "");
    assert_eq!(texts(&corpus), ["first", "two  words", "\u{200b}kept\rinside\u{200b}", "last"]);
    assert!(examples(&corpus).iter().all(|e| e.positive.is_none() && e.hard_negative.is_none()));
    assert!(corpus.len() == 4 && !corpus.is_empty());
    let report = corpus.report();
    assert_eq!((report.lines, report.sentences), (11, 4));
    assert_eq!(report.empty, left_out(4, &[2, 4, 8, 10]));
    assert_eq!(report.nul, left_out(2, &[6, 7]));
    assert_eq!(report.invalid_utf8, left_out(1, &[5]));
    assert_eq!(report.too_long, left_out(0, &[]));
    assert_eq!(
        report.to_string(),
        "4 examples in 11 lines; left out: 4 empty (lines 2, 4, 8, 10); 2 with NUL bytes (lines 6, 7); 1 not UTF-8 (line 5)"
    );
    let e = corpus.get(4).unwrap_err().to_string();
    assert!(e.contains("example 4") && e.contains("0 to 3"), "{e}");
}

#[test]
fn the_first_lines_of_many_are_listed() {
    let folder = folder();
    let corpus = open(&write(&folder, "a.txt", "\n\n\n\n\n\n\nx"), "");
    assert_eq!(corpus.report().to_string(), "1 example in 8 lines; left out: 7 empty (lines 1, 2, 3, 4, 5, ...)");
    assert_eq!(open(&write(&folder, "b.txt", "x\ny\n"), "").report().to_string(), "2 examples in 2 lines");
}

#[test]
fn long_lines_are_left_out() {
    let folder = folder();
    let bytes = ["a".repeat(MOST_BYTES), "b".repeat(MOST_BYTES + 1), "c".to_string()].join("\n");
    let corpus = open(&write(&folder, "a.txt", bytes), "");
    assert_eq!(corpus.len(), 2);
    assert_eq!((corpus.get(0).unwrap().text.len(), corpus.get(1).unwrap().text.as_str()), (MOST_BYTES, "c"));
    assert_eq!(corpus.report().too_long, left_out(1, &[2]));
    let e = err(&write(&folder, "b.txt", "a\r".repeat(MOST_BYTES)), "");
    assert!(e.contains("none in 1 line: 1 longer than 1 MiB (line 1); lines have to end with a line feed"), "{e}");
}

#[test]
fn files_without_a_sentence_say_what_there_was() {
    let folder = folder();
    for (name, bytes, keys, found) in [
        ("a.txt", &b""[..], "", "expected at least one sentence, found an empty file"),
        ("b.txt", b"\xef\xbb\xbf", "", "found an empty file"),
        ("c.txt", b"\n \n", "", "found none in 2 lines: 2 empty (lines 1, 2)"),
        (
            "d.txt",
            b"a\0b\0\n\0",
            "",
            "2 with NUL bytes (lines 1, 2); NUL bytes are in files that are no text, and in UTF-16",
        ),
        ("e.txt", b"\xe9t\xe9", "", "1 not UTF-8 (line 1); if it is text in another encoding, iconv"),
        ("f.csv", b"a,b", "text: a", "found nothing below the header"),
        ("g.csv", b"a,b\n,x\n", "text: a", "found none in 2 lines: 1 empty (line 2)"),
    ] {
        let e = err(&write(&folder, name, bytes), keys);
        assert!(e.contains(found), "{e}");
    }
}

#[test]
fn other_encodings_are_refused() {
    let folder = folder();
    for (mark, name) in [
        (&b"\xff\xfea\0"[..], "UTF-16LE"),
        (b"\xfe\xff\0a", "UTF-16BE"),
        (b"\xff\xfe\0\0a\0\0\0", "UTF-32LE"),
        (b"\0\0\xfe\xff\0\0\0a", "UTF-32BE"),
    ] {
        let e = err(&write(&folder, "a.txt", mark), "");
        let hint = format!("iconv -f {} -t UTF-8", &name[..6]);
        assert!(e.contains("line 1: expected UTF-8, found") && e.contains(name) && e.contains(&hint), "{e}");
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = folder();
    let path = folder.path().join("a.txt");
    let e = err(&path, "");
    assert!(e.contains("cannot find the corpus (data.path)"), "{e}");
    std::fs::create_dir(&path).unwrap();
    let e = err(&path, "");
    assert!(e.contains("expected a file (data.path), found a folder"), "{e}");
    let path = folder.path().join("b.txt");
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let e = err(&path, "");
    assert!(e.contains("found a pipe or a device"), "{e}");
}

/// The usable lines of a text and the reasons of the others, read plainly.
fn plain_reading(bytes: &[u8]) -> (Vec<String>, [Vec<u64>; 3], u64) {
    let mut lines: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
    if lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    let (mut texts, mut bad) = (Vec::new(), [Vec::new(), Vec::new(), Vec::new()]);
    for (number, line) in (1..).zip(&lines) {
        match String::from_utf8(line.to_vec()) {
            Err(_) => bad[2].push(number),
            Ok(line) if line.contains('\0') => bad[1].push(number),
            Ok(line) if line.replace(['\u{200b}', '\u{feff}', '\r', ' ', '\t'], "").is_empty() => bad[0].push(number),
            Ok(line) => texts.push(line.trim().to_string()),
        }
    }
    (texts, bad, lines.len() as u64)
}

#[test]
fn random_files_are_read_as_plainly() {
    const PARTS: [&[u8]; 16] = [
        b"a",
        b"bc d",
        b" ",
        b"\n",
        b"\n",
        b"\n",
        b"\r\n",
        b"\r",
        b"\t",
        b"\xe2\x80\x8b",
        b"\xef\xbb\xbf",
        b"\xff",
        b"\0",
        b"\xc3\xa9",
        b"sentence of some words",
        b"\xf0\x9f\x98\x80",
    ];
    let folder = folder();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut most = 0;
    for round in 0..300 {
        let parts = rng.random_range(1..if round % 3 == 0 { 20 } else { 2000 });
        // Not at the start, where it is a mark of the encoding.
        let mut bytes = b"x".to_vec();
        (0..parts).for_each(|_| bytes.extend(*PARTS.choose(&mut rng).unwrap()));
        let (expected, [empty, nul, invalid], lines) = plain_reading(&bytes);
        let path = write(&folder, "a.txt", &bytes);
        if expected.is_empty() {
            err(&path, "");
            continue;
        }
        let corpus = open(&path, "");
        assert_eq!(texts(&corpus), expected);
        most = most.max(expected.len());
        let report = corpus.report();
        for (got, lines) in [(&report.empty, empty), (&report.nul, nul), (&report.invalid_utf8, invalid)] {
            assert_eq!(*got, left_out(lines.len() as u64, &lines[..lines.len().min(5)]));
        }
        assert_eq!(report.lines, lines);
        let limit = rng.random_range(1..expected.len() + 3);
        let limited = open(&path, &format!("limit: {limit}"));
        assert_eq!(texts(&limited), expected[..limit.min(expected.len())]);
    }
    assert!(most > 64, "{most}");
}

#[test]
fn blocks_end_where_much_lies_between() {
    let folder = folder();
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for i in 0..100 {
        // Every third sentence is long, every fifth has something before it that is left out.
        if i % 5 == 0 {
            bytes.extend(std::iter::repeat_n(0, 200_000));
            bytes.push(b'\n');
        }
        let text = format!("{i}{}", "x".repeat(if i % 3 == 0 { 30_000 } else { 3 }));
        bytes.extend(text.as_bytes());
        bytes.push(b'\n');
        expected.push(text);
    }
    let corpus = open(&write(&folder, "a.txt", &bytes), "");
    assert_eq!(texts(&corpus), expected);
    assert_eq!(corpus.report().nul.count, 20);
    (0..100).rev().for_each(|i| assert_eq!(corpus.get(i).unwrap().text, expected[i]));
}

#[test]
fn packed_files_are_as_plain_ones() {
    let folder = folder();
    let text = b"one\ntwo\nthree\n";
    let plain = open(&write(&folder, "a.txt", text), "");
    let members = [gzip(&text[..6]), gzip(b""), gzip(&text[6..])].concat();
    // The last one is packed although its name does not say so.
    for (name, bytes) in [("one.txt.gz", gzip(text)), ("two.TXT.GZ", members), ("b.txt", gzip(text))] {
        let corpus = open(&write(&folder, name, bytes), "");
        assert_eq!(texts(&corpus), ["one", "two", "three"], "{name}");
        assert_eq!((corpus.sha256(), corpus.report()), (plain.sha256(), plain.report()));
    }
    let e = err(&write(&folder, "c.txt.gz", gzip(b"")), "");
    assert!(e.contains("found an empty file"), "{e}");
}

#[test]
fn damaged_packed_files_are_named() {
    let folder = folder();
    let text = "some sentence or other\n".repeat(100);
    let whole = gzip(text.as_bytes());
    for length in [1, 9, 15, whole.len() - 9, whole.len() - 1] {
        let e = err(&write(&folder, "a.txt.gz", &whole[..length]), "");
        assert!(e.contains("expected a whole gzip file, found one that is cut short") && e.contains("gzip -t"), "{e}");
    }
    let mut other = whole.clone();
    let crc = whole.len() - 8;
    other[crc] ^= 1;
    let e = err(&write(&folder, "b.txt.gz", &other), "");
    assert!(e.contains("found a damaged one or none at all") && e.contains("after 2300 bytes"), "{e}");
    for bytes in [&b"plain text that is not packed\n"[..], b""] {
        let e = err(&write(&folder, "c.txt.gz", bytes), "");
        assert!(e.contains("expected a whole gzip file, found"), "{e}");
    }
}

#[test]
fn objects_give_their_named_fields() {
    let folder = folder();
    let path = write(
        &folder,
        "a.jsonl",
        "\u{feff}{\"id\": 1, \"q\": \" a \\u00e9\\n\\\"b\\\" \", \"p\": \"c\", \"n\": [\"x\"]}\r\n\n{\"p\":\"\\u200b\",\"q\":\"x\"}\n\
         {\"q\":\"a\\u0000\",\"p\":\"x\"}\n  {\"p\": \"e\", \"q\": \"d\"}  ",
    );
    let corpus = open(&path, "text: q, positive: p");
    let pair = |text: &str, positive: &str| Example {
        text: text.to_string(),
        positive: Some(positive.to_string()),
        hard_negative: None,
    };
    assert_eq!(examples(&corpus), [pair("a \u{e9}\n\"b\"", "c"), pair("d", "e")]);
    let report = corpus.report();
    assert_eq!((report.lines, &report.empty, &report.nul), (5, &left_out(2, &[2, 3]), &left_out(1, &[4])));
    // A field that is not in use may be empty.
    assert_eq!(texts(&open(&path, "text: p, limit: 1")), ["c"]);
}

#[test]
fn lines_that_are_no_objects_are_refused() {
    let folder = folder();
    for (line, byte, expected, found) in [
        ("{\"text\": \"a\"", 25, "expected a JSON object", "column 12: EOF"),
        ("[1]", 0, "expected a JSON object", "expected an object"),
        ("\"a\"", 0, "expected a JSON object", "expected an object"),
        ("{\"text\": \"a\"} x", 28, "expected a JSON object", "column 15: trailing characters"),
        (
            "{\"texts\": \"a\", \"id\": 1}",
            14,
            "a field `text` (data.text)",
            "found `texts`, `id`; did you mean `texts`?",
        ),
        ("{}", 14, "a field `text` (data.text)", "found none"),
        ("{\"text\": 3.5}", 14, "a string in the field `text` (data.text)", "found the number 3.5"),
        ("{\"text\": null}", 14, "a string in the field `text` (data.text)", "found null"),
        ("{\"text\": [\"a\"]}", 14, "a string in the field `text` (data.text)", "found a list"),
        ("{\"text\": {}}", 14, "a string in the field `text` (data.text)", "found an object"),
        ("{\"text\": true}", 14, "a string in the field `text` (data.text)", "found true"),
        ("{\"text\": \"a\", \"text\": \"b\"}", 0, "expected a JSON object", "the field `text` is there twice"),
    ] {
        let e = err(&write(&folder, "a.jsonl", format!("{{\"text\": \"g\"}}\n{line}\n")), "text: text");
        assert!(e.contains("line 2: ") && e.contains(expected) && e.contains(found), "{e}");
        assert!(byte == 0 || e.contains(&format!("a.jsonl, byte {byte}: ")), "{e}");
    }
    // Names are shown in one line.
    let e = err(&write(&folder, "a.jsonl", "{\"a\\nb\": \"x\"}"), "text: a");
    assert!(e.contains("found `a\\nb`"), "{e}");
    // A missing one of several says which.
    let e = err(&write(&folder, "a.jsonl", "{\"a\": \"x\"}"), "text: a, positive: b, hard_negative: c");
    assert!(e.contains("line 1: expected a field `b` (data.positive), found `a`"), "{e}");
}

#[test]
fn tables_of_triples_are_read() {
    let folder = folder();
    // As SimCSE publishes nli_for_simcse.csv, and harder.
    let text = "\u{feff}sent0,sent1,hard_neg\r\nyou know during the season,You lose things.,They never.\r\n\
                \"one, \"\"two\"\"\",\"line\nbreak\",\" x \"\n\n , a,b\nd,e,f";
    let triple = |a: &str, b: &str, c: &str| Example {
        text: a.to_string(),
        positive: Some(b.to_string()),
        hard_negative: Some(c.to_string()),
    };
    let expected = [
        triple("you know during the season", "You lose things.", "They never."),
        triple("one, \"two\"", "line\nbreak", "x"),
        triple("d", "e", "f"),
    ];
    let keys = "text: sent0, positive: sent1, hard_negative: hard_neg";
    let corpus = open(&write(&folder, "a.csv", text), keys);
    assert_eq!(examples(&corpus), expected);
    assert_eq!((corpus.report().lines, &corpus.report().empty), (7, &left_out(2, &[5, 6])));
    // Of a tsv quotes are characters.
    let tsv = "sent0\tsent1\thard_neg\n\"a\t\"b\" c\t\"\"\n";
    let corpus = open(&write(&folder, "a.tsv.gz", gzip(tsv.as_bytes())), keys);
    assert_eq!(examples(&corpus), [triple("\"a", "\"b\" c", "\"\"")]);
    // The columns in another order.
    let corpus = open(&folder.path().join("a.csv"), "text: hard_neg, positive: sent0");
    assert_eq!(corpus.get(2).unwrap(), Example { text: "f".into(), positive: Some("d".into()), hard_negative: None });
}

#[test]
fn random_tables_are_read_as_the_csv_crate_does() {
    const PARTS: [&str; 10] = ["a", "words of it", "\"", ",", "\n", "\r\n", "\t", "\u{e9}", "", "\u{200b}"];
    let folder = folder();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for round in 0..60 {
        let path = folder.path().join(if round % 2 == 0 { "a.csv" } else { "a.tsv" });
        let delimiter = if round % 2 == 0 { b',' } else { b'\t' };
        let styles = [csv::QuoteStyle::Always, csv::QuoteStyle::Necessary];
        let quotes = delimiter == b',';
        let style = if quotes { *styles.choose(&mut rng).unwrap() } else { csv::QuoteStyle::Never };
        let parts: Vec<&str> =
            PARTS.into_iter().filter(|part| quotes || !["\n", "\r\n", "\t"].contains(part)).collect();
        let mut out = csv::WriterBuilder::new().delimiter(delimiter).quote_style(style).from_path(&path).unwrap();
        out.write_record(["id", "a", "b"]).unwrap();
        for row in 0..rng.random_range(1..200) {
            let mut text = || (0..rng.random_range(1..6)).map(|_| *parts.choose(&mut rng).unwrap()).collect::<String>();
            out.write_record([row.to_string(), text(), text()]).unwrap();
        }
        out.flush().unwrap();
        let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).quoting(quotes).from_path(&path).unwrap();
        let expected: Vec<Example> = reader
            .records()
            .map(|row| row.unwrap())
            .filter(|row| row.iter().all(|f| !f.replace('\u{200b}', "").trim().is_empty()))
            .map(|row| Example {
                text: row[1].trim().to_string(),
                positive: Some(row[2].trim().to_string()),
                hard_negative: None,
            })
            .collect();
        if expected.is_empty() {
            continue;
        }
        let corpus = open(&path, "text: a, positive: b");
        assert_eq!(examples(&corpus), expected);
        let lines = std::fs::read(&path).unwrap().iter().filter(|b| **b == b'\n').count();
        assert_eq!(corpus.report().lines, lines as u64);
    }
}

#[test]
fn tables_of_another_form_are_refused() {
    let folder = folder();
    for (text, keys, parts) in [
        (
            "sent0,sent1\na,b",
            "text: sent",
            [
                "byte 0: line 1:",
                "expected a column `sent` (data.text)",
                "found `sent0`, `sent1`; did you mean `sent0`?",
            ],
        ),
        ("sent0;sent1\na;b", "text: sent0", ["line 1:", "expected a column `sent0`", "found `sent0;sent1`"]),
        ("a,a\nx,y", "text: a", ["line 1:", "expected one column `a` (data.text)", "found it twice"]),
        (
            "a,b\nx,y\nx,\"y\n\n\"\nx,y,z\n",
            "text: a",
            ["byte 16: line 6:", "expected 2 fields as in the header", "found 3"],
        ),
        ("a,b\nx,y\nx\n", "text: a", ["byte 8: line 3:", "expected 2 fields", "found 1"]),
        (
            "a,b\n\"x\n\",\"y",
            "text: a",
            ["byte 9: line 3:", "expected a quote that closes", "found none in the rest of the file"],
        ),
        ("\"a,b\n", "text: a", ["byte 0: line 1:", "expected a quote that closes", "found none"]),
        (
            "a,b\nx,y\n\"foo said,foo\n\"bar said,bar\n",
            "text: a",
            ["byte 8: line 3:", "behind the quote that closes", "found other text"],
        ),
    ] {
        let e = err(&write(&folder, "a.csv", text), keys);
        assert!(parts.iter().all(|part| e.contains(part)), "{e}");
    }
    let e = err(&write(&folder, "b.csv", [&b"a\xff,b\nx,y\n"[..]].concat()), "text: b");
    assert!(e.contains("line 1: expected a header of column names, found what is no UTF-8"), "{e}");
    let open_quote = format!("a,b\nx,\"{}\"\n", "y".repeat(MOST_BYTES));
    let e = err(&write(&folder, "c.csv", open_quote), "text: b");
    assert!(e.contains("byte 6: line 2: expected a quote that closes") && e.contains("none in the next 1 MiB"), "{e}");
    // A binary file takes no memory for its fields, and no time.
    let e = err(&write(&folder, "d.csv", ",".repeat(MOST_BYTES / 2)), "text: b");
    assert!(e.contains("expected a header of at most 10000 columns, found 524289"), "{e}");
}

#[test]
fn rows_that_are_no_text_are_left_out() {
    let folder = folder();
    let long = "y".repeat(MOST_BYTES);
    let bytes = [b"a,b\nx\xff,y\nx\0,y\nlong,", long.as_bytes(), b"\ngood,y\n"].concat();
    let corpus = open(&write(&folder, "a.csv", bytes), "text: a");
    assert_eq!(texts(&corpus), ["good"]);
    let report = corpus.report();
    assert_eq!(report.invalid_utf8, left_out(1, &[2]));
    assert_eq!(report.nul, left_out(1, &[3]));
    assert_eq!(report.too_long, left_out(1, &[4]));
    assert_eq!(report.lines, 5);
}

#[test]
fn the_content_is_identified() {
    let folder = folder();
    let bytes: Vec<u8> = (0..450_000).flat_map(|i| format!("sentence {i}\n").into_bytes()).collect();
    assert!(bytes.len() > 6 << 20);
    let path = write(&folder, "a.txt", &bytes);
    let hash_of = |bytes: &[u8]| {
        let pieces: Vec<u8> = bytes.chunks(1 << 20).flat_map(|piece| Sha256::digest(piece).to_vec()).collect();
        format!("{:x}", Sha256::digest(pieces))
    };
    let corpus = open(&path, "");
    assert_eq!(corpus.sha256(), hash_of(&bytes));
    for limit in [1, 80_000, 449_999] {
        let end = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(limit - 1).unwrap().0 + 1;
        assert_eq!(open(&path, &format!("limit: {limit}")).sha256(), hash_of(&bytes[..end]), "{limit}");
    }
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let again = pool.install(|| open(&path, ""));
        assert_eq!((again.sha256(), again.report()), (corpus.sha256(), corpus.report()));
    }
    let mut other = bytes.clone();
    other[5 << 20] ^= 1;
    assert_ne!(open(&write(&folder, "b.txt", other), "").sha256(), corpus.sha256());
}

#[test]
fn a_limit_may_be_reached_beyond_a_window() {
    let folder = folder();
    // The last sentence begins before 32 MiB and ends at 33 MiB.
    let mut bytes = b"x\n".repeat((32 << 20) / 2 - 1);
    bytes.truncate((32 << 20) - 2);
    let sentences = bytes.len() / 2 + 1;
    bytes.extend(b"y".repeat(MOST_BYTES));
    bytes.extend(b"\nz\n".repeat(MOST_BYTES));
    let path = write(&folder, "a.txt", &bytes);
    let corpus = open(&path, &format!("limit: {sentences}"));
    let end = (32 << 20) - 2 + MOST_BYTES + 1;
    let pieces: Vec<u8> = bytes[..end].chunks(1 << 20).flat_map(|piece| Sha256::digest(piece).to_vec()).collect();
    assert_eq!(corpus.sha256(), format!("{:x}", Sha256::digest(pieces)));
    assert_eq!((corpus.len(), corpus.get(sentences - 1).unwrap().text.len()), (sentences, MOST_BYTES));
}

#[test]
fn a_file_that_changes_is_noticed() {
    let folder = folder();
    let text = "one\ntwo\nthree\n";
    let path = write(&folder, "a.txt", text);
    let corpus = open(&path, "");
    // Another file that takes its name does not matter.
    let other = write(&folder, "b.txt", "other\n");
    std::fs::rename(other, &path).unwrap();
    assert_eq!(texts(&corpus), ["one", "two", "three"]);

    let path = write(&folder, "c.txt", text);
    let corpus = open(&path, "");
    let change = |bytes: &[u8], seconds: u64| {
        std::fs::write(&path, bytes).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    };
    change(text.as_bytes(), 1_000_000);
    assert_eq!(texts(&corpus), ["one", "two", "three"]);
    for (i, bytes) in (1..).zip([&b"one\ntwo\nthRee\n"[..], b"one\n", b"", b"one\ntwo\nthree\nfour\n"]) {
        change(bytes, 1_000_000 + i);
        let e = corpus.get(2).unwrap_err().to_string();
        assert!(
            e.contains("c.txt: expected the text that was there") && e.contains("found that the file was written"),
            "{e}"
        );
    }
    // As it was, it is used again.
    change(text.as_bytes(), 2_000_000);
    assert_eq!(corpus.get(2).unwrap().text, "three");
}

#[test]
fn threads_share_a_corpus() {
    let folder = folder();
    let expected: Vec<String> = (0..1000).map(|i| format!("sentence {i}")).collect();
    let corpus = open(&write(&folder, "a.txt", expected.join("\n")), "");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(texts(&corpus), expected));
        }
    });
}

#[test]
fn a_million_lines_are_quick() {
    let folder = folder();
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let sentence = |i: usize| {
        format!(
            "{i} is a sentence of the length that those of an encyclopedia have, caf\u{e9} included, {}",
            "and more words ".repeat(i % 5)
        )
    };
    let lines = 1_000_000;
    let [mut txt, mut jsonl, mut csv] = [String::new(), String::new(), "a,b\n".to_string()];
    for i in 0..lines {
        let text = sentence(i);
        txt += &format!("{text}\n");
        jsonl += &format!("{{\"id\": {i}, \"text\": \"{text}\"}}\n");
        csv += &format!("{i},\"{text}\"\n");
    }
    for (name, bytes, keys) in [("a.txt", txt, ""), ("a.jsonl", jsonl, "text: text"), ("a.csv", csv, "text: b")] {
        let path = write(&folder, name, &bytes);
        let start = Instant::now();
        let corpus = open(&path, keys);
        let opened = start.elapsed().as_secs_f64();
        assert_eq!(corpus.len(), lines);
        let order: Vec<usize> = (0..100_000).map(|_| rng.random_range(0..lines)).collect();
        let start = Instant::now();
        let bytes_read: usize = order.iter().map(|&i| corpus.get(i).unwrap().text.len()).sum();
        let got = start.elapsed().as_secs_f64() / order.len() as f64;
        order[..1000].iter().for_each(|&i| assert_eq!(corpus.get(i).unwrap().text, sentence(i).trim()));
        println!(
            "{name}: opened in {opened:.3} s, {:.0} MB/s; an example in {:.2} us ({bytes_read} bytes); index {} bytes",
            bytes.len() as f64 / opened / 1e6,
            got * 1e6,
            corpus.index_bytes()
        );
        assert!(corpus.index_bytes() <= lines * 11 / 10 + 1000);
    }
}
