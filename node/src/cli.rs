//! The command line of `mesh-node`, as typed. [`crate::settings`] turns it into something validated.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use mesh_gateway::announce::Format;
use mesh_types::ByteSize;

mod admin;

pub use admin::{
    AdminCommand, AskArgs, DoctorArgs, DrainArgs, LoadArgs, PeerArgs, PeersArgs, PeersCommand, PlanArgs, TokenArgs,
    UnloadArgs,
};

/// Turns the machines you have into one inference mesh behind an OpenAI-compatible /v1.
#[derive(Debug, Parser)]
#[command(name = "mesh-node", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a mesh (or resume the one in the data directory) and print its join token.
    Up(UpArgs),
    /// Join a mesh, offering this machine's memory and any models given.
    Join(JoinArgs),
    /// Ask a running node.
    #[command(flatten)]
    Admin(AdminCommand),
    /// What is wrong with the node or its mesh, and what to do about it. Where no node runs: with one that would be
    /// started with these flags.
    Doctor(DoctorArgs),
    /// What a model file is, and whether and where it can be split. Needs no node.
    Inspect(InspectArgs),
    /// Try out a chat template: what it can do, what it renders, how an answer is read. Needs no node.
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Runs one stage of a model for the node that started this process. Not for people.
    #[command(name = crate::stages::STAGE_COMMAND, hide = true)]
    StageProcess,
    /// Runs a model that pools for the node that started this process. Not for people.
    #[command(name = crate::stages::POOLER_COMMAND, hide = true)]
    PoolerProcess,
}

/// `up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// See [`NodeArgs`].
    #[command(flatten)]
    pub node: NodeArgs,
}

/// `join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// The token that `mesh-node up` printed; `-` reads it from standard input.
    #[arg(value_name = "TOKEN", required_unless_present = "token_file", conflicts_with = "token_file")]
    pub token: Option<String>,
    /// Read the token from this file (command lines are visible to other users).
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// See [`NodeArgs`].
    #[command(flatten)]
    pub node: NodeArgs,
}

/// What `up` and `join` share. An absent flag leaves the configuration file's value, then the default.
#[derive(Debug, Default, Args)]
pub struct NodeArgs {
    /// A model to serve: the path of a .gguf file (the first shard of a sharded one). May be repeated.
    #[arg(long = "model", value_name = "REF")]
    pub models: Vec<String>,
    /// Answer from the script in this file instead of from the models' weights: for tests of clients. /v1/models says so.
    #[arg(long, value_name = "FILE")]
    pub scripted: Option<PathBuf>,
    /// This node's name in the mesh [default: the host name].
    #[arg(long)]
    pub name: Option<String>,
    /// Where the node keeps its key, its mesh and its cache [default: $XDG_DATA_HOME/mesh-node].
    #[arg(long, value_name = "DIR", env = "MESH_NODE_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// A TOML file with the same settings; flags win.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How log lines (on stderr) and ready lines (on stdout) look.
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<Format>,
    /// Where to serve /v1, or `off` [default: 127.0.0.1:9337, or a free port if that is busy].
    #[arg(long, value_name = "ADDR|off")]
    pub gateway: Option<String>,
    /// Where other nodes reach this one: PORT/tcp for the mesh and PORT/udp for activations; port 0 picks one
    /// [default: 0.0.0.0:9338].
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<SocketAddr>,
    /// Requests that the gateway answers at the same time; more are refused with 429 [default: 1024].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_requests: Option<u32>,
    /// Connections of the gateway's clients at the same time, each an open file; more wait [default: 2048].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: Option<u32>,
    /// Neither look for members on the local network nor let them find this node there (mDNS).
    #[arg(long)]
    pub no_mdns: bool,
    /// Memory that this node offers, as in 8G [default: 80 % of what is free].
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Disk that this node's slices of models may take, as in 100G; the least recently used go, but none that runs
    /// [default: a fifth of the disk].
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<ByteSize>,
    /// Tokens one sequence can hold [default: the model's own, at most 8192].
    #[arg(long, value_name = "N")]
    pub ctx: Option<u32>,
    /// Sequences served at the same time [default: 4].
    #[arg(long, value_name = "N")]
    pub parallel: Option<u32>,
    /// Compute threads of a stage [default: the physical cores].
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// `auto`, `never`, or inclusive layer ranges as in 0-9,10-19,20-29: the first runs here, the others on joined
    /// nodes in the order of their names. For one model of several: MODEL=RANGES. May be repeated.
    #[arg(long = "split", value_name = "auto|never|RANGES")]
    pub splits: Vec<String>,
    /// Type of the KV cache's values, as in f16 or q8_0 [default: f16].
    #[arg(long, value_name = "TYPE")]
    pub kv_type: Option<String>,
    /// Memory for what idle conversations hold, besides the KV cache, and for checkpoints of running states: all stages of
    /// a model together; 0 for none [default: 256MiB].
    #[arg(long, value_name = "SIZE")]
    pub kv_host: Option<ByteSize>,
    /// Flash attention: auto, on or off [default: auto].
    #[arg(long, value_name = "auto|on|off")]
    pub flash_attn: Option<String>,
    /// Whether likely tokens are computed ahead: auto (where that saves time) or off. The answers are the same
    /// [default: auto].
    #[arg(long, value_name = "auto|off")]
    pub speculate: Option<String>,
    /// A smaller model with the same vocabulary, which guesses what comes next for the models of --model. It runs on this
    /// node and is asked where that saves time. The answers are the same.
    #[arg(long, value_name = "REF")]
    pub draft: Option<String>,
    /// Layers to put on the GPU: a number, or `all` [default: all].
    #[arg(long, value_name = "N|all")]
    pub gpu_layers: Option<String>,
    /// The compute device to use, by the name llama.cpp gives it [default: its choice].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// A Jinja chat template that replaces the models' own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// The key that clients of the gateway must send; required when the gateway is not on loopback.
    #[arg(long, value_name = "KEY", env = "MESH_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
}

