//! Every layout built byte by byte, after the sources that the module names, and every kind of damage.

use super::*;
use tempfile::TempDir;

fn folder(name: &str, files: &[(&str, &str)]) -> (TempDir, std::path::PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(name);
    std::fs::create_dir(&path).unwrap();
    for (file, text) in files {
        std::fs::write(path.join(file), text).unwrap();
    }
    (root, path)
}

/// What a file of that name and content is read as, or the error after the folder's name.
fn read(name: &str, bytes: impl AsRef<[u8]>, columns: Option<[&str; 3]>) -> std::result::Result<Vec<StsPair>, String> {
    let (_root, path) = folder("set", &[]);
    std::fs::write(path.join(name), bytes).unwrap();
    let columns = columns.map(|[a, b, score]| Columns { a: a.into(), b: b.into(), score: score.into() });
    let set = load(&path.join(name), StsSplit::Test, columns.as_ref()).map_err(|e| after(&path, &e))?;
    assert_eq!((set.subsets.len(), &set.subsets[0].name), (1, &set.name));
    Ok(set.subsets.into_iter().flat_map(|subset| subset.pairs).collect())
}

/// An error's text without the path of the folder.
fn after(path: &Path, e: &Error) -> String {
    e.to_string().replace(&format!("{}/", path.display()), "").replace(&path.display().to_string(), "FOLDER")
}

fn pairs(of: &[(&str, &str, f64)]) -> Vec<StsPair> {
    of.iter().map(|(a, b, score)| StsPair { a: a.to_string(), b: b.to_string(), score: *score }).collect()
}

/// Rows as in the archive; the last one's two columns of sources are as in its forum parts.
const DEV: &str = "main-captions\tMSRvid\t2012test\t0000\t5.000\tA man is dancing.\tA man dances.\n\
    main-forums\tanswers-forums\t2015\t0402\t4.00\t\"He said \"no\".\t\"Ten of six\" probably means 5:50\n\
    main-forums\tanswer-answer\t2016\t1046\t1.25\tYou could, of course.\t  It's 20% \thttp://a.example/1\thttp://a.example/2\n";

fn dev() -> Vec<StsPair> {
    pairs(&[
        ("A man is dancing.", "A man dances.", 5.0),
        ("\"He said \"no\".", "\"Ten of six\" probably means 5:50", 4.0),
        ("You could, of course.", "  It's 20% ", 1.25),
    ])
}

#[test]
fn sts_b_by_file_and_by_split() {
    assert_eq!(read("sts-dev.csv", DEV, None).unwrap(), dev());
    assert_eq!(read("other.tsv", format!("\u{feff}{}\r\n \n\n", DEV.replace('\n', "\r\n")), None).unwrap(), dev());
    let other = "main-news\tMSRpar\t2012train\t0\t1\ta\tb\n";
    let (_root, path) = folder("stsbenchmark", &[("sts-train.csv", other), ("sts-dev.csv", DEV), ("readme.txt", "")]);
    let set = load(&path, StsSplit::Dev, None).unwrap();
    assert_eq!((set.name.as_str(), &set.subsets[0].pairs), ("sts-dev", &dev()));
    assert_eq!(load(&path, StsSplit::Train, None).unwrap().subsets[0].pairs, pairs(&[("a", "b", 1.0)]));
    let e = load(&path, StsSplit::Test, None).unwrap_err();
    assert_eq!(after(&path, &e), "FOLDER: has no sts-test.csv, only sts-train.csv and sts-dev.csv");
}

