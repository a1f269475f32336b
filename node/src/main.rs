//! The `mesh-node` program: reads the command line, runs the command, and turns the outcome into an exit code.
#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser as _;
use mesh_node::admin::client::{self, AskError};
use mesh_node::admin::screen::Screen;
use mesh_node::app::{Entry, Node, read_token, token_text};
use mesh_node::cli::{AdminCommand, Cli, Command, DoctorArgs, NodeArgs};
use mesh_node::logs;
use mesh_node::settings::{self, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Wrong usage or configuration.
const EXIT_USAGE: u8 = 2;
/// No node is running.
const EXIT_NOT_RUNNING: u8 = 3;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if matches!(command, Command::StageProcess) {
        logs::init_stage_process();
        mesh_node::stages::run_stage_process();
    }
    if matches!(command, Command::PoolerProcess) {
        logs::init_stage_process();
        mesh_engine::pooler::serve();
    }
    if let Command::Template(ref command) = command {
        return match mesh_node::template::run(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string(), error.exit_code()),
        };
    }
    if let Command::Inspect(ref args) = command {
        return match mesh_node::inspect::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string(), 1),
        };
    }
    // Fails only where a provider is installed already, and there is none before this line.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}"), 1),
    };
    match command {
        Command::StageProcess | Command::PoolerProcess | Command::Template(_) | Command::Inspect(_) => {
            ExitCode::FAILURE
        }
        Command::Up(up) => serve(&runtime, up.node, |_| Ok(Entry::Up)),
        Command::Join(join) => serve(&runtime, join.node, move |_| {
            read_token(join.token.as_deref(), join.token_file.as_ref()).map(Entry::Join)
        }),
        Command::Admin(ref command) => runtime.block_on(ask(command)),
        Command::Doctor(args) => runtime.block_on(doctor(args)),
    }
}

/// `up` and `join`.
fn serve(
    runtime: &tokio::runtime::Runtime,
    args: NodeArgs,
    entry: impl FnOnce(&Settings) -> anyhow::Result<Entry>,
) -> ExitCode {
    let settings = match Settings::load(args) {
        Ok(settings) => settings,
        Err(error) => return fail(&error.to_string(), EXIT_USAGE),
    };
    logs::init(settings.log_format);
    mesh_gateway::raise_open_files();
    let entry = match entry(&settings) {
        Ok(entry) => entry,
        Err(error) => return fail(&format!("{error:#}"), EXIT_USAGE),
    };
    match runtime.block_on(run(settings, entry)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{error:#}"), 1),
    }
}

async fn run(settings: Settings, entry: Entry) -> anyhow::Result<()> {
    let mut signals =
        Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? };
    let mut node = tokio::select! {
        node = Node::start(settings, entry) => node?,
        () = signals.next() => return Ok(()),
    };
    let outcome = node.run_until(signals.next()).await;
    tracing::info!("leaving the mesh; a second signal leaves at once");
    tokio::select! {
        () = node.shutdown() => {}
        () = signals.next() => tracing::warn!("leaving at once"),
    }
    outcome
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The administering commands.
async fn ask(command: &AdminCommand) -> ExitCode {
    let data_dir = match settings::data_dir(command.shared().data_dir.as_deref()) {
        Ok(dir) => dir,
        Err(error) => return fail(&error.to_string(), EXIT_USAGE),
    };
    told(client::run(command, &data_dir, &Screen::stdout()).await.map(|()| true))
}

/// `doctor`.
async fn doctor(mut args: DoctorArgs) -> ExitCode {
    let settings = match Settings::load(std::mem::take(&mut args.would_be)) {
        Ok(settings) => settings,
        Err(error) => return fail(&error.to_string(), EXIT_USAGE),
    };
    let token = match (&args.token, &args.token_file) {
        (None, None) => None,
        (token, file) => match token_text(token.as_deref(), file.as_ref()) {
            Ok(text) => Some(text),
            Err(error) => return fail(&format!("{error:#}"), EXIT_USAGE),
        },
    };
    told(client::doctor(&args, &settings, token.as_deref(), &Screen::stdout()).await)
}

/// The exit code of a command that has said what it has to say; whether all is well.
fn told(outcome: Result<bool, AskError>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Who reads no further, as `head`, has seen enough.
        Err(AskError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error @ AskError::NotRunning(_)) => fail(&error.to_string(), EXIT_NOT_RUNNING),
        Err(error) => fail(&error.to_string(), 1),
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    eprintln!("mesh-node: {message}");
    ExitCode::from(code)
}
