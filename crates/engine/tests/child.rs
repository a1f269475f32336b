//! Stages in real child processes: this test's own executable, started again.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mesh_engine::child::{ChildCommand, ChildStage, Loaded, serve};
use mesh_engine::conformance::{Kit, check};
use mesh_engine::scripted::{Faults, ScriptedStage};
use mesh_engine::{Frame, MicroBatch, Rows, Segment, SeqId, Stage, StageError, StageLink, StageSpec, StepId, Want};
use mesh_types::{LayerRange, ModelId, TokenId};
use serde::{Deserialize, Serialize};

const ROLE: &str = "MESH_ENGINE_TEST_CHILD";

/// What a child is told to be.
#[derive(Serialize, Deserialize)]
enum Config {
    Scripted { spec: StageSpec, millis_per_token: u64, die_at: Option<u64> },
    Refusing,
    Aborting,
    Hanging,
}

/// Not a test of its own: what the children run.
#[test]
fn child_main() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    serve(|config| match config {
        Config::Scripted { spec, millis_per_token, die_at } => {
            let script = |tokens: &[TokenId], index: u32| TokenId(tokens.len() as i32 * 7 + index as i32);
            let stage = ScriptedStage::new(spec, script)
                .with_service_time(Duration::from_millis(millis_per_token))
                .with_faults(Faults { die_at, ..Faults::default() });
            Ok(Loaded { stage: Arc::new(stage), weight_bytes: 1234 })
        }
        Config::Refusing => Err(StageError::Load("no memory for it".to_owned())),
        Config::Aborting => std::process::abort(),
        Config::Hanging => loop {
            std::thread::park();
        },
    })
}

fn command() -> ChildCommand {
    ChildCommand {
        program: std::env::current_exe().unwrap(),
        args: ["child_main", "--exact", "--nocapture"].map(Into::into).to_vec(),
        env: vec![(ROLE.into(), "1".into())],
    }
}

fn spec(start: u32, end: u32, n_embd: u32) -> StageSpec {
    StageSpec {
        model: ModelId::from("scripted"),
        layers: LayerRange::new(start, end).unwrap(),
        n_layer: 6,
        n_embd,
        n_vocab: 60,
        n_ctx: 4096,
        n_seq: 3,
        n_batch: 64,
        n_cells: 12288,
        cuts_back: true,
        rolls_back: true,
        n_parked: 64,
        n_states: 8,
    }
}

fn scripted(spec: StageSpec, millis_per_token: u64) -> Config {
    Config::Scripted { spec, millis_per_token, die_at: None }
}

async fn spawn(config: Config) -> ChildStage {
    ChildStage::spawn(command(), &config).await.unwrap()
}

fn decode(step: u64, spec: &StageSpec) -> Frame {
    let rows = (!spec.is_first()).then(|| Rows { n_embd: spec.n_embd, data: vec![0.5; spec.n_embd as usize] });
    let segment = Segment { seq: SeqId(0), start: step as u32, len: 1, want: Want::Nothing };
    Frame::Batch(MicroBatch { step: StepId(step), segments: vec![segment], tokens: vec![TokenId(1)], rows })
}

async fn ask(link: &mut StageLink, frame: Frame) -> Option<Result<Frame, StageError>> {
    link.input.send(frame).await.ok()?;
    within(link.output.recv()).await
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(5), future).await.expect("nothing happened within 5 s")
}

fn running(process: u32) -> bool {
    PathBuf::from(format!("/proc/{process}")).exists()
}

