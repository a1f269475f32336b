//! Where log lines go: stderr, always. Stdout belongs to what a command prints.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::sync::OnceLock;

use mesh_gateway::announce::Format;
use tracing_subscriber::EnvFilter;

/// What is logged unless `RUST_LOG` says otherwise. A node that is alone is nothing to warn of.
const DEFAULT_FILTER: &str =
    "info,llama.cpp=error,libp2p=warn,libp2p_kad=error,quinn=warn,h2=warn,hyper=warn,tonic=warn";
/// Tells a stage's child process its parent's format.
const STAGE_LOG_FORMAT: &str = "MESH_NODE_STAGE_LOG_FORMAT";

static FORMAT: OnceLock<Format> = OnceLock::new();

/// Installs the process's log subscriber. Once, at the start of `main`; later calls change nothing.
pub fn init(format: Format) {
    let format = *FORMAT.get_or_init(|| format);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error: a subscriber is there already.
    let _ = match format {
        Format::Text => builder.with_target(false).with_ansi(std::io::stderr().is_terminal()).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// The same for a stage's child process, whose stderr is its parent's: it writes as its parent does.
pub fn init_stage_process() {
    init(match std::env::var(STAGE_LOG_FORMAT) {
        Ok(format) if format == "json" => Format::Json,
        _ => Format::Text,
    });
}

/// The environment that makes a stage's child process write as this one does.
pub fn for_stage_process() -> Vec<(OsString, OsString)> {
    match FORMAT.get() {
        Some(Format::Json) => vec![(STAGE_LOG_FORMAT.into(), "json".into())],
        _ => Vec::new(),
    }
}
