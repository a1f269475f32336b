//! Everything that a node can be told, validated: flags win over the configuration file, which wins over defaults.
//!
//! The only place of this binary that reads the configuration file or environment defaults.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use kernels_ffi::{FlashAttention, KvType};
use mesh_engine::llama::Compute;
use mesh_gateway::Limits;
use mesh_gateway::announce::Format;
use mesh_routing::Split;
use mesh_types::{ByteSize, ModelId};
use serde::Deserialize;

use crate::cli::NodeArgs;

/// Where `/v1` is served unless told otherwise.
pub const DEFAULT_GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9337);
/// Where other nodes reach this one unless told otherwise.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 9338);
/// Sequences at the same time unless told otherwise.
pub const DEFAULT_PARALLEL: u32 = 4;
/// What `--kv-host` is by default.
const DEFAULT_KV_HOST: ByteSize = ByteSize(256 << 20);
/// Set to 1: all models call tools by the text convention. A model's own setting wins.
const FORCE_TOOL_EMULATION: &str = "MESH_FORCE_TOOL_EMULATION";
/// Most sequences that one llama.cpp context can hold.
const MAX_PARALLEL: u32 = 256;

/// A node's settings, validated.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name in the mesh.
    pub name: String,
    /// Its data directory.
    pub data_dir: PathBuf,
    /// How its lines look.
    pub log_format: Format,
    /// Whether and where it serves `/v1`.
    pub gateway: GatewaySetting,
    /// Mesh (TCP) and stage (UDP) address.
    pub listen: SocketAddr,
    /// Whether members on the local network find each other.
    pub mdns: bool,
    /// Memory on offer; `None`: 80 % of what is free.
    pub memory: Option<ByteSize>,
    /// Disk that slices of models may take; `None`: a fifth of it.
    pub cache: Option<ByteSize>,
    /// Models to serve as stage 0.
    pub models: Vec<ModelSettings>,
    /// What holds for models that are loaded later.
    pub model_defaults: ModelDefaults,
    /// How its stages run.
    pub stage: StageSettings,
    /// What clients of the gateway must send.
    pub api_key: Option<String>,
    /// What the gateway bounds.
    pub limits: Limits,
}

/// Whether and where `/v1` is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewaySetting {
    /// Not at all.
    Off,
    /// Here, and nowhere else.
    At(SocketAddr),
    /// Here, or at a free port if that is busy.
    Near(SocketAddr),
}

/// One model to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSettings {
    /// Its GGUF file.
    pub path: PathBuf,
    /// The name it is served under.
    pub name: ModelId,
    /// How it is spread over nodes. `Auto`: whole on this node if it fits.
    pub split: Split,
    /// Replaces its own chat template.
    pub chat_template: Option<PathBuf>,
    /// Tools are called by the text convention, whatever the template can do.
    pub force_tool_emulation: bool,
    /// A script that answers instead of its weights.
    pub scripted: Option<PathBuf>,
    /// The file of a smaller model that drafts for it.
    pub draft: Option<PathBuf>,
}

/// What holds for a model of which nothing else was said: those of `--model`, and those that are loaded later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelDefaults {
    /// See [`ModelSettings::split`].
    pub split: Split,
    /// See [`ModelSettings::chat_template`].
    pub chat_template: Option<PathBuf>,
    /// See [`ModelSettings::force_tool_emulation`].
    pub force_tool_emulation: bool,
    /// See [`ModelSettings::scripted`].
    pub scripted: Option<PathBuf>,
}

impl ModelDefaults {
    /// The settings of a file, which is served under its own name.
    pub fn of_file(&self, path: PathBuf) -> ModelSettings {
        let Self { split, chat_template, force_tool_emulation, scripted } = self.clone();
        ModelSettings {
            name: ModelId::from_file_name(&path),
            path,
            split,
            chat_template,
            force_tool_emulation,
            scripted,
            draft: None,
        }
    }
}

/// How the stages of this node run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageSettings {
    /// Tokens one sequence can hold; `None`: the model's own, at most 8192.
    pub ctx: Option<u32>,
    /// Sequences at the same time.
    pub parallel: u32,
    /// Whether likely tokens are computed ahead.
    pub speculate: bool,
    /// For what idle conversations hold, beside the KV cache.
    pub kv_host: ByteSize,
    /// Threads, KV type, devices.
    pub compute: Compute,
}

/// Why settings cannot be used: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

/// The configuration file: the flags' names with underscores, and a table per model.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ConfigFile {
    name: Option<String>,
    data_dir: Option<PathBuf>,
    log_format: Option<Format>,
    gateway: Option<String>,
    listen: Option<SocketAddr>,
    mdns: Option<bool>,
    memory: Option<String>,
    cache: Option<String>,
    ctx: Option<u32>,
    parallel: Option<u32>,
    threads: Option<u32>,
    kv_type: Option<String>,
    flash_attn: Option<String>,
    kv_host: Option<String>,
    speculate: Option<String>,
    draft: Option<String>,
    gpu_layers: Option<toml::Value>,
    device: Option<String>,
    chat_template: Option<PathBuf>,
    api_key: Option<String>,
    max_requests: Option<NonZeroU32>,
    max_connections: Option<NonZeroU32>,
    split: Option<String>,
    models: Vec<ConfigModel>,
}

