//! A client that leaves costs nobody anything: its request is dropped at once, no credential is
//! blamed, and the audit says who left. A next request sent ahead is not a client that left.

mod common;

use std::time::{Duration, Instant};

use berth::sim::{Admit, KeepalivesForever, Program, Sim, Stats, Step, Then};
use common::upstream::{Conn, Raw};
use common::wire::{Client, Client2, Ends, body, large_body, post, responses};
use common::{Berth, DEADLINE, config, story};

/// Promised: 100 ms. Allowed here, where other tests share the processors: three times that.
const SOON: Duration = Duration::from_millis(300);

/// A simulator in which every credential does `step`.
async fn with_sim(step: Step) -> (Sim, Berth) {
    let program = Program::default()
        .with("sk-a", "a", [step.clone()], Then::Last)
        .with("sk-b", "b", [step], Then::Last);
    let sim = Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap();
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "ab", "")).await;
    (sim, berth)
}

/// Ways to be without an answer yet, and with half of one.
fn situations() -> Vec<(&'static str, Step, &'static str)> {
    let slow = Admit {
        deltas: 3,
        delta_gap: Duration::from_secs(20),
        ..Admit::default()
    };
    vec![
        ("waiting for a head", Step::Hang, ""),
        ("held after the head", Step::HangAfterHead, ""),
        (
            "held among keepalives",
            Step::KeepalivesForever(KeepalivesForever::default()),
            "",
        ),
        ("after commit", Step::Admit(slow), "output_text.delta"),
    ]
}

fn playing(stats: &Stats) -> bool {
    stats.credentials.get("a").is_some_and(|a| a.in_flight == 1)
}

/// The upstream's connection was closed soon, nobody is blamed, the audit names the client.
async fn only_the_client_is_gone(sim: &Sim, berth: &Berth, told: &str, since: Instant) {
    let gone = sim
        .until(DEADLINE, |log, _| {
            log.last().unwrap().peer_left_after_ms.is_some()
        })
        .await;
    let after = since.elapsed();
    assert!(gone, "{told}: the upstream never saw it");
    assert!(after < SOON, "{told}: seen after {after:?}");
    let lines = sim.log().len();
    let line = berth.last_audit(lines).await;
    assert_eq!(line["outcome"], "client_gone", "{told}: {line:#}");
    assert_eq!(story(&line), [("a", "client_gone")], "{told}");
    assert_eq!(berth.exclusions().await, Vec::<serde_json::Value>::new());
    berth
        .metric_becomes("berth_in_flight{credential=\"a\"}", 0.0)
        .await;
    berth
        .metric_becomes("berth_memory_reserved_bytes", 0.0)
        .await;
}

#[derive(Clone, Copy, Debug)]
enum Leaving {
    Close,
    HalfClose,
    Reset,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_seen_upstream_at_once_and_nobody_is_blamed() {
    let mut count = 0;
    for (told, step, until) in situations() {
        let (sim, berth) = with_sim(step).await;
        for leaving in [Leaving::Close, Leaving::HalfClose, Leaving::Reset] {
            let told = format!("{told}, {leaving:?}");
            let mut client = berth.connect().await;
            client.send(responses()).await;
            client.wait_for(until).await;
            assert!(
                sim.until(DEADLINE, |_, stats| playing(stats)).await,
                "{told}"
            );
            let since = Instant::now();
            let kept = leave(client, leaving).await;
            only_the_client_is_gone(&sim, &berth, &told, since).await;
            drop(kept);
            count += 1;
            if !until.is_empty() {
                // It had been let in: that counts, and its model has its name.
                let left =
                    r#"berth_attempts_total{credential="a",model="gpt-sim",verdict="client_gone"}"#;
                assert!(berth.metric(left).await.is_some(), "{told}");
                let pairs = berth.status().await["pairs"].clone();
                let pair = pairs
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|it| it["model"] == "gpt-sim");
                assert!(
                    pair.unwrap()["admitted"]["15m"].as_u64() > Some(0),
                    "{told}: {pairs}"
                );
            }
        }
    }
    assert_eq!(count, 12);
}

