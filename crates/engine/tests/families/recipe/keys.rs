//! What several families have in common, as metadata.

use super::{Keys, N_LAYER};

/// Enough layers for three stages where a stage begins at every fourth one only.
pub(super) fn three_times_four(keys: &mut Keys) {
    keys.u32("block_count", 14);
}

/// Nothing beyond what all have.
pub(super) fn plain(_: &mut Keys) {}

/// As many heads for keys and values as for queries.
pub(super) fn all_heads(keys: &mut Keys) {
    keys.u32("attention.head_count_kv", 4);
}

/// A short window, so that it matters within the few tokens of the test.
pub(super) fn window(keys: &mut Keys) {
    keys.u32("attention.sliding_window", 8);
}

/// Windows on the layers that this pattern names.
pub(super) fn windows(keys: &mut Keys, pattern: [u32; N_LAYER as usize]) {
    window(keys);
    keys.u32s("attention.sliding_window_pattern", &pattern);
}

pub(super) fn experts(keys: &mut Keys) {
    keys.u32("expert_count", 4).u32("expert_used_count", 2).u32("expert_shared_count", 1);
    keys.u32("expert_feed_forward_length", 64).u32("expert_shared_feed_forward_length", 96);
    keys.u32("expert_gating_func", 2).f32("expert_weights_scale", 1.5).bool("expert_weights_norm", true);
}

/// The first layers without experts.
pub(super) fn dense_lead(keys: &mut Keys) {
    experts(keys);
    keys.u32("leading_dense_block_count", 3);
}

pub(super) fn window_and_experts(keys: &mut Keys) {
    window(keys);
    dense_lead(keys);
}

/// Four positions a row.
pub(super) fn mrope(keys: &mut Keys) {
    keys.u32s("rope.dimension_sections", &[4, 6, 6, 0]);
}

/// Attention through a low-rank latent, one for all heads.
pub(super) fn latent(keys: &mut Keys) {
    dense_lead(keys);
    keys.u32("attention.head_count_kv", 1).u32("attention.q_lora_rank", 48).u32("attention.kv_lora_rank", 64);
    keys.u32("attention.key_length", 80).u32("attention.value_length", 64).u32("rope.dimension_count", 16);
    keys.u32("attention.key_length_mla", 48).u32("attention.value_length_mla", 32);
}

/// A selection of tokens to attend to.
pub(super) fn indexer(keys: &mut Keys) {
    keys.u32("attention.indexer.head_count", 64).u32("attention.indexer.key_length", 128);
    keys.u32("attention.indexer.top_k", 8);
}

/// A running state of the kind that Mamba has.
pub(super) fn state_space(keys: &mut Keys) {
    keys.u32("ssm.conv_kernel", 4).u32("ssm.inner_size", 256).u32("ssm.state_size", 32);
    keys.u32("ssm.time_step_rank", 8).u32("ssm.group_count", 2);
}

/// Attention in some layers, a running state in the others.
pub(super) fn hybrid(keys: &mut Keys) {
    state_space(keys);
    keys.u32s("attention.head_count_kv", &[0, 0, 2, 0, 2, 0, 0, 2]);
}

/// Attention, a running state or a feed-forward part in each layer.
pub(super) fn three_kinds(keys: &mut Keys) {
    state_space(keys);
    keys.u32("block_count", 12);
    keys.u32s("attention.head_count_kv", &[0, 0, 2, 0, 0, 2, 0, 0, 2, 0, 0, 0]);
    keys.u32s("feed_forward_length", &[0, 192, 0, 0, 192, 0, 0, 192, 0, 0, 192, 0]);
}

/// A gated delta net in all but every fourth layer.
pub(super) fn delta_net(keys: &mut Keys) {
    keys.u32("block_count", 14);
    keys.u32("ssm.conv_kernel", 4).u32("ssm.inner_size", 128).u32("ssm.state_size", 32);
    keys.u32("ssm.time_step_rank", 4).u32("ssm.group_count", 2);
}

/// Attention through a latent in some layers, a delta net in the others.
pub(super) fn delta_attention(keys: &mut Keys) {
    latent(keys);
    keys.u32s("attention.head_count_kv", &[0, 0, 1, 0, 1, 0, 0, 1]);
    keys.u32("ssm.conv_kernel", 4).u32("kda.head_dim", 32).bool("kda.safe_gate", true);
    keys.f32("kda.gate_lower_bound", -5.0);
}

/// Rows of whole blocks of any type.
pub(super) fn wide(keys: &mut Keys) {
    keys.u32("embedding_length", 256).u32("feed_forward_length", 512);
    keys.u32("attention.head_count", 4).u32("attention.head_count_kv", 2).u32("rope.dimension_count", 64);
}

/// The same with experts.
pub(super) fn wide_experts(keys: &mut Keys) {
    wide(keys);
    experts(keys);
    keys.u32("expert_feed_forward_length", 256).u32("expert_shared_feed_forward_length", 256);
}

/// What gemma4's small models have: a row of its own for each layer, and layers at the end that use the keys and values
/// of earlier ones and are wider inside.
pub(super) fn per_layer_embeddings(keys: &mut Keys) {
    window(keys);
    keys.u32("block_count", 12);
    keys.u32s("attention.sliding_window_pattern", &[1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1]);
    keys.u32("embedding_length_per_layer_input", 32).u32("attention.shared_kv_layers", 4);
    keys.u32s("feed_forward_length", &[192, 192, 192, 192, 192, 192, 192, 192, 384, 384, 384, 384]);
    keys.u32("attention.head_count_kv", 1);
    keys.u32("attention.key_length", 64).u32("attention.value_length", 64).u32("rope.dimension_count", 64);
    keys.u32("attention.key_length_swa", 32).u32("attention.value_length_swa", 32);
    keys.u32("rope.dimension_count_swa", 32).f32("rope.freq_base_swa", 10_000.0).f32("rope.freq_base", 1e6);
    keys.f32("final_logit_softcapping", 30.0);
}
