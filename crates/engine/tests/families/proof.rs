//! The proof for one model file: all that a split must get right, against the model in one piece.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_engine::chain::Chain;
use mesh_engine::conformance::{self, Kit};
use mesh_engine::llama::{Compute, Limits, LlamaStage};
use mesh_engine::testkit::{Script, Split, load_all};
use mesh_engine::{Frame, Output, Stage, Want};
use mesh_gguf::family::Recurrent;
use mesh_gguf::{Error, Family, Header, ModelInfo, SlicePlan, Source};
use mesh_types::LayerRange;

/// What is proven, and how exactly.
pub(crate) struct Proof {
    /// The model.
    pub(crate) path: PathBuf,
    /// How it is computed, in turn: the model in one piece and its stages alike.
    pub(crate) ways: Vec<Compute>,
    /// Whether it is cut wherever it may be; else once in two and once in three.
    pub(crate) all_cuts: bool,
    /// How far apart logits may be, as a share of their spread: 0 is bit by bit, tokens included.
    pub(crate) within: f32,
    /// Whether the split model has to pass the kit of all stages as well, and how far apart its answers may be then, as
    /// a share of the logits' spread.
    pub(crate) kit_within: Option<f32>,
}

const LIMITS: Limits = Limits { n_ctx: 64, n_seq: 4, n_batch: 32, n_cells: 256, n_parked: 0, n_states: 8 };

impl Proof {
    /// Bit by bit, on the processor.
    pub(crate) fn exact(path: PathBuf, compute: Compute, all_cuts: bool) -> Self {
        Self { path, ways: vec![compute], all_cuts, within: 0.0, kit_within: None }
    }

    /// Proves it, and says at which cuts; none: the family allows none in a model like this.
    pub(crate) async fn run(&self) -> Vec<String> {
        let source = Source::open(&self.path).unwrap();
        let header = source.header();
        assert_every_range_is_decided(header);
        let cuts = cuts_to_try(header, self.all_cuts);
        for compute in &self.ways {
            self.run_on(compute, header, &cuts).await;
        }
        let names = |cuts: &Vec<u32>| cuts.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        cuts.iter().map(names).collect()
    }

    async fn run_on(&self, compute: &Compute, header: &Header, cuts: &[Vec<u32>]) {
        let split = with_logits(&self.path, compute);
        let whole = LlamaStage::load(split.unsplit().unwrap()).unwrap();
        let n_vocab = whole.spec().n_vocab;
        let recurrent = Family::of(header).unwrap().recurrent != Recurrent::Never;
        assert_eq!(whole.spec().cuts_back, !recurrent);
        let scripts = Scripts::of(recurrent, n_vocab);
        let expected = outputs(&whole, &scripts.whole).await;
        assert_eq!(counts(&expected), if recurrent { (6, 30) } else { (14, 25) }, "tokens and rows of logits");
        assert_tells_tokens_apart(&expected, n_vocab);

        for cuts in cuts {
            let what = format!("cut at {cuts:?}, {:?} layers on {:?}", compute.gpu_layers, compute.device);
            let slices = tempfile::tempdir().unwrap();
            let chain = Chain::new(load_all(split.at(cuts, slices.path()).unwrap()).unwrap()).unwrap();
            assert_agree(&expected, &outputs(&chain, &scripts.split).await, self.within, &what);
            if recurrent {
                let cells = self.kit_within.unwrap_or(0.001);
                assert_set_back(&whole, &chain, (self.within, cells), &what).await;
            }
            if let Some(within) = self.kit_within.filter(|_| cuts.len() > 1) {
                let tokens = [3, 41, 99, 150].map(|token| token % n_vocab.cast_signed());
                let kit = Kit::new(tokens).with_tolerance(within * spread(all_logits(&expected)));
                let found = conformance::check(&chain, &Kit { deadline: Duration::from_secs(120), ..kit }).await;
                assert!(found.is_ok(), "{what}: {found:#?}");
            }
        }
    }

