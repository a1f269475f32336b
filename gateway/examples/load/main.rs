//! Load for `just bench gateway`: the same question asked of a stage-0 node directly and through a gateway, in turn.
//!
//! Directly means: as a peer of the mesh, by the gRPC call that a gateway makes. Both are asked at the same rate, by
//! the clock and not by the answers, so that a slow answer does not thin out the load that made it slow.
//!
//! ```text
//! load latency TOKEN URL MODEL RATE SECONDS PAIRS    a line of JSON for each run of each way
//! load hold URL MODELS STREAMS PID                   holds streams, and says what memory the process PID takes
//! ```

mod direct;
mod http;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::json;
use tokio::task::JoinSet;

use direct::Direct;
use http::Http;

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["latency", token, url, model, rate, seconds, pairs] => {
            let load = Load { rate: rate.parse()?, seconds: seconds.parse()? };
            latency(token, url, model, load, pairs.parse()?).await
        }
        ["hold", url, models, streams, pid] => hold(url, models, streams.parse()?, pid).await,
        _ => bail!("usage: load latency TOKEN URL MODEL RATE SECONDS PAIRS | load hold URL MODELS STREAMS PID"),
    }
}

/// Requests a second, and for how long.
#[derive(Clone, Copy)]
struct Load {
    rate: f64,
    seconds: f64,
}

async fn latency(token: &str, url: &str, model: &str, load: Load, pairs: usize) -> anyhow::Result<()> {
    let (direct, http) = (Direct::join(token, model).await?, Http::new(url, model)?);
    // Everything is met once before it counts.
    let warm = Load { seconds: 1.0, ..load };
    run(warm, |number| direct.clone().first(number)).await?;
    run(warm, |number| http.clone().first(number)).await?;
    for pair in 0..pairs {
        for way in if pair % 2 == 0 { ["direct", "gateway"] } else { ["gateway", "direct"] } {
            let (times, failed) = match way {
                "direct" => run(load, |number| direct.clone().first(number)).await?,
                _ => run(load, |number| http.clone().first(number)).await?,
            };
            say(pair, way, load, times, failed);
        }
    }
    direct.leave().await;
    Ok(())
}

/// The seconds from each request to its first text, and how many had none.
async fn run<F>(load: Load, ask: impl Fn(usize) -> F) -> anyhow::Result<(Vec<f64>, usize)>
where
    F: Future<Output = anyhow::Result<Instant>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let begun = tokio::time::Instant::now();
    let count = (load.rate * load.seconds) as usize;
    for number in 0..count {
        tokio::time::sleep_until(begun + Duration::from_secs_f64(number as f64 / load.rate)).await;
        let asking = ask(number);
        tasks.spawn(async move {
            let since = Instant::now();
            let answered = tokio::time::timeout(PATIENCE, asking).await;
            let first = answered.context("no answer in time").and_then(|answer| answer)?;
            anyhow::Ok((first - since).as_secs_f64())
        });
    }
    let (mut times, mut failed) = (Vec::with_capacity(count), 0);
    let mut why = None;
    while let Some(done) = tasks.join_next().await {
        match done? {
            Ok(seconds) => times.push(seconds),
            Err(error) => {
                failed += 1;
                why.get_or_insert(error);
            }
        }
    }
    if let Some(why) = why {
        eprintln!("{failed} of {count} failed, the first: {why:#}");
    }
    times.sort_by(f64::total_cmp);
    Ok((times, failed))
}

fn say(pair: usize, way: &str, load: Load, times: Vec<f64>, failed: usize) {
    let at = |part: f64| {
        let index = (times.len() as f64 * part) as usize;
        times.get(index.min(times.len().saturating_sub(1))).map(|seconds| seconds * 1e3)
    };
    let line = json!({
        "pair": pair, "way": way, "rate": load.rate, "answered": times.len(), "failed": failed,
        "p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99),
    });
    println!("{line}");
}

/// Opens `streams` streams, evenly over `models`, and says what memory the gateway takes when all of them are answered.
async fn hold(url: &str, models: &str, streams: usize, pid: &str) -> anyhow::Result<()> {
    let clients: Vec<_> = models.split(',').map(|model| Http::new(url, model)).collect::<Result<_, _>>()?;
    let before = memory(pid)?;
    let mut opening = JoinSet::new();
    for number in 0..streams {
        let client = clients[number % clients.len()].clone();
        opening.spawn(async move { client.open(number).await });
        // As fast as people come, not all at the same instant.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut open = Vec::with_capacity(streams);
    while let Some(stream) = opening.join_next().await {
        open.push(stream?.context("a stream could not be opened")?);
    }
    let all_open = memory(pid)?;
    let mut more = JoinSet::new();
    for mut stream in open {
        more.spawn(async move { stream.events(5).await });
    }
    let mut alive = 0;
    while let Some(event) = more.join_next().await {
        alive += usize::from(event?.is_ok());
    }
    let line = json!({
        "streams": streams, "alive": alive, "before_mib": before["VmRSS"], "open_mib": all_open["VmRSS"],
        "peak_mib": memory(pid)?["VmHWM"],
    });
    println!("{line}");
    Ok(())
}

/// What the kernel says of the memory of a process, in MiB.
fn memory(pid: &str) -> anyhow::Result<BTreeMap<String, f64>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let row = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let kib: f64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some((name.to_owned(), (kib / 102.4).round() / 10.0))
    };
    Ok(status.lines().filter_map(row).collect())
}
