//! Situations of the policy laboratory, in small and for real: the binary, the simulated upstream, and
//! 200 clients at once that obey `Retry-After` as Codex does. Time runs about sixty times faster than
//! in the laboratory. What is asserted is what a policy gets wrong when it gets it wrong: clients that
//! see a 503 in vain, a full model that is hammered, a healthy credential that pays for another.
//!
//! `cargo test --test situations -- --nocapture` prints the figures of each.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth::admission::dice::{Dice, mix};
use berth::sim::{Admit, Chance, Program, Refuse, Seats, Sim, Step, Then};
use common::wire::{Client, Ends, body, post};
use common::{Berth, DEADLINE, IDS, credentials};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

const CLIENTS: u64 = 200;
/// Requests of a session.
const TURNS: u64 = 3;
/// Tries of the Codex client.
const TRIES: u32 = 30;
const PATH: &str = "/v1/responses";

/// One after the other: each needs the machine.
static ALONE: Mutex<()> = Mutex::const_new(());

/// The policy's times, about a sixtieth of them.
const POLICY: &str = "admission:
  score: {half_life: 15s, episode: 5s}
  cooldown: {base: 100ms, max: 400ms}
  probe: {first: 1s, max: 5s}
  wait: {max_time: 2s, max_waiting: 100}
  retry_after: {min: 1s, max: 3s}
";

/// What the clients met.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    requests: u32,
    /// Met at least one 503.
    seen: u32,
    /// Gave up.
    lost: u32,
}

struct Situation {
    sim: Sim,
    berth: Arc<Berth>,
    ids: &'static str,
}

/// What berth did for some requests.
#[derive(Debug)]
struct Did {
    tries: usize,
    attempts: usize,
    /// Which part of the first attempts went to credential `a`.
    first_at_a: f64,
}

impl Situation {
    async fn start(count: usize, step: impl Fn(usize) -> Step) -> Situation {
        let ids = &IDS[..count];
        let sim = Sim::start(([127, 0, 0, 1], 0).into(), program(ids, step)).unwrap();
        let upstream = format!("upstreams: {{up: {{base_url: \"{}/v1\"}}}}\n", sim.url());
        let routes = "routes: [{path_prefix: /v1}]\n";
        let config = upstream + &credentials("up", ids) + routes + POLICY;
        Situation {
            sim,
            berth: Arc::new(Berth::start(&config).await),
            ids,
        }
    }

    /// What each credential does from now on.
    fn play(&self, step: impl Fn(usize) -> Step) {
        self.sim.set_program(program(self.ids, step)).unwrap();
    }

    /// Clients that come and go for a time; each still finishes what it has begun.
    async fn clients(&self, time: Duration) -> Met {
        let until = Instant::now() + time;
        let mut all = JoinSet::new();
        for number in 0..CLIENTS {
            all.spawn(client(self.berth.clone(), number, until));
        }
        let mut met = Met::default();
        for each in all.join_all().await {
            met.requests += each.requests;
            met.seen += each.seen;
            met.lost += each.lost;
        }
        met
    }

    /// What was done for the tries that the audit has after its first `mark` lines.
    async fn did(&self, mark: usize) -> Did {
        let lines = self.berth.audit(mark).await;
        let attempts: Vec<&Vec<Value>> = lines[mark..]
            .iter()
            .filter_map(|line| line["attempts"].as_array())
            .collect();
        let firsts = attempts.iter().filter_map(|it| it.first());
        let at_a = firsts.clone().filter(|it| it["credential"] == "a").count();
        Did {
            tries: attempts.len(),
            attempts: attempts.iter().map(|it| it.len()).sum(),
            first_at_a: at_a as f64 / firsts.count().max(1) as f64,
        }
    }

    async fn mark(&self) -> usize {
        self.berth.audit(0).await.len()
    }

