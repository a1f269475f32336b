//! For tests, here and in the crates above: real models, their slices, and proof that two ways to compute agree.
//!
//! Equality is exact, and on logits: greedy text may be equal while the logits are off by 11.
//! Start with [`Split`], [`Script::thorough`] and [`compare`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_gguf::{EmbeddingSource, ModelInfo, SlicePlan, Source};
use mesh_types::{LayerRange, ModelId, RequestId, Sampling, TokenId};

use crate::error::StageError;
use crate::frame::{Command, Frame, MicroBatch, Open, Segment, SeqId, StepId, Want};
use crate::llama::{Compute, Limits, LlamaStage, LlamaStageConfig, SliceOf};
use crate::sampling::{Draw, uniform};
use crate::stage::{Stage, StageLink};

/// File name of SmolLM2-135M-Instruct: 30 layers, rows of 576, 49152 tokens, tied head.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// File name of gemma-3-270m: 18 layers (every sixth attends to everything), rows of 640, 262144 tokens, scaled input.
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// The test model of this file name.
///
/// # Panics
/// Where it is not there, with how to fetch it.
pub fn model_path(name: &str) -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let folder = variable("MESH_TEST_MODELS").unwrap_or_else(|| cache().unwrap_or_default().join("mesh-node/models"));
    let path = folder.join(name);
    assert!(path.exists(), "{} is missing: `./dev models` fetches it", path.display());
    path
}

/// A model, and how its stages are loaded.
#[derive(Clone, Debug)]
pub struct Split {
    /// The whole model's file.
    pub path: PathBuf,
    /// For every stage.
    pub limits: Limits,
    /// For every stage.
    pub compute: Compute,
}

impl Split {
    /// The model of this file name with small limits (4 sequences of 64), two threads, and any row's logits.
    pub fn small(name: &str) -> Self {
        let limits = Limits { n_ctx: 64, n_seq: 4, n_batch: 32, n_cells: 256, n_parked: 64, n_states: 8 };
        let compute = Compute { max_logits_rows: limits.n_batch, ..Compute::with_threads(2) };
        Self { path: model_path(name), limits, compute }
    }

    /// The configuration of the whole model as one stage.
    ///
    /// # Errors
    /// [`StageError::Load`].
    pub fn unsplit(&self) -> Result<LlamaStageConfig, StageError> {
        LlamaStageConfig::unsplit(self.model(), &self.path, self.limits, self.compute.clone())
    }

    /// Writes the slices between `cuts` (the layers at which stages after the first begin) into `folder`; returns their
    /// configurations, in order.
    ///
    /// # Errors
    /// [`StageError::Load`].
    pub fn at(&self, cuts: &[u32], folder: &Path) -> Result<Vec<LlamaStageConfig>, StageError> {
        let source = Source::open(&self.path).map_err(load)?;
        let info = ModelInfo::of(source.header()).map_err(load)?;
        let embedding = EmbeddingSource::of(&source).map_err(load)?;
        let ends = cuts.iter().copied().chain([info.n_layer]);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let slice = |(start, end)| {
            let range = LayerRange::new(start, end).ok_or_else(|| load("cuts do not ascend"))?;
            let plan = SlicePlan::new(source.header(), range).map_err(load)?;
            let path = folder.join(format!("{range}.gguf"));
            plan.write(&source, &path, &mut |_| std::ops::ControlFlow::Continue(())).map_err(load)?;
            let of = SliceOf { model: self.model(), info: &info, plan: &plan, embedding: embedding.as_ref() };
            Ok(LlamaStageConfig::slice(of, &path, self.limits, self.compute.clone()))
        };
        starts.zip(ends).map(slice).collect()
    }

    fn model(&self) -> ModelId {
        ModelId::from_file_name(&self.path)
    }
}

/// Loads stages in this process.
///
/// # Errors
/// [`StageError::Load`].
pub fn load_all(configs: Vec<LlamaStageConfig>) -> Result<Vec<Arc<dyn Stage>>, StageError> {
    configs.into_iter().map(|config| Ok(Arc::new(LlamaStage::load(config)?) as Arc<dyn Stage>)).collect()
}

fn load(error: impl ToString) -> StageError {
    StageError::Load(error.to_string())
}

/// Frames for a stage of a whole model, with tokens that depend on nothing but their number. It keeps count of every
/// slot's positions.
#[derive(Debug)]
pub struct Script {
    frames: Vec<Frame>,
    lens: Vec<u32>,
    n_vocab: u32,
    n_tokens: u32,
    /// Where the numbering goes on after [`Script::back`].
    left_at: u32,
    n_steps: u64,
}

