use std::time::Duration;

use mesh_types::{ModelId, TokenId};

use super::*;
use crate::frame::{MicroBatch, Segment, SeqId, StepId, Want};
use crate::scripted::{Faults, ScriptedStage};

fn spec(start: u32, end: u32) -> StageSpec {
    StageSpec {
        model: ModelId::from("scripted"),
        layers: LayerRange::new(start, end).unwrap(),
        n_layer: 6,
        n_embd: 8,
        n_vocab: 20,
        n_ctx: 32,
        n_seq: 2,
        n_batch: 8,
        n_cells: 64,
        cuts_back: true,
        rolls_back: true,
        n_parked: 0,
        n_states: 0,
    }
}

fn stage(start: u32, end: u32, faults: Faults) -> Arc<dyn Stage> {
    Arc::new(ScriptedStage::new(spec(start, end), |_: &[TokenId], _| TokenId(1)).with_faults(faults))
}

fn decode(step: u64) -> Frame {
    let segment = Segment { seq: SeqId(0), start: step as u32, len: 1, want: Want::Nothing };
    Frame::Batch(MicroBatch { step: StepId(step), segments: vec![segment], tokens: vec![TokenId(3)], rows: None })
}

#[tokio::test]
async fn the_loss_of_any_stage_is_the_chains() {
    for dying in 0..3 {
        let faults = |i| Faults { die_at: (i == dying).then_some(2), ..Faults::default() };
        let stages = (0..3).map(|i| stage(2 * i, 2 * i + 2, faults(i))).collect();
        let mut link = Chain::new(stages).unwrap().connect().await.unwrap();
        for step in 0..4 {
            // The link may be over by then.
            let _ = link.input.send(decode(step)).await;
        }
        let mut results = 0;
        let end = loop {
            match tokio::time::timeout(Duration::from_secs(5), link.output.recv()).await.unwrap() {
                Some(Ok(_)) => results += 1,
                end => break end,
            }
        };
        let Some(Err(StageError::Lost { layers, .. })) = end else { panic!("{end:?}") };
        assert_eq!(layers.start(), 2 * dying);
        assert!(results <= 2);
        assert!(link.output.recv().await.is_none());
        while link.tasks.join_next().await.is_some() {}
    }
}

#[tokio::test]
async fn a_failed_step_passes_through_and_the_chain_lives() {
    let faults = Faults { fail_at: Some(0), ..Faults::default() };
    let stages = vec![stage(0, 2, faults), stage(2, 6, Faults::default())];
    let mut link = Chain::new(stages).unwrap().connect().await.unwrap();
    link.input.send(decode(0)).await.unwrap();
    assert!(matches!(link.output.recv().await, Some(Ok(Frame::Failure(failure))) if failure.step == StepId(0)));
    link.input.send(decode(0)).await.unwrap();
    assert!(matches!(link.output.recv().await, Some(Ok(Frame::Result(_)))));
}

#[test]
fn stages_that_do_not_fit_are_refused() {
    let merged = |specs: &[StageSpec]| merge(specs);
    let tight = StageSpec { n_ctx: 16, n_seq: 1, n_batch: 4, n_cells: 20, cuts_back: false, ..spec(2, 6) };
    let layers = LayerRange::new(0, 6).unwrap();
    assert_eq!(merged(&[spec(0, 2), tight.clone()]), Ok(StageSpec { layers, ..tight }));
    let other = |change: fn(&mut StageSpec)| {
        let mut other = spec(2, 4);
        change(&mut other);
        other
    };
    assert!(merged(&[]).is_err());
    for misfit in [
        spec(3, 4),
        spec(1, 4),
        spec(0, 2),
        other(|spec| spec.n_embd = 9),
        other(|spec| spec.n_vocab = 9),
        other(|spec| spec.n_layer = 9),
        other(|spec| spec.model = ModelId::from("other")),
    ] {
        assert!(merged(&[spec(0, 2), misfit.clone()]).is_err(), "{misfit:?}");
    }
}
