//! The sixteen faults of failoverbench, through berth, judged from both sides.
//!
//! failoverbench (methodology 0.1, its `scenarios/catalogue.yaml`) puts a gateway before a provider that
//! breaks on purpose and asks what a caller and that provider saw of it. Here its faults are played by the
//! simulated upstream, its waits shortened about tenfold. The set-up is a gateway's usual one:
//!
//! - two keys, `a` and `b`, at the upstream `first`, which serve the model that is asked for;
//! - one key, `c`, at the upstream `second`, which serves the fallback model;
//! - a streaming `chat/completions` request, `fallback_models` with one model, everything else default.
//!
//! A fault that comes "once" is met by the first request, one that persists by every request to `first`.
//! Where its wording leaves room it is read so: `429 with Retry-After` asks that the key that said so is
//! left alone until then, whoever answers meanwhile; `malformed chunk` is a frame too many, which a careful
//! client skips, and berth passes as it passes everything; `prefill` asks that no upstream is ever sent a
//! part of an answer to go on from.
//!
//! The verdicts are its own: *pass*, the caller has the whole answer, or for the content filter the
//! upstream's reason; *safe*, the caller has none, but a bounded and clean error, never a part that looks
//! whole; *fail*, everything else. Its advisory checks are not counted: `docs/reliability.md` says where
//! they would differ, and has the table that this test prints, word for word.

mod common;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use berth::sim::{
    Cut, Flap, Malformed, Program, RateLimit, Record, Refuse, Shape, Sim, Stall, Step, Then,
};
use common::Berth;
use common::wire::{Answer, Ends, post};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Beyond this an answer is a hang. The longest way to one: two keys that are silent.
const BOUND: Duration = Duration::from_secs(15);

/// How long `first` is down before it is back, and how often it is asked.
const DOWN: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Pass,
    Safe,
    Fail,
}

/// What is right at the end of a fault.
#[derive(Clone, Copy, PartialEq)]
enum Ideal {
    Answer,
    Reason(&'static str),
}

struct Fault {
    name: &'static str,
    /// What the keys at `first` do, in turn.
    first: Vec<Step>,
    then: Then,
    ideal: Ideal,
    expected: Verdict,
    /// At most so many requests for the client's own model.
    most: usize,
}

/// A client's view, as a careful one reads it.
struct Seen {
    status: u16,
    ends: Ends,
    text: String,
    model: Option<String>,
    usage: bool,
    error: Option<String>,
    skipped: usize,
    took: Duration,
}

impl Seen {
    fn of(answer: &Answer, took: Duration) -> Seen {
        let mut seen = Seen {
            status: answer.status,
            ends: answer.ends,
            text: String::new(),
            model: None,
            usage: false,
            error: None,
            skipped: 0,
            took,
        };
        if answer.status != 200 {
            let error = &answer.json()["error"];
            let code = error["code"].as_str().or(error["type"].as_str());
            seen.error = Some(code.unwrap_or("none").to_owned());
            return seen;
        }
        for line in answer.text().lines() {
            let Some(data) = line.strip_prefix("data: ").filter(|it| *it != "[DONE]") else {
                continue;
            };
            let Ok(chunk) = serde_json::from_str::<Value>(data) else {
                seen.skipped += 1;
                continue;
            };
            if let Some(error) = chunk.get("error") {
                seen.error = Some(error["code"].to_string());
            }
            seen.model = chunk["model"].as_str().map(str::to_owned).or(seen.model);
            seen.usage |= chunk["usage"].is_object();
            if let Some(piece) = chunk["choices"][0]["delta"]["content"].as_str() {
                seen.text.push_str(piece);
            }
        }
        seen
    }

    /// Whether the client takes it for an answer.
    fn succeeded(&self) -> bool {
        self.status == 200 && self.ends == Ends::Whole && self.error.is_none()
    }

    fn is_complete(&self) -> bool {
        ["a", "b", "c"]
            .iter()
            .any(|who| self.text == format!("Hello from {who}."))
    }

    fn verdict(&self, ideal: Ideal) -> Verdict {
        match ideal {
            _ if self.took > BOUND => Verdict::Fail,
            _ if self.succeeded() && !self.is_complete() => Verdict::Fail,
            Ideal::Answer if self.succeeded() => Verdict::Pass,
            Ideal::Answer => Verdict::Safe,
            Ideal::Reason(code) if self.error.as_deref() == Some(code) => Verdict::Pass,
            Ideal::Reason(_) => Verdict::Safe,
        }
    }

