//! The models in floats: at least one of each family.

use super::keys::*;
use super::{Case, N_LAYER};

pub(super) const CASES: &[Case] = &[
    Case::new("llama", plain),
    Case::new("llama", plain).lean(),
    Case::new("llama", experts).variant("experts"),
    Case::new("arcee", plain),
    Case::new("arctic", experts),
    Case::new("bailingmoe", dense_lead),
    Case::new("bailingmoe2", dense_lead),
    Case::new("bailingmoe2", |keys| {
        dense_lead(keys);
        keys.u32("expert_count", 8).u32("expert_group_count", 4).u32("expert_group_used_count", 2);
    })
    .variant("with groups of experts"),
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
    Case::new("deepseek2-ocr", |keys| {
        dense_lead(keys);
        all_heads(keys);
    }),
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
    })
    .dense_at(&[0, 1]),
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
    Case::new("gemma3", |keys| {
        window(keys);
        keys.u32("block_count", 62).u32("attention.key_length", 48).u32("attention.value_length", 48);
        keys.u32("rope.dimension_count", 48);
    })
    .variant("like the 27B"),
    Case::new("gemma2", |keys| {
        window(keys);
        keys.u32("block_count", 46).u32("attention.key_length", 48).u32("attention.value_length", 48);
        keys.u32("rope.dimension_count", 48);
    })
    .variant("like the 27B"),
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
    Case::new("ernie4_5-moe", |keys| {
        dense_lead(keys);
        keys.u32("interleave_moe_layer_step", 1).u32("leading_dense_block_count", 1);
    })
    .variant("with experts in every layer but the first"),
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
    // No file of these says anything of windows.
    Case::new("llama4", |keys| {
        three_times_four(keys);
        experts(keys);
        keys.u32("expert_count", 16).u32("expert_used_count", 1).u32("interleave_moe_layer_step", 1);
    })
    .variant("like Scout"),
    Case::new("llama4", |keys| {
        three_times_four(keys);
        experts(keys);
        keys.u32("expert_count", 128).u32("expert_used_count", 1).u32("interleave_moe_layer_step", 2);
        keys.u32("expert_feed_forward_length", 32);
    })
    .variant("like Maverick"),
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
    Case::new("granitehybrid", |keys| {
        hybrid(keys);
        experts(keys);
        keys.f32("embedding_scale", 12.0).f32("residual_scale", 0.22).f32("logit_scale", 8.0);
        keys.f32("attention.scale", 0.1).bool("rope.scaling.finetuned", false);
    })
    .variant("experts"),
    Case::new("jamba", hybrid),
    Case::new("jamba", |keys| {
        hybrid(keys);
        experts(keys);
    })
    .variant("experts")
    .dense_at(&[0, 2, 4, 6]),
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
