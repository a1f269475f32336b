//! The data: every family that is proven to split exactly, and those that are known not to.

use super::{
    Condition, Cuts, Demand, EmbeddingScale, Factor, Family, Inject, Input, Period, Recurrent, SpelledOut, Tap, Window,
};

/// The families that split exactly.
pub const FAMILIES: &[Family] = &[
    plain("apertus"),
    plain("arcee"),
    plain("arctic"),
    plain("bailingmoe"),
    plain("bailingmoe2"),
    plain("bitnet"),
    plain("chatglm"),
    plain("codeshell"),
    plain("command-r"),
    plain("dbrx"),
    plain("deci"),
    plain("deepseek"),
    plain("deepseek2-ocr"),
    plain("deepseek32"),
    plain("dots1"),
    plain("ernie4_5"),
    plain("exaone"),
    plain("falcon"),
    plain("gpt2"),
    plain("gptneox"),
    plain("grovemoe"),
    plain("hunyuan-dense"),
    plain("hunyuan-moe"),
    plain("hunyuan_vl"),
    plain("hy_v3"),
    plain("internlm2"),
    plain("jais"),
    plain("jais2"),
    plain("llama"),
    plain("maincoder"),
    plain("minimax-m2"),
    plain("minimax-m3"),
    plain("mistral3"),
    plain("mistral4"),
    plain("mpt"),
    plain("nemotron"),
    plain("olmo"),
    plain("olmoe"),
    plain("openelm"),
    plain("orion"),
    plain("paddleocr"),
    plain("pangu-embedded"),
    plain("phi2"),
    plain("phi3"),
    plain("phimoe"),
    plain("plamo"),
    plain("qwen"),
    plain("qwen2"),
    plain("qwen2moe"),
    plain("qwen2vl"),
    plain("qwen3"),
    plain("qwen3moe"),
    plain("qwen3vl"),
    plain("qwen3vlmoe"),
    plain("refact"),
    plain("seed_oss"),
    plain("stablelm"),
    plain("starcoder"),
    plain("starcoder2"),
    plain("xverse"),
    // Families with sliding windows.
    Family { window: Window::Always(every(4)), ..plain("cohere2") },
    Family { window: Window::Always(Period { default: 4, dense_first: true }), ..plain("cohere2moe") },
    Family { window: Window::Explicit, ..plain("dots3note") },
    Family { window: Window::Always(every(4)), ..plain("exaone-moe") },
    Family { window: Window::Always(every(2)), ..plain("gpt-oss") },
    Family { window: Window::Period(Period { default: 4, dense_first: true }), ..plain("laguna") },
    Family { window: Window::Explicit, ..plain("maple") },
    Family { window: Window::Period(every(4)), ..plain("mellum") },
    Family { window: Window::Explicit, ..plain("mimo2") },
    Family { window: Window::Period(every(4)), ..plain("olmo2") },
    Family { window: Window::Period(every(8)), ..plain("plamo3") },
    Family { window: Window::Explicit, ..plain("spark2_5") },
    Family { tap: Tap::Last("h_nextn"), window: Window::Explicit, ..plain("step35") },
    Family {
        // The 32B model alone has windows; their number and size are built in.
        sized_by_layers: &[64],
        no_stage_of: &[64],
        ..plain("exaone4")
    },
    // Families with recurrent layers.
    Family { recurrent: Recurrent::EveryLayer, ..plain("falcon-h1") },
    Family { recurrent: Recurrent::EveryLayer, ..plain("mamba") },
    Family { recurrent: Recurrent::EveryLayer, ..plain("mamba2") },
    Family { recurrent: Recurrent::Interval(4), ..plain("qwen3next") },
    Family { recurrent: Recurrent::Interval(4), ..plain("qwen35") },
    Family { recurrent: Recurrent::Interval(4), ..plain("qwen35moe") },
    Family { recurrent: Recurrent::WithoutKvHeads, ..plain("bailingmoe3") },
    Family {
        recurrent: Recurrent::WithoutKvHeads,
        embedding_scale: EmbeddingScale::WherePresent,
        ..plain("granitehybrid")
    },
    Family { recurrent: Recurrent::WithoutKvHeads, ..plain("jamba") },
    Family { recurrent: Recurrent::WithoutKvHeads, ..plain("kimi-linear") },
    Family { recurrent: Recurrent::WithoutKvHeads, ..plain("lfm2") },
    Family { recurrent: Recurrent::WithoutKvHeads, ..plain("lfm2moe") },
    Family {
        recurrent: Recurrent::WithoutKvHeadsAndFeedForward,
        tap: Tap::Layer("nemotron_h_block_out"),
        ..plain("nemotron_h")
    },
    Family {
        recurrent: Recurrent::WithoutKvHeadsAndFeedForward,
        tap: Tap::Layer("nemotron_h_block_out"),
        ..plain("nemotron_h_moe")
    },
    // Families that scale what comes in.
    Family {
        input: Input::Lookup(Factor::SqrtEmbd),
        window: Window::Period(every(6)),
        // The 27B model.
        query_factor_at: Some(62),
        no_stage_of: &[62],
        ..plain("gemma3")
    },
    Family {
        input: Input::Lookup(Factor::SqrtEmbd),
        window: Window::Explicit,
        // The small models (E2B, E4B) have both, the large ones neither.
        conditions: &[
            Condition {
                key: "embedding_length_per_layer_input",
                demand: Demand::AtMost(0),
                reason: "every layer takes a row of its own for each token",
            },
            Condition {
                key: "attention.shared_kv_layers",
                demand: Demand::AtMost(0),
                reason: "its last layers use the keys and values of earlier ones",
            },
        ],
        ..plain("gemma4")
    },
    // The small ones: what each layer takes beside the row is made of the tokens and their embeddings.
    Family {
        input: Input::Tokens,
        inject: Some(Inject::Lead("l_out-0")),
        cuts: Cuts::BeforeSharedKv,
        window: Window::Explicit,
        keeps_rows: true,
        ..plain("gemma4")
    },
    Family { inject: Some(Inject::Behind("inp_scaled")), ..plain("gemma") },
    Family {
        inject: Some(Inject::Behind("inp_scaled")),
        window: Window::Always(every(2)),
        // The 27B model.
        query_factor_at: Some(46),
        no_stage_of: &[46],
        ..plain("gemma2")
    },
    Family { inject: Some(Inject::Behind("inp_norm-0")), ..plain("bloom") },
    Family { inject: Some(Inject::Behind("embd_norm")), window: Window::Always(every(4)), ..plain("muse-glimmer") },
    Family {
        inject: Some(Inject::Behind("inp_embd_scaled")),
        window: Window::Period(every(4)),
        // Every fourth layer has no rotary positions.
        cuts: Cuts::MultipleOf(4),
        ..plain("afmoe")
    },
    Family { embedding_scale: EmbeddingScale::WherePresent, conditions: &[NO_DEEPSTACK], ..plain("granite") },
    Family { embedding_scale: EmbeddingScale::WherePresent, conditions: &[NO_DEEPSTACK], ..plain("granitemoe") },
    Family {
        embedding_scale: EmbeddingScale::WherePresent,
        window: Window::Explicit,
        conditions: &[NO_DEEPSTACK],
        ..plain("granite_swa")
    },
    Family { embedding_scale: EmbeddingScale::Always, ..plain("grok") },
    Family { embedding_scale: EmbeddingScale::Always, spelled_out: SpelledOut::ResidualScale, ..plain("minicpm") },
    // Families with rules of their own.
    Family {
        spelled_out: SpelledOut::DeepSeek2,
        // Sizes at which llama.cpp takes a slice for one of the small models, which have no low-rank query.
        no_stage_of: &[26, 27, 48],
        ..plain("deepseek2")
    },
    Family { cuts: Cuts::ExpertStep(1), ..plain("ernie4_5-moe") },
    // These end the process where they are fed with rows and their file has no `rope.dimension_sections`.
    Family { inject: Some(Inject::Over("embd")), ..plain("glm4") },
    Family { inject: Some(Inject::Over("embd")), ..plain("glm4moe") },
    // Takes rows for an image.
    Family { inject: Some(Inject::Over("embd")), ..plain("cogvlm") },
    Family {
        conditions: &[
            Condition { key: "attention.indexer.types", demand: Demand::Absent, reason: SHARED_SELECTION },
            // From GLM-5.2 on; llama.cpp tells it by the context.
            Condition { key: "context_length", demand: Demand::AtMost((1 << 20) - 1), reason: SHARED_SELECTION },
        ],
        ..plain("glm-dsa")
    },
    Family {
        // Every fourth layer has no rotary positions, experts come in steps.
        cuts: Cuts::ExpertStep(4),
        window: Window::Always(every(4)),
        conditions: &[Condition {
            key: "attention.sliding_window",
            demand: Demand::AtLeast(1),
            reason: "without windows, its last layer is the one without rotary positions",
        }],
        ..plain("llama4")
    },
    Family {
        conditions: &[Condition {
            key: "num_loops",
            demand: Demand::AtMost(1),
            reason: "its layers are run through more than once",
        }],
        ..plain("nanbeige")
    },
    Family {
        // Every fourth layer has no rotary positions where there are windows.
        cuts: Cuts::MultipleOf(4),
        window: Window::Period(Period { default: 4, dense_first: true }),
        // A model of as many layers as there are in a period has them on all.
        sized_by_layers: &[4],
        no_stage_of: &[4],
        ..plain("smallthinker")
    },
    // Every fourth layer has no rotary positions.
    Family { cuts: Cuts::MultipleOf(4), ..plain("smollm3") },
];

