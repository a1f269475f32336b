//! Seeded names, schemas, arguments and texts: among them all that is hard to keep apart from a call's own structure.

use serde_json::{Map, Value, json};

/// SplitMix64.
pub(crate) struct Random(u64);

/// What hostile texts are made of, beside the markers of all formats.
const PIECES: &[&str] = &[
    "word",
    "two words",
    "12",
    "-0.5",
    "true",
    "null",
    "None",
    "'",
    "\"",
    "`",
    "```json\n",
    "\\",
    "\\n",
    "\\u0041",
    "\n",
    "\n\n",
    "\t",
    " ",
    "  ",
    "é",
    "東京",
    "\u{1f980}",
    "\u{1f468}\u{200d}\u{1f469}",
    "</tag>",
    "<b>",
    "&quot;",
    "&amp;",
    "{",
    "}",
    "[",
    "]",
    "{}",
    "{\"a\": 1}",
    ",",
    ":",
    ", \"b\": [",
    "(",
    ")",
    "=",
    "%",
    "{{ x }}",
    "{% y %}",
    "#",
    "/",
    "\u{7f}",
    "$",
];

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("small")
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    /// A name as the API allows them.
    pub(crate) fn name(&mut self) -> String {
        const FIRST: &[u8] = b"abcdefgXYZ";
        const REST: &[u8] = b"abcdefghijklmnop_-0123456789XYZ";
        let len = 1 + self.below(16);
        let mut name = String::from(char::from(FIRST[self.below(FIRST.len())]));
        name.extend((0..len).map(|_| char::from(REST[self.below(REST.len())])));
        name
    }

    /// A name that is one in Python as well.
    pub(crate) fn key(&mut self) -> String {
        self.name().replace('-', "_")
    }
}

/// What a format can write.
pub(crate) struct Scope<'a> {
    /// Texts that no string may contain.
    pub(crate) forbidden: &'a [&'a str],
    /// Texts that strings are made of, beside the usual ones.
    pub(crate) pieces: &'a [&'a str],
    /// Keys inside arguments may be any text.
    pub(crate) any_key: bool,
    /// There are nulls, and empty objects and lists, inside arguments.
    pub(crate) nothing: bool,
}

/// A tool and arguments that fit it.
pub(crate) fn tool_and_arguments(random: &mut Random, scope: &Scope<'_>) -> (Value, Value) {
    let (mut properties, mut arguments) = (Map::new(), Map::new());
    for _ in 0..random.below(5) {
        let key = random.key();
        let (schema, value) = schema_and_value(random, scope, 0);
        properties.insert(key.clone(), schema);
        arguments.insert(key, value);
    }
    let parameters = json!({"type": "object", "properties": properties, "required": []});
    let function = json!({"name": random.key(), "description": text(random, scope), "parameters": parameters});
    (json!({"type": "function", "function": function}), Value::Object(arguments))
}

fn schema_and_value(random: &mut Random, scope: &Scope<'_>, depth: usize) -> (Value, Value) {
    let described = |kind: &str| json!({"type": kind, "description": "What it is"});
    match random.below(if depth > 2 { 5 } else { 8 }) {
        0..=2 => (described("string"), Value::from(text(random, scope))),
        3 => match random.below(3) {
            0 => (described("integer"), json!(i64::from_le_bytes(random.next().to_le_bytes()))),
            1 => (described("integer"), json!(random.below(100))),
            _ => (described("number"), json!(random.pick(&[&0.5, &-1.25e-9, &1e300, &3.0, &123_456.789]))),
        },
        4 => (described("boolean"), json!(random.below(2) == 0)),
        5 => {
            let least = usize::from(!scope.nothing);
            let (schema, first) = schema_and_value(random, scope, depth + 1);
            let count = least + random.below(3);
            let items: Vec<Value> = (0..count).map(|_| first.clone()).collect();
            (json!({"type": "array", "description": "Several", "items": schema}), Value::from(items))
        }
        _ => {
            let (mut properties, mut fields) = (Map::new(), Map::new());
            let least = usize::from(!scope.nothing);
            for _ in 0..least + random.below(3) {
                let key = if scope.any_key { text(random, scope) } else { random.key() };
                let (schema, value) = match random.below(6) {
                    0 if scope.nothing => (json!({"type": "null", "description": "Nothing"}), Value::Null),
                    _ => schema_and_value(random, scope, depth + 1),
                };
                properties.insert(key.clone(), schema);
                fields.insert(key, value);
            }
            (json!({"type": "object", "description": "Inner", "properties": properties}), Value::Object(fields))
        }
    }
}

/// A text without what is forbidden.
pub(crate) fn text(random: &mut Random, scope: &Scope<'_>) -> String {
    let mut text = String::new();
    for _ in 0..random.below(7) {
        text += match random.below(4) {
            0 if !scope.pieces.is_empty() => random.pick(scope.pieces),
            _ => random.pick(PIECES),
        };
    }
    if scope.forbidden.iter().any(|marker| text.contains(marker)) { "plain".to_owned() } else { text }
}
