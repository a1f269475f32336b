//! What the test models are: for each family the metadata of a small one, eight layers with the mixture of layers that
//! the family's real models have.

use kernels_ffi::KvType;
use mesh_gguf::{Array, Metadata, Value};

pub(crate) const N_LAYER: u32 = 8;
pub(crate) const N_VOCAB: u32 = 160;

/// One model to prove a family with.
pub(crate) struct Case {
    pub(crate) architecture: &'static str,
    /// Tells cases of one family apart.
    pub(crate) variant: &'static str,
    /// Optional tensors that it does without.
    pub(crate) without: &'static [&'static str],
    /// The types of its matrices, in turn; none: floats.
    pub(crate) stored_as: &'static [&'static str],
    /// The type of its experts' matrices, where that is another one.
    pub(crate) experts_as: Option<&'static str>,
    /// Type of the cache.
    pub(crate) kv_type: KvType,
    /// Adds to, and changes, the keys that all have.
    keys: fn(&mut Keys),
}

/// The metadata of a case under construction. Keys stand without their `{arch}.`.
pub(crate) struct Keys {
    architecture: &'static str,
    metadata: Metadata,
}

impl Case {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.architecture, self.variant).trim_end().to_owned()
    }

    pub(crate) fn metadata(&self) -> Metadata {
        let mut keys = Keys { architecture: self.architecture, metadata: Metadata::default() };
        keys.metadata.set("general.architecture", Value::from(self.architecture));
        keys.u32("vocab_size", N_VOCAB).u32("context_length", 256).u32("embedding_length", 128);
        keys.u32("block_count", N_LAYER).u32("feed_forward_length", 192);
        keys.u32("attention.head_count", 4).u32("attention.head_count_kv", 2).u32("rope.dimension_count", 32);
        keys.f32("attention.layer_norm_epsilon", 1e-5).f32("attention.layer_norm_rms_epsilon", 1e-5);
        (self.keys)(&mut keys);
        let mut metadata = keys.metadata;
        metadata.set("tokenizer.ggml.model", Value::from("test"));
        let tokens = (0..N_VOCAB).map(|token| format!("token{token}"));
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::of_strs(tokens)));
        metadata.set("tokenizer.ggml.scores", Value::Array(Array::of_f32s((0..N_VOCAB).map(|_| 0.0))));
        metadata
    }

    const fn new(architecture: &'static str, keys: fn(&mut Keys)) -> Self {
        let (stored_as, experts_as, kv_type) = (&[], None, KvType::F16);
        Self { architecture, variant: "", without: &[], stored_as, experts_as, kv_type, keys }
    }

    const fn variant(self, variant: &'static str) -> Self {
        Self { variant, ..self }
    }

    /// With matrices of these types.
    const fn stored_as(self, types: &'static [&'static str], variant: &'static str) -> Self {
        Self { stored_as: types, variant, ..self }
    }

    /// With a cache of another type, and fused attention.
    const fn cached_as(self, kv_type: KvType, variant: &'static str) -> Self {
        Self { kv_type, variant, ..self }
    }

    /// With a head that is tied to the embedding, and no factors for rotary frequencies.
    const fn lean(self) -> Self {
        Self { without: &["output.weight", "rope_freqs.weight"], variant: "lean", ..self }
    }
}

impl Keys {
    fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.set(&format!("{}.{key}", self.architecture), value);
        self
    }

    fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.set(key, Value::U32(value))
    }

    fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.set(key, Value::F32(value))
    }

    fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.set(key, Value::Bool(value))
    }

    /// A key without the family's name before it.
    fn bare_f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.metadata.set(key, Value::Array(Array::of_f32s(values.iter().copied())));
        self
    }

    fn u32s(&mut self, key: &str, values: &[u32]) -> &mut Self {
        self.set(key, Value::Array(Array::of_u32s(values.iter().copied())))
    }
}

/// Enough layers for three stages where a stage begins at every fourth one only.
fn three_times_four(keys: &mut Keys) {
    keys.u32("block_count", 14);
}

/// Nothing beyond what all have.
fn plain(_: &mut Keys) {}

/// As many heads for keys and values as for queries.
fn all_heads(keys: &mut Keys) {
    keys.u32("attention.head_count_kv", 4);
}

/// A short window, so that it matters within the few tokens of the test.
fn window(keys: &mut Keys) {
    keys.u32("attention.sliding_window", 8);
}

/// Windows on the layers that this pattern names.
fn windows(keys: &mut Keys, pattern: [u32; N_LAYER as usize]) {
    window(keys);
    keys.u32s("attention.sliding_window_pattern", &pattern);
}

