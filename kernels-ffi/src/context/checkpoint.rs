//! The running state of a sequence's recurrent layers, kept on the host to be set back to later.

use llama_cpp_sys_2 as sys;

use super::Context;

/// Recurrent layers only (`LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`, a macro that the bindings leave out).
const PARTIAL_ONLY: sys::llama_state_seq_flags = 1;

/// What the recurrent layers held of a sequence when it had [`Checkpoint::len`] positions. Cached keys and values are
/// not part of it: those are cut back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    len: u32,
    bytes: Vec<u8>,
}

impl Checkpoint {
    /// Positions that the sequence had.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it is the state of an empty sequence; [`Context::checkpoint`] makes none of those.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it takes on the host.
    pub fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl Context {
    /// The state of `seq` now; `None` where it is empty, or the model has no recurrent layers.
    pub fn checkpoint(&mut self, seq: u32) -> Option<Checkpoint> {
        let len = self.seq_len(seq);
        let id = self.seq_id(seq).filter(|_| len > 0 && self.model.is_recurrent())?;
        // SAFETY: the context is live, no decode runs, and `id` is one of its sequences.
        let size = unsafe { sys::llama_state_seq_get_size_ext(self.raw.as_ptr(), id, PARTIAL_ONLY) };
        let mut bytes = vec![0; size];
        // SAFETY: as above; `bytes` has room for `size` bytes.
        let written =
            unsafe { sys::llama_state_seq_get_data_ext(self.raw.as_ptr(), bytes.as_mut_ptr(), size, id, PARTIAL_ONLY) };
        (written == size && size > 0).then_some(Checkpoint { len, bytes })
    }

    /// Cuts `seq` back to `checkpoint`, which has to be of this context, of that sequence or of one that it was copied
    /// from. False where that is impossible; the sequence is then empty.
    #[must_use]
    pub fn restore(&mut self, seq: u32, checkpoint: &Checkpoint) -> bool {
        let Some(id) = self.seq_id(seq) else { return false };
        let (data, size) = (checkpoint.bytes.as_ptr(), checkpoint.bytes.len());
        // SAFETY: the context is live, no decode runs, `id` is one of its sequences, and the bytes, which llama.cpp
        // checks against its own layout, are live for the call.
        let read = unsafe { sys::llama_state_seq_set_data_ext(self.raw.as_ptr(), data, size, id, PARTIAL_ONLY) };
        let restored = read > 0 && self.truncate(seq, checkpoint.len) && self.seq_len(seq) == checkpoint.len;
        if !restored {
            self.clear_seq(seq);
        }
        restored
    }
}
