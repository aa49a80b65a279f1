//! Clients that ask while upstreams refuse, break, die and come back and berth is reloaded: every answer is
//! whole or an honest error, and at the end nothing is left over. `make soak MINUTES=30` writes what came of
//! it into `docs/reliability.md`.
//!
//! Reloads stop at two thirds of the time, so that one process lives through the last third; its memory is
//! what is compared.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod report;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth::admission::dice::{Dice, mix};
use client::Met;
use common::{Berth, DEADLINE, credentials, until_async};
use report::{Process, Report};
use serde_json::Value;
use tokio::task::JoinSet;
use trouble::{UPSTREAMS, Upstream};

/// Requests a second, come what may.
const RATE: u32 = 40;
/// Requests at once at the most: what a slow answer holds up is bounded.
const AT_ONCE: usize = 1000;
/// After which of its own minutes a process is warm.
const WARM: Duration = Duration::from_secs(60);
/// How long berth keeps a connection to an upstream that nobody uses, and a little more.
const KEPT: Duration = Duration::from_secs(75);
const SAMPLE: Duration = Duration::from_secs(10);

/// Silence is found soon, so that a hanging upstream is part of the story and not all of it.
const POLICY: &str = "
  header_timeout: 5s, non_stream_timeout: 5s, idle_timeout: 5s";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: u64| {
        let at = arguments.iter().position(|it| it == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok())
            .unwrap_or(default)
    };
    let time = Duration::from_secs(60 * number("--minutes", 1));
    let seed = number("--seed", 20_261_129);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let report = runtime.block_on(soak(time, seed));
    print!("{}", report.text());
    if let Some(at) = arguments.iter().position(|it| it == "--write") {
        report.write(&arguments[at + 1]);
    }
    let wrong = report.wrong();
    for each in &wrong {
        eprintln!("wrong: {each}");
    }
    let (passed, failed) = (usize::from(wrong.is_empty()), wrong.len());
    println!("{passed} passed, {failed} failed");
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

async fn soak(time: Duration, seed: u64) -> Report {
    let mut upstreams = Vec::new();
    for (_, ids) in UPSTREAMS {
        upstreams.push(Upstream::start(ids).await);
    }
    let berth = Arc::new(Berth::start(&configuration(&upstreams)).await);
    let since = Instant::now();
    let (settled, calm) = (since + time * 2 / 3, since + time);
    let trouble = tokio::spawn(trouble::make(upstreams, berth.clone(), seed, settled, calm));
    let samples = tokio::spawn(watch(berth.clone(), calm));

    let mut asked = JoinSet::new();
    let mut met: BTreeMap<Met, u64> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    let mut count = |done: Result<(Met, Option<String>), tokio::task::JoinError>| {
        let (what, id) = done.unwrap_or_else(|panic| (Met::Wrong(panic.to_string()), None));
        *met.entry(what).or_default() += 1;
        ids.extend(id);
    };
    let mut tick = tokio::time::interval(Duration::from_secs(1) / RATE);
    let (mut number, mut late, mut minute) = (0, 0, 0);
    while Instant::now() < calm {
        tick.tick().await;
        while let Some(done) = asked.try_join_next() {
            count(done);
        }
        if asked.len() >= AT_ONCE {
            late += 1;
            continue;
        }
        number += 1;
        asked.spawn(client::ask(berth.addr, Dice::new(mix(seed ^ number))));
        if since.elapsed().as_secs() / 60 > minute {
            minute += 1;
            eprintln!(
                "minute {minute}: {number} requests, {} under way",
                asked.len()
            );
        }
    }
    while let Some(done) = asked.join_next().await {
        count(done);
    }
    let (done, upstreams) = trouble.await.unwrap();
    let samples = samples.await.unwrap();
    let left = left_over(&berth).await;
    let last = at_rest(berth.serving(), &samples).await;
    drop(upstreams);
    let (attempts, told) = audit_of(&berth);
    Report {
        time,
        seed,
        met,
        late,
        done,
        attempts,
        untold: ids.difference(&told).count(),
        samples,
        last,
        left,
    }
}

