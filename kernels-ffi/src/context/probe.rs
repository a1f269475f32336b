//! The callbacks through which rows leave a graph in the middle, enter it behind its input, and a decode is aborted.
//!
//! ggml's scheduler asks for every operation's result whether it is wanted (`ask`), computes up to it, and shows it.
//! Answering `false` then ends this part of the graph. Whatever is asked about is not computed yet, so that is also when
//! a factor in an operation's own parameters can be replaced.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_sys_2 as sys;

use super::ContextParams;
use crate::model::Model;

/// Bytes of a tensor's name in ggml, the closing NUL included.
pub(super) const MAX_NAME: usize = 64;

/// Why rows could not be taken out or put in. The rows are never guessed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeFault {
    /// The tensor did not come up, or more than once.
    #[error("the tensor `{name}` came up {times} times in a decode, not once")]
    Count {
        /// Its name.
        name: String,
        /// How often.
        times: u32,
    },
    /// It is not what rows look like.
    #[error(
        "the tensor `{name}` is not {n_tokens} contiguous f32 rows of {n_embd}, but has {values} values of type {kind}"
    )]
    Shape {
        /// Its name.
        name: String,
        /// Rows expected.
        n_tokens: usize,
        /// Values per row expected.
        n_embd: usize,
        /// Values it has.
        values: i64,
        /// ggml's number of its type.
        kind: u32,
    },
    /// Not every layer's queries are multiplied with a factor.
    #[error("the queries of {times} layers were multiplied with a factor, and the model has {layers}")]
    Queries {
        /// How many were.
        times: u32,
        /// Layers of the model.
        layers: u32,
    },
    /// There are no rows to put in: tokens came in.
    #[error("the tensor `{name}` takes rows, but tokens came in")]
    NoRows {
        /// Its name.
        name: String,
    },
}

/// What the callback works on. llama.cpp has a pointer to it for as long as the context lives.
#[derive(Debug)]
pub(super) struct Probe {
    tap: Option<Watch>,
    inject: Option<Watch>,
    queries: Option<Queries>,
    n_embd: usize,
    n_tokens: usize,
    /// Tapped rows of this decode.
    pub(super) rows: Vec<f32>,
    /// Rows to put in; valid only during a decode.
    input: *const f32,
    has_input: bool,
    fault: Option<ProbeFault>,
}

/// A tensor to watch for, and how often it came up in this decode.
#[derive(Debug)]
struct Watch {
    name: String,
    times: u32,
}

/// The factor on queries.
#[derive(Debug)]
struct Queries {
    factor: f32,
    layers: u32,
    /// Layers whose factor was set in this decode.
    times: u32,
}

/// What the queries are called, before a layer's number, where they are multiplied.
const QUERIES: &[u8] = b"Qcur-";

impl Queries {
    /// Sets the factor, if `tensor` is the product.
    ///
    /// # Safety
    /// `tensor` is live, as are those that it is made of, and not computed yet.
    unsafe fn set(&mut self, tensor: *mut sys::ggml_tensor) {
        // SAFETY: the caller's promise; an operation of this kind has one source, and its factor is the first float of
        // its parameters (`ggml_scale_impl` in ggml.c).
        unsafe {
            let source = (*tensor).src[0];
            let is_named = |name: &[c_char; MAX_NAME]| QUERIES.iter().zip(name).all(|(w, n)| *w == *n as u8);
            if (*tensor).op == sys::GGML_OP_SCALE && !source.is_null() && is_named(&(*source).name) {
                (*tensor).op_params[0] = self.factor.to_bits().cast_signed();
                self.times += 1;
            }
        }
    }
}

impl Watch {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), times: 0 }
    }

    fn is(&self, name: &[c_char; MAX_NAME]) -> bool {
        let wanted = self.name.as_bytes();
        wanted.iter().zip(name).all(|(w, n)| *w == *n as u8) && name.get(wanted.len()) == Some(&0)
    }
}

impl Probe {
    pub(super) fn new(params: &ContextParams, model: &Model) -> Self {
        let queries = |factor| Queries { factor, layers: model.n_layer(), times: 0 };
        Self {
            tap: params.tap.as_deref().map(Watch::new),
            inject: params.inject.as_deref().map(Watch::new),
            queries: params.query_factor.map(queries),
            n_embd: model.n_embd() as usize,
            n_tokens: 0,
            rows: Vec::new(),
            input: std::ptr::null(),
            has_input: false,
            fault: None,
        }
    }

    /// Before a decode of `n_tokens`. `input` is the rows that come in; it must outlive the decode.
    pub(super) fn arm(&mut self, input: &[f32], n_tokens: usize) {
        self.n_tokens = n_tokens;
        self.rows.clear();
        self.input = input.as_ptr();
        self.has_input = input.len() == n_tokens * self.n_embd;
        self.fault = None;
        self.tap.iter_mut().chain(&mut self.inject).for_each(|watch| watch.times = 0);
        self.queries.iter_mut().for_each(|queries| queries.times = 0);
    }

