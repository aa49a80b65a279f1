//! Ten thousand requests of 200 clients over 20 credentials that refuse a third of them in every
//! shape: each client gets one whole answer or an honest error, and afterwards nothing is left; and of
//! what was planted in every request and every credential nothing is to be read anywhere.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth::sim::{Chance, Program, Refuse, Shape, Sim, Step, Then};
use common::wire::{Answer, Client, Ends, body, post};
use common::{Berth, DEADLINE, IDS, config};

const CLIENTS: usize = 200;
const REQUESTS_EACH: usize = 50;
const ROUNDS: usize = 5;

/// A third of the answers are refused, each credential in a shape of its own; some break instead.
fn program() -> Program {
    let mut program = Program::default();
    for (n, id) in IDS.chars().enumerate() {
        let (_, shape) = Shape::ALL[n % Shape::ALL.len()];
        let refuse = match n {
            18 => Step::Cut(berth::sim::Cut {
                after: 0,
                mid_frame: false,
            }),
            19 => Step::HalfHead,
            _ => Step::Refuse(Refuse {
                shape,
                // It tells the key that it was asked with, wherever that can stand.
                message: Some(format!("Selected model is at capacity for sk-{id}.")),
                headers: BTreeMap::from([("x-echo".to_owned(), format!("Bearer sk-{id}"))]),
                ..Refuse::default()
            }),
        };
        let step = Step::Chance(Chance {
            percent: 33,
            refuse: Box::new(refuse),
            admit: Box::new(Step::admit()),
            seed: Some(n as u64),
        });
        program = program.with(&format!("sk-{id}"), &id.to_string(), [step], Then::Last);
    }
    program
}

fn configuration(sim: &Sim) -> String {
    config(
        &format!("{}/v1", sim.url()),
        IDS,
        "admission: {retry_budget: {ratio: 100.0, min_per_second: 10000}, max_attempts: 4}\n",
    )
    .replace("balance: fill_first", "balance: least_in_flight")
}

const PATHS: [&str; 2] = ["/v1/responses", "/v1/chat/completions"];

/// What no operator is to read.
const PLANTED: &str = "authorization: Bearer planted-key\r\nx-api-key: planted-key-too\r\n\
    cookie: planted-cookie\r\nsession-id: planted-session\r\nx-anything: planted-header\r\n\
    user-agent: planted-agent\r\n";

/// Looks for it, and for the credentials' secrets, wherever operators read.
async fn nothing_private_is_shown(berth: &Berth) {
    let file = |name| std::fs::read_to_string(berth.folder().join(name)).unwrap();
    let shown = [
        ("metrics", berth.get("/metrics").await.text()),
        ("the page", berth.get("/").await.text()),
        ("status", berth.get("/status").await.text()),
        ("the audit", file("audit.jsonl")),
        ("the log", file("log")),
    ];
    for (place, text) in shown {
        assert!(text.len() > 1_000, "{place}: {text}");
        let secrets = IDS.chars().map(|id| format!("sk-{id}"));
        for private in secrets.chain(["planted".to_owned()]) {
            if let Some(at) = text.find(&private) {
                let around = &text.as_bytes()[at.saturating_sub(100)..(at + 100).min(text.len())];
                panic!(
                    "{place} shows {private}: {}",
                    String::from_utf8_lossy(around)
                );
            }
        }
    }
}

/// What an answer was; panics where it is neither whole nor an honest error.
fn judge(answer: &Answer, path: &str, stream: bool) -> &'static str {
    let shown = format!("{} {:?}", answer.text(), answer.headers);
    assert!(!shown.contains("sk-"), "a key is told: {shown}");
    if answer.status == 503 {
        let told = answer.json();
        assert_eq!(answer.ends, Ends::Whole, "{answer:?}");
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        assert_eq!(told["error"]["code"], "server_error", "{answer:?}");
        return "refused";
    }
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    assert_eq!(answer.ends, Ends::Whole, "{path}: {answer:?}");
    let text = answer.text();
    assert!(!text.contains("overloaded"), "{path}: {text}");
    assert!(!text.contains("at capacity"), "{path}: {text}");
    match (path, stream) {
        ("/v1/responses", true) => {
            assert_eq!(
                text.matches("event: response.created\n").count(),
                1,
                "{text}"
            );
            assert_eq!(
                text.matches("event: response.completed\n").count(),
                1,
                "{text}"
            );
        }
        ("/v1/responses", false) => assert_eq!(answer.json()["status"], "completed"),
        (_, true) => assert_eq!(text.matches("data: [DONE]").count(), 1, "{text}"),
        (_, false) => assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop"),
    }
    "answered"
}

/// One client's requests over one connection; a new one where the last was closed.
async fn client(
    berth: Arc<Berth>,
    number: usize,
    requests: usize,
) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let mut connection: Option<Client> = None;
    for n in 0..requests {
        let path = PATHS[(number + n) % 2];
        let stream = !(number + n).is_multiple_of(5);
        let asked = body(path, stream).replace(":\"hi\"", ":\"planted-prompt\"");
        assert!(asked.contains("planted"));
        let request = post(path, PLANTED, asked);
        let mut open = match connection.take() {
            Some(open) => open,
            None => berth.connect().await,
        };
        open.send(&request).await;
        let answer = open.answer().await;
        *counts.entry(judge(&answer, path, stream)).or_default() += 1;
        if answer.header("connection") != Some("close") {
            connection = Some(open);
        }
    }
    counts
}