    fn told(&self) -> String {
        let skipped = match self.skipped {
            0 => "",
            _ => ", one frame that is not JSON",
        };
        match &self.error {
            Some(code) => format!("{} `{code}`", self.status),
            None if !self.succeeded() => "200, a part, then a broken body".to_owned(),
            None => {
                let model = self.model.as_deref().unwrap_or("?");
                format!("200, the whole answer of `{model}`{skipped}")
            }
        }
    }
}

/// A berth before the two upstreams.
struct Stage {
    first: Sim,
    second: Sim,
    berth: Berth,
}

impl Stage {
    async fn new(fault: &Fault) -> Stage {
        let local = ([127, 0, 0, 1], 0).into();
        let mut program = Program::default();
        for (key, id) in [("sk-a", "a"), ("sk-b", "b")] {
            // What comes once is met by whoever is asked first.
            let steps = match (fault.then, id) {
                (Then::Admit, "b") => Vec::new(),
                _ => fault.first.clone(),
            };
            program = program.with(key, id, steps, fault.then);
        }
        let first = Sim::start(local, program).unwrap();
        let admits = Program::default().with("sk-c", "c", [], Then::Last);
        let second = Sim::start(local, admits).unwrap();
        let berth = Berth::start(&format!(
            "upstreams:\n\
             \x20 first: {{base_url: \"{}/v1\", header_timeout: 2s, idle_timeout: 2s}}\n\
             \x20 second: {{base_url: \"{}/v1\"}}\n\
             credentials:\n\
             \x20 - {{id: a, upstream: first, secret: {{env: SK_A}}, models: [gpt-a]}}\n\
             \x20 - {{id: b, upstream: first, secret: {{env: SK_B}}, models: [gpt-a]}}\n\
             \x20 - {{id: c, upstream: second, secret: {{env: SK_C}}, models: [gpt-b]}}\n\
             routes: [{{path_prefix: /v1, balance: fill_first, fallback_models: {{gpt-a: [gpt-b]}}}}]\n\
             admission: {{wait: {{max_time: 1s}}}}\n",
            first.url(),
            second.url()
        ))
        .await;
        Stage {
            first,
            second,
            berth,
        }
    }

    async fn ask(&self, model: &str) -> Seen {
        let since = Instant::now();
        let answer = self
            .berth
            .ask(post("/v1/chat/completions", "", body(model)))
            .await;
        Seen::of(&answer, since.elapsed())
    }

