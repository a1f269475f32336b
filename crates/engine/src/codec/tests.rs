use std::time::{Duration, Instant};

use mesh_types::{After, Constraint, LayerRange, Logprobs, ModelId, RequestId, Sampling, Start, Thinking, TokenId};
use proptest::prelude::*;

use super::*;
use crate::frame::{
    Command, DrawFailure, MicroBatch, Open, Output, Rows, Segment, SeqId, StepFailure, StepId, StepResult, Want,
};

type Plain = Message<u32>;

const WIDE: Limits = Limits { header: 1 << 20, body: 1 << 24 };

fn now<F: Future>(future: F) -> F::Output {
    futures::executor::block_on(future)
}

fn bytes(message: &Plain, session: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    now(write(&mut bytes, message, session)).unwrap();
    bytes
}

fn back(mut bytes: &[u8], limits: Limits) -> Result<Option<(u32, Plain)>, ReadError> {
    now(read(&mut bytes, limits))
}

fn spec() -> StageSpec {
    StageSpec {
        model: ModelId::from("m"),
        layers: LayerRange::new(2, 4).unwrap(),
        n_layer: 6,
        n_embd: 8,
        n_vocab: 100,
        n_ctx: 64,
        n_seq: 4,
        n_batch: 16,
        n_cells: 256,
        cuts_back: true,
        rolls_back: true,
        n_parked: 0,
        n_states: 0,
    }
}

fn batch(tokens: usize, n_embd: u32) -> MicroBatch {
    MicroBatch {
        step: StepId(7),
        segments: vec![Segment { seq: SeqId(1), start: 3, len: tokens as u32, want: Want::Token }],
        tokens: (0..tokens as i32).map(TokenId).collect(),
        rows: Some(Rows { n_embd, data: (0..tokens * n_embd as usize).map(|i| i as f32).collect() }),
    }
}

prop_compose! {
    fn any_batch()(
        tokens in 1usize..20, n_embd in prop::option::of(1u32..9), step: u64, seq: u32, start: u32, seed: u32,
        want in prop::sample::select(vec![Want::Nothing, Want::Token, Want::Logits, Want::Scored(None), Want::Scored(Some(TokenId(9)))]),
    ) -> Frame {
        let mut batch = batch(tokens, n_embd.unwrap_or(1));
        batch.step = StepId(step);
        batch.segments[0] = Segment { seq: SeqId(seq), start, len: tokens as u32, want };
        match (&mut batch.rows, n_embd) {
            // Every bit pattern but NaN, which is unequal to itself.
            (Some(rows), Some(_)) => rows.data.iter_mut().zip(0u32..).for_each(|(value, i)| {
                let bits = f32::from_bits(seed.wrapping_mul(2_654_435_761).wrapping_add(i.wrapping_mul(40_503)));
                *value = if bits.is_nan() { 0.0 } else { bits };
            }),
            (rows, _) => *rows = None,
        }
        Frame::Batch(batch)
    }
}

fn any_result() -> impl Strategy<Value = Frame> {
    let top = prop::collection::vec((any::<i32>().prop_map(TokenId), -99f32..0.0), 0..20);
    let logprobs = prop::option::of((-99f32..0.0, top).prop_map(|(chosen, top)| Logprobs { chosen, top }));
    let failure = prop_oneof![Just(DrawFailure::Over), ".{0,60}".prop_map(DrawFailure::Invalid)];
    let failure = prop::option::of(failure);
    let token = prop::option::of(any::<i32>().prop_map(TokenId));
    let output = (any::<u32>(), any::<u32>(), token, logprobs, prop::option::of(0usize..40), failure).prop_map(
        |(seq, position, token, logprobs, logits, failure)| Output {
            seq: SeqId(seq),
            position,
            token,
            logprobs,
            logits: logits.map(|n| (0..n).map(|i| i as f32 - 7.5).collect()),
            failure,
        },
    );
    (any::<u64>(), prop::collection::vec(output, 0..5))
        .prop_map(|(step, outputs)| Frame::Result(StepResult { step: StepId(step), outputs }))
}

prop_compose! {
    fn any_constraint()(
        grammar in prop::option::of(".{0,80}"),
        markers in prop::option::of(prop::collection::vec(".{0,9}", 0..4)),
        after in prop::sample::select(vec![After::End, After::Free, After::Repeat]),
        thinking in prop::option::of(("[a-z]{0,5}", "[a-z]{0,5}", any::<bool>())),
        begun in ".{0,9}",
        lists in prop::collection::vec(prop::collection::vec(".{0,9}", 0..4), 2),
        close_in_time: bool,
    ) -> Constraint {
        Constraint {
            grammar,
            start: markers.map_or(Start::Immediately, Start::AtMarker),
            begun,
            after,
            thinking: thinking.map(|(open, close, is_open)| Thinking { open, close, is_open }),
            forbid: lists[0].clone(),
            control_text: lists[1].clone(),
            close_in_time,
        }
    }
}