    /// Whose pairs are shown in one of these states now.
    async fn shown(&self, states: &[&str]) -> BTreeSet<String> {
        let status = self.berth.status().await;
        let pairs = status["pairs"].as_array().unwrap().iter();
        let shown = pairs.filter(|pair| states.iter().any(|state| pair["state"] == *state));
        shown
            .map(|pair| pair["credential"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn program(ids: &str, step: impl Fn(usize) -> Step) -> Program {
    let mut program = Program::default();
    for (n, id) in ids.chars().enumerate() {
        program = program.with(&format!("sk-{id}"), &id.to_string(), [step(n)], Then::Last);
    }
    program
}

/// An answer of 400 ms, the first word after half of that.
fn answers() -> Step {
    Step::Admit(Admit {
        first_output_after: Duration::from_millis(200),
        delta_gap: Duration::from_millis(100),
        ..Admit::default()
    })
}

/// A refusal after 30 ms, in the shape that looks like success.
fn refuses() -> Step {
    Step::Refuse(Refuse {
        after: Duration::from_millis(30),
        ..Refuse::default()
    })
}

fn refuses_of_a_hundred(percent: u8) -> Step {
    Step::Chance(Chance {
        percent,
        refuse: Box::new(refuses()),
        admit: Box::new(answers()),
        seed: None,
    })
}

fn seats(count: u32) -> Step {
    Step::Seats(Seats {
        count,
        refuse: Box::new(refuses()),
        admit: Box::new(answers()),
    })
}

async fn client(berth: Arc<Berth>, number: u64, until: Instant) -> Met {
    let mut dice = Dice::new(mix(number + 1));
    let mut met = Met::default();
    let mut turn = dice.roll() % TURNS;
    pause(&mut dice, 800).await;
    while Instant::now() < until {
        let session = format!("session-id: s-{number}-{}\r\n", turn / TURNS);
        turn += 1;
        met.requests += 1;
        let (seen, lost) = request(&berth, &post(PATH, &session, body(PATH, true))).await;
        met.seen += u32::from(seen);
        met.lost += u32::from(lost);
        pause(&mut dice, 800).await;
    }
    met
}

/// One request as Codex makes it, each try on a connection of its own: whether a 503 was seen, and
/// whether the client gave up.
async fn request(berth: &Berth, request: &[u8]) -> (bool, bool) {
    for attempt in 0..TRIES {
        let mut client = Client::connect(berth.addr).await;
        client.send(request).await;
        let answer = client.answer().await;
        assert_eq!(answer.ends, Ends::Whole, "{answer:?}");
        if answer.status == 200 {
            let text = answer.text();
            assert_eq!(text.matches("event: response.completed").count(), 1);
            assert!(!text.contains("overloaded"), "{text}");
            return (attempt > 0, false);
        }
        assert_eq!(answer.status, 503, "{answer:?}");
        let after = answer.header("retry-after").unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_secs(after)).await;
    }
    (true, true)
}

async fn until_gone(berth: &Berth, metric: &str) {
    let since = Instant::now();
    while berth.metric(metric).await.is_some() {
        assert!(since.elapsed() < DEADLINE, "{metric} is still there");
        pause(&mut Dice::new(1), 50).await;
    }
}

/// Thinks, for up to twice a mean.
async fn pause(dice: &mut Dice, mean_ms: u64) {
    tokio::time::sleep(Duration::from_millis(dice.roll() % (2 * mean_ms))).await;
}

/// Situation (a): one of six refuses 92 of 100, the others one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_credential_is_found_and_spared_and_nobody_sees_it() {
    let _alone = ALONE.lock().await;
    let step = |n| refuses_of_a_hundred(if n == 0 { 92 } else { 1 });
    let it = Situation::start(6, step).await;
    let first = it.clients(Duration::from_secs(5)).await;
    let mark = it.mark().await;
    let second = it.clients(Duration::from_secs(5)).await;
    let did = it.did(mark).await;
    println!("(a) {first:?}, then {second:?} {did:?}");
    assert!(second.requests > 500, "{second:?}");
    assert_eq!((first.seen, second.seen), (0, 0));
    assert_eq!(
        it.shown(&["shunned", "probing"]).await,
        ["a".to_owned()].into()
    );
    // And the operator is told on what evidence.
    let status = it.berth.status().await;
    let mut pairs = status["pairs"].as_array().unwrap().iter();
    let pair = pairs.find(|it| it["credential"] == "a" && it["model"] == "gpt-sim");
    let basis = pair.unwrap()["basis"].as_str().unwrap();
    assert!(
        basis.contains("newcomers refused here and admitted elsewhere"),
        "{basis}"
    );
    // A fair share would be a sixth.
    assert!(did.first_at_a < 0.05, "{did:?}");
    assert!(did.attempts < did.tries * 106 / 100, "{did:?}");
}

/// Situation (c): the model is full for everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_model_is_not_hammered_and_nobody_is_blamed() {
    let _alone = ALONE.lock().await;
    const FULL: &str = "berth_model_full{model=\"gpt-sim\"}";
    let it = Situation::start(6, |_| refuses_of_a_hundred(1)).await;
    let before = it.clients(Duration::from_secs(2)).await;
    let spent = |it: &Situation| it.sim.stats().requests;
    let (clients, watched) = tokio::join!(it.clients(Duration::from_secs(12)), async {
        it.play(|_| refuses());
        it.berth.metric_becomes(FULL, 1.0).await;
        // It takes two seconds without an admission; what was under way is over by then.
        let (from, since) = (spent(&it), Instant::now());
        tokio::time::sleep(Duration::from_secs(5)).await;
        let attempts = (spent(&it) - from) as f64 / since.elapsed().as_secs_f64();
        let blamed = it.shown(&["cooling", "shunned", "probing"]).await;
        it.play(|_| refuses_of_a_hundred(1));
        until_gone(&it.berth, FULL).await;
        (attempts, blamed)
    });
    println!(
        "(c) {before:?}, then {clients:?}; {:.2} attempts a second while full",
        watched.0
    );
    assert_eq!(before.seen, 0);
    // One attempt a second, and the two that an admission allows; 200 clients would make hundreds.
    assert!(watched.0 <= 3.0, "{watched:?}");
    assert_eq!(watched.1, BTreeSet::new());
    assert_eq!(clients.lost, 0);
    assert!(clients.requests > 500, "{clients:?}");
}

/// Situation (g): everybody comes back in the same second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_comes_at_once_is_spread_and_served() {
    let _alone = ALONE.lock().await;
    let it = Situation::start(14, |_| seats(30)).await;
    let mut all = JoinSet::new();
    for number in 0..CLIENTS {
        let berth = it.berth.clone();
        all.spawn(async move {
            let session = format!("session-id: s-{number}\r\n");
            request(&berth, &post(PATH, &session, body(PATH, true))).await
        });
    }
    let met = all.join_all().await;
    let seen = met.iter().filter(|(seen, _)| *seen).count();
    it.berth.audit(met.len()).await;
    let did = it.did(0).await;
    println!("(g) {seen} of {} saw a 503; {did:?}", met.len());
    assert_eq!((seen, did.tries), (0, CLIENTS as usize));
    assert!(did.attempts <= did.tries * 103 / 100, "{did:?}");
    assert_eq!(it.shown(&["cooling", "shunned"]).await, BTreeSet::new());
}