    /// What is reckoned from the header is what llama.cpp allocates, here with a larger cache and batch: weights, cache
    /// and states to the precision of its log, and everything together within a quarter.
    pub(crate) fn assert_reckoned(&self) {
        let limits = Limits { n_ctx: 1024, n_batch: 256, n_cells: 4096, ..LIMITS };
        let split = Split { path: self.path.clone(), limits, compute: self.ways[0].clone() };
        let info = ModelInfo::of(Source::open(&split.path).unwrap().header()).unwrap();
        let stage = LlamaStage::load(split.unsplit().unwrap()).unwrap();
        let reckoned = info.footprint(stage.spec().layers, &limits.room(&split.compute));
        let (found, weights) = (stage.allocated(), stage.weight_bytes());
        assert_eq!(reckoned.weights, weights);
        for (reckoned, found) in [(reckoned.cache, found.cache), (reckoned.state, found.state)] {
            assert!(reckoned.abs_diff(found) < 20_000, "{reckoned} bytes reckoned, {found} allocated");
        }
        let ratio = reckoned.total() as f64 / (found.total() + weights) as f64;
        assert!((0.75..1.25).contains(&ratio), "{reckoned:?}, and {found:?} beside weights");
    }
}

/// How far apart a model in one piece is, computed in two ways: the largest difference of two logits, as a share of their
/// spread.
pub(crate) async fn apart(path: &Path, one: &Compute, other: &Compute) -> f32 {
    let recurrent = Family::of(Source::open(path).unwrap().header()).unwrap().recurrent != Recurrent::Never;
    let whole = |compute: &Compute| LlamaStage::load(with_logits(path, compute).unsplit().unwrap()).unwrap();
    let (one, other) = (whole(one), whole(other));
    let script = Scripts::of(recurrent, one.spec().n_vocab).whole;
    let (expected, found) = (outputs(&one, &script).await, outputs(&other, &script).await);
    let largest = all_logits(&expected).zip(all_logits(&found)).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp);
    largest.unwrap() / spread(all_logits(&expected))
}

/// The model, and any row's logits of it.
fn with_logits(path: &Path, compute: &Compute) -> Split {
    let compute = Compute { max_logits_rows: LIMITS.n_batch, ..compute.clone() };
    Split { path: path.to_owned(), limits: LIMITS, compute }
}

/// What a model is given to compute.
struct Scripts {
    /// In one piece.
    whole: Script,
    /// Split.
    split: Script,
}

impl Scripts {
    /// Recurrent layers in a split are computed sequence by sequence, so that is what the whole model is given.
    fn of(recurrent: bool, n_vocab: u32) -> Self {
        let script = |shared| if recurrent { onward(n_vocab, shared) } else { Script::thorough(LIMITS.n_seq, n_vocab) };
        Self { whole: script(false), split: script(true) }
    }
}

/// What recurrent layers can do: prefill in chunks, decode, sequences of unequal length, copying whole ones, starting
/// over; but no cutting back. Several sequences share a micro-batch, or every one comes in its own.
fn onward(n_vocab: u32, shared: bool) -> Script {
    use Want::{Logits, Nothing, Token};
    let mut script = Script::new(4, n_vocab);
    let add = |script: &mut Script, segments: &[(u32, u32, Want)]| {
        segments.chunks(if shared { segments.len() } else { 1 }).for_each(|part| {
            script.batch(part);
        });
    };
    script.open(0, 24);
    add(&mut script, &[(0, 16, Nothing)]);
    add(&mut script, &[(0, 7, Logits)]);
    add(&mut script, &[(0, 1, Token)]);
    script.open(1, 8).open(2, 3).open(3, 11);
    add(&mut script, &[(3, 11, Token), (1, 8, Nothing), (0, 1, Token), (2, 3, Logits)]);
    add(&mut script, &[(2, 1, Token), (0, 1, Logits), (3, 1, Nothing), (1, 2, Token)]);
    script.close(2).open(2, 26).copy(0, 2, 26);
    add(&mut script, &[(2, 1, Logits), (0, 1, Logits), (1, 5, Logits)]);
    script.close(0).open(0, 9);
    add(&mut script, &[(1, 1, Token), (0, 9, Logits), (2, 2, Logits), (3, 1, Logits)]);
    script
}

