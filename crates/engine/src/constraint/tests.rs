mod closing;
mod grammars;
mod phases;

use mesh_types::{LayerRange, ModelId, RequestId, Sampling, TokenId};

use super::*;
use crate::frame::{DrawFailure, Open, SeqId};
use crate::run::Run;
use crate::sampling::Drawer;
use crate::stage::StageSpec;

/// Ends a generation.
const END: i32 = 256;

/// Every byte, an end, control tokens, and tokens that cross the borders which grammars have.
fn pieces() -> Vec<Piece> {
    let mut pieces: Vec<Piece> = (0..=255u8).map(|byte| Piece::Text([byte].into())).collect();
    pieces.push(Piece::End);
    pieces.extend(["<|im_start|>", "[CALL]", "<think>", "</think>"].map(|name| Piece::Control(name.into())));
    let words = [
        "{\"",
        "\":",
        "\": ",
        "\"}",
        "}}",
        "},",
        "\", \"",
        "[]",
        "\"\"",
        "true",
        "false",
        "null",
        "name",
        "arguments",
        " the",
        " a",
        "\n\n",
        "<tool",
        "_call>",
        "<tool_call>",
        "_call>{",
        "call>\n",
        ">\n{\"",
        "</tool_call>",
        "CALL {\"name\"",
        "é",
        "10",
        "}\n",
        "]}",
        "ab",
        "abc",
    ];
    pieces.extend(words.map(|word| Piece::Text(word.as_bytes().into())));
    pieces.push(Piece::Nothing);
    pieces
}

fn token(text: &str) -> TokenId {
    let is_it = |piece: &Piece| match piece {
        Piece::Text(bytes) => **bytes == *text.as_bytes(),
        Piece::Control(name) => **name == *text,
        _ => false,
    };
    TokenId(pieces().iter().position(is_it).expect("a token of the test's vocabulary") as i32)
}

fn tokens(texts: &[&str]) -> Vec<TokenId> {
    texts.iter().map(|text| token(text)).collect()
}

/// The longest tokens first, without control tokens.
fn spell(text: &str) -> Vec<TokenId> {
    let (pieces, mut rest, mut spelt) = (pieces(), text.as_bytes(), Vec::new());
    while !rest.is_empty() {
        let fits = |piece: &Piece| match piece {
            Piece::Text(bytes) if rest.starts_with(bytes) => bytes.len(),
            _ => 0,
        };
        let (at, piece) = pieces.iter().enumerate().max_by_key(|(_, piece)| fits(piece)).expect("tokens");
        rest = &rest[fits(piece)..];
        spelt.push(TokenId(at as i32));
    }
    spelt
}

fn read(tokens: &[TokenId]) -> String {
    let pieces = pieces();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| match &pieces[token.0 as usize] {
            Piece::Text(bytes) => bytes.to_vec(),
            Piece::Control(name) => name.as_bytes().to_vec(),
            _ => Vec::new(),
        })
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn enforcer() -> Enforcer {
    Enforcer::new(Lexicon::new(pieces()))
}

fn open(constraint: &Constraint, budget: u32) -> Constrained {
    enforcer().open(constraint, budget).expect("a constraint that can be enforced")
}

fn json(schema: &str) -> Constraint {
    Constraint::immediately(format!("start: %json {schema}"))
}

/// Which tokens may come next: taking them is the judge, and the mask agrees.
fn possible(constrained: &mut Constrained, history: &[TokenId], token: TokenId) -> bool {
    let mut logits = vec![0.0; pieces().len()];
    constrained.follow(history).expect("a possible history");
    constrained.restrict_all(&mut logits).expect("a mask");
    let masked = logits[token.0 as usize] > f32::NEG_INFINITY;
    let taken = constrained.take(token).expect("a state") == Taken::Yes;
    assert_eq!(masked, taken, "mask and taking disagree on {:?} behind {:?}", read(&[token]), read(history));
    constrained.follow(history).expect("a possible history");
    taken
}

fn allows(constraint: &Constraint, before: &[TokenId], token: TokenId) -> bool {
    possible(&mut open(constraint, 10_000), before, token)
}

/// How a run of a model whose logits are noise goes.
struct Noise {
    seed: u64,
    temperature: f32,
    max_tokens: u32,
    /// Added to the logit of a token.
    lift: (i32, f32),
}

struct Outcome {
    tokens: Vec<TokenId>,
    text: String,
    ended: bool,
}

impl Noise {
    fn run(&self, enforcer: &mut Enforcer, constraint: &Constraint) -> Result<Outcome, DrawFailure> {
        let n_vocab = pieces().len() as u32;
        let spec = StageSpec {
            model: ModelId::new("noise"),
            layers: LayerRange::new(0, 1).expect("a layer"),
            n_layer: 1,
            n_embd: 1,
            n_vocab,
            n_ctx: 100_000,
            n_seq: 1,
            n_batch: 1,
            n_cells: 100_000,
            cuts_back: true,
            rolls_back: true,
            n_parked: 0,
            n_states: 0,
        };
        let sampling = Sampling { seed: self.seed, temperature: self.temperature, ..Sampling::default() };
        let all = Open::new(SeqId(0), RequestId::new("r"), 1, sampling);
        let open = Open { max_tokens: self.max_tokens, constraint: Some(constraint.clone()), ..all };
        let mut run = Run::new(open, &spec, Some(enforcer));
        let mut drawer = Drawer::with_end_tokens([END].into());
        let mut tokens = Vec::new();
        for position in 1..=self.max_tokens {
            let drawn = run.draw(&mut drawer, &self.logits(position, n_vocab), position)?.token;
            if drawn.0 == END {
                return Ok(Outcome { text: read(&tokens), tokens, ended: true });
            }
            tokens.push(drawn);
            run.computed(position, [drawn].into_iter());
        }
        Ok(Outcome { text: read(&tokens), tokens, ended: false })
    }

    fn logits(&self, position: u32, n_vocab: u32) -> Vec<f32> {
        let noise = |token: u32| {
            let mut x = self.seed ^ u64::from(position) << 20 ^ u64::from(token) << 40;
            x = (x ^ x >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
            x = (x ^ x >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
            ((x ^ x >> 33) >> 40) as f32 / (1u64 << 24) as f32 * 8.0
        };
        let mut logits: Vec<f32> = (0..n_vocab).map(noise).collect();
        logits[self.lift.0 as usize] += self.lift.1;
        logits
    }
}