fn experts(keys: &mut Keys) {
    keys.u32("expert_count", 4).u32("expert_used_count", 2).u32("expert_shared_count", 1);
    keys.u32("expert_feed_forward_length", 64).u32("expert_shared_feed_forward_length", 96);
    keys.u32("expert_gating_func", 2).f32("expert_weights_scale", 1.5).bool("expert_weights_norm", true);
}

/// The first layers without experts.
fn dense_lead(keys: &mut Keys) {
    experts(keys);
    keys.u32("leading_dense_block_count", 3);
}

fn window_and_experts(keys: &mut Keys) {
    window(keys);
    dense_lead(keys);
}

/// Four positions a row.
fn mrope(keys: &mut Keys) {
    keys.u32s("rope.dimension_sections", &[4, 6, 6, 0]);
}

/// Attention through a low-rank latent, one for all heads.
fn latent(keys: &mut Keys) {
    dense_lead(keys);
    keys.u32("attention.head_count_kv", 1).u32("attention.q_lora_rank", 48).u32("attention.kv_lora_rank", 64);
    keys.u32("attention.key_length", 80).u32("attention.value_length", 64).u32("rope.dimension_count", 16);
    keys.u32("attention.key_length_mla", 48).u32("attention.value_length_mla", 32);
}

/// A selection of tokens to attend to.
fn indexer(keys: &mut Keys) {
    keys.u32("attention.indexer.head_count", 64).u32("attention.indexer.key_length", 128);
    keys.u32("attention.indexer.top_k", 8);
}

/// A running state of the kind that Mamba has.
fn state_space(keys: &mut Keys) {
    keys.u32("ssm.conv_kernel", 4).u32("ssm.inner_size", 256).u32("ssm.state_size", 32);
    keys.u32("ssm.time_step_rank", 8).u32("ssm.group_count", 2);
}

/// Attention in some layers, a running state in the others.
fn hybrid(keys: &mut Keys) {
    state_space(keys);
    keys.u32s("attention.head_count_kv", &[0, 0, 2, 0, 2, 0, 0, 2]);
}

/// Attention, a running state or a feed-forward part in each layer.
fn three_kinds(keys: &mut Keys) {
    state_space(keys);
    keys.u32("block_count", 12);
    keys.u32s("attention.head_count_kv", &[0, 0, 2, 0, 0, 2, 0, 0, 2, 0, 0, 0]);
    keys.u32s("feed_forward_length", &[0, 192, 0, 0, 192, 0, 0, 192, 0, 0, 192, 0]);
}

/// A gated delta net in all but every fourth layer.
fn delta_net(keys: &mut Keys) {
    keys.u32("block_count", 14);
    keys.u32("ssm.conv_kernel", 4).u32("ssm.inner_size", 128).u32("ssm.state_size", 32);
    keys.u32("ssm.time_step_rank", 4).u32("ssm.group_count", 2);
}

/// Attention through a latent in some layers, a delta net in the others.
fn delta_attention(keys: &mut Keys) {
    latent(keys);
    keys.u32s("attention.head_count_kv", &[0, 0, 1, 0, 1, 0, 0, 1]);
    keys.u32("ssm.conv_kernel", 4).u32("kda.head_dim", 32).bool("kda.safe_gate", true);
    keys.f32("kda.gate_lower_bound", -5.0);
}

/// Rows of whole blocks of any type.
fn wide(keys: &mut Keys) {
    keys.u32("embedding_length", 256).u32("feed_forward_length", 512);
    keys.u32("attention.head_count", 4).u32("attention.head_count_kv", 2).u32("rope.dimension_count", 64);
}

/// The same with experts.
fn wide_experts(keys: &mut Keys) {
    wide(keys);
    experts(keys);
    keys.u32("expert_feed_forward_length", 256).u32("expert_shared_feed_forward_length", 256);
}

/// What files of today are made of, in the mixtures in which `llama-quantize` makes them, and every other type.
#[rustfmt::skip]
const QUANTIZED: &[Case] = &[
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

/// All of them.
pub(crate) fn cases() -> Vec<&'static Case> {
    CASES.iter().chain(QUANTIZED).collect()
}

