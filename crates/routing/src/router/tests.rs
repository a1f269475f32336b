//! What the router prefers, case by case.

use mesh_types::{ChatRequest, LinkView, Message, ModelView, PeerView, RequestId};

use super::*;
use crate::placement::tests::peer;

/// Replicas `r0`, `r1`, … of the model `m` with so many runs each.
pub(super) fn view_of(loads: &[u32]) -> MeshView {
    let replica = |(n, active): (usize, &u32)| PeerView {
        models: vec![ModelView {
            name: "m".into(),
            digest: None,
            ready: true,
            detail: String::new(),
            context: 8192,
            layers: 30,
            nodes: Vec::new(),
            ranges: Vec::new(),
            active: *active,
            queued: 0,
            last_forward_ms: None,
            scripted: false,
            tools: Default::default(),
        }],
        ..peer(&format!("r{n}"))
    };
    MeshView { peers: loads.iter().enumerate().map(replica).collect() }
}

fn chat(turns: &[&str], conversation: Option<&str>) -> ChatRequest {
    let message = |text: &&str| Message { role: "user".into(), content: Some((*text).into()), ..Message::default() };
    ChatRequest {
        request: RequestId::new("r"),
        model: ModelId::new("m"),
        messages: turns.iter().map(message).collect(),
        max_tokens: None,
        sampling: Default::default(),
        logit_bias: Vec::new(),
        logprobs: None,
        stop: Vec::new(),
        tools: Vec::new(),
        tool_choice: Default::default(),
        parallel_tool_calls: true,
        response_format: Default::default(),
        grammar: None,
        cache_prompt: None,
        template_kwargs: Default::default(),
        raw: None,
        conversation: conversation.map(str::to_owned),
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A router that has known its replicas for long.
fn warm(view: &MeshView) -> Router {
    let mut router = Router::default();
    let stranger = Prefixes::of(&chat(&["stranger"], None));
    router.choose(view, &"m".into(), &stranger, at(0)).unwrap();
    router
}

fn first(router: &mut Router, view: &MeshView, prefixes: &Prefixes, now: Duration) -> PeerId {
    router.choose(view, &"m".into(), prefixes, now).unwrap().candidates.remove(0).peer
}

/// Sends a request to `peer`, whatever the router prefers.
pub(super) fn send(router: &mut Router, view: &MeshView, to: &PeerId, prefixes: &Prefixes, now: Duration) -> RunId {
    let choice = router.choose(view, &"m".into(), prefixes, now).unwrap();
    let candidate = choice.candidates.iter().find(|candidate| candidate.peer == *to).unwrap();
    router.sent(&"m".into(), candidate, prefixes, now)
}

/// The first token of a run comes after so many seconds, and its end with it.
fn answer(router: &mut Router, run: &RunId, computed: u32, at: Duration) {
    router.answering(run, at);
    let usage = Usage { prompt_tokens: computed, completion_tokens: 1, ..Usage::default() };
    router.ended(run, Some(&usage), at);
}

#[test]
fn a_conversation_returns_until_waiting_costs_more() {
    let view = view_of(&[0, 0, 0]);
    let mut router = warm(&view);
    let long = "word ".repeat(4000);
    let opening = Prefixes::of(&chat(&["system", &long], None));
    let home = first(&mut router, &view, &opening, at(100));
    let run = send(&mut router, &view, &home, &opening, at(100));
    answer(&mut router, &run, 5000, at(105));
    let next = Prefixes::of(&chat(&["system", &long, "answer", "more"], None));
    assert_eq!(first(&mut router, &view, &next, at(110)), home);
    let choice = router.choose(&view, &"m".into(), &next, at(110)).unwrap();
    assert!(choice.to_string().contains("5001 tokens cached"), "{choice}");

    // Four long prompts of others wait there: 20 s against 5 s for computing it anew.
    let others: Vec<_> = (0..4)
        .map(|n| Prefixes::of(&chat(&["other", &format!("{n} {long}")], None)))
        .map(|other| send(&mut router, &view, &home, &other, at(110)))
        .collect();
    assert_ne!(first(&mut router, &view, &next, at(110)), home, "spilled over");
    others.iter().for_each(|run| router.ended(run, None, at(130)));
    assert_eq!(first(&mut router, &view, &next, at(130)), home, "and back");
}

#[test]
fn a_conversations_own_name_is_enough() {
    let view = view_of(&[0, 0, 0]);
    let mut router = warm(&view);
    for name in ["a", "b", "c", "d", "e", "f"] {
        let opening = Prefixes::of(&chat(&["one thing"], Some(name)));
        let home = first(&mut router, &view, &opening, at(100));
        send(&mut router, &view, &home, &opening, at(100));
        let compacted = Prefixes::of(&chat(&[&"quite another text ".repeat(200)], Some(name)));
        let choice = router.choose(&view, &"m".into(), &compacted, at(100)).unwrap();
        let there = choice.candidates.iter().find(|candidate| candidate.peer == home).unwrap();
        assert!(there.cached > 0, "{choice}");
    }
}

#[test]
fn a_replica_that_looks_idle_is_not_overrun_between_two_statuses() {
    let view = view_of(&[0, 6, 6, 6]);
    let mut router = warm(&view);
    let mut sent = [0; 4];
    for n in 0..16 {
        let prefixes = Prefixes::of(&chat(&[&format!("{n} {}", "word ".repeat(300))], None));
        let to = first(&mut router, &view, &prefixes, at(100));
        sent[view.peers.iter().position(|peer| peer.id == to).unwrap()] += 1;
        send(&mut router, &view, &to, &prefixes, at(100));
    }
    assert!(sent[0] > sent[1] && sent[0] <= 11 && sent[1..].iter().all(|count| *count > 0), "{sent:?}");
}

#[test]
fn gateways_that_know_nothing_send_one_opening_to_one_place_and_others_elsewhere() {
    let view = view_of(&[0, 0, 0, 0]);
    let mut used = std::collections::BTreeSet::new();
    for n in 0..32 {
        let prefixes = Prefixes::of(&chat(&[&format!("system {n}"), "hello"], None));
        let homes: Vec<_> = (0..3).map(|_| first(&mut warm(&view), &view, &prefixes, at(100))).collect();
        assert!(homes.windows(2).all(|pair| pair[0] == pair[1]), "{homes:?}");
        used.insert(homes[0].clone());
    }
    assert_eq!(used.len(), 4);
}

#[test]
fn a_slow_replica_and_a_far_one_get_less() {
    let mut view = view_of(&[0, 0]);
    let mut router = warm(&view);
    for (n, seconds) in [(0, 10), (1, 1)] {
        let prefixes = Prefixes::of(&chat(&[&format!("measure {n}")], None));
        let run = send(&mut router, &view, &view.peers[n].id, &prefixes, at(40));
        answer(&mut router, &run, 1000, at(40 + seconds));
    }
    for n in 0..20 {
        let prefixes = Prefixes::of(&chat(&[&format!("opening {n} {}", "word ".repeat(300))], None));
        assert_eq!(first(&mut router, &view, &prefixes, at(400)).as_str(), "id-r1", "ten times as fast");
    }
    view.peers.insert(0, PeerView { local: true, ..peer("gateway") });
    view.peers[0].links = vec![LinkView { peer: "id-r1".into(), rtt_us: 5_000_000, relayed: false }];
    let prefixes = Prefixes::of(&chat(&["opening"], None));
    assert_eq!(first(&mut router, &view, &prefixes, at(400)).as_str(), "id-r0", "five seconds away");
}

#[test]
fn a_new_replica_warms_up() {
    let mut view = view_of(&[0]);
    let mut router = warm(&view);
    view.peers.push(view_of(&[0, 0]).peers.remove(1));
    let mut to_new = |now: Duration| {
        let sent = (0..12).filter(|n| {
            let prefixes = Prefixes::of(&chat(&[&format!("{n} at {now:?}")], None));
            let to = first(&mut router, &view, &prefixes, now);
            send(&mut router, &view, &to, &prefixes, now);
            to.as_str() == "id-r1"
        });
        sent.count()
    };
    assert_eq!(to_new(at(100)), 1, "one at a time");
    assert!((1..=3).contains(&to_new(at(110))), "a few more");
    assert!(to_new(at(200)) >= 5, "its share");
}

#[test]
fn lost_replicas_and_old_beginnings_are_forgotten() {
    let view = view_of(&[0, 0]);
    let mut router = warm(&view);
    let prefixes = Prefixes::of(&chat(&["a", "b"], None));
    let home = first(&mut router, &view, &prefixes, at(100));
    let run = send(&mut router, &view, &home, &prefixes, at(100));
    let rest = MeshView { peers: view.peers.iter().filter(|peer| peer.id != home).cloned().collect() };
    assert_ne!(first(&mut router, &rest, &prefixes, at(101)), home);
    router.ended(&run, None, at(102));
    router.ended(&run, None, at(102));
    first(&mut router, &rest, &prefixes, at(103));
    assert_eq!(router.replicas.len(), 1);
    assert_eq!(router.known.covered(&prefixes, &home, at(0), at(100_000)), 0);
    for n in 0..(1 << 16) + 10 {
        let prefixes = Prefixes::of(&chat(&[&n.to_string()], None));
        router.known.remember(&prefixes, &home, at(200 + n));
    }
    assert!(router.known.len() <= 1 << 16);
}

#[test]
fn a_replica_that_comes_back_holds_nothing() {
    let view = view_of(&[0, 0]);
    let mut router = warm(&view);
    let prefixes = Prefixes::of(&chat(&["a".repeat(4000).as_str(), "b"], None));
    let home = first(&mut router, &view, &prefixes, at(100));
    let run = send(&mut router, &view, &home, &prefixes, at(100));
    answer(&mut router, &run, 1000, at(101));
    let cached = |router: &mut Router, now| {
        let choice = router.choose(&view, &"m".into(), &prefixes, now).unwrap();
        choice.candidates.iter().find(|candidate| candidate.peer == home).unwrap().cached
    };
    assert!(cached(&mut router, at(102)) >= 1000);
    let rest = MeshView { peers: view.peers.iter().filter(|peer| peer.id != home).cloned().collect() };
    router.choose(&rest, &"m".into(), &prefixes, at(103)).unwrap();
    assert_eq!(cached(&mut router, at(104)), 0);
}

#[test]
fn a_conversation_stays_while_its_last_turn_has_not_ended_and_its_status_is_old() {
    let mut view = view_of(&[0, 0, 0, 0]);
    let mut router = Router::default();
    let text = "word ".repeat(200);
    let turns = [&*text, "answer", "more"];
    let opening = Prefixes::of(&chat(&turns[..1], None));
    let home = first(&mut router, &view, &opening, at(1));
    let _not_ended = send(&mut router, &view, &home, &opening, at(1));
    let next = Prefixes::of(&chat(&turns, None));
    assert_eq!(first(&mut router, &view, &next, at(2)), home, "the gateway itself has just begun");
    let run = send(&mut router, &view, &home, &next, at(2));
    answer(&mut router, &run, 300, at(3));
    view.peers.iter_mut().filter(|peer| peer.id == home).for_each(|peer| peer.models[0].active = 2);
    assert_eq!(first(&mut router, &view, &next, at(3)), home, "those two were its own");
}

#[test]
fn small_requests_say_nothing_of_a_replicas_pace() {
    let view = view_of(&[0, 0]);
    let mut router = warm(&view);
    let prefixes = Prefixes::of(&chat(&["hello"], None));
    let (quick, slow) = (view.peers[0].id.clone(), view.peers[1].id.clone());
    for (peer, seconds) in [(&quick, 1), (&slow, 9)] {
        let run = send(&mut router, &view, peer, &prefixes, at(100));
        answer(&mut router, &run, 12, at(100 + seconds));
    }
    let choice = router.choose(&view, &"m".into(), &Prefixes::of(&chat(&["another"], None)), at(200)).unwrap();
    assert_eq!(choice.candidates[0].wait_ms, choice.candidates[1].wait_ms, "{choice}");
}

#[test]
fn a_replica_that_forgets_is_not_waited_for() {
    let view = view_of(&[0, 0]);
    let mut router = warm(&view);
    let long = "word ".repeat(2000);
    let opening = Prefixes::of(&chat(&[&long], None));
    let home = first(&mut router, &view, &opening, at(100));
    for turn in 0..30 {
        let run = send(&mut router, &view, &home, &opening, at(100 + turn));
        answer(&mut router, &run, 2500, at(100 + turn));
    }
    let keeps = router.replicas[&("m".into(), home.clone())].keeps();
    assert!(keeps < 0.05, "{keeps}");
}

#[test]
fn long_conversations_keep_their_beginning_and_their_end() {
    let turns: Vec<String> = (0..500).map(|n| format!("turn {n}")).collect();
    let texts = |count: usize| turns[..count].iter().map(String::as_str).collect::<Vec<_>>();
    let (before, after) = (Prefixes::of(&chat(&texts(499), None)), Prefixes::of(&chat(&texts(500), None)));
    let mut known = Known::default();
    known.remember(&before, &"p".into(), at(0));
    assert_eq!(known.len(), 64);
    assert_eq!(known.covered(&after, &"p".into(), at(0), at(1)), before.tokens());
    assert_eq!(before.opening(), after.opening());
}
