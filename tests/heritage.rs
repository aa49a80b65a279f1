//! What a process knows, the next one knows too: what was learned before the reload travels with it,
//! and what the old one still meets while it drains is told to the new one.

mod common;

use std::time::Duration;

use berth::sim::{Admit, Program, Refuse, Sim, Step, Then};
use common::wire::{Client, body, post};
use common::{Berth, config, until_async};
use serde_json::Value;

const PATH: &str = "/v1/responses";

fn sim(steps: [Vec<Step>; 2]) -> Sim {
    let mut program = Program::default();
    for (id, steps) in ["a", "b"].into_iter().zip(steps) {
        program = program.with(&format!("sk-{id}"), id, steps, Then::Last);
    }
    Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap()
}

async fn berth(sim: &Sim) -> Berth {
    Berth::start(&config(&format!("{}/v1", sim.url()), "ab", "")).await
}

fn request(session: &str) -> Vec<u8> {
    let header = format!("session-id: {session}\r\n");
    post(PATH, &header, body(PATH, true))
}

fn refuses_after(millis: u64) -> Step {
    Step::Refuse(Refuse {
        after: Duration::from_millis(millis),
        ..Refuse::default()
    })
}

/// Five newcomers that are on their way before the first is refused.
async fn five_at_once(berth: &Berth) -> Vec<Client> {
    let mut clients = Vec::new();
    for number in 0..5 {
        let mut client = berth.connect().await;
        client.send(request(&format!("s-{number}"))).await;
        clients.push(client);
    }
    clients
}

fn pair(status: &Value, credential: &str) -> Value {
    let pairs = status["pairs"].as_array().unwrap().iter();
    let mut found = pairs.filter(|it| it["credential"] == credential && it["model"] == "gpt-sim");
    found.next().cloned().unwrap_or_default()
}