#[test]
fn bad_rows_of_sts_b_are_named() {
    let bad = |row: &str| read("sts-dev.csv", format!("{DEV}{row}\n"), None).unwrap_err();
    let expected =
        "separated by tabs; expected 7 (genre, file, year, number, score, both sentences), and up to 2 of sources";
    assert_eq!(bad("main-news\tf\t2012\t0\t1\ta"), format!("sts-dev.csv: line 4: has 6 columns, {expected}"));
    assert_eq!(bad("m\tf\ty\t0\t1\ta\tb\tc\td\te"), format!("sts-dev.csv: line 4: has 10 columns, {expected}"));
    assert_eq!(bad("\nmain-news\tf\ty\t0\t1\ta\tb"), format!("sts-dev.csv: line 4: has 1 column, {expected}"));
    let e = bad("main-news\tf\ty\t0\tx1\ta\tb");
    assert_eq!(e, "sts-dev.csv: line 4: the score is `x1`; expected a finite number");
    for score in ["nan", "inf", "", "1e999", "1,5"] {
        assert!(
            bad(&format!("main-news\tf\ty\t0\t{score}\ta\tb")).contains(&format!("line 4: the score is `{score}`;"))
        );
    }
    let e = bad("main-news\tf\ty\t0\t1\ta\t ");
    assert_eq!(e, "sts-dev.csv: line 4: the second sentence is empty; expected text");
    // The first row is told from a header although its score, or a column, is damaged.
    let e = read("sts-dev.csv", "main-news\tf\ty\t0\tx\ta\tb\n", None).unwrap_err();
    assert_eq!(e, "sts-dev.csv: line 1: the score is `x`; expected a finite number");
    assert!(read("sts-dev.csv", "main-news\tf\t1\n", None).unwrap_err().contains("line 1: has 3 columns"));
    let e = read("sts-dev.csv", [DEV.as_bytes(), b"main-news\tf\ty\t0\t1\tcaf\xe9\tb\n"].concat(), None).unwrap_err();
    assert_eq!(e, "sts-dev.csv: line 4: byte 22 of the line, 0xe9, is not UTF-8; save the file as UTF-8");
    let e = read("sts-dev.csv", "\u{feff}\r\n\n", None).unwrap_err();
    assert_eq!(e, "sts-dev.csv: is empty; expected pairs of sentences with a score each");
}

#[test]
fn a_column_of_splits_chooses_the_rows() {
    let rows = "split\tgenre\tscore\tsentence1\tsentence2\ntrain\tx\t1\ta\tb\ndev\tx\t2\tc\td\ntest\tx\t3\te\tf\nvalidation\tx\t4\tg\th\n";
    let objects = r#"{"sentence1": "a", "sentence2": "b", "score": 1, "split": "train"}
{"sentence1": "e", "sentence2": "f", "score": 3, "split": "test"}
{"sentence1": "c", "sentence2": "d", "score": 2, "split": "dev"}
{"sentence1": "g", "sentence2": "h", "score": 4, "split": "dev"}"#;
    let (_root, path) = folder("set", &[("a.tsv", rows), ("a.csv", &rows.replace('\t', ",")), ("a.jsonl", objects)]);
    for file in ["a.tsv", "a.csv", "a.jsonl"] {
        let of = |split| load(&path.join(file), split, None).unwrap().subsets[0].pairs.clone();
        assert_eq!(of(StsSplit::Test), pairs(&[("e", "f", 3.0)]), "{file}");
        assert_eq!(of(StsSplit::Dev), pairs(&[("c", "d", 2.0), ("g", "h", 4.0)]), "{file}");
    }
    std::fs::write(path.join("b.tsv"), rows.replace("test", "other")).unwrap();
    let e = after(&path, &load(&path.join("b.tsv"), StsSplit::Test, None).unwrap_err());
    assert_eq!(
        e,
        "b.tsv: has no row whose split is test, only `dev`, `other`, `train`, `validation`; choose another split, or rename \
         that column"
    );
}

