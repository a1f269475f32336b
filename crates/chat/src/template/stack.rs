//! Room on the stack for what a template can nest.
//!
//! minijinja bounds the nesting of blocks and calls, but not that of values, nor of chains such as `1+1+1`: printing,
//! comparing or dropping one that is nested a hundred thousand times takes that many frames, and a stack that overflows
//! ends the process. So the work is done on a stack that is large enough for the deepest nesting that can be paid for.
//! (It is address space; memory is taken only as far as it is used.)

use std::thread;

use crate::error::ChatError;

/// For [`super::MAX_SOURCE`] bytes of source: two of them make a level of at most some 1,100 bytes of stack.
pub(super) const PARSING: usize = 128 << 20;

/// A level of nesting costs at least 8 fuel, and in a build without optimisation some 1,900 bytes of stack.
pub(super) fn for_fuel(fuel: u64) -> usize {
    const BYTES_PER_FUEL: u64 = 256;
    usize::try_from(fuel.saturating_mul(BYTES_PER_FUEL)).unwrap_or(usize::MAX)
}

/// Does `work` on a stack of `size` bytes.
pub(super) fn of_size<T: Send>(
    size: usize,
    work: impl FnOnce() -> Result<T, ChatError> + Send,
) -> Result<T, ChatError> {
    let failed = || ChatError::Render("the template engine failed".to_owned());
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat template".to_owned()).stack_size(size);
        match builder.spawn_scoped(scope, work) {
            // An error: a panic.
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(failed())),
            Err(_) => Err(ChatError::TooCostly),
        }
    })
}
