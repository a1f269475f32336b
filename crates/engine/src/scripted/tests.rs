use mesh_types::{LayerRange, ModelId, RequestId, Sampling};

use super::*;
use crate::frame::{Command, Open, Segment, SeqId, StepId};

fn spec(start: u32, end: u32) -> StageSpec {
    StageSpec {
        model: ModelId::from("scripted"),
        layers: LayerRange::new(start, end).unwrap(),
        n_layer: 4,
        n_embd: 16,
        n_vocab: 50,
        n_ctx: 32,
        n_seq: 2,
        n_batch: 8,
        n_cells: 64,
        cuts_back: true,
        rolls_back: true,
        n_parked: 64,
        n_states: 8,
    }
}

/// Counts on from the last token.
fn count(tokens: &[TokenId], index: u32) -> TokenId {
    TokenId(tokens.last().map_or(0, |token| token.0) + 1 + (index as i32) * 100)
}

fn open(seq: u32, prompt_len: u32) -> Frame {
    let request = RequestId::new("r");
    Frame::Command(Command::Open(Box::new(Open::new(SeqId(seq), request, prompt_len, Sampling::greedy()))))
}

fn batch(step: u64, start: u32, tokens: &[i32], want: Want) -> MicroBatch {
    MicroBatch {
        step: StepId(step),
        segments: vec![Segment { seq: SeqId(0), start, len: tokens.len() as u32, want }],
        tokens: tokens.iter().copied().map(TokenId).collect(),
        rows: None,
    }
}

async fn ask(link: &mut StageLink, frame: Frame) -> Result<Frame, StageError> {
    link.input.send(frame).await.unwrap();
    link.output.recv().await.unwrap()
}

#[tokio::test]
async fn the_last_stage_says_what_the_script_says() {
    let stage = ScriptedStage::new(spec(0, 4), count);
    let mut link = stage.connect().await.unwrap();
    link.input.send(open(0, 3)).await.unwrap();
    let token = |frame| match frame {
        Ok(Frame::Result(result)) => (result.outputs[0].position, result.outputs[0].token.unwrap().0),
        other => panic!("{other:?}"),
    };
    let first = ask(&mut link, Frame::Batch(batch(0, 0, &[7, 8, 9], Want::Token))).await;
    assert_eq!(token(first), (3, 10));
    // Output 1 says 100 more, folded into a vocabulary of 50.
    let second = ask(&mut link, Frame::Batch(batch(1, 3, &[10], Want::Token))).await;
    assert_eq!(token(second), (4, 111 % 50));
}

#[tokio::test]
async fn logits_point_at_the_same_token() {
    let stage = ScriptedStage::new(spec(0, 4), count);
    let mut link = stage.connect().await.unwrap();
    link.input.send(open(0, 2)).await.unwrap();
    let Ok(Frame::Result(result)) = ask(&mut link, Frame::Batch(batch(0, 0, &[7, 8], Want::Logits))).await else {
        panic!("no result")
    };
    let logits = result.outputs[0].logits.as_ref().unwrap();
    let best = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    assert_eq!(logits.chunks(50).map(best).collect::<Vec<_>>(), [8, 9]);
}

#[tokio::test]
async fn slices_in_a_row_give_what_the_whole_gives() {
    let whole = ScriptedStage::new(spec(0, 4), count);
    let mut link = whole.connect().await.unwrap();
    link.input.send(open(0, 2)).await.unwrap();
    let expected = ask(&mut link, Frame::Batch(batch(0, 0, &[7, 8], Want::Logits))).await.unwrap();

    let mut frame = Frame::Batch(batch(0, 0, &[7, 8], Want::Logits));
    for (start, end) in [(0, 1), (1, 3), (3, 4)] {
        let stage = ScriptedStage::new(spec(start, end), count);
        let mut link = stage.connect().await.unwrap();
        assert_eq!(ask(&mut link, open(0, 2)).now_or_frame(end == 4).await, end == 4);
        frame = ask(&mut link, frame).await.unwrap();
    }
    assert_eq!(frame, expected);
}

/// The last stage swallows a command, so that nothing can be awaited for it.
trait NowOrFrame: Future<Output = Result<Frame, StageError>> + Sized {
    async fn now_or_frame(self, last: bool) -> bool {
        let mut asked = std::pin::pin!(self);
        if last {
            // Sends the frame; nothing comes.
            assert!(futures::poll!(asked.as_mut()).is_pending());
            return true;
        }
        assert!(matches!(asked.await, Ok(Frame::Command(_))));
        false
    }
}

impl<F: Future<Output = Result<Frame, StageError>>> NowOrFrame for F {}

#[tokio::test]
async fn faults_come_at_their_step() {
    let faults = Faults { fail_at: Some(1), die_at: Some(2) };
    let stage = ScriptedStage::new(spec(0, 4), count).with_faults(faults);
    let mut link = stage.connect().await.unwrap();
    let nothing = |step, start| Frame::Batch(batch(step, start, &[1], Want::Nothing));
    assert!(matches!(ask(&mut link, nothing(0, 0)).await, Ok(Frame::Result(_))));
    assert!(matches!(ask(&mut link, nothing(1, 1)).await, Ok(Frame::Failure(_))));
    assert!(matches!(ask(&mut link, nothing(2, 1)).await, Err(StageError::Lost { .. })));
    assert!(link.output.recv().await.is_none());
    assert!(matches!(stage.connect().await, Err(StageError::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_batch_takes_its_service_time() {
    let stage = ScriptedStage::new(spec(0, 4), count).with_service_time(Duration::from_millis(20));
    let mut link = stage.connect().await.unwrap();
    let started = tokio::time::Instant::now();
    ask(&mut link, Frame::Batch(batch(0, 0, &[1, 2, 3], Want::Nothing))).await.unwrap();
    assert_eq!(started.elapsed().as_millis() / 20, 3);
}

#[tokio::test]
async fn log_probabilities_are_those_of_its_logits() {
    let stage = ScriptedStage::new(spec(0, 4), |_: &[TokenId], _| TokenId(7));
    let run = Open { logprobs: Some(3), ..Open::new(SeqId(0), RequestId::new("r"), 2, Sampling::greedy()) };
    let frames = [
        Frame::Command(Command::Open(Box::new(run))),
        Frame::Batch(batch(0, 0, &[1, 2], Want::Token)),
        Frame::Command(Command::Truncate { seq: SeqId(0), len: 0 }),
        Frame::Batch(batch(1, 0, &[1, 2], Want::Logits)),
    ];
    let answers = crate::testkit::run(&stage, &frames).await.unwrap();
    let [Frame::Result(drawn), Frame::Result(rows)] = &answers[..] else { panic!("{answers:?}") };
    let logits = &rows.outputs[0].logits.as_ref().unwrap()[50..];
    assert_eq!(drawn.outputs[0].logprobs, Some(log_probabilities(logits, TokenId(7), 3)));
}
