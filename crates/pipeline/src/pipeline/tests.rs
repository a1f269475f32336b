use std::sync::atomic::{AtomicU32, Ordering};

use mesh_engine::TokenEvent;
use mesh_engine::scripted::{Faults, ScriptedStage};
use mesh_types::{FinishReason, LayerRange, ModelId, RequestId, Sampling, TokenId};
use tokio::time::timeout;

use super::*;

const N_CTX: u32 = 512;

/// For what must come at all; in the tests' own time, mostly.
const PATIENCE: Duration = Duration::from_secs(60);

fn stage_spec(n_seq: u32) -> StageSpec {
    StageSpec {
        model: ModelId::new("scripted"),
        layers: LayerRange::new(0, 4).expect("not empty"),
        n_layer: 4,
        n_embd: 8,
        n_vocab: 1000,
        n_ctx: N_CTX,
        n_seq,
        n_batch: 16,
        n_cells: N_CTX * n_seq,
        cuts_back: true,
        rolls_back: true,
        n_parked: 0,
        n_states: 0,
    }
}

/// What the script says after `tokens`: never below 10.
fn next(tokens: &[TokenId], _: u32) -> TokenId {
    let sum: i32 = tokens.iter().map(|token| token.0 % 97).sum();
    TokenId(10 + (sum * 31 + tokens.len() as i32) % 900)
}

fn expected(prompt: &[TokenId], count: u32) -> Vec<TokenId> {
    let mut tokens = prompt.to_vec();
    for index in 0..count {
        tokens.push(next(&tokens, index));
    }
    tokens.split_off(prompt.len())
}

fn spec(name: u32, prompt: u32, max_tokens: u32) -> GenerateSpec {
    let prompt = (0..prompt).map(|i| TokenId(((name * 17 + i) % 1000) as i32)).collect();
    let all = GenerateSpec::new(RequestId::new(format!("run {name}")), prompt);
    GenerateSpec { max_tokens, sampling: Sampling::greedy(), ..all }
}

async fn start(stage: ScriptedStage, config: Config) -> Pipeline {
    Pipeline::start(Arc::new(stage), config).await.expect("a pipeline")
}

fn slow_stage(n_seq: u32) -> ScriptedStage {
    ScriptedStage::new(stage_spec(n_seq), next).with_service_time(Duration::from_millis(10))
}

/// Reads a run to its end.
async fn read(mut generation: Generation) -> (Vec<TokenId>, Result<FinishReason, GenerateError>) {
    let mut tokens = Vec::new();
    loop {
        let event = timeout(PATIENCE, generation.events.recv()).await.expect("an event in time");
        match event.expect("an end before the stream is over") {
            Ok(TokenEvent::Token { token, .. }) => tokens.push(token),
            Ok(TokenEvent::Prompt(_)) => panic!("nothing is scored"),
            Ok(TokenEvent::Finished { reason, usage }) => {
                assert_eq!(usage.completion_tokens as usize, tokens.len());
                assert_eq!(generation.events.recv().await, None);
                return (tokens, Ok(reason));
            }
            Err(error) => {
                assert_eq!(generation.events.recv().await, None);
                return (tokens, Err(error));
            }
        }
    }
}

