//! The commands that ask a running node, or one of its mesh.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::NodeArgs;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// What the node is doing, in a few lines.
    Status(AskArgs),
    /// The nodes of the mesh, as the node sees them.
    Peers(PeersArgs),
    /// The models served in the mesh: whether they answer, and where their layers run.
    Models(AskArgs),
    /// The stages that run on each node.
    Stages(AskArgs),
    /// How a model would be placed on the nodes now: the candidates with their predicted speed, and why a node is left
    /// out.
    Plan(PlanArgs),
    /// Serve one more model: a .gguf file of the node, or one that it served before.
    Load(LoadArgs),
    /// Stop serving a model. Runs that have begun get ten seconds to end.
    Unload(UnloadArgs),
    /// Take no new requests and stages, so that the node can go without harm; stages of other nodes' models move away.
    Drain(DrainArgs),
    /// Print the token that lets other machines join. Treat it like a password.
    Token(TokenArgs),
}

/// What these commands share.
#[derive(Debug, Clone, Default, Args)]
pub struct AskArgs {
    /// Print JSON with a stable schema.
    #[arg(long)]
    pub json: bool,
    /// The data directory of the local node [default: $XDG_DATA_HOME/mesh-node].
    #[arg(long, value_name = "DIR", env = "MESH_NODE_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Ask this node of the mesh, by its name or id, through the local one.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Print anew every second until interrupted; `load` and `drain`: until it is done. With --json, a line each time.
    #[arg(long)]
    pub watch: bool,
}

/// `peers`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PeersArgs {
    /// What to change; none: list them.
    #[command(subcommand)]
    pub change: Option<PeersCommand>,
    /// See [`AskArgs`].
    #[command(flatten)]
    pub ask: AskArgs,
}

/// What `peers` changes.
#[derive(Debug, Subcommand)]
pub enum PeersCommand {
    /// Keep a node out of the mesh, whatever token it has; its connections close at once. It can come back under a new
    /// identity for as long as it has a token that works: `mesh-node token --rotate`.
    Block(PeerArgs),
    /// Let a node in again that was blocked.
    Unblock(PeerArgs),
}

/// `peers block`, `peers unblock`.
#[derive(Debug, Args)]
pub struct PeerArgs {
    /// The node's name, or its id as `mesh-node peers --json` shows it.
    #[arg(value_name = "NAME|ID")]
    pub peer: String,
    /// See [`AskArgs`].
    #[command(flatten)]
    pub ask: AskArgs,
}

/// `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The name of a model that is served in the mesh, or the path of a .gguf file on the node that is asked.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// See [`AskArgs`].
    #[command(flatten)]
    pub ask: AskArgs,
}

/// `load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The path of a .gguf file on the node that is asked, or the name of a model that it served before.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// How to spread it: `auto`, `never`, or inclusive layer ranges as in 0-9,10-19,20-29 [default: as the node was
    /// told for its models].
    #[arg(long, value_name = "auto|never|RANGES")]
    pub split: Option<String>,
    /// See [`AskArgs`].
    #[command(flatten)]
    pub ask: AskArgs,
}

/// `unload`.
#[derive(Debug, Args)]
pub struct UnloadArgs {
    /// The model's name. Where several nodes serve it, --node says on which.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// See [`AskArgs`].
    #[command(flatten)]
    pub ask: AskArgs,
}

/// `drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Take new requests and stages again.
    #[arg(long)]
    pub off: bool,
    /// See [`AskArgs`].
    #[command(flatten)]
    pub ask: AskArgs,
}

/// `token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Make one that lets nobody in after this time, as in 30m, 24h or 7d.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub expires: Option<Duration>,
    /// Replace the mesh's secret first: tokens made before let nobody in any more. The nodes of the mesh stay.
    #[arg(long)]
    pub rotate: bool,
    /// See [`AskArgs`].
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Seconds, minutes, hours or days, as in `24h`.
fn span(text: &str) -> Result<Duration, String> {
    let bad = || "a number and a unit are expected, as in 30m, 24h or 7d".to_owned();
    let unit = text.chars().next_back().ok_or_else(bad)?;
    let count: u64 = text.strip_suffix(unit).unwrap_or_default().parse().map_err(|_| bad())?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(bad()),
    };
    count.checked_mul(seconds).filter(|span| *span > 0).map(Duration::from_secs).ok_or_else(bad)
}

/// `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON with a stable schema.
    #[arg(long)]
    pub json: bool,
    /// Examine this node of the mesh, by its name or id, through the local one.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Look again every few seconds until interrupted.
    #[arg(long)]
    pub watch: bool,
    /// A token to look at, `-` reads it from standard input: whether it is good, and whether a node answers to which it
    /// leads.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Read that token from this file.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// See [`NodeArgs`].
    #[command(flatten)]
    pub would_be: NodeArgs,
}

impl AdminCommand {
    /// What the command shares with the others.
    pub fn shared(&self) -> &AskArgs {
        match self {
            Self::Status(ask) | Self::Models(ask) | Self::Stages(ask) => ask,
            Self::Peers(peers) => match &peers.change {
                None => &peers.ask,
                Some(PeersCommand::Block(peer) | PeersCommand::Unblock(peer)) => &peer.ask,
            },
            Self::Token(token) => &token.ask,
            Self::Plan(plan) => &plan.ask,
            Self::Load(load) => &load.ask,
            Self::Unload(unload) => &unload.ask,
            Self::Drain(drain) => &drain.ask,
        }
    }
}