prop_compose! {
    fn any_open()(
        seq: u32, request in ".{0,40}", prompt_len: u32, max_tokens: u32,
        (temperature, top_k, top_p, min_p, seed) in (0f32..2.0, any::<u32>(), 0f32..1.0, 0f32..1.0, any::<u64>()),
        (repeat_penalty, repeat_last_n, presence_penalty) in (0f32..2.0, any::<u32>(), -2f32..2.0),
        logit_bias in prop::collection::vec((any::<i32>().prop_map(TokenId), -100f32..100.0), 0..9),
        logprobs: Option<u8>,
        constraint in prop::option::of(any_constraint()),
        tokens in prop::collection::vec(prop::collection::vec(any::<i32>().prop_map(TokenId), 0..9), 3),
    ) -> Command {
        let sampling = Sampling {
            temperature, top_k, top_p, min_p, seed, repeat_penalty, repeat_last_n, presence_penalty,
            frequency_penalty: -presence_penalty, ignore_eos: seed % 2 == 0,
        };
        let [prompt_tail, generated, stop_tokens] = [0, 1, 2].map(|list: usize| tokens[list].clone());
        let open = Open::new(SeqId(seq), RequestId::new(request), prompt_len, sampling);
        let open = Open { stop_tokens, prompt_tail, generated, ..open };
        Command::Open(Box::new(Open { max_tokens, logit_bias, logprobs, constraint, ..open }))
    }
}

fn any_command() -> impl Strategy<Value = Frame> {
    prop_oneof![
        any_open(),
        (any::<u32>(), any::<u32>()).prop_map(|(seq, len)| Command::Truncate { seq: SeqId(seq), len }),
        (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(from, to, len)| Command::Copy {
            from: SeqId(from),
            to: SeqId(to),
            len
        }),
        any::<(u32, u32)>().prop_map(|(seq, len)| Command::Checkpoint { seq: SeqId(seq), len }),
        any::<(u32, u32)>().prop_map(|(seq, len)| Command::Forget { seq: SeqId(seq), len }),
        any::<u32>().prop_map(|seq| Command::Close { seq: SeqId(seq) }),
        (any::<u32>(), any::<u32>()).prop_map(|(seq, len)| Command::Retain { seq: SeqId(seq), len }),
    ]
    .prop_map(Frame::Command)
}

fn any_message() -> impl Strategy<Value = Plain> {
    let failure = (any::<u64>(), ".{0,60}").prop_map(|(step, reason)| StepFailure { step: StepId(step), reason });
    let lost = ("[a-z]{1,9}", ".{0,60}").prop_map(|(host, reason)| StageError::Lost {
        model: ModelId::from("m"),
        layers: LayerRange::new(3, 9).unwrap(),
        host,
        reason,
    });
    prop_oneof![
        4 => any_batch().prop_map(Message::Frame),
        4 => any_result().prop_map(Message::Frame),
        4 => any_command().prop_map(Message::Frame),
        1 => failure.prop_map(Frame::Failure).prop_map(Message::Frame),
        1 => lost.prop_map(Err).prop_map(Message::End),
        1 => ".{0,60}".prop_map(|what| Message::End(Err(StageError::InvalidFrame(what)))),
        1 => Just(Message::End(Ok(()))),
        1 => any::<u32>().prop_map(Message::Control),
    ]
}

proptest! {
    #[test]
    fn messages_come_back_as_they_were(message in any_message(), session: u32) {
        let written = bytes(&message, session);
        prop_assert_eq!(back(&written, WIDE).unwrap(), Some((session, message.clone())));
        let owned: Vec<u8> = encode_owned(message, session).unwrap().concat();
        prop_assert_eq!(owned, written);
    }

    #[test]
    fn random_bytes_never_panic(noise in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..8, len in 0u32..200) {
        let _ = back(&noise, WIDE);
        // The same behind a valid prefix, with a length that is right and with one that is not.
        for len in [noise.len() as u32, len] {
            let mut framed = b"MSF1".to_vec();
            framed.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
            framed.extend(len.to_le_bytes());
            framed.extend(0u64.to_le_bytes());
            framed.extend(&noise);
            let _ = back(&framed, WIDE);
        }
    }
}