impl Script {
    /// An empty script.
    pub fn new(n_seq: u32, n_vocab: u32) -> Self {
        Self { frames: Vec::new(), lens: vec![0; n_seq as usize], n_vocab, n_tokens: 0, left_at: 0, n_steps: 0 }
    }

    /// All that a split must get right, for at least 4 slots of 64 positions and micro-batches of 32: prefill in chunks,
    /// decode, sequences of unequal lengths in shared batches, cutting back, sharing a prefix, closing and reopening.
    pub fn thorough(n_seq: u32, n_vocab: u32) -> Self {
        use Want::{Logits, Nothing, Token};
        let mut script = Self::new(n_seq, n_vocab);
        // One sequence: a prompt in three chunks, then token by token.
        script.open(0, 24).batch(&[(0, 16, Nothing)]).batch(&[(0, 7, Logits)]).batch(&[(0, 1, Token)]);
        script.batch(&[(0, 1, Logits)]).batch(&[(0, 1, Token)]);
        // Four of unequal lengths, prefill and decode in the same batch, in no particular order of slots.
        script.open(1, 8).open(2, 3).open(3, 11);
        script.batch(&[(3, 11, Token), (1, 8, Nothing), (0, 1, Token), (2, 3, Logits)]);
        script.batch(&[(2, 1, Token), (0, 1, Logits), (3, 1, Nothing), (1, 2, Token)]);
        script.batch(&[(1, 1, Logits), (3, 1, Token)]);
        // Cut back: into the prompt, and by one.
        script.truncate(0, 10).truncate(3, 12).batch(&[(0, 5, Nothing), (3, 3, Logits), (1, 1, Token)]);
        script.batch(&[(0, 1, Logits), (3, 1, Token)]);
        // A prefix shared by two slots, of which both go on differently.
        script.close(2).open(2, 9).copy(0, 2, 9).batch(&[(2, 1, Logits), (0, 1, Logits), (1, 1, Token)]);
        script.copy(1, 3, 4).batch(&[(3, 6, Token), (2, 1, Token), (1, 1, Logits)]);
        // A slot that starts over while the others go on.
        script.close(0).open(0, 20).batch(&[(1, 1, Token), (0, 20, Token), (2, 1, Logits)]);
        script.batch(&[(0, 1, Logits), (1, 1, Logits), (2, 1, Logits), (3, 1, Logits)]);
        script
    }

    /// The frames so far.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Opens a run whose tokens are drawn with a seed of its own.
    pub fn open(&mut self, seq: u32, prompt_len: u32) -> &mut Self {
        let sampling = Sampling { seed: 1000 + u64::from(seq), ..Sampling::default() };
        let request = RequestId::new(format!("run-{}", self.frames.len()));
        self.command(Command::Open(Box::new(Open::new(SeqId(seq), request, prompt_len, sampling))))
    }

    /// Adds a micro-batch of (slot, tokens, what to report), each segment following on what its slot holds.
    pub fn batch(&mut self, segments: &[(u32, u32, Want)]) -> &mut Self {
        let step = StepId(self.n_steps);
        self.n_steps += 1;
        let mut batch = MicroBatch { step, segments: Vec::new(), tokens: Vec::new(), rows: None };
        for &(seq, len, want) in segments {
            let held = &mut self.lens[seq as usize];
            batch.segments.push(Segment { seq: SeqId(seq), start: *held, len, want });
            *held += len;
            for _ in 0..len {
                let token = uniform(42, Draw::from(self.n_tokens)) * f64::from(self.n_vocab);
                batch.tokens.push(TokenId(token as i32));
                self.n_tokens += 1;
            }
        }
        self.frames.push(Frame::Batch(batch));
        self
    }

    /// Cuts a slot back.
    pub fn truncate(&mut self, seq: u32, len: u32) -> &mut Self {
        self.lens[seq as usize] = self.lens[seq as usize].min(len);
        self.command(Command::Truncate { seq: SeqId(seq), len })
    }

    /// Skips the tokens of the next `count` numbers, for a detour that another script does without: [`Script::back`]
    /// goes on with the number that comes now.
    pub fn ahead(&mut self, count: u32) -> &mut Self {
        self.left_at = self.n_tokens;
        self.n_tokens += count;
        self
    }

    /// The detour is over.
    pub fn back(&mut self) -> &mut Self {
        self.n_tokens = self.left_at;
        self
    }