#[test]
fn files_may_be_packed() {
    use std::io::Write;
    let (_root, path) = folder("set", &[]);
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(b"sentence1\tsentence2\tscore\na\tb\t1\n").unwrap();
    let bytes = out.finish().unwrap();
    std::fs::write(path.join("a.tsv.gz"), &bytes).unwrap();
    assert_eq!(load(&path.join("a.tsv.gz"), StsSplit::Test, None).unwrap().subsets[0].pairs, pairs(&[("a", "b", 1.0)]));
    std::fs::write(path.join("a.tsv.gz"), &bytes[..bytes.len() - 4]).unwrap();
    let e = after(&path, &load(&path.join("a.tsv.gz"), StsSplit::Test, None).unwrap_err());
    assert!(e.starts_with("a.tsv.gz: a damaged gzip file"), "{e}");
}

#[test]
fn sentevals_folders() {
    let files = [
        ("STS.input.OnWN.txt", "a b\tc d\r\ne \"\tf\r\n"),
        ("STS.gs.OnWN.txt", "4.5\r\n0\r\n"),
        ("STS.input.headlines.txt", "a\tb\nc\td\ne\tf\ng\th\n"),
        // The second and the last were not judged.
        ("STS.gs.headlines.txt", "1\n\n3.25\n\n"),
        ("STS.input.FNWN.txt", "a\tb\n\n"),
        ("STS.gs.FNWN.txt", "2\n\n\n"),
        // As the archive has it: scores whose sentences may not be passed on.
        ("STS.gs.SMT.txt", "1\n"),
        ("correlation.pl", ""),
    ];
    let (_root, path) = folder("STS13-en-test", &files);
    let set = load(&path, StsSplit::Test, None).unwrap();
    assert_eq!(set.name, "STS13-en-test");
    let of: Vec<_> = set.subsets.iter().map(|s| (s.name.as_str(), s.pairs.clone(), s.unscored)).collect();
    let expected = [
        ("FNWN", pairs(&[("a", "b", 2.0)]), 0),
        ("OnWN", pairs(&[("a b", "c d", 4.5), ("e \"", "f", 0.0)]), 0),
        ("headlines", pairs(&[("a", "b", 1.0), ("e", "f", 3.25)]), 2),
    ];
    assert_eq!(of, expected);

    let fails = |file: &str, text: Option<&str>| {
        let before = std::fs::read(path.join(file)).ok();
        match text {
            Some(text) => std::fs::write(path.join(file), text).unwrap(),
            None => std::fs::remove_file(path.join(file)).unwrap(),
        }
        let e = load(&path, StsSplit::Test, None).unwrap_err();
        match before {
            Some(before) => std::fs::write(path.join(file), before).unwrap(),
            None => std::fs::remove_file(path.join(file)).unwrap(),
        }
        after(&path, &e)
    };
    let e = fails("STS.gs.FNWN.txt", None);
    assert_eq!(e, "FOLDER: has no STS.gs.FNWN.txt; expected STS.input.NAME.txt and STS.gs.NAME.txt of each subset");
    let e = fails("STS.input.FNWN.txt", None);
    assert_eq!(e, "FOLDER: has no STS.input.FNWN.txt; expected STS.input.NAME.txt and STS.gs.NAME.txt of each subset");
    let e = fails("STS.input.SMT.txt", Some("a\tb\n"));
    assert!(e.starts_with("FOLDER: has STS.input.SMT.txt, which SentEval's STS13-en-test has not"), "{e}");
    let e = fails("STS.input.OnWN.txt", Some("a\tb\nc\td\te\n"));
    assert_eq!(
        e,
        "STS.input.OnWN.txt: line 2: has 3 columns; expected two sentences with a tab between them, and perhaps a source for each"
    );
    let e = fails("STS.input.OnWN.txt", Some("a\tb\n\tc\n"));
    assert_eq!(e, "STS.input.OnWN.txt: line 2: the first sentence is empty; expected text");
    let e = fails("STS.gs.headlines.txt", Some("1\n\nx\n\n"));
    assert_eq!(e, "STS.gs.headlines.txt: line 3: the score is `x`; expected a finite number");
    let lengths = "and that of STS.input.OnWN.txt is 2; expected a score, or an empty line, for each pair";
    assert_eq!(fails("STS.gs.OnWN.txt", Some("1\n")), format!("STS.gs.OnWN.txt: the number of lines is 1, {lengths}"));
    assert_eq!(
        fails("STS.gs.OnWN.txt", Some("1\n2\n\n3\n")),
        format!("STS.gs.OnWN.txt: the number of lines is 4, {lengths}")
    );
    let e = fails("STS.gs.OnWN.txt", Some("\n\n"));
    assert_eq!(e, "STS.gs.OnWN.txt: has no score for any of 2 pairs; expected at least one");
    // The task's own files of 2016: another name, and a source for each sentence.
    let files = [("STS2016.input.plagiarism.txt", "a\tb\tx\ty\nc\td\tx\tz\n"), ("STS2016.gs.plagiarism.txt", "5\n\n")];
    let (_root, own) = folder("sts2016-english-with-gs-v1.0", &files);
    let set = load(&own, StsSplit::Test, None).unwrap();
    assert_eq!(
        (&set.subsets[0].name[..], &set.subsets[0].pairs, set.subsets[0].unscored),
        ("plagiarism", &pairs(&[("a", "b", 5.0)]), 1)
    );
    let columns = Columns { a: "a".into(), b: "b".into(), score: "c".into() };
    assert!(load(&path, StsSplit::Test, Some(&columns)).unwrap_err().to_string().contains("have no header"));
}

