//! A run whose tokens are drafted says what it would have said without drafts: greedy, seeded, penalised, constrained.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use kernels_ffi::Vocab;
use mesh_engine::chain::Chain;
use mesh_engine::llama::{Limits, LlamaStage};
use mesh_engine::testkit::{SMOLLM2, Split, load_all, model_path};
use mesh_engine::{Command, Frame, MicroBatch, Open, Output, Segment, SeqId, Stage, StageLink, StepId, Want};
use mesh_types::{Constraint, RequestId, Sampling, TokenId};

const PROMPT: &str = "<|im_start|>user\nName the planets, one a line.<|im_end|>\n<|im_start|>assistant\n";
const SCHEMA: &str = r#"{"type": "object", "properties": {"planets": {"type": "array", "items": {"type": "string"},
    "minItems": 3}}, "required": ["planets"], "additionalProperties": false}"#;
const TOKENS: usize = 32;

/// A link, and what of the run is computed.
struct Generation {
    link: StageLink,
    step: u64,
    prompt_len: usize,
    tokens: Vec<TokenId>,
}

impl Generation {
    async fn begin(stage: &dyn Stage, prompt: &[TokenId], open: &Open) -> Self {
        let link = stage.connect().await.unwrap();
        let mut generation = Self { link, step: 0, prompt_len: prompt.len(), tokens: Vec::new() };
        generation.command(Command::Open(Box::new(open.clone()))).await;
        let first = generation.compute(0, prompt, Want::Token).await;
        generation.tokens.extend(first);
        generation
    }

    async fn command(&mut self, command: Command) {
        self.link.input.send(Frame::Command(command)).await.unwrap();
    }

    async fn compute(&mut self, start: usize, tokens: &[TokenId], want: Want) -> Vec<TokenId> {
        let segment = Segment { seq: SeqId(0), start: start as u32, len: tokens.len() as u32, want };
        let batch =
            MicroBatch { step: StepId(self.step), segments: vec![segment], tokens: tokens.to_vec(), rows: None };
        self.step += 1;
        self.link.input.send(Frame::Batch(batch)).await.unwrap();
        let Frame::Result(result) = self.link.output.recv().await.unwrap().unwrap() else { panic!("no result") };
        let token = |output: Output| output.token.unwrap_or_else(|| panic!("{:?}", output.failure));
        result.outputs.into_iter().map(token).collect()
    }

    /// Draws behind the token drawn last and these drafts; says how many of them came true.
    async fn next(&mut self, drafts: &[TokenId]) -> usize {
        let start = self.prompt_len + self.tokens.len() - 1;
        let tokens = [&self.tokens[self.tokens.len() - 1..], drafts].concat();
        let want = if drafts.is_empty() { Want::Token } else { Want::Verified };
        let drawn = self.compute(start, &tokens, want).await;
        if drawn.len() <= drafts.len() {
            let len = (start + drawn.len()) as u32;
            self.command(Command::Truncate { seq: SeqId(0), len }).await;
        }
        self.tokens.extend(&drawn);
        drawn.len() - 1
    }
}

/// The tokens of a run, one step each.
async fn plainly(stage: &dyn Stage, vocab: &Vocab, prompt: &[TokenId], open: &Open) -> Vec<TokenId> {
    let mut generation = Generation::begin(stage, prompt, open).await;
    while generation.tokens.len() < TOKENS && !generation.tokens.last().is_some_and(|last| vocab.is_eog(last.0)) {
        generation.next(&[]).await;
    }
    generation.tokens
}

/// The same run with drafts of up to seven tokens, of which every eleventh token of the text is another one; and how many
/// drafts came true, and how many steps were cut short.
async fn ahead(stage: &dyn Stage, prompt: &[TokenId], open: &Open, text: &[TokenId]) -> (Vec<TokenId>, usize, usize) {
    let mut generation = Generation::begin(stage, prompt, open).await;
    let (mut came_true, mut cut_short) = (0, 0);
    while generation.tokens.len() < text.len() {
        let at = generation.tokens.len();
        let drafts: Vec<TokenId> = (at..text.len().min(at + at % 8))
            .map(|place| if place % 11 == 10 { TokenId(text[place].0 + 1) } else { text[place] })
            .collect();
        let held = generation.next(&drafts).await;
        came_true += held;
        cut_short += usize::from(held < drafts.len());
    }
    generation.tokens.truncate(text.len());
    (generation.tokens, came_true, cut_short)
}

fn runs(prompt: &[TokenId]) -> Vec<Open> {
    let open = |sampling| Open {
        max_tokens: 2 * TOKENS as u32,
        prompt_tail: prompt.to_vec(),
        ..Open::new(SeqId(0), RequestId::new("r"), prompt.len() as u32, sampling)
    };
    let seeded = |seed| Sampling { seed, ..Sampling::default() };
    let penalised = Sampling { repeat_penalty: 1.3, repeat_last_n: 64, presence_penalty: 0.5, ..seeded(5) };
    let constrained =
        Open { constraint: Some(Constraint::immediately(format!("start: %json {SCHEMA}"))), ..open(seeded(7)) };
    vec![open(Sampling::greedy()), open(seeded(3)), open(penalised), constrained]
}

#[tokio::test]
async fn drafts_change_no_token_of_any_run() {
    let limits = Limits { n_ctx: 128, n_seq: 2, n_batch: 64, n_cells: 256, n_parked: 0, n_states: 0 };
    let split = Split { limits, ..Split::small(SMOLLM2) };
    let vocab = Vocab::load(&model_path(SMOLLM2)).unwrap();
    let prompt: Vec<TokenId> = vocab.tokenize(PROMPT, false, true).unwrap().into_iter().map(TokenId).collect();
    let folder = tempfile::tempdir().unwrap();
    let whole = LlamaStage::load(split.unsplit().unwrap()).unwrap();
    let chain = Chain::new(load_all(split.at(&[12], folder.path()).unwrap()).unwrap()).unwrap();
    for stage in [&whole as &dyn Stage, &chain] {
        let (mut tokens, mut hold, mut cuts) = (0, 0, 0);
        for open in runs(&prompt) {
            let text = plainly(stage, &vocab, &prompt, &open).await;
            let (same, came_true, cut_short) = ahead(stage, &prompt, &open, &text).await;
            assert_eq!(same, text, "{:?}", open.sampling);
            (tokens, hold, cuts) = (tokens + text.len(), hold + came_true, cuts + cut_short);
        }
        // Of all together: how soon a run ends depends on how a processor rounds.
        assert!(hold > tokens / 2 && cuts > 0, "{hold} came true and {cuts} were cut short of {tokens}");
    }
}