/// Situation (j): the siblings have seats for themselves, and hardly for what the bad one turns away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sparing_one_does_not_push_its_siblings_over_the_edge() {
    let _alone = ALONE.lock().await;
    let it = Situation::start(6, |n| match n {
        0 => refuses_of_a_hundred(92),
        _ => seats(16),
    })
    .await;
    let met = it.clients(Duration::from_secs(10)).await;
    let did = it.did(0).await;
    let shunned = it.shown(&["shunned", "probing"]).await;
    println!("(j) {met:?} {did:?}; shunned: {shunned:?}");
    assert!(met.requests > 1_000, "{met:?}");
    assert_eq!(met.lost, 0);
    assert!(met.seen * 20 <= met.requests, "{met:?}");
    assert!(shunned.is_subset(&["a".to_owned()].into()), "{shunned:?}");
}

/// Situation (m): all are healthy, and one of a hundred refusals means nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_closes_nothing() {
    let _alone = ALONE.lock().await;
    let it = Situation::start(6, |_| refuses_of_a_hundred(1)).await;
    let met = it.clients(Duration::from_secs(10)).await;
    let did = it.did(0).await;
    let last = it.shown(&["shunned", "probing"]).await;
    println!("(m) {met:?} {did:?}; last: {last:?}");
    assert!(met.requests > 1_000, "{met:?}");
    assert_eq!(met.seen, 0);
    assert!(did.attempts <= did.tries * 102 / 100, "{did:?}");
    assert_eq!(last, BTreeSet::new());
}
