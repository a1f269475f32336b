//! What a sequence holds, moved to the host's memory and back.

use llama_cpp_sys_2 as sys;

use super::Context;

/// All that a context held of a sequence: its cached keys and values, and the state of recurrent layers.
#[derive(Clone, PartialEq, Eq)]
pub struct Saved {
    len: u32,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Saved({} positions, {} bytes)", self.len, self.bytes.len())
    }
}

impl Saved {
    /// Positions that the sequence had.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it is of an empty sequence; [`Context::save`] makes none of those.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it takes on the host.
    pub fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl Context {
    /// Copies all that is held of `seq`; `None` where it is empty.
    pub fn save(&mut self, seq: u32) -> Option<Saved> {
        let len = self.seq_len(seq);
        let id = self.seq_id(seq).filter(|_| len > 0)?;
        // SAFETY: the context is live, no decode runs, and `id` is one of its sequences.
        let size = unsafe { sys::llama_state_seq_get_size_ext(self.raw.as_ptr(), id, 0) };
        let mut bytes = vec![0; size];
        // SAFETY: as above; `bytes` has room for `size` bytes.
        let written = unsafe { sys::llama_state_seq_get_data_ext(self.raw.as_ptr(), bytes.as_mut_ptr(), size, id, 0) };
        (written == size && size > 0).then_some(Saved { len, bytes })
    }

    /// Gives `seq`, which is emptied first, what was saved of some sequence of this context. False where there is no room
    /// for it; the sequence is then empty.
    #[must_use]
    pub fn load(&mut self, seq: u32, saved: &Saved) -> bool {
        self.clear_seq(seq);
        let Some(id) = self.seq_id(seq) else { return false };
        let (data, size) = (saved.bytes.as_ptr(), saved.bytes.len());
        // SAFETY: the context is live, no decode runs, `id` is one of its sequences, and the bytes, which llama.cpp
        // checks against its own layout, are live for the call.
        let read = unsafe { sys::llama_state_seq_set_data_ext(self.raw.as_ptr(), data, size, id, 0) };
        let loaded = read > 0 && self.seq_len(seq) == saved.len;
        if !loaded {
            self.clear_seq(seq);
        }
        loaded
    }
}
