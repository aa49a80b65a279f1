//! What a client may: each limit, what is said beyond it, and that it outlives the process.

mod common;

use std::process::Stdio;
use std::sync::Arc;

use common::keys::{Speaks, bearer, key, section, start, upstream};
use common::wire::{Client2, body, post};
use common::{Berth, until_async, within};
use tokio::sync::Semaphore;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_beyond_a_limit_is_told_which_and_when_it_ends() {
    let clients = [
        ("minute", ", requests_per_minute: 1"),
        ("day", ", tokens_per_day: 1_2"),
        ("past", ", expires: 2026-01-31"),
        ("models", ", models: [\"gpt-*\", \"!gpt-sim\"]"),
        ("neighbour", ""),
    ];
    for speaks in Speaks::ALL {
        let (mut berth, upstream, _) = start(speaks, &section(&clients)).await;
        let shape = match speaks {
            Speaks::OpenAi => [
                "rate_limit_exceeded",
                "insufficient_quota",
                "invalid_api_key",
                "model_not_found",
            ],
            Speaks::Anthropic => [
                "rate_limit_error",
                "rate_limit_error",
                "authentication_error",
                "not_found_error",
            ],
        };
        for id in ["minute", "day"] {
            let first = berth.ask(speaks.request(&bearer(id))).await;
            assert_eq!(first.status, 200, "{first:?}");
            // It is counted before it is written down.
            berth.audit_of(first.id()).await;
        }
        let asked = upstream.accepted();
        for (id, kind, status, parts, outcome) in [
            (
                "minute",
                shape[0],
                429,
                ["client minute", "(requests_per_minute)"],
                "limited",
            ),
            (
                "day",
                shape[1],
                429,
                ["12 tokens of today", "ends at 00:00 UTC"],
                "limited",
            ),
            (
                "past",
                shape[2],
                401,
                ["client past", "last day was 2026-01-31"],
                "unauthorized",
            ),
            (
                "models",
                shape[3],
                404,
                ["client models", "(models)"],
                "client_error",
            ),
        ] {
            let refused = berth.ask(speaks.request(&bearer(id))).await;
            assert_eq!(refused.status, status, "{refused:?}");
            let (said, message) = speaks.error(&refused);
            assert_eq!(said, kind);
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
            let after: Option<u64> = refused.header("retry-after").map(|it| it.parse().unwrap());
            match id {
                "minute" => assert!((55..=61).contains(&after.unwrap()), "{after:?}"),
                "day" => assert!((1..=86_400).contains(&after.unwrap()), "{after:?}"),
                _ => assert_eq!(after, None),
            }
            let line = berth.audit_of(refused.id()).await;
            assert_eq!(
                (&line["client"], &line["outcome"]),
                (&id.into(), &outcome.into())
            );
            assert_eq!(line["attempts"].as_array().unwrap().len(), 0);
        }
        // A client's limit is nobody else's.
        assert_eq!(
            berth.ask(speaks.request(&bearer("neighbour"))).await.status,
            200
        );
        assert!(upstream.accepted() <= asked + 1);
        berth.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_models_has_no_way_around() {
    let clients = [("some", ", models: [gpt-sim]")];
    for mode in ["enforce", "observe"] {
        let more = format!("{}admission: {{mode: {mode}}}\n", section(&clients));
        let (berth, _upstream, _) = start(Speaks::OpenAi, &more).await;
        let ask = async |body: &str| {
            berth
                .ask(post("/v1/responses", &bearer("some"), body))
                .await
                .status
        };
        assert_eq!(ask(r#"{"model":"gpt-sim","input":"hi"}"#).await, 200);
        // Whoever reads of two the last, whoever gives up where it nests too deeply, whoever guesses.
        let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let deep = format!(r#"{{"model":"gpt-sim","x":{nested},"model":"gpt-other"}}"#);
        for body in [
            r#"{"model":"gpt-other","input":"hi"}"#,
            r#"{"model":"gpt-sim","input":"hi","model":"gpt-other"}"#,
            r#"{"model":["gpt-other"],"input":"hi"}"#,
            r#"{"input":"hi"}"#,
            r#"{"model":"gpt-sim","#,
            "",
            &deep,
        ] {
            assert_eq!(ask(body).await, 404, "{mode} {body}");
        }
        let get = format!(
            "GET /v1/models HTTP/1.1\r\nhost: b\r\n{}\r\n",
            bearer("some")
        );
        assert_eq!(berth.ask(get).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_in_flight_until_its_answer_has_ended() {
    let clients = [("one", ", max_in_flight: 1"), ("neighbour", "")];
    let (mut berth, _upstream, ends) = start(Speaks::OpenAi, &section(&clients)).await;
    let stream = post("/v1/responses", &bearer("one"), body("/v1/responses", true));
    let mut running = berth.connect().await;
    running.send(&stream).await;
    until_async("it is in flight", async || {
        berth.status().await["clients"][0]["in_flight"] == 1
    })
    .await;
    let http2 = Client2::connect(berth.addr).await;
    let key = key("one");
    let refused = http2
        .ask(
            "/v1/responses",
            &[("x-api-key", &key)],
            body("/v1/responses", true),
        )
        .await;
    assert_eq!(refused.status, 429, "{refused:?}");
    let (_, message) = Speaks::OpenAi.error(&refused);
    assert!(message.contains("(max_in_flight)"), "{message}");
    assert!(refused.header("retry-after").is_some());
    ends.add_permits(1);
    assert!(running.answer().await.text().contains("response.completed"));
    until_async("it is in flight no more", async || {
        berth.status().await["clients"][0]["in_flight"] == 0
    })
    .await;
    // A client that leaves gives its place back too.
    let mut leaves = berth.connect().await;
    leaves.send(&stream).await;
    until_async("it is in flight", async || {
        berth.status().await["clients"][0]["in_flight"] == 1
    })
    .await;
    drop(leaves);
    until_async("it is in flight no more", async || {
        berth.status().await["clients"][0]["in_flight"] == 0
    })
    .await;
    berth.is_well().await;
}

/// With a folder for what is to outlive the process.
const KEEPS: &str =
    "mkdir -p $RUNTIME_DIRECTORY/state; STATE_DIRECTORY=$RUNTIME_DIRECTORY/state exec \"$@\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_day_outlive_reloads_and_restarts() {
    let ends = Arc::new(Semaphore::new(0));
    let upstream = upstream(ends.clone()).await;
    let more = section(&[("lab", ", tokens_per_day: 1000, max_in_flight: 1")]);
    let config = Speaks::OpenAi.config(&upstream, &more);
    let mut berth = Berth::start_by(KEEPS, Stdio::null(), &config).await;
    let tokens = async |berth: &Berth, count: u64| {
        until_async("tokens are known", async || {
            berth.status().await["clients"][0]["tokens_today"] == count
        })
        .await;
    };
    let request = Speaks::OpenAi.request(&bearer("lab"));
    assert_eq!(berth.ask(&request).await.status, 200);
    tokens(&berth, 12).await;
    // A stream goes on in the old process, which counts as in flight in the new one.
    let mut running = berth.connect().await;
    running
        .send(post(
            "/v1/responses",
            &bearer("lab"),
            body("/v1/responses", true),
        ))
        .await;
    until_async("it is in flight", async || {
        berth.status().await["clients"][0]["in_flight"] == 1
    })
    .await;
    let first = berth.serving();
    assert_ne!(berth.reload().await, first);
    tokens(&berth, 12).await;
    assert_eq!(berth.ask(&request).await.status, 429);
    ends.add_permits(1);
    assert!(
        within(running.answer())
            .await
            .text()
            .contains("response.completed")
    );
    until_async("the place is free", async || {
        berth.ask(&request).await.status == 200
    })
    .await;
    tokens(&berth, 24).await;
    berth.restart_by(KEEPS).await;
    tokens(&berth, 24).await;
    let state = berth.folder().join("state/client-tokens.json");
    let kept = std::fs::read_to_string(state).unwrap();
    assert!(kept.contains(r#""tokens":[["lab",24]]"#), "{kept}");
    berth.is_well().await;
}
