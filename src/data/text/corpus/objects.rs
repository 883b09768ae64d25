//! Lines of JSON: the named fields of an object, which have to be there and to be strings.

use super::example::{Sides, has_visible};
use super::record::{Wrong, names_and_nearest};
use super::report::Defect;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt::Formatter;

/// The names of the fields in use.
#[derive(Debug)]
pub(super) struct Objects(pub Sides<String>);

impl Objects {
    /// The fields of a line that begins at `at`.
    pub(super) fn read(&self, line: &str, at: usize) -> Result<Result<Sides<Cow<'static, str>>, Defect>, Wrong> {
        if !has_visible(line) {
            return Ok(Err(Defect::Empty));
        }
        let mut json = serde_json::Deserializer::from_str(line);
        let values = Fields(&self.0).deserialize(&mut json).and_then(|values| json.end().map(|()| values));
        let values = values.map_err(|e| {
            let place = format!(" at line {} column {}", e.line(), e.column());
            let reason = e.to_string().replace(&place, "");
            let message = format!("expected a JSON object, found this in column {}: {reason}", e.column().max(1));
            Wrong { at: at + e.column().saturating_sub(1), message }
        })?;
        // The values and their names, side by side.
        let names = self.0.as_ref();
        let mut values = [Some(values.text), values.positive, values.hard_negative].into_iter().flatten();
        let text = names.try_map(|key, name| match values.next().flatten() {
            Some(Value::String(text)) => Ok(Cow::Owned(text)),
            Some(other) => Err(format!("expected a string in the field `{name}` (data.{key}), found {}", kind(&other))),
            None => {
                let object: Map<String, Value> = serde_json::from_str(line).unwrap_or_default();
                let there: Vec<&str> = object.keys().map(String::as_str).collect();
                let there = names_and_nearest(name, &there);
                Err(format!("expected a field `{name}` (data.{key}), found {there}"))
            }
        });
        text.map(Ok).map_err(|message| Wrong { at, message })
    }
}

/// What a value that is no string is, for people.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a string".to_string(),
        Value::Array(_) => "a list".to_string(),
        Value::Object(_) => "an object".to_string(),
    }
}

/// Takes the named fields of an object and passes over the others.
struct Fields<'n>(&'n Sides<String>);

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = Sides<Option<Value>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Sides<Option<Value>>;

    fn expecting(&self, f: &mut Formatter) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let names = self.0;
        let mut values = Sides {
            text: None,
            positive: names.positive.as_ref().map(|_| None),
            hard_negative: names.hard_negative.as_ref().map(|_| None),
        };
        while let Some(key) = map.next_key::<String>()? {
            let place = if key == names.text {
                &mut values.text
            } else if let (Some(place), true) = (&mut values.positive, names.positive.as_ref() == Some(&key)) {
                place
            } else if let (Some(place), true) = (&mut values.hard_negative, names.hard_negative.as_ref() == Some(&key))
            {
                place
            } else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if place.replace(map.next_value()?).is_some() {
                return Err(A::Error::custom(format!("the field `{key}` is there twice")));
            }
        }
        Ok(values)
    }
}