#[test]
fn a_folder_of_another_name_is_read_as_it_is() {
    let (_root, path) = folder("mine", &[("STS.input.x.txt", "a\tb\n"), ("STS.gs.x.txt", "2")]);
    let set = load(&path, StsSplit::Dev, None).unwrap();
    assert_eq!((set.name.as_str(), set.subsets.len(), set.subsets[0].pairs.len()), ("mine", 1, 1));
    std::fs::write(path.join("STS.input.y.txt"), "a\tb\n").unwrap();
    let e = load(&path, StsSplit::Dev, None).unwrap_err();
    assert_eq!(
        after(&path, &e),
        "FOLDER: has no STS.gs.y.txt; expected STS.input.NAME.txt and STS.gs.NAME.txt of each subset"
    );
    let (_root, path) = folder("empty", &[("README", "")]);
    let e = after(&path, &load(&path, StsSplit::Dev, None).unwrap_err());
    assert!(e.starts_with("FOLDER: expected sts-dev.csv or SICK_trial.txt, or STS.input.NAME.txt with"), "{e}");
    let e = after(&path, &load(&path.join("none.tsv"), StsSplit::Dev, None).unwrap_err());
    assert!(e.starts_with("none.tsv: cannot read: "), "{e}");
}

#[test]
fn sick_by_its_header() {
    let text = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n\
        6\tThere is no boy\tA group of kids\t3.3\tNEUTRAL\r\n7\tA group\tThe \"boys\"\t3\tENTAILMENT\r\n";
    let expected = pairs(&[("There is no boy", "A group of kids", 3.3), ("A group", "The \"boys\"", 3.0)]);
    let (_root, path) = folder("SICK", &[("SICK_test_annotated.txt", text)]);
    let set = load(&path, StsSplit::Test, None).unwrap();
    assert_eq!((set.name.as_str(), &set.subsets[0].pairs), ("SICK_test_annotated", &expected));
    let e = after(&path, &load(&path, StsSplit::Dev, None).unwrap_err());
    assert_eq!(e, "FOLDER: has no SICK_trial.txt, only SICK_test_annotated.txt");
    let e = read("s.txt", format!("{text}8\ta\tb\t3\n"), None).unwrap_err();
    assert_eq!(e, "s.txt: line 4: has 4 columns; expected 5, as the header has");
}

