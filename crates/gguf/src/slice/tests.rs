use mesh_types::Digest;

use super::*;
use crate::craft::{Craft, model};
use crate::{GgmlType, Value};

mod writing;

fn header(craft: &Craft) -> Header {
    Header::parse(&craft.file()).unwrap().canonical().unwrap()
}

fn range(start: u32, end: u32) -> LayerRange {
    LayerRange::new(start, end).unwrap()
}

/// The slice's own header.
fn sliced(craft: &Craft, start: u32, end: u32) -> Header {
    let plan = SlicePlan::new(&header(craft), range(start, end)).unwrap();
    Header::parse(plan.header()).unwrap()
}

fn names(plan: &SlicePlan, hole: bool) -> Vec<&str> {
    plan.parts().iter().filter(|part| (part.bytes == Bytes::Hole) == hole).map(|part| part.name.as_str()).collect()
}

fn ints(header: &Header, key: &str) -> Vec<i128> {
    header.metadata().array(key).unwrap().unwrap().ints().unwrap().collect()
}

#[test]
fn a_stage_that_is_not_last_has_no_vocabulary_even_if_it_is_the_first() {
    for (start, end) in [(0, 2), (1, 3)] {
        let plan = SlicePlan::new(&header(&model("llama", 4, true)), range(start, end)).unwrap();
        assert_eq!(plan.kind(), SliceKind::Rows);
        assert_eq!(plan.boundary().tap, "l_out-1");
        assert_eq!(names(&plan, true), ["token_embd.weight", "output.weight"]);
        let kept = [
            "blk.0.attn_norm.weight",
            "blk.0.attn_q.weight",
            "blk.1.attn_norm.weight",
            "blk.1.attn_q.weight",
            "output_norm.weight",
            "rope_freqs.weight",
        ];
        assert_eq!(names(&plan, false), kept);

        let sliced = Header::parse(plan.header()).unwrap();
        let (_, embedding) = sliced.tensor("token_embd.weight").unwrap();
        assert_eq!((embedding.dims(), embedding.ggml_type()), ([8, 32].as_slice(), GgmlType::F32));
        assert_eq!(sliced.tensor("output.weight").unwrap().1.dims(), [8, 32]);
        let metadata = sliced.metadata();
        assert_eq!(metadata.u32("llama.block_count"), Ok(Some(2)));
        assert_eq!(metadata.u32("llama.vocab_size"), Ok(Some(32)));
        let tokenizer: Vec<_> = metadata.iter().filter(|(key, _)| key.starts_with("tokenizer.")).collect();
        assert_eq!(tokenizer, [("tokenizer.ggml.model", &Value::from("none"))]);
        let lengths = [100 + i128::from(start), 101 + i128::from(start)];
        assert_eq!(ints(&sliced, "llama.feed_forward_length"), lengths);
        assert_eq!(plan.weight_bytes(), (2 * 72 + 12) * 4);
        assert_eq!(plan.file_len(), sliced.data_offset() + sliced.data_len());
    }
}

#[test]
fn a_tied_model_gets_no_head_where_it_had_none() {
    let plan = SlicePlan::new(&header(&model("llama", 4, false)), range(1, 3)).unwrap();
    assert_eq!(names(&plan, true), ["token_embd.weight"]);
}

#[test]
fn the_last_stage_keeps_vocabulary_and_head() {
    let craft = model("llama", 4, true);
    let plan = SlicePlan::new(&header(&craft), range(3, 4)).unwrap();
    assert_eq!(plan.kind(), SliceKind::Last);
    assert_eq!(names(&plan, true), ["token_embd.weight"]);
    assert!(names(&plan, false).contains(&"output.weight"));
    let sliced = Header::parse(plan.header()).unwrap();
    assert_eq!(sliced.tensor("token_embd.weight").unwrap().1.dims(), [8, 40]);
    assert_eq!(sliced.metadata().array("tokenizer.ggml.tokens").unwrap().unwrap().len(), 40);
    assert_eq!(sliced.metadata().get("llama.vocab_size"), None);

    let tied = SlicePlan::new(&header(&model("llama", 4, false)), range(3, 4)).unwrap();
    assert!(names(&tied, true).is_empty());
    assert!(names(&tied, false).contains(&"token_embd.weight"));
}

