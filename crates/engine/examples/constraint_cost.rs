//! What constraints cost, in microseconds: `cargo run --release -p mesh-engine --example constraint_cost [MODEL.gguf]`.
//!
//! Measured on the vocabulary alone; the texts are those that a model would generate.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kernels_ffi::Vocab;
use mesh_engine::constraint::{Enforcer, Lexicon};
use mesh_engine::testkit::{SMOLLM2, model_path};
use mesh_types::{Constraint, Start, TokenId};

const SCHEMA: &str = r#"{"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"},
    "lines": {"type": "array", "items": {"type": "integer"}}, "mode": {"enum": ["read", "write", "append"]}},
    "required": ["path", "mode"], "additionalProperties": false}"#;
const TOOLS: usize = 40;
const ANSWER: &str = r#"{"path": "src/constraint/tests.rs", "text": "A text of some length, with a \"quote\" and a line\nend in it, as they are written to files by agents all day long.", "lines": [1, 22, 333], "mode": "append"}"#;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).map_or_else(|| model_path(SMOLLM2), Into::into);
    let vocab = Vocab::load(&path).with_context(|| format!("cannot read {}", path.display()))?;
    println!("{} tokens", vocab.n_tokens());
    let (lexicon, took) = time(|| Lexicon::of(&vocab));
    report("read the vocabulary", took, 1);
    let mut enforcer = Enforcer::new(lexicon);
    let forced = Constraint::immediately(format!("start: %json {SCHEMA}"));
    let (opened, took) = time(|| enforcer.open(&forced, 10_000));
    opened?;
    report("open a first run (builds the trie)", took, 1);
    let (opened, took) = time(|| enforcer.open(&forced, 10_000));
    opened?;
    report("open a second run of this grammar", took, 1);
    // What an agent brings; no two of them alike, so that nothing is compiled once for several.
    let rules: Vec<String> = (0..TOOLS)
        .map(|tool| format!("t{tool}: %json {}", SCHEMA.replace("lines", &format!("lines_{tool}"))))
        .collect();
    let calls: Vec<String> = (0..TOOLS).map(|tool| format!("\"tool_{tool} \" t{tool}")).collect();
    let many = Constraint::immediately(format!("start: {}\n{}", calls.join(" | "), rules.join("\n")));
    let (opened, took) = time(|| enforcer.open(&many, 10_000));
    opened?;
    report(&format!("open a first run with {TOOLS} tools"), took, 1);
    let (opened, took) = time(|| enforcer.open(&many, 10_000));
    opened?;
    report("open a second run with them", took, 1);
    let tokens = vocab.tokenize(ANSWER, false, false)?;
    for (what, budget) in [("far from its budget", 10_000), ("near its budget", tokens.len() as u32 + 8)] {
        let (masks, takes) = walk(&mut enforcer, &forced, &tokens, budget)?;
        report(&format!("mask {what}"), masks, tokens.len());
        report(&format!("take {what}"), takes, tokens.len());
    }
    let auto = Constraint { start: Start::AtMarker(vec!["{\"path".into()]), ..forced };
    let prose = vocab.tokenize(&"Free text before a call. ".repeat(20), false, false)?;
    let (masks, takes) = walk(&mut enforcer, &auto, &prose, 10_000)?;
    report("mask and take in free text", masks + takes, prose.len());
    Ok(())
}

/// Time for all masks, and for taking all tokens.
fn walk(enforcer: &mut Enforcer, constraint: &Constraint, tokens: &[i32], budget: u32) -> Result<(Duration, Duration)> {
    let mut run = enforcer.open(constraint, budget)?;
    let mut logits = vec![0.0; 1 << 18];
    let (mut masks, mut takes) = (Duration::ZERO, Duration::ZERO);
    for token in tokens {
        let (masked, took) = time(|| run.restrict(&mut logits));
        masked?;
        masks += took;
        let (taken, took) = time(|| run.take(TokenId(*token)));
        anyhow::ensure!(taken? == mesh_engine::constraint::Taken::Yes, "token {token} was not possible");
        takes += took;
        logits.fill(0.0);
    }
    Ok((masks, takes))
}

fn time<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = f();
    (value, start.elapsed())
}

fn report(what: &str, took: Duration, times: usize) {
    println!("{:>10.1} µs  {what}", took.as_secs_f64() * 1e6 / times.max(1) as f64);
}
