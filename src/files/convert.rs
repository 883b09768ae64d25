//! Weights from one format to another, under other names.

use super::inspect::inspect;
use crate::checkpoint::{Value, refuse_same_file, safetensors, torch_file, write_beside_and_rename};
use crate::config::whole_names;
use crate::error::{Error, Result};
use crate::model::{Found, OtherNames, Role, Store, load};
use crate::torch::Script;
use regex::{Regex, RegexSet};
use std::collections::HashSet;
use std::path::Path;
use tch::Tensor;

/// Which tensors, and under which names. Applied in this order: `only`, `strip_prefix`, `rename`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Rules {
    /// Only tensors whose whole name this regular expression matches; may be given several times
    #[arg(long, value_name = "REGEX")]
    pub only: Vec<String>,
    /// Take this beginning off the names that have it
    #[arg(long, value_name = "PREFIX")]
    pub strip_prefix: Option<String>,
    /// Replace what the regular expression matches in a name; $1 is its first group; may be given several times
    #[arg(long, value_name = "REGEX=REPL")]
    pub rename: Vec<String>,
}

impl Rules {
    /// The tensors that the rules let pass, under their new names.
    ///
    /// # Errors
    /// A rule that is none; no tensor left; two tensors that come to one name.
    pub fn apply(&self, tensors: Vec<(String, Tensor)>) -> Result<Vec<(String, Tensor)>> {
        let bad = |option: &str, rule: &str, e: &dyn std::fmt::Display| {
            let reason = e.to_string().lines().last().unwrap_or_default().trim().to_string();
            Error::Config(format!("{option} `{rule}`: {reason}"))
        };
        let only = whole_names(&self.only).map_err(|reason| bad("--only", &self.only.join("`, `"), &reason))?;
        let mut renames = Vec::new();
        for rule in &self.rename {
            let (pattern, replacement) =
                rule.rsplit_once('=').ok_or_else(|| bad("--rename", rule, &"expected REGEX=REPL, found no `=`"))?;
            let pattern = Regex::new(pattern).map_err(|e| bad("--rename", rule, &e))?;
            if let Some(group) = missing_group(&pattern, replacement) {
                let what = format!("the expression has no group `{group}`; write ${{1}}x where a letter follows on $1");
                return Err(bad("--rename", rule, &what));
            }
            renames.push((pattern, replacement));
        }
        let count = tensors.len();
        let mut out: Vec<(String, Tensor)> = Vec::new();
        for (name, tensor) in tensors.into_iter().filter(|(name, _)| only.is_empty() || only.is_match(name)) {
            let prefix = self.strip_prefix.as_deref().unwrap_or_default();
            let mut name = name.strip_prefix(prefix).map_or(name.clone(), str::to_string);
            for (pattern, replacement) in &renames {
                name = pattern.replace_all(&name, *replacement).into_owned();
            }
            out.push((name, tensor));
        }
        if count == 0 {
            return Err(Error::Config("no tensor is in the file".into()));
        }
        if out.is_empty() {
            return Err(Error::Config(format!(
                "--only {}: none of the {count} tensors has such a name; see `checkpoint inspect`",
                self.only.join(", ")
            )));
        }
        let mut seen = HashSet::new();
        if let Some((twice, _)) = out.iter().find(|(name, _)| name.is_empty() || !seen.insert(name.as_str())) {
            return Err(Error::Config(format!(
                "two tensors come to the name `{twice}`, or one to none; change the rules"
            )));
        }
        Ok(out)
    }
}

/// The first group that a replacement names and its expression does not have.
fn missing_group(pattern: &Regex, replacement: &str) -> Option<String> {
    for after in replacement.replace("$$", "").split('$').skip(1) {
        let name: String = match after.strip_prefix('{') {
            Some(braced) => braced.chars().take_while(|&c| c != '}').collect(),
            None => after.chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect(),
        };
        let known = match name.parse::<usize>() {
            Ok(number) => number < pattern.captures_len(),
            Err(_) => pattern.capture_names().flatten().any(|known| known == name),
        };
        if !known {
            return Some(name);
        }
    }
    None
}

/// Writes the tensors of `input` to `out` by the rules: as safetensors, as a state_dict of `torch.save`, or, with `script`, as
/// that TorchScript module with these weights. Gives the number of tensors.
///
/// # Errors
/// A format that the name of `out` does not tell, what the files report, and weights that are not the module's.
pub fn convert(input: &Path, out: &Path, rules: &Rules, script: Option<&Path>) -> Result<usize> {
    refuse_same_file(out, input)?;
    let extension = out.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let torch = matches!(extension, "pt" | "pth" | "bin" | "tar" | "ckpt");
    if !torch && (extension != "safetensors" || script.is_some()) {
        return Err(Error::Config(format!(
            "{}: expected a name that ends in {}.pt, .pth, .bin, .tar or .ckpt, which tells the format",
            out.display(),
            if script.is_some() { "" } else { ".safetensors, " }
        )));
    }
    let tensors = rules.apply(inspect(input)?.tensors)?;
    let count = tensors.len();
    if let Some(path) = script {
        refuse_same_file(out, path)?;
        let module = Script::load(path)?;
        let members = module.members()?.into_iter().map(|m| (m.name, m.tensor, Role::Frozen));
        let store = Store::of(members.collect())?;
        let fit = load(&store, "module", &tensors, &OtherNames::default(), &RegexSet::empty(), "")
            .map_err(|e| Error::data(input, None, format!("not the weights of {}: {e}", path.display())))?;
        write_beside_and_rename(out, |beside| module.save(beside))?;
        return Ok(if let Found::Loaded(fit) = fit { fit.matched } else { 0 });
    }
    if torch {
        torch_file::save(out, &Value::state_dict(tensors))?;
    } else {
        safetensors::save(out, &tensors, &[("format".to_string(), "pt".to_string())].into())?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rules: &Rules, names: &[&str]) -> Result<Vec<String>> {
        let tensors = names.iter().map(|name| (name.to_string(), Tensor::from(0f32))).collect();
        Ok(rules.apply(tensors)?.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn rules_choose_strip_and_rename_in_this_order() {
        let rules = Rules {
            only: vec![r"model\..*".into(), "step".into()],
            strip_prefix: Some("model.".into()),
            rename: vec![r"^layer(\d)\.=stage$1/".into(), "weight=w".into()],
        };
        let got =
            names(&rules, &["model.layer1.0.weight", "model.bias", "optimizer.x", "step", "my.model.bias"]).unwrap();
        assert_eq!(got, ["stage1/0.w", "bias", "step"]);
        assert_eq!(names(&Rules::default(), &["a", "b"]).unwrap(), ["a", "b"]);
    }

    #[test]
    fn rules_that_cannot_be_are_refused() {
        let only = |only: &str| Rules { only: vec![only.into()], ..Default::default() };
        let rename = |rename: &str| Rules { rename: vec![rename.into()], ..Default::default() };
        for (rules, part) in [
            (only("("), "--only `(`"),
            (only("model"), "none of the 2 tensors"),
            (rename("a"), "no `=`"),
            (rename("[=b"), "--rename `[=b`"),
            (rename(".*=b"), "`b`"),
            (rename("(a)=$1_x"), "no group `1_x`"),
            (rename("(a)=${2}"), "no group `2`"),
            (rename("^a=b"), "the name `b`"),
        ] {
            let e = names(&rules, &["a", "b"]).unwrap_err();
            assert!(e.to_string().contains(part) && e.exit_code() == 2, "{e}");
        }
    }
}
