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
        stop: Vec::new(),
        tools: Vec::new(),
        tool_choice: Default::default(),
        parallel_tool_calls: true,
        response_format: Default::default(),
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

#[test]
fn a_conversation_returns_until_waiting_costs_more() {
    let view = view_of(&[0, 0, 0]);
    let mut router = warm(&view);
    let long = "word ".repeat(4000);
    let opening = Prefixes::of(&chat(&["system", &long], None));
    let home = first(&mut router, &view, &opening, at(100));
    let run = router.sent(&"m".into(), &home, &opening, at(100));
    router.ended(&run, Some(5000), at(105));
    let next = Prefixes::of(&chat(&["system", &long, "answer", "more"], None));
    assert_eq!(first(&mut router, &view, &next, at(110)), home);
    let choice = router.choose(&view, &"m".into(), &next, at(110)).unwrap();
    assert!(choice.to_string().contains("5001 tokens cached"), "{choice}");

    // Four long prompts of others wait there: 20 s against 5 s for computing it anew.
    let others: Vec<_> = (0..4)
        .map(|n| Prefixes::of(&chat(&["other", &format!("{n} {long}")], None)))
        .map(|other| router.sent(&"m".into(), &home, &other, at(110)))
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
        router.sent(&"m".into(), &home, &opening, at(100));
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
        router.sent(&"m".into(), &to, &prefixes, at(100));
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
        let run = router.sent(&"m".into(), &view.peers[n].id.clone(), &prefixes, at(40));
        router.ended(&run, Some(1000), at(40 + seconds));
    }
    for n in 0..20 {
        let prefixes = Prefixes::of(&chat(&[&format!("opening {n}")], None));
        assert_eq!(first(&mut router, &view, &prefixes, at(1000)).as_str(), "id-r1", "ten times as fast");
    }
    view.peers.insert(0, PeerView { local: true, ..peer("gateway") });
    view.peers[0].links = vec![LinkView { peer: "id-r1".into(), rtt_us: 5_000_000 }];
    let prefixes = Prefixes::of(&chat(&["opening"], None));
    assert_eq!(first(&mut router, &view, &prefixes, at(1000)).as_str(), "id-r0", "five seconds away");
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
            router.sent(&"m".into(), &to, &prefixes, now);
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
    let run = router.sent(&"m".into(), &home, &prefixes, at(100));
    let rest = MeshView { peers: view.peers.iter().filter(|peer| peer.id != home).cloned().collect() };
    assert_ne!(first(&mut router, &rest, &prefixes, at(101)), home);
    router.ended(&run, None, at(102));
    router.ended(&run, None, at(102));
    first(&mut router, &rest, &prefixes, at(103));
    assert_eq!(router.replicas.len(), 1);
    assert_eq!(router.known.covered(&prefixes, &home, at(100_000)), 0);
    for n in 0..(1 << 16) + 10 {
        let prefixes = Prefixes::of(&chat(&[&n.to_string()], None));
        router.known.remember(&prefixes, &home, at(200 + n));
    }
    assert!(router.known.len() <= 1 << 16);
}

#[test]
fn long_conversations_keep_their_beginning_and_their_end() {
    let turns: Vec<String> = (0..500).map(|n| format!("turn {n}")).collect();
    let texts = |count: usize| turns[..count].iter().map(String::as_str).collect::<Vec<_>>();
    let (before, after) = (Prefixes::of(&chat(&texts(499), None)), Prefixes::of(&chat(&texts(500), None)));
    let mut known = Known::default();
    known.remember(&before, &"p".into(), at(0));
    assert_eq!(known.len(), 64);
    assert_eq!(known.covered(&after, &"p".into(), at(1)), before.tokens());
    assert_eq!(before.opening(), after.opening());
}