    fn upstreams_saw(&self) -> String {
        let requests = |log: &[Record]| match log {
            [] => "nothing".to_owned(),
            log => {
                let one = |it: &Record| {
                    let who = it.credential.as_deref().unwrap_or("?");
                    format!(
                        "`{who}` {}",
                        it.status.map_or("-".into(), |s| s.to_string())
                    )
                };
                log.iter().map(one).collect::<Vec<_>>().join(", ")
            }
        };
        let (first, second) = (self.first.log(), self.second.log());
        format!("first: {}; second: {}", requests(&first), requests(&second))
    }
}

fn body(model: &str) -> String {
    format!(
        r#"{{"model":"{model}","stream":true,"stream_options":{{"include_usage":true}},"messages":[{{"role":"user","content":"hi"}}]}}"#
    )
}

fn faults() -> Vec<Fault> {
    let busy = || {
        Step::Refuse(Refuse {
            shape: Shape::Http503,
            code: Some("overloaded".into()),
            message: Some("The engine is currently overloaded. Please try again later.".into()),
            ..Refuse::default()
        })
    };
    let error = |shape, code: &str, message: &str| {
        Step::Refuse(Refuse {
            shape,
            code: Some(code.into()),
            message: Some(message.into()),
            ..Refuse::default()
        })
    };
    let slow = berth::sim::Admit {
        first_output_after: Duration::from_secs(3),
        ..Default::default()
    };
    let cut = || {
        Step::Cut(Cut {
            after: 2,
            mid_frame: false,
        })
    };
    let flap = Step::Flap(Flap {
        period: DOWN,
        refuse: Box::new(busy()),
        admit: Box::new(Step::admit()),
    });
    let limited = |seconds| {
        Step::RateLimit(RateLimit {
            retry_after: seconds,
        })
    };
    let always = |name, step, expected, most| Fault {
        name,
        first: vec![step],
        then: Then::Last,
        ideal: Ideal::Answer,
        expected,
        most,
    };
    let once = |name, step| Fault {
        then: Then::Admit,
        ..always(name, step, Verdict::Pass, 2)
    };
    use Verdict::{Pass, Safe};
    vec![
        once(
            "429 with `Retry-After`",
            limited(Some(Duration::from_secs(20))),
        ),
        always("429 without", limited(None), Pass, 2),
        once(
            "500 once",
            error(Shape::Http500, "", "The server had an error."),
        ),
        always("503", busy(), Pass, 2),
        once("reset", Step::Reset),
        always("silence", Step::Hang, Pass, 2),
        always("slow first token", Step::Admit(slow), Pass, 1),
        always("cut", cut(), Safe, 1),
        always("stall", Step::Stall(Stall { after: 2 }), Safe, 1),
        always(
            "malformed chunk",
            Step::Malformed(Malformed { after: 2 }),
            Pass,
            1,
        ),
        always("no `[DONE]`", Step::NoDone, Pass, 1),
        always("context length", Step::ClientError, Pass, 1),
        Fault {
            ideal: Ideal::Reason("content_policy_violation"),
            ..always(
                "content filter",
                error(
                    Shape::Http400,
                    "content_policy_violation",
                    "Your request was rejected by our safety system.",
                ),
                Pass,
                1,
            )
        },
        always("prefill", cut(), Safe, 1),
        always("flap", flap, Pass, usize::MAX),
        always("accounting", busy(), Pass, 2),
    ]
}

/// Plays a fault; gives its line of the table and the verdict.
async fn play(fault: &Fault) -> (String, Verdict) {
    let stage = Stage::new(fault).await;
    let (told, mut verdict) = match fault.name {
        "flap" => flap(&stage).await,
        _ => {
            let seen = stage.ask("gpt-a").await;
            (seen.told(), seen.verdict(fault.ideal))
        }
    };
    let mut saw = stage.upstreams_saw();
    let log = stage.first.log();
    if log.len() > fault.most {
        verdict = Verdict::Fail;
    }
    match fault.name {
        "429 with `Retry-After`" => {
            // The key is left alone.
            assert!(stage.ask("gpt-a").await.succeeded());
            let asked = |id| {
                let log = stage.first.log();
                log.iter()
                    .filter(|it| it.credential.as_deref() == Some(id))
                    .count()
            };
            assert_eq!((asked("a"), asked("b")), (1, 2));
        }
        "prefill" => {
            // Whoever is asked is asked what the client asked.
            let sent = format!("{:x}", Sha256::digest(body("gpt-a")));
            assert!(log.iter().all(|it| it.body_sha256 == sent));
        }
        "accounting" => accounts(&stage).await,
        "flap" => saw = "first: refused, then both keys admit; second: answers meanwhile".into(),
        _ => {}
    }
    // It is alive, and what it serves is whole.
    let healthy = stage.ask("gpt-b").await;
    assert!(
        healthy.succeeded() && healthy.is_complete(),
        "{}",
        fault.name
    );
    let word = format!("{verdict:?}").to_lowercase();
    (
        format!("| {} | {word} | {told} | {saw} |", fault.name),
        verdict,
    )
}

/// Everybody is served while `first` is down, and by it once it is back.
async fn flap(stage: &Stage) -> (String, Verdict) {
    let began = Instant::now();
    let (mut served, mut asked) = (0, 0);
    let mut back = None;
    let mut fell_back = 0;
    while back.is_none() && began.elapsed() < 3 * DOWN {
        let seen = stage.ask("gpt-a").await;
        asked += 1;
        served += usize::from(seen.succeeded() && seen.is_complete());
        match seen.model.as_deref() {
            Some("gpt-a") => back = Some(began.elapsed()),
            Some("gpt-b") => fell_back += 1,
            _ => {}
        }
        tokio::time::sleep(EVERY).await;
    }
    let good = served == asked && fell_back > 0 && back.is_some_and(|at| at < 2 * DOWN);
    let told = "200, whole answers: of `gpt-b` while it is down, then of `gpt-a`";
    match good {
        true => (told.to_owned(), Verdict::Pass),
        false => {
            let told =
                format!("{served} of {asked} served, {fell_back} by fallback, back: {back:?}");
            (told, Verdict::Fail)
        }
    }
}

/// The client sees which model answered and what it took; nothing else is counted.
async fn accounts(stage: &Stage) {
    let seen = stage.ask("gpt-a").await;
    assert_eq!(seen.model.as_deref(), Some("gpt-b"));
    assert!(seen.usage);
    let tokens = stage.berth.series("berth_tokens_total").await;
    assert!(!tokens.is_empty());
    for (name, _) in tokens {
        assert!(name.contains("gpt-b"), "billed: {name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sixteen_faults() {
    let faults = faults();
    assert_eq!(faults.len(), 16);
    let mut table = String::from(
        "| fault | verdict | what the client saw | what the upstreams saw |\n|---|---|---|---|\n",
    );
    let mut wrong = Vec::new();
    for fault in &faults {
        let (line, verdict) = play(fault).await;
        writeln!(table, "{line}").unwrap();
        if verdict != fault.expected {
            wrong.push(fault.name);
        }
    }
    println!("{table}");
    assert!(wrong.is_empty(), "not as expected: {wrong:?}\n{table}");
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reliability.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    assert!(
        manual.contains(&table),
        "docs/reliability.md has another table than:\n{table}"
    );
}
