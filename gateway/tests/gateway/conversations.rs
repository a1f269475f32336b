//! Which of several replicas a conversation goes to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Served, chat, config, post, serve};
use crate::fake::{Mesh, Script, whole_answer};
use crate::replica::{CHARS_A_TOKEN, Replica};

const NODES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];
const CONVERSATIONS: usize = 40;
/// Conversations with one system prompt.
const GROUP: usize = 10;
const TURNS: usize = 8;
const SYSTEM_TOKENS: usize = 2000;
const TURN_TOKENS: usize = 300;

/// Requests that each node has had.
fn had(mesh: &Mesh) -> Vec<usize> {
    NODES.iter().map(|name| mesh.node(name).requests.lock().unwrap().len()).collect()
}

fn turns(topic: usize, count: usize) -> Value {
    let text = |turn: usize| format!("topic {topic}, turn {turn}: {}", "word ".repeat(200));
    let message =
        |turn: usize| json!({"role": if turn.is_multiple_of(2) { "user" } else { "assistant" }, "content": text(turn)});
    json!({"messages": (0..count).map(message).collect::<Vec<_>>()})
}

#[tokio::test]
async fn a_conversation_returns_to_its_replica_and_others_go_elsewhere() {
    let mesh = Mesh::new(NODES.iter().map(|name| (*name, 0, whole_answer())).collect());
    let served = serve(&mesh, config()).await;
    for topic in 0..8 {
        let before = had(&mesh);
        for count in [1, 3, 5, 7] {
            assert_eq!(served.chat(&chat(turns(topic, count))).await.status(), 200);
        }
        let used = had(&mesh).iter().zip(&before).filter(|(now, before)| now > before).count();
        assert_eq!(used, 1, "one conversation, one replica");
    }
    assert!(had(&mesh).iter().filter(|count| **count > 0).count() > 1, "{:?}", had(&mesh));
}

/// Small, known, and the same everywhere.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn new(seed: usize) -> Self {
        let mut dice = Self(seed as u64);
        (0..8).for_each(|_| _ = dice.unit());
        dice
    }

    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The `turn`-th request of a conversation.
fn request(conversation: usize, turn: usize) -> Value {
    let text = |role: &str, label: String, tokens: usize| {
        let width = tokens * CHARS_A_TOKEN;
        json!({"role": role, "content": format!("{label:<width$}")})
    };
    let system = text("system", format!("system {}", conversation / GROUP), SYSTEM_TOKENS);
    let turns = (0..=turn).map(|turn| text("user", format!("conversation {conversation} turn {turn}"), TURN_TOKENS));
    chat(json!({"messages": std::iter::once(system).chain(turns).collect::<Vec<_>>()}))
}

/// Four replicas behind the real gateway, or, for choosing at random, each behind one of its own.
struct Fleet {
    replicas: Vec<Arc<Replica>>,
    gateways: Vec<Served>,
    /// Keeps telling the gateways how much each replica has to do.
    _gossip: JoinSet<()>,
}

impl Fleet {
    async fn start(pace: Duration, gateways: usize) -> Self {
        let replicas: Vec<_> = NODES.iter().map(|_| Arc::new(Replica::new(pace))).collect();
        let rows: Vec<_> =
            NODES.iter().zip(&replicas).map(|(name, replica)| (*name, 0, Script::Reads(replica.clone()))).collect();
        let mut fleet = Self { replicas, gateways: Vec::new(), _gossip: JoinSet::new() };
        for rows in rows.chunks(NODES.len() / gateways) {
            let mesh = Mesh::new(rows.to_vec());
            fleet.gateways.push(serve(&mesh, config()).await);
            let replicas = fleet.replicas.clone();
            fleet._gossip.spawn(async move {
                loop {
                    tokio::time::sleep(pace * 1000).await;
                    let active =
                        |at: usize| replicas.get(at).map_or(0, |replica| replica.active.load(Ordering::Relaxed));
                    mesh.change(|view| {
                        for (at, peer) in view.peers.iter_mut().enumerate() {
                            peer.models[0].active = active(at);
                        }
                    });
                }
            });
        }
        fleet
    }

    /// Has all conversations; returns how long turns after the first waited for their first token, sorted.
    async fn converse(&self, pace: Duration) -> Vec<Duration> {
        let talks = (0..CONVERSATIONS).map(|conversation| self.talk(conversation, pace));
        let mut waits: Vec<_> = futures::future::join_all(talks).await.concat();
        waits.sort_unstable();
        waits
    }

    async fn talk(&self, conversation: usize, pace: Duration) -> Vec<Duration> {
        let mut dice = Dice::new(conversation);
        // Its owner takes as long as 6,000 tokens to think, on average; the conversations begin one after the other.
        tokio::time::sleep(pace.mul_f64(dice.unit() * 30_000.0)).await;
        let mut waits = Vec::new();
        for turn in 0..TURNS {
            let gateway = &self.gateways[(dice.unit() * self.gateways.len() as f64) as usize];
            let asked = Instant::now();
            assert_eq!(gateway.ask(post(&request(conversation, turn))).await.status(), 200);
            if turn > 0 {
                waits.push(asked.elapsed());
            }
            tokio::time::sleep(pace.mul_f64(dice.unit() * 12_000.0)).await;
        }
        waits
    }

    fn sum(&self, count: impl Fn(&Replica) -> &AtomicU32) -> Vec<f64> {
        self.replicas.iter().map(|replica| f64::from(count(replica).load(Ordering::Relaxed))).collect()
    }
}

/// Hits of one node that holds everything: each system prompt and each turn is computed once.
fn best_hits() -> f64 {
    let prompts: usize = (1..=TURNS).map(|turns| SYSTEM_TOKENS + turns * TURN_TOKENS).sum::<usize>() * CONVERSATIONS;
    (prompts - CONVERSATIONS / GROUP * SYSTEM_TOKENS - CONVERSATIONS * TURNS * TURN_TOKENS) as f64
}

/// `MESH_ROUTING` is microseconds a token. With it waits are compared as well, which a busy machine may spoil.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_replicas_share_forty_conversations_without_computing_them_again() {
    let asked = std::env::var("MESH_ROUTING").ok().map(|text| text.parse().expect("microseconds a token"));
    let pace = Duration::from_micros(asked.unwrap_or(40));
    let (routed, random) = tokio::join!(Fleet::start(pace, 1), Fleet::start(pace, NODES.len()));
    let (waits, at_random) = tokio::join!(routed.converse(pace), random.converse(pace));

    let hits = routed.sum(|replica| &replica.hits).iter().sum::<f64>() / best_hits();
    let computed = routed.sum(|replica| &replica.computed);
    let imbalance =
        computed.iter().copied().fold(0.0, f64::max) / (computed.iter().sum::<f64>() / computed.len() as f64);
    let (slowest, median) = (waits[waits.len() * 99 / 100], at_random[at_random.len() / 2]);
    println!("hits {hits:.3}, imbalance {imbalance:.2}, p99 {slowest:.0?}, at random p50 {median:.0?}");
    assert!(hits >= 0.9, "{hits} of the hits that one node would have had");
    assert!(imbalance <= 1.5, "one replica computed {imbalance} times the mean");
    assert!(asked.is_none() || slowest <= median, "p99 {slowest:?}, at random half wait {median:?}");
}