/// A text's length comes before the text: one that no memory could hold must not be believed.
#[test]
fn texts_longer_than_their_header_are_refused_unallocated() {
    let reason = |reason: &str| StepFailure { step: StepId(1), reason: reason.to_owned() };
    let empty = bytes(&Message::Frame(Frame::Failure(reason(""))), 0);
    for claimed in [1u64, 1 << 20, 1 << 40, i64::MAX as u64, u64::MAX] {
        let mut framed = empty.clone();
        assert_eq!(framed.pop(), Some(0), "the text's length ends the header");
        framed.push(253);
        framed.extend(claimed.to_le_bytes());
        let header_len = (framed.len() - PREFIX_LEN) as u32;
        framed[12..16].copy_from_slice(&header_len.to_le_bytes());
        assert!(matches!(back(&framed, WIDE), Err(ReadError::Invalid(_))), "{claimed}");
    }
    let long = Message::Frame(Frame::Failure(reason(&"r".repeat(REASON_MAX))));
    assert_eq!(back(&bytes(&long, 0), WIDE).unwrap(), Some((0, long)));
}

/// The bound that headers are decoded within, at its tightest: a byte for each of many 64-bit values.
#[test]
fn long_headers_of_small_values_are_read() {
    for count in [1usize, 400, 600, 100_000, 200_000, 5 << 20] {
        let values = Message::Control(vec![0u64; count]);
        let written = encode(&values, 0).unwrap().head;
        let read = now(read::<Vec<u64>, _>(&mut written.as_slice(), Limits::control_of(u32::MAX)));
        assert_eq!(read.unwrap(), Some((0, values)), "{count}");
    }
}

#[test]
fn every_truncation_is_an_error() {
    let logits = Output::logits(SeqId(0), 4, vec![1.0; 30]);
    let messages = [
        Message::Frame(Frame::Batch(batch(3, 8))),
        Message::Frame(Frame::Result(StepResult { step: StepId(1), outputs: vec![logits.clone(), logits] })),
        Message::Frame(Frame::Command(Command::Close { seq: SeqId(300) })),
        Message::End(Err(StageError::Load("no room".to_owned()))),
    ];
    for message in messages {
        let whole = bytes(&message, 9);
        assert!(back(&[], WIDE).unwrap().is_none(), "an end between messages is no error");
        for len in 1..whole.len() {
            assert!(matches!(back(&whole[..len], WIDE), Err(ReadError::Io(_))), "{len} of {}", whole.len());
        }
    }
}

#[test]
fn lengths_are_refused_before_anything_is_read_or_allocated() {
    let spec = spec();
    let limits = [Limits::into_stage(&spec), Limits::out_of_stage(&spec), Limits::control()];
    for limits in limits {
        for (header, body) in [
            (u32::MAX, 0),
            (limits.header + 1, 0),
            (0, u64::MAX),
            (0, limits.body + 1),
            (u32::MAX, u64::MAX),
            (4, 1 << 60),
        ] {
            let mut prefix = bytes(&Message::Frame(Frame::Batch(batch(1, 8))), 0)[..PREFIX_LEN].to_vec();
            prefix[12..16].copy_from_slice(&header.to_le_bytes());
            prefix[16..24].copy_from_slice(&body.to_le_bytes());
            let started = Instant::now();
            // Nothing follows: a reader that waited for the body would report the missing bytes instead.
            assert!(matches!(back(&prefix, limits), Err(ReadError::Invalid(_))), "{header} {body}");
            assert!(started.elapsed() < Duration::from_secs(1));
        }
    }
}

#[test]
fn a_body_must_be_what_its_header_says() {
    let whole = bytes(&Message::Frame(Frame::Batch(batch(3, 8))), 0);
    for body in [0u64, 4, 92, 97, 100] {
        let mut changed = whole.clone();
        changed[16..24].copy_from_slice(&body.to_le_bytes());
        assert!(matches!(back(&changed, WIDE), Err(ReadError::Invalid(_))), "{body}");
    }
    let mut command = bytes(&Message::Frame(Frame::Command(Command::Close { seq: SeqId(1) })), 0);
    command[16] = 4;
    assert!(matches!(back(&command, WIDE), Err(ReadError::Invalid(_))));
    // A header with something behind it.
    let mut longer = bytes(&Message::Control(5), 0);
    longer[12] += 1;
    longer.push(0);
    assert!(matches!(back(&longer, WIDE), Err(ReadError::Invalid(_))));
    // Counts that multiply beyond 64 bits, or add up to the body's length only by wrapping around.
    let wire = (StepId(0), vec![(SeqId(0), 1u32, None::<TokenId>, Some(u64::MAX)), (SeqId(1), 1, None, Some(9))]);
    let head = wire::with_prefix(wire::Kind::Result, 0, wire::header(&wire).unwrap(), 32).unwrap();
    assert!(matches!(back(&head, WIDE), Err(ReadError::Invalid(_))));
}

