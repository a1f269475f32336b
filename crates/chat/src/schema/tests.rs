use serde_json::{Value, json};

use super::*;

/// What is enforced of a schema that is enforced whole.
fn whole(schema: Value) -> Value {
    let made = answer(&schema);
    assert_eq!(made.relaxed, Vec::<String>::new(), "{schema}");
    made.schema
}

fn relaxed(schema: Value) -> Vec<String> {
    let made = answer(&schema);
    assert!(compiles(&made.schema), "{}", made.schema);
    made.relaxed
}

#[test]
fn what_is_understood_stays() {
    for schema in [
        json!({"type": "object", "properties": {"b": {"type": ["string", "null"]}, "a": {"const": 1}},
            "required": ["b"], "additionalProperties": {"enum": ["x", null, 2]}}),
        json!({"anyOf": [{"type": "integer", "minimum": 3, "exclusiveMaximum": 9.5}, {"type": "null"}]}),
        json!({"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "minItems": 1, "maxItems": 3}),
        json!({"type": "string", "pattern": "^[a-z]+$", "maxLength": 7}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "array", "prefixItems": [{"type": "string"}], "items": false}),
        json!({"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": false}),
        json!(true),
    ] {
        assert_eq!(whole(schema.clone()), schema);
    }
}

#[test]
fn what_says_nothing_of_validity_goes_unreported() {
    let schema = json!({"$schema": "x", "$id": "y", "title": "t", "description": "d", "default": 1, "examples": [],
        "x-guidance": {"lenient": true}, "type": "integer", "uniqueItems": false});
    assert_eq!(whole(schema), json!({"type": "integer"}));
}

#[test]
fn what_is_beyond_is_named_by_its_path() {
    let beyond = json!({"not": {"const": ""}, "type": "string"});
    for (schema, path) in [
        (json!({"type": "object", "properties": {"a": beyond}}), "properties.a.not"),
        (json!({"type": "array", "items": beyond}), "items.not"),
        (json!({"anyOf": [{"type": "null"}, beyond]}), "anyOf.1.not"),
        (json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": beyond}}), "$defs.a~1b.not"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "propertyNames": {"maxLength": 2}}), "propertyNames"),
        (json!({"if": {}, "then": {}, "else": {}}), "if"),
        (json!({"type": "string", "pattern": "(?=a)a"}), "pattern"),
        (json!({"type": "string", "pattern": 3}), "pattern"),
        (json!({"type": "string", "format": "color"}), "format"),
        (json!({"type": "any"}), "type"),
        (json!({"enum": []}), "enum"),
        (json!({"anyOf": []}), "anyOf"),
        (json!({"anyOf": [{"type": "null"}, null]}), "anyOf.1"),
        (json!({"$ref": "https://example.org/s"}), "$ref"),
        (json!({"$ref": "#/$defs/none"}), "$ref"),
        (json!({"type": "object", "properties": {"a": {"required": true, "type": "string"}}}), "properties.a.required"),
        (json!({"type": "object", "properties": {"a": {}}, "minProperties": 1}), "minProperties"),
        (
            json!({"type": "object", "patternProperties": {"(?=a)": {}}, "additionalProperties": false}),
            "patternProperties",
        ),
        (json!({"type": "integer", "minimum": 5, "maximum": 1}), "minimum"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]}), "oneOf"),
        (json!({"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 1}), ""),
        (json!(3), ""),
    ] {
        assert_eq!(relaxed(schema.clone()), [path], "{schema}");
    }
    assert_eq!(whole(json!({"oneOf": [{"type": "string"}, {"type": "null"}]}))["oneOf"][1], json!({"type": "null"}));
}

#[test]
fn an_object_with_properties_has_no_others() {
    let open = json!({"type": "object", "properties": {"a": {"properties": {"b": {}}}}});
    let closed = whole(open.clone());
    assert_eq!(closed["additionalProperties"], json!(false));
    assert_eq!(closed["properties"]["a"]["additionalProperties"], json!(false));
    assert_eq!(closed["properties"]["a"]["type"], "object");
    // Where several say what may be in it, none of them closes it.
    let both = whole(json!({"allOf": [open, {"type": "object", "properties": {"c": {}}}]}));
    assert_eq!(both["allOf"][0].get("additionalProperties"), None);
    let either = whole(json!({"anyOf": [open, {"type": "null"}]}));
    assert_eq!(either["anyOf"][0]["additionalProperties"], json!(false));
    for said in [json!({"type": "object"}), json!({"properties": {}, "additionalProperties": {"type": "string"}})] {
        assert_ne!(whole(said).get("additionalProperties"), Some(&json!(false)));
    }
    let undeclared = whole(json!({"type": "object", "properties": {"a": {}}, "required": ["z"]}));
    assert_eq!(undeclared.get("additionalProperties"), None);
}

#[test]
fn references_are_followed_also_in_circles() {
    let tree = json!({
        "$defs": {"Tree%": {"type": "object", "properties": {
            "name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Tree%25"}},
        }}},
        "$ref": "#/$defs/Tree%25",
    });
    let made = whole(tree);
    let name = made["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/")).expect("a definition");
    assert_eq!(made["$defs"][name]["properties"]["children"]["items"]["$ref"], made["$ref"]);
    assert!(compiles(&made));
    assert!(compiles(&whole(json!({"type": "object", "properties": {"self": {"$ref": "#"}}}))));
    // A circle in which each reference has company cannot be enforced.
    let circle = json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {
        "b": {"$ref": "#/$defs/a", "minProperties": 1, "required": ["b"]}}}}});
    let made = answer(&circle);
    assert!(!made.relaxed.is_empty() && compiles(&made.schema), "{made:?}");
}

#[test]
fn arguments_are_an_object() {
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    assert_eq!(arguments(None).schema, none);
    assert_eq!(arguments(Some(&json!({}))).schema, none);
    assert_eq!(arguments(Some(&json!({"type": "object", "properties": {}}))).schema, none);
    let made = arguments(Some(&json!({"type": "string"})));
    assert_eq!((made.schema, made.relaxed), (json!({"type": "object"}), vec!["type".to_owned()]));
    assert_eq!(arguments(Some(&json!({"description": "x"}))).schema, json!({"type": "object"}));
}

#[test]
fn deep_and_large_schemas_end_somewhere() {
    let mut deep = json!({"type": "string"});
    for _ in 0..100 {
        deep = json!({"type": "object", "properties": {"x": deep}});
    }
    let made = answer(&deep);
    assert_eq!(made.relaxed.len(), 1);
    assert!(made.relaxed[0].starts_with("properties.x.properties.x"));
    assert!(compiles(&made.schema));
    let wide = |count: usize| {
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|index| (format!("p{index}"), json!({"not": {}}))).collect();
        json!({"type": "object", "properties": properties})
    };
    assert_eq!(answer(&wide(501)).relaxed, ["properties"]);
    let made = answer(&json!({"type": "array", "prefixItems": vec![wide(500); 12]}));
    assert_eq!(made.relaxed.len(), 64);
    assert!(compiles(&made.schema));
}