/// Families that are known not to split exactly, and why.
pub const REFUSED: &[(&str, &str)] = &[
    ("arwkv7", MANY_ROWS),
    ("baichuan", "whether it has rotary positions follows from the number of layers"),
    ("bert", EMBEDDINGS),
    ("chameleon", "it hides the logits of 8192 image tokens, which stages without a vocabulary do not have"),
    ("clef", "it scores options that it is given, and writes no text"),
    ("clip", "it reads images for another model, and writes no text"),
    ("deepseek4", MANY_ROWS),
    ("dflash", DRAFT),
    ("dream", DIFFUSION),
    ("eagle3", DRAFT),
    ("eurobert", EMBEDDINGS),
    ("gemma-embedding", EMBEDDINGS),
    ("gemma3n", GEMMA3N),
    ("gemma4-assistant", DRAFT),
    ("glm5-next", MANY_ROWS),
    ("gptj", "llama.cpp knows its name only"),
    ("graniteswitch", "which adapter its layers use follows from the tokens"),
    ("hrm_text", "its layers are run through more than once"),
    ("hy_v4", MANY_ROWS),
    ("jina-bert-v2", EMBEDDINGS),
    ("jina-bert-v3", EMBEDDINGS),
    ("kimi-k3", "its residual blocks reach across layers"),
    ("llada", DIFFUSION),
    ("llada-moe", DIFFUSION),
    ("llama-embed", EMBEDDINGS),
    ("minicpm3", "a residual scale follows from the number of layers"),
    ("minimax-01", "attention slopes follow from the layer's number in the whole model"),
    ("modern-bert", EMBEDDINGS),
    ("neo-bert", EMBEDDINGS),
    ("nomic-bert", EMBEDDINGS),
    ("nomic-bert-moe", EMBEDDINGS),
    ("plamo2", "llama.cpp gives its layers' outputs no name"),
    ("plm", "llama.cpp ends over the shape of its values, split or not"),
    ("pockettts", SPEECH),
    ("qwen3tts", SPEECH),
    ("qwen4exp", MANY_ROWS),
    ("rnd1", DIFFUSION),
    ("rwkv6", MANY_ROWS),
    ("rwkv6qwen2", MANY_ROWS),
    ("rwkv7", MANY_ROWS),
    ("t5", "it reads with an encoder and writes with a decoder"),
    ("t5encoder", EMBEDDINGS),
    ("talkie", "every layer takes the token embeddings as well"),
    ("wavtokenizer-dec", SPEECH),
];

