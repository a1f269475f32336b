//! Four replicas on virtual time: each computes one prompt after the other, so many seconds a token that it does not
//! hold yet, and keeps what it computed. What the router does is compared with one node that holds everything, and with
//! choosing at random.

use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::time::Duration;

use mesh_types::{ChatRequest, MeshView, Message, ModelId, RequestId};

use super::tests::{send, view_of};
use super::*;

const REPLICAS: usize = 4;
const CONVERSATIONS: usize = 40;
const PER_GROUP: usize = 10;
const TURNS: usize = 8;
const SYSTEM_TOKENS: usize = 2000;
const TURN_TOKENS: usize = 300;
/// Seconds a token of work.
const PACE: f64 = 0.001;
/// What a user takes to read and write, between 0 and twice this.
const THINKING: f64 = 6.0;
/// What replicas say of their load is so old at most.
const GOSSIP: f64 = 1.0;

/// Small, known, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Policy {
    Router,
    Random,
}

/// The `turn`-th request of a conversation. Its texts are of four letters a token.
fn request(conversation: usize, turn: usize) -> ChatRequest {
    let text = |role: &str, label: String, tokens: usize| Message {
        role: role.into(),
        content: Some(format!("{label:<width$}", width = tokens * 4)),
        ..Message::default()
    };
    let system = text("system", format!("system {}", conversation / PER_GROUP), SYSTEM_TOKENS);
    let turns = (0..=turn).map(|turn| text("user", format!("conversation {conversation} turn {turn}"), TURN_TOKENS));
    ChatRequest {
        request: RequestId::new("r"),
        model: ModelId::new("m"),
        messages: std::iter::once(system).chain(turns).collect(),
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
        conversation: None,
    }
}

/// A replica: when it is done with what it has, and what it holds.
#[derive(Default)]
struct Server {
    free_at: f64,
    held: HashSet<(usize, Option<usize>, usize)>,
    computed: f64,
    under_way: Vec<f64>,
}

impl Server {
    /// Tokens of the request that it does not hold; it does afterwards.
    fn compute(&mut self, conversation: usize, turn: usize) -> usize {
        let group = conversation / PER_GROUP;
        let mut parts = vec![((group, None, 0), SYSTEM_TOKENS)];
        parts.extend((0..=turn).map(|turn| ((group, Some(conversation), turn), TURN_TOKENS)));
        parts.into_iter().filter(|(part, _)| self.held.insert(*part)).map(|(_, tokens)| tokens).sum()
    }
}

/// What came of a run of the simulation.
struct Outcome {
    hits: usize,
    /// Of turns after the first, in seconds.
    waits: Vec<f64>,
    computed: Vec<f64>,
}

impl Outcome {
    fn quantile(&self, q: f64) -> f64 {
        let mut waits = self.waits.clone();
        waits.sort_by(f64::total_cmp);
        waits[((waits.len() - 1) as f64 * q) as usize]
    }

    fn imbalance(&self) -> f64 {
        let mean = self.computed.iter().sum::<f64>() / self.computed.len() as f64;
        self.computed.iter().copied().fold(0.0, f64::max) / mean
    }
}

/// Something that happens at a time; the earliest first, then in the order of their numbers.
#[derive(PartialEq)]
struct Event {
    at: f64,
    number: usize,
    what: What,
}

#[derive(PartialEq)]
enum What {
    Turn { conversation: usize, turn: usize },
    Ended { gateway: usize, run: RunId, usage: Usage },
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

struct Simulation {
    policy: Policy,
    dice: Dice,
    routers: Vec<Router>,
    servers: Vec<Server>,
    events: BinaryHeap<Event>,
    happened: usize,
    seen: (f64, MeshView),
    outcome: Outcome,
}

impl Simulation {
    fn run(policy: Policy, gateways: usize, seed: u64) -> Outcome {
        let servers: Vec<Server> = (0..REPLICAS).map(|_| Server::default()).collect();
        let mut simulation = Self {
            policy,
            dice: Dice(seed),
            routers: (0..gateways).map(|_| Router::default()).collect(),
            servers,
            events: BinaryHeap::new(),
            happened: 0,
            seen: (0.0, view_of(&[0; REPLICAS])),
            outcome: Outcome { hits: 0, waits: Vec::new(), computed: Vec::new() },
        };
        for conversation in 0..CONVERSATIONS {
            let at = simulation.dice.unit() * 30.0;
            simulation.push(at, What::Turn { conversation, turn: 0 });
        }
        while let Some(event) = simulation.events.pop() {
            simulation.happen(event);
        }
        simulation.outcome.computed = simulation.servers.iter().map(|server| server.computed).collect();
        simulation.outcome
    }

    fn push(&mut self, at: f64, what: What) {
        self.happened += 1;
        self.events.push(Event { at, number: self.happened, what });
    }