/// `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A .gguf file (the first shard of a sharded one).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Reckon memory for this many tokens in a sequence [default: the model's own, at most 8192].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    /// Reckon memory for this many sequences at the same time.
    #[arg(long, value_name = "N", default_value_t = crate::settings::DEFAULT_PARALLEL,
        value_parser = clap::value_parser!(u32).range(1..=256))]
    pub parallel: u32,
    /// Reckon memory for a KV cache of this type.
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub kv_type: kernels_ffi::KvType,
    /// Print JSON with a stable schema.
    #[arg(long)]
    pub json: bool,
}

/// `template`.
#[derive(Debug, Subcommand)]
pub enum TemplateCommand {
    /// Whether the template can call tools, in which format, and what else it can do.
    Show {
        /// See [`TemplateArgs`].
        #[command(flatten)]
        template: TemplateArgs,
        /// Print JSON with a stable schema.
        #[arg(long)]
        json: bool,
    },
    /// Read a request (JSON) from standard input and write its prompt, and nothing else.
    Render {
        /// See [`TemplateArgs`].
        #[command(flatten)]
        template: TemplateArgs,
    },
    /// Read a model's output from standard input and write the message that it is.
    Parse(ParseArgs),
}

/// Which template, and how its model calls tools.
#[derive(Debug, Args)]
pub struct TemplateArgs {
    /// A file that holds a Jinja chat template.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub template: Option<PathBuf>,
    /// A model that brings one: the path of a .gguf file.
    #[arg(long, value_name = "REF")]
    pub model: Option<String>,
    /// How tools are called: as the template can, or forced.
    #[arg(long, value_name = "auto|native|emulated", default_value = "auto", value_parser = ["auto", "native", "emulated"])]
    pub strategy: String,
    /// The native format, instead of the one that was found out; one that does not exist lists those that do.
    #[arg(long, value_name = "NAME")]
    pub format: Option<String>,
}

/// `template parse`.
#[derive(Debug, Args)]
pub struct ParseArgs {
    /// See [`TemplateArgs`].
    #[command(flatten)]
    pub template: TemplateArgs,
    /// The request (JSON) that the output answers: its tools and `tool_choice` count. Without one, any tool does.
    #[arg(long, value_name = "FILE")]
    pub request: Option<PathBuf>,
    /// The output comes in pieces: a JSON array of hex strings, itself or in a file, or on standard input.
    #[arg(long, value_name = "JSON|FILE", num_args = 0..=1, default_missing_value = "-")]
    pub pieces: Option<String>,
    /// Write the events that a client would see while the output is generated.
    #[arg(long)]
    pub stream: bool,
    /// How the generation ended.
    #[arg(long, value_name = "stop|length", default_value = "stop", value_parser = ["stop", "length"])]
    pub finish: String,
}
