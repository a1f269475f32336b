//! Vectors of texts, from the request to llama.cpp and back: a node with models that pool, of random weights, against the
//! same models asked directly.
#![allow(clippy::unwrap_used)] // every one is a check

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kernels_ffi::{Model, ModelParams, PooledContext, Pooling, Vocab, synth};
use mesh_gguf::{Array, GgmlType, Header, Metadata, TensorInfo, Value as Key};
use serde_json::{Value, json};

const WORDS: [&str; 8] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁sea", "▁blue", "▁is"];
const DIMENSIONS: u32 = 64;

/// A model that is described by its architecture, how it pools, and little else.
fn metadata(architecture: &str, pooling: u32) -> Metadata {
    let mut metadata = Metadata::default();
    let mut set = |key: &str, value: Key| drop(metadata.set(key, value));
    set("general.architecture", Key::String(architecture.into()));
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 32),
        ("embedding_length", DIMENSIONS),
        ("feed_forward_length", 128),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 4),
        ("pooling_type", pooling),
    ] {
        set(&format!("{architecture}.{key}"), Key::U32(value));
    }
    set(&format!("{architecture}.attention.layer_norm_epsilon"), Key::F32(1e-5));
    set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), Key::F32(1e-5));
    if architecture == "bert" {
        set("bert.attention.causal", Key::Bool(false));
    }
    set("tokenizer.ggml.model", Key::String("bert".into()));
    set("tokenizer.ggml.token_type_count", Key::U32(2));
    set("tokenizer.ggml.tokens", Key::Array(Array::of_strs(WORDS)));
    let kinds = WORDS.iter().map(|word| if word.starts_with('[') { 3 } else { 1 });
    set("tokenizer.ggml.token_type", Key::Array(Array::of_i32s(kinds)));
    for (key, token) in
        [("padding", 0), ("unknown", 1), ("bos", 2), ("cls", 2), ("seperator", 3), ("eos", 3), ("mask", 4)]
    {
        set(&format!("tokenizer.ggml.{key}_token_id"), Key::U32(token));
    }
    metadata
}

fn write(path: &Path, architecture: &str, pooling: u32) {
    let metadata = metadata(architecture, pooling);
    let bare = Header::build(metadata.clone(), Vec::new()).unwrap();
    let weights = synth::weights(&bare.to_bytes(), 7).unwrap();
    let tensor = |weight: &synth::Weight| TensorInfo::new(&weight.name, &weight.dims, GgmlType::F32).unwrap();
    let header = Header::build(metadata, weights.iter().map(tensor).collect()).unwrap();
    let mut bytes = header.to_bytes();
    for weight in &weights {
        bytes.extend(weight.values.iter().flat_map(|value| value.to_le_bytes()));
        let end = bytes.len() as u64 - header.data_offset();
        let padding = end.next_multiple_of(header.alignment()) - end;
        bytes.extend(vec![0; padding as usize]);
    }
    std::fs::write(path, bytes).unwrap();
}

/// The vector of length one that llama.cpp gives.
fn directly(path: &Path, text: &str) -> Vec<f32> {
    let model = Model::load(path, &ModelParams::default()).unwrap();
    let tokens = Vocab::of(&model).unwrap().tokenize(text, true, true).unwrap();
    let vector = PooledContext::new(&model, 32, 1).unwrap().embed(&tokens).unwrap();
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter().map(|value| value / length).collect()
}

struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node with these models, and `HOST:PORT` of its gateway.
fn start(folder: &Path, models: &[&str]) -> (Node, String) {
    let table = |name: &&str| format!("[[models]]\npath = \"{}\"\nname = \"{name}\"\n", folder.join(name).display());
    let config = folder.join("node.toml");
    std::fs::write(&config, models.iter().map(table).collect::<String>()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-node"));
    command.arg("up").arg("--config").arg(&config).arg("--data-dir").arg(folder.join("data"));
    command.args(["--gateway", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--threads", "1"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let node = Node(child);
    let url =
        lines.by_ref().find_map(|line| Some(line.strip_prefix("ready gateway")?.split("url=").nth(1)?.to_owned()));
    for _ in models {
        assert!(lines.any(|line| line.starts_with("ready model")));
    }
    let address = url.unwrap().trim().trim_start_matches("http://").split('/').next().unwrap().to_owned();
    (node, address)
}

fn ask(address: &str, path: &str, body: &Value) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let body = body.to_string();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn a_text_becomes_the_vector_that_llama_cpp_gives() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = [("mean", "bert", 1), ("cls", "bert", 2), ("last", "qwen3", 3)];
    for (name, architecture, pooling) in kinds {
        write(&folder.path().join(name), architecture, pooling);
        assert_eq!(Pooling::of(pooling).unwrap().name(), name);
    }
    let (_node, address) = start(folder.path(), &kinds.map(|kind| kind.0));
    for (name, ..) in kinds {
        let asked = json!({"model": name, "input": ["sea is blue", "blue", [2, 5, 3]]});
        let (status, answer) = ask(&address, "/v1/embeddings", &asked);
        assert_eq!(status, 200, "{answer}");
        for (index, text) in ["sea is blue", "blue", "sea"].iter().enumerate() {
            let vector: Vec<f32> = serde_json::from_value(answer["data"][index]["embedding"].clone()).unwrap();
            let expected = directly(&folder.path().join(name), text);
            assert_eq!(vector.len(), DIMENSIONS as usize);
            let off = vector.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
            assert!(off < 1e-6, "{name}, {text}: off by {off}");
        }
        assert_ne!(answer["data"][0]["embedding"], answer["data"][1]["embedding"]);
        // A text stands between two tokens of the model's own.
        assert_eq!(answer["usage"]["prompt_tokens"], 5 + 3 + 3);

        let (status, short) = ask(&address, "/v1/embeddings", &json!({"model": name, "input": "sea", "dimensions": 8}));
        assert_eq!((status, short["data"][0]["embedding"].as_array().unwrap().len()), (200, 8));
    }
    let error = |path: &str, body: Value| {
        let (status, answer) = ask(&address, path, &body);
        (status, answer["error"]["param"].clone(), answer["error"]["code"].clone())
    };
    let long = json!({"model": "mean", "input": ["sea", "sea ".repeat(40)]});
    assert_eq!(error("/v1/embeddings", long), (400, json!("input[1]"), json!("context_length_exceeded")));
    let empty = json!({"model": "last", "input": ["sea", []]});
    assert_eq!(error("/v1/embeddings", empty), (400, json!("input[1]"), Value::Null));
    let unknown = json!({"model": "cls", "input": [[2, 99]]});
    assert_eq!(error("/v1/embeddings", unknown), (400, json!("input[0]"), Value::Null));
    let chat = json!({"model": "mean", "messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(error("/v1/chat/completions", chat), (400, json!("model"), json!("unsupported_parameter")));
}
