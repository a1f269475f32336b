//! Real weights in child processes: the kit, and every logit as in one process.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mesh_engine::chain::Chain;
use mesh_engine::child::{ChildCommand, ChildStage, Loaded, serve};
use mesh_engine::codec::Message;
use mesh_engine::conformance::{Kit, check};
use mesh_engine::llama::{LlamaStage, LlamaStageConfig};
use mesh_engine::testkit::{GEMMA3, SMOLLM2, Script, Split, compare};
use mesh_engine::{Frame, Stage, StageError, Want};

const ROLE: &str = "MESH_ENGINE_TEST_LLAMA_CHILD";

/// Not a test of its own: what the children run.
#[test]
fn child_main() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    serve(|config: LlamaStageConfig| {
        let stage = LlamaStage::load(config)?;
        let weight_bytes = stage.weight_bytes();
        Ok(Loaded { stage: Arc::new(stage), weight_bytes })
    })
}

fn command() -> ChildCommand {
    ChildCommand {
        program: std::env::current_exe().unwrap(),
        args: ["child_main", "--exact", "--nocapture"].map(Into::into).to_vec(),
        env: vec![(ROLE.into(), "1".into())],
    }
}

async fn child(config: &LlamaStageConfig) -> ChildStage {
    ChildStage::spawn(command(), config).await.unwrap()
}

/// Prompts that are cut into batches differently are summed up in another order.
fn kit() -> Kit {
    Kit::new((0..40).map(|i| 1000 + i * 37)).with_tolerance(0.5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_with_slices_pass_and_compute_the_same() {
    for model in [SMOLLM2, GEMMA3] {
        let split = Split::small(model);
        let folder = tempfile::tempdir().unwrap();
        let mut children: Vec<Arc<dyn Stage>> = Vec::new();
        for config in split.at(&[7], folder.path()).unwrap() {
            let stage = child(&config).await;
            assert!(stage.weight_bytes() > 1 << 20);
            if model == SMOLLM2 {
                assert_eq!(check(&stage, &kit()).await, Ok(()), "layers {}", stage.spec().layers);
            }
            children.push(Arc::new(stage));
        }
        let whole = LlamaStage::load(split.unsplit().unwrap()).unwrap();
        let script = Script::thorough(4, whole.spec().n_vocab);
        let found = compare(&whole, &Chain::new(children).unwrap(), script.frames()).await.unwrap();
        assert_eq!((found.mismatch, found.steps), (None, 14));
    }
}

#[tokio::test]
async fn a_model_that_is_not_there_is_a_load_error() {
    let mut config = Split::small(SMOLLM2).unsplit().unwrap();
    config.model_path = "/does/not/exist.gguf".into();
    let error = ChildStage::spawn(command(), &config).await.unwrap_err();
    assert!(matches!(error, StageError::Load(_)), "{error}");
}

/// Prefill in the largest batches there are: the child is busy for a while.
fn long_work(stage: &dyn Stage) -> Vec<Frame> {
    let spec = stage.spec();
    let mut script = Script::new(spec.n_seq, spec.n_vocab);
    for _ in 0..spec.n_ctx / spec.n_batch {
        script.batch(&[(0, spec.n_batch, Want::Nothing)]);
    }
    script.frames().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_is_killed_or_shut_down_in_the_middle_of_a_decode_is_gone_at_once() {
    let mut split = Split::small(SMOLLM2);
    (split.limits.n_ctx, split.limits.n_batch) = (2048, 512);
    let config = split.unsplit().unwrap();
    for shut_down in [false, true] {
        let stage = child(&config).await;
        let link = stage.connect().await.unwrap();
        for frame in long_work(&stage) {
            link.input.send(frame).await.unwrap();
        }
        let started = Instant::now();
        if shut_down {
            stage.shutdown().await;
        } else {
            let process = stage.process_id().to_string();
            assert!(std::process::Command::new("kill").args(["-9", &process]).status().unwrap().success());
        }
        let mut output = link.output;
        let end = loop {
            match tokio::time::timeout(Duration::from_secs(5), output.recv()).await.unwrap() {
                Some(Ok(_)) => {}
                end => break end,
            }
        };
        assert!(matches!(end, Some(Err(StageError::Lost { .. }))), "{end:?}");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

/// Reads one message as a parent would, and throws its contents away.
fn skip_message(mut socket: &UnixStream) {
    let mut prefix = [0; 24];
    socket.read_exact(&mut prefix).unwrap();
    let header = u32::from_le_bytes(prefix[12..16].try_into().unwrap());
    socket.read_exact(&mut vec![0; header as usize]).unwrap();
}

/// As `ChildStage` starts it, but so that the socket can be closed without a signal to the process.
#[test]
fn a_child_whose_parent_dies_in_the_middle_of_a_decode_ends_by_itself() {
    #[derive(serde::Serialize)]
    enum ToChild {
        Config(String),
        Connect,
    }
    let mut split = Split::small(SMOLLM2);
    (split.limits.n_ctx, split.limits.n_batch) = (2048, 512);
    let config = split.unsplit().unwrap();
    let (socket, theirs) = UnixStream::pair().unwrap();
    let it = command();
    let mut child = std::process::Command::new(it.program)
        .args(it.args)
        .envs(it.env)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let send = |message: Message<ToChild>| {
        (&socket).write_all(&mesh_engine::codec::encode(&message, 1).unwrap().head).unwrap();
    };
    send(Message::Control(ToChild::Config(serde_json::to_string(&config).unwrap())));
    skip_message(&socket); // it is ready
    send(Message::Control(ToChild::Connect));
    skip_message(&socket); // the link is open
    let mut script = Script::new(4, config.spec.n_vocab);
    for _ in 0..4 {
        script.batch(&[(0, 512, Want::Nothing)]);
    }
    script.frames().iter().for_each(|frame| send(Message::Frame(frame.clone())));
    skip_message(&socket); // the first step is done: it computes the second
    drop(socket);
    let deadline = Instant::now() + Duration::from_secs(3);
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
