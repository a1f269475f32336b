//! Dicts whose keys are texts, as JSON's objects are.
//!
//! A template asks a message for its role and content again and again, and a dict of a few keys is searched faster than a
//! key is hashed.

use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectExt as _};

/// With more fields than this, hashing is faster.
const FEW: usize = 16;

/// A dict of a few fields, whose keys are different texts.
#[derive(Debug)]
struct Dict(Box<[(Value, Value)]>);

/// The dict of `fields`, whose keys are different texts, in their order.
pub(in crate::template) fn dict<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let fields: Vec<(Value, Value)> = fields.into_iter().map(|(key, value)| (Value::from(key), value)).collect();
    match fields.len() {
        0..=FEW => Value::from_object(Dict(fields.into())),
        _ => Value::from_pairs(fields),
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_key_value_enumerator(|this| Box::new(this.0.iter().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    #[test]
    fn few_fields_and_many_are_the_same_to_a_template() {
        let mut environment = minijinja::Environment::new();
        super::super::install(&mut environment);
        let source = "{{ d.k1 }} {{ d['k2'] }} {{ d[0] is undefined }} {{ d.nothing is undefined }} {{ d|length }} \
            {{ d is mapping }} {{ d is iterable }} {{ 'k1' in d }} {{ 'x' in d }} {{ d == copy }} {{ copy == d }} \
            {{ d.get('k0') }} {{ d.get('x', 7) }} {{ d.keys()|list }} {{ d.items()|list|length }} {{ d|dictsort|first }} \
            {% for key in d %}{{ key }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %} {{ d|tojson|length > 9 }}\
            {{ (d|string)[:28] }}";
        environment.add_template("t", source).expect("a template");
        let rendered = |count: usize| {
            let names: Vec<String> = (0..count).map(|n| format!("k{n}")).collect();
            let fields = || names.iter().enumerate().map(|(n, name)| (name.as_str(), Value::from(n)));
            let context = context! { d => dict(fields()), copy => Value::from_pairs(fields()) };
            environment.get_template("t").and_then(|template| template.render(context)).expect("a text")
        };
        let expected = |count: usize| {
            let keys = (0..count).map(|n| format!("'k{n}'")).collect::<Vec<_>>().join(", ");
            format!(
                "1 2 True True {count} True True True False True True 0 7 [{keys}] {count} ('k0', 0) k0k1k2 \
                 True{{'k0': 0, 'k1': 1, 'k2': 2, "
            )
        };
        for count in [4, FEW, FEW + 1] {
            assert_eq!(rendered(count), expected(count));
        }
    }
}
