//! What a real model generates under constraints, penalties and biases; split, and not.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use std::sync::Arc;

use kernels_ffi::Vocab;
use mesh_engine::chain::Chain;
use mesh_engine::child::{ChildCommand, ChildStage, Loaded, serve};
use mesh_engine::llama::{Limits, LlamaStage, LlamaStageConfig};
use mesh_engine::run::log_probabilities;
use mesh_engine::testkit::{SMOLLM2, Split, load_all, model_path, run};
use mesh_engine::{Command, DrawFailure, Frame, MicroBatch, Open, Output, Segment, SeqId, Stage, StepId, Want};
use mesh_types::{After, Constraint, RequestId, Sampling, Start, TokenId};
use serde_json::Value;

const ROLE: &str = "MESH_ENGINE_TEST_CONSTRAINT_CHILD";
const PROMPT: &str = "<|im_start|>user\nWhat is the weather in Paris?<|im_end|>\n<|im_start|>assistant\n";
const WEATHER: &str = r#"{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
    "unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["city", "unit"], "additionalProperties": false}"#;

/// Not a test of its own: what the children run.
#[test]
fn child_main() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    serve(|config: LlamaStageConfig| {
        let stage = LlamaStage::load(config)?;
        let weight_bytes = stage.weight_bytes();
        Ok(Loaded { stage: Arc::new(stage), weight_bytes })
    })
}

fn split() -> Split {
    let mut split = Split::small(SMOLLM2);
    split.limits = Limits { n_ctx: 256, n_seq: 4, n_batch: 64, n_cells: 1024, n_parked: 0, n_states: 0 };
    split
}

fn whole() -> LlamaStage {
    LlamaStage::load(split().unsplit().unwrap()).unwrap()
}

fn vocab() -> Vocab {
    Vocab::load(&model_path(SMOLLM2)).unwrap()
}

fn prompt(vocab: &Vocab) -> Vec<TokenId> {
    vocab.tokenize(PROMPT, false, true).unwrap().into_iter().map(TokenId).collect()
}

fn open(seq: u32, sampling: Sampling, prompt: &[TokenId]) -> Open {
    Open::new(SeqId(seq), RequestId::new("r"), prompt.len() as u32, sampling)
}

fn batch(step: u64, parts: &[(u32, u32, &[TokenId])], want: Want) -> Frame {
    let segment = |(seq, start, tokens): &(u32, u32, &[TokenId])| Segment {
        seq: SeqId(*seq),
        start: *start,
        len: tokens.len() as u32,
        want,
    };
    let segments = parts.iter().map(segment).collect();
    let tokens = parts.iter().flat_map(|(_, _, tokens)| tokens.iter().copied()).collect();
    Frame::Batch(MicroBatch { step: StepId(step), segments, tokens, rows: None })
}

fn outputs(frame: Frame) -> Vec<Output> {
    match frame {
        Frame::Result(result) => result.outputs,
        other => panic!("{other:?}"),
    }
}

/// What one run generates, up to an end token or `open.max_tokens`; and whether it ended.
async fn generate(stage: &dyn Stage, vocab: &Vocab, prompt: &[TokenId], open: Open) -> (Vec<TokenId>, bool) {
    let mut link = stage.connect().await.unwrap();
    let max_tokens = open.max_tokens;
    link.input.send(Frame::Command(Command::Open(Box::new(open)))).await.unwrap();
    let (mut generated, mut next) = (Vec::new(), prompt.to_vec());
    for step in 0..u64::from(max_tokens) {
        let start = prompt.len() + generated.len() - if step == 0 { prompt.len() } else { 1 };
        link.input.send(batch(step, &[(0, start as u32, &next)], Want::Token)).await.unwrap();
        let output = outputs(link.output.recv().await.unwrap().unwrap()).remove(0);
        let token = output.token.unwrap_or_else(|| panic!("{:?}", output.failure));
        if vocab.is_eog(token.0) {
            return (generated, true);
        }
        generated.push(token);
        next = vec![token];
    }
    (generated, false)
}

fn text(vocab: &Vocab, tokens: &[TokenId]) -> String {
    let tokens: Vec<i32> = tokens.iter().map(|token| token.0).collect();
    String::from_utf8_lossy(&vocab.detokenize(&tokens, true)).into_owned()
}

fn json(schema: &str) -> Constraint {
    Constraint::immediately(format!("start: %json {schema}"))
}

