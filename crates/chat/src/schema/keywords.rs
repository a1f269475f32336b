//! What JSON Schema's keywords are to the enforcer.

use serde_json::{Map, Value};

/// Strings of these formats are enforced.
pub(super) const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Types that exist.
pub(super) const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// What a keyword is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    Type,
    Const,
    Enum,
    Ref,
    /// A list of schemas that are combined.
    Combination,
    /// A map of schemas.
    Properties,
    PatternProperties,
    AdditionalProperties,
    Required,
    Items,
    PrefixItems,
    /// A whole number that is not negative.
    Count,
    /// A bound on numbers.
    Bound,
    MultipleOf,
    Pattern,
    Format,
    /// Changes what is valid, and is not understood.
    Beyond,
    /// Changes nothing that is valid, or nothing without a keyword that is reported itself.
    Annotation,
}

pub(super) fn keyword(name: &str) -> Keyword {
    match name {
        "type" => Keyword::Type,
        "const" => Keyword::Const,
        "enum" => Keyword::Enum,
        "$ref" => Keyword::Ref,
        "anyOf" | "oneOf" | "allOf" => Keyword::Combination,
        "properties" => Keyword::Properties,
        "patternProperties" => Keyword::PatternProperties,
        "additionalProperties" => Keyword::AdditionalProperties,
        "required" => Keyword::Required,
        "items" => Keyword::Items,
        "prefixItems" => Keyword::PrefixItems,
        "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => Keyword::Count,
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => Keyword::Bound,
        "multipleOf" => Keyword::MultipleOf,
        "pattern" => Keyword::Pattern,
        "format" => Keyword::Format,
        "not"
        | "if"
        | "dependentRequired"
        | "dependentSchemas"
        | "dependencies"
        | "contains"
        | "propertyNames"
        | "unevaluatedProperties"
        | "unevaluatedItems"
        | "$dynamicRef"
        | "$recursiveRef"
        | "uniqueItems" => Keyword::Beyond,
        _ => Keyword::Annotation,
    }
}

/// The type that a schema without one means, by its keywords.
pub(super) fn meant_type(fields: &Map<String, Value>) -> Option<&'static str> {
    let says = |name: &str| fields.contains_key(name);
    if ["type", "const", "enum", "$ref", "anyOf", "oneOf", "allOf"].into_iter().any(says) {
        return None;
    }
    fields.keys().find_map(|name| match name.as_str() {
        "properties"
        | "additionalProperties"
        | "patternProperties"
        | "required"
        | "minProperties"
        | "maxProperties" => Some("object"),
        "items" | "prefixItems" | "minItems" | "maxItems" => Some("array"),
        "pattern" | "minLength" | "maxLength" | "format" => Some("string"),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => Some("number"),
        _ => None,
    })
}

/// Whether an enforceable schema is an object that is described by its own keywords alone.
pub(crate) fn is_plain_object(schema: &Value) -> bool {
    let combined = ["$ref", "anyOf", "oneOf", "allOf", "const", "enum"];
    schema.get("type") == Some(&Value::from("object")) && !combined.iter().any(|name| schema.get(name).is_some())
}

/// What `reference`, which is local, means in `root`.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference.strip_prefix('#')? {
        "" | "/" => Some(root),
        pointer => root.pointer(pointer).or_else(|| root.pointer(&unescaped(pointer))),
    }
}

/// A pointer in a reference may be percent-encoded, as part of a URI.
fn unescaped(pointer: &str) -> String {
    let mut bytes = Vec::with_capacity(pointer.len());
    let mut rest = pointer.as_bytes();
    while let [first, others @ ..] = rest {
        let digits = others.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &others[2..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
