//! Meshes of hundreds of nodes in memory and in played time: the dialler, the table and the tellers of every node, over a
//! network that is played. The rest of the crate carries their messages, and is tested with real sockets.
//!
//! `MESH_SIMULATE=NODES` chooses how many, `MESH_CHURN=SECONDS` for how long they come and go; `MESH_SEED` repeats a run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use libp2p::Multiaddr;
use mesh_types::PeerState;
use prost::Message as _;

use super::super::dialer::{self, Dial, Dialer};
use super::super::table::Table;
use super::super::telling::{Said, Teller};
use super::*;

const USUAL: u64 = 60;
/// Everybody knows these from its token.
const BOOTSTRAP: usize = 3;
/// What carries an update, beside its bytes: gRPC and HTTP/2, yamux, noise, TCP and IP with their acknowledgement.
const ENVELOPE: u64 = 9 + 5 + 12 + 18 + 66 + 66;
/// When a silent host counts as lost: no byte of it came for so long.
const SILENCE: Duration = Duration::from_secs(8);

struct World {
    start: Instant,
    now: Instant,
    nodes: Vec<Node>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    /// Numbers events and connections.
    count: u64,
    random: u64,
    sent: Sent,
}

#[derive(Clone, Copy, Default)]
struct Sent {
    updates: u64,
    bytes: u64,
}

struct Node {
    id: PeerId,
    key: libp2p::PeerId,
    address: Multiaddr,
    up: bool,
    dialer: Dialer,
    table: Table,
    said: Said,
    connections: BTreeMap<usize, Connection>,
    dial_at: Option<Instant>,
}

struct Connection {
    number: u64,
    teller: Teller,
    tell_at: Option<Instant>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Dial(usize),
    Arrive { from: usize, to: usize },
    Tell { from: usize, to: usize, number: u64 },
    Lose { at: usize, peer: usize, number: u64 },
    Start(usize),
}

impl World {
    fn new(nodes: usize, seed: u64) -> Self {
        let start = Instant::now();
        let mut world = Self {
            start,
            now: start,
            nodes: Vec::new(),
            events: BinaryHeap::new(),
            count: 0,
            random: seed,
            sent: Sent::default(),
        };
        for at in 0..nodes {
            let key = libp2p::PeerId::random();
            world.nodes.push(Node {
                id: identity::from_libp2p(&key),
                key,
                address: address(at),
                up: false,
                dialer: Dialer::new(key, dialer::MAX_TARGETS),
                table: Table::default(),
                said: said(&key.to_string(), at),
                connections: BTreeMap::new(),
                dial_at: None,
            });
        }
        world
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// One way through the network: 0.2 to 20 ms.
    fn latency(&mut self) -> Duration {
        Duration::from_micros(200 + self.draw(20_000))
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn start(&mut self, at: usize) {
        let known: Vec<_> = self.nodes[..BOOTSTRAP].iter().map(|node| (node.key, node.address.clone())).collect();
        let node = &mut self.nodes[at];
        (node.up, node.dialer, node.table) = (true, Dialer::new(node.key, dialer::MAX_TARGETS), Table::default());
        (node.said.links, node.dial_at) = (0, None);
        for (key, address) in known {
            node.dialer.add_lasting(key, vec![address], self.now);
        }
        self.wake(at);
    }

    /// Ends a node. Where it is `silent`, nothing resets its connections.
    fn kill(&mut self, at: usize, silent: bool) {
        self.nodes[at].up = false;
        for (peer, connection) in std::mem::take(&mut self.nodes[at].connections) {
            let noticed = self.now + if silent { SILENCE } else { self.latency() };
            self.schedule(noticed, Event::Lose { at: peer, peer: at, number: connection.number });
        }
    }

    /// Runs until `until`.
    fn run(&mut self, until: Instant) {
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.now = at;
            self.handle(event);
        }
        self.now = until;
    }

    fn run_for(&mut self, time: Duration) {
        self.run(self.now + time);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start(at) if !self.nodes[at].up => self.start(at),
            Event::Dial(at) if self.nodes[at].up => {
                self.nodes[at].dial_at = None;
                for Dial { peer, .. } in self.nodes[at].dialer.due(self.now) {
                    let Some(to) = self.nodes.iter().position(|node| node.key == peer) else { continue };
                    // TCP, encryption, admission.
                    let arrival = self.now + 6 * self.latency();
                    self.schedule(arrival, Event::Arrive { from: at, to });
                }
                self.wake(at);
            }
            Event::Arrive { from, to } if self.nodes[from].up => self.arrive(from, to),
            Event::Tell { from, to, number } => self.tell(from, to, number),
            Event::Lose { at, peer, number } => self.lose(at, peer, number),
            _ => {}
        }
    }

