//! What is found where no node runs: whether one could be started as the flags and the configuration file say.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mesh_mesh::{DataDir, DataDirError, Identity, JoinToken, Membership};
use mesh_types::ByteSize;

use super::{Check, Finding, State, clock, host, mesh, node, reach};
use crate::admin::show::host_and_port;
use crate::app::free_memory;
use crate::serve::ServedModel;
use crate::settings::{GatewaySetting, ModelSettings, Settings};
use crate::supervisor::{ADVICE, shape_of};

/// How long a node of the token's may take to answer.
const DIAL_LIMIT: Duration = Duration::from_secs(3);

/// Examines what `settings` would start. Blocks.
pub fn examine(settings: &Settings) -> Vec<Finding> {
    let mut findings = data_dir(&settings.data_dir);
    findings.extend(ports(settings));
    findings.push(host::address(settings.listen));
    findings.extend(clock::judge(mesh::now(), &[]));
    let what = format!("this program is of version {}", env!("CARGO_PKG_VERSION"));
    findings.push(Finding::good(Check::Version, "", what));
    let offered = settings.memory.unwrap_or_else(free_memory);
    findings.push(host::memory(offered, ByteSize(0)));
    findings.push(host::devices(settings.stage.compute.device.as_deref()));
    for model in &settings.models {
        findings.extend(examine_model(model, settings, offered));
    }
    findings.sort_by_key(|finding| finding.check);
    findings
}

/// The data directory, its disk, and the node's key in it. One that does not exist is not made.
fn data_dir(path: &Path) -> Vec<Finding> {
    let about = path.display().to_string();
    if !path.exists() {
        let parent = path.ancestors().skip(1).find(|parent| parent.exists()).unwrap_or(Path::new("/"));
        let what = "there is no data directory yet: a new node gets a new identity";
        return vec![Finding::good(Check::Identity, about, what), host::disk(parent)];
    }
    let dir = match DataDir::open(path) {
        Ok(dir) => dir,
        Err(error @ DataDirError::InUse { .. }) => {
            let advice = "it does not answer: look at its log, or end it by that pid";
            return vec![Finding::bad(Check::Identity, about, State::Failure, (error.to_string(), advice))];
        }
        Err(error) => {
            // What cannot be written to says itself why.
            let advice = "make it a directory that this user may write to, or give another with --data-dir";
            let finding = Finding::bad(Check::Identity, about, State::Failure, (error.to_string(), advice));
            return vec![finding, host::disk(path)];
        }
    };
    vec![identity(&dir, about), host::disk(path)]
}

fn identity(dir: &DataDir, about: String) -> Finding {
    let advice = "restore that file; or begin anew with another data directory (--data-dir)";
    let bad = |what: String| Finding::bad(Check::Identity, about.clone(), State::Failure, (what, advice));
    let id = match dir.file("identity.key").exists().then(|| Identity::open(dir)) {
        Some(Ok(identity)) => format!("node {}", identity.id()),
        Some(Err(error)) => return bad(error.to_string()),
        None => "a new node".to_owned(),
    };
    match Membership::load(dir) {
        Ok(Some(membership)) => {
            Finding::good(Check::Identity, about, format!("{id}, member of mesh {}", membership.mesh()))
        }
        Ok(None) => Finding::good(Check::Identity, about, format!("{id}, member of no mesh yet")),
        Err(error) => bad(error.to_string()),
    }
}

/// Whether the sockets could be had.
fn ports(settings: &Settings) -> Vec<Finding> {
    let listen = settings.listen;
    let mut findings = vec![
        port(listen, "tcp", TcpListener::bind(listen).map(drop), State::Failure),
        port(listen, "udp", UdpSocket::bind(listen).map(drop), State::Failure),
    ];
    match settings.gateway {
        GatewaySetting::Off => {}
        GatewaySetting::At(at) => findings.push(port(at, "tcp", TcpListener::bind(at).map(drop), State::Failure)),
        // Another port is taken then.
        GatewaySetting::Near(at) => findings.push(port(at, "tcp", TcpListener::bind(at).map(drop), State::Warning)),
    }
    // An address that is not there is told as one, not as a port.
    findings.into_iter().flatten().collect()
}

