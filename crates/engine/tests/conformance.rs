//! The kit against real weights: whole, in slices, and in child processes.

use std::sync::Arc;

use mesh_engine::chain::Chain;
use mesh_engine::child::{ChildCommand, ChildStage, Loaded, serve};
use mesh_engine::conformance::{Kit, check};
use mesh_engine::llama::{LlamaStage, LlamaStageConfig};
use mesh_engine::testkit::{GEMMA3, SMOLLM2, Script, Split, compare, load_all};
use mesh_engine::{Stage, StageError};

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

async fn child(config: &LlamaStageConfig) -> ChildStage {
    let command = ChildCommand {
        program: std::env::current_exe().unwrap(),
        args: ["child_main", "--exact", "--nocapture"].map(Into::into).to_vec(),
        env: vec![(ROLE.into(), "1".into())],
    };
    ChildStage::spawn(command, config).await.unwrap()
}

/// Prompts that are cut into batches differently are summed up in another order.
fn kit() -> Kit {
    Kit::new((0..40).map(|i| 1000 + i * 37)).with_tolerance(0.05)
}

#[tokio::test]
async fn a_whole_model_passes() {
    let stage = LlamaStage::load(Split::small(SMOLLM2).unsplit().unwrap()).unwrap();
    assert_eq!(check(&stage, &kit()).await, Ok(()));
}

#[tokio::test]
async fn slices_and_their_chain_pass() {
    let folder = tempfile::tempdir().unwrap();
    let configs = Split::small(SMOLLM2).at(&[10, 20], folder.path()).unwrap();
    let stages = load_all(configs).unwrap();
    for stage in &stages {
        assert_eq!(check(&**stage, &kit()).await, Ok(()), "layers {}", stage.spec().layers);
    }
    assert_eq!(check(&Chain::new(stages).unwrap(), &kit()).await, Ok(()));
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
    let command = ChildCommand {
        program: std::env::current_exe().unwrap(),
        args: ["child_main", "--exact", "--nocapture"].map(Into::into).to_vec(),
        env: vec![(ROLE.into(), "1".into())],
    };
    let error = ChildStage::spawn(command, &config).await.unwrap_err();
    assert!(matches!(error, StageError::Load(_)), "{error}");
}