    fn arrive(&mut self, from: usize, to: usize) {
        let (key, now) = (self.nodes[to].key, self.now);
        if !self.nodes[to].up {
            self.nodes[from].dialer.failed(key, None, now);
        } else if !self.are_connected(from, to) {
            self.count += 1;
            let (number, rtt) = (self.count, 2 * self.latency());
            for (near, far, dialled) in [(from, to, true), (to, from, false)] {
                let (key, id) = (self.nodes[far].key, self.nodes[far].id.clone());
                let address = dialled.then(|| self.nodes[far].address.clone());
                let node = &mut self.nodes[near];
                node.dialer.connected(key, address.clone(), now);
                let connection = Connection { number, teller: Teller::default(), tell_at: None };
                // A connection from before that is not known to be dead yet.
                if node.connections.insert(far, connection).is_none() {
                    node.table.connected(&id, address);
                }
                node.table.watches(&id);
                node.table.measured(&id, rtt);
            }
            self.wake(to);
        }
        self.wake(from);
    }

    fn are_connected(&self, one: usize, other: usize) -> bool {
        let number = |from: usize, to: usize| self.nodes[from].connections.get(&to).map(|connection| connection.number);
        number(one, other).is_some() && number(one, other) == number(other, one)
    }

    /// What `from` has to tell `to` by now arrives there.
    fn tell(&mut self, from: usize, to: usize, number: u64) {
        let now = self.now;
        let Node { connections, table, said, key, id, .. } = &mut self.nodes[from];
        let (key, id) = (*key, id.clone());
        let Some(connection) = connections.get_mut(&to).filter(|connection| connection.number == number) else {
            return;
        };
        connection.tell_at = None;
        if connection.teller.due(said, now).is_some_and(|due| due <= now) {
            let links = table.links(connection.teller.links());
            let update = connection.teller.update(said, links, now);
            self.sent.updates += 1;
            self.sent.bytes += update.encoded_len() as u64 + ENVELOPE;
            if self.are_connected(from, to) {
                self.hear((key, id), to, update);
                self.wake(to);
            }
        }
        self.wake(from);
    }

    /// As `Core::heard`, except that links are not stored: the tables of so many nodes are too much for one process.
    fn hear(&mut self, (key, id): (libp2p::PeerId, PeerId), at: usize, update: v1::Update) {
        let (now, node) = (self.now, &mut self.nodes[at]);
        let parse = |texts: &[String]| texts.iter().filter_map(|text| text.parse().ok()).collect::<Vec<Multiaddr>>();
        if let Some(status) = &update.status {
            node.dialer.replace(key, parse(&status.addresses));
        }
        for other in &update.peers {
            if let Ok(other_key) = other.peer_id.parse() {
                node.dialer.learn(other_key, &parse(&other.addresses), Some(key), now);
            }
        }
        assert!(node.table.heard(&id, v1::Update { peers: Vec::new(), ..update }, now));
    }

    fn lose(&mut self, at: usize, peer: usize, number: u64) {
        let (key, id, now) = (self.nodes[peer].key, self.nodes[peer].id.clone(), self.now);
        let node = &mut self.nodes[at];
        if node.connections.get(&peer).is_some_and(|connection| connection.number == number) {
            node.connections.remove(&peer);
            node.table.disconnected(&id, now);
            node.dialer.disconnected(key, now);
            self.wake(at);
        }
    }

    /// Plans what a node does next.
    fn wake(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        node.table.expire(now);
        node.said.links = node.table.version();
        let mut planned = Vec::new();
        if let Some(due) = node.dialer.next_due().filter(|due| node.dial_at.is_none_or(|planned| *due < planned)) {
            node.dial_at = Some(due);
            planned.push((due.max(now), Event::Dial(at)));
        }
        for (to, connection) in &mut node.connections {
            let due = connection.teller.due(&node.said, now).map(|due| due.max(now));
            if let Some(due) = due.filter(|due| connection.tell_at.is_none_or(|planned| *due < planned)) {
                connection.tell_at = Some(due);
                planned.push((due, Event::Tell { from: at, to: *to, number: connection.number }));
            }
        }
        planned.into_iter().for_each(|(due, event)| self.schedule(due, event));
    }

