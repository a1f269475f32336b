use super::*;
use crate::craft::{Craft, model};

fn info(craft: &Craft) -> ModelInfo {
    ModelInfo::of(&Header::parse(&craft.file()).unwrap()).unwrap()
}

fn kv(keys: u64, values: u64) -> LayerCache {
    LayerCache { keys, values, ..LayerCache::default() }
}

fn room() -> Room {
    let cache_type = GgmlType::all()[1];
    Room { cells: 1000, sequences: 4, batch: 100, logits: 4, cache_type, fused_attention: true }
}

#[test]
fn recurrent_layers_keep_no_keys_and_values() {
    // Two heads of four values each, keys and values.
    let none = LayerCache::default();
    assert_eq!(info(&model("qwen3next", 6, true)).layer_cache, [none, none, none, kv(8, 8), none, none]);
    assert_eq!(info(&model("qwen3", 3, true)).layer_cache, [kv(8, 8); 3]);
}

#[test]
fn a_running_state_is_counted_by_its_tensors_and_sizes() {
    let craft = model("mamba2", 2, true).u32("mamba2.ssm.state_size", 16).u32("mamba2.ssm.inner_size", 10);
    let craft = craft.f32s("blk.1.ssm_conv1d.weight", &[4, 42]);
    let caches = info(&craft.u32("mamba2.attention.head_count_kv", 0)).layer_cache;
    assert_eq!((caches[0].state, caches[1].state), (0, 3 * 42 + 160));
    assert_eq!(info(&model("lfm2", 1, true).f32s("blk.0.shortconv.conv.weight", &[3, 8])).layer_cache[0].state, 16);
}

#[test]
fn a_latent_row_holds_the_values_too() {
    let sized =
        |craft: Craft| craft.u32("deepseek2.attention.key_length", 6).u32("deepseek2.attention.value_length", 5);
    let craft = sized(model("deepseek2", 1, true).u32("deepseek2.attention.head_count_kv", 1));
    assert_eq!(info(&craft).layer_cache, [kv(6, 5)]);
    let latent = sized(model("deepseek2", 1, true).u32("deepseek2.attention.head_count_kv", 1));
    let latent = latent.u32("deepseek2.attention.key_length_mla", 4).u32("deepseek2.attention.value_length_mla", 3);
    assert_eq!(info(&latent).layer_cache, [kv(6, 0)]);
}

#[test]
fn windows_have_sizes_of_their_own_and_shared_layers_none() {
    let craft = model("gemma4", 4, false).u32s("gemma4.attention.sliding_window_pattern", &[1, 0, 1, 0]);
    let craft = craft.u32("gemma4.attention.key_length_swa", 3).u32("gemma4.attention.value_length_swa", 2);
    assert_eq!(info(&craft).layer_cache, [kv(6, 4), kv(8, 8), kv(6, 4), kv(8, 8)]);
    let none = LayerCache::default();
    assert_eq!(info(&craft.u32("gemma4.attention.shared_kv_layers", 2)).layer_cache, [kv(6, 4), kv(8, 8), none, none]);
}

#[test]
fn rows_of_a_cache_are_whole_blocks() {
    let named = |name: &str| *GgmlType::all().iter().find(|kind| kind.name() == name).unwrap();
    assert_eq!(kv(64, 64).bytes_per_token(named("f16")), 256);
    assert_eq!(kv(64, 64).bytes_per_token(named("q8_0")), 4 * 34);
    assert_eq!(kv(33, 0).bytes_per_token(named("q8_0")), 2 * 34);
}

#[test]
fn stages_add_up_to_the_model() {
    let info = info(&model("llama", 4, true));
    let of = |start, end| info.footprint(LayerRange::new(start, end).unwrap(), &room());
    let (whole, first, last) = (of(0, 4), of(0, 1), of(1, 4));
    // The embedding is looked up in the file by the first stage; both keep the factors of the rotary positions.
    assert_eq!(first.weights + last.weights, whole.weights - info.embedding_bytes + info.shared_bytes);
    assert_eq!(whole.weights, info.total_bytes);
    assert_eq!(first.cache + last.cache, whole.cache);
    assert_eq!(whole.cache, 4 * (8 + 8) * 2 * 1000);
    assert_eq!((first.output, last.output), (100 * 32 * 4, 4 * 40 * 4));
    assert_eq!(whole.total(), whole.weights + whole.cache + whole.compute + whole.output);
}

#[test]
fn absurd_sizes_saturate() {
    let craft = model("llama", 2, true).u32("llama.attention.key_length", u32::MAX);
    let craft = craft.u32("llama.attention.head_count_kv", u32::MAX).u32("llama.expert_used_count", u32::MAX);
    let room = Room { cells: u32::MAX, sequences: u32::MAX, batch: u32::MAX, logits: u32::MAX, ..room() };
    assert_eq!(info(&craft).footprint(LayerRange::new(0, 2).unwrap(), &room).total(), u64::MAX);
}
