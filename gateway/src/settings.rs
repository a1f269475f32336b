//! Everything that `mesh-gateway` can be told, validated. The only place that reads the command line, its environment
//! defaults and the token.

use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::Parser;
use mesh_gateway::Limits;
use mesh_gateway::announce::Format;
use mesh_mesh::JoinToken;

const DEFAULT_GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9337);
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 9338);
/// More than any token.
const MAX_TOKEN: u64 = 64 << 10;

/// Serves the models of a mesh as an OpenAI-compatible /v1, without running any of them.
#[derive(Debug, Parser)]
#[command(name = "mesh-gateway", version, max_term_width = 100)]
pub(crate) struct Args {
    /// The token that `mesh-node up` printed; `-` reads it from standard input. Not needed again once this gateway's
    /// data directory belongs to a mesh.
    #[arg(long, value_name = "TOKEN|-", allow_hyphen_values = true)]
    join: Option<String>,
    /// Read the token from this file (command lines are visible to other users).
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    token_file: Option<PathBuf>,
    /// Where to serve /v1 [default: 127.0.0.1:9337, or a free port if that is busy].
    #[arg(long, value_name = "IP:PORT")]
    gateway: Option<SocketAddr>,
    /// Where nodes of the mesh reach this gateway (TCP); port 0 picks one [default: 0.0.0.0:9338].
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Neither look for members on the local network nor let them find this gateway there (mDNS).
    #[arg(long)]
    no_mdns: bool,
    /// Where the gateway keeps its key and its mesh [default: $XDG_DATA_HOME/mesh-gateway].
    #[arg(long, value_name = "DIR", env = "MESH_GATEWAY_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The key that clients must send; required when the gateway is not on loopback.
    #[arg(long, value_name = "KEY", env = "MESH_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Requests answered at the same time; more are refused with 429 [default: 1024].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_requests: Option<u32>,
    /// Connections of clients at the same time, each an open file; more wait [default: 2048].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    /// The gateway's name in the mesh [default: the host name].
    #[arg(long)]
    name: Option<String>,
    /// How log lines (on stderr) and ready lines (on stdout) look.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: Format,
}

/// The settings, validated.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `None`: the data directory knows the mesh.
    pub(crate) token: Option<JoinToken>,
    pub(crate) gateway: SocketAddr,
    /// Whether a free port will do where that of `gateway` is taken.
    pub(crate) any_port: bool,
    pub(crate) listen: SocketAddr,
    /// Whether members on the local network find each other.
    pub(crate) mdns: bool,
    pub(crate) data_dir: PathBuf,
    pub(crate) api_key: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) name: String,
    pub(crate) log_format: Format,
}

/// Why settings cannot be used: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct SettingsError(pub(crate) String);

impl Settings {
    /// Validates `args`, and reads the token from where they say.
    ///
    /// # Errors
    /// [`SettingsError`] says which setting is wrong and what would be right.
    pub(crate) fn load(args: Args) -> Result<Self, SettingsError> {
        let gateway = args.gateway.unwrap_or(DEFAULT_GATEWAY);
        let api_key = args.api_key.filter(|key| !key.is_empty());
        if !gateway.ip().to_canonical().is_loopback() && api_key.is_none() {
            return Err(SettingsError(format!(
                "a gateway on {gateway} can be reached from other machines: give it a key with --api-key (or \
                 MESH_API_KEY), or serve it on 127.0.0.1"
            )));
        }
        Ok(Self {
            token: token(args.join, args.token_file.as_deref())?,
            gateway,
            any_port: args.gateway.is_none(),
            listen: args.listen.unwrap_or(DEFAULT_LISTEN),
            mdns: !args.no_mdns,
            data_dir: data_dir(args.data_dir)?,
            api_key,
            limits: Limits::with(args.max_requests, args.max_connections),
            name: args.name.filter(|name| !name.is_empty()).unwrap_or_else(host_name),
            log_format: args.log_format,
        })
    }
}

fn token(given: Option<String>, file: Option<&Path>) -> Result<Option<JoinToken>, SettingsError> {
    let text = match (given, file) {
        (Some(dash), _) if dash == "-" => read(io::stdin(), "standard input")?,
        (Some(text), _) => text,
        (None, Some(path)) => {
            let name = path.display().to_string();
            let file = std::fs::File::open(path)
                .map_err(|error| SettingsError(format!("cannot read the token from {name}: {error}")))?;
            read(file, &name)?
        }
        (None, None) => return Ok(None),
    };
    text.parse().map(Some).map_err(|error: mesh_mesh::TokenError| SettingsError(error.to_string()))
}

fn read(source: impl io::Read, name: &str) -> Result<String, SettingsError> {
    let mut text = String::new();
    source
        .take(MAX_TOKEN)
        .read_to_string(&mut text)
        .map_err(|error| SettingsError(format!("cannot read the token from {name}: {error}")))?;
    Ok(text)
}

fn data_dir(given: Option<PathBuf>) -> Result<PathBuf, SettingsError> {
    if let Some(dir) = given {
        return Ok(dir);
    }
    directories::ProjectDirs::from("", "", "mesh-gateway")
        .map(|dirs| dirs.data_dir().to_owned())
        .ok_or_else(|| SettingsError("there is no home directory: say where to keep data with --data-dir".to_owned()))
}

fn host_name() -> String {
    sysinfo::System::host_name().filter(|name| !name.is_empty()).unwrap_or_else(|| "gateway".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(args: &[&str]) -> Result<Settings, SettingsError> {
        let args = ["mesh-gateway", "--data-dir", "/d"].iter().chain(args);
        Settings::load(Args::try_parse_from(args).map_err(|error| SettingsError(error.to_string()))?)
    }

    #[test]
    fn defaults_are_local() {
        let settings = load(&[]).unwrap();
        assert_eq!(settings.gateway.to_string(), "127.0.0.1:9337");
        assert_eq!(settings.listen.to_string(), "0.0.0.0:9338");
        assert!(settings.any_port && settings.token.is_none());
        assert!(!load(&["--gateway", "127.0.0.1:9337"]).unwrap().any_port);
    }

    #[test]
    fn limits_are_as_given() {
        let limits = |args: &[&str]| load(args).map(|settings| (settings.limits.requests, settings.limits.connections));
        assert_eq!(limits(&[]).unwrap(), (1024, 2048));
        assert_eq!(limits(&["--max-requests", "7", "--max-connections", "9"]).unwrap(), (7, 9));
        assert!(limits(&["--max-requests", "0"]).is_err());
    }

    #[test]
    fn a_gateway_off_loopback_needs_a_key() {
        for addr in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "[::ffff:192.0.2.1]:80"] {
            assert!(load(&["--gateway", addr]).unwrap_err().to_string().contains("--api-key"), "{addr}");
            assert!(load(&["--gateway", addr, "--api-key", ""]).is_err(), "{addr}");
            assert!(load(&["--gateway", addr, "--api-key", "k"]).is_ok(), "{addr}");
        }
        assert!(load(&["--gateway", "[::1]:80"]).is_ok());
    }

    #[test]
    fn a_bad_token_is_named() {
        assert!(load(&["--join", "hello"]).unwrap_err().to_string().contains("not a join token"));
        assert!(load(&["--token-file", "/nowhere/t"]).unwrap_err().to_string().contains("/nowhere/t"));
        assert!(load(&["--join", "-", "--token-file", "x"]).is_err());
    }
}