/// Who was asked for the request with this id, in order.
async fn asked(berth: &Berth, id: &str) -> Vec<String> {
    let line = berth.audit_of(id).await;
    let attempts = line["attempts"].as_array().unwrap().iter();
    attempts
        .map(|it| it["credential"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn scores_counts_and_orders_survive_a_reload() {
    let sim = sim([
        vec![Step::refuse(berth::sim::Shape::Sse)],
        vec![Step::admit()],
    ]);
    let berth = berth(&sim).await;
    for client in &mut five_at_once(&berth).await {
        assert_eq!(client.answer().await.status, 200);
    }
    berth.audit(5).await;
    let before = pair(&berth.status().await, "a");
    assert_eq!(before["state"], "shunned", "{before}");
    let refusals = r#"berth_refusals_total{credential="a",model="gpt-sim",shape="sse"}"#;
    let refused = berth.metric(refusals).await.unwrap();
    assert_eq!(refused, 5.0);

    berth.reload().await;
    let after = pair(&berth.status().await, "a");
    for same in ["state", "basis", "refused"] {
        assert_eq!(after[same], before[same], "{same}");
    }
    assert!(after["since_ms"].as_u64() >= before["since_ms"].as_u64());
    berth.metric_becomes(refusals, refused).await;
    let answer = berth.ask(request("newcomer")).await;
    assert_eq!(asked(&berth, answer.id()).await, ["b"]);

    // And the one after that knows it from this one.
    berth.reload().await;
    let last = pair(&berth.status().await, "a");
    assert_eq!(last["state"], "shunned");
    berth.metric_becomes(refusals, refused).await;
}

#[tokio::test]
async fn a_stored_response_still_belongs_to_whom_it_did() {
    let refusal = Step::refuse(berth::sim::Shape::Http503);
    let sim = sim([vec![refusal, Step::admit()], vec![Step::admit()]]);
    let berth = berth(&sim).await;
    let answer = berth.ask(request("s")).await;
    assert_eq!(asked(&berth, answer.id()).await, ["a", "b"]);
    let text = answer.text();
    let id = text.split("\"id\":\"resp_").nth(1).unwrap();
    let id = id.split('"').next().unwrap();

    berth.reload().await;
    let follow = format!(
        r#"{{"model":"gpt-sim","stream":true,"input":"hi","previous_response_id":"resp_{id}"}}"#
    );
    let answer = berth.ask(post(PATH, "", follow)).await;
    assert_eq!(asked(&berth, answer.id()).await, ["b"]);
}

#[tokio::test]
async fn what_a_draining_process_meets_the_serving_one_learns() {
    let slow = Step::Admit(Admit {
        deltas: 20,
        delta_gap: Duration::from_millis(100),
        ..Admit::default()
    });
    let sim = sim([vec![refuses_after(1500)], vec![slow]]);
    let berth = berth(&sim).await;
    let mut clients = five_at_once(&berth).await;
    let five = |_: &[_], stats: &berth::sim::Stats| {
        let of_a = stats.credentials.get("a");
        of_a.is_some_and(|it| it.in_flight == 5)
    };
    assert!(sim.until(common::DEADLINE, five).await);

    berth.reload().await;
    // In flight with the old process, and seen in the new one.
    let in_flight = |id: &str| format!("berth_in_flight{{credential=\"{id}\"}}");
    berth.metric_becomes(&in_flight("a"), 5.0).await;
    assert_eq!(pair(&berth.status().await, "a"), Value::Null);
    // Refused there, and learned here; then the streams run on with the other.
    berth.metric_becomes(&in_flight("b"), 5.0).await;
    until_async("it is shunned here", async || {
        pair(&berth.status().await, "a")["state"] == "shunned"
    })
    .await;
    assert_eq!(berth.generations().len(), 2);
    for client in &mut clients {
        let answer = Client::answer(client).await;
        assert_eq!(
            answer.text().matches("event: response.completed").count(),
            1
        );
    }
    until_async("the old process ends", async || {
        berth.generations().len() == 1
    })
    .await;
    berth.metric_becomes(&in_flight("b"), 0.0).await;
    let refusals = r#"berth_refusals_total{credential="a",model="gpt-sim",shape="sse"}"#;
    berth.metric_becomes(refusals, 5.0).await;
    let refused = pair(&berth.status().await, "a")["refused"]["15m"].clone();
    assert_eq!(refused, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_count_each_attempt_once_and_keep_the_hits_of_rules() {
    let refusal = Step::refuse(berth::sim::Shape::Http503);
    let sim = sim([vec![refusal], vec![Step::admit()]]);
    // Nobody is asked last, so that each request is refused once.
    let more = "admission: {score: {cool_at: 1000, shun_at: 2000, ceiling: 3000}, \
                retry_budget: {ratio: 100.0, min_per_second: 10000}}\n";
    let config = config(&format!("{}/v1", sim.url()), "ab", more);
    let berth = std::sync::Arc::new(Berth::start(&config).await);
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut load = tokio::task::JoinSet::new();
    for client in 0..4 {
        let (berth, over) = (berth.clone(), over.clone());
        load.spawn(async move {
            let mut asked = 0;
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                let answer = berth.ask(request(&format!("s-{client}-{asked}"))).await;
                assert_eq!(answer.status, 200);
                asked += 1;
            }
            asked
        });
    }
    let alone = async || berth.generations() == [berth.serving()];
    for _ in 0..3 {
        berth.reload().await;
        until_async("the old one ends", &alone).await;
    }
    over.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut asked = 0;
    while let Some(of_client) = load.join_next().await {
        asked += of_client.unwrap();
    }
    assert!(asked > 20, "{asked} requests");
    let lines = berth.audit(asked).await;
    let verdicts = lines.iter().flat_map(common::story);
    let (mut refused, mut admitted) = (0, 0);
    for (_, verdict) in verdicts {
        match verdict {
            "capacity" => refused += 1,
            "admitted" => admitted += 1,
            _ => {}
        }
    }
    let sum = |status: &Value, what: &str| -> u64 {
        let pairs = status["pairs"].as_array().unwrap().iter();
        pairs.map(|it| it[what]["24h"].as_u64().unwrap()).sum()
    };
    until_async("all is heard", async || {
        let status = berth.status().await;
        sum(&status, "refused") >= refused && sum(&status, "admitted") >= admitted
    })
    .await;
    let status = berth.status().await;
    let counted = ["refused", "admitted"].map(|what| sum(&status, what));
    assert_eq!(counted, [refused, admitted]);
    let rules = status["rules"].as_array().unwrap();
    let hit: Vec<&Value> = rules.iter().filter(|it| it["hits"] != 0).collect();
    assert_eq!(hit.len(), 1, "{hit:?}");
    assert_eq!(hit[0]["hits"], refused, "{}", hit[0]);
    assert!(hit[0]["last_hit"].is_string());
}
