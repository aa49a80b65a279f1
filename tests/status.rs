//! `berth status` and the page through the front door: what a running berth tells of what it met.

mod common;

use std::process::Command;

use common::upstream::{Conn, Raw, answer};
use common::wire::responses;
use common::{Berth, TOKEN, config};
use serde_json::{Value, json};

const JSON: &str = "content-type: application/json\r\n";

/// `a` has no seat; `b` answers, and says what is left of its allowance.
async fn upstream() -> Raw {
    Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            let bytes = match heard.credential() {
                "a" => answer(
                    503,
                    "content-type: application/json\r\nx-codex-primary-used-percent: 97\r\n",
                    r#"{"error":{"code":"server_is_overloaded","message":"m"}}"#,
                ),
                _ => answer(
                    200,
                    &format!(
                        "{JSON}x-codex-primary-used-percent: 42.25\r\n\
                         x-codex-primary-window-minutes: 300\r\n\
                         x-codex-primary-reset-after-seconds: 3600\r\n\
                         x-codex-secondary-used-percent: sk-not-a-number\r\n\
                         x-ratelimit-remaining-tokens: 7\r\n"
                    ),
                    r#"{"id":"r","status":"completed","output":[{"type":"message"}]}"#,
                ),
            };
            if !conn.send(bytes).await {
                return;
            }
        }
    })
    .await
}

async fn met() -> (Berth, Raw) {
    let upstream = upstream().await;
    let berth = Berth::start(&config(&upstream.url(), "ab", "")).await;
    let answer = berth.ask(responses()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    berth.last_audit(1).await;
    (berth, upstream)
}

fn credential<'s>(status: &'s Value, id: &str) -> &'s Value {
    let credentials = status["credentials"].as_array().unwrap();
    credentials.iter().find(|it| it["id"] == id).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_and_what_is_left_of_an_allowance_are_told() {
    let (berth, _upstream) = met().await;
    let status = berth.status().await;

    let mut refusal = status["refusals"][0].clone();
    let at = refusal["at"].take();
    assert!(humantime::parse_rfc3339(at.as_str().unwrap()).is_ok());
    assert!(
        refusal["request_id"]
            .take()
            .as_str()
            .unwrap()
            .starts_with("br-")
    );
    let pairs = status["pairs"].as_array().unwrap();
    let pair = pairs.iter().find(|it| it["refused"]["15m"] == 1).unwrap();
    let model = &pair["model"];
    let expected = json!({
        "at": null, "request_id": null, "credential": "a", "model": model, "verdict": "capacity",
        "shape": "http_503", "code": "server_is_overloaded", "then": "fail_over", "next": "b",
        "outcome": "ok",
    });
    assert_eq!(refusal, expected);
    assert_eq!(status["refusals"].as_array().unwrap().len(), 1);

    let meters = credential(&status, "b")["allowance"].as_array().unwrap();
    let told = |it: &Value| {
        let resets = it["resets_in_s"].as_u64();
        assert!(resets.is_none_or(|secs| (3_500..=3_600).contains(&secs)));
        (
            it["meter"].clone(),
            it["used_percent"].clone(),
            it["remaining"].clone(),
        )
    };
    let told: Vec<_> = meters.iter().map(told).collect();
    let expected = [
        (json!("codex_primary"), json!(42.3), Value::Null),
        (json!("tokens"), Value::Null, json!(7)),
    ];
    assert_eq!(told, expected);
    // Information only: what is nearly used up is asked all the same.
    let a = credential(&status, "a");
    assert_eq!(a["allowance"][0]["used_percent"], 97.0);
    assert_eq!(a["state"], "ready");
    assert!(!status.to_string().contains("sk-"), "{status:#}");

    let series = &pair["series"]["15m"];
    assert_eq!(series["piece_s"], 60);
    let refused = series["refused"].as_array().unwrap();
    assert_eq!(refused.iter().filter_map(Value::as_u64).sum::<u64>(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_tells_the_same_as_a_table_and_as_json() {
    let (berth, _upstream) = met().await;
    let shown = berth.command(&["status"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.status.success(),
        "{}",
        String::from_utf8_lossy(&shown.stderr)
    );
    let row = |id: &str| {
        let line = text.lines().find(|line| line.starts_with(id));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(text.starts_with("berth "), "{text}");
    assert_eq!(
        row("a ")[2..],
        ["ready", "0", "1/0", "1/0", "1/0"],
        "{text}"
    );
    assert_eq!(
        row("b ")[2..],
        ["ready", "0", "0/1", "0/1", "0/1"],
        "{text}"
    );

    let shown = berth.command(&["status", "--json"]);
    let json: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(json["refusals"], berth.status().await["refusals"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_berth_is_asked_by_its_configuration_without_a_token_and_by_its_url_with_one() {
    let (berth, _upstream) = met().await;
    let file = berth.folder().join("berth.yaml");
    let ask = |arguments: &[&str], token: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command
            .arg("status")
            .args(arguments)
            .env("RUNTIME_DIRECTORY", berth.folder())
            .env_remove("ADMIN_TOKEN");
        command.env_remove("BERTH_ADMIN_TOKEN");
        command.envs(token.map(|token| ("BERTH_ADMIN_TOKEN", token)));
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    let (code, told) = ask(&["-c", file.to_str().unwrap()], None);
    assert!(code == Some(0) && told.contains("\na "), "{told}");
    let url = format!("http://{}/", berth.admin);
    let (code, told) = ask(&["--admin", &url], Some(TOKEN));
    assert!(code == Some(0) && told.contains("\na "), "{told}");
    let clients = format!("http://{}/", berth.addr);
    for (url, token, expected) in [
        (&url, None, "put it into BERTH_ADMIN_TOKEN"),
        (&url, Some("wrong"), "does not accept this token"),
        (&clients, Some(TOKEN), "is no admin port"),
    ] {
        let (code, told) = ask(&["--admin", url], token);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains(expected), "{told}");
    }
}