/// The memory of whoever serves, again and again, once it is warm.
async fn watch(berth: Arc<Berth>, calm: Instant) -> Vec<Process> {
    let mut samples: Vec<Process> = Vec::new();
    let (mut of, mut since) = (0, Instant::now());
    while Instant::now() < calm {
        tokio::time::sleep(SAMPLE).await;
        let now = berth.serving();
        if now != of {
            (of, since) = (now, Instant::now());
        }
        if since.elapsed() >= WARM {
            samples.push(Process::of(now));
        }
    }
    samples
}

/// A process whose clients are gone, once it has closed the connections that it kept to upstreams, or has had
/// the time to.
async fn at_rest(pid: u32, samples: &[Process]) -> Process {
    let few = samples.iter().map(|it| it.files).min().unwrap_or_default();
    let since = Instant::now();
    loop {
        let now = Process::of(pid);
        if now.files <= few || since.elapsed() > KEPT {
            return now;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// What is still there after the last client is gone, and should not be.
async fn left_over(berth: &Berth) -> Vec<String> {
    let mut left = Vec::new();
    until_async("the old processes end", async || {
        berth.generations().len() == 1
    })
    .await;
    // What clients left behind when they went is given up by then.
    let since = Instant::now();
    let mut busy = berth.in_flight().await;
    while !busy.is_empty() && since.elapsed() < DEADLINE {
        tokio::time::sleep(Duration::from_millis(100)).await;
        busy = berth.in_flight().await;
    }
    left.extend(busy);
    for name in ["berth_audit_lost_total", "berth_memory_reserved_bytes"] {
        if let Some(value) = berth.metric(name).await.filter(|value| *value != 0.0) {
            left.push(format!("{name} {value}"));
        }
    }
    let log = berth.whole_log();
    for line in log.lines().filter(|line| line.contains("panicked")) {
        left.push(line.to_owned());
    }
    left
}

/// Attempts by verdict, and the ids of the requests that are told of.
fn audit_of(berth: &Berth) -> (BTreeMap<String, u64>, BTreeSet<String>) {
    let file = std::fs::File::open(berth.folder().join("audit.jsonl")).unwrap();
    let (mut attempts, mut told) = (BTreeMap::new(), BTreeSet::new());
    for line in BufReader::new(file).lines() {
        let line = line.unwrap();
        if line.is_empty() {
            // Of a process that began while another wrote.
            continue;
        }
        let line: Value = serde_json::from_str(&line).unwrap();
        for attempt in line["attempts"].as_array().unwrap() {
            let verdict = attempt["verdict"].as_str().unwrap().to_owned();
            *attempts.entry(verdict).or_default() += 1;
        }
        told.insert(line["request_id"].as_str().unwrap().to_owned());
    }
    (attempts, told)
}

fn configuration(upstreams: &[Upstream]) -> String {
    let mut text = "upstreams:\n".to_owned();
    for ((name, ids), upstream) in UPSTREAMS.iter().zip(upstreams) {
        let dialect = if ids.starts_with('g') {
            "anthropic"
        } else {
            "openai"
        };
        text += &format!(
            "  {name}: {{base_url: \"http://{}/v1\", dialect: {dialect},{POLICY}}}\n",
            upstream.addr
        );
    }
    text += "credentials:\n";
    for (name, ids) in UPSTREAMS {
        let section = credentials(name, ids);
        text += section.strip_prefix("credentials:\n").unwrap();
    }
    text += "routes:\n\
             - {path_prefix: /v1, credentials: [a, b, c, d, e, f]}\n\
             - {path_prefix: /anthropic/v1, credentials: [g, h, i]}\n\
             admission: {hold: {max_time: 5s, request_max_time: 15s}, wait: {max_time: 2s, max_waiting: 100}}\n\
             process: {drain_timeout: 45s}\n";
    text
}
