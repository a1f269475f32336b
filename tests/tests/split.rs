//! A real model, split over two processes, behind a gateway in a third.

use std::time::{Duration, Instant};

use mesh_tests::http::{self, Event};
use mesh_tests::models::{SMOLLM2, smollm2};
use mesh_tests::process::{Node, Process, binary, children, field, is_running, signal};
use mesh_tests::until;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The loss of a stage is told within this time.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// A holder, a worker and a gateway.
struct Cluster {
    folder: TempDir,
    holder: Node,
    worker: Node,
    gateway: Process,
    base: String,
}

impl Cluster {
    fn start(ctx: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let model = smollm2().display().to_string();
        let holder =
            Node::start(folder.path(), "alpha", &["up", "--model", &model, "--split", "0-16,17-29", "--ctx", ctx]);
        let token = holder.token();
        let worker = Node::start(folder.path(), "beta", &["join", &token]);
        let mut command = std::process::Command::new(binary("mesh-gateway"));
        command.args(["--join", &token, "--gateway", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--data-dir"]);
        let gateway = Process::spawn(command.arg(folder.path().join("gateway")));
        let base = field(&gateway.line("ready gateway"), "url=");
        let ready = gateway.line("ready model");
        assert_eq!(field(&ready, "stages="), "2", "{ready}");
        assert_eq!(field(&ready, "nodes="), "alpha,beta", "{ready}");
        Self { folder, holder, worker, gateway, base }
    }

    /// A long stream that has begun.
    fn begun_stream(&self) -> http::Answer {
        let mut answer = http::post(&self.base, "/chat/completions", &endless(true));
        assert_eq!(answer.status, 200);
        let mut tokens = 0;
        while tokens < 3 {
            let event = answer.event().expect("the stream goes on");
            tokens += usize::from(!event.text().is_empty());
        }
        answer
    }

    /// Runs that the model's stage-0 node counts as active.
    fn active(&self) -> u64 {
        self.holder.ask("models")["models"][0]["active"].as_u64().expect("a count")
    }

    fn serves_again(&self) {
        until("the model to be served again", mesh_tests::PATIENCE, || {
            let answer = http::post(&self.base, "/chat/completions", &greedy(4));
            (answer.status == 200).then_some(())
        });
        let (status, health) = http::get(&self.base, "/health");
        assert_eq!(status, 200, "{health}");
    }
}

fn greedy(max_tokens: u32) -> Value {
    let question = "Name three colours of the rainbow, and say something about each.";
    json!({"model": SMOLLM2, "messages": [{"role": "user", "content": question}], "temperature": 0,
           "max_tokens": max_tokens})
}

fn endless(stream: bool) -> Value {
    json!({"model": SMOLLM2, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 1500,
           "ignore_eos": true, "stream": stream})
}

/// A text that is drawn, and the same text as a prompt that is scored, have the same log probabilities: at each of these,
/// which agree with each other.
#[allow(clippy::unwrap_used)] // every one is a check
fn scores_are_those_of_the_draws(bases: &[&str]) {
    let complete = |base: &str, body: Value| {
        let (status, answer) = http::post(base, "/completions", &body).json();
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let close = |one: &[Option<f64>], other: &[Option<f64>]| {
        let apart = |(a, b): (&Option<f64>, &Option<f64>)| (a.unwrap_or_default() - b.unwrap_or_default()).abs();
        one.len() == other.len() && one.iter().zip(other).map(apart).all(|apart| apart < 0.05)
    };
    let numbers = |values: &Value| values.as_array().unwrap().iter().map(Value::as_f64).collect::<Vec<_>>();
    // More tokens than are scored at a time.
    let opening = "The sea is wide, and the ships on it are small. ".repeat(4) + "Once upon a time, there was";
    let mut told: Vec<Vec<Option<f64>>> = Vec::new();
    for base in bases {
        let asked = json!({"model": SMOLLM2, "prompt": opening, "max_tokens": 24, "temperature": 0, "logprobs": 2,
                           "ignore_eos": true});
        let drawn = complete(base, asked);
        let (drawn, text) = (&drawn["choices"][0]["logprobs"], drawn["choices"][0]["text"].as_str().unwrap());
        let whole = format!("{opening}{text}");
        let asked = json!({"model": SMOLLM2, "prompt": whole, "max_tokens": 0, "echo": true, "logprobs": 2});
        let scored = complete(base, asked);
        assert_eq!(scored["choices"][0]["text"], whole);
        assert_eq!(
            (&scored["usage"]["completion_tokens"], &scored["choices"][0]["finish_reason"]),
            (&json!(0), &json!("length"))
        );
        let scored = &scored["choices"][0]["logprobs"];
        let (drawn_values, values) = (numbers(&drawn["token_logprobs"]), numbers(&scored["token_logprobs"]));
        assert!(values.len() > 64 && values[0].is_none() && values[1..].iter().all(Option::is_some), "{scored}");
        assert!(scored["top_logprobs"][0].is_null() && scored["top_logprobs"][1].as_object().unwrap().len() == 2);
        let tail = &values[values.len() - drawn_values.len()..];
        assert_eq!(
            scored["tokens"].as_array().unwrap()[values.len() - tail.len()..],
            *drawn["tokens"].as_array().unwrap()
        );
        // Tokens one at a time are rounded otherwise than many at once.
        assert!(close(&drawn_values, tail), "{drawn_values:?} and {tail:?}");
        let likeliest = |at: usize| scored["top_logprobs"][at].as_object().unwrap().values().filter_map(Value::as_f64);
        let greedy = (values.len() - tail.len()..values.len())
            .filter(|at| values[*at].unwrap() >= likeliest(*at).fold(f64::NEG_INFINITY, f64::max));
        assert!(greedy.count() + 1 >= tail.len(), "what is drawn greedily is the likeliest, but for ties");
        // One token more, as harnesses ask for it; the same prompt is scored again, though all of it is cached.
        let asked =
            json!({"model": SMOLLM2, "prompt": whole, "max_tokens": 1, "echo": true, "logprobs": 2, "stream": true});
        let events = http::post(base, "/completions", &asked).events();
        let of = |event: &Event| match event {
            Event::Json(value) => {
                numbers(&value["choices"][0]["logprobs"].get("token_logprobs").cloned().unwrap_or(json!([])))
            }
            Event::Done => Vec::new(),
        };
        let again: Vec<_> = events.iter().flat_map(of).collect();
        assert!(again.len() == values.len() + 1 && close(&again[..values.len()], &values), "{again:?} and {values:?}");
        told.push(values);
    }
    assert!(told.windows(2).all(|pair| close(&pair[0], &pair[1])), "the stages score as one: {told:?}");
}

/// What has to follow the loss of a stage in mid-stream: an error as the last event, soon, and no normal ending.
fn assert_broken(mut answer: http::Answer, since: Instant) {
    let events = answer.events();
    let took = since.elapsed();
    let Some(Event::Json(last)) = events.last() else { panic!("no error event at the end: {events:?}") };
    assert!(last["error"]["message"].is_string() && last["error"]["type"] == "server_error", "{last}");
    assert!(took < TOLD_WITHIN, "told after {took:?}");
    let finished = |event: &Event| match event {
        Event::Done => true,
        Event::Json(value) => value["choices"][0]["finish_reason"].is_string(),
    };
    assert!(!events.iter().any(finished), "a normal ending was claimed: {events:?}");
}

#[test]
fn a_split_model_says_what_the_unsplit_one_says() {
    let cluster = Cluster::start("1024");
    let whole = tempfile::tempdir().unwrap();
    let model = smollm2().display().to_string();
    let args = ["up", "--model", &model, "--split", "never", "--ctx", "1024", "--gateway", "127.0.0.1:0"];
    let unsplit = Node::start(whole.path(), "solo", &args);
    let unsplit_base = field(&unsplit.process.line("ready gateway"), "url=");
    unsplit.process.line("ready model");

    let (status, expected) = http::post(&unsplit_base, "/chat/completions", &greedy(48)).json();
    assert_eq!(status, 200, "{expected}");
    let (status, split) = http::post(&cluster.base, "/chat/completions", &greedy(48)).json();
    assert_eq!(status, 200, "{split}");
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(text(&expected).len() > 40, "{expected}");
    assert_eq!(text(&split), text(&expected));
    assert_eq!(split["usage"], expected["usage"]);

    let mut body = greedy(48);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let events = http::post(&cluster.base, "/chat/completions", &body).events();
    assert_eq!(events.iter().map(Event::text).collect::<String>(), text(&expected));
    assert_eq!(events.last(), Some(&Event::Done));
    let Event::Json(usage) = &events[events.len() - 2] else { panic!("usage comes before the end") };
    let counts = |usage: &Value| (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64());
    assert_eq!(counts(&usage["usage"]), counts(&expected["usage"]));

    // Last: what is idle meanwhile moves out of the cache, and comes back to another place, where sums round otherwise.
    scores_are_those_of_the_draws(&[&unsplit_base, &cluster.base]);

    let stages = cluster.holder.ask("stages");
    let places: Vec<_> = stages["stages"].as_array().unwrap().iter().map(|s| (&s["node"], &s["layers"])).collect();
    assert_eq!(places.len(), 2, "{stages}");
    assert!(places.contains(&(&json!("alpha"), &json!("0-16"))), "{stages}");
    assert!(places.contains(&(&json!("beta"), &json!("17-29"))), "{stages}");
    let (_, models) = http::get(&cluster.base, "/models");
    assert_eq!(models["data"][0]["id"], SMOLLM2);
    let (status, health) = http::get(&cluster.base, "/health");
    assert_eq!((status, &health["status"]), (200, &json!("ok")), "{health}");
}

/// The model drafts for itself: all that it expects comes true, but for rounding.
#[test]
fn a_second_model_drafts_for_a_split_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = smollm2().display().to_string();
    let args = ["up", "--model", &model, "--ctx", "512", "--gateway", "127.0.0.1:0"];
    let drafts = ["--draft", &model, "--split", "0-16,17-29"];
    let holder = Node::start(folder.path(), "alpha", &[&args[..], &drafts].concat());
    let _worker = Node::start(folder.path(), "beta", &["join", &holder.token()]);
    let plain = Node::start(folder.path(), "plain", &[&args[..], &["--speculate", "off"]].concat());
    let [drafted, plain] = [&holder, &plain].map(|node| {
        let base = field(&node.process.line("ready gateway"), "url=");
        node.process.line("ready model");
        base
    });
    let ask = |base: &str| {
        let (status, answer) = http::post(base, "/chat/completions", &greedy(48)).json();
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
    let expected = text(&ask(&plain));
    // The first answer may be over before the other model has read the question.
    until("drafts that come true", mesh_tests::PATIENCE, || {
        let answer = ask(&drafted);
        assert_eq!(text(&answer), expected);
        let accepted = &answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"];
        (accepted.as_u64() > Some(0)).then_some(())
    });
    let stages = holder.ask("stages");
    let models = stages["stages"].as_array().into_iter().flatten().map(|stage| stage["model"].as_str());
    assert_eq!(models.filter(|model| model.is_some_and(|model| model.ends_with(" (draft)"))).count(), 1, "{stages}");
}

/// A conversation of some hundred tokens goes on: of its second turn, both stages compute what is new.
#[test]
fn the_second_turn_of_a_conversation_is_not_computed_again() {
    let cluster = Cluster::start("2048");
    let story = "The lighthouse keeper counted ships, and wrote each one down before the light went out. ".repeat(30);
    let mut messages = vec![json!({"role": "user", "content": format!("{story}\nWhat did the keeper count?")})];
    let ask = |messages: &[Value]| {
        let body = json!({"model": SMOLLM2, "messages": messages, "temperature": 0, "max_tokens": 24});
        let (status, answer) = http::post(&cluster.base, "/chat/completions", &body).json();
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let count = |answer: &Value, name: &str| answer["usage"][name].as_u64().expect("a count");
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count");

    let first = ask(&messages);
    assert!(count(&first, "prompt_tokens") > 400, "{first}");
    assert_eq!(cached(&first), 0);
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "And why?"}));
    let second = ask(&messages);
    // All that was prompted and generated, but for the token drawn last, which was never computed.
    let known = count(&first, "prompt_tokens") + count(&first, "completion_tokens");
    assert!(cached(&second) + 1 >= known, "{second} after {first}");
    assert!(count(&second, "prompt_tokens") > cached(&second));
    // The same once more: one token is computed.
    let again = ask(&messages);
    assert_eq!(cached(&again) + 1, count(&again, "prompt_tokens"));
    assert_eq!(again["choices"][0]["message"], second["choices"][0]["message"]);
}

#[test]
fn many_clients_are_served_at_once() {
    let cluster = Cluster::start("1024");
    let (_, alone) = http::post(&cluster.base, "/chat/completions", &greedy(24)).json();
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| http::post(&cluster.base, "/chat/completions", &greedy(24)).json()))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .map(|(status, answer)| {
                assert_eq!(status, 200, "{answer}");
                answer
            })
            .collect()
    });
    for answer in answers {
        // Batches of other sizes round differently; the first words must agree all the same.
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let expected = alone["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(text.chars().take(12).collect::<String>(), expected.chars().take(12).collect::<String>());
        assert_eq!(answer["usage"]["completion_tokens"], 24);
    }
}