/// One `[[models]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigModel {
    path: PathBuf,
    name: Option<String>,
    split: Option<String>,
    chat_template: Option<PathBuf>,
    force_tool_emulation: Option<bool>,
    scripted: Option<PathBuf>,
    draft: Option<String>,
}

impl Settings {
    /// Merges flags, configuration file and defaults.
    ///
    /// # Errors
    /// [`SettingsError`] says which setting is wrong and what would be right.
    pub fn load(args: NodeArgs) -> Result<Self, SettingsError> {
        let file = args.config.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default();
        let gateway = gateway(args.gateway.as_deref().or(file.gateway.as_deref()))?;
        let api_key = args.api_key.clone().or(file.api_key.clone()).filter(|key| !key.is_empty());
        require_key(gateway, api_key.as_deref())?;
        let limit = |flag: Option<u32>, file: Option<NonZeroU32>| flag.or(file.map(NonZeroU32::get));
        let (requests, connections) =
            (limit(args.max_requests, file.max_requests), limit(args.max_connections, file.max_connections));
        let (models, model_defaults) = models(&args, &file)?;
        Ok(Self {
            name: args.name.clone().or(file.name.clone()).unwrap_or_else(host_name),
            data_dir: data_dir(args.data_dir.as_deref().or(file.data_dir.as_deref()))?,
            log_format: args.log_format.or(file.log_format).unwrap_or_default(),
            gateway,
            listen: args.listen.or(file.listen).unwrap_or(DEFAULT_LISTEN),
            mdns: !args.no_mdns && file.mdns.unwrap_or(true),
            memory: size("memory", args.memory, file.memory.as_deref())?,
            cache: size("cache", args.cache, file.cache.as_deref())?,
            models,
            model_defaults,
            stage: stage(&args, &file)?,
            api_key,
            limits: Limits::with(requests, connections),
        })
    }
}

/// A flag's size, else the configuration file's.
fn size(what: &str, flag: Option<ByteSize>, file: Option<&str>) -> Result<Option<ByteSize>, SettingsError> {
    let parse = |text: &str| text.parse().map_err(|e| SettingsError(format!("{what}: {e}")));
    flag.map(Ok).or_else(|| file.map(parse)).transpose()
}

/// The data directory to use: what was given, else the platform's place for it.
///
/// # Errors
/// Where the platform has no such place (no home directory).
pub fn data_dir(given: Option<&Path>) -> Result<PathBuf, SettingsError> {
    if let Some(dir) = given {
        return Ok(dir.to_owned());
    }
    directories::ProjectDirs::from("", "", "mesh-node")
        .map(|dirs| dirs.data_dir().to_owned())
        .ok_or_else(|| SettingsError("there is no home directory: say where to keep data with --data-dir".to_owned()))
}

impl ConfigFile {
    fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| SettingsError(format!("cannot read the configuration file {}: {e}", path.display())))?;
        toml::from_str(&text).map_err(|e| SettingsError(format!("in the configuration file {}: {e}", path.display())))
    }
}

fn gateway(text: Option<&str>) -> Result<GatewaySetting, SettingsError> {
    match text {
        None => Ok(GatewaySetting::Near(DEFAULT_GATEWAY)),
        Some("off") => Ok(GatewaySetting::Off),
        Some(text) => text.parse().map(GatewaySetting::At).map_err(|_| {
            SettingsError(format!("--gateway takes IP:PORT, as in 127.0.0.1:9337, or `off`; `{text}` is neither"))
        }),
    }
}

fn require_key(gateway: GatewaySetting, key: Option<&str>) -> Result<(), SettingsError> {
    match gateway {
        GatewaySetting::At(addr) if !addr.ip().is_loopback() && key.is_none() => Err(SettingsError(format!(
            "a gateway on {addr} can be reached from other machines: give it a key with --api-key (or MESH_API_KEY), \
             or serve it on 127.0.0.1"
        ))),
        _ => Ok(()),
    }
}

