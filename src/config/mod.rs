//! Configuration: YAML read strictly. Unknown keys are refused and the nearest known one is suggested.

pub mod augment;
pub mod checkpoint;
pub mod data;
pub mod eval;
mod kind;
pub mod loss;
pub mod loss_reference;
pub mod model;
pub mod optim;
mod overrides;
pub mod precision;
pub mod run;
pub mod sts;
pub mod sweep;
pub mod text;
pub mod text_data;
pub mod text_model;
pub mod vision;

use crate::error::{Error, Result};
use regex::RegexSet;
use serde::de::DeserializeOwned;
use serde_yaml::{Mapping, Value};
use std::path::Path;

/// Reads a configuration file and applies `--set` assignments to it.
///
/// # Errors
/// An unreadable file; YAML that is none; unknown or duplicate keys, wrong types or values, each with the key's path.
pub fn load<T: DeserializeOwned>(path: &Path, sets: &[String]) -> Result<T> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::Config(format!("{}: cannot read the configuration: {e}", path.display())))?;
    parse(&text, &path.display().to_string(), sets)
}

/// As [`load`], from text; `origin` names it in errors.
///
/// # Errors
/// As [`load`].
pub fn parse<T: DeserializeOwned>(text: &str, origin: &str, sets: &[String]) -> Result<T> {
    // Some editors begin a file with a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    let mut tree: Value = serde_yaml::from_str(text).map_err(|e| Error::Config(format!("{origin}: {e}")))?;
    if tree.is_null() {
        tree = Value::Mapping(Mapping::new());
    }
    for assignment in sets {
        overrides::apply(&mut tree, assignment)?;
    }
    from_tree(tree, origin)
}

/// As [`parse`], from YAML that is a tree already.
///
/// # Errors
/// As [`load`].
pub fn from_tree<T: DeserializeOwned>(tree: Value, origin: &str) -> Result<T> {
    if let Some(tag) = first_tag(&tree) {
        return Err(Error::Config(format!(
            "{origin}: the tag `{tag}` has no meaning here; write the kind of a section as `kind: name`"
        )));
    }
    kind::read_named(tree).map_err(|message| {
        // Serde says what it expects by Rust's names.
        let message = ["u64", "usize", "u32"]
            .iter()
            .fold(message, |text, name| text.replace(&format!("expected {name}"), "expected a whole number from 0 up"));
        let message = message.replace("expected f64", "expected a number");
        let hint = suggestion(&message).map(|s| format!("; did you mean `{s}`?")).unwrap_or_default();
        Error::Config(format!("{origin}: {message}{hint}"))
    })
}

/// Regular expressions that match whole names; the error is the reason alone.
pub(crate) fn whole_names(patterns: &[String]) -> std::result::Result<RegexSet, String> {
    RegexSet::new(patterns.iter().map(|pattern| format!("^(?:{pattern})$")))
        .map_err(|e| e.to_string().lines().last().unwrap_or_default().trim().to_string())
}

/// Refuses a count of 0.
fn at_least_one(key: &str, value: u64) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(Error::Config(format!("{key}: expected a whole number of at least 1, found 0")))
}

/// Refuses a list of seeds that is empty or has one twice.
pub(crate) fn distinct_seeds(key: &str, seeds: &[u64]) -> Result<()> {
    if seeds.is_empty() {
        return Err(Error::Config(format!("{key}: expected at least one seed")));
    }
    match seeds.iter().enumerate().find(|(i, seed)| seeds[..*i].contains(seed)) {
        Some((_, twice)) => Err(Error::Config(format!("{key}: {twice} is there twice, which would count it twice"))),
        None => Ok(()),
    }
}

/// A tag such as `!weince`, which serde would drop.
fn first_tag(tree: &Value) -> Option<String> {
    match tree {
        Value::Tagged(tagged) => Some(tagged.tag.to_string()),
        Value::Sequence(items) => items.iter().find_map(first_tag),
        Value::Mapping(map) => map.iter().find_map(|(key, value)| first_tag(key).or_else(|| first_tag(value))),
        _ => None,
    }
}

/// The known name nearest to the one that serde's message calls unknown, if any is near.
fn suggestion(message: &str) -> Option<&str> {
    let rest = message.split_once("unknown field `").or_else(|| message.split_once("unknown variant `"))?.1;
    let mut quoted = rest.split('`');
    let unknown = quoted.next()?;
    // Between the backquotes alternate separators and known names.
    quoted
        .skip(1)
        .step_by(2)
        .map(|known| (strsim::damerau_levenshtein(unknown, known), known))
        .min()
        .filter(|(distance, known)| *distance <= 1 + known.len() / 3 && *distance < known.len())
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        rate: f64,
        #[serde(default)]
        steps: u32,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        optim: Inner,
    }

    fn err(text: &str, sets: &[&str]) -> String {
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        parse::<Outer>(text, "c.yaml", &sets).unwrap_err().to_string()
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_known_one() {
        let e = err("optim: {rat: 0.1}", &[]);
        assert!(e.contains("optim") && e.contains("`rat`") && e.contains("did you mean `rate`?"), "{e}");
        let e = err("optim: {rate: 0.1}\nzzzzzz: 1", &[]);
        assert!(e.contains("zzzzzz") && !e.contains("did you mean"), "{e}");
    }

    #[test]
    fn wrong_types_name_the_path() {
        let e = err("optim: {rate: fast}", &[]);
        assert!(e.contains("c.yaml") && e.contains("optim.rate"), "{e}");
    }

    #[test]
    fn duplicate_keys_are_refused() {
        assert!(err("optim: {rate: 0.1, rate: 0.2}", &[]).contains("duplicate"));
    }

    #[test]
    fn assignments_change_and_create_keys() {
        let got: Outer =
            parse("optim: {rate: 1}", "c", &["optim.rate=0.5".to_string(), "optim.steps=7".to_string()]).unwrap();
        assert_eq!(got, Outer { optim: Inner { rate: 0.5, steps: 7 } });
        let got: Outer = parse("", "c", &["optim.rate=1e-3".to_string()]).unwrap();
        assert_eq!(got.optim.rate, 1e-3);
    }

    #[test]
    fn bad_assignments_say_what_is_wrong() {
        assert!(err("optim: {rate: 1}", &["optim.rate"]).contains("no `=`"));
        assert!(err("optim: {rate: 1}", &["optim.rate.x=1"]).contains("is no mapping"));
        assert!(err("optim: {rate: 1}", &["optim..x=1"]).contains("empty key"));
        assert!(err("optim: {rate: 1}", &["optim.rate=[1"]).contains("no YAML"));
        assert!(err("optim: {rate: 1}", &["optim.rate="]).contains("no value"));
        assert!(err("optim: {rate: 1}", &["optim=!adam {rate: 1}"]).contains("`!adam`"));
    }

    #[test]
    fn a_byte_order_mark_is_no_key() {
        assert_eq!(parse::<Outer>("\u{feff}optim: {rate: 1}", "c", &[]).unwrap().optim.rate, 1.0);
    }
}
