//! `inspect FILE`: what a model file is, and whether and where it can be split. Reads its header only, needs no node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use mesh_chat::{Capability, ChatTemplate};
use mesh_engine::llama::{Compute, Limits};
use mesh_gguf::{Error, Family, Footprint, Header, ModelInfo, SlicePlan, Source};
use mesh_types::{ByteSize, LayerRange};
use serde::Serialize;

use crate::cli::InspectArgs;
use crate::serve::DEFAULT_CONTEXT;
use crate::supervisor::BATCH;

/// Most single layers, or runs of equal ones, that are listed for people; the JSON has them all.
const LISTED: usize = 8;

/// Prints what `args` asks for.
///
/// # Errors
/// Where the file is no usable model.
pub fn run(args: &InspectArgs) -> Result<(), Error> {
    let report = Report::of(args)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
        false => report.text(),
    };
    // A reader that has gone away is no failure of the inspection.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// What is known of a model file. Its JSON is stable: keys are added, not changed.
#[derive(Debug, Serialize)]
struct Report {
    /// `general.name`.
    name: Option<String>,
    /// `general.architecture`.
    family: String,
    layers: u32,
    /// Layers that predict further tokens; not counted in `layers`.
    extra_layers: u32,
    embedding_length: u32,
    vocabulary: u32,
    /// Tokens that it was trained to attend to.
    context_length: u32,
    chat_template: bool,
    /// How it would call tools, or what is wrong with its template.
    tools: String,
    /// Of all tensors.
    bytes: u64,
    /// Of what only the last stage holds.
    head_bytes: u64,
    layer_bytes: Vec<u64>,
    /// The type that most bytes of the layers are of.
    quantization: &'static str,
    /// How many bytes of tensors there are of each type.
    types: BTreeMap<&'static str, u64>,
    /// What every layer's cache takes for 1000 tokens.
    kv_bytes_per_1000_tokens: Vec<u64>,
    /// What every layer keeps of a sequence however long it is.
    state_bytes_per_sequence: Vec<u64>,
    memory: Memory,
    split: Split,
}

/// What the whole model would take.
#[derive(Debug, Serialize)]
struct Memory {
    /// Tokens in a sequence.
    ctx: u32,
    /// Sequences at the same time.
    parallel: u32,
    kv_type: &'static str,
    weights: u64,
    cache: u64,
    state: u64,
    /// What graphs need while they are computed, and logits on their way out.
    buffers: u64,
    total: u64,
}

impl Memory {
    fn of(info: &ModelInfo, args: &InspectArgs) -> Self {
        let own = info.context_length;
        let ctx = args.ctx.unwrap_or(DEFAULT_CONTEXT).min(own);
        let limits = Limits::for_parallel(args.parallel, ctx, BATCH, info);
        let compute = Compute { kv_type: args.kv_type, ..Compute::with_threads(1) };
        let all = LayerRange::new(0, info.n_layer);
        let found = all.map(|all| info.footprint(all, &limits.room(&compute))).unwrap_or_default();
        let Footprint { weights, cache, state, compute, output } = found;
        let (parallel, kv_type) = (args.parallel, args.kv_type.name());
        let buffers = compute.saturating_add(output);
        Self { ctx, parallel, kv_type, weights, cache, state, buffers, total: found.total() }
    }

    fn text(&self) -> String {
        let state = if self.state > 0 { format!(", state {}", ByteSize(self.state)) } else { String::new() };
        format!(
            "{} for {} of {} tokens: weights {}, cache in {} {}{state}, buffers {}",
            ByteSize(self.total),
            counted(self.parallel, "sequence"),
            self.ctx,
            ByteSize(self.weights),
            self.kv_type,
            ByteSize(self.cache),
            ByteSize(self.buffers)
        )
    }
}

/// Whether and where the model can be cut.
#[derive(Debug, Serialize)]
struct Split {
    possible: bool,
    /// Why not.
    reason: Option<String>,
    /// Layers with which a stage may begin.
    cuts: Vec<u32>,
    /// Numbers of layers that no stage may have.
    avoided_sizes: Vec<u32>,
    /// Whether the first stage has to keep the vocabulary.
    first_stage_takes_tokens: bool,
}

