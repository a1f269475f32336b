//! llama.cpp's log lines as `tracing` events with target `llama.cpp`.
//!
//! llama.cpp logs through one process-wide function, in pieces: a line may come in several calls. Pieces are joined per
//! thread until their newline comes. llama.cpp is talkative, so its levels are lowered by one: its *info* is `DEBUG`
//! here. Errors stay errors, and `capture` collects them for the error value of the call that caused them. The sizes of
//! buffers are told nowhere but in its log: `capture_sizes` reads them there.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::catch_unwind;

use llama_cpp_sys_2 as sys;

/// Longest line kept; the rest of a longer one is cut off.
const MAX_LINE: usize = 2048;
/// Buffers kept by [`capture_sizes`]; there are a few a device.
const MAX_SIZES: usize = 256;
/// Error lines kept by [`capture`].
const MAX_CAPTURED: usize = 8;
/// How a warning ends that is none here: a context is larger than what the model was trained on because it holds the cells
/// of all its sequences, none of which grows that long.
const EXPECTED: &str = "possible training context overflow";

/// A buffer that llama.cpp said it made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BufferSize {
    /// What for: the words before `buffer size`, the device's name first, as in `CPU KV`.
    pub(crate) what: String,
    /// Bytes, to a hundredth of a MiB.
    pub(crate) bytes: u64,
}

#[derive(Default)]
struct ThreadLog {
    level: sys::ggml_log_level,
    line: String,
    captured: Option<Vec<String>>,
    sizes: Option<Vec<BufferSize>>,
}

thread_local! {
    static THREAD: RefCell<ThreadLog> = RefCell::new(ThreadLog::default());
}

/// Sends llama.cpp's log to `tracing`. Called once, by [`crate::Backend::init`].
pub(crate) fn install() {
    // SAFETY: `on_log` is a function for the life of the process and uses no user data.
    unsafe { sys::llama_log_set(Some(on_log), std::ptr::null_mut()) };
}

/// Runs `call` and returns, beside its result, the error lines that llama.cpp logged on this thread meanwhile, joined
/// by `; `.
pub(crate) fn capture<R>(call: impl FnOnce() -> R) -> (R, String) {
    let outer = THREAD.with_borrow_mut(|log| log.captured.replace(Vec::new()));
    let result = call();
    let lines = THREAD.with_borrow_mut(|log| std::mem::replace(&mut log.captured, outer)).unwrap_or_default();
    (result, lines.join("; "))
}

/// Like [`capture`]; the sizes of the buffers that llama.cpp logged on this thread meanwhile as well.
pub(crate) fn capture_sizes<R>(call: impl FnOnce() -> R) -> (R, String, Vec<BufferSize>) {
    let outer = THREAD.with_borrow_mut(|log| log.sizes.replace(Vec::new()));
    let (result, errors) = capture(call);
    let sizes = THREAD.with_borrow_mut(|log| std::mem::replace(&mut log.sizes, outer)).unwrap_or_default();
    (result, errors, sizes)
}

unsafe extern "C" fn on_log(level: sys::ggml_log_level, text: *const c_char, _user_data: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string that lives for this call.
    let text = unsafe { CStr::from_ptr(text) };
    // A subscriber that panics must not unwind into C; losing its line is all that happens.
    let _ = catch_unwind(|| {
        let text = text.to_string_lossy();
        // A thread that is ending has no line buffer any more, and a subscriber may itself log: both go unjoined.
        let joined = THREAD.try_with(|log| log.try_borrow_mut().map(|mut log| log.push(level, &text)));
        match joined {
            Ok(Ok(lines)) => lines.into_iter().for_each(|(level, line)| emit(level, &line)),
            _ => emit(level, text.trim_end()),
        }
    });
}

impl ThreadLog {
    /// Takes a piece of the log; returns the lines that it completes.
    fn push(&mut self, level: sys::ggml_log_level, text: &str) -> Vec<(sys::ggml_log_level, String)> {
        let mut done = Vec::new();
        if level != sys::GGML_LOG_LEVEL_CONT {
            self.finish_line(&mut done);
            self.level = level;
        }
        for piece in text.split_inclusive('\n') {
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.push_str(cut(piece.trim_end_matches('\n'), room));
            if piece.ends_with('\n') {
                self.finish_line(&mut done);
            }
        }
        done
    }

