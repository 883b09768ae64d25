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
