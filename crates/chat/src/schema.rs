//! JSON schemas as the enforcer can hold them.
//!
//! An enforcer knows a part of JSON Schema. What a schema asks beyond it is left out, which gives a superset of what the
//! schema allows, and reported by its path; a caller that must not relax refuses by that path. The result is a schema of
//! its own: only keywords that are understood, references to `#/$defs` alone, bounded in size and depth.
//!
//! In one respect it is narrower: an object that declares properties and says nothing of others has no others. Nobody
//! who declares arguments wants a model to invent some.
//!
//! Start with [`arguments`] and [`answer`].

mod keywords;
mod walk;

use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use serde_json::{Value, json};

use walk::Walk;

pub(crate) use keywords::{is_plain_object, resolve};

/// A schema that can be enforced.
#[derive(Clone, Debug, PartialEq)]
pub struct Enforceable {
    /// What is enforced.
    pub schema: Value,
    /// Paths in the client's schema of what is not, as in `properties.n.not`; the empty path is all of it.
    pub relaxed: Vec<String>,
}

/// How much a schema is relaxed before it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pass {
    /// Keywords without a meaning for the enforcer are left out.
    Keywords,
    /// And `oneOf` is read as `anyOf`.
    AnyOf,
    /// And what stands beside a reference or combinations is left out.
    Siblings,
}

/// The schema of a tool's arguments, which are an object.
pub fn arguments(parameters: Option<&Value>) -> Enforceable {
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    match parameters {
        None => Enforceable { schema: none, relaxed: Vec::new() },
        Some(Value::Object(fields)) if fields.is_empty() => Enforceable { schema: none, relaxed: Vec::new() },
        Some(schema) => enforceable(schema, true),
    }
}

/// The schema of an answer.
pub fn answer(schema: &Value) -> Enforceable {
    enforceable(schema, false)
}

fn enforceable(schema: &Value, is_object: bool) -> Enforceable {
    for pass in [Pass::Keywords, Pass::AnyOf, Pass::Siblings] {
        let made = Walk::new(schema, pass).run(is_object);
        if compiles(&made.schema) {
            return made;
        }
    }
    let schema = if is_object { json!({"type": "object"}) } else { json!({}) };
    Enforceable { schema, relaxed: vec![String::new()] }
}

/// Whether the enforcer's compiler takes `schema`: it also finds schemas that nothing satisfies.
pub(crate) fn compiles(schema: &Value) -> bool {
    let grammar = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema.clone()));
    // A compiler that panics over a schema cannot enforce it.
    let compiled = catch_unwind(AssertUnwindSafe(|| grammar.to_internal(None, ParserLimits::default()).is_ok()));
    compiled.unwrap_or(false)
}

#[cfg(test)]
mod tests;