/// Waits until the pulse is as wished.
async fn until(pipeline: &Pipeline, mut wish: impl FnMut(&Pulse) -> bool) -> Pulse {
    let pulse = pipeline.pulse();
    let look = async {
        loop {
            let now = *pulse.borrow();
            if wish(&now) {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, look).await.expect("this in time")
}

#[tokio::test(start_paused = true)]
async fn many_runs_each_get_their_own_tokens() {
    for depth in [1, 3] {
        let pipeline = start(slow_stage(4), Config { depth, ..Config::default() }).await;
        let specs: Vec<GenerateSpec> = (0..20).map(|name| spec(name, 1 + name * 3, 5 + name)).collect();
        let runs = specs.iter().map(|spec| async { read(pipeline.generate(spec.clone()).await.expect("room")).await });
        let results = futures::future::join_all(runs).await;
        for (spec, result) in specs.iter().zip(results) {
            assert_eq!(result, (expected(&spec.prompt, spec.max_tokens), Ok(FinishReason::Length)));
        }
        let pulse = until(&pipeline, |pulse| pulse.active == 0).await;
        assert_eq!(pulse.queued, 0);
        assert_eq!(pulse.generated_tokens, specs.iter().map(|spec| u64::from(spec.max_tokens)).sum::<u64>());
        assert_eq!(pulse.prompt_tokens, specs.iter().map(|spec| spec.prompt.len() as u64).sum::<u64>());
        assert!(pulse.last_forward.is_some());
        assert!(pulse.decode_rate > 10.0 && pulse.decode_rate <= 100.0, "{}", pulse.decode_rate);
    }
}

#[tokio::test]
async fn what_cannot_run_is_refused_before_a_token() {
    let pipeline = start(ScriptedStage::new(stage_spec(1), next), Config::default()).await;
    let error = pipeline.generate(spec(0, N_CTX, 1)).await.expect_err("too long");
    assert_eq!(error, GenerateError::PromptTooLong { prompt: N_CTX, context: N_CTX });
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_holds_up_nobody_else() {
    let pipeline = start(slow_stage(2), Config { unread: 2, ..Config::default() }).await;
    let slow = pipeline.generate(spec(1, 3, 40)).await.expect("room");
    let fast = pipeline.generate(spec(2, 3, 100)).await.expect("room");
    assert_eq!(read(fast).await.1, Ok(FinishReason::Length));
    let pulse = until(&pipeline, |pulse| pulse.active == 1).await;
    assert_eq!(pulse.generated_tokens, 100 + 2, "no more than may be left unread");
    assert_eq!(read(slow).await, (expected(&spec(1, 3, 40).prompt, 40), Ok(FinishReason::Length)));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_reaches_a_client_that_does_not_read() {
    let stage = slow_stage(1).with_faults(Faults { fail_at: None, die_at: Some(20) });
    let pipeline = start(stage, Config { unread: 3, ..Config::default() }).await;
    let slow = pipeline.generate(spec(1, 3, 40)).await.expect("room");
    until(&pipeline, |pulse| pulse.generated_tokens == 3).await;
    pipeline.shutdown(Duration::from_millis(1)).await;
    let (tokens, end) = read(slow).await;
    assert_eq!(tokens.len(), 3);
    assert!(matches!(end, Err(GenerateError::Unavailable(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_stream_cancels_the_run() {
    let drawn = Arc::new(AtomicU32::new(0));
    let counter = drawn.clone();
    let script = move |tokens: &[TokenId], index| {
        counter.fetch_add(1, Ordering::Relaxed);
        next(tokens, index)
    };
    let stage = ScriptedStage::new(stage_spec(1), script).with_service_time(Duration::from_millis(10));
    let pipeline = start(stage, Config::default()).await;
    let mut first = pipeline.generate(spec(1, 3, 400)).await.expect("room");
    let queued = pipeline.generate(spec(2, 3, 400)).await.expect("room");
    let prefill = pipeline.generate(spec(3, 400, 1)).await.expect("room");
    until(&pipeline, |pulse| pulse.queued == 2).await;
    // While it is queued.
    drop(queued);
    until(&pipeline, |pulse| pulse.queued == 1).await;
    // While it is decoded.
    first.events.recv().await;
    drop(first);
    until(&pipeline, |pulse| pulse.queued == 0).await;
    let so_far = drawn.load(Ordering::Relaxed);
    // While its prompt is computed: a chunk, and it is over.
    let before = until(&pipeline, |pulse| pulse.prompt_tokens > 3).await.prompt_tokens;
    drop(prefill);
    let after = until(&pipeline, |pulse| pulse.active == 0).await;
    assert!(drawn.load(Ordering::Relaxed) <= so_far + 1, "more than the step under way was computed");
    let last = pipeline.generate(spec(4, 3, 2)).await.expect("room");
    assert_eq!(read(last).await.0, expected(&spec(4, 3, 2).prompt, 2));
    assert!(after.prompt_tokens <= before + 16, "{} tokens of a dropped prompt", after.prompt_tokens - before);
    assert!(drawn.load(Ordering::Relaxed) <= so_far + 1 + 2);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_cancels_the_run() {
    let pipeline = start(slow_stage(1), Config::default()).await;
    let call = pipeline.generate(spec(1, 3, 400));
    // Sent, and the answer not awaited.
    assert!(futures::poll!(std::pin::pin!(call)).is_pending());
    let next = pipeline.generate(spec(2, 3, 2)).await.expect("room");
    assert_eq!(read(next).await.1, Ok(FinishReason::Length));
    until(&pipeline, |pulse| pulse.active == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_stage_ends_every_run_and_the_pipeline() {
    let stage = slow_stage(2).with_faults(Faults { fail_at: None, die_at: Some(5) });
    let pipeline = start(stage, Config::default()).await;
    let runs = [1, 2, 3].map(|name| pipeline.generate(spec(name, 3, 50)));
    for run in futures::future::join_all(runs).await {
        let (_, end) = read(run.expect("room")).await;
        assert!(matches!(&end, Err(GenerateError::Unavailable(what)) if what.contains("layers 0-3")), "{end:?}");
    }
    assert!(matches!(pipeline.ended().await, StageError::Lost { .. }));
    let late = pipeline.generate(spec(9, 3, 1)).await;
    assert!(matches!(late, Err(GenerateError::Unavailable(_))), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_step_ends_its_runs_and_no_others() {
    let stage = slow_stage(2).with_faults(Faults { fail_at: Some(1), die_at: None });
    let pipeline = start(stage, Config { depth: 2, ..Config::default() }).await;
    let (first, second) = (pipeline.generate(spec(1, 16, 3)).await, pipeline.generate(spec(2, 16, 3)).await);
    let (first, second) = tokio::join!(read(first.expect("room")), read(second.expect("room")));
    assert_eq!(first, (expected(&spec(1, 16, 3).prompt, 3), Ok(FinishReason::Length)));
    assert!(matches!(second.1, Err(GenerateError::Step(_))), "{second:?}");
    let next = pipeline.generate(spec(3, 16, 3)).await.expect("room");
    assert_eq!(read(next).await.1, Ok(FinishReason::Length));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_finishes_what_was_accepted() {
    let pipeline = start(slow_stage(1), Config::default()).await;
    let accepted = [1, 2].map(|name| pipeline.generate(spec(name, 3, 20)));
    let accepted = futures::future::join_all(accepted).await.into_iter().map(|run| read(run.expect("room")));
    let shutdown = async {
        let refused = async {
            pipeline.closing.subscribe().wait_for(Option::is_some).await.expect("a pipeline that lives");
            pipeline.generate(spec(3, 3, 1)).await
        };
        tokio::join!(pipeline.shutdown(Duration::from_secs(60)), refused).1
    };
    let (accepted, refused) = tokio::join!(futures::future::join_all(accepted), shutdown);
    assert!(accepted.iter().all(|(tokens, end)| tokens.len() == 20 && end.is_ok()), "{accepted:?}");
    assert!(matches!(refused, Err(GenerateError::Unavailable(_))), "{refused:?}");
    assert_eq!(pipeline.ended().await, StageError::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_longer_than_it_was_told() {
    let pipeline = start(slow_stage(1), Config::default()).await;
    let long = pipeline.generate(spec(1, 3, 400)).await.expect("room");
    let begun = Instant::now();
    let ((_, end), ()) = tokio::join!(read(long), pipeline.shutdown(Duration::from_millis(500)));
    assert!(matches!(end, Err(GenerateError::Unavailable(_))), "{end:?}");
    assert!(begun.elapsed() < Duration::from_millis(600), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_pipeline_ends_its_runs() {
    let pipeline = start(slow_stage(1), Config::default()).await;
    let run = pipeline.generate(spec(1, 3, 400)).await.expect("room");
    drop(pipeline);
    assert!(matches!(read(run).await.1, Err(GenerateError::Unavailable(_))));
}

/// Several tokens at a time come for such a text.
#[tokio::test]
async fn a_text_that_repeats_itself_reaches_a_slow_client_whole() {
    fn repeats(tokens: &[TokenId], _: u32) -> TokenId {
        TokenId(10 + tokens.len() as i32 % 3)
    }
    for unread in [1, 5] {
        let pipeline = start(ScriptedStage::new(stage_spec(1), repeats), Config { unread, ..Config::default() }).await;
        let generation = pipeline.generate(spec(0, 4, 200)).await.expect("room");
        until(&pipeline, |pulse| pulse.generated_tokens >= unread as u64).await;
        let (tokens, end) = read(generation).await;
        assert_eq!((tokens.len(), end), (200, Ok(FinishReason::Length)));
        let right = (4..).zip(&tokens).all(|(place, token)| token.0 == 10 + place % 3);
        assert!(right, "{tokens:?}");
    }
}

#[tokio::test]
async fn a_part_of_a_model_is_no_pipeline() {
    let half = StageSpec { layers: LayerRange::new(0, 2).expect("not empty"), ..stage_spec(1) };
    let stage = Arc::new(ScriptedStage::new(half, next));
    assert!(matches!(Pipeline::start(stage, Config::default()).await, Err(StageError::Load(_))));
}

/// A pipeline of a stage that is far away, with one near by that says the same but for every seventh token.
async fn with_drafts(fails: bool) -> Pipeline {
    let guess = |tokens: &[TokenId], index: u32| match next(tokens, index) {
        TokenId(token) if tokens.len().is_multiple_of(7) => TokenId((token + 1) % 1000),
        token => token,
    };
    let [token, way] = [1, 40].map(Duration::from_millis);
    let quick = ScriptedStage::new(stage_spec(6), guess).with_service_time(token);
    let slow = ScriptedStage::new(stage_spec(6), next).with_service_time(token).with_step_time(way);
    let config = Config { parallel: Some(3), ..Config::default() };
    let second = start(quick, Config { speculate: false, ..config }).await;
    if fails {
        second.shutdown(Duration::ZERO).await;
    }
    Pipeline::start_with(Arc::new(slow), config, Some(Arc::new(second))).await.expect("a pipeline")
}

/// Reads a run; says its tokens, those that were drafted, and what it took.
async fn timed(pipeline: &Pipeline, spec: GenerateSpec) -> (Vec<TokenId>, u32, Duration) {
    let begun = Instant::now();
    let mut generation = pipeline.generate(spec).await.expect("room");
    let mut tokens = Vec::new();
    loop {
        match generation.events.recv().await.expect("an end").expect("no failure") {
            TokenEvent::Token { token, .. } => tokens.push(token),
            TokenEvent::Finished { usage, .. } => return (tokens, usage.accepted_tokens, begun.elapsed()),
            TokenEvent::Prompt(_) => panic!("nothing is scored"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_model_saves_steps_and_changes_nothing() {
    let pipeline = with_drafts(false).await;
    for prompt in [3, 40, 100] {
        let spec = spec(prompt, prompt, 100);
        let (tokens, accepted, took) = timed(&pipeline, spec.clone()).await;
        assert_eq!(tokens, expected(&spec.prompt, 100));
        assert!(accepted > 50, "{accepted}");
        assert!(took < Duration::from_secs(3), "4 s are what it takes without: {took:?}");
    }
    // Several at once, one of which goes away.
    let specs: Vec<GenerateSpec> = (0..6).map(|name| spec(name, 20 + name * 9, 60)).collect();
    let gone = pipeline.generate(spec(9, 50, 400)).await.expect("room");
    let runs = specs.iter().map(|spec| timed(&pipeline, spec.clone()));
    let leave = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(gone);
    };
    let (results, ()) = tokio::join!(futures::future::join_all(runs), leave);
    for (spec, (tokens, ..)) in specs.iter().zip(results) {
        assert_eq!(tokens, expected(&spec.prompt, 60));
    }
    until(&pipeline, |pulse| pulse.active == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_model_that_is_gone_is_not_missed() {
    let pipeline = with_drafts(true).await;
    let spec = spec(1, 40, 50);
    let (tokens, accepted, _) = timed(&pipeline, spec.clone()).await;
    assert_eq!((tokens, accepted), (expected(&spec.prompt, 50), 0));
}

#[tokio::test(start_paused = true)]
async fn a_second_model_that_does_not_answer_is_not_waited_for() {
    let silent = ScriptedStage::new(stage_spec(6), next).with_step_time(Duration::from_secs(3600));
    let silent = start(silent, Config { speculate: false, ..Config::default() }).await;
    let stage = Arc::new(slow_stage(4));
    let pipeline = Pipeline::start_with(stage, Config::default(), Some(Arc::new(silent))).await.expect("a pipeline");
    // Short enough for it to be asked at once.
    let spec = spec(1, 5, 50);
    let (tokens, _, took) = timed(&pipeline, spec.clone()).await;
    assert_eq!(tokens, expected(&spec.prompt, 50));
    assert!((2..10).contains(&took.as_secs()), "{took:?}");
}