fn models(args: &NodeArgs, file: &ConfigFile) -> Result<(Vec<ModelSettings>, ModelDefaults), SettingsError> {
    let (split, by_model) = splits(&args.splits, file.split.as_deref())?;
    let defaults = ModelDefaults {
        split,
        chat_template: args.chat_template.as_ref().or(file.chat_template.as_ref()).cloned(),
        force_tool_emulation: std::env::var(FORCE_TOOL_EMULATION).is_ok_and(|value| value == "1"),
        scripted: args.scripted.clone(),
    };
    let draft = args.draft.as_deref().or(file.draft.as_deref()).map(file_of).transpose()?;
    let mut models = Vec::new();
    for model in &file.models {
        let of_file = defaults.of_file(model.path.clone());
        models.push(ModelSettings {
            name: model.name.as_deref().map_or(of_file.name, ModelId::from),
            split: model.split.as_deref().map(parse_split).transpose()?.unwrap_or(of_file.split),
            chat_template: model.chat_template.clone().or(of_file.chat_template),
            force_tool_emulation: model.force_tool_emulation.unwrap_or(of_file.force_tool_emulation),
            scripted: model.scripted.clone().or(of_file.scripted),
            draft: model.draft.as_deref().map(file_of).transpose()?.or_else(|| draft.clone()),
            path: of_file.path,
        });
    }
    for reference in &args.models {
        models.push(ModelSettings { draft: draft.clone(), ..defaults.of_file(file_of(reference)?) });
    }
    for (name, split) in by_model {
        match models.iter_mut().find(|model| model.name == name) {
            Some(model) => model.split = split,
            None => {
                return Err(SettingsError(format!("--split names the model `{name}`, which this node is not given")));
            }
        }
    }
    let mut names: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            Err(SettingsError(format!("two models would both be served as `{}`: name one in --config", pair[0])))
        }
        None => Ok((models, defaults)),
    }
}

/// The file that `reference` is.
///
/// # Errors
/// Where it is something else.
pub fn file_of(reference: &str) -> Result<PathBuf, SettingsError> {
    if reference.starts_with("hf://") {
        return Err(SettingsError(format!(
            "{reference}: fetching from a hub is not supported yet; download the .gguf and give its path"
        )));
    }
    Ok(PathBuf::from(reference))
}

type ModelSplits = (Split, Vec<(ModelId, Split)>);

fn splits(flags: &[String], file: Option<&str>) -> Result<ModelSplits, SettingsError> {
    let mut default = file.map(parse_split).transpose()?.unwrap_or_default();
    let mut by_model = Vec::new();
    for flag in flags {
        match flag.rsplit_once('=') {
            Some((model, ranges)) => by_model.push((ModelId::from(model), parse_split(ranges)?)),
            None => default = parse_split(flag)?,
        }
    }
    Ok((default, by_model))
}

fn parse_split(text: &str) -> Result<Split, SettingsError> {
    text.parse().map_err(|e: mesh_routing::PlacementError| SettingsError(e.to_string()))
}

fn stage(args: &NodeArgs, file: &ConfigFile) -> Result<StageSettings, SettingsError> {
    let positive = |what: &str, value: Option<u32>| match value {
        Some(0) => Err(SettingsError(format!("--{what} must be at least 1"))),
        value => Ok(value),
    };
    let parallel = positive("parallel", args.parallel.or(file.parallel))?.unwrap_or(DEFAULT_PARALLEL);
    if parallel > MAX_PARALLEL {
        return Err(SettingsError(format!("--parallel must be at most {MAX_PARALLEL}")));
    }
    let flash_attention = match args.flash_attn.as_deref().or(file.flash_attn.as_deref()) {
        None | Some("auto") => FlashAttention::Auto,
        Some("on") => FlashAttention::On,
        Some("off") => FlashAttention::Off,
        Some(other) => return Err(SettingsError(format!("--flash-attn takes auto, on or off, not `{other}`"))),
    };
    let speculate = match args.speculate.as_deref().or(file.speculate.as_deref()) {
        None | Some("auto") => true,
        Some("off") => false,
        Some(other) => return Err(SettingsError(format!("--speculate takes auto or off, not `{other}`"))),
    };
    if !speculate && args.draft.is_some() {
        return Err(SettingsError(
            "--draft names a model that --speculate off never asks: leave one of them out".to_owned(),
        ));
    }
    let kv_type = match args.kv_type.as_deref().or(file.kv_type.as_deref()) {
        None => KvType::default(),
        Some(text) => text.parse().map_err(|e| SettingsError(format!("--kv-type: {e}")))?,
    };
    let file_layers = file.gpu_layers.as_ref().map(|value| match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let gpu_layers = match args.gpu_layers.clone().or(file_layers).as_deref() {
        None | Some("all") => None,
        Some(text) => Some(
            text.parse().map_err(|_| SettingsError(format!("--gpu-layers takes a number or `all`, not `{text}`")))?,
        ),
    };
    Ok(StageSettings {
        ctx: positive("ctx", args.ctx.or(file.ctx))?,
        parallel,
        speculate,
        kv_host: size("kv-host", args.kv_host, file.kv_host.as_deref())?.unwrap_or(DEFAULT_KV_HOST),
        compute: Compute {
            kv_type,
            flash_attention,
            gpu_layers,
            device: args.device.clone().or(file.device.clone()),
            ..Compute::with_threads(positive("threads", args.threads.or(file.threads))?.unwrap_or_else(physical_cores))
        },
    })
}

fn physical_cores() -> u32 {
    u32::try_from(num_cpus::get_physical()).unwrap_or(1).max(1)
}

fn host_name() -> String {
    sysinfo::System::host_name().filter(|name| !name.is_empty()).unwrap_or_else(|| "node".to_owned())
}

#[cfg(test)]
mod tests;
