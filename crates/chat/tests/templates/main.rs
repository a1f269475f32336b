//! The chat templates that models come with, as llama.cpp's source archive collects them: rendered as Jinja2 renders
//! them, and their calls read back. `scripts/upstream` fetches them.

mod archive;
mod calls;
mod conversations;
mod differential;
mod matrix;
mod mutation;
mod random;
mod round_trip;
mod strategies;
