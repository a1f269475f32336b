//! How a byte-level vocabulary cuts a text into words before anything is merged: the pre-tokenizer that the GGUF key
//! `tokenizer.ggml.pre` names. Facts of the format, in one table.
//!
//! Each pattern cuts what the one before it left, and both what it finds and what stands between is a word. They are
//! the patterns that llama.cpp applies under the name (`src/llama-vocab.cpp`, `llm_tokenizer_bpe`), which are at times
//! not those of the model's own `tokenizer.json`: what it adapted, it adapted for all who use the name, and the ids have
//! to be the same.

/// GPT-2's: contractions, letters, digits, the rest, each with a space before it.
/// Source: `encoder.py` of GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// Llama 3's, as in its `tokenizer.json`: case does not matter for contractions, digits go by threes.
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen 2's, as in its `tokenizer.json`: Llama 3's with single digits.
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen 3.5's, as in its `tokenizer.json`: accents belong to words.
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Mistral's Tekken. The lookaheads are llama.cpp's way to say upper and lower case, which it knows of ASCII only.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// GPT-4o's (`o200k`), with the same lookaheads.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// DeepSeek V3's last pattern, as in its `tokenizer.json`.
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Letters of DeepSeek LLM, as its `tokenizer.json` lists them.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}",
    r"\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}",
    r"\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}",
    r"\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}",
    r"\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}",
    r"\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}",
    r"\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}",
    r"\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}",
    r"\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}",
    r"\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}",
    r"\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}",
    r"\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}",
    r"\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}",
    r"\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+",
);

/// CJK and Hangul of DeepSeek LLM and Coder: U+0800 to U+9FA5 and U+AC00 to U+D7FF, but for the blanks among them, which
/// llama.cpp takes for ASCII's.
const DEEPSEEK_CJK: &str = concat!(
    r"[\u{800}-\u{167F}\u{1681}-\u{1FFF}\u{200B}-\u{2027}\u{202A}-\u{202E}\u{2030}-\u{205E}\u{2060}-\u{2FFF}",
    r"\u{3001}-\u{9FA5}\u{AC00}-\u{D7FF}]+",
);

/// How a text is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// One after the other.
    pub(crate) patterns: &'static [&'static str],
    /// Whether a word that is a token is that token, whatever merges would make of it.
    pub(crate) whole_words: bool,
}

/// The names of pre-tokenizers that are built.
pub const PRE_TOKENIZERS: [&str; 48] = [
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "glm4",
    "glm5",
    "chatglm-bpe",
    "dbrx",
    "smaug-bpe",
    "qwen2",
    "deepseek-r1-qwen",
    "megrez",
    "stablelm2",
    "hunyuan",
    "grok-2",
    "solar-open",
    "qwen35",
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
    "gpt-2",
    "phi-2",
    "mpt",
    "olmo",
    "jais",
    "gigachat",
    "exaone4",
    "trillion",
    "granite-docling",
    "tekken",
    "gpt-4o",
    "llama4",
    "kanana2",
    "minimax-m2",
    "deepseek-v3",
    "hunyuan-dense",
    "deepseek-llm",
    "deepseek-coder",
    "falcon",
    "default",
];

/// What llama.cpp does under this name; `None` for names that are not in the table.
pub(crate) fn named(pre: &str) -> Option<Words> {
    let words = |patterns| Some(Words { patterns, whole_words: false });
    let whole = |patterns| Some(Words { patterns, whole_words: true });
    match pre {
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
            whole(&[LLAMA3])
        }
        "glm4" | "glm5" => whole(&[LLAMA3]),
        "chatglm-bpe" | "dbrx" | "smaug-bpe" => words(&[LLAMA3]),
        "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" | "grok-2" | "solar-open" => words(&[QWEN2]),
        "qwen35" => words(&[QWEN35]),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            words(&[r"\p{N}", GPT2])
        }
        "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "gigachat" | "exaone4" | "trillion" | "granite-docling" => {
            words(&[GPT2])
        }
        "tekken" => whole(&[TEKKEN]),
        "gpt-4o" | "llama4" | "kanana2" | "minimax-m2" => words(&[GPT4O]),
        "deepseek-v3" | "hunyuan-dense" => {
            words(&[r"\p{N}{1,3}", r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+", DEEPSEEK3])
        }
        "deepseek-llm" => words(&[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3001}-\u{3002}]+",
            r"\s+$",
            DEEPSEEK_CJK,
            r"\p{N}+",
        ]),
        "deepseek-coder" => words(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"]),
        "falcon" => words(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
        "default" => words(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
        _ => None,
    }
}