impl Report {
    fn of(args: &InspectArgs) -> Result<Self, Error> {
        let source = Source::open(&args.file)?;
        let header = source.header();
        let info = ModelInfo::of(header)?;
        let (mut types, mut of_layers) = (BTreeMap::new(), BTreeMap::new());
        for tensor in header.tensors() {
            let name = tensor.ggml_type().name();
            *types.entry(name).or_insert(0u64) += tensor.n_bytes();
            if tensor.name().starts_with("blk.") {
                *of_layers.entry(name).or_insert(0u64) += tensor.n_bytes();
            }
        }
        let cache_type = Limits::for_parallel(1, 1, 1, &info)
            .room(&Compute { kv_type: args.kv_type, ..Compute::with_threads(1) })
            .cache_type;
        let caches = || info.layer_cache.iter();
        Ok(Self {
            split: Split::of(&source, &info),
            memory: Memory::of(&info, args),
            kv_bytes_per_1000_tokens: caches()
                .map(|cache| cache.bytes_per_token(cache_type).saturating_mul(1000))
                .collect(),
            state_bytes_per_sequence: caches().map(|cache| cache.state_bytes()).collect(),
            chat_template: info.chat_template.is_some(),
            tools: tools(info.chat_template.as_deref()),
            quantization: of_layers.into_iter().max_by_key(|(_, bytes)| *bytes).map_or("none", |(name, _)| name),
            name: info.name,
            family: info.architecture,
            layers: info.n_layer,
            extra_layers: info.n_nextn,
            embedding_length: info.n_embd,
            vocabulary: info.n_vocab,
            context_length: info.context_length,
            bytes: info.total_bytes,
            head_bytes: info.head_bytes,
            layer_bytes: info.layer_bytes,
            types,
        })
    }

    fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |what: &str, value: String| {
            let _ = writeln!(out, "{what:<14} {value}");
        };
        if let Some(name) = &self.name {
            line("name", name.escape_debug().to_string());
        }
        line("family", self.family.escape_debug().to_string());
        let extra = match self.extra_layers {
            0 => String::new(),
            n => format!(", and {n} that predict further tokens"),
        };
        line("layers", format!("{}{extra}", self.layers));
        line("row", format!("{} values", self.embedding_length));
        line("vocabulary", format!("{} tokens", self.vocabulary));
        line("context", format!("{} tokens", self.context_length));
        line("chat template", if self.chat_template { "yes" } else { "none, so ChatML" }.to_owned());
        line("tools", self.tools.clone());
        line("weights", format!("{}, of which the head {}", ByteSize(self.bytes), ByteSize(self.head_bytes)));
        line("a layer", per_layer(&self.layer_bytes));
        if !self.types.is_empty() {
            let types = self.types.iter().map(|(name, bytes)| format!("{name} {}", ByteSize(*bytes)));
            line("types", format!("mostly {}: {}", self.quantization, types.collect::<Vec<_>>().join(", ")));
        }
        let cache = per_layer(&self.kv_bytes_per_1000_tokens);
        line("cache", format!("a layer and 1000 tokens in {}: {cache}", self.memory.kv_type));
        if self.state_bytes_per_sequence.iter().any(|bytes| *bytes > 0) {
            line("state", format!("a layer and sequence: {}", per_layer(&self.state_bytes_per_sequence)));
        }
        line("memory", self.memory.text());
        line("split", self.split.text(self.layers));
        out
    }
}

/// What the template can do, without the vocabulary that only serving needs.
fn tools(template: Option<&str>) -> String {
    match ChatTemplate::of_model(template, "", "") {
        Ok(template) => Capability::probe(&template).strategy.to_string(),
        Err(error) => format!("none: {error}"),
    }
}

impl Split {
    fn of(source: &Source, info: &ModelInfo) -> Self {
        Self::find(source.header(), info).unwrap_or_else(|error| Self::impossible(error.to_string()))
    }

    fn find(header: &Header, info: &ModelInfo) -> Result<Self, Error> {
        let family = Family::of(header)?;
        let (cuts, avoided) = (mesh_gguf::allowed_cuts(header)?, mesh_gguf::avoided_sizes(header)?);
        if cuts.is_empty() {
            return Ok(Self::impossible("there is no layer at which it could be cut".to_owned()));
        }
        // A file may have a header without the weights that belong to it.
        LayerRange::new(0, info.n_layer).map(|all| SlicePlan::new(header, all)).transpose()?;
        let first_stage_takes_tokens = family.embedding_factor(info.n_embd).is_none();
        let avoided_sizes = avoided.iter().copied().filter(|size| *size < info.n_layer).collect();
        Ok(Self { possible: true, reason: None, cuts, avoided_sizes, first_stage_takes_tokens })
    }

    fn impossible(reason: String) -> Self {
        let (cuts, avoided_sizes) = (Vec::new(), Vec::new());
        Self { possible: false, reason: Some(reason), cuts, avoided_sizes, first_stage_takes_tokens: false }
    }

    fn text(&self, layers: u32) -> String {
        let place = match &self.reason {
            Some(reason) => return format!("no: {reason}"),
            None if self.cuts.len() as u32 + 1 == layers => "yes, before every layer".to_owned(),
            None => format!("yes, before layers {}", list(&self.cuts)),
        };
        match self.avoided_sizes.as_slice() {
            [] => place,
            sizes => format!("{place}; no stage of {} layers", list(sizes)),
        }
    }
}