    fn finish_line(&mut self, done: &mut Vec<(sys::ggml_log_level, String)>) {
        let line = std::mem::take(&mut self.line);
        let line = line.trim_end();
        if line.trim_matches('.').is_empty() {
            return; // progress dots
        }
        if self.level == sys::GGML_LOG_LEVEL_ERROR
            && let Some(captured) = &mut self.captured
            && captured.len() < MAX_CAPTURED
        {
            captured.push(line.to_owned());
        }
        if let Some(sizes) = &mut self.sizes
            && sizes.len() < MAX_SIZES
        {
            sizes.extend(BufferSize::read(line));
        }
        done.push((self.level, line.to_owned()));
    }
}

impl BufferSize {
    /// Reads `function: DEVICE WHAT buffer size = 12.34 MiB`.
    fn read(line: &str) -> Option<Self> {
        let (what, size) = line.split_once(" buffer size = ")?;
        let (_, what) = what.split_once(": ")?;
        let mebibytes: f64 = size.trim().strip_suffix(" MiB")?.trim().parse().ok()?;
        let bytes = (mebibytes * f64::from(1 << 20)).round();
        (bytes >= 0.0).then(|| Self { what: what.trim().to_owned(), bytes: bytes as u64 })
    }
}

/// As much of `text` as fits `room` bytes, in whole characters.
fn cut(text: &str, room: usize) -> &str {
    let end = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

fn emit(level: sys::ggml_log_level, line: &str) {
    match level {
        sys::GGML_LOG_LEVEL_ERROR => tracing::error!(target: "llama.cpp", "{line}"),
        sys::GGML_LOG_LEVEL_WARN if !line.ends_with(EXPECTED) => tracing::warn!(target: "llama.cpp", "{line}"),
        sys::GGML_LOG_LEVEL_WARN | sys::GGML_LOG_LEVEL_INFO => tracing::debug!(target: "llama.cpp", "{line}"),
        _ => tracing::trace!(target: "llama.cpp", "{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_line_are_joined() {
        let mut log = ThreadLog::default();
        assert!(log.push(sys::GGML_LOG_LEVEL_INFO, "load: ").is_empty());
        assert!(log.push(sys::GGML_LOG_LEVEL_CONT, "layer 1").is_empty());
        let info = sys::GGML_LOG_LEVEL_INFO;
        assert_eq!(log.push(sys::GGML_LOG_LEVEL_CONT, ", done\n"), [(info, "load: layer 1, done".to_owned())]);
        // A new line ends one that never got its newline.
        assert!(log.push(info, "half").is_empty());
        let warn = sys::GGML_LOG_LEVEL_WARN;
        assert_eq!(
            log.push(warn, "a\nb\n"),
            [(info, "half".to_owned()), (warn, "a".to_owned()), (warn, "b".to_owned())]
        );
    }

    #[test]
    fn sizes_of_buffers_are_read() {
        let read = |line: &str| BufferSize::read(line).map(|size| (size.what, size.bytes));
        let found = read("llama_kv_cache:        CPU KV buffer size =     1.50 MiB");
        assert_eq!(found, Some(("CPU KV".to_owned(), 3 << 19)));
        let found = read("load_tensors:   CPU_Mapped model buffer size =   180.11 MiB");
        assert_eq!(found.unwrap().0, "CPU_Mapped model");
        for line in ["", "size = 1.00 MiB", "x: CPU KV buffer size = many MiB", "x: CPU KV buffer size = -1.00 MiB"] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn error_lines_are_captured_and_bounded() {
        let mut log = ThreadLog { captured: Some(Vec::new()), ..ThreadLog::default() };
        for i in 0..20 {
            log.push(sys::GGML_LOG_LEVEL_ERROR, &format!("e{i}{}\n", "é".repeat(MAX_LINE)));
        }
        log.push(sys::GGML_LOG_LEVEL_WARN, "w\n");
        let captured = log.captured.unwrap();
        assert_eq!(captured.len(), MAX_CAPTURED);
        assert!(captured.iter().all(|line| line.len() <= MAX_LINE));
    }
}
