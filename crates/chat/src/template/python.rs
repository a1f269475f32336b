//! What templates expect of Jinja2 because it is Python: filters, functions and methods, byte for byte.

pub(super) mod dict;
mod indent;
mod json;
pub(super) mod number;
mod rest;
mod scan;

use jiff::Zoned;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, filters};
use minijinja_contrib::pycompat;
use number::Literal;

/// A template's own `raise_exception`, as the source of the error that it ends the rendering with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

/// Gives `environment` all but the clock.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("indent", indent::indent);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_filter("_iterated", iterated);
    environment.add_filter("_added", added);
    environment.add_filter("_listed", listed);
    environment.add_filter("_rest", rest::rest);
    environment.add_filter("_where", scan::members);
    environment.add_filter("_where_numbered", scan::numbered);
    environment.add_filter("_map", filters::map);
    environment.add_filter("_select", filters::select);
    environment.add_filter("_reject", filters::reject);
    environment.add_filter("_selectattr", filters::selectattr);
    environment.add_filter("_rejectattr", filters::rejectattr);
    for (name, of_minijinja) in LAZY {
        environment.add_filter(name, move |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
            let args = args.0.into_iter().map(ValueOrKwargs::into_value);
            let args: Vec<Value> = std::iter::once(value).chain(args).collect();
            state.apply_filter(of_minijinja, &args).map(generator)
        });
    }
    environment.add_test("number", |value: &Value| integral(value).is_some());
    environment.add_test("integer", |value: &Value| integral(value) == Some(true));
    environment.add_test("float", |value: &Value| integral(value) == Some(false));
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

/// Filters that give a generator in Jinja2, and a list in minijinja: under a name of their own.
const LAZY: [(&str, &str); 5] = [
    ("map", "_map"),
    ("select", "_select"),
    ("reject", "_reject"),
    ("selectattr", "_selectattr"),
    ("rejectattr", "_rejectattr"),
];

/// What can be iterated over, and no more: it has no length, is always true, and cannot be written as JSON.
fn generator(list: Value) -> Value {
    Value::make_object_iterable(list, |list| {
        let mut items = list.try_iter().ok();
        Box::new(std::iter::from_fn(move || items.as_mut()?.next()))
    })
}

/// What a loop goes over: [`super::source`] puts this filter there.
fn iterated(value: Value) -> Result<Value, Error> {
    match value.is_none() {
        true => Err(Error::new(ErrorKind::InvalidOperation, "none is not iterable")),
        false => Ok(value),
    }
}

/// A slice of a list, as a list: [`super::source`] puts this filter there.
fn listed(state: &State, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
    state.consume_fuel(items.len() as u64)?;
    Ok(Value::from(items))
}

/// What is added to a safe text; [`super::source`] puts this filter there.
fn added(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(escape(value)),
        kind => Err(Error::new(ErrorKind::InvalidOperation, format!("can only add a text to a text, not {kind}"))),
    }
}

/// Whether `value` is a number, and then, an integer. (In Python `True` is an integer of a kind.)
fn integral(value: &Value) -> Option<bool> {
    match (value.downcast_object_ref::<Literal>(), value.kind()) {
        (Some(literal), _) => Some(literal.is_integer),
        (None, ValueKind::Number) => Some(value.is_integer()),
        (None, ValueKind::Bool) => Some(true),
        _ => None,
    }
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