#[test]
fn csv_by_rfc_4180() {
    let text = "id,sentence1,score,sentence2\r\n\
        1,\"a, \"\"quoted\"\" b\",1.5,5\" tall\r\n\
        2,\"two\nlines\",2,\"\"\"x\"\"\"\n3,e,-1e0,\"f\"";
    let expected = pairs(&[("a, \"quoted\" b", "5\" tall", 1.5), ("two\nlines", "\"x\"", 2.0), ("e", "f", -1.0)]);
    assert_eq!(read("t.csv", text, None).unwrap(), expected);
    assert_eq!(read("t.csv", format!("\u{feff}{text}\r\n\r\n\n"), None).unwrap(), expected);
    let bad = |row: &str| read("t.csv", format!("a,b,score\nx,\"y\nz\",1\n{row}"), None).unwrap_err();
    assert_eq!(bad("x,y"), "t.csv: line 4: has 2 columns; expected 3, as the header has");
    assert_eq!(bad("\nx,y,1"), "t.csv: line 4: has 1 column; expected 3, as the header has");
    assert_eq!(bad("x,y,z,1\n"), "t.csv: line 4: has 4 columns; expected 3, as the header has");
    assert_eq!(bad("x,y,"), "t.csv: line 4: the score is ``; expected a finite number");
    assert_eq!(bad("x,\"\",1"), "t.csv: line 4: the second sentence is empty; expected text");
    assert_eq!(bad("x,y,1\nx,\"y,1\nx,y,1\n"), "t.csv: line 5: a quote opens here and nothing closes it");
    let e = bad("\"He said \"no\", twice\",y,1\n");
    assert!(e.starts_with("t.csv: line 4: `no\", twice\",y,1` follows a closing quote; expected a comma"), "{e}");
    let e = read("t.csv", "a,b,score\n\n", None).unwrap_err();
    assert_eq!(e, "t.csv: has no rows below its header; expected at least one pair of sentences");
}

#[test]
fn columns_by_name() {
    let tsv = "text1\ttext2\tlabel\tq\n\"a\tb\"\t2\t9\n";
    assert_eq!(read("t.tsv", tsv, None).unwrap(), pairs(&[("\"a", "b\"", 2.0)]));
    assert_eq!(read("t.tsv", tsv, Some(["text2", "text1", "q"])).unwrap(), pairs(&[("b\"", "\"a", 9.0)]));
    let e = read("t.tsv", tsv, Some(["text1", "tex2", "q"])).unwrap_err();
    assert!(
        e.starts_with(
            "t.tsv: line 1: has no column `tex2`, only `text1`, `text2`, `label`, `q`; did you mean `text2`?"
        ),
        "{e}"
    );
    let e = read("t.tsv", tsv, Some(["text1", "text1", "q"])).unwrap_err();
    assert_eq!(e, "t.tsv: line 1: the column `text1` is named for both sentences; expected two columns");
    let e = read("t.csv", "sentence1,sentense2,score\na,b,1\n", None).unwrap_err();
    let listed = "only `sentence1`, `sentense2`, `score`; did you mean `sentense2`?";
    assert_eq!(e, format!("t.csv: line 1: has no column `sentence2`, {listed}"));
    let e = read("t.csv", "A man,A woman,2.5\n", None).unwrap_err();
    let advice =
        "name the columns of both sentences and of the score: eval-sts --columns A,B,SCORE, or eval.columns of a run";
    assert_eq!(e, format!("t.csv: line 1: has no column `sentence1`, only `A man`, `A woman`, `2.5`; {advice}"));
    let e = read("t.csv", "a,b,score,score\nx,y,1,2\n", None).unwrap_err();
    assert_eq!(e, "t.csv: line 1: has two columns `score`; expected one of that name");
    // SICK as other tools write it: its labels are not its scores.
    let sick = "label,sentence_A,sentence_B,relatedness_score\n1,a,b,4.5\n";
    assert_eq!(read("t.csv", sick, None).unwrap(), pairs(&[("a", "b", 4.5)]));
}

