//! `inspect FILE`: what a model file is, and whether and where it can be split. Reads its header only, needs no node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use mesh_gguf::{Family, ModelInfo, Source};
use mesh_types::ByteSize;
use serde::Serialize;

use crate::cli::InspectArgs;

/// Bytes of a cached key's or value's number with the default `--kv-type`.
const KV_BYTES: u64 = 2;
/// Most single layers that are listed for people; the JSON has them all.
const LISTED: usize = 8;

/// Prints what `args` asks for.
///
/// # Errors
/// Where the file is no usable model.
pub fn run(args: &InspectArgs) -> Result<(), mesh_gguf::Error> {
    let report = Report::of(&args.file)?;
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
    /// Of all tensors.
    bytes: u64,
    /// Of what only the last stage holds.
    head_bytes: u64,
    layer_bytes: Vec<u64>,
    /// How many bytes of tensors there are of each type.
    types: BTreeMap<&'static str, u64>,
    /// What every layer's cache takes for 1000 tokens, in f16.
    kv_bytes_per_1000_tokens: Vec<u64>,
    split: Split,
}

/// Whether and where the model can be cut.
#[derive(Debug, Serialize)]
struct Split {
    possible: bool,
    /// Why not.
    reason: Option<String>,
    /// Layers with which a stage may begin.
    cuts: Vec<u32>,
    /// Whether the first stage has to keep the vocabulary.
    first_stage_takes_tokens: bool,
}

impl Report {
    fn of(path: &Path) -> Result<Self, mesh_gguf::Error> {
        let source = Source::open(path)?;
        let header = source.header();
        let info = ModelInfo::of(header)?;
        let mut types = BTreeMap::new();
        for tensor in header.tensors() {
            *types.entry(tensor.ggml_type().name()).or_insert(0u64) += tensor.n_bytes();
        }
        let kv = info.layer_kv.iter().map(|values| values.saturating_mul(KV_BYTES * 1000)).collect();
        Ok(Self {
            split: Split::of(&source, info.n_embd),
            name: info.name,
            family: info.architecture,
            layers: info.n_layer,
            extra_layers: info.n_nextn,
            embedding_length: info.n_embd,
            vocabulary: info.n_vocab,
            context_length: info.context_length,
            chat_template: info.chat_template.is_some(),
            bytes: info.total_bytes,
            head_bytes: info.head_bytes,
            layer_bytes: info.layer_bytes,
            types,
            kv_bytes_per_1000_tokens: kv,
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
        line("chat template", if self.chat_template { "yes" } else { "no" }.to_owned());
        line("weights", format!("{}, of which the head {}", ByteSize(self.bytes), ByteSize(self.head_bytes)));
        line("a layer", per_layer(&self.layer_bytes));
        let types = self.types.iter().map(|(name, bytes)| format!("{name} {}", ByteSize(*bytes)));
        line("types", types.collect::<Vec<_>>().join(", "));
        line("cache", format!("a layer and 1000 tokens, f16: {}", per_layer(&self.kv_bytes_per_1000_tokens)));
        line("split", self.split.text(self.layers));
        out
    }
}

impl Split {
    fn of(source: &Source, n_embd: u32) -> Self {
        let found = Family::of(source.header()).and_then(|family| {
            Ok((mesh_gguf::allowed_cuts(source.header())?, family.embedding_factor(n_embd).is_none()))
        });
        match found {
            Ok((cuts, tokens)) if !cuts.is_empty() => {
                Self { possible: true, reason: None, cuts, first_stage_takes_tokens: tokens }
            }
            Ok(_) => Self::impossible("there is no layer at which it could be cut".to_owned()),
            Err(error) => Self::impossible(error.to_string()),
        }
    }

    fn impossible(reason: String) -> Self {
        Self { possible: false, reason: Some(reason), cuts: Vec::new(), first_stage_takes_tokens: false }
    }

    fn text(&self, layers: u32) -> String {
        match &self.reason {
            Some(reason) => format!("no: {reason}"),
            None if self.cuts.len() as u32 + 1 == layers => "before every layer".to_owned(),
            None => format!("before layers {}", list(&self.cuts)),
        }
    }
}

/// One size where all layers have the same, else the smallest and the largest.
fn per_layer(bytes: &[u64]) -> String {
    match (bytes.iter().min(), bytes.iter().max()) {
        (Some(least), Some(most)) if least == most => ByteSize(*most).to_string(),
        (Some(least), Some(most)) => format!("{} to {}", ByteSize(*least), ByteSize(*most)),
        _ => "none".to_owned(),
    }
}

fn list(cuts: &[u32]) -> String {
    let shown: Vec<String> = cuts.iter().take(LISTED).map(u32::to_string).collect();
    let rest = if cuts.len() > LISTED { ", …" } else { "" };
    format!("{}{rest}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_file_is_described() {
        let path = mesh_engine::testkit::model_path(mesh_engine::testkit::GEMMA3);
        let report = Report::of(&path).unwrap();
        assert_eq!((report.layers, report.embedding_length, report.vocabulary), (18, 640, 262_144));
        assert!(report.split.possible && !report.split.first_stage_takes_tokens);
        assert_eq!(report.split.cuts.len(), 17);
        assert_eq!(report.types.values().sum::<u64>(), report.bytes);
        let text = report.text();
        assert!(text.contains("family         gemma3\n"), "{text}");
        assert!(text.contains("split          before every layer\n"), "{text}");
        // One head of 256 values each for keys and values.
        assert_eq!(report.kv_bytes_per_1000_tokens, vec![2 * 256 * 2 * 1000; 18]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["split"]["reason"], serde_json::Value::Null);
        assert_eq!(json["layer_bytes"].as_array().unwrap().len(), 18);
    }

    #[test]
    fn what_is_no_model_says_so() {
        let error = Report::of(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").as_path()).unwrap_err();
        assert!(error.to_string().contains("not a GGUF"), "{error}");
    }

    #[test]
    fn a_model_that_cannot_be_split_says_why() {
        let split = Split::impossible("it is one".to_owned());
        assert_eq!(split.text(4), "no: it is one");
        let split = Split { possible: true, reason: None, cuts: vec![4, 8], first_stage_takes_tokens: true };
        assert_eq!(split.text(12), "before layers 4, 8");
        assert_eq!(list(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), "1, 2, 3, 4, 5, 6, 7, 8, …");
    }
}
