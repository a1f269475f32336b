//! What of a request has no effect, by path: for the header that says so.

/// Most paths that are kept. A header holds fewer, and a request may hold millions.
const MOST: usize = 100;

/// Paths in the order of the request, each once.
#[derive(Debug, Default)]
pub(crate) struct Ignored(Vec<String>);

impl Ignored {
    /// What is at `path` has no effect.
    pub(crate) fn push(&mut self, path: String) {
        if self.0.len() < MOST && !self.0.contains(&path) {
            self.0.push(path);
        }
    }
}

impl From<Ignored> for Vec<String> {
    fn from(ignored: Ignored) -> Self {
        ignored.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_kept_once_and_no_more_than_a_header_can_name() {
        let mut ignored = Ignored::default();
        for path in ["a", "b", "a"] {
            ignored.push(path.to_owned());
        }
        (0..MOST).for_each(|index| ignored.push(index.to_string()));
        let paths = Vec::from(ignored);
        assert_eq!((&paths[..3], paths.len()), (&["a".to_owned(), "b".into(), "0".into()][..], MOST));
    }
}