    /// How many rows of all views are not so.
    fn wrong(&self) -> usize {
        let up = || self.nodes.iter().filter(|node| node.up);
        let row = |node: &Node, other: &Node| match node.table.state(&other.id) {
            Some(PeerState::Ready) => !other.up,
            Some(PeerState::Joining | PeerState::Leaving | PeerState::OtherVersion) => true,
            Some(PeerState::Gone) | None => other.up,
        };
        up().map(|node| self.nodes.iter().filter(|other| other.id != node.id && row(node, other)).count()).sum()
    }

    /// Runs until every view is right. Returns how long that took.
    fn settle(&mut self, limit: Duration) -> Duration {
        let begin = self.now;
        while self.wrong() > 0 {
            assert!(self.now < begin + limit, "{} rows are wrong after {limit:?}", self.wrong());
            self.run_for(Duration::from_millis(250));
        }
        self.now - begin
    }

    fn report(&mut self, what: &str, took: Duration) {
        let up = self.nodes.iter().filter(|node| node.up).count() as u64;
        let Sent { updates, bytes } = std::mem::take(&mut self.sent);
        println!(
            "{what:<42} {:>6.2} s  {:>8} updates  {:>8} bytes sent a node (at {} s)",
            took.as_secs_f64(),
            updates / up,
            bytes / up,
            (self.now - self.start).as_secs(),
        );
    }
}

/// What a node with two models and four stages says.
fn said(id: &str, at: usize) -> Said {
    let model = v1::ModelStatus {
        name: "a-model-of-some-billions-q4_k_m".into(),
        digest: vec![7; 32],
        ready: true,
        nodes: vec!["a-host-name".into(); 4],
        ranges: vec![v1::LayerRange { start: 8, end: 16 }; 4],
        ..Default::default()
    };
    let stage = v1::StageStatus {
        model: model.name.clone(),
        layers: Some(v1::LayerRange { start: 8, end: 16 }),
        state: "ready".into(),
        ..Default::default()
    };
    let status = v1::NodeStatus {
        peer_id: id.to_owned(),
        name: "a-host-name".into(),
        addresses: vec![address(at).to_string()],
        models: vec![model; 2],
        stages: vec![stage; 4],
        sequence: 1,
        ..Default::default()
    };
    Said { status, links: 0 }
}

fn address(at: usize) -> Multiaddr {
    format!("/ip4/10.0.{}.{}/tcp/9338", at / 256, at % 256).parse().unwrap()
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn hundreds_that_come_and_go_agree() {
    let nodes = number("MESH_SIMULATE", USUAL) as usize;
    let seed = number("MESH_SEED", u64::from(std::process::id()));
    println!("{nodes} nodes, seed {seed}");
    let mut world = World::new(nodes, seed);
    for at in 0..nodes {
        let delay = if at < BOOTSTRAP { 0 } else { world.draw(10_000) };
        world.schedule(world.now + Duration::from_millis(delay), Event::Start(at));
    }
    world.run_for(Duration::from_secs(10));
    let took = world.settle(Duration::from_secs(10));
    world.report("all joined within 10 s; then", took);

    world.run_for(Duration::from_secs(30));
    world.report("told what is left of links", Duration::ZERO);
    world.run_for(Duration::from_secs(600));
    assert_eq!(world.sent.updates, 0, "at rest nothing is said");

    let newcomer = nodes - 1;
    world.kill(newcomer, false);
    let took = world.settle(Duration::from_secs(1));
    world.report("one was killed", took);
    world.run_for(Duration::from_secs(30));
    world.sent = Sent::default();
    world.start(newcomer);
    let took = world.settle(Duration::from_secs(5));
    world.run_for(Duration::from_secs(30));
    world.report("one came back", took);

    let churn = number("MESH_CHURN", 10);
    for _ in 0..churn {
        for _ in 0..2 {
            let at = world.draw(nodes as u64) as usize;
            if world.nodes[at].up {
                let (silent, away) = (world.draw(2) == 0, 2_000 + world.draw(20_000));
                world.kill(at, silent);
                world.schedule(world.now + Duration::from_millis(away), Event::Start(at));
            }
        }
        world.run_for(Duration::from_secs(1));
    }
    world.report("two a second went and came", Duration::from_secs(churn));
    world.run_for(Duration::from_secs(22));
    let took = world.settle(Duration::from_secs(45));
    world.report("after the last one was back", took);

    for at in 0..nodes / 10 {
        world.kill(at, at % 2 == 0);
    }
    let took = world.settle(SILENCE + Duration::from_secs(1));
    world.report("a tenth was killed, half of it silently", took);
}
