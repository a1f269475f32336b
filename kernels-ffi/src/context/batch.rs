//! What goes into a decode, and the arrays in which llama.cpp takes it.

use llama_cpp_sys_2 as sys;

use crate::model::Model;

/// What goes into a decode.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Token ids, one per place.
    Tokens(&'a [i32]),
    /// Hidden rows: row-major `[places, n_embd]`.
    Rows(&'a [f32]),
    /// Hidden rows, as above, that are written over the injected tensor, while the graph is fed with token 0 in every
    /// place: for families that take rows for an image, or not at all.
    Covered(&'a [f32]),
    /// Hidden rows that are written over the injected tensor, while the graph is fed with these tokens, one per place:
    /// for families that make something of the tokens for every layer.
    Beside(&'a [f32], &'a [i32]),
}

/// Where one token of a decode belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position in its sequence.
    pub pos: u32,
    /// Its sequence.
    pub seq: u32,
    /// Whether its output row is wanted. A tapped stage marks all.
    pub output: bool,
}

/// One decode.
#[derive(Clone, Copy, Debug)]
pub struct DecodeInput<'a> {
    /// Tokens or rows.
    pub input: Input<'a>,
    /// One place per token; those of one sequence ascending.
    pub places: &'a [Place],
}

/// The arrays of a `llama_batch`, reused between decodes.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pos: Vec<i32>,
    n_seq_id: Vec<i32>,
    seq: Vec<i32>,
    seq_id: Vec<*mut i32>,
    output: Vec<i8>,
    padded: Vec<f32>,
    placeholders: Vec<i32>,
}

impl Scratch {
    /// The batch as C sees it: pointers into `self` and `input`.
    pub(super) fn fill(&mut self, input: &DecodeInput<'_>, model: &Model) -> sys::llama_batch {
        let n = input.places.len();
        self.pos.clear();
        self.pos.extend(input.places.iter().map(|place| place.pos as i32));
        if let Input::Rows(_) = input.input {
            // M-RoPE rows carry four positions, section by section; in text the first three are equal, the last is 0.
            for section in 1..model.positions_per_row() {
                let value = |place: &Place| if section == 3 { 0 } else { place.pos as i32 };
                self.pos.extend(input.places.iter().map(value));
            }
        }
        self.seq.clear();
        self.seq.extend(input.places.iter().map(|place| place.seq as i32));
        self.seq_id.clear();
        self.seq_id.extend(self.seq.iter_mut().map(std::ptr::from_mut));
        self.n_seq_id.clear();
        self.n_seq_id.resize(n, 1);
        self.output.clear();
        self.output.extend(input.places.iter().map(|place| i8::from(place.output)));
        let (token, embd) = match input.input {
            Input::Tokens(tokens) | Input::Beside(_, tokens) => (tokens.as_ptr().cast_mut(), std::ptr::null_mut()),
            Input::Rows(rows) => (std::ptr::null_mut(), self.pad_rows(rows, model).as_ptr().cast_mut()),
            Input::Covered(_) => {
                self.placeholders.clear();
                self.placeholders.resize(n, 0);
                (self.placeholders.as_mut_ptr(), std::ptr::null_mut())
            }
        };
        sys::llama_batch {
            n_tokens: n as i32,
            token,
            embd,
            pos: self.pos.as_mut_ptr(),
            n_seq_id: self.n_seq_id.as_mut_ptr(),
            seq_id: self.seq_id.as_mut_ptr(),
            logits: self.output.as_mut_ptr(),
        }
    }

    /// Rows as wide as the model's input: the same slice where that is the width of a hidden row.
    fn pad_rows<'a>(&'a mut self, rows: &'a [f32], model: &Model) -> &'a [f32] {
        let (width, wanted) = (model.n_embd() as usize, model.n_embd_inp() as usize);
        if wanted <= width || width == 0 {
            return rows;
        }
        self.padded.clear();
        for row in rows.chunks_exact(width) {
            self.padded.extend_from_slice(row);
            self.padded.resize(self.padded.len() + wanted - width, 0.0);
        }
        &self.padded
    }
}