#[test]
fn a_killed_worker_breaks_the_stream_and_a_new_one_mends_the_model() {
    let mut cluster = Cluster::start("2048");
    let answer = cluster.begun_stream();
    let killed = Instant::now();
    cluster.worker.process.kill();
    assert_broken(answer, killed);
    assert!(cluster.gateway.is_running() && cluster.holder.process.is_running());
    let (status, health) = until("the loss to be in /health", mesh_tests::PATIENCE, || {
        let (status, health) = http::get(&cluster.base, "/health");
        (status == 503).then_some((status, health))
    });
    assert!(health.to_string().contains("17-29"), "{status} {health}");
    let (status, refused) = http::post(&cluster.base, "/chat/completions", &greedy(4)).json();
    assert_eq!(status, 503, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("17-29"), "{refused}");

    let token = cluster.holder.token();
    cluster.worker = Node::start(cluster.folder.path(), "beta", &["join", &token]);
    cluster.serves_again();
}

#[test]
fn a_killed_stage_process_breaks_the_stream_and_is_replaced() {
    let cluster = Cluster::start("2048");
    for (node, other) in [(&cluster.worker, &cluster.holder), (&cluster.holder, &cluster.worker)] {
        let answer = cluster.begun_stream();
        let [stage] = node.stage_processes()[..] else { panic!("one stage on each node") };
        let kept = other.stage_processes();
        let killed = Instant::now();
        signal(stage, 9);
        assert_broken(answer, killed);
        cluster.serves_again();
        assert_ne!(node.stage_processes(), [stage]);
        assert_eq!(other.stage_processes(), kept, "a stage that stays as it is keeps its weights");
    }
}

