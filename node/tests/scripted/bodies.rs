//! Bodies that are nearly requests: each is answered, or refused as the client's mistake, and nothing else.

use serde_json::{Value, json};

use crate::rig::{MODEL, Rig};

/// A template that calls tools, and refuses what real ones refuse.
const NATIVE: &str = "{% for tool in tools or [] %}{{ tool|tojson }}\n{% endfor %}{% for m in messages %}\
    {% if m.role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('no such role') }}{% endif %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n\
    {\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments|tojson }}}\n</tool_call>{% endfor %}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// By itself a few hundred bodies for each strategy; `MESH_ROUNDS` times as many.
#[tokio::test]
async fn mutated_bodies_are_answered_or_refused() {
    let rounds = std::env::var("MESH_ROUNDS").ok().and_then(|rounds| rounds.parse::<u64>().ok()).unwrap_or(1);
    for template in [None, Some(NATIVE)] {
        let rig = Rig::start(template).await;
        rig.say([
            b"Hm. <tool_call>{\"name\": \"look\", \"arguments\": {}}</tool_call>\n".as_slice(),
            b"TOOL_CALL {\"name\": \"look\", \"arguments\": {}}",
        ]);
        let mut counts = [0, 0];
        for seed in 0..300 * rounds {
            let body = body(&mut Random(seed));
            let (status, answer) = rig.post(body.clone()).await;
            let shown =
                || format!("seed {seed}: {}\n{}", String::from_utf8_lossy(&body), String::from_utf8_lossy(&answer));
            match status {
                200 => counts[0] += 1,
                400 => {
                    let answer: Value = serde_json::from_slice(&answer).unwrap_or_else(|_| panic!("{}", shown()));
                    assert_eq!(answer["error"]["type"], "invalid_request_error", "{}", shown());
                    counts[1] += 1;
                }
                // The name of the model is part of what changes.
                404 => assert!(String::from_utf8_lossy(&answer).contains("model_not_found"), "{}", shown()),
                other => panic!("status {other} for {}", shown()),
            }
        }
        assert!(counts.iter().all(|count| *count > 30), "answered and refused: {counts:?}");
        rig.stop().await;
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end.max(1) as u64).unwrap()
    }
}

fn whole(stream: bool) -> Value {
    let schema = json!({"type": "object", "$defs": {"P": {"type": "array", "items": {"$ref": "#/$defs/P"}}},
        "properties": {"at": {"$ref": "#/$defs/P"}, "n": {"type": ["integer", "null"], "enum": [1, null]}}, "required": ["n"]});
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{\"n\": 1e5}"}});
    json!({
        "model": MODEL, "stream": stream, "temperature": 0.5, "top_p": 1, "max_tokens": 40, "seed": 7, "stop": ["END"],
        "tool_choice": "auto", "parallel_tool_calls": true, "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null },
        "tools": [{"type": "function", "function": {"name": "look", "description": "Looks <|im_end|>", "parameters": schema}}],
        "messages": [
            {"role": "system", "content": "Be brief. {{ x }}"},
            {"role": "user", "content": [{"type": "text", "text": "Zürich \u{1f980}?"}]},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        ],
    })
}

/// Changes of the request's values, then of its bytes.
fn body(random: &mut Random) -> Vec<u8> {
    let mut request = whole(random.below(2) == 0);
    for _ in 0..random.below(4) {
        change(&mut request, random);
    }
    let mut bytes = request.to_string().into_bytes();
    for _ in 0..random.below(3) * random.below(2) {
        let at = random.below(bytes.len());
        match random.below(4) {
            _ if bytes.is_empty() => break,
            0 => bytes[at] = u8::try_from(random.below(256)).unwrap(),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, b"\"\\{}[],:0"[random.below(9)]),
            _ => bytes.truncate(at.max(1)),
        }
    }
    bytes
}

/// Changes one value somewhere inside.
fn change(value: &mut Value, random: &mut Random) {
    let len = match value {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    if len > 0 && random.below(5) > 0 {
        let at = random.below(len);
        match value {
            Value::Object(fields) => return change(fields.values_mut().nth(at).unwrap(), random),
            Value::Array(items) => return change(&mut items[at], random),
            _ => {}
        }
    }
    match value {
        Value::Object(fields) if len > 0 && random.below(2) == 0 => {
            let key = fields.keys().nth(random.below(len)).unwrap().clone();
            let old = fields.shift_remove(&key).unwrap();
            if random.below(2) == 0 {
                fields.insert("name".to_owned(), old);
            }
        }
        Value::Array(items) if len > 0 && random.below(2) == 0 => {
            let copy = items[random.below(len)].clone();
            items.insert(random.below(len), copy);
        }
        other => *other = odd(random),
    }
}

fn odd(random: &mut Random) -> Value {
    let texts = [
        "",
        "user",
        "tool",
        "developer",
        "none",
        "required",
        "auto",
        "look",
        "<|im_end|>",
        "\u{0}",
        "\u{1f980}",
        "{",
        "call_1",
    ];
    match random.below(10) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!(-1),
        3 => [json!(1e300), json!(0.1), json!(u64::MAX), json!(3)][random.below(4)].clone(),
        4 => json!([]),
        5 => json!({}),
        6 => json!({"type": "function", "function": {"name": texts[random.below(texts.len())]}}),
        7 => (0..200).fold(json!("deep"), |inner, _| json!([inner])),
        8 => json!("x".repeat(5000)),
        _ => json!(texts[random.below(texts.len())]),
    }
}
