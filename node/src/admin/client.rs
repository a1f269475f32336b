//! Asks the node that runs in a data directory, and prints what it says.

use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use mesh_proto::v1;
use mesh_proto::v1::admin_client::AdminClient;
use serde_json::Value;
use tokio::net::UnixStream;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::screen::Screen;
use super::{TARGET, json, show, socket_path};
use crate::cli::{AdminCommand, AskArgs, DoctorArgs, PeersArgs, PeersCommand};
use crate::doctor::setup;
use crate::settings::Settings;

/// How often `--watch` asks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Why a node could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens: exit code 3.
    #[error("no node is running with the data directory {0}: start one with `mesh-node up` or `mesh-node join`")]
    NotRunning(String),
    /// It is there, and says why not.
    #[error("{0}")]
    Failed(String),
    /// What it said cannot be printed.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// What a command has to say.
struct Said {
    value: Value,
    text: String,
    /// Asking again would say nothing new.
    done: bool,
}

/// Runs an administering command against the node in `data_dir`, or the one of its mesh that the command names.
///
/// # Errors
/// [`AskError`].
pub async fn run(command: &AdminCommand, data_dir: &Path, screen: &Screen) -> Result<(), AskError> {
    let asked = command.shared();
    let mut said = ask(command, data_dir, screen).await?;
    if !asked.watch {
        let text = if asked.json { format!("{:#}\n", said.value) } else { said.text };
        return print(&text);
    }
    let mut tick = tokio::time::interval(WATCH_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tick.tick().await;
    let mut last = String::new();
    loop {
        let text = if asked.json { format!("{}\n", said.value) } else { said.text };
        // What stands on a terminal is replaced; elsewhere only news is worth a line.
        if screen.is_terminal() && !asked.json {
            print(&screen.replaced(&text))?;
        } else if text != last {
            print(&text)?;
            last = text;
        }
        if said.done {
            return Ok(());
        }
        tick.tick().await;
        said = match command {
            AdminCommand::Load(load) => loading(&load.model, asked, data_dir, screen).await?,
            _ => ask(command, data_dir, screen).await?,
        };
    }
}

/// How often `doctor --watch` looks: it opens connections each time.
const EXAMINE_EVERY: Duration = Duration::from_secs(5);

/// Examines the node that runs as `settings` say, or one of its mesh, or else what would be started. `token` is looked
/// at as well. Returns whether all that was looked at works.
///
/// # Errors
/// [`AskError`].
pub async fn doctor(
    args: &DoctorArgs,
    settings: &Settings,
    token: Option<&str>,
    screen: &Screen,
) -> Result<bool, AskError> {
    let mut tick = tokio::time::interval(EXAMINE_EVERY);
    loop {
        tick.tick().await;
        let findings = examine(args, settings, token).await?;
        let text = match (args.json, args.watch) {
            (true, false) => format!("{:#}\n", json::doctor(&findings)),
            (true, true) => format!("{}\n", json::doctor(&findings)),
            (false, false) => show::doctor(&findings, screen),
            (false, true) => screen.replaced(&show::doctor(&findings, screen)),
        };
        print(&text)?;
        if !args.watch {
            return Ok(findings.iter().all(|finding| finding.state != "failure"));
        }
    }
}

async fn examine(args: &DoctorArgs, settings: &Settings, token: Option<&str>) -> Result<Vec<v1::Finding>, AskError> {
    let asked = AskArgs { node: args.node.clone(), ..AskArgs::default() };
    let mut findings = match connect(&settings.data_dir).await {
        Ok(mut admin) => {
            let told = admin.doctor(to(&asked, v1::DoctorRequest {})).await.map_err(failed)?;
            told.into_inner().findings
        }
        Err(AskError::NotRunning(_)) if args.node.is_none() => {
            let settings = settings.clone();
            let looking = tokio::task::spawn_blocking(move || setup::examine(&settings));
            let found = looking.await.map_err(|_| AskError::Failed("the examination itself failed".to_owned()))?;
            found.into_iter().map(Into::into).collect()
        }
        Err(error) => return Err(error),
    };
    if let Some(token) = token.map(str::to_owned) {
        let looking = tokio::task::spawn_blocking(move || setup::examine_token(&token));
        let found = looking.await.map_err(|_| AskError::Failed("the examination itself failed".to_owned()))?;
        findings.extend(found.into_iter().map(Into::into));
    }
    Ok(findings)
}

async fn ask(command: &AdminCommand, data_dir: &Path, screen: &Screen) -> Result<Said, AskError> {
    let mut admin = connect(data_dir).await?;
    let asked = command.shared();
    match command {
        AdminCommand::Token(token) => {
            let valid_seconds = token.expires.map_or(0, |span| span.as_secs());
            let request = v1::TokenRequest { valid_seconds, rotate: token.rotate };
            let token = admin.token(to(asked, request)).await.map_err(failed)?.into_inner().token;
            Ok(Said { value: json::token(&token), text: format!("{token}\n"), done: true })
        }
        AdminCommand::Peers(PeersArgs { change: Some(change), .. }) => {
            let (peer, off) = match change {
                PeersCommand::Block(peer) => (peer, false),
                PeersCommand::Unblock(peer) => (peer, true),
            };
            let request = v1::BlockRequest { peer: peer.peer.clone(), off };
            let done = admin.block(to(asked, request)).await.map_err(failed)?.into_inner();
            Ok(Said { value: json::blocked(off, &done), text: show::blocked(off, &done), done: true })
        }
        AdminCommand::Plan(plan) => {
            let model = local_path(&plan.model, asked);
            let plan = admin.plan(to(asked, v1::PlanRequest { model })).await.map_err(failed)?.into_inner();
            Ok(Said { value: json::plan(&plan), text: show::plan(&plan, screen), done: false })
        }
        AdminCommand::Load(load) => {
            let (model, split) = (local_path(&load.model, asked), load.split.clone().unwrap_or_default());
            let done = admin.load(to(asked, v1::LoadRequest { model, split })).await.map_err(failed)?.into_inner();
            Ok(Said { value: json::loaded(&done), text: show::loaded(&done), done: false })
        }
        AdminCommand::Unload(unload) => {
            let request = to(asked, v1::UnloadRequest { model: unload.model.clone() });
            let done = admin.unload(request).await.map_err(failed)?.into_inner();
            let value = json::unloaded(&unload.model, &done);
            Ok(Said { value, text: show::unloaded(&unload.model, &done), done: true })
        }
        AdminCommand::Drain(drain) => {
            let request = to(asked, v1::DrainRequest { off: drain.off });
            let done = admin.drain(request).await.map_err(failed)?.into_inner();
            let (value, text) = (json::drained(drain.off, &done), show::drained(drain.off, &done));
            Ok(Said { value, text, done: drain.off || (done.active, done.stages) == (0, 0) })
        }
        AdminCommand::Status(_) => mesh(admin, asked, json::status, |mesh| show::status(mesh, screen)).await,
        AdminCommand::Peers(_) => mesh(admin, asked, json::peers, |mesh| show::peers(mesh, screen)).await,
        AdminCommand::Models(_) => mesh(admin, asked, json::models, |mesh| show::models(mesh, screen)).await,
        AdminCommand::Stages(_) => mesh(admin, asked, json::stages, |mesh| show::stages(mesh, screen)).await,
    }
}

/// A command that shows what the asked node sees.
async fn mesh(
    mut admin: AdminClient<Channel>,
    asked: &AskArgs,
    value: impl FnOnce(&v1::PeersResponse) -> Value,
    text: impl FnOnce(&v1::PeersResponse) -> String,
) -> Result<Said, AskError> {
    let mesh = admin.peers(to(asked, v1::PeersRequest {})).await.map_err(failed)?.into_inner();
    Ok(Said { value: value(&mesh), text: text(&mesh), done: false })
}

/// How far a model is that is being loaded.
async fn loading(reference: &str, asked: &AskArgs, data_dir: &Path, screen: &Screen) -> Result<Said, AskError> {
    let mesh = connect(data_dir).await?.peers(to(asked, v1::PeersRequest {})).await.map_err(failed)?.into_inner();
    let name = mesh_types::ModelId::from_file_name(Path::new(reference));
    let local = mesh.peers.iter().filter(|peer| peer.local).filter_map(|peer| peer.status.as_ref());
    let mut models = local.flat_map(|status| &status.models);
    let model = models.find(|model| model.name == name.as_str() || model.name == reference);
    Ok(Said {
        value: json::models(&mesh),
        text: show::models(&mesh, screen),
        done: model.is_some_and(|model| model.ready),
    })
}

/// A request for the node that `--node` names.
fn to<T>(asked: &AskArgs, request: T) -> Request<T> {
    let mut request = Request::new(request);
    if let Some(node) = &asked.node {
        request.metadata_mut().insert_bin(TARGET, MetadataValue::from_bytes(node.as_bytes()));
    }
    request
}

/// A file of this machine as the local node finds it, whatever its working directory.
fn local_path(reference: &str, asked: &AskArgs) -> String {
    let absolute = || std::path::absolute(reference).ok().filter(|path| path.is_file());
    match asked.node {
        None => absolute().map_or_else(|| reference.to_owned(), |path| path.display().to_string()),
        Some(_) => reference.to_owned(),
    }
}

fn failed(status: Status) -> AskError {
    AskError::Failed(status.message().to_owned())
}

fn print(text: &str) -> Result<(), AskError> {
    let mut out = io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}

async fn connect(data_dir: &Path) -> Result<AdminClient<Channel>, AskError> {
    let path = socket_path(data_dir);
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI only fills the `:authority` header; the connector knows the way.
    let channel = Endpoint::from_static("http://node.local").connect_with_connector(connector).await;
    channel.map(AdminClient::new).map_err(|error| match io_kind(&error) {
        Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            AskError::NotRunning(data_dir.display().to_string())
        }
        kind => AskError::Failed(kind.map_or_else(|| error.to_string(), |kind| kind.to_string())),
    })
}

/// What the system said, where that is among an error's causes.
fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind)
}
