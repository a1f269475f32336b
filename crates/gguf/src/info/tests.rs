use super::*;
use crate::craft::{Craft, model};

fn info(craft: &Craft) -> Result<ModelInfo, HeaderError> {
    ModelInfo::of(&Header::parse(&craft.file()).unwrap())
}

#[test]
fn facts_are_drawn_from_the_header() {
    let craft = model("llama", 3, true).u32("llama.attention.head_count_kv", 1).f32("general.sampling.temp", 0.25).key(
        "general.sampling.top_k",
        5,
        &64i32.to_le_bytes(),
    );
    let info = info(&craft).unwrap();
    assert_eq!((info.architecture.as_str(), info.name.as_deref()), ("llama", Some("crafted")));
    assert_eq!((info.n_layer, info.n_nextn, info.n_embd, info.n_vocab, info.context_length), (3, 0, 8, 40, 512));
    assert_eq!(info.chat_template.as_deref(), Some("{{ messages }}"));
    assert_eq!((info.sampling.temperature, info.sampling.top_k, info.sampling.top_p), (Some(0.25), Some(64), None));
    assert_eq!(info.layer_bytes, [(8 + 64) * 4; 3]);
    assert_eq!(info.head_bytes, (8 + 8 * 40) * 4);
    assert_eq!(info.total_bytes, 3 * 72 * 4 + (8 * 40 * 2 + 8 + 4) * 4);
    // One head of 8 / 2 values, for K and for V.
    assert_eq!(info.layer_cache, [LayerCache { keys: 4, values: 4, ..LayerCache::default() }; 3]);
}

#[test]
fn a_tied_head_counts_the_embedding() {
    let craft = model("llama", 1, false);
    assert_eq!(info(&craft).unwrap().head_bytes, (8 + 8 * 40) * 4);
}

#[test]
fn layers_that_predict_further_tokens_are_apart() {
    let info = info(&model("llama", 4, true).u32("llama.nextn_predict_layers", 1)).unwrap();
    assert_eq!((info.n_layer, info.n_nextn, info.n_layer_all()), (3, 1, 4));
    assert_eq!(info.layer_bytes.len(), 3);
    assert_eq!(info.head_bytes, (8 + 8 * 40 + 72) * 4);
}

#[test]
fn impossible_models_are_refused() {
    let base = || Craft::default().str("general.architecture", "llama").u32("llama.context_length", 8);
    let text = |craft: Craft| info(&craft).unwrap_err().to_string();
    assert!(text(Craft::default()).contains("`general.architecture` is missing"));
    assert!(text(base()).contains("`llama.block_count` is missing"));
    for count in [0, 513, u32::MAX] {
        assert!(text(base().u32("llama.block_count", count)).contains("out of range"));
    }
    let base = || base().u32("llama.block_count", 2).u32("llama.embedding_length", 8);
    assert!(text(base().u32("llama.nextn_predict_layers", 2)).contains("`llama.nextn_predict_layers` holds 2"));
    assert!(text(base()).contains("vocab_size"));
    let base = || base().u32("llama.vocab_size", 8);
    assert!(info(&base()).is_ok());
    assert!(text(base().u32s("llama.attention.head_count", &[1, 2, 3])).contains("3 entries for 2 layers"));
    assert!(text(base().tensor("blk.2.a", &[8], 0, 0)).contains("none of the model's 2 layers"));
    assert!(text(base().str("tokenizer.ggml.tokens", "x")).contains("where an array belongs"));
    assert!(text(base().f32("llama.context_length2", 1.0).u32("tokenizer.chat_template", 1)).contains("text"));
}

#[test]
fn only_plain_layer_names_are_layers() {
    assert_eq!(layer_of("blk.12.attn_q.weight"), Some((12, "attn_q.weight")));
    for other in ["blk.01.x", "blk.+1.x", "blk..x", "blk.1", "blk.4294967296.x", "output.weight"] {
        assert_eq!(layer_of(other), None, "{other}");
    }
}

#[test]
fn cuts_are_those_of_the_family() {
    let header = |architecture| Header::parse(&model(architecture, 4, false).file()).unwrap();
    assert_eq!(allowed_cuts(&header("llama")).unwrap(), [1, 2, 3]);
    let text = |architecture| allowed_cuts(&header(architecture)).unwrap_err().to_string();
    assert!(text("nonesuch").contains("`nonesuch` is not known to split exactly"));
    assert!(text("gemma3n").contains("`gemma3n` cannot be split"));
}
