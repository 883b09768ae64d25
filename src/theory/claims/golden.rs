//! The golden values that the claims compare with, by implementations in numpy and mpmath.

use crate::{Error, Result};
use serde_json::Value;

/// A part of the golden file, which knows where it is in it.
pub struct Golden {
    value: Value,
    at: String,
}

impl Golden {
    /// The values by numpy.
    pub fn read() -> Result<Golden> {
        Golden::parse(include_str!("../../../tests/golden/theory/values.json"), "golden theory values")
    }

    /// The values of Model C by mpmath.
    pub fn line() -> Result<Golden> {
        Golden::parse(include_str!("../../../tests/golden/theory/line.json"), "golden values of the line model")
    }

    /// The values of the noise-floor experiment by numpy.
    pub fn noise_floor() -> Result<Golden> {
        Golden::parse(include_str!("../../../tests/golden/pot/noise_floor.json"), "golden noise floor")
    }

    fn parse(text: &str, name: &str) -> Result<Golden> {
        match serde_json::from_str(text) {
            Ok(value) => Ok(Golden { value, at: name.into() }),
            Err(error) => Err(Error::Input(format!("{name}: expected JSON, found {error}"))),
        }
    }

    fn found<T>(&self, key: &str, value: Option<T>, expected: &str) -> Result<T> {
        value
            .ok_or_else(|| Error::Input(format!("{}: expected {expected} named {key}; is the file complete?", self.at)))
    }

    /// A part by its name.
    pub fn part(&self, key: &str) -> Result<Golden> {
        let value = self.found(key, self.value.get(key), "a part")?;
        Ok(Golden { value: value.clone(), at: format!("{}, {key}", self.at) })
    }

    /// A list by its name.
    pub fn list(&self, key: &str) -> Result<Vec<Golden>> {
        let values = self.found(key, self.value.get(key).and_then(Value::as_array), "a list")?;
        let part = |(i, value): (usize, &Value)| Golden { value: value.clone(), at: format!("{}, {key} {i}", self.at) };
        Ok(values.iter().enumerate().map(part).collect())
    }

    /// A number by its name.
    pub fn number(&self, key: &str) -> Result<f64> {
        self.found(key, self.value.get(key).and_then(Value::as_f64), "a number")
    }

    /// A whole number by its name.
    pub fn count(&self, key: &str) -> Result<usize> {
        Ok(self.found(key, self.value.get(key).and_then(Value::as_u64), "a whole number")? as usize)
    }

    /// A text by its name.
    pub fn text(&self, key: &str) -> Result<&str> {
        self.found(key, self.value.get(key).and_then(Value::as_str), "a text")
    }

    /// A list of numbers by its name.
    pub fn numbers(&self, key: &str) -> Result<Vec<f64>> {
        let values = self.found(key, self.value.get(key).and_then(Value::as_array), "a list")?;
        values.iter().map(|v| self.found(key, v.as_f64(), "numbers in a list")).collect()
    }

    /// Whether it has a part or number of this name.
    pub fn has(&self, key: &str) -> bool {
        self.value.get(key).is_some()
    }

    /// Its names and the numbers under them.
    pub fn entries(&self) -> Result<Vec<(f64, Golden)>> {
        let object = self.found("any", self.value.as_object(), "parts")?;
        let entry = |(key, value): (&String, &Value)| {
            let number = self.found(key, key.parse().ok(), "a part with a number as its name,")?;
            Ok((number, Golden { value: value.clone(), at: format!("{}, {key}", self.at) }))
        };
        object.iter().map(entry).collect()
    }

    /// The number that it is.
    pub fn itself(&self) -> Result<f64> {
        self.found("it", self.value.as_f64(), "a number")
    }
}
