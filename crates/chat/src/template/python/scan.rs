//! The members of a list that a loop does not pass over: [`crate::template::source`] puts these filters there.

use std::sync::Arc;

use minijinja::value::Rest;
use minijinja::{Error, ErrorKind, State, Value};

use super::iterated;

/// What is asked of a member.
struct Term {
    attribute: Value,
    test: Test,
}

enum Test {
    /// It is something.
    True,
    /// It is this, or it is not.
    Text { text: Value, is_equal: bool },
}

impl Term {
    fn holds(&self, member: &Value) -> Result<bool, Error> {
        let value = member.get_item(&self.attribute)?;
        Ok(match &self.test {
            Test::True => value.is_true(),
            Test::Text { text, is_equal } => (value == *text) == *is_equal,
        })
    }
}

/// `_where(attribute, operator, text, …)`.
pub(super) fn members(state: &State, list: Value, terms: Rest<String>) -> Result<Value, Error> {
    chosen(state, list, &terms, |_, member| member)
}

/// The same as pairs of place and member.
pub(super) fn numbered(state: &State, list: Value, terms: Rest<String>) -> Result<Value, Error> {
    chosen(state, list, &terms, |index, member| Value::from(vec![Value::from(index), member]))
}

fn chosen(state: &State, list: Value, terms: &[String], shown: fn(usize, Value) -> Value) -> Result<Value, Error> {
    let list = iterated(list)?;
    // Paid for before it is gone through, which happens outside of the engine.
    state.consume_fuel(list.len().unwrap_or(0) as u64)?;
    let terms: Arc<[Term]> = terms.chunks_exact(3).map(term).collect::<Result<_, _>>()?;
    list.try_iter()?;
    Ok(Value::make_object_iterable((list, terms), move |(list, terms)| {
        let members = list.try_iter().into_iter().flatten().enumerate();
        Box::new(members.filter_map(move |(index, member)| {
            for term in terms.iter() {
                match term.holds(&member) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => return Some(Value::from(error)),
                }
            }
            Some(shown(index, member))
        }))
    }))
}

fn term(parts: &[String]) -> Result<Term, Error> {
    let test = match parts[1].as_str() {
        "is" => Test::True,
        operator @ ("==" | "!=") => Test::Text { text: Value::from(parts[2].as_str()), is_equal: operator == "==" },
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "_where: no such operator")),
    };
    Ok(Term { attribute: Value::from(parts[0].as_str()), test })
}
