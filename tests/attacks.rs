//! What an attacker tried once and got away with: each test is a finding that was mended.

mod common;

use common::upstream::{Conn, Raw, answer};
use common::wire::{Client2, Ends, body, post, responses};
use common::{Berth, config, story};

const STREAM: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\"}}\n\n";

/// An upstream where credential `a` gives one answer and every other a good one.
async fn upstream(status: u16, head: &'static str, body: &'static str) -> Raw {
    Raw::start(move |mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            if heard.credential() == "a" {
                conn.send(answer(status, head, body)).await;
            } else {
                let head = "content-type: text/event-stream\r\n";
                conn.send(answer(200, head, STREAM)).await;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_cannot_be_sent_on_is_answered_and_blames_nobody() {
    let upstream = upstream(200, "content-type: text/event-stream\r\n", STREAM).await;
    let berth = Berth::start(&config(&upstream.url(), "ab", "")).await;
    let mut refused = 0;
    for more in [
        "connection: host, close\r\n",
        "connection: x-a;q=1\r\n",
        "connection: \"\r\n",
        "connection: content-length\r\n",
        "transfer-encoding: gzip, chunked\r\n",
    ] {
        for _ in 0..4 {
            let request = post("/v1/responses", more, body("/v1/responses", true));
            assert_eq!(berth.ask(request).await.status, 400, "{more:?}");
            refused += 1;
        }
    }
    assert_eq!(refused, 20);
    assert_eq!(berth.ask(responses()).await.status, 200);
    assert!(berth.exclusions().await.is_empty());
    assert_eq!(upstream.accepted(), 1, "only the good request went up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_beyond_its_limit_is_told_so() {
    let upstream = upstream(200, "content-type: text/event-stream\r\n", STREAM).await;
    let berth = Berth::start(&config(
        &upstream.url(),
        "ab",
        "limits: { header_bytes: 8KiB }\n",
    ))
    .await;
    let large = format!("x-large: {}\r\n", "x".repeat(9 * 1024));
    let request = post("/v1/responses", &large, body("/v1/responses", true));
    let answer = berth.ask(request).await;
    assert_eq!(answer.status, 431);
    assert!(
        answer.text().contains("limits.header_bytes"),
        "{}",
        answer.text()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_that_a_client_made_the_upstream_repeat_exclude_nothing() {
    let quoting = r#"{"error":{"message":"Unknown parameter: 'model not found'.","type":"invalid_request_error","code":"unknown_parameter"}}"#;
    let upstream = upstream(400, "content-type: application/json\r\n", quoting).await;
    let berth = Berth::start(&config(&upstream.url(), "ab", "")).await;
    let answer = berth.ask(responses()).await;
    assert_eq!((answer.status, answer.text().as_str()), (400, quoting));
    assert!(berth.exclusions().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_in_disguise_is_one() {
    const SSE: &str = "content-type: text/event-stream\r\n";
    const JSON: &str = "content-type: application/json\r\n";
    let disguises = [
        // An event name and a type that disagree.
        (
            SSE,
            "event: error\ndata: {\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}\n\n",
        ),
        // A frame that breaks off.
        (
            SSE,
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"resp",
        ),
        // A terminal event whose response has failed.
        (
            SSE,
            "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_is_overloaded\"},\"output\":[]}}\n\n",
        ),
        // A stream under JSON's name.
        (
            JSON,
            "data: {\"type\":\"error\",\"error\":{\"code\":\"server_is_overloaded\"}}\n\n",
        ),
        // Documents that say it elsewhere than in `error`.
        (JSON, "{\"detail\":{\"code\":\"server_is_overloaded\"}}"),
        (
            JSON,
            "{\"type\":\"error\",\"code\":\"server_is_overloaded\"}",
        ),
        (JSON, "{\"response\":{\"status\":\"failed\"}}"),
        // A document that breaks off, and none at all.
        (JSON, "{\"id\":\"resp_1\",\"outp"),
        ("", ""),
    ];
    for (head, refusal) in disguises {
        let upstream = upstream(200, head, refusal).await;
        let berth = Berth::start(&config(&upstream.url(), "ab", "")).await;
        let answer = berth.ask(responses()).await;
        assert_eq!(answer.text(), STREAM, "{refusal}");
        assert_eq!(answer.ends, Ends::Whole, "{refusal}");
        let line = berth.last_audit(1).await;
        let told = story(&line);
        assert_eq!(told.len(), 2, "{refusal}: {line}");
        assert_eq!(told[1], ("b", "admitted"), "{refusal}");
    }
    assert_eq!(disguises.len(), 9);
}

#[tokio::test]
async fn what_three_say_of_themselves_is_not_told_where_a_fourth_is_free() {
    let upstream = Raw::start(move |mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            let json = "content-type: application/json\r\n";
            match heard.credential() {
                "a" | "b" => {
                    let limited = r#"{"error":{"code":"rate_limit_exceeded","message":"Slow."}}"#;
                    let head = "content-type: application/json\r\nretry-after: 3600\r\n";
                    conn.send(answer(429, head, limited)).await;
                }
                "c" => {
                    let spent = r#"{"error":{"type":"usage_limit_reached","message":"Spent.",
                        "resets_in_seconds":7200}}"#;
                    conn.send(answer(429, json, spent)).await;
                }
                _ => {
                    let head = "content-type: text/event-stream\r\n";
                    conn.send(answer(200, head, STREAM)).await;
                }
            }
        }
    })
    .await;
    for (ids, attempts) in [("abcd", 3), ("ad", 1), ("cd", 1)] {
        let more = format!("admission: {{max_attempts: {attempts}}}\n");
        let berth = Berth::start(&config(&upstream.url(), ids, &more)).await;
        let first = berth.ask(responses()).await;
        let after: u64 = first.header("retry-after").unwrap().parse().unwrap();
        assert!(after <= 30, "{ids}: {first:?}");
        assert!(!first.text().contains("usage_limit_reached"), "{first:?}");
        assert_eq!(berth.ask(responses()).await.status, 200, "{ids}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_headers_than_can_be_sent_on_are_told_so_and_blame_nobody() {
    let upstream = upstream(200, "content-type: text/event-stream\r\n", STREAM).await;
    let berth = Berth::start(&config(&upstream.url(), "a", "")).await;
    let names: Vec<String> = (0..300).map(|n| format!("x-{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).collect();
    let client = Client2::connect(berth.addr).await;
    for _ in 0..12 {
        let answer = client
            .ask("/v1/responses", &many, body("/v1/responses", true))
            .await;
        assert_eq!(answer.status, 431, "{answer:?}");
    }
    assert_eq!(berth.ask(responses()).await.status, 200);
    assert!(berth.exclusions().await.is_empty());
}
