//! Texts that are made to be cut wrongly: from a fixed seed, so that a failure can be repeated.

/// Pieces whose borders matter to some pre-tokenizer or other.
const PIECES: [&str; 64] = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\u{a0}",
    "\u{2003}",
    "\u{3000}",
    "\u{2028}",
    "\u{85}",
    "\u{b}",
    "a",
    "Z",
    "don't",
    "I'LL",
    "'s",
    "'",
    "’s",
    "we'Re",
    "word",
    "CamelCase",
    "ÄÖü",
    "ß",
    "é",
    "e\u{301}",
    "ñ",
    "İ",
    "ǅ",
    "ʰ",
    "ª",
    "Привет",
    "שלום",
    "مرحبا",
    "नमस्ते",
    "ไทย",
    "中文",
    "日本語",
    "한국어",
    "ꙮ",
    "𐍈",
    "𝔘",
    "0",
    "12",
    "345",
    "6789",
    "٣٤",
    "²",
    "½",
    "Ⅷ",
    "?!",
    "...",
    "</",
    "_",
    "$",
    "€",
    "+=",
    "😀",
    "👩‍👩‍👧",
    "🇩🇪",
    "\u{200b}",
    "\u{fffd}",
];

/// Single characters of all planes beside which a border may lie.
const RARE: [(u32, u32); 12] = [
    (0x00, 0x2ff),
    (0x300, 0x5ff),
    (0x600, 0x1fff),
    (0x2000, 0x2fff),
    (0x3000, 0x33ff),
    (0x4e00, 0x4eff),
    (0xa000, 0xabff),
    (0xac00, 0xacff),
    (0xe000, 0xe0ff),
    (0xf900, 0xffff),
    (0x1_0000, 0x1_ffff),
    (0xe_0000, 0xe_01ef),
];

/// Numbers from a seed (xorshift64*).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % limit
    }
}

/// `count` texts; some hold texts of `specials`.
pub(crate) fn texts(count: u64, specials: &[String]) -> Vec<String> {
    (0..count).map(|seed| text(&mut Numbers::new(seed + 1), specials)).collect()
}

fn text(numbers: &mut Numbers, specials: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..1 + numbers.below(40) {
        match numbers.below(12) {
            0 => text.push_str(&PIECES[numbers.below(PIECES.len())].repeat(1 + numbers.below(40))),
            1 | 2 => text.push(rare(numbers)),
            3 if !specials.is_empty() => text.push_str(&specials[numbers.below(specials.len())]),
            4 if !specials.is_empty() => {
                let special = &specials[numbers.below(specials.len())];
                text.extend(special.chars().skip(numbers.below(2)).take(1 + numbers.below(12)));
            }
            _ => text.push_str(PIECES[numbers.below(PIECES.len())]),
        }
    }
    text
}

fn rare(numbers: &mut Numbers) -> char {
    let (from, to) = RARE[numbers.below(RARE.len())];
    char::from_u32(from + numbers.below((to - from + 1) as usize) as u32).unwrap_or('\u{fffd}')
}