#[test]
fn json_lines() {
    let text = "{\"sentence1\": \"a \\\"b\\\"\", \"sentence2\": \"c\\n\", \"score\": 2}\r\n\
        {\"score\": 0.5, \"idx\": 3, \"sentence2\": \"e\", \"sentence1\": \"d\"}\n";
    let expected = pairs(&[("a \"b\"", "c\n", 2.0), ("d", "e", 0.5)]);
    assert_eq!(read("t.jsonl", format!("\u{feff}{text}\n"), None).unwrap(), expected);
    let bad = |row: &str| read("t.jsonl", format!("{text}{row}\n"), None).unwrap_err();
    let e = bad("{\"sentence1\": \"a\", \"sentence2\": \"b\"}");
    assert_eq!(e, "t.jsonl: line 3: has no column `score`, only `sentence1`, `sentence2`");
    let e = bad("{\"sentence1\": \"a\", \"sentence2\": 7, \"score\": 1}");
    assert_eq!(e, "t.jsonl: line 3: `sentence2` is 7; expected a string");
    let e = bad("{\"sentence1\": \"a\", \"sentence2\": \"b\", \"score\": null}");
    assert_eq!(e, "t.jsonl: line 3: the score is `null`; expected a finite number");
    let e = bad("{\"sentence1\": \"a\"");
    assert!(e.starts_with("t.jsonl: line 3: byte 17: EOF while parsing an object; expected one JSON"), "{e}");
    assert!(bad("[1]").starts_with("t.jsonl: line 3: "), "{}", bad("[1]"));
    let named = read("t.jsonl", "{\"q\": \"a\", \"p\": \"b\", \"r\": 1}", Some(["p", "q", "r"]));
    assert_eq!(named.unwrap(), pairs(&[("b", "a", 1.0)]));
}

#[test]
fn files_cut_anywhere_are_read_or_refused() {
    let csv = "a,b,score\n\"x, \"\"é\"\"\",\"y\r\nz\",1\r\nü,w,2\n";
    let json = "{\"a\": \"ü\", \"b\": \"y\", \"score\": 1}\n";
    for text in [DEV, csv, json, "a\tb\tscore\nü\ty\t1\n"] {
        for end in 0..text.len() {
            if let Err(e) = read("t", &text.as_bytes()[..end], None) {
                assert!(e.starts_with("t: "), "{e}");
            }
        }
    }
}

#[test]
fn similar_pairs_are_those_of_the_scales_upper_end() {
    let scores = [0.0, 3.9, 4.0, 5.0, 2.5];
    let pairs = |scores: &[f64]| scores.iter().map(|&score| StsPair { a: "a".into(), b: "b".into(), score }).collect();
    let subset = |scores: &[f64]| StsSubset { name: "s".into(), pairs: pairs(scores), unscored: 0 };
    let set = |subsets| StsSet { name: "set".into(), subsets, split: None };
    let of = |set: &StsSet, share| {
        let (pairs, from) = set.similar(share).unwrap();
        (pairs.iter().map(|pair| pair.score).collect::<Vec<_>>(), from)
    };
    let two = set(vec![subset(&scores[..2]), subset(&scores[2..])]);
    assert_eq!(of(&two, 0.8), (vec![4.0, 5.0], 4.0));
    assert_eq!(of(&two, 0.5), (vec![3.9, 4.0, 5.0, 2.5], 2.5));
    assert_eq!((of(&two, 0.0).0.len(), of(&two, 1.0).0), (5, vec![5.0]));
    // SICK's scale begins at 1, and 0.7 of it is 3.8 but for rounding.
    assert_eq!(of(&set(vec![subset(&[1.0, 3.8, 5.0, 3.7])]), 0.7).0, [3.8, 5.0]);
    for share in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(two.similar(share), Err(Error::Config(_))));
    }
    let e = set(vec![subset(&[2.0, 2.0])]).similar(0.5).unwrap_err().to_string();
    assert!(e.contains("set: expected different scores") && e.contains("2 pairs"), "{e}");
    assert!(set(vec![]).similar(0.5).is_err());
}
