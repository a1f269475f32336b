//! The ids of both tokenizers, compared: on the vectors of llama.cpp's source archive, on texts made to be hard, and for
//! every pre-tokenizer of the table.
#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod archive;
mod hostile;
mod kinds;
mod names;
