//! Fallback models: asked once, only where they are written down, and the body's `model` is all that
//! changes.

mod common;

use std::time::Duration;

use berth::sim::{Program, Quota, RateLimit, Refuse, Shape, Sim, Step, Then};
use common::fallback::{config, odd_body};
use common::wire::{Ends, post};
use common::{Berth, story};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Credentials `a` and `b` do this with these models, and admit the others.
fn sim(models: &[(&str, Step)]) -> Sim {
    let mut program = Program::default();
    for id in ["a", "b"] {
        let key = format!("sk-{id}");
        program = program.with(&key, id, [], Then::Last);
        for (model, step) in models {
            program = program.for_model(&key, model, [step.clone()], Then::Last);
        }
    }
    Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap()
}

async fn with_sim(full: &[&str], step: Step, more: &str) -> (Sim, Berth) {
    let models: Vec<_> = full.iter().map(|it| (*it, step.clone())).collect();
    let sim = sim(&models);
    let fallbacks = "{gpt-a: [gpt-longer-b, gpt-c]}";
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "ab", fallbacks, more)).await;
    (sim, berth)
}

fn models(line: &Value) -> Vec<&str> {
    let attempts = line["attempts"].as_array().unwrap();
    attempts
        .iter()
        .map(|it| it["model"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_refused_by_everybody_is_replaced_once_and_visibly() {
    for path in ["/v1/responses", "/v1/chat/completions", "/v1/messages"] {
        for stream in [true, false] {
            let (sim, berth) = with_sim(&["gpt-a"], Step::refuse(Shape::Http503), "").await;
            let request = post(path, "", odd_body(path, stream, "gpt-a"));
            let answer = berth.ask(request).await;
            assert_eq!(
                (answer.status, answer.ends),
                (200, Ends::Whole),
                "{answer:?}"
            );
            assert_eq!(
                answer.header("x-berth-model"),
                Some("gpt-longer-b"),
                "{path} {stream}"
            );
            let end = match (path, stream) {
                (_, false) => "Hello from a.",
                ("/v1/responses", _) => "response.completed",
                ("/v1/messages", _) => "message_stop",
                _ => "[DONE]",
            };
            assert!(answer.text().contains(end), "{}", answer.text());

            let log = sim.log();
            let sum = |model| format!("{:x}", Sha256::digest(odd_body(path, stream, model)));
            let sums: Vec<_> = log.iter().map(|it| it.body_sha256.clone()).collect();
            assert_eq!(
                sums,
                [sum("gpt-a"), sum("gpt-a"), sum("gpt-longer-b")],
                "{path} {stream}"
            );

            let line = berth.last_audit(1).await;
            let told = story(&line);
            assert_eq!(
                told,
                [("a", "capacity"), ("b", "capacity"), ("a", "admitted")]
            );
            assert_eq!(models(&line), ["gpt-a", "gpt-a", "gpt-longer-b"]);
            assert_eq!(
                (&line["model"], &line["outcome"]),
                (&json!("gpt-a"), &json!("ok"))
            );
            assert_eq!(line["attempts"][1]["then"], "fall_back");
            let count = r#"berth_failovers_total{reason="fallback_model",route="/v1"}"#;
            berth.metric_becomes(count, 1.0).await;
            let count =
                r#"berth_attempts_total{credential="a",model="gpt-longer-b",verdict="admitted"}"#;
            assert_eq!(berth.metric(count).await, Some(1.0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_anthropic_route_falls_back_too() {
    let sim = sim(&[("gpt-a", Step::refuse(Shape::Sse))]);
    let url = format!("{}/v1", sim.url());
    let text = config(&url, "ab", "{gpt-a: [gpt-longer-b]}", "");
    let text = text.replace("base_url:", "dialect: anthropic, base_url:");
    let berth = Berth::start(&text).await;
    let request = post("/v1/messages", "", odd_body("/v1/messages", true, "gpt-a"));
    let answer = berth.ask(request).await;
    assert_eq!(
        (answer.status, answer.ends),
        (200, Ends::Whole),
        "{answer:?}"
    );
    assert_eq!(answer.header("x-berth-model"), Some("gpt-longer-b"));
    assert!(answer.text().contains("message_stop"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_falls_back_that_was_served_or_is_not_written_down() {
    let (sim, berth) = with_sim(&["gpt-x"], Step::refuse(Shape::Http503), "").await;
    let ask = |model: &str| {
        berth.ask(post(
            "/v1/responses",
            "",
            odd_body("/responses", true, model),
        ))
    };
    for model in ["gpt-a", "gpt-longer-b"] {
        let answer = ask(model).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-berth-model"), None, "{answer:?}");
    }
    assert_eq!(ask("gpt-x").await.status, 503);
    assert!(
        sim.log()
            .iter()
            .skip(2)
            .all(|it| it.model.as_deref() == Some("gpt-x"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_fallback_is_all_and_the_client_is_told_of_its_own_model() {
    let busy = Step::Refuse(Refuse {
        message: Some("own words".into()),
        ..Refuse::default()
    });
    let sim = sim(&[
        ("gpt-a", busy),
        ("gpt-longer-b", Step::Quota(Quota::default())),
    ]);
    let fallbacks = "{gpt-a: [gpt-longer-b, gpt-c], gpt-longer-b: [gpt-d]}";
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "a", fallbacks, "")).await;
    let answer = berth
        .ask(post(
            "/v1/responses",
            "",
            odd_body("/responses", true, "gpt-a"),
        ))
        .await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.header("x-berth-model"), None);
    assert!(answer.header("retry-after").is_some());
    assert!(answer.text().contains("own words"), "{answer:?}");
    let line = berth.last_audit(1).await;
    assert_eq!(story(&line), [("a", "capacity"), ("a", "quota")]);
    assert_eq!(models(&line), ["gpt-a", "gpt-longer-b"]);
    assert_eq!(line["outcome"], "refused_all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_the_fallback_came_to_is_not_told() {
    for step in [Step::ClientError, Step::refuse(Shape::Http503)] {
        let name = step.name();
        let limit = RateLimit {
            retry_after: Some(Duration::from_secs(60)),
        };
        let sim = sim(&[("gpt-a", Step::RateLimit(limit)), ("gpt-b", step)]);
        let url = format!("{}/v1", sim.url());
        let berth = Berth::start(&config(&url, "a", "{gpt-a: [gpt-b]}", "")).await;
        let request = || post("/v1/responses", "", odd_body("/responses", true, "gpt-a"));
        // Its own model has a rate limit, and the second time nobody can be asked for it.
        for (status, asked) in [(429, &["gpt-a", "gpt-b"][..]), (503, &["gpt-b"])] {
            let answer = berth.ask(request()).await;
            assert_eq!(answer.status, status, "{name}: {answer:?}");
            assert!(answer.header("retry-after").is_some(), "{name}: {answer:?}");
            assert_eq!(answer.header("x-berth-model"), None);
            let line = berth.audit_of(answer.id()).await;
            assert_eq!(
                (models(&line), &line["outcome"]),
                (asked.to_vec(), &json!("refused_all"))
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fallbacks_attempts_are_of_the_requests_own_number() {
    for (most, expected) in [
        (1, &["gpt-a"][..]),
        (2, &["gpt-a", "gpt-longer-b"]),
        (3, &["gpt-a", "gpt-a", "gpt-longer-b"]),
        (5, &["gpt-a", "gpt-a", "gpt-longer-b", "gpt-longer-b"]),
    ] {
        let more = format!("admission: {{max_attempts: {most}}}\n");
        let full = ["gpt-a", "gpt-longer-b"];
        let (_sim, berth) = with_sim(&full, Step::refuse(Shape::Http503), &more).await;
        let body = odd_body("/responses", true, "gpt-a");
        let answer = berth.ask(post("/v1/responses", "", body)).await;
        assert_eq!(answer.status, 503);
        assert_eq!(models(&berth.last_audit(1).await), expected, "{most}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_out_of_reach_or_too_small_falls_back() {
    for step in [Step::Reset, Step::ClientError] {
        let name = step.name();
        let sim = sim(&[("gpt-a", step)]);
        let url = format!("{}/v1", sim.url());
        let berth = Berth::start(&config(&url, "a", "{gpt-a: [gpt-longer-b]}", "")).await;
        let body = odd_body("/responses", true, "gpt-a");
        let answer = berth.ask(post("/v1/responses", "", body)).await;
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        let line = berth.last_audit(1).await;
        assert_eq!(models(&line), ["gpt-a", "gpt-longer-b"], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_no_model_has_room_for_gets_its_own_models_word() {
    let refused = Step::refuse(Shape::Http503);
    let sim = sim(&[("gpt-a", Step::ClientError), ("gpt-longer-b", refused)]);
    let url = format!("{}/v1", sim.url());
    let berth = Berth::start(&config(&url, "a", "{gpt-a: [gpt-longer-b]}", "")).await;
    let body = odd_body("/responses", true, "gpt-a");
    let answer = berth.ask(post("/v1/responses", "", body)).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_client_must_change_does_not_fall_back() {
    let sim = sim(&[("gpt-a", Step::Policy)]);
    let url = format!("{}/v1", sim.url());
    let berth = Berth::start(&config(&url, "a", "{gpt-a: [gpt-longer-b]}", "")).await;
    let body = odd_body("/responses", true, "gpt-a");
    let answer = berth.ask(post("/v1/responses", "", body)).await;
    assert_eq!(answer.status, 403, "{answer:?}");
    assert_eq!(models(&berth.last_audit(1).await), ["gpt-a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_spent_or_full_falls_back_without_an_attempt() {
    // A rate limit excludes the pair, so that nobody can be asked for gpt-a.
    let limit = RateLimit {
        retry_after: Some(Duration::from_secs(60)),
    };
    let sim = sim(&[("gpt-a", Step::RateLimit(limit))]);
    let url = format!("{}/v1", sim.url());
    let berth = Berth::start(&config(&url, "a", "{gpt-a: [gpt-longer-b]}", "")).await;
    let request = || post("/v1/responses", "", odd_body("/responses", true, "gpt-a"));
    for (n, expected) in [&["gpt-a", "gpt-longer-b"][..], &["gpt-longer-b"]]
        .into_iter()
        .enumerate()
    {
        let answer = berth.ask(request()).await;
        assert_eq!(
            answer.header("x-berth-model"),
            Some("gpt-longer-b"),
            "{answer:?}"
        );
        assert_eq!(models(&berth.last_audit(n + 1).await), expected);
    }
    berth
        .metric_becomes(
            r#"berth_failovers_total{reason="fallback_model",route="/v1"}"#,
            2.0,
        )
        .await;

    // One session makes this model full, and nobody waits.
    let more = "admission: {full: {sessions: 1}, wait: {max_time: 0s}}\n";
    let (_sim, berth) = with_sim(&["gpt-a"], Step::refuse(Shape::Http503), more).await;
    for expected in [&["gpt-a", "gpt-a", "gpt-longer-b"][..], &["gpt-longer-b"]] {
        let answer = berth.ask(request()).await;
        assert_eq!(
            answer.header("x-berth-model"),
            Some("gpt-longer-b"),
            "{answer:?}"
        );
        assert_eq!(models(&berth.audit_of(answer.id()).await), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fallback_that_cannot_be_served_is_passed_over() {
    let sim = sim(&[("gpt-a", Step::refuse(Shape::Http503))]);
    let url = format!("{}/v1", sim.url());
    let fallbacks = "{gpt-a: [o-b, gpt-c]}";
    let text = config(&url, "ab", fallbacks, "")
        .replace("{env: SK_A}", "{env: SK_A}, models: [\"gpt-*\"]")
        .replace("{env: SK_B}", "{env: SK_B}, models: [\"gpt-*\"]");
    let berth = Berth::start(&text).await;
    let answer = berth
        .ask(post(
            "/v1/responses",
            "",
            odd_body("/responses", true, "gpt-a"),
        ))
        .await;
    assert_eq!(answer.header("x-berth-model"), Some("gpt-c"), "{answer:?}");
    // A model that the route does not have is no reason to fall back.
    assert_eq!(
        berth
            .ask(post(
                "/v1/responses",
                "",
                odd_body("/responses", true, "o-a")
            ))
            .await
            .status,
        404
    );
}