fn is_weather(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return false };
    let days = value.get("days").is_none_or(|days| days.as_f64().is_some_and(|days| days.fract() == 0.0));
    value["city"].is_string() && (value["unit"] == "celsius" || value["unit"] == "fahrenheit") && days
}

#[tokio::test]
async fn a_schema_holds_at_every_seed_and_budget() {
    let (stage, vocab) = (whole(), vocab());
    let prompt = prompt(&vocab);
    for seed in 0..6 {
        for (temperature, max_tokens) in [(0.0, 24 + 2 * seed as u32), (1.0, 24 + 2 * seed as u32), (1.5, 60)] {
            let sampling = Sampling { temperature, seed, ..Sampling::default() };
            let open = Open { max_tokens, constraint: Some(json(WEATHER)), ..open(0, sampling, &prompt) };
            let (tokens, ended) = generate(&stage, &vocab, &prompt, open).await;
            let text = text(&vocab, &tokens);
            assert!(is_weather(&text) && ended, "{seed} {temperature} {max_tokens}: {text}");
        }
    }
}

#[tokio::test]
async fn a_marker_begins_the_grammar_and_a_forbidden_one_never_comes() {
    let (stage, vocab) = (whole(), vocab());
    let prompt = prompt(&vocab);
    // A word that this model says of the weather sooner or later, and what it never says behind it.
    let marked = Constraint {
        start: Start::AtMarker(vec![" the".into(), " The".into()]),
        after: After::End,
        ..Constraint::immediately("start: (\" the\" | \" The\") \" [\" /[0-9]+/ \"]\"")
    };
    let forbidden = Constraint::forbidding(vec![" the".into(), "The".into()]);
    let mut begun = 0;
    for seed in 0..6 {
        let sampling = Sampling { seed, ..Sampling::default() };
        let run = |constraint: &Constraint| Open {
            max_tokens: 40,
            constraint: Some(constraint.clone()),
            ..open(0, sampling, &prompt)
        };
        let (tokens, ended) = generate(&stage, &vocab, &prompt, run(&marked)).await;
        let said = text(&vocab, &tokens);
        if let Some(at) = said.find(" the").into_iter().chain(said.find(" The")).min() {
            begun += 1;
            let number = said[at + 4..].strip_prefix(" [").and_then(|rest| rest.strip_suffix(']'));
            assert!(number.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit())) && ended, "{said:?}");
        }
        let (tokens, _) = generate(&stage, &vocab, &prompt, run(&forbidden)).await;
        let said = text(&vocab, &tokens);
        assert!(!said.contains(" the") && !said.contains("The"), "{said:?}");
    }
    assert!(begun >= 3, "the marker came {begun} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_model_is_constrained_as_a_whole_one() {
    let (one, vocab, folder) = (whole(), vocab(), tempfile::tempdir().unwrap());
    let prompt = prompt(&vocab);
    let configs = split().at(&[11], folder.path()).unwrap();
    let two = Chain::new(load_all(configs.clone()).unwrap()).unwrap();
    let command = ChildCommand {
        program: std::env::current_exe().unwrap(),
        args: ["child_main", "--exact", "--nocapture"].map(Into::into).to_vec(),
        env: vec![(ROLE.into(), "1".into())],
    };
    let first: Arc<dyn Stage> = Arc::new(LlamaStage::load(configs[0].clone()).unwrap());
    let last: Arc<dyn Stage> = Arc::new(ChildStage::spawn(command, &configs[1]).await.unwrap());
    let with_child = Chain::new(vec![first, last]).unwrap();
    for seed in 0..3 {
        let sampling = Sampling { seed, repeat_penalty: 1.1, frequency_penalty: 0.2, ..Sampling::default() };
        let open = Open {
            max_tokens: 40,
            constraint: Some(json(WEATHER)),
            logit_bias: vec![(TokenId(30), 2.0)],
            prompt_tail: prompt.clone(),
            ..open(0, sampling, &prompt)
        };
        let whole = generate(&one, &vocab, &prompt, open.clone()).await;
        assert!(is_weather(&text(&vocab, &whole.0)), "{}", text(&vocab, &whole.0));
        assert_eq!(generate(&two, &vocab, &prompt, open.clone()).await, whole);
        assert_eq!(generate(&with_child, &vocab, &prompt, open).await, whole);
    }
}

