//! File descriptors: one for each connection, of which shells allow a process few by default.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process have as many files open as it may allow itself. Call it once, at the start; where it cannot be
/// done, that is logged, and connections beyond what there is room for wait to be accepted.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(?current, ?maximum, "more files may be open"),
        Err(error) => tracing::warn!(%error, ?current, "no more files may be open at a time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_as_may_be_open_may_be_open() {
        raise_open_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
