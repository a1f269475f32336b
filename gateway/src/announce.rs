//! The lines on standard output that say what became usable: `ready mesh …`, `ready gateway …`, `ready model …`.
//!
//! People read them and scripts wait for them: their form is a contract. Logs go elsewhere (stderr).

use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people: `ready KIND KEY=VALUE …`.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Something became usable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "ready", rename_all = "lowercase")]
pub enum Announcement {
    /// This node is in the mesh.
    Mesh {
        /// The mesh's id.
        id: String,
        /// This node's id.
        node: String,
        /// The join token, from the node that started the mesh only.
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    /// `/v1` is served.
    Gateway {
        /// `http://HOST:PORT/v1`.
        url: String,
    },
    /// A model answers.
    Model {
        /// The name it is served under.
        name: String,
        /// Number of stages.
        stages: usize,
        /// Node names in stage order.
        nodes: Vec<String>,
    },
}

/// Writes announcements, whole lines at a time.
pub struct Announcer {
    format: Format,
    out: Mutex<Box<dyn io::Write + Send>>,
}

impl Announcer {
    /// One that writes to standard output.
    pub fn stdout(format: Format) -> Self {
        Self::new(format, Box::new(io::stdout()))
    }

    /// One that writes to `out`.
    pub fn new(format: Format, out: Box<dyn io::Write + Send>) -> Self {
        Self { format, out: Mutex::new(out) }
    }

    /// Writes the line. Whoever read the output may be gone: that is no reason to stop serving.
    pub fn say(&self, announcement: &Announcement) {
        let line = announcement.line(self.format);
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
            tracing::debug!(%error, "nobody reads standard output");
        }
    }
}

impl Announcement {
    /// The line without its end.
    pub fn line(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            // Strings and numbers under string keys: serialising them cannot fail.
            Format::Json => serde_json::to_string(self).unwrap_or_default(),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Mesh { id, node, token } => {
                let token = token.as_ref().map(|token| format!(" token={token}")).unwrap_or_default();
                format!("ready mesh    id={} node={}{token}", value(id), value(node))
            }
            Self::Gateway { url } => format!("ready gateway url={url}"),
            Self::Model { name, stages, nodes } => {
                let nodes: Vec<_> = nodes.iter().map(|node| value(node)).collect();
                format!("ready model   name={} stages={stages} nodes={}", value(name), nodes.join(","))
            }
        }
    }
}

/// A value as it stands in a line: quoted as in JSON where it would not be one word, or not one item of a list.
fn value(text: &str) -> String {
    let plain = !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control() || "\",=".contains(c));
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_promised() {
        let mesh = Announcement::Mesh { id: "ab12".into(), node: "12D3".into(), token: Some("mesh1x".into()) };
        assert_eq!(mesh.line(Format::Text), "ready mesh    id=ab12 node=12D3 token=mesh1x");
        assert_eq!(mesh.line(Format::Json), r#"{"ready":"mesh","id":"ab12","node":"12D3","token":"mesh1x"}"#);
        let joined = Announcement::Mesh { id: "ab12".into(), node: "12D3".into(), token: None };
        assert_eq!(joined.line(Format::Text), "ready mesh    id=ab12 node=12D3");
        let gateway = Announcement::Gateway { url: "http://127.0.0.1:9337/v1".into() };
        assert_eq!(gateway.line(Format::Text), "ready gateway url=http://127.0.0.1:9337/v1");
        assert_eq!(gateway.line(Format::Json), r#"{"ready":"gateway","url":"http://127.0.0.1:9337/v1"}"#);
        let nodes = vec!["alpha".into(), "beta".into()];
        let model = Announcement::Model { name: "smollm2-135m-instruct.q4_1".into(), stages: 2, nodes };
        let expected = "ready model   name=smollm2-135m-instruct.q4_1 stages=2 nodes=alpha,beta";
        assert_eq!(model.line(Format::Text), expected);
        let expected = r#"{"ready":"model","name":"smollm2-135m-instruct.q4_1","stages":2,"nodes":["alpha","beta"]}"#;
        assert_eq!(model.line(Format::Json), expected);
    }

    #[test]
    fn a_value_of_several_words_stays_one_value() {
        let nodes = vec!["my laptop".into(), "b,c\n".into()];
        let model = Announcement::Model { name: "m".into(), stages: 2, nodes };
        assert_eq!(model.line(Format::Text), r#"ready model   name=m stages=2 nodes="my laptop","b,c\n""#);
    }
}
