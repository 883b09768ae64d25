//! `verify-theory` as a program.

use serde_json::Value;
use std::process::{Command, Output};

fn verify(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_verify-theory")).args(arguments).output().unwrap()
}

#[test]
fn claims_are_printed_for_people_and_for_programs() {
    let output = verify(&["--quick", "T01", "T08"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.lines().filter(|line| line.starts_with("PASS T01 ")).count() > 0, "{text}");
    assert!(text.lines().last().unwrap().ends_with("claims, 0 failed, seed 0"), "{text}");
    let output = verify(&["--quick", "--seed", "3", "--json", "T08"]);
    assert!(output.status.success());
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&object["seed"], &object["failed"], &object["quick"]), (&3.into(), &0.into(), &true.into()));
    let claims = object["claims"].as_array().unwrap();
    assert!(!claims.is_empty() && claims.iter().all(|claim| claim["id"] == "T08" && claim["pass"] == true));
    let output = verify(&["T99"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no group `T99`; there are T01, T02"));
}

#[test]
fn pictures_are_files_with_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new").join("pictures");
    let output = verify(&["--quick", "T01", "N01", "--out", out.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.lines().any(|line| line.starts_with("PASS N01 ")), "{text}");
    let mut files: Vec<String> =
        std::fs::read_dir(&out).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, ["noise-floor.csv", "noise-floor.png", "noise-floor.svg"]);
    let csv = std::fs::read_to_string(out.join("noise-floor.csv")).unwrap();
    let weibit: Vec<Vec<f64>> = csv
        .lines()
        .filter_map(|line| line.strip_prefix("Weibit,"))
        .map(|line| line.split(',').map(|v| v.parse().unwrap()).collect())
        .collect();
    assert_eq!(weibit.iter().map(|row| row[0]).collect::<Vec<_>>(), [100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4]);
    assert!(weibit.iter().all(|row| row[2] < row[1] && row[1] < row[3]), "{csv}");
    // A file is in the way of the folder.
    let taken = folder.path().join("file");
    std::fs::write(&taken, "").unwrap();
    let output = verify(&["--quick", "T01", "--out", taken.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot make the folder of pictures"));
}
