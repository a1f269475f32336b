//! Peers that come, go, and say things.

use super::*;

fn status(name: &str, sequence: u64) -> v1::NodeStatus {
    v1::NodeStatus { name: name.to_owned(), sequence, ..Default::default() }
}

fn hear(table: &mut Table, peer: &PeerId, status: v1::NodeStatus, now: Instant) -> bool {
    table.heard(peer, v1::Update { status: Some(status), peers: Vec::new() }, now)
}

fn states(table: &Table) -> Vec<(String, PeerState)> {
    let local = PeerView { local: true, ..blank(PeerId::from("me"), PeerState::Ready) };
    table.view(local).peers.into_iter().skip(1).map(|peer| (peer.name, peer.state)).collect()
}

#[test]
fn a_peer_comes_goes_and_returns() {
    let (mut table, peer, start) = (Table::default(), PeerId::from("p"), Instant::now());
    assert!(!hear(&mut table, &peer, status("early", 1), start), "not connected");
    table.connected(&peer, None);
    assert_eq!(states(&table), [(String::new(), PeerState::Joining)]);
    assert!(hear(&mut table, &peer, status("p", 5), start));
    assert!(!hear(&mut table, &peer, status("old", 4), start));
    assert_eq!(states(&table), [("p".into(), PeerState::Ready)]);
    assert!(hear(&mut table, &peer, v1::NodeStatus { leaving: true, ..status("p", 6) }, start));
    assert_eq!(states(&table), [("p".into(), PeerState::Leaving)]);
    table.disconnected(&peer, start);
    assert_eq!(states(&table), [("p".into(), PeerState::Gone)]);
    assert_eq!(table.next_expiry(), Some(start + GONE_FOR));

    table.connected(&peer, None);
    assert_eq!(states(&table), [("p".into(), PeerState::Joining)]);
    assert!(hear(&mut table, &peer, status("p", 1), start), "a restarted peer counts anew");
    table.disconnected(&peer, start);
    assert!(table.expire(start + GONE_FOR / 2).is_empty());
    assert_eq!(table.expire(start + GONE_FOR), [peer]);
    assert!(states(&table).is_empty());
}

#[test]
fn a_round_trip_is_told_again_only_when_it_moved() {
    let (mut table, peer) = (Table::default(), PeerId::from("p"));
    assert!(!table.measured(&peer, Duration::from_millis(3)), "not connected");
    table.connected(&peer, Some("/ip4/192.0.2.1/tcp/1".parse().unwrap()));
    assert!(table.measured(&peer, Duration::from_micros(300)));
    assert!((0..100).all(|n| !table.measured(&peer, Duration::from_micros(200 + 10 * n))), "noise");
    assert!((0..10).any(|_| table.measured(&peer, Duration::from_millis(40))));
    assert!(table.links(0).next().unwrap().to.rtt_us > 2000);
}

#[test]
fn peers_are_shown_by_name_and_id() {
    let mut table = Table::default();
    for (id, name) in [("3", "b"), ("2", "a"), ("1", "b")] {
        table.connected(&PeerId::from(id), None);
        assert!(hear(&mut table, &PeerId::from(id), status(name, 1), Instant::now()));
    }
    let view = table.view(blank(PeerId::from("me"), PeerState::Ready));
    let ids: Vec<_> = view.peers.iter().map(|peer| peer.id.as_str()).collect();
    assert_eq!(ids, ["me", "2", "1", "3"]);
}

#[test]
fn nonsense_is_ignored_and_excess_cut() {
    let (mut table, peer) = (Table::default(), PeerId::from("p"));
    table.connected(&peer, None);
    let broken = v1::ModelStatus { digest: vec![1, 2], ..Default::default() };
    assert!(!hear(&mut table, &peer, v1::NodeStatus { models: vec![broken], ..status("p", 1) }, Instant::now()));
    let lie = v1::NodeStatus { peer_id: "other".into(), ..status(&"ü".repeat(1000), 2) };
    assert!(hear(&mut table, &peer, lie, Instant::now()));
    let record = table.records(Instant::now(), &[]).remove(0);
    assert_eq!((record.status.peer_id.as_str(), record.status.name.chars().count()), ("p", MAX_NAME));
}

#[test]
fn what_others_are_told_is_numbered_by_its_changes() {
    let (mut table, now) = (Table::default(), Instant::now());
    let at = || Some("/ip4/192.0.2.1/tcp/1".parse().unwrap());
    let [p, q] = ["p", "q"].map(PeerId::from);
    table.connected(&p, at());
    table.connected(&q, at());
    let told = |table: &Table, after| table.links(after).map(|link| link.to.peer_id).collect::<Vec<_>>();
    assert_eq!(told(&table, 0), ["p", "q"]);
    let before = table.version();
    assert!(table.measured(&p, Duration::from_millis(1)));
    assert!(!table.measured(&q, Duration::ZERO) || table.version() > before);
    assert_eq!(told(&table, before)[0], "p", "the last to change comes last");
    let before = table.version();
    table.disconnected(&p, now);
    assert!(!told(&table, 0).contains(&"p".to_owned()));
    assert_eq!(table.version(), before, "nothing is said of who is gone");
}

#[test]
fn links_come_in_pieces_and_go_with_the_connection() {
    let (mut table, peer, now) = (Table::default(), PeerId::from("p"), Instant::now());
    let link = |id: &str, rtt_us| v1::PeerAddress { peer_id: id.to_owned(), rtt_us, ..Default::default() };
    let links = |table: &Table| {
        let view = table.view(blank(PeerId::from("me"), PeerState::Ready));
        view.peers[1].links.iter().map(|link| (link.peer.to_string(), link.rtt_us)).collect::<Vec<_>>()
    };
    table.connected(&peer, None);
    assert!(table.heard(&peer, v1::Update { status: None, peers: vec![link("a", 1)] }, now));
    assert!(links(&table).is_empty(), "it has not said what it is");
    assert!(table.heard(&peer, v1::Update { status: Some(status("p", 1)), peers: vec![link("b", 2)] }, now));
    assert!(table.heard(&peer, v1::Update { status: None, peers: vec![link("a", 3)] }, now));
    assert_eq!(links(&table), [("a".to_owned(), 3), ("b".to_owned(), 2)]);
    let many = (0..1000).map(|n| link(&n.to_string(), 1)).collect();
    assert!(table.heard(&peer, v1::Update { status: None, peers: many }, now));
    assert_eq!(links(&table).len(), MAX_ITEMS);
    table.connected(&peer, None);
    assert!(table.heard(&peer, v1::Update { status: Some(status("p", 1)), peers: Vec::new() }, now));
    assert!(links(&table).is_empty());
}

#[test]
fn a_restarted_peer_is_heard_though_its_old_connection_is_not_known_to_be_dead() {
    let (mut table, peer, now) = (Table::default(), PeerId::from("p"), Instant::now());
    table.connected(&peer, None);
    assert!(hear(&mut table, &peer, status("before", 900), now));
    assert!(!hear(&mut table, &peer, status("after", 1), now));
    table.watches(&peer);
    assert!(hear(&mut table, &peer, status("after", 1), now));
    assert_eq!(states(&table), [("after".into(), PeerState::Ready)]);
}