    /// Keeps a state that a slot can be cut back to.
    pub fn checkpoint(&mut self, seq: u32) -> &mut Self {
        self.command(Command::Checkpoint { seq: SeqId(seq), len: self.lens[seq as usize] })
    }

    /// Gives one slot the beginning of another.
    pub fn copy(&mut self, from: u32, to: u32, len: u32) -> &mut Self {
        self.lens[to as usize] = self.lens[from as usize].min(len);
        self.command(Command::Copy { from: SeqId(from), to: SeqId(to), len })
    }

    /// Empties a slot.
    pub fn close(&mut self, seq: u32) -> &mut Self {
        self.lens[seq as usize] = 0;
        self.command(Command::Close { seq: SeqId(seq) })
    }

    fn command(&mut self, command: Command) -> &mut Self {
        self.frames.push(Frame::Command(command));
        self
    }
}

/// Sends `frames` through a new link and collects what comes home.
///
/// # Errors
/// What ended the link, where that is an error.
pub async fn run(stage: &dyn Stage, frames: &[Frame]) -> Result<Vec<Frame>, StageError> {
    let StageLink { input, mut output, tasks } = stage.connect().await?;
    let send = async move {
        for frame in frames {
            if input.send(frame.clone()).await.is_err() {
                break; // the link has ended, and says why at its other end
            }
        }
    };
    let receive = async {
        let mut answers = Vec::new();
        while let Some(answer) = output.recv().await {
            answers.push(answer?);
        }
        Ok(answers)
    };
    let ((), answers) = futures::join!(send, receive);
    drop(tasks);
    answers
}

/// How far two stages agreed.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Micro-batches that both computed.
    pub steps: usize,
    /// Tokens drawn by both.
    pub tokens: usize,
    /// Logits given by both.
    pub logits: usize,
    /// Largest difference of two logits; NaN where one is no number.
    pub largest_difference: f32,
    /// The first thing that is not equal bit by bit.
    pub mismatch: Option<String>,
}

/// Gives both stages the same frames and compares all that comes home, logits bit by bit.
///
/// # Errors
/// The end of either link, where that is an error.
pub async fn compare(one: &dyn Stage, other: &dyn Stage, frames: &[Frame]) -> Result<Comparison, StageError> {
    let answers = (run(one, frames).await?, run(other, frames).await?);
    let mut found = Comparison { steps: 0, tokens: 0, logits: 0, largest_difference: 0.0, mismatch: None };
    if answers.0.len() != answers.1.len() {
        found.differ(format!("{} answers and {}", answers.0.len(), answers.1.len()));
    }
    for pair in answers.0.iter().zip(&answers.1) {
        found.steps += 1;
        found.frames(pair);
    }
    Ok(found)
}

impl Comparison {
    fn differ(&mut self, what: String) {
        self.mismatch.get_or_insert(what);
    }

    fn frames(&mut self, pair: (&Frame, &Frame)) {
        let (Frame::Result(one), Frame::Result(other)) = pair else {
            return self.differ(format!("{:?} and {:?}", kind(pair.0), kind(pair.1)));
        };
        let step = one.step.0;
        if one.step != other.step || one.outputs.len() != other.outputs.len() {
            return self.differ(format!("step {step} has other outputs"));
        }
        for (a, b) in one.outputs.iter().zip(&other.outputs) {
            if (a.seq, a.position, a.token) != (b.seq, b.position, b.token) {
                self.differ(format!("step {step}: {:?} and {:?}", (a.seq, a.token), (b.seq, b.token)));
            }
            self.tokens += usize::from(a.token.is_some());
            let (a, b) = (a.logits.as_deref().unwrap_or_default(), b.logits.as_deref().unwrap_or_default());
            if a.len() != b.len() {
                self.differ(format!("step {step}: {} logits and {}", a.len(), b.len()));
            }
            self.logits += a.len();
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                if a.to_bits() != b.to_bits() {
                    self.differ(format!("step {step}: logit {index} is {a} and {b}"));
                    self.largest_difference = (a - b).abs().max(self.largest_difference);
                }
                if !a.is_finite() {
                    self.largest_difference = f32::NAN;
                    self.differ(format!("step {step}: logit {index} is {a}"));
                }
            }
        }
    }
}

fn kind(frame: &Frame) -> String {
    match frame {
        Frame::Batch(_) => "a batch".to_owned(),
        Frame::Command(_) => "a command".to_owned(),
        Frame::Result(_) => "a result".to_owned(),
        Frame::Failure(failure) => failure.reason.clone(),
    }
}