#[test]
fn a_first_stage_that_takes_tokens_keeps_the_vocabulary_but_no_head() {
    let header = header(&model("llama", 4, true));
    let info = ModelInfo::of(&header).unwrap();
    let by_tokens = Family { input: Input::Tokens, ..*Family::of(&header).unwrap() };
    let kind = SliceKind::of(&by_tokens, range(0, 2), 4);
    assert_eq!(kind, SliceKind::Tokens);
    let cut = Cut { kind, start: 0, end: 2, lead: false };
    let (tensors, sources) = Tensors::cut(&header, &info, cut).unwrap();
    let of = |name: &str| tensors.iter().position(|tensor| tensor.name() == name).map(|at| (&tensors[at], sources[at]));
    assert_eq!(of("token_embd.weight").unwrap().1, Bytes::Source { tensor: 0 });
    let (head, bytes) = of("output.weight").unwrap();
    assert_eq!((head.dims(), bytes), ([8, 40].as_slice(), Bytes::Hole));
    let metadata = metadata::cut(&header, Family::of(&header).unwrap(), &info, cut).unwrap();
    assert_eq!(metadata.str("tokenizer.ggml.model"), Ok(Some("llama")));
    assert_eq!(SliceKind::of(&by_tokens, range(2, 3), 4), SliceKind::Rows);
    assert_eq!(SliceKind::of(&by_tokens, range(2, 4), 4), SliceKind::Last);
}

#[test]
fn all_layers_are_the_whole_model() {
    let header = header(&model("llama", 4, true));
    let plan = SlicePlan::new(&header, range(0, 4)).unwrap();
    assert_eq!(plan.kind(), SliceKind::Whole);
    assert_eq!(plan.header(), header.to_bytes());
    assert!(names(&plan, true).is_empty());
}

#[test]
fn a_period_becomes_an_explicit_pattern() {
    let key = "gemma3.attention.sliding_window_pattern";
    let windowed = || model("gemma3", 8, false).u32("gemma3.attention.sliding_window", 64);
    // Layer 5 of the model attends to everything, wherever it stands in the slice.
    assert_eq!(ints(&sliced(&windowed(), 3, 8), key), [1, 1, 0, 1, 1]);
    assert_eq!(ints(&sliced(&windowed().u32(key, 3), 1, 7), key), [1, 0, 1, 1, 0, 1]);
    assert_eq!(ints(&sliced(&windowed().u32(key, 0), 1, 3), key), [1, 1]);
    let explicit = windowed().array(key, 7, 8, &[1, 0, 0, 1, 1, 0, 1, 1]);
    assert_eq!(ints(&sliced(&explicit, 2, 5), key), [0, 1, 1]);
    // No layer with a window, no window: llama.cpp would end the process.
    for craft in [windowed(), explicit] {
        for key in [key, "gemma3.attention.sliding_window"] {
            assert_eq!(sliced(&craft, 5, 6).metadata().get(key), None);
        }
    }
    // No window, no pattern.
    assert_eq!(sliced(&model("gemma3", 8, false), 2, 5).metadata().get(key), None);
    assert_eq!(
        sliced(&model("gemma3", 8, false).u32("gemma3.attention.sliding_window", 0), 2, 5).metadata().get(key),
        None
    );
}

#[test]
fn what_follows_from_the_whole_model_is_said() {
    // Which layers are recurrent, where an interval says so.
    let key = "qwen3next.attention.recurrent_layers";
    assert_eq!(ints(&sliced(&model("qwen3next", 12, false), 5, 10), key), [1, 1, 0, 1, 1]);
    // What scales the input of the first stage must not scale rows.
    let scale = |craft: &Craft, start, end| sliced(craft, start, end).metadata().f32("granite.embedding_scale");
    let granite = model("granite", 4, false).f32("granite.embedding_scale", 12.0);
    assert_eq!([scale(&granite, 0, 2), scale(&granite, 2, 4)], [Ok(Some(12.0)), Ok(Some(1.0))]);
    assert_eq!(scale(&model("granite", 4, false), 2, 4), Ok(None));
    let minicpm = |craft: &Craft, start, end, key: &str| sliced(craft, start, end).metadata().f32(key);
    let craft = model("minicpm", 4, false);
    assert_eq!(minicpm(&craft, 0, 1, "minicpm.embedding_scale"), Ok(None));
    assert_eq!(minicpm(&craft, 1, 2, "minicpm.embedding_scale"), Ok(Some(1.0)));
    assert_eq!(minicpm(&craft, 1, 2, "minicpm.residual_scale"), Ok(Some(0.7)));
    // DeepSeek-V2-Lite has no low-rank query, whatever its file says.
    let deepseek = |layers, start, end, key: &str| {
        let craft = model("deepseek2", layers, false).u32("deepseek2.attention.q_lora_rank", 5);
        sliced(&craft, start, end).metadata().u32(&format!("deepseek2.{key}"))
    };
    assert_eq!(deepseek(27, 0, 9, "attention.q_lora_rank"), Ok(Some(0)));
    assert_eq!(deepseek(28, 0, 9, "attention.q_lora_rank"), Ok(Some(5)));
    assert_eq!(deepseek(28, 0, 9, "expert_gating_func"), Ok(Some(1)));
}

#[test]
fn learned_positions_are_added_once() {
    let craft = model("gpt2", 4, true).f32s("position_embd.weight", &[8, 64]);
    let holes = |start, end| {
        let plan = SlicePlan::new(&header(&craft), range(start, end)).unwrap();
        names(&plan, true).contains(&"position_embd.weight")
    };
    assert_eq!([holes(0, 2), holes(1, 3), holes(2, 4)], [false, true, true]);
}

