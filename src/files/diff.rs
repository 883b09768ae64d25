//! What distinguishes two files.

use super::convert::Rules;
use super::inspect::{Inspection, inspect};
use crate::error::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use tch::{Kind, Tensor};

/// A difference between two files.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "difference", rename_all = "snake_case")]
pub enum Difference {
    /// A tensor of the first file alone.
    OnlyInFirst {
        /// Its name.
        name: String,
    },
    /// A tensor of the second file alone.
    OnlyInSecond {
        /// Its name.
        name: String,
    },
    /// A tensor of two types or shapes.
    Layout {
        /// Its name.
        name: String,
        /// Type and shape in the first file.
        first: String,
        /// Type and shape in the second file.
        second: String,
    },
    /// A tensor of other elements.
    Elements {
        /// Its name.
        name: String,
        /// The greatest difference of two elements; infinite where one is NaN and the other is not.
        max_abs: f64,
        /// The norm of the difference over that of the first tensor.
        relative: f64,
    },
    /// A plain value.
    Value {
        /// Its name.
        name: String,
        /// In the first file; null where it has none.
        first: serde_json::Value,
        /// In the second file.
        second: serde_json::Value,
    },
}

/// Compares two files, tensor by tensor and, where no rules choose tensors, value by value.
///
/// # Errors
/// As [`inspect`] and [`Rules::apply`].
pub fn diff(first: &Path, second: &Path, rules: &Rules) -> Result<Vec<Difference>> {
    let read = |path: &Path| -> Result<Inspection> {
        let mut file = inspect(path)?;
        file.tensors = rules.apply(std::mem::take(&mut file.tensors))?;
        Ok(file)
    };
    let (a, b) = (read(first)?, read(second)?);
    let mut out = Vec::new();
    let theirs: BTreeMap<&str, &Tensor> = b.tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
    for (name, t) in &a.tensors {
        let name = name.clone();
        match theirs.get(name.as_str()) {
            None => out.push(Difference::OnlyInFirst { name }),
            Some(other) => out.extend(between(name, t, other)?),
        }
    }
    let ours: BTreeMap<&str, &Tensor> = a.tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
    let new = b.tensors.iter().filter(|(name, _)| !ours.contains_key(name.as_str()));
    out.extend(new.map(|(name, _)| Difference::OnlyInSecond { name: name.clone() }));
    if rules.only.is_empty() {
        let (ours, theirs) = (a.values_by_name(), b.values_by_name());
        let names = ours.keys().chain(theirs.keys().filter(|name| !ours.contains_key(*name)));
        for name in names {
            let (first, second) = (ours.get(name), theirs.get(name));
            if first != second {
                let value = |v: Option<&&serde_json::Value>| v.map_or(serde_json::Value::Null, |v| (*v).clone());
                out.push(Difference::Value { name: name.to_string(), first: value(first), second: value(second) });
            }
        }
    }
    Ok(out)
}

fn between(name: String, a: &Tensor, b: &Tensor) -> Result<Option<Difference>> {
    let layout = |t: &Tensor| format!("{:?} {:?}", t.kind(), t.size());
    if layout(a) != layout(b) {
        return Ok(Some(Difference::Layout { name, first: layout(a), second: layout(b) }));
    }
    // Integers are compared as what they are: float64 does not tell all of them apart.
    let same = a.f_eq_tensor(b)?.f_logical_or(&a.f_isnan()?.f_logical_and(&b.f_isnan()?)?)?;
    if same.f_all()?.f_int64_value(&[])? != 0 {
        return Ok(None);
    }
    let (x, y) = (a.f_to_kind(Kind::Double)?, b.f_to_kind(Kind::Double)?);
    let exact = if a.is_floating_point() || a.kind() == Kind::Bool {
        &x - &y
    } else {
        (a.f_to_kind(Kind::Int64)? - b.f_to_kind(Kind::Int64)?).f_to_kind(Kind::Double)?
    };
    let gap = exact.f_abs()?.f_nan_to_num(f64::INFINITY, f64::INFINITY, f64::INFINITY)?;
    let gap = gap.f_masked_fill(&same, 0.0)?;
    let relative = gap.f_norm()?.f_double_value(&[])? / x.f_norm()?.f_double_value(&[])?;
    Ok(Some(Difference::Elements { name, max_abs: gap.f_max()?.f_double_value(&[])?, relative }))
}
