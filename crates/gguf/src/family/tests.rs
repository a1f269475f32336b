use super::kinds::is_sliding;
use super::*;
use crate::craft::{Craft, model};

const NO_CUTS: [u32; 0] = [];

fn row(architecture: &str) -> &'static Family {
    FAMILIES.iter().find(|row| row.architecture == architecture).unwrap()
}

fn range(start: u32, end: u32) -> LayerRange {
    LayerRange::new(start, end).unwrap()
}

fn header(craft: &Craft) -> Header {
    Header::parse(&craft.file()).unwrap()
}

fn cuts(craft: &Craft) -> Vec<u32> {
    crate::allowed_cuts(&header(craft)).unwrap()
}

fn refusal(craft: &Craft, start: u32, end: u32) -> String {
    crate::check_range(&header(craft), range(start, end)).unwrap_err().to_string()
}

#[test]
fn a_family_is_in_one_table_only() {
    let mut names: Vec<&str> = FAMILIES.iter().map(|row| row.architecture).chain(REFUSED.iter().map(|r| r.0)).collect();
    names.sort_unstable();
    let twice: Vec<&str> = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    assert_eq!(twice, ["gemma4"], "only where conditions tell the rows apart");
}

#[test]
fn a_boundary_taps_the_stages_own_last_layer() {
    assert_eq!(row("llama").boundary(7), Boundary { tap: "l_out-6".to_owned(), inject: None, keeps_rows: false });
    assert_eq!(
        row("gemma").boundary(1),
        Boundary { tap: "l_out-0".to_owned(), inject: Some(Inject::Behind("inp_scaled")), keeps_rows: false }
    );
    assert_eq!(row("step35").boundary(3).tap, "h_nextn");
}

#[test]
fn rows_of_gemma3_are_scaled_in_f32() {
    assert_eq!(row("llama").embedding_factor(640), Some(1.0));
    assert_eq!(row("gemma3").embedding_factor(640), Some(640f32.sqrt()));
}

#[test]
fn the_factor_on_queries_is_that_of_the_whole_model() {
    let factor = |layers, start, end| {
        let craft = model("gemma3", layers, true);
        crate::SlicePlan::new(&header(&craft), range(start, end)).unwrap().query_factor()
    };
    let n_embd = ModelInfo::of(&header(&model("gemma3", 62, true))).unwrap().n_embd;
    assert_eq!(factor(62, 0, 20), Some(1.0 / ((n_embd / 2) as f32).sqrt()));
    assert_eq!(factor(62, 20, 62), factor(62, 0, 20));
    assert_eq!(factor(62, 0, 62), None, "llama.cpp derives it itself");
    assert_eq!(factor(34, 0, 20), None);
    assert!(refusal(&model("gemma3", 64, true), 0, 62).contains("cannot have 62 layers"));
}

#[test]
fn ranges_are_checked() {
    let check = |craft: &Craft, start, end| crate::check_range(&header(craft), range(start, end));
    assert!(refusal(&model("llama", 30, true), 3, 31).contains("does not have them"));
    assert!(check(&model("llama", 30, true), 3, 30).is_ok());
    assert_eq!(cuts(&model("llama", 4, true)), [1, 2, 3]);

    // EXAONE's 32B: its 64 layers decide which of them have windows.
    assert!(check(&model("exaone4", 64, true), 0, 64).is_ok());
    assert!(check(&model("exaone4", 64, true), 0, 31).is_err());
    assert!(refusal(&model("exaone4", 66, true), 0, 64).contains("cannot have 64 layers"));
    let error = crate::allowed_cuts(&header(&model("exaone4", 64, true))).unwrap_err().to_string();
    assert!(error.contains("64 layers") && error.contains("unsplit"), "{error}");

    // The whole of any model is a stage.
    assert!(check(&model("nonesuch", 4, true), 0, 4).is_ok());
    assert!(refusal(&model("nonesuch", 4, true), 0, 3).contains("nonesuch"));
    assert!(refusal(&model("rwkv7", 4, true), 0, 3).contains("more than one row"));
}

#[test]
fn periods_built_into_llama_cpp_bound_the_cuts() {
    assert_eq!(cuts(&model("smollm3", 9, true)), [4, 8]);
    assert!(refusal(&model("smollm3", 9, true), 3, 8).contains("multiples of 4 only, not at layer 3"));
    let moe = |step| model("ernie4_5-moe", 13, true).u32("ernie4_5-moe.interleave_moe_layer_step", step);
    assert_eq!(cuts(&moe(3)), [3, 6, 9, 12]);
    assert_eq!(cuts(&moe(u32::MAX)), NO_CUTS);
    assert_eq!(cuts(&moe(0)).len(), 12);
    let llama4 = |step| {
        model("llama4", 30, true)
            .u32("llama4.interleave_moe_layer_step", step)
            .u32("llama4.attention.sliding_window", 8192)
    };
    assert_eq!(cuts(&llama4(1)), [4, 8, 12, 16, 20, 24]);
    assert_eq!(cuts(&llama4(6)), [12, 24]);
}