/// A sequence that cannot be cut back is set back to a checkpoint, and goes on as if the rest had never been: in the
/// split as in a whole model that never read the rest.
async fn assert_set_back(whole: &dyn Stage, split: &dyn Stage, (within, cells): (f32, f32), what: &str) {
    use Want::{Logits, Nothing};
    let n_vocab = whole.spec().n_vocab;
    let (mut straight, mut astray) = (Script::new(4, n_vocab), Script::new(4, n_vocab));
    for (script, strays) in [(&mut straight, false), (&mut astray, true)] {
        script.batch(&[(0, 9, Nothing)]).batch(&[(1, 5, Nothing)]);
        if strays {
            script.checkpoint(0).copy(0, 2, 9).checkpoint(1).ahead(100);
            script
                .batch(&[(0, 7, Nothing)])
                .batch(&[(1, 1, Nothing)])
                .batch(&[(0, 1, Nothing)])
                .batch(&[(2, 6, Nothing)]);
            // A copy can be set back to what its source was.
            script.truncate(0, 9).truncate(1, 5).truncate(2, 9).back();
        } else {
            script.copy(0, 2, 9);
        }
        script.batch(&[(0, 4, Logits)]).batch(&[(1, 3, Logits)]).batch(&[(2, 2, Logits)]).batch(&[(0, 1, Logits)]);
    }
    let (expected, found) = (outputs(whole, &astray).await, outputs(split, &astray).await);
    assert_eq!(expected.len(), 4, "{what}");
    assert_agree(&expected, &found, within, &format!("{what}, set back"));
    // Other cells of the cache are in use than if the rest had never been, which may move the last bits.
    assert_agree(&outputs(whole, &straight).await, &found, cells, &format!("{what}, against never astray"));
}

/// Tokens drawn, and rows of logits where all have `n_vocab` values.
fn counts(outputs: &[Output]) -> (usize, usize) {
    let tokens = outputs.iter().filter(|output| output.token.is_some()).count();
    let logits: usize = outputs.iter().filter_map(|output| output.logits.as_ref()).map(Vec::len).sum();
    let row = outputs.iter().filter_map(|output| output.logits.as_ref()).map(Vec::len).min().unwrap_or(1);
    (tokens, logits / row)
}

fn all_logits(outputs: &[Output]) -> impl Iterator<Item = f32> {
    outputs.iter().flat_map(|output| output.logits.iter().flatten().copied())
}

fn assert_agree(expected: &[Output], found: &[Output], within: f32, what: &str) {
    assert_eq!(expected.len(), found.len(), "{what}");
    let allowed = within * spread(all_logits(expected));
    for (a, b) in expected.iter().zip(found) {
        assert_eq!((a.seq, a.position), (b.seq, b.position), "{what}");
        assert!(within > 0.0 || a.token == b.token, "{what}: another token at {} of slot {}", a.position, a.seq.0);
        let pairs = a.logits.iter().flatten().zip(b.logits.iter().flatten());
        assert_eq!(a.logits.as_ref().map(Vec::len), b.logits.as_ref().map(Vec::len), "{what}");
        for (a_logit, b_logit) in pairs {
            let same = if within > 0.0 {
                (a_logit - b_logit).abs() <= allowed
            } else {
                a_logit.to_bits() == b_logit.to_bits()
            };
            let place = format!("at {} of slot {}", a.position, a.seq.0);
            assert!(a_logit.is_finite() && same, "{what}: {b_logit} where {a_logit} belongs {place}");
        }
    }
}