    fn happen(&mut self, Event { at, what, .. }: Event) {
        match what {
            What::Turn { conversation, turn } => self.turn(at, conversation, turn),
            What::Ended { gateway, run, usage } => {
                self.routers[gateway].answering(&run, Duration::from_secs_f64(at));
                self.routers[gateway].ended(&run, Some(&usage), Duration::from_secs_f64(at));
            }
        }
    }

    fn turn(&mut self, at: f64, conversation: usize, turn: usize) {
        let gateway = conversation % self.routers.len();
        let chosen = match self.policy {
            Policy::Random => (self.dice.unit() * REPLICAS as f64) as usize,
            Policy::Router => self.routed(at, gateway, conversation, turn),
        };
        let prompt = SYSTEM_TOKENS + (turn + 1) * TURN_TOKENS;
        let server = &mut self.servers[chosen];
        let computed = server.compute(conversation, turn);
        let done = server.free_at.max(at) + computed as f64 * PACE;
        server.free_at = done;
        server.computed += computed as f64;
        server.under_way.push(done);
        self.outcome.hits += prompt - computed;
        if turn > 0 {
            self.outcome.waits.push(done - at);
        }
        if self.policy == Policy::Router {
            let peer = self.peer(chosen);
            let prefixes = Prefixes::of(&request(conversation, turn));
            let run = send(&mut self.routers[gateway], &self.seen.1, &peer, &prefixes, Duration::from_secs_f64(at));
            let usage = Usage {
                prompt_tokens: prompt as u32,
                completion_tokens: 1,
                cached_tokens: (prompt - computed) as u32,
                ..Usage::default()
            };
            self.push(done, What::Ended { gateway, run, usage });
        }
        if turn + 1 < TURNS {
            let next = done + self.dice.unit() * 2.0 * THINKING;
            self.push(next, What::Turn { conversation, turn: turn + 1 });
        }
    }

    fn routed(&mut self, at: f64, gateway: usize, conversation: usize, turn: usize) -> usize {
        if at - self.seen.0 >= GOSSIP {
            self.servers.iter_mut().for_each(|server| server.under_way.retain(|done| *done > at));
            let loads: Vec<u32> = self.servers.iter().map(|server| server.under_way.len() as u32).collect();
            self.seen = (at, view_of(&loads));
        }
        let prefixes = Prefixes::of(&request(conversation, turn));
        let choice = self.routers[gateway].choose(&self.seen.1, &"m".into(), &prefixes, Duration::from_secs_f64(at));
        let best = choice.unwrap().candidates.remove(0).peer;
        (0..REPLICAS).find(|n| self.peer(*n) == best).unwrap()
    }

    fn peer(&self, n: usize) -> PeerId {
        self.seen.1.peers[n].id.clone()
    }
}

/// Hits of one node that holds everything: each system prompt and each turn is computed once.
fn best_hits() -> usize {
    let prompts: usize = (1..=TURNS).map(|turns| SYSTEM_TOKENS + turns * TURN_TOKENS).sum::<usize>() * CONVERSATIONS;
    prompts - CONVERSATIONS / PER_GROUP * SYSTEM_TOKENS - CONVERSATIONS * TURNS * TURN_TOKENS
}

#[test]
fn conversations_keep_their_replicas_and_none_is_overrun() {
    let mut figures = BTreeMap::new();
    for gateways in [1, 3] {
        for seed in 1..=10 {
            let routed = Simulation::run(Policy::Router, gateways, seed);
            let random = Simulation::run(Policy::Random, gateways, seed);
            let hits = routed.hits as f64 / best_hits() as f64;
            let figure = (hits, routed.imbalance(), routed.quantile(0.99), random.quantile(0.5));
            println!(
                "{gateways} gateways, seed {seed}: hits {hits:.3}, imbalance {:.2}, p99 {:.2} s, random p50 {:.2} s",
                figure.1, figure.2, figure.3
            );
            figures.insert((gateways, seed), figure);
        }
    }
    for (which, (hits, imbalance, ..)) in &figures {
        assert!(*hits >= 0.9, "{which:?}: {hits} of the hits that one node would have had");
        assert!(*imbalance <= 1.5, "{which:?}: one replica had {imbalance} times the mean");
    }
    // A few of the longest waits in one play are luck: plays are taken together.
    for gateways in [1, 3] {
        let plays = || figures.iter().filter(|((count, _), _)| *count == gateways).map(|(_, figure)| figure);
        let (longest, at_random): (f64, f64) = (plays().map(|play| play.2).sum(), plays().map(|play| play.3).sum());
        assert!(longest <= at_random, "{gateways} gateways: p99 {longest} s, at random half wait {at_random} s");
    }
}