#[test]
fn the_magic_and_the_kind_are_checked() {
    let whole = bytes(&Message::Control(5), 0);
    for at in 0..8 {
        let mut changed = whole.clone();
        changed[at] ^= 0x40;
        assert!(matches!(back(&changed, WIDE), Err(ReadError::Invalid(_))), "byte {at}");
    }
}

#[test]
fn long_reasons_are_cut_to_what_every_limit_allows() {
    let reason = "ä".repeat(100_000);
    let end: Plain = Message::End(Err(StageError::Load(reason.clone())));
    let failure = Message::Frame(Frame::Failure(StepFailure { step: StepId(1), reason }));
    for message in [end, failure] {
        let written = bytes(&message, 0);
        assert!(written.len() < 5000);
        assert!(back(&written, Limits::control()).unwrap().is_some());
    }
}

#[test]
fn limits_have_room_for_the_largest_frames_of_a_stage() {
    let spec = spec();
    let segments = (0..4).map(|i| Segment { seq: SeqId(i), start: 60, len: 4, want: Want::Logits }).collect();
    let mut largest = batch(16, 8);
    largest.segments = segments;
    largest.check(&spec).unwrap();
    let written = bytes(&Message::Frame(Frame::Batch(largest)), u32::MAX);
    assert!(back(&written, Limits::into_stage(&spec)).unwrap().is_some());
    let command = largest_open(&spec);
    command.check(&spec).unwrap();
    let written = bytes(&Message::Frame(Frame::Command(command)), u32::MAX);
    assert!(back(&written, Limits::into_stage(&spec)).unwrap().is_some());
    let last = StageSpec { layers: LayerRange::new(4, 6).unwrap(), ..spec };
    let top = vec![(TokenId(i32::MAX), -1e9); usize::from(Logprobs::MAX_TOP)];
    let logprobs = Some(Logprobs { chosen: -1e9, top });
    let failure = Some(DrawFailure::Internal("x".repeat(9000)));
    let output = |i| Output {
        logprobs: logprobs.clone(),
        failure: failure.clone(),
        ..Output::logits(SeqId(i), 64, vec![0.0; 400])
    };
    let result = Frame::Result(StepResult { step: StepId(u64::MAX), outputs: (0..4).map(output).collect() });
    assert!(back(&bytes(&Message::Frame(result), 0), Limits::out_of_stage(&last)).unwrap().is_some());
}

#[test]
fn rows_move_into_their_buffer_without_a_copy() {
    let batch = batch(64, 576);
    let at = batch.rows.as_ref().unwrap().data.as_ptr().cast::<u8>();
    let chunks = encode_owned(Message::<u32>::Frame(Frame::Batch(batch)), 0).unwrap();
    assert_eq!(chunks.len(), 2);
    assert_eq!(chunks[1].as_ptr(), at);
}

/// A run that asks for all that it may.
fn largest_open(spec: &StageSpec) -> Command {
    let texts = |letter: &str| vec![letter.repeat(Constraint::MAX_TEXT); Constraint::MAX_TEXTS];
    let constraint = Constraint {
        start: Start::AtMarker(texts("a")),
        begun: "d".repeat(Constraint::MAX_TEXT),
        control_text: texts("b"),
        forbid: texts("c"),
        ..Constraint::immediately("x".repeat(Constraint::MAX_GRAMMAR))
    };
    let token = TokenId(spec.n_vocab.cast_signed() - 1);
    let prompt_len = spec.n_ctx / 2;
    let open = Open::new(SeqId(0), RequestId::new("x".repeat(200)), prompt_len, Sampling::default());
    Command::Open(Box::new(Open {
        logit_bias: vec![(token, -100.0); mesh_types::GenerateSpec::MAX_LOGIT_BIAS],
        logprobs: Some(Logprobs::MAX_TOP),
        constraint: Some(constraint),
        prompt_tail: vec![token; prompt_len as usize],
        generated: vec![token; (spec.n_ctx - prompt_len) as usize],
        ..open
    }))
}