#[test]
fn every_stage_has_layers_of_both_kinds_where_it_must() {
    // Sliding, sliding, sliding, full.
    let cohere2 = model("cohere2", 10, true);
    assert_eq!(cuts(&cohere2), [4]);
    let period = |period| model("cohere2", 8, true).u32("cohere2.attention.sliding_window_pattern", period);
    assert_eq!(cuts(&period(2)), [2, 4, 6]);
    assert_eq!(cuts(&period(0)), NO_CUTS);
    assert!(crate::check_range(&header(&cohere2), range(3, 7)).is_ok());
    assert!(refusal(&cohere2, 0, 3).contains("sliding window and one without"));
    let explicit = |flags: &[u8]| {
        model("mimo2", 8, true).array("mimo2.attention.sliding_window_pattern", 7, flags.len() as u64, flags)
    };
    assert_eq!(cuts(&explicit(&[0, 1, 1, 1, 0, 1, 0, 0])), [2, 5]);
    assert_eq!(cuts(&explicit(&[1, 1, 1, 1, 1, 1, 1, 0])), NO_CUTS);
    let text = crate::allowed_cuts(&header(&explicit(&[0, 1]))).unwrap_err().to_string();
    assert!(text.contains("2 entries for 8 layers"), "{text}");
    assert!(crate::allowed_cuts(&header(&model("mimo2", 8, true))).unwrap_err().to_string().contains("missing"));
}

#[test]
fn recurrent_layers_bound_the_cuts() {
    assert_eq!(cuts(&model("mamba", 4, true)), [1, 2, 3]);
    let qwen = |interval| model("qwen3next", 12, true).u32("qwen3next.full_attention_interval", interval);
    assert_eq!(cuts(&model("qwen3next", 12, true)), [4, 8]);
    assert_eq!(cuts(&qwen(3)), [3, 6, 9]);
    assert!(refusal(&qwen(3), 0, 2).contains("recurrence"));
    assert!(crate::check_range(&header(&qwen(3)), range(4, 6)).is_ok());
    assert!(refusal(&qwen(0), 0, 3).contains("full_attention_interval"));
    let explicit = model("qwen3next", 6, true).array("qwen3next.attention.recurrent_layers", 7, 6, &[1, 0, 1, 1, 0, 0]);
    assert_eq!(cuts(&explicit), [2]);

    let lfm2 = model("lfm2", 8, true).u32s("lfm2.attention.head_count_kv", &[0, 0, 2, 0, 2, 0, 0, 2]);
    assert_eq!(cuts(&lfm2), [3, 5]);
    assert_eq!(cuts(&model("lfm2", 8, true)), NO_CUTS);
}

#[test]
fn layers_of_a_third_kind_do_not_count() {
    let craft = model("nemotron_h", 6, true).u32s("nemotron_h.attention.head_count_kv", &[0, 0, 2, 0, 0, 2]);
    let bytes = craft.file();
    let key = b"nemotron_h.feed_forward_length";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4 + 4 + 8;
    let mut bytes = bytes;
    // State, feed-forward, attention, feed-forward, state, attention.
    for (layer, width) in [0u32, 9, 0, 9, 0, 0].into_iter().enumerate() {
        bytes[at + 4 * layer..][..4].copy_from_slice(&width.to_le_bytes());
    }
    let header = Header::parse(&bytes).unwrap();
    assert_eq!(crate::allowed_cuts(&header).unwrap(), [3]);
    assert!(crate::check_range(&header, range(0, 2)).is_err());
    assert!(crate::check_range(&header, range(3, 6)).is_ok());
}

#[test]
fn no_stage_begins_with_a_layer_without_heads_where_each_has_its_own_number() {
    let craft = Craft::default()
        .str("general.architecture", "jamba")
        .u32("jamba.block_count", 6)
        .u32("jamba.context_length", 64)
        .u32("jamba.embedding_length", 8)
        .u32s("jamba.attention.head_count", &[4, 0, 4, 0, 4, 0])
        .u32s("jamba.attention.head_count_kv", &[2, 0, 2, 0, 2, 0])
        .f32s("token_embd.weight", &[8, 40]);
    assert_eq!(cuts(&craft), [2, 4]);
    assert!(refusal(&craft, 3, 6).contains("first layer"));
}

#[test]
fn conditions_are_checked() {
    let text = |craft: &Craft| Family::of(&header(craft)).map(|row| row.architecture).map_err(|e| e.to_string());
    assert_eq!(text(&model("nanbeige", 4, true)), Ok("nanbeige"));
    assert_eq!(text(&model("nanbeige", 4, true).u32("nanbeige.num_loops", 1)), Ok("nanbeige"));
    assert!(text(&model("nanbeige", 4, true).u32("nanbeige.num_loops", 2)).unwrap_err().contains("more than once"));
    assert_eq!(text(&model("llama4", 4, true)), Ok("llama4"));
    assert!(text(&model("llama4", 4, true).u32("llama4.attention.sliding_window", 0)).is_err());
    assert!(text(&model("glm-dsa", 4, true).u32s("glm-dsa.attention.indexer.types", &[1, 0, 0, 0])).is_err());
}

#[test]
fn the_window_pattern_is_llama_cpps() {
    let pattern =
        |period, dense_first| -> Vec<bool> { (0..7).map(|layer| is_sliding(layer, period, dense_first)).collect() };
    assert_eq!(pattern(3, false), [true, true, false, true, true, false, true]);
    assert_eq!(pattern(3, true), [false, true, true, false, true, true, false]);
    assert_eq!(pattern(0, false), [true; 7]);
    assert_eq!(pattern(1, false), [false; 7]);
}

#[test]
fn the_page_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/families.md");
    let found = std::fs::read_to_string(path).unwrap();
    assert!(found == page(), "docs/families.md is stale: cargo run -p mesh-gguf --example families-doc");
}