#[tokio::test]
async fn log_probabilities_are_those_of_the_rows_split_and_unsplit() {
    let (vocab, folder) = (vocab(), tempfile::tempdir().unwrap());
    let prompt = prompt(&vocab);
    let two = Chain::new(load_all(split().at(&[11], folder.path()).unwrap()).unwrap()).unwrap();
    let stages: [Arc<dyn Stage>; 2] = [Arc::new(whole()), Arc::new(two)];
    for stage in stages {
        let sampling = Sampling { presence_penalty: 1.0, ..Sampling::default() };
        let asked = Open { logprobs: Some(5), constraint: Some(json(WEATHER)), ..open(0, sampling, &prompt) };
        let plain = open(1, sampling, &prompt);
        let frames = [
            Frame::Command(Command::Open(Box::new(asked))),
            Frame::Command(Command::Open(Box::new(plain))),
            batch(0, &[(0, 0, &prompt)], Want::Token),
            batch(1, &[(1, 0, &prompt)], Want::Logits),
            Frame::Command(Command::Truncate { seq: SeqId(1), len: 0 }),
            batch(2, &[(1, 0, &prompt)], Want::Token),
        ];
        let mut answers = run(&*stage, &frames).await.unwrap().into_iter().map(|frame| outputs(frame).remove(0));
        let (drawn, rows, silent) = (answers.next().unwrap(), answers.next().unwrap(), answers.next().unwrap());
        let rows = rows.logits.unwrap();
        let last = &rows[rows.len() - vocab.n_tokens() as usize..];
        assert_eq!(drawn.logprobs, Some(log_probabilities(last, drawn.token.unwrap(), 5)));
        assert_eq!(silent.logprobs, None);
    }
}

#[tokio::test]
async fn a_run_that_cannot_be_constrained_fails_and_the_others_go_on() {
    let (stage, vocab) = (whole(), vocab());
    let prompt = prompt(&vocab);
    let broken = Some(Constraint::immediately("start: nothing"));
    let runs =
        [Open { constraint: broken, ..open(0, Sampling::greedy(), &prompt) }, open(1, Sampling::greedy(), &prompt)];
    let opens = runs.map(|run| Frame::Command(Command::Open(Box::new(run))));
    let both = batch(0, &[(0, 0, &prompt[..8]), (1, 0, &prompt[..8])], Want::Token);
    let frames = opens.into_iter().chain([both]).collect::<Vec<_>>();
    let answers = outputs(run(&stage, &frames).await.unwrap().remove(0));
    assert!(matches!(answers[0].failure, Some(DrawFailure::Invalid(_))) && answers[0].token.is_none());
    assert!(answers[1].failure.is_none() && answers[1].token.is_some());
}

#[tokio::test]
async fn a_run_that_was_cut_back_or_moved_says_the_same_again() {
    let (stage, vocab) = (whole(), vocab());
    let prompt = prompt(&vocab);
    let sampling = Sampling { seed: 5, temperature: 1.0, ..Sampling::default() };
    let constraint = Some(json(WEATHER));
    let opened = Open { max_tokens: 60, constraint, ..open(0, sampling, &prompt) };
    let (said, _) = generate(&stage, &vocab, &prompt, opened.clone()).await;
    let all = [prompt.clone(), said.clone()].concat();
    let (n, cut) = (prompt.len(), prompt.len() + said.len() / 2);
    // All at once, then cut back; and elsewhere, from the middle on.
    let moved = Open { generated: said[..cut - n].to_vec(), seq: SeqId(1), ..opened.clone() };
    let frames = [
        Frame::Command(Command::Open(Box::new(opened))),
        batch(0, &[(0, 0, &all[..n])], Want::Nothing),
        batch(1, &[(0, n as u32, &all[n..all.len() - 1])], Want::Token),
        Frame::Command(Command::Truncate { seq: SeqId(0), len: cut as u32 - 1 }),
        batch(2, &[(0, cut as u32 - 1, &all[cut - 1..cut])], Want::Token),
        Frame::Command(Command::Copy { from: SeqId(0), to: SeqId(1), len: cut as u32 - 1 }),
        Frame::Command(Command::Open(Box::new(moved))),
        batch(3, &[(1, cut as u32 - 1, &all[cut - 1..cut])], Want::Token),
    ];
    let answers = run(&stage, &frames).await.unwrap().into_iter().map(outputs);
    let drawn: Vec<TokenId> = answers.flatten().filter_map(|output| output.token).collect();
    assert_eq!(drawn, [all[all.len() - 1], all[cut], all[cut]]);
}
