use libp2p::kad::store::RecordStore;

use super::*;

const MESH: MeshId = MeshId([1; 16]);

fn key(model: &str) -> ModelKey {
    ModelKey::new(&MESH, model)
}

fn address(port: u16) -> Multiaddr {
    format!("/ip4/192.0.2.1/tcp/{port}").parse().unwrap()
}

struct Node {
    dht: Dht,
    leaders: Leaders,
    now: Instant,
}

impl Node {
    fn new() -> Self {
        Self { dht: dht(PeerId::random()), leaders: Leaders::new(MESH), now: Instant::now() }
    }

    fn heard(&mut self, peer: PeerId, ports: &[u16], models: &[&str]) {
        let (addresses, models): (Vec<_>, Vec<_>) =
            (ports.iter().map(|port| address(*port)).collect(), models.iter().map(|model| key(model)).collect());
        self.leaders.heard(&mut self.dht, peer, &addresses, &models, self.now);
    }

    fn record(&mut self, peer: PeerId, key: RecordKey) {
        let record = ProviderRecord { key, provider: peer, expires: None, addresses: vec![address(1); 100] };
        self.leaders.record(&mut self.dht, record);
    }

    fn leaders_of(&mut self, model: &str) -> Vec<PeerId> {
        self.dht.store_mut().providers(&key(model).record()).into_iter().map(|record| record.provider).collect()
    }

    /// Where `peer` is, by the routing table.
    fn place_of(&mut self, peer: PeerId) -> Vec<Multiaddr> {
        let Some(bucket) = self.dht.kbucket(peer) else { return Vec::new() };
        let entry = bucket.iter().find(|entry| *entry.node.key.preimage() == peer);
        entry.map(|entry| entry.node.value.iter().cloned().collect()).unwrap_or_default()
    }
}

#[test]
fn a_key_tells_no_name_and_differs_from_mesh_to_mesh() {
    assert_eq!(key("m"), key("m"));
    assert!(key("m") != key("n") && key("m") != ModelKey::new(&MeshId([2; 16]), "m"));
}

#[test]
fn who_is_gone_is_named_to_nobody_and_what_it_led_is_let_go_of() {
    let (mut node, peer) = (Node::new(), PeerId::random());
    node.heard(peer, &[1, 2], &[]);
    node.record(peer, key("m").record());
    assert_eq!(node.leaders_of("m"), [peer]);
    node.heard(peer, &[2, 3], &["m"]);
    assert_eq!(node.place_of(peer), [2, 3].map(|port| address(port).with_p2p(peer).unwrap()), "where it is now");
    assert_eq!(node.leaders_of("m"), [peer]);

    let lost = |node: &mut Node| node.leaders.lost(&mut node.dht, &peer);
    lost(&mut node);
    assert!(node.place_of(peer).is_empty());
    assert_eq!(node.leaders_of("m"), [peer], "it may come back");
    node.heard(peer, &[2], &["n"]);
    assert!(node.leaders_of("m").is_empty(), "it leads another now");
    node.record(peer, key("n").record());
    node.leaders.forget(&mut node.dht, &peer);
    assert!(node.leaders_of("n").is_empty() && node.place_of(peer).is_empty());
}

#[test]
fn one_member_cannot_fill_the_table() {
    let (mut node, peer, other) = (Node::new(), PeerId::random(), PeerId::random());
    node.record(peer, RecordKey::new(b"of another length"));
    assert!(node.leaders.kept.get(&peer).is_none_or(HashSet::is_empty));
    let names: Vec<String> = (0..2 * MAX_KEYS_OF_ONE).map(|number| number.to_string()).collect();
    names.iter().for_each(|name| node.record(peer, key(name).record()));
    assert_eq!(names.iter().filter(|name| !node.leaders_of(name).is_empty()).count(), MAX_KEYS_OF_ONE);
    node.record(other, key("m").record());
    assert_eq!(node.leaders_of("m"), [other]);
    let record = node.dht.store_mut().providers(&key("m").record()).remove(0);
    assert_eq!(record.addresses.len(), MAX_ADDRESSES);
}

#[test]
fn members_are_told_again_when_they_have_become_twice_as_many() {
    let mut node = Node::new();
    let peers: Vec<PeerId> = (0..8).map(|_| PeerId::random()).collect();
    node.heard(peers[0], &[1], &[]);
    assert_eq!(node.leaders.next_due(), None, "there is nothing to tell");
    node.leaders.lead(&mut node.dht, ["m"].into_iter());
    assert_eq!(node.dht.store_mut().provided().count(), 1);
    let mut told = Vec::new();
    for (at, peer) in peers.iter().enumerate() {
        node.heard(*peer, &[1], &[]);
        if let Some(due) = node.leaders.next_due() {
            node.leaders.tell_due(&mut node.dht, due);
            told.push(at + 1);
        }
    }
    assert_eq!(told, [1, 2, 4, 8]);
    peers[1..].iter().for_each(|peer| node.leaders.lost(&mut node.dht, peer));
    node.heard(peers[1], &[1], &[]);
    assert!(node.leaders.next_due().is_some(), "those that come back may have forgotten");
    node.leaders.lead(&mut node.dht, [].into_iter());
    assert_eq!(node.dht.store_mut().provided().count(), 0);
}