#[test]
fn a_client_that_goes_away_frees_its_sequence() {
    let cluster = Cluster::start("8192");
    // In decode, streamed.
    let answer = cluster.begun_stream();
    assert_eq!(until("the run to be counted", mesh_tests::PATIENCE, || Some(cluster.active()).filter(|n| *n > 0)), 1);
    drop(answer);
    until("the run to end", Duration::from_secs(5), || (cluster.active() == 0).then_some(()));
    // In prefill: nothing has been answered yet.
    for stream in [true, false] {
        let long = "Every word of this sentence counts. ".repeat(900);
        let mut body = endless(stream);
        body["messages"] = json!([{"role": "user", "content": long}]);
        let base = cluster.base.clone();
        let address = base.strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
        let mut socket = std::net::TcpStream::connect(&address).unwrap();
        let body = body.to_string();
        let head =
            format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n", body.len());
        std::io::Write::write_all(&mut socket, (head + &body).as_bytes()).unwrap();
        until("the prefill to begin", mesh_tests::PATIENCE, || (cluster.active() == 1).then_some(()));
        drop(socket);
        until("the prefill to end", Duration::from_secs(5), || (cluster.active() == 0).then_some(()));
    }
    // All slots are free: as many runs as there are slots go through.
    let (status, answer) = http::post(&cluster.base, "/chat/completions", &greedy(4)).json();
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn an_interrupted_mesh_leaves_nothing_running() {
    let mut cluster = Cluster::start("1024");
    let stages: Vec<u32> =
        [cluster.holder.process.id(), cluster.worker.process.id()].into_iter().flat_map(children).collect();
    assert_eq!(stages.len(), 2);
    for process in [&mut cluster.gateway, &mut cluster.worker.process, &mut cluster.holder.process] {
        let status = process.interrupt();
        assert_eq!(status.code(), Some(0), "{}", process.stderr());
    }
    assert!(stages.iter().all(|stage| !is_running(*stage)));
    assert!(!cluster.holder.data_dir.join("admin.sock").exists());
}

#[test]
fn a_killed_node_takes_its_stage_with_it() {
    let mut cluster = Cluster::start("1024");
    let stages = cluster.worker.stage_processes();
    assert_eq!(stages.len(), 1);
    cluster.worker.process.kill();
    until("the stage process to end", Duration::from_secs(5), || {
        stages.iter().all(|id| !is_running(*id)).then_some(())
    });
}