async fn clients(
    berth: &Arc<Berth>,
    clients: usize,
    requests: usize,
) -> BTreeMap<&'static str, usize> {
    let mut all = tokio::task::JoinSet::new();
    for number in 0..clients {
        all.spawn(client(berth.clone(), number, requests));
    }
    let mut counts = BTreeMap::new();
    while let Some(done) = all.join_next().await {
        for (kind, count) in done.unwrap() {
            *counts.entry(kind).or_default() += count;
        }
    }
    counts
}

/// What a process has of the machine.
#[derive(Clone, Copy, Debug)]
struct Uses {
    threads: usize,
    files: usize,
    rss_kib: usize,
}

fn uses(pid: u32) -> Uses {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    Uses {
        threads: field("Threads:"),
        files: std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .count(),
        rss_kib: field("VmRSS:"),
    }
}

/// No client is connected, nothing is in flight, nothing is reserved.
async fn is_idle(berth: &Berth, sim: &Sim) {
    let since = Instant::now();
    loop {
        let busy = berth.in_flight().await;
        if busy.is_empty() {
            break;
        }
        assert!(since.elapsed() < DEADLINE, "in flight: {busy:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(berth.series("berth_in_flight").await.len(), IDS.len());
    berth
        .metric_becomes("berth_memory_reserved_bytes", 0.0)
        .await;
    let idle = sim
        .until(DEADLINE, |_, stats| {
            stats.credentials.values().all(|each| each.in_flight == 0)
        })
        .await;
    assert!(idle, "{:?}", sim.stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_under_refusals_leave_nothing_behind() {
    let sim = Sim::start(([127, 0, 0, 1], 0).into(), program()).unwrap();
    let berth = Arc::new(Berth::start(&configuration(&sim)).await);

    // The same load once: what it leaves is pools, caches and the allocator's, not leaks.
    let warm = clients(&berth, CLIENTS, REQUESTS_EACH).await;
    is_idle(&berth, &sim).await;
    let before = uses(berth.pid());

    let since = Instant::now();
    let mut counts = BTreeMap::new();
    let mut memory = vec![before.rss_kib];
    for _ in 0..ROUNDS {
        for (kind, count) in clients(&berth, CLIENTS, REQUESTS_EACH / ROUNDS).await {
            *counts.entry(kind).or_insert(0) += count;
        }
        is_idle(&berth, &sim).await;
        memory.push(uses(berth.pid()).rss_kib);
    }
    let took = since.elapsed();
    let after = uses(berth.pid());
    let total = CLIENTS * REQUESTS_EACH;
    println!("{counts:?} in {took:?}; {before:?}, {after:?}, resident KiB {memory:?}");

    assert_eq!(counts.values().sum::<usize>(), total);
    // Refused four times in a row by chance: one in 84. Far more would be a pool that closes itself.
    let refused = counts.get("refused").copied().unwrap_or(0);
    assert!(refused < total / 20, "{refused} of {total} refused");

    // The audit has each request once, and the metrics count the same.
    let lines = berth.audit(2 * total).await;
    assert_eq!(lines.len(), 2 * total);
    let ids: std::collections::BTreeSet<&str> = lines
        .iter()
        .map(|line| line["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), lines.len(), "a request id came twice");
    let ok = lines.iter().filter(|line| line["outcome"] == "ok").count();
    let answered = counts["answered"] + warm["answered"];
    assert_eq!(ok, answered);
    let requests = berth.series("berth_requests_total").await;
    let counted: f64 = requests.iter().map(|(_, value)| value).sum();
    assert_eq!(counted as usize, lines.len(), "{requests:?}");
    let attempts: usize = lines
        .iter()
        .map(|line| line["attempts"].as_array().unwrap().len())
        .sum();
    assert!(
        attempts > lines.len() * 5 / 4,
        "{attempts} attempts: nothing was refused"
    );

    // Connections to the upstream are pooled, at most as many as were ever in flight at once.
    let open = sim.stats().connections_open;
    assert!(open <= 2 * CLIENTS as u64, "{open} connections are open");
    assert_eq!(after.threads, before.threads);
    assert!(
        after.files <= before.files + 2 * CLIENTS,
        "{before:?}, {after:?}"
    );
    // A leak grows in every round of 2,000 requests: half a KiB per request would be a MiB. Over
    // 40,000 requests with one allocator arena it was flat; with one per thread it crept up by 20 MiB.
    let least = memory
        .windows(2)
        .map(|two| two[1].saturating_sub(two[0]))
        .min();
    assert!(least < Some(1024), "it grows in every round: {memory:?}");
    assert!(after.rss_kib < before.rss_kib + 8 * 1024, "{memory:?}");

    // Clients that all leave in the middle leave nothing either.
    let mut leaving = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = berth.connect().await;
        client.send(post(PATHS[0], "", body(PATHS[0], true))).await;
        leaving.push(client);
    }
    drop(leaving);
    is_idle(&berth, &sim).await;
    nothing_private_is_shown(&berth).await;
    let last = uses(berth.pid());
    assert_eq!(last.threads, before.threads);
    assert!(
        last.files <= before.files + 2 * CLIENTS,
        "{before:?}, {last:?}"
    );
}
