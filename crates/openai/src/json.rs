//! Reading a request's JSON field by field, with errors that name the field's path. Null is the same as absent.

use mesh_types::Fault;
use serde_json::{Map, Value};

/// A JSON object at a path of the request.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Object<'a> {
    /// The whole request.
    pub(crate) fn root(map: &'a Map<String, Value>) -> Self {
        Self { map, path: String::new() }
    }

    /// The object that `value` at `path` has to be.
    pub(crate) fn at(value: &'a Value, path: impl Into<String>) -> Result<Self, Fault> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => Err(wrong(&path, "an object", other)),
        }
    }

    pub(crate) fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// The path of the field `name`.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, Fault> {
        self.read(name, "a string", Value::as_str)
    }

    /// A string that has to be there and not to be empty.
    pub(crate) fn required(&self, name: &str) -> Result<&'a str, Fault> {
        self.text(name)?.filter(|text| !text.is_empty()).ok_or_else(|| self.missing(name))
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Fault> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, Fault> {
        self.read(name, "an integer", Value::as_i64)
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>, Fault> {
        self.read(name, "a number", Value::as_f64)
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, Fault> {
        self.read(name, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Object<'a>>, Fault> {
        self.get(name).map(|value| Self::at(value, self.path(name))).transpose()
    }

    /// The objects of the array `name`, each with its path.
    pub(crate) fn objects(&self, name: &str) -> Result<Vec<Object<'a>>, Fault> {
        let path = self.path(name);
        let items = self.list(name)?.unwrap_or_default().iter().enumerate();
        items.map(|(index, item)| Self::at(item, format!("{path}[{index}]"))).collect()
    }

    pub(crate) fn missing(&self, name: &str) -> Fault {
        missing(self.path(name))
    }

    /// A refusal of the field `name`: `what` follows its path, as in "must be positive".
    pub(crate) fn invalid(&self, name: &str, what: &str) -> Fault {
        let path = self.path(name);
        invalid(path.clone(), format!("`{path}` {what}."))
    }

    /// The same for something that is not served here.
    pub(crate) fn unsupported(&self, name: &str, what: &str) -> Fault {
        self.invalid(name, what).with_code(UNSUPPORTED)
    }

    fn read<T>(
        &self,
        name: &str,
        expects: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| wrong(&self.path(name), expects, value)),
        }
    }
}

/// The code of a refusal of what is known and not served.
pub(crate) const UNSUPPORTED: &str = "unsupported_parameter";

pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Fault {
    Fault::invalid(message).with_param(param)
}

pub(crate) fn missing(path: impl Into<String>) -> Fault {
    let path = path.into();
    let message = format!("`{path}` is missing.");
    invalid(path, message)
}

pub(crate) fn wrong(path: &str, expects: &str, value: &Value) -> Fault {
    invalid(path, format!("`{path}` must be {expects}, not {}.", describe(value)))
}

/// A fault about a field that stands at another place here: `from` in its path and its sentence becomes `to`.
pub(crate) fn renamed(fault: Fault, from: &str, to: &str) -> Fault {
    let param = fault.param.map(|param| param.replace(from, to));
    Fault { message: fault.message.replace(from, to), param, ..fault }
}

pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Most values in a request: in memory, each takes many times the room of its text.
const MAX_VALUES: usize = 2 << 20;

/// The object that a request's body has to be.
pub(crate) fn body(bytes: &[u8]) -> Result<Map<String, Value>, Fault> {
    // With what separates it from the next, a value has two bytes at least.
    if bytes.len() / 2 > MAX_VALUES && values(bytes) > MAX_VALUES {
        return Err(Fault::invalid(format!("The body holds more than {MAX_VALUES} values.")));
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Fault::invalid("The body must be a JSON object.")),
        Err(error) => Err(Fault::invalid(format!("The body is not valid JSON: {error}."))),
    }
}

/// How many values `json` holds, if it is valid; some that are empty may be counted twice.
fn values(json: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for byte in json {
        match (in_text, byte) {
            _ if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b',' | b'[' | b'{') => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_texts() {
        assert_eq!(values(br#"{"a": 1, "b": [2, 3], "c,[{\\": "\", [1, 2,", "d": {"e": null}}"#), 8);
        assert_eq!(values(b"[0,0,0]"), 4);
    }

    #[test]
    fn a_body_of_too_many_values_is_refused_before_they_are_read() {
        let refused = |bytes: &[u8]| body(bytes).unwrap_err().message;
        let many = format!("{{\"a\": [{}0]}}", "0,".repeat(MAX_VALUES));
        assert!(refused(many.as_bytes()).contains("more than 2097152 values"));
        // The end is missing, which nobody looks for.
        assert!(refused(&many.as_bytes()[..many.len() - 2]).contains("more than"));
        let text = serde_json::json!({"a": ",[{".repeat(MAX_VALUES)}).to_string();
        assert_eq!(body(text.as_bytes()).unwrap().len(), 1);
    }
}
