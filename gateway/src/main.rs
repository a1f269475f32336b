//! `mesh-gateway`: joins a mesh and serves its models under `/v1`, running none of them.
//!
//! Composes the [`mesh_gateway`] library with [`mesh_mesh`]. Start with [`run`].
#![forbid(unsafe_code)]

mod settings;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Parser as _;
use mesh_gateway::announce::{Announcement, Announcer, Format};
use mesh_gateway::{Config, Gateway, announce_models};
use mesh_mesh::{DataDir, Identity, JoinToken, LocalStatus, Membership, Mesh, mesh};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::settings::{Args, Settings, SettingsError};

/// How long the first member of the mesh may take to accept this gateway.
const JOIN: Duration = Duration::from_secs(15);
/// What is logged unless `RUST_LOG` says otherwise.
const LOG_FILTER: &str = "info,libp2p=warn,libp2p_kad=error,h2=warn,hyper=warn,tonic=warn";
const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let finished = Settings::load(Args::parse()).map_err(anyhow::Error::from).and_then(|settings| {
        start_logs(settings.log_format);
        mesh_gateway::raise_open_files();
        let runtime = tokio::runtime::Runtime::new().context("cannot start")?;
        let finished = runtime.block_on(run(settings));
        runtime.shutdown_timeout(Duration::from_secs(1));
        finished
    });
    match finished {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mesh-gateway: {error:#}");
            ExitCode::from(if error.is::<SettingsError>() { WRONG_USAGE } else { FAILED })
        }
    }
}

fn start_logs(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        Format::Text => logs.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        Format::Json => logs.json().flatten_event(true).init(),
    }
}

/// Joins, serves, and leaves again on a signal.
async fn run(settings: Settings) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tasks.spawn(watch_signals(interrupt, terminate, stop.clone()));
    let dir = DataDir::open(&settings.data_dir)?;
    let mesh = Mesh::start(mesh::Config {
        identity: Identity::open(&dir)?,
        membership: membership(&dir, settings.token.as_ref())?,
        listen: settings.listen,
        name: settings.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mdns: settings.mdns,
    })
    .await?;
    let served = serve(&mesh, &settings, stop).await;
    mesh.shutdown().await;
    tasks.shutdown().await;
    served
}

fn membership(dir: &DataDir, token: Option<&JoinToken>) -> anyhow::Result<Membership> {
    if let Some(token) = token {
        token.check_expiry(SystemTime::now())?;
        return Ok(Membership::join(dir, token)?);
    }
    Membership::load(dir)?.ok_or_else(|| {
        let dir = dir.path().display();
        SettingsError(format!("{dir} belongs to no mesh yet: give a token with --join or --token-file")).into()
    })
}

async fn serve(mesh: &Mesh, settings: &Settings, stop: CancellationToken) -> anyhow::Result<()> {
    let config = Config::new(settings.gateway).with_api_key(settings.api_key.clone()).with_limits(settings.limits);
    let peers = Arc::new(mesh.clone());
    let gateway = match settings.any_port {
        true => Gateway::bind_or_any_port(config, peers).await?,
        false => Gateway::bind(config, peers).await?,
    };
    // This gateway offers nothing: peers see it as a member without models or stages.
    mesh.serve_grpc(tonic::service::Routes::default());
    mesh.publish(LocalStatus::default());
    tokio::select! {
        joined = mesh.joined(JOIN) => joined?,
        () = stop.cancelled() => return Ok(()),
    }
    let announcer = Announcer::stdout(settings.log_format);
    let (id, node) = (mesh.id().to_string(), mesh.local_id().to_string());
    announcer.say(&Announcement::Mesh { id, node, token: None });
    announcer.say(&Announcement::Gateway { url: gateway.url() });
    let announcing = async {
        announce_models(mesh.view(), &announcer).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = gateway.run(stop) => {}
        () = announcing => {}
    }
    Ok(())
}

/// The first signal lets answers finish; the second ends the process at once.
async fn watch_signals(mut interrupt: Signal, mut terminate: Signal, stop: CancellationToken) {
    for count in 0.. {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        if count > 0 {
            std::process::exit(FAILED.into());
        }
        tracing::info!("stopping: answers may finish; a second signal stops at once");
        stop.cancel();
    }
}