    /// After a decode.
    pub(super) fn verdict(&mut self) -> Result<(), ProbeFault> {
        self.input = std::ptr::null();
        self.has_input = false;
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        if let Some(queries) = self.queries.as_ref().filter(|queries| queries.times != queries.layers) {
            return Err(ProbeFault::Queries { times: queries.times, layers: queries.layers });
        }
        match self.tap.iter().chain(&self.inject).find(|watch| watch.times != 1) {
            Some(watch) => Err(ProbeFault::Count { name: watch.name.clone(), times: watch.times }),
            None => Ok(()),
        }
    }

    /// Before a tensor is computed: whether it is watched.
    ///
    /// # Safety
    /// `tensor` is live, as are those that it is made of.
    unsafe fn wants(&mut self, tensor: *mut sys::ggml_tensor) -> bool {
        if let Some(queries) = &mut self.queries {
            // SAFETY: the caller's promise.
            unsafe { queries.set(tensor) };
        }
        // SAFETY: the caller's promise.
        let name = unsafe { &(*tensor).name };
        self.tap.iter().chain(&self.inject).any(|watch| watch.is(name))
    }

    /// Looks at a computed tensor; says whether the graph goes on.
    ///
    /// # Safety
    /// `tensor` is a live tensor whose data is computed.
    unsafe fn see(&mut self, tensor: *mut sys::ggml_tensor) -> bool {
        // SAFETY: the caller's promise.
        let name = unsafe { &(*tensor).name };
        let is_tap = self.tap.as_ref().is_some_and(|watch| watch.is(name));
        let watch = if is_tap { &mut self.tap } else { &mut self.inject };
        let Some(watch) = watch.as_mut().filter(|watch| watch.is(name)) else { return true };
        watch.times += 1;
        if watch.times > 1 {
            return !is_tap; // `verdict` reports it
        }
        let n = self.n_tokens * self.n_embd;
        // SAFETY: the caller's promise.
        let (values, kind, fits) = unsafe {
            let (values, kind) = (sys::ggml_nelements(tensor), (*tensor).type_);
            let is_row = (*tensor).ne[0] == self.n_embd as i64 && sys::ggml_is_contiguous(tensor);
            (values, kind, is_row && kind == sys::GGML_TYPE_F32 && values == n as i64)
        };
        let name = || watch.name.clone();
        if !fits {
            let (n_tokens, n_embd) = (self.n_tokens, self.n_embd);
            #[allow(clippy::unnecessary_cast)] // the enum's type differs between platforms
            let kind = kind as u32;
            self.fault.get_or_insert(ProbeFault::Shape { name: name(), n_tokens, n_embd, values, kind });
        } else if is_tap {
            self.rows.resize(n, 0.0);
            // SAFETY: the tensor has `n` contiguous f32 values, and `rows` has room for them.
            unsafe { sys::ggml_backend_tensor_get(tensor, self.rows.as_mut_ptr().cast(), 0, n * size_of::<f32>()) };
        } else if self.has_input {
            // SAFETY: the tensor has `n` contiguous f32 values, and so has `input`, alive during this decode.
            unsafe { sys::ggml_backend_tensor_set(tensor, self.input.cast(), 0, n * size_of::<f32>()) };
        } else {
            self.fault.get_or_insert(ProbeFault::NoRows { name: name() });
        }
        !is_tap
    }
}

/// ggml's scheduler callback; `data` is a [`Probe`].
pub(super) unsafe extern "C" fn on_eval(tensor: *mut sys::ggml_tensor, ask: bool, data: *mut c_void) -> bool {
    let look = AssertUnwindSafe(|| {
        // SAFETY: the context passed its probe, which outlives it, and touches it only while no decode runs; the
        // scheduler calls from one thread. The tensor is live, and computed where `ask` is false.
        unsafe {
            let probe = &mut *data.cast::<Probe>();
            if ask { probe.wants(tensor) } else { probe.see(tensor) }
        }
    });
    // Unwinding must not reach C. A probe that panicked has not counted its tensor, or counted it with no rows: `false`
    // ends the graph, and `verdict` or the row count reports it.
    catch_unwind(look).unwrap_or(false)
}

/// ggml's abort callback; `data` is the flag of an [`super::AbortHandle`].
pub(super) unsafe extern "C" fn on_abort_check(data: *mut c_void) -> bool {
    // SAFETY: the context holds the handle whose flag this points to until it has given llama.cpp another.
    unsafe { &*data.cast::<AtomicBool>() }.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_a_whole() {
        let name = |text: &str| {
            let mut name = [0; MAX_NAME];
            text.bytes().zip(&mut name).for_each(|(byte, slot)| *slot = byte as c_char);
            name
        };
        let watch = Watch::new("l_out-1");
        assert!(watch.is(&name("l_out-1")));
        for other in ["l_out-11", "l_out-", "", "l_out-1 (view)"] {
            assert!(!watch.is(&name(other)), "{other}");
        }
    }

    #[test]
    fn a_tap_that_never_came_is_a_fault() {
        let (tap, input) = (Some(Watch::new("l_out-0")), std::ptr::null());
        let rows = Vec::new();
        let mut probe = Probe {
            tap,
            inject: None,
            queries: None,
            n_embd: 4,
            n_tokens: 0,
            rows,
            input,
            has_input: false,
            fault: None,
        };
        probe.arm(&[], 1);
        assert_eq!(probe.verdict(), Err(ProbeFault::Count { name: "l_out-0".to_owned(), times: 0 }));
    }
}