fn port(at: SocketAddr, protocol: &str, bound: std::io::Result<()>, state: State) -> Option<Finding> {
    let about = format!("{at}/{protocol}");
    let error = match bound {
        Ok(()) => return Some(Finding::good(Check::Ports, about, "free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => return None,
        Err(error) => error,
    };
    let (what, advice) = match error.kind() {
        std::io::ErrorKind::AddrInUse => (
            format!("another program is using port {}/{protocol}", at.port()),
            "find it with `ss -lntup` and end it, or choose another port (--listen, --gateway)",
        ),
        std::io::ErrorKind::PermissionDenied => (
            format!("this user may not use port {}/{protocol}", at.port()),
            "choose a port above 1023 (--listen, --gateway)",
        ),
        _ => (format!("port {}/{protocol} cannot be used: {error}", at.port()), "choose another (--listen, --gateway)"),
    };
    Some(Finding::bad(Check::Ports, about, state, (what, advice)))
}

/// A model's file, its template, and whether it fits.
fn examine_model(settings: &ModelSettings, all: &Settings, offered: ByteSize) -> Vec<Finding> {
    let about = settings.name.to_string();
    let model = match ServedModel::open(settings, all.stage.ctx) {
        Ok(model) => Arc::new(model),
        Err(error) => {
            let advice = "give the path of a whole .gguf file (of a sharded one: its first shard)";
            return vec![Finding::bad(Check::Models, about, State::Failure, (error.to_string(), advice))];
        }
    };
    let shape = shape_of(&model, &all.stage);
    let needs = shape.all().map(|layers| shape.memory(layers)).unwrap_or_default();
    let fits = if needs <= offered {
        Finding::good(Check::Memory, about.as_str(), format!("it takes {needs}, and this node offers {offered}"))
    } else {
        let state = if shape.cuts().is_empty() { State::Failure } else { State::Warning };
        let cut = if shape.cuts().is_empty() { ", and it cannot be split" } else { ": it does not fit here alone" };
        let what = format!("there is too little memory: it takes {needs}, and this node offers {offered}{cut}");
        Finding::bad(Check::Memory, about.as_str(), state, (what, ADVICE))
    };
    let there = Finding::good(Check::Models, about, format!("{} is there", settings.path.display()));
    vec![there, node::template(&model), fits]
}

/// A join token, and whether the nodes answer to which it leads. Blocks, for some seconds where they do not.
pub fn examine_token(text: &str) -> Vec<Finding> {
    let token: JoinToken = match text.trim().parse() {
        Ok(token) => token,
        Err(error) => {
            let error: mesh_mesh::TokenError = error;
            return vec![Finding::bad(
                Check::Token,
                "",
                State::Failure,
                (error.to_string(), "run `mesh-node token` there"),
            )];
        }
    };
    let mut findings = vec![match token.check_expiry(SystemTime::now()) {
        Err(error) => {
            let advice = "ask for a new one: `mesh-node token`, on any node of the mesh (and look at the clock here)";
            Finding::bad(Check::Token, "", State::Failure, (error.to_string(), advice))
        }
        Ok(()) => Finding::good(Check::Token, "", format!("it leads to mesh {}", token.mesh)),
    }];
    let addresses: Vec<SocketAddr> =
        token.bootstrap.iter().filter_map(|address| host_and_port(&address.to_string()).parse().ok()).collect();
    let tried: Vec<(SocketAddr, std::io::Result<()>)> = addresses.iter().map(|at| (*at, answers(*at))).collect();
    if tried.is_empty() || tried.iter().any(|(_, outcome)| outcome.is_ok()) {
        let at: Vec<_> = tried.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(at, _)| at.to_string()).collect();
        if !at.is_empty() {
            findings.push(Finding::good(Check::Reachability, "", format!("a node answers at {}", at.join(", "))));
        }
        return findings;
    }
    let reasons: Vec<_> = tried
        .iter()
        .filter_map(|(at, outcome)| Some(format!("{at}: {}", reach::reason(outcome.as_ref().err()?))))
        .collect();
    let what = format!("no node answers where the token leads ({})", reasons.join("; "));
    let advice = "start the node there, let its port in through its firewall, or ask for the token of another node";
    findings.push(Finding::bad(Check::Reachability, "", State::Failure, (what, advice)));
    findings
}

fn answers(at: SocketAddr) -> std::io::Result<()> {
    std::net::TcpStream::connect_timeout(&at, DIAL_LIMIT).map(drop)
}