/// What is returned keeps the reading half open.
async fn leave(mut client: Client, how: Leaving) -> Option<Client> {
    match how {
        Leaving::Close => None,
        Leaving::Reset => {
            client.reset();
            None
        }
        Leaving::HalfClose => {
            tokio::io::AsyncWriteExt::shutdown(&mut client.stream)
                .await
                .unwrap();
            Some(client)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http2_client_that_resets_its_stream_is_seen_upstream_at_once() {
    for (told, step, _) in situations() {
        let (sim, berth) = with_sim(step).await;
        let client = Client2::connect(berth.addr).await;
        let (response, mut sending) = client.start("/v1/responses", &[]).await;
        sending
            .send_data(body("/v1/responses", true).into(), true)
            .unwrap();
        assert!(
            sim.until(DEADLINE, |_, stats| playing(stats)).await,
            "{told}"
        );
        let mut response = Box::pin(response);
        let mut started = None;
        if told == "after commit" {
            started = Some(common::within(&mut response).await.unwrap());
        }
        let since = Instant::now();
        sending.send_reset(h2::Reason::CANCEL);
        only_the_client_is_gone(&sim, &berth, told, since).await;
        drop((started, response));

        // The connection itself lives on.
        sim.set_program(Program::default().with("sk-a", "a", [], Then::Last).with(
            "sk-b",
            "b",
            [],
            Then::Last,
        ))
        .unwrap();
        let answer = client
            .ask("/v1/responses", &[], body("/v1/responses", true))
            .await;
        assert!(
            answer.text().contains("Hello from a."),
            "{told}: {answer:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http2_client_that_drops_its_connection_is_seen_upstream_at_once() {
    let (sim, berth) = with_sim(Step::Hang).await;
    let client = Client2::connect(berth.addr).await;
    let (_response, mut sending) = client.start("/v1/responses", &[]).await;
    sending
        .send_data(body("/v1/responses", true).into(), true)
        .unwrap();
    assert!(sim.until(DEADLINE, |_, stats| playing(stats)).await);
    let since = Instant::now();
    client.connection.abort();
    only_the_client_is_gone(&sim, &berth, "connection dropped", since).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_during_its_upload_asks_nobody() {
    let (sim, berth) = with_sim(Step::admit()).await;
    let whole = post("/v1/responses", "", large_body(1 << 20));
    let mut lines = 0;
    for leaving in [Leaving::Close, Leaving::HalfClose, Leaving::Reset] {
        let mut client = berth.connect().await;
        client.send(&whole[..whole.len() / 2]).await;
        let kept = leave(client, leaving).await;
        lines += 1;
        let line = berth.last_audit(lines).await;
        assert_eq!(line["outcome"], "client_gone", "{leaving:?}: {line:#}");
        assert_eq!(line["attempts"], serde_json::json!([]));
        drop(kept);
    }
    assert_eq!(sim.log().len(), 0);
    berth
        .metric_becomes("berth_memory_reserved_bytes", 0.0)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http2_client_that_resets_during_its_upload_asks_nobody() {
    let (sim, berth) = with_sim(Step::admit()).await;
    let client = Client2::connect(berth.addr).await;
    let (_response, mut sending) = client.start("/v1/responses", &[]).await;
    sending.send_data(large_body(30_000).into(), false).unwrap();
    // What is reserved tells that berth is reading it.
    let since = Instant::now();
    while berth.metric("berth_memory_reserved_bytes").await == Some(0.0) {
        assert!(since.elapsed() < DEADLINE);
    }
    sending.send_reset(h2::Reason::CANCEL);
    let line = berth.last_audit(1).await;
    assert_eq!(line["outcome"], "client_gone", "{line:#}");
    assert_eq!(sim.log().len(), 0);
    berth
        .metric_becomes("berth_memory_reserved_bytes", 0.0)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_a_streamed_upload_is_seen_upstream_at_once() {
    let (told, seen) = tokio::sync::mpsc::unbounded_channel();
    let upstream = Raw::start(move |mut conn: Conn| {
        let told = told.clone();
        async move {
            let Some(_) = conn.head().await else { return };
            let _ = told.send("begun");
            conn.until_closed().await;
            let _ = told.send("closed");
        }
    })
    .await;
    let mut seen = seen;
    let limits = "limits: {replay_body: 128KiB}\n";
    let berth = Berth::start(&config(&upstream.url(), "a", limits)).await;
    let whole = post("/v1/responses", "", large_body(2 << 20));
    let mut lines = 0;
    for leaving in [Leaving::Close, Leaving::HalfClose, Leaving::Reset] {
        let mut client = berth.connect().await;
        client.send(&whole[..1 << 20]).await;
        assert_eq!(common::within(seen.recv()).await, Some("begun"));
        let since = Instant::now();
        let kept = leave(client, leaving).await;
        assert_eq!(common::within(seen.recv()).await, Some("closed"));
        assert!(since.elapsed() < SOON, "{leaving:?}: {:?}", since.elapsed());
        lines += 1;
        let line = berth.last_audit(lines).await;
        assert_eq!(line["outcome"], "client_gone", "{leaving:?}: {line:#}");
        assert_eq!(story(&line), [("a", "client_gone")]);
        drop(kept);
    }
    assert_eq!(berth.exclusions().await, Vec::<serde_json::Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_next_request_sent_ahead_is_not_a_client_that_left() {
    let slow = Admit {
        first_output_after: Duration::from_millis(200),
        ..Admit::default()
    };
    let (sim, berth) = with_sim(Step::Admit(slow)).await;
    for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
        let told = format!("streams: {first}, {second}");
        sim.reset();
        let mut client = berth.connect().await;
        let one = post("/v1/responses", "x-n: 1\r\n", body("/v1/responses", first));
        let path = "/v1/chat/completions";
        let two = post(path, "x-n: 2\r\n", body(path, second));
        client.send([one, two].concat()).await;
        for n in 1..=2 {
            let answer = client.answer().await;
            assert_eq!(answer.status, 200, "{told}, answer {n}: {answer:?}");
            assert_eq!(answer.ends, Ends::Whole, "{told}, answer {n}");
            let of_chat = answer.text().contains("chat.completion");
            assert_eq!(of_chat, n == 2, "{told}, answer {n}: {answer:?}");
        }
        assert_eq!(sim.log().len(), 2, "{told}");
    }
    for line in berth.audit(8).await {
        assert_eq!(line["outcome"], "ok", "{line:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_next_request_sent_while_an_answer_is_held_is_answered_after_it() {
    let slow = Admit {
        first_output_after: Duration::from_millis(300),
        ..Admit::default()
    };
    let (sim, berth) = with_sim(Step::Admit(slow)).await;
    let mut client = berth.connect().await;
    client.send(responses()).await;
    assert!(sim.until(DEADLINE, |_, stats| playing(stats)).await);
    client.send(responses()).await;
    for n in 1..=2 {
        let answer = client.answer().await;
        assert_eq!(
            (answer.status, answer.ends),
            (200, Ends::Whole),
            "{n}: {answer:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_in_one_segment_are_answered_in_order() {
    let (_sim, berth) = with_sim(Step::admit()).await;
    let mut client = berth.connect().await;
    client.send(responses().repeat(20)).await;
    let mut ids = Vec::new();
    for n in 0..20 {
        let answer = client.answer().await;
        assert_eq!(
            (answer.status, answer.ends),
            (200, Ends::Whole),
            "{n}: {answer:?}"
        );
        ids.push(answer.id().to_owned());
    }
    let lines = berth.audit(20).await;
    let audited: Vec<&str> = lines
        .iter()
        .map(|l| l["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(audited, ids);
}