fn kill(process: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_passes_the_kit() {
    for (start, end) in [(0, 6), (0, 2), (2, 4), (4, 6)] {
        let stage = spawn(scripted(StageSpec { n_ctx: 128, ..spec(start, end, 24) }, 0)).await;
        assert_eq!(stage.weight_bytes(), 1234);
        assert_eq!(check(&stage, &Kit::new(3..40)).await, Ok(()), "layers {start}..{end}");
        stage.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_child_passes_the_kit() {
    let stage = spawn(scripted(StageSpec { n_ctx: 128, ..spec(2, 4, 24) }, 20)).await;
    assert_eq!(check(&stage, &Kit::new(3..40)).await, Ok(()));
}

#[tokio::test]
async fn a_killed_child_ends_its_link_at_once_and_says_how() {
    for (signal, name) in [("-KILL", "SIGKILL (9)"), ("-ABRT", "SIGABRT (6)"), ("-TERM", "SIGTERM (15)")] {
        let stage = spawn(scripted(spec(0, 6, 16), 0)).await;
        let mut link = stage.connect().await.unwrap();
        assert!(matches!(ask(&mut link, decode(0, stage.spec())).await, Some(Ok(_))));
        let started = Instant::now();
        kill(stage.process_id(), signal);
        let Some(Err(lost)) = within(link.output.recv()).await else { panic!("no error") };
        assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
        let StageError::Lost { layers, reason, .. } = &lost else { panic!("{lost}") };
        assert!(reason.contains(name), "{reason}");
        assert_eq!(*layers, stage.spec().layers);
        assert!(within(link.output.recv()).await.is_none());
        assert_eq!(within(stage.lost()).await, lost);
        assert_eq!(within(stage.connect()).await.unwrap_err(), lost);
        assert!(!running(stage.process_id()), "a zombie is left");
    }
}

#[tokio::test]
async fn a_child_that_dies_while_it_computes_is_lost() {
    let stage = spawn(scripted(spec(0, 6, 16), 1000)).await;
    let link = stage.connect().await.unwrap();
    link.input.send(decode(0, stage.spec())).await.unwrap();
    kill(stage.process_id(), "-KILL");
    let mut output = link.output;
    assert!(matches!(within(output.recv()).await, Some(Err(StageError::Lost { .. }))));
}

#[tokio::test]
async fn an_error_of_the_stage_comes_through() {
    let config = Config::Scripted { spec: spec(0, 6, 16), millis_per_token: 0, die_at: Some(1) };
    let stage = spawn(config).await;
    let mut link = stage.connect().await.unwrap();
    assert!(matches!(ask(&mut link, decode(0, stage.spec())).await, Some(Ok(_))));
    assert!(matches!(ask(&mut link, decode(1, stage.spec())).await, Some(Err(StageError::Lost { .. }))));
    assert!(matches!(within(stage.connect()).await, Err(StageError::Lost { .. })));
    assert!(running(stage.process_id()), "the process itself lives");
}

#[tokio::test]
async fn a_stage_that_cannot_be_loaded_says_why() {
    let load = async |config| match ChildStage::spawn(command(), &config).await {
        Err(StageError::Load(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(load(Config::Refusing).await, "no memory for it");
    let why = load(Config::Aborting).await;
    assert!(why.contains("SIGABRT"), "{why}");
    let nowhere = ChildCommand { program: "/does/not/exist".into(), ..command() };
    assert!(matches!(ChildStage::spawn(nowhere, &Config::Refusing).await, Err(StageError::Load(_))));
    // A program that is no child: it ends without a word.
    let other = ChildCommand { program: "true".into(), ..command() };
    assert!(matches!(ChildStage::spawn(other, &Config::Refusing).await, Err(StageError::Load(_))));
}

#[tokio::test]
async fn nothing_runs_on_after_shutdown_or_drop() {
    let stage = spawn(scripted(spec(0, 6, 16), 0)).await;
    let process = stage.process_id();
    stage.shutdown().await;
    assert!(!running(process));

    let stage = spawn(scripted(spec(0, 6, 16), 0)).await;
    let (process, mut link) = (stage.process_id(), stage.connect().await.unwrap());
    drop(stage);
    // The link ends, whatever it says.
    while within(link.output.recv()).await.is_some() {}
    let deadline = Instant::now() + Duration::from_secs(5);
    while running(process) {
        assert!(Instant::now() < deadline, "the process is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Starts a child as the parent does, but so that its socket can be closed without a signal.
fn start_bare(config: &Config) -> (std::process::Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let it = command();
    let child = Command::new(it.program)
        .args(it.args)
        .envs(it.env)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    #[derive(Serialize)]
    enum ToChild {
        Config(String),
    }
    let hello = mesh_engine::codec::Message::Control(ToChild::Config(serde_json::to_string(config).unwrap()));
    let encoded = mesh_engine::codec::encode(&hello, 0).unwrap();
    std::io::Write::write_all(&mut &ours, &encoded.head).unwrap();
    (child, ours)
}

#[test]
fn a_child_ends_when_its_parent_does() {
    for (config, waits_for_ready) in
        [(scripted(spec(0, 6, 16), 0), true), (Config::Hanging, false), (scripted(spec(0, 6, 16), 60_000), true)]
    {
        let (mut child, socket) = start_bare(&config);
        if waits_for_ready {
            std::io::Read::read_exact(&mut &socket, &mut [0; 24]).unwrap();
            let mut frames = Vec::new();
            // Session 1 is never opened here, so these are thrown away; the child has to read past them all the same.
            for step in 0..20 {
                let frame = mesh_engine::codec::Message::<()>::Frame(decode(step, &spec(0, 6, 16)));
                frames.extend(mesh_engine::codec::encode(&frame, 1).unwrap().head);
            }
            std::io::Write::write_all(&mut &socket, &frames).unwrap();
        }
        drop(socket);
        let deadline = Instant::now() + Duration::from_secs(5);
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    child.kill().unwrap();
                    panic!("the child runs on");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert_eq!(status.code(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_links_leave_nothing_behind() {
    let stage = spawn(scripted(spec(0, 6, 16), 1)).await;
    for round in 0..50 {
        let mut link = within(stage.connect()).await.unwrap();
        for step in 0..round % 9 {
            link.input.send(decode(step, stage.spec())).await.unwrap();
        }
        if round % 2 == 0 {
            drop(link);
            continue;
        }
        // Empty slots and steps of this link only: anything else would be a failure, or another step.
        for step in 0..round % 9 {
            match within(link.output.recv()).await {
                Some(Ok(Frame::Result(result))) => assert_eq!(result.step, StepId(step)),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_costs_little() {
    const STEPS: u64 = 2000;
    let spec = spec(2, 3, 576);
    let direct = ScriptedStage::new(spec.clone(), |_: &[TokenId], _| TokenId(0));
    let child = spawn(scripted(spec, 0)).await;
    let mut means = Vec::new();
    for stage in [&direct as &dyn Stage, &child] {
        let mut link = stage.connect().await.unwrap();
        let mut started = Instant::now();
        for step in 0..STEPS + 100 {
            if step == 100 {
                started = Instant::now();
            }
            let answer = ask(&mut link, decode(step, stage.spec())).await;
            assert!(matches!(answer, Some(Ok(Frame::Batch(_)))), "{answer:?}");
        }
        means.push(started.elapsed() / STEPS as u32);
    }
    eprintln!("a decode step, 576 values a row: {:?} in this process, {:?} through a child", means[0], means[1]);
    // A hundred microseconds on an idle machine; a busy one is no reason to fail.
    assert!(means[1] < Duration::from_millis(5), "{means:?}");
}