/// One size where all layers have the same, else that of each run of equal layers, or the smallest and the largest.
fn per_layer(bytes: &[u64]) -> String {
    let runs: Vec<&[u64]> = bytes.chunk_by(|one, next| one == next).collect();
    let (Some(least), Some(most)) = (bytes.iter().min(), bytes.iter().max()) else { return "none".to_owned() };
    if least == most {
        return ByteSize(*most).to_string();
    }
    if runs.len() > LISTED {
        return format!("{} to {}", ByteSize(*least), ByteSize(*most));
    }
    let mut first = 0;
    let named = runs.iter().map(|run| {
        let last = first + run.len() - 1;
        let layers = if first == last { first.to_string() } else { format!("{first}-{last}") };
        first = last + 1;
        format!("{} ({layers})", ByteSize(run[0]))
    });
    named.collect::<Vec<_>>().join(", ")
}

fn counted(n: u32, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn list(cuts: &[u32]) -> String {
    let shown: Vec<String> = cuts.iter().take(LISTED).map(u32::to_string).collect();
    let rest = if cuts.len() > LISTED { ", …" } else { "" };
    format!("{}{rest}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use kernels_ffi::KvType;

    use super::*;

    fn args(file: PathBuf) -> InspectArgs {
        InspectArgs { file, ctx: Some(4096), parallel: 4, kv_type: KvType::F16, json: false }
    }

    #[test]
    fn equal_layers_are_listed_together() {
        assert_eq!(per_layer(&[]), "none");
        assert_eq!(per_layer(&[1024; 4]), ByteSize(1024).to_string());
        let (small, large) = (ByteSize(1024), ByteSize(4096));
        assert_eq!(per_layer(&[1024, 4096, 4096, 1024]), format!("{small} (0), {large} (1-2), {small} (3)"));
        assert_eq!(per_layer(&[1024, 4096].repeat(9)), format!("{small} to {large}"));
    }

    #[test]
    fn a_real_file_is_described() {
        let args = args(mesh_engine::testkit::model_path(mesh_engine::testkit::GEMMA3));
        let report = Report::of(&args).unwrap();
        assert_eq!((report.layers, report.embedding_length, report.vocabulary), (18, 640, 262_144));
        assert!(report.split.possible && !report.split.first_stage_takes_tokens);
        assert_eq!(report.split.cuts.len(), 17);
        assert_eq!(report.types.values().sum::<u64>(), report.bytes);
        let text = report.text();
        assert!(text.contains("family         gemma3\n"), "{text}");
        assert!(text.contains("split          yes, before every layer\n"), "{text}");
        // One head of 256 values each for keys and values.
        assert_eq!(report.kv_bytes_per_1000_tokens, vec![2 * 256 * 2 * 1000; 18]);
        assert_eq!((report.memory.ctx, report.memory.cache), (4096, 18 * 2 * 256 * 2 * 4096 * 4));
        assert!(text.contains(" for 4 sequences of 4096 tokens: weights "), "{text}");
        let quantized = Report::of(&InspectArgs { kv_type: KvType::Q8_0, ctx: Some(1 << 30), ..args }).unwrap();
        assert_eq!(quantized.memory.ctx, 32_768, "no more than the model can");
        assert_eq!(quantized.kv_bytes_per_1000_tokens, vec![2 * 256 / 32 * 34 * 1000; 18]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["split"]["reason"], serde_json::Value::Null);
        assert_eq!(json["layer_bytes"].as_array().unwrap().len(), 18);
    }

    #[test]
    fn a_file_with_a_vocabulary_alone_cannot_be_split() {
        let source = Source::open(&mesh_engine::testkit::model_path(mesh_engine::testkit::SMOLLM2)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vocabulary.gguf");
        let header = Header::build(source.header().metadata().clone(), Vec::new()).unwrap();
        std::fs::write(&path, header.to_bytes()).unwrap();
        let text = Report::of(&args(path)).unwrap().text();
        assert!(text.contains("split          no: ") && text.contains("token_embd.weight"), "{text}");
        assert!(!text.contains("types"), "{text}");
    }

    #[test]
    fn what_is_no_model_says_so() {
        let error = Report::of(&args(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))).unwrap_err();
        assert!(error.to_string().contains("not a GGUF"), "{error}");
    }

    #[test]
    fn a_model_that_cannot_be_split_says_why() {
        let split = Split::impossible("it is one".to_owned());
        assert_eq!(split.text(4), "no: it is one");
        let mut split = Split { possible: true, cuts: vec![4, 8], reason: None, ..Split::impossible(String::new()) };
        assert_eq!(split.text(12), "yes, before layers 4, 8");
        split.avoided_sizes.push(5);
        assert_eq!(split.text(12), "yes, before layers 4, 8; no stage of 5 layers");
        assert_eq!(list(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), "1, 2, 3, 4, 5, 6, 7, 8, …");
    }
}