#[test]
fn arrays_with_an_entry_a_layer_are_cut_and_others_kept() {
    let craft = model("llama", 4, false)
        .u32s("llama.attention.head_count_kv", &[1, 2, 1, 2])
        .u32s("llama.rope.dimension_sections", &[9, 8, 7, 6])
        .u32s("llama.something.else", &[5, 6, 7])
        .u32s("general.four", &[1, 2, 3, 4])
        .u32("llama.leading_dense_block_count", 2);
    let cut = sliced(&craft, 1, 4);
    assert_eq!(ints(&cut, "llama.attention.head_count_kv"), [2, 1, 2]);
    assert_eq!(ints(&cut, "llama.rope.dimension_sections"), [9, 8, 7, 6]);
    assert_eq!(ints(&cut, "llama.something.else"), [5, 6, 7]);
    assert_eq!(ints(&cut, "general.four"), [1, 2, 3, 4]);
    let leading = |start, end| sliced(&craft, start, end).metadata().u32("llama.leading_dense_block_count");
    assert_eq!([leading(0, 1), leading(1, 4), leading(2, 4)], [Ok(Some(1)), Ok(Some(1)), Ok(Some(0))]);

    let bad = header(&model("llama", 4, false).u32s("llama.expert_used_count", &[1, 2, 3]));
    let error = SlicePlan::new(&bad, range(0, 2)).unwrap_err().to_string();
    assert!(error.contains("3 entries for 4 layers"), "{error}");
}

#[test]
fn layers_that_predict_further_tokens_stay_with_the_last_stage() {
    let craft = model("llama", 5, true).u32("llama.nextn_predict_layers", 1);
    let last = sliced(&craft, 2, 4);
    assert_eq!(last.metadata().u32("llama.block_count"), Ok(Some(3)));
    assert_eq!(last.metadata().u32("llama.nextn_predict_layers"), Ok(Some(1)));
    assert!(last.tensor("blk.2.attn_q.weight").is_some());
    assert_eq!(ints(&last, "llama.feed_forward_length"), [102, 103, 104]);
    let first = sliced(&craft, 0, 2);
    assert_eq!(first.metadata().u32("llama.block_count"), Ok(Some(2)));
    assert_eq!(first.metadata().u32("llama.nextn_predict_layers"), Ok(Some(0)));
    assert!(SlicePlan::new(&header(&craft), range(2, 5)).is_err());
}

#[test]
fn models_that_cannot_be_cut_say_why() {
    let text = |craft: &Craft, start, end| SlicePlan::new(&header(craft), range(start, end)).unwrap_err().to_string();
    assert!(text(&model("llama", 4, true), 2, 5).contains("layers 2-4 cannot be a stage of this model of 4 layers"));
    assert!(text(&model("nonesuch", 4, true), 0, 2).contains("nonesuch"));
    assert!(text(&model("rwkv7", 4, true), 0, 2).contains("more than one row a token"));
    // More layers are claimed than there are tensors for.
    let gap = model("llama", 1, true).u32s("llama.x", &[]).tensor("blk.3.x", &[8], 0, 1 << 20);
    let mut bytes = gap.file();
    let at = bytes.windows(17).position(|window| window == b"llama.block_count").unwrap() + 17 + 4;
    bytes[at..at + 4].copy_from_slice(&4u32.to_le_bytes());
    let error = SlicePlan::new(&Header::parse(&bytes).unwrap(), range(1, 3)).unwrap_err().to_string();
    assert!(error.contains("`blk.1.*` is missing"), "{error}");
    // A tensor over the vocabulary that no rule covers.
    let odd = model("llama", 4, true).f32s("odd.weight", &[8, 40]);
    assert!(text(&odd, 1, 2).contains("odd.weight"));
    // An embedding that is not what the metadata says.
    let mut bytes = model("llama", 4, true).file();
    let at = bytes.windows(17).position(|window| window == b"token_embd.weight").unwrap() + 17 + 4 + 8;
    bytes[at..at + 8].copy_from_slice(&39u64.to_le_bytes());
    let error = SlicePlan::new(&Header::parse(&bytes).unwrap(), range(1, 3)).unwrap_err().to_string();
    assert!(error.contains("has the shape [8, 39] where the metadata says [8, 40]"), "{error}");
}

#[test]
fn an_id_depends_on_source_and_range() {
    let id = |digest: u8, start, end| SliceId::new(Digest([digest; 32]), range(start, end));
    assert_eq!(id(1, 0, 2), id(1, 0, 2));
    assert_ne!(id(1, 0, 2), id(2, 0, 2));
    assert_ne!(id(1, 0, 2), id(1, 0, 3));
    // Pinned: another value is another slicer version.
    assert_eq!(id(1, 0, 2).to_string(), "cf77c4cf102e8bce61b5814de0b0e1d74c3810d68cef31d4e46a7e7e1817f296");
}
