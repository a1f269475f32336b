//! Quantised models and caches.

use kernels_ffi::KvType;

use super::Case;
use super::keys::*;

/// What files of today are made of, in the mixtures in which `llama-quantize` makes them, and every other type.
#[rustfmt::skip]
pub(super) const QUANTIZED: &[Case] = &[
    Case::new("llama", wide).stored_as(&["f16"], "in f16"),
    Case::new("llama", wide).stored_as(&["bf16"], "in bf16"),
    Case::new("llama", wide).stored_as(&["q4_0"], "in q4_0"),
    Case::new("llama", wide).stored_as(&["q8_0"], "in q8_0"),
    Case::new("llama", wide).stored_as(&["iq4_nl"], "in iq4_nl"),
    Case::new("llama", wide).stored_as(&["q4_K", "q6_K"], "in q4_K and q6_K"),
    Case::new("llama", wide).stored_as(&[
        "q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
        "tq1_0", "tq2_0", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "f16", "bf16",
    ], "in every type"),
    Case { experts_as: Some("mxfp4"), ..Case::new("gpt-oss", |keys| {
        wide_experts(keys);
        window(keys);
    }).stored_as(&["q8_0"], "in mxfp4") },
    Case::new("qwen3moe", wide_experts).stored_as(&["q4_K", "q6_K"], "in q4_K and q6_K"),
    Case::new("gemma3", |keys| {
        wide(keys);
        window(keys);
    }).stored_as(&["q4_0"], "in q4_0"),
    Case::new("qwen35", |keys| {
        wide(keys);
        delta_net(keys);
        mrope(keys);
    }).stored_as(&["q4_K", "q8_0"], "in q4_K and q8_0"),
    Case::new("mamba2", |keys| {
        wide(keys);
        state_space(keys);
        keys.u32("attention.head_count", 0).u32("attention.head_count_kv", 0);
    }).stored_as(&["q6_K"], "in q6_K"),
    Case::new("deepseek2", |keys| {
        wide_experts(keys);
        latent(keys);
    }).stored_as(&["q8_0"], "in q8_0"),
    Case::new("llama", wide).cached_as(KvType::Q8_0, "with a cache in q8_0"),
    Case::new("qwen3", wide).cached_as(KvType::Q8_0, "with a cache in q8_0"),
    Case::new("gpt-oss", |keys| {
        wide_experts(keys);
        window(keys);
    }).cached_as(KvType::Q8_0, "with a cache in q8_0"),
    Case::new("gemma3", |keys| {
        wide(keys);
        window(keys);
    }).cached_as(KvType::Q8_0, "with a cache in q8_0"),
    Case::new("qwen3next", |keys| {
        wide_experts(keys);
        delta_net(keys);
    }).cached_as(KvType::Q8_0, "with a cache in q8_0"),
    Case::new("deepseek2", latent).cached_as(KvType::F32, "with a cache in f32"),
];