async fn outputs(stage: &dyn Stage, script: &Script) -> Vec<Output> {
    let frames = mesh_engine::testkit::run(stage, script.frames()).await.unwrap();
    let outputs = |frame| match frame {
        Frame::Result(result) => result.outputs,
        other => panic!("{other:?}"),
    };
    frames.into_iter().flat_map(outputs).collect()
}

/// Every way to cut in two, and many to cut in three, that the table allows; or one of each.
fn cuts_to_try(header: &Header, all: bool) -> Vec<Vec<u32>> {
    let n_layer = ModelInfo::of(header).unwrap().n_layer;
    let fits = |cuts: &[u32]| {
        let ends = cuts.iter().copied().chain([n_layer]);
        let mut stages = std::iter::once(0).chain(cuts.iter().copied()).zip(ends);
        stages.all(|(start, end)| mesh_gguf::check_range(header, LayerRange::new(start, end).unwrap()).is_ok())
    };
    let mut single: Vec<Vec<u32>> = (1..n_layer).map(|cut| vec![cut]).filter(|cuts| fits(cuts)).collect();
    let pairs = (1..n_layer).flat_map(|first| (first + 1..n_layer).map(move |second| vec![first, second]));
    let mut double: Vec<Vec<u32>> = pairs.filter(|cuts| fits(cuts) && uneven(cuts, n_layer)).collect();
    if !all && !single.is_empty() && !double.is_empty() {
        single = vec![single.swap_remove(single.len() / 3)];
        double = vec![double.swap_remove(double.len() / 2)];
    }
    let step = double.len().div_ceil(24).max(1);
    single.into_iter().chain(double.into_iter().step_by(step)).collect()
}

/// Whether not all three stages have the same number of layers.
fn uneven(cuts: &[u32], n_layer: u32) -> bool {
    cuts[1] != 2 * cuts[0] || n_layer != 3 * cuts[0]
}

/// Every range of layers is a stage that can be planned, or is refused by name, and never more than that; and whatever
/// stages are made of the cuts that a planner is told, the slicer makes them (but for sizes that it is told as well).
fn assert_every_range_is_decided(header: &Header) {
    let n_layer = ModelInfo::of(header).unwrap().n_layer;
    let avoided = mesh_gguf::avoided_sizes(header).unwrap();
    let mut edges = mesh_gguf::allowed_cuts(header).unwrap();
    edges.extend([0, n_layer]);
    for range in (0..n_layer).flat_map(|start| (start + 1..=n_layer).filter_map(move |end| LayerRange::new(start, end)))
    {
        let told = edges.contains(&range.start()) && edges.contains(&range.end()) && !avoided.contains(&range.len());
        match (mesh_gguf::check_range(header, range), SlicePlan::new(header, range)) {
            (Ok(()), Ok(plan)) => assert_eq!(plan.range(), range),
            (Err(refused @ Error::Range { .. }), Err(same)) => {
                assert!(!told, "{range} is made of allowed cuts: {refused}");
                assert_eq!(refused.to_string(), same.to_string());
                assert!(refused.to_string().contains(&range.to_string()), "{refused}");
            }
            other => panic!("{range}: {other:?}"),
        }
    }
}

/// Equal logits prove nothing of a model whose logits are all the same.
fn assert_tells_tokens_apart(outputs: &[Output], n_vocab: u32) {
    let logits: Vec<f32> = outputs.iter().filter_map(|output| output.logits.as_ref()).flatten().copied().collect();
    let rows: Vec<&[f32]> = logits.chunks_exact(n_vocab as usize).collect();
    assert!(spread(rows[0].iter().copied()) > 1e-3, "its logits are flat");
    assert!(spread(rows.iter().map(|row| row[0])) > 1e-4, "its logits do not depend on what it reads");
}

fn spread(values: impl Iterator<Item = f32>) -> f32 {
    let (low, high) = values.fold((f32::MAX, f32::MIN), |(low, high), value| (low.min(value), high.max(value)));
    high - low
}