/// What gemma4's small models have: a row of its own for each layer, and layers at the end that use the keys and values
/// of earlier ones and are wider inside.
fn per_layer_embeddings(keys: &mut Keys) {
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

pub(crate) const CASES: &[Case] = &[
    Case::new("llama", plain),
    Case::new("llama", plain).lean(),
    Case::new("llama", experts).variant("experts"),
    Case::new("arcee", plain),
    Case::new("arctic", experts),
    Case::new("bailingmoe", dense_lead),
    Case::new("bailingmoe2", dense_lead),
    Case::new("chatglm", plain),
    Case::new("codeshell", plain),
    Case::new("cogvlm", all_heads),
    Case::new("command-r", |keys| {
        keys.f32("logit_scale", 0.5);
    }),
    Case::new("dbrx", |keys| {
        experts(keys);
        keys.f32("attention.clamp_kqv", 1.0);
    }),
    Case::new("deci", plain),
    Case::new("deepseek", dense_lead),
    Case::new("deepseek32", |keys| {
        latent(keys);
        indexer(keys);
    }),
    Case::new("dots1", |keys| {
        dense_lead(keys);
        all_heads(keys);
    }),
    Case::new("ernie4_5", plain),
    Case::new("exaone", plain),
    Case::new("falcon", plain),
    Case::new("gpt2", all_heads),
    Case::new("gptneox", |keys| {
        all_heads(keys);
        keys.bool("use_parallel_residual", true);
    }),
    Case::new("grovemoe", |keys| {
        experts(keys);
        keys.u32("expert_chunk_feed_forward_length", 64).f32("expert_group_scale", 0.5).u32("experts_per_group", 2);
    }),
    Case::new("hunyuan-dense", plain),
    Case::new("hunyuan-moe", experts),
    Case::new("internlm2", plain),
    Case::new("jais", |keys| {
        all_heads(keys);
        keys.f32("attention.max_alibi_bias", 8.0);
    }),
    Case::new("jais2", plain),
    Case::new("maincoder", plain),
    Case::new("minimax-m2", experts),
    Case::new("minimax-m3", |keys| {
        dense_lead(keys);
        indexer(keys);
        keys.u32("attention.indexer.head_count", 2).u32("attention.indexer.block_size", 4);
        keys.u32("attention.indexer.local_blocks", 1).u32("rope.dimension_count", 16);
    }),
    Case::new("mistral3", plain),
    Case::new("mistral3", experts).variant("experts"),
    Case::new("mistral4", latent),
    Case::new("mpt", |keys| {
        keys.f32("attention.clamp_kqv", 1.0).f32("attention.max_alibi_bias", 8.0);
    }),
    Case::new("nemotron", plain),
    Case::new("olmo", |keys| {
        keys.f32("attention.clamp_kqv", 1.0);
    }),
    Case::new("olmoe", |keys| {
        experts(keys);
        all_heads(keys);
    }),
    Case::new("openelm", |keys| {
        keys.u32s("attention.head_count", &[4, 4, 4, 4, 8, 8, 8, 8]);
        keys.u32s("attention.head_count_kv", &[2, 2, 2, 2, 4, 4, 4, 4]);
        keys.u32s("feed_forward_length", &[64, 96, 128, 160, 192, 224, 256, 288]);
        keys.u32("attention.key_length", 32).u32("attention.value_length", 32);
    }),
    Case::new("orion", plain),
    Case::new("pangu-embedded", plain),
    Case::new("phi2", |keys| {
        all_heads(keys);
        keys.u32("rope.dimension_count", 16);
    }),
    Case::new("phi3", plain),
    Case::new("phimoe", experts),
    Case::new("plamo", all_heads),
    Case::new("qwen", all_heads),
    Case::new("qwen2", plain),
    Case::new("qwen2", plain).lean(),
    Case::new("qwen2moe", experts),
    Case::new("qwen2vl", mrope),
    Case::new("qwen3", |keys| {
        keys.u32("attention.key_length", 48).u32("attention.value_length", 48).u32("rope.dimension_count", 48);
    }),
    Case::new("qwen3", plain).lean(),
    Case::new("qwen3moe", experts),
    Case::new("qwen3vl", |keys| {
        mrope(keys);
        keys.u32("n_deepstack_layers", 3);
    }),
    Case::new("qwen3vlmoe", |keys| {
        mrope(keys);
        experts(keys);
        keys.u32("n_deepstack_layers", 3);
    }),
    Case::new("refact", |keys| {
        keys.f32("attention.max_alibi_bias", 8.0);
    }),
    Case::new("seed_oss", plain),
    Case::new("stablelm", plain),
    Case::new("starcoder", all_heads),
    Case::new("starcoder2", plain),
    Case::new("xverse", plain),
    Case::new("cohere2", |keys| {
        three_times_four(keys);
        window(keys);
        keys.f32("logit_scale", 0.5);
    }),
    Case::new("cohere2moe", |keys| {
        three_times_four(keys);
        window_and_experts(keys);
        keys.f32("logit_scale", 0.5);
    }),
    Case::new("dots3note", |keys| {
        latent(keys);
        indexer(keys);
        windows(keys, [0, 1, 1, 0, 1, 1, 1, 0]);
        keys.u32s("attention.indexer.types", &[1, 0, 0, 1, 0, 0, 0, 1]);
        keys.u32("attention.kv_lora_rank_swa", 64).f32("rope.freq_base_swa", 10_000.0);
        keys.u32("attention.key_length_swa", 80).u32("attention.value_length_swa", 64);
        keys.u32("attention.key_length_mla_swa", 48).u32("attention.value_length_mla_swa", 32);
    }),
    Case::new("exaone-moe", |keys| {
        three_times_four(keys);
        window_and_experts(keys);
    }),
    Case::new("gpt-oss", |keys| {
        window(keys);
        experts(keys);
    }),
    Case::new("laguna", window_and_experts),
    Case::new("maple", |keys| {
        experts(keys);
        windows(keys, [0, 1, 1, 0, 1, 1, 0, 1]);
        keys.f32("swiglu_clamp_exp", 7.0);
    }),
    Case::new("mellum", window_and_experts),
    Case::new("mimo2", |keys| {
        experts(keys);
        windows(keys, [0, 1, 1, 1, 0, 1, 1, 0]);
    }),
    Case::new("olmo2", window),
    Case::new("olmo2", plain).variant("without windows"),
    Case::new("plamo3", window),
    Case::new("spark2_5", |keys| windows(keys, [1, 0, 1, 1, 0, 1, 0, 1])),
    Case::new("exaone4", plain),
    Case::new("gemma3", window),
    Case::new("gemma3", |keys| {
        window(keys);
        keys.u32("attention.sliding_window_pattern", 3);
    })
    .variant("with a period"),
    Case::new("gemma", plain),
    Case::new("gemma2", window),
    Case::new("bloom", all_heads),
    Case::new("muse-glimmer", |keys| {
        three_times_four(keys);
        window(keys);
        keys.f32("logit_scale", 0.5);
    }),
    Case::new("afmoe", |keys| {
        three_times_four(keys);
        window_and_experts(keys);
    }),
    Case::new("granite", |keys| {
        keys.f32("embedding_scale", 12.0).f32("residual_scale", 0.22).f32("logit_scale", 8.0);
        keys.f32("attention.scale", 0.1);
    }),
    Case::new("granite", |keys| {
        keys.f32("logit_scale", 8.0);
    })
    .variant("without scale"),
    Case::new("granitemoe", |keys| {
        experts(keys);
        keys.f32("embedding_scale", 12.0).f32("residual_scale", 0.22).f32("logit_scale", 8.0);
        keys.f32("attention.scale", 0.1);
    }),
    Case::new("granite_swa", |keys| {
        experts(keys);
        windows(keys, [1, 0, 1, 1, 0, 1, 0, 1]);
        keys.f32("embedding_scale", 12.0).f32("residual_scale", 0.22).f32("logit_scale", 8.0);
        keys.f32("attention.scale", 0.1);
    }),
    Case::new("grok", experts),
    Case::new("minicpm", plain),
    Case::new("minicpm", |keys| {
        keys.f32("embedding_scale", 6.0).f32("residual_scale", 0.3).f32("logit_scale", 0.5);
    })
    .variant("with scales"),
    Case::new("deepseek2", latent),
    Case::new("deepseek2", |keys| {
        latent(keys);
        keys.u32("block_count", 27).u32("expert_gating_func", 0);
    })
    .variant("lite"),
    Case::new("ernie4_5-moe", |keys| {
        dense_lead(keys);
        keys.u32("interleave_moe_layer_step", 2);
    }),
    Case::new("glm4", plain),
    Case::new("glm4", mrope).variant("with images"),
    Case::new("glm4moe", dense_lead),
    Case::new("glm4moe", |keys| {
        mrope(keys);
        dense_lead(keys);
    })
    .variant("with images"),
    Case::new("glm-dsa", |keys| {
        latent(keys);
        indexer(keys);
    }),
    Case::new("llama4", |keys| {
        three_times_four(keys);
        experts(keys);
        window(keys);
        keys.u32("interleave_moe_layer_step", 2);
    }),
    Case::new("nanbeige", plain),
    Case::new("apertus", |keys| {
        let rising = |start: f32| -> Vec<f32> { (0..N_LAYER).map(|layer| start + 0.1 * layer as f32).collect() };
        keys.bare_f32s("xielu.alpha_n", &rising(0.5)).bare_f32s("xielu.alpha_p", &rising(0.6));
        keys.bare_f32s("xielu.beta", &rising(0.3)).bare_f32s("xielu.eps", &rising(-0.2));
    }),
    Case::new("bitnet", plain),
    Case::new("gemma4", |keys| {
        windows(keys, [1, 1, 0, 1, 1, 0, 1, 0]);
        keys.u32("embedding_length_per_layer_input", 0).u32("attention.shared_kv_layers", 0);
        keys.u32("attention.key_length", 48).u32("attention.value_length", 48).u32("rope.dimension_count", 48);
        keys.u32("attention.key_length_swa", 32).u32("attention.value_length_swa", 32);
        keys.u32("rope.dimension_count_swa", 32).f32("rope.freq_base_swa", 10_000.0).f32("rope.freq_base", 1e6);
        keys.u32s("attention.head_count_kv", &[2, 2, 1, 2, 2, 1, 2, 1]).f32("final_logit_softcapping", 30.0);
    }),
    Case::new("gemma4", |keys| {
        experts(keys);
        windows(keys, [1, 1, 0, 1, 1, 0, 1, 0]);
        keys.u32("embedding_length_per_layer_input", 0);
        keys.u32("attention.key_length_swa", 32).u32("attention.value_length_swa", 32);
    })
    .variant("experts"),
    Case::new("gemma4", per_layer_embeddings).variant("with rows for every layer"),
    Case::new("gemma4", per_layer_embeddings).stored_as(&["q8_0"], "with rows for every layer in q8_0"),
    Case::new("hunyuan_vl", mrope),
    Case::new("hy_v3", dense_lead),
    Case::new("paddleocr", mrope),
    Case::new("step35", |keys| {
        dense_lead(keys);
        windows(keys, [0, 1, 1, 1, 0, 1, 1, 0]);
        keys.f32("rope.freq_base_swa", 10_000.0);
    }),
    Case::new("smallthinker", |keys| {
        window_and_experts(keys);
        keys.u32("block_count", 18);
    }),
    Case::new("smallthinker", |keys| {
        experts(keys);
        keys.u32("block_count", 18);
    })
    .variant("without windows"),
    Case::new("smollm3", three_times_four),
    Case::new("mamba", |keys| {
        state_space(keys);
        keys.u32("attention.head_count", 0).u32("attention.head_count_kv", 0);
    }),
    Case::new("mamba2", |keys| {
        state_space(keys);
        keys.u32("attention.head_count", 0).u32("attention.head_count_kv", 0);
    }),
    Case::new("falcon-h1", state_space),
    Case::new("qwen3next", |keys| {
        delta_net(keys);
        experts(keys);
    }),
    Case::new("qwen3next", |keys| {
        delta_net(keys);
        experts(keys);
        keys.u32("full_attention_interval", 3);
    })
    .variant("every third"),
    Case::new("qwen35", |keys| {
        delta_net(keys);
        mrope(keys);
    }),
    Case::new("qwen35moe", |keys| {
        delta_net(keys);
        experts(keys);
        mrope(keys);
    }),
    Case::new("granitehybrid", |keys| {
        hybrid(keys);
        keys.f32("embedding_scale", 12.0).f32("residual_scale", 0.22).f32("logit_scale", 8.0);
        keys.f32("attention.scale", 0.1);
    }),
    Case::new("jamba", hybrid),
    Case::new("kimi-linear", delta_attention),
    Case::new("bailingmoe3", delta_attention),
    Case::new("lfm2", |keys| {
        keys.u32s("attention.head_count_kv", &[0, 0, 2, 0, 2, 0, 0, 2]).u32("shortconv.l_cache", 3);
    }),
    Case::new("lfm2moe", |keys| {
        dense_lead(keys);
        keys.u32s("attention.head_count_kv", &[0, 0, 2, 0, 2, 0, 0, 2]).u32("shortconv.l_cache", 3);
    }),
    Case::new("nemotron_h", three_kinds),
    Case::new("nemotron_h_moe", |keys| {
        three_kinds(keys);
        experts(keys);
    }),
    Case::new("glm4moe", |keys| {
        dense_lead(keys);
        keys.u32("block_count", 9).u32("nextn_predict_layers", 1);
    })
    .variant("with a layer for further tokens"),
    Case::new("deepseek2", |keys| {
        latent(keys);
        keys.u32("block_count", 9).u32("nextn_predict_layers", 1);
    })
    .variant("with a layer for further tokens"),
    Case::new("qwen35", |keys| {
        delta_net(keys);
        mrope(keys);
        keys.u32("block_count", 15).u32("nextn_predict_layers", 1);
    })
    .variant("with a layer for further tokens"),
];
