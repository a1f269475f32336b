//! What templates expect of Jinja2 because it is Python: filters, functions and methods, byte for byte.

mod json;

use jiff::Zoned;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// A template's own `raise_exception`, as the source of the error that it ends the rendering with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

/// Gives `environment` all but the clock.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_function("raise_exception", raise_exception);
}

/// Gives `environment` the function `strftime_now`.
pub(super) fn set_clock(environment: &mut Environment<'static>, now: Option<Zoned>) {
    environment.add_function("strftime_now", move |format: &str| {
        let now = now.clone().unwrap_or_else(Zoned::now);
        jiff::fmt::strtime::format(format, &now)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
    });
}

/// In Python `None` cannot be iterated over; minijinja takes it for something empty.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Jinja2 asks for a length and an index: texts and dicts have both, and so has an undefined value.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, "the template raised an exception");
    Err(error.with_source(Refusal(message.to_string())))
}

/// `markupsafe.escape`: other entities than minijinja's own filter.
fn escape(value: &Value) -> Value {
    if value.is_safe() {
        return value.clone();
    }
    let mut escaped = String::new();
    for character in value.to_string().chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            other => escaped.push(other),
        }
    }
    Value::from_safe_string(escaped)
}

/// Methods of Python's strings that `pycompat` lacks, then its own.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(text)) = (value.kind(), value.as_str()) {
        match name {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            // Python takes arguments by name here; `pycompat` by place only.
            "split" if args.last().is_some_and(Value::is_kwargs) => return split(state, value, args),
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn split(state: &mut State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (separator, most, named): (Option<Value>, Option<Value>, Kwargs) = from_args(args)?;
    let separator = separator.or(named.get("sep")?);
    let most = most.or(named.get("maxsplit")?);
    named.assert_all_used()?;
    let args = [separator.unwrap_or_else(|| Value::from(())), most.unwrap_or_else(|| Value::from(-1))];
    pycompat::unknown_method_callback(state, value, "split", &args)
}