const EMBEDDINGS: &str = "it makes embeddings, and writes no text";
const DRAFT: &str = "it drafts for another model, whose hidden rows it takes";
const SPEECH: &str = "it speaks, and writes no text";
const SHARED_SELECTION: &str = "some of its layers use the selection of tokens that another layer made";
const DIFFUSION: &str = "it does not write token by token";
const GEMMA3N: &str = "four rows a token cross from layer to layer, and llama.cpp has it built in how many of a file's \
                       layers keep keys and values (20) and are sparse (10)";
const MANY_ROWS: &str = "more than one row a token crosses from layer to layer";

const NO_DEEPSTACK: Condition = Condition {
    key: "n_deepstack_layers",
    demand: Demand::AtMost(0),
    reason: "rows given in place of tokens mean an image to it",
};

/// A family without any rule: rows are looked up, cuts are free.
const fn plain(architecture: &'static str) -> Family {
    Family {
        architecture,
        input: Input::Lookup(Factor::One),
        tap: Tap::Layer("l_out"),
        inject: None,
        cuts: Cuts::Any,
        window: Window::None,
        recurrent: Recurrent::Never,
        embedding_scale: EmbeddingScale::None,
        spelled_out: SpelledOut::Nothing,
        query_factor_at: None,
        sized_by_layers: &[],
        no_stage_of: &[],
        keeps_rows: false,
        conditions: &[],
    }
}

/// A period whose last layer attends to everything.
const fn every(default: u32) -> Period {
    Period { default, dense_first: false }
}
