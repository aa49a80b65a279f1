//! Keys of clients: who is let in, what each may, and that a key goes nowhere.

mod common;

use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use common::upstream::{Conn, LAST_CHUNK, Raw, STREAM_HEAD, answer, chunk};
use common::wire::{Answer, Client2, body, post};
use common::{Berth, until_async, with_upstream, within};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

/// What every test's keys look like: `berth client add` makes such.
fn key(id: &str) -> String {
    let hex: String = Sha256::digest(id)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("berth-{hex}")
}

fn digest(key: &str) -> String {
    Sha256::digest(key)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// A list of clients: names, and more of what is written of them.
fn list(clients: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (id, more) in clients {
        let digest = digest(&key(id));
        writeln!(text, "- {{id: {id}, key_sha256: \"{digest}\"{more}}}").unwrap();
    }
    text
}

fn section(clients: &[(&str, &str)]) -> String {
    format!("clients:\n{}", list(clients))
}

const COMPLETED: &str = r#"{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":7,"output_tokens":5}}"#;
const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":7,"output_tokens":5}}"#;
const DELTA: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n";
const END: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\"}}\n\n";

/// An upstream that answers documents at once, and streams when it is told to end one. It must never
/// hear a key of a client.
async fn upstream(ends: Arc<Semaphore>) -> Raw {
    Raw::start(move |mut conn: Conn| {
        let ends = ends.clone();
        async move {
            while let Some(heard) = conn.request().await {
                let all = format!("{heard:?} {}", String::from_utf8_lossy(&heard.body));
                assert!(!all.contains("berth-"), "a client's key came here: {all}");
                assert_eq!(heard.credential(), "a");
                let json = "content-type: application/json\r\n";
                let done = match heard.target.as_str() {
                    "/v1/messages" => conn.send(answer(200, json, MESSAGE)).await,
                    _ if !all.contains("\"stream\":true") => {
                        conn.send(answer(200, json, COMPLETED)).await
                    }
                    _ => {
                        conn.send(STREAM_HEAD).await;
                        conn.send(chunk(DELTA.as_bytes())).await;
                        ends.acquire().await.unwrap().forget();
                        conn.send(chunk(END.as_bytes())).await;
                        conn.send(LAST_CHUNK).await
                    }
                };
                if !done {
                    return;
                }
            }
        }
    })
    .await
}

/// What a dialect is asked.
#[derive(Clone, Copy, Debug)]
enum Speaks {
    OpenAi,
    Anthropic,
}

impl Speaks {
    const ALL: [Speaks; 2] = [Speaks::OpenAi, Speaks::Anthropic];

    fn config(self, upstream: &Raw, more: &str) -> String {
        let dialect = match self {
            Speaks::OpenAi => "openai",
            Speaks::Anthropic => "anthropic",
        };
        let up = format!("base_url: \"{}\", dialect: {dialect}", upstream.url());
        with_upstream(&up, "a", more)
    }

    fn path(self) -> &'static str {
        match self {
            Speaks::OpenAi => "/v1/responses",
            Speaks::Anthropic => "/v1/messages",
        }
    }

    fn request(self, headers: &str) -> Vec<u8> {
        post(self.path(), headers, body(self.path(), false))
    }

    /// The kind and the message of an error in the dialect's own shape.
    fn error(self, answer: &Answer) -> (String, String) {
        let json = answer.json();
        let error = &json["error"];
        let kind = match self {
            Speaks::OpenAi => {
                assert!(
                    error["type"].is_string() && error["param"].is_null(),
                    "{json}"
                );
                &error["code"]
            }
            Speaks::Anthropic => {
                assert_eq!(json["type"], "error");
                &error["type"]
            }
        };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(kind), text(&error["message"]))
    }
}

fn bearer(id: &str) -> String {
    format!("authorization: Bearer {}\r\n", key(id))
}

async fn start(speaks: Speaks, more: &str) -> (Berth, Raw, Arc<Semaphore>) {
    let ends = Arc::new(Semaphore::new(0));
    let upstream = upstream(ends.clone()).await;
    let berth = Berth::start(&speaks.config(&upstream, more)).await;
    (berth, upstream, ends)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_told_so_and_nobody_is_asked() {
    for speaks in Speaks::ALL {
        let (mut berth, upstream, _) = start(speaks, &section(&[("lab", "")])).await;
        let kind = match speaks {
            Speaks::OpenAi => "invalid_api_key",
            Speaks::Anthropic => "authentication_error",
        };
        let strange = format!("authorization: Bearer {}\r\n", key("nobody"));
        let mixed = format!("{}x-api-key: {}\r\n", bearer("lab"), key("nobody"));
        let twice = format!("{}authorization: Bearer other\r\n", bearer("lab"));
        let asked = [
            ("", "needs a key"),
            ("authorization: Bearer \r\n", "needs a key"),
            ("authorization: Basic bGFi\r\n", "is not `Bearer KEY`"),
            (&strange, "does not know this key"),
            (&mixed, "different keys"),
            (&twice, "different keys"),
        ];
        for (headers, part) in asked {
            let answer = berth.ask(speaks.request(headers)).await;
            assert_eq!(answer.status, 401, "{headers}");
            let (said, message) = speaks.error(&answer);
            assert_eq!(said, kind);
            assert!(message.contains(part), "{message}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        // A large body of a stranger is not waited for.
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: b\r\ncontent-length: 60000000\r\n\r\n",
            speaks.path()
        );
        assert_eq!(berth.ask(head).await.status, 401);
        assert_eq!(upstream.accepted(), 0);
        let count = asked.len() as f64 + 1.0;
        let series = berth.series("berth_client_requests_total").await;
        let only = r#"berth_client_requests_total{client="none",outcome="unauthorized"}"#;
        assert_eq!(series, [(only.to_owned(), count)]);
        assert!(!berth.log().contains("nobody"));
        berth.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_lets_in_by_either_header_and_goes_no_further() {
    for speaks in Speaks::ALL {
        for mode in ["enforce", "observe", "off"] {
            let more = format!("{}admission: {{mode: {mode}}}\n", section(&[("lab", "")]));
            let (mut berth, _upstream, _) = start(speaks, &more).await;
            let both = format!("{}x-api-key: {}\r\n", bearer("lab"), key("lab"));
            let plain = format!("x-api-key: {}\r\n", key("lab"));
            // One connection, and each request proves itself anew.
            let mut client = berth.connect().await;
            for headers in [&bearer("lab"), &plain, &both] {
                client.send(speaks.request(headers)).await;
                assert_eq!(client.answer().await.status, 200, "{mode} {speaks:?}");
            }
            client.send(speaks.request("")).await;
            assert_eq!(client.answer().await.status, 401);
            let http2 = Client2::connect(berth.addr).await;
            let (path, body) = (speaks.path(), body(speaks.path(), false));
            let key = key("lab");
            let served = http2.ask(path, &[("x-api-key", &key)], body.clone()).await;
            assert_eq!(served.status, 200);
            assert_eq!(http2.ask(path, &[], body).await.status, 401);

            let lines = berth.audit(6).await;
            let named = lines.iter().filter(|line| line["client"] == "lab").count();
            assert_eq!(named, 4, "{lines:#?}");
            let tokens =
                berth.metric(r#"berth_tokens_total{client="lab",kind="input",model="gpt-sim"}"#);
            let counted = if mode == "off" { None } else { Some(28.0) };
            assert_eq!(tokens.await, counted, "{mode}");
            let status = berth.status().await;
            let today = if mode == "off" { 0 } else { 48 };
            assert_eq!(status["clients"][0]["tokens_today"], today, "{mode}");
            assert_eq!(status["clients"][0]["requests"], 4);
            let metrics = berth.get("/metrics").await.text();
            let page = berth.get("/").await.text();
            let told = format!("{lines:?} {metrics} {status} {page} {}", berth.log());
            for secret in [&key[6..], &digest(&key)] {
                assert!(!told.contains(secret), "{told}");
            }
            berth.is_well().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_beyond_a_limit_is_told_which_and_when_it_ends() {
    let clients = [
        ("minute", ", requests_per_minute: 1"),
        ("day", ", tokens_per_day: 1_2"),
        ("past", ", expires: 2026-01-31"),
        ("models", ", models: [\"gpt-*\", \"!gpt-sim\"]"),
        ("other", ""),
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
            berth.ask(speaks.request(&bearer("other"))).await.status,
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
    let clients = [("one", ", max_in_flight: 1"), ("other", "")];
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_with_one_name_of_a_session_have_two() {
    let (berth, _upstream, _) = start(Speaks::OpenAi, &section(&[("a", ""), ("b", "")])).await;
    let mut sessions = Vec::new();
    for id in ["a", "b", "a"] {
        let headers = format!("{}session-id: mine\r\n", bearer(id));
        let answer = berth.ask(Speaks::OpenAi.request(&headers)).await;
        sessions.push(berth.audit_of(answer.id()).await["session"].clone());
    }
    assert!(sessions[0].is_string());
    assert_eq!(sessions[0], sessions[2]);
    assert_ne!(sessions[0], sessions[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_changes_while_berth_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clients.yaml");
    std::fs::write(&file, list(&[("first", "")])).unwrap();
    let more = format!("clients_file: {}\n", file.display());
    let (mut berth, _upstream, ends) = start(Speaks::OpenAi, &more).await;
    let status = async |key: &str| {
        let headers = format!("x-api-key: {key}\r\n");
        berth.ask(Speaks::OpenAi.request(&headers)).await.status
    };
    assert_eq!(status(&key("first")).await, 200);

    let added = berth.order(&["client", "add", "second"]).await;
    assert!(added.status.success(), "{added:?}");
    let second = String::from_utf8(added.stdout).unwrap().trim().to_owned();
    let since = Instant::now();
    until_async("the new key works", async || status(&second).await == 200).await;
    eprintln!("a new key worked after {:?}", since.elapsed());

    // A list that is broken changes nothing, and is complained of in log and status.
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}- {{id: third}}\n")).unwrap();
    until_async("the status says it", async || {
        let status = berth.status().await;
        let mut warnings = status["warnings"].as_array().unwrap().iter();
        warnings.any(|it| {
            it.as_str()
                .unwrap()
                .contains("clients.yaml:6:3: `key_sha256` is missing")
        })
    })
    .await;
    assert!(
        berth.log().contains("the clients from before stay"),
        "{}",
        berth.log()
    );
    assert_eq!(
        (status(&key("first")).await, status(&second).await),
        (200, 200)
    );
    std::fs::write(&file, good).unwrap();

    // What runs when its key is taken away goes on to its end.
    let mut running = berth.connect().await;
    let headers = format!("x-api-key: {second}\r\n");
    running
        .send(post("/v1/responses", &headers, body("/v1/responses", true)))
        .await;
    until_async("it is in flight", async || {
        let status = berth.status().await;
        let mut clients = status["clients"].as_array().unwrap().iter();
        clients.any(|it| it["id"] == "second" && it["in_flight"] == 1)
    })
    .await;
    let revoked = berth.order(&["client", "revoke", "second"]).await;
    assert!(revoked.status.success(), "{revoked:?}");
    until_async("the key works no more", async || {
        status(&second).await == 401
    })
    .await;
    ends.add_permits(1);
    assert!(running.answer().await.text().contains("response.completed"));
    assert_eq!(status(&key("first")).await, 200);
    let listed = berth.order(&["client", "list"]).await;
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("first") && !listed.contains("second"),
        "{listed}"
    );
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_do_not_fill_the_disk() {
    let (berth, _upstream, _) = start(Speaks::OpenAi, &section(&[("lab", "")])).await;
    let since = Instant::now();
    let mut client = berth.connect().await;
    // Without a body the connection goes on.
    let get = "GET /v1/models HTTP/1.1\r\nhost: b\r\n\r\n";
    for _ in 0..300 {
        client.send(get).await;
        assert_eq!(client.answer().await.status, 401);
    }
    let took = since.elapsed().as_secs() as usize;
    let answer = berth.ask(Speaks::OpenAi.request(&bearer("lab"))).await;
    berth.audit_of(answer.id()).await;
    let lines = berth.audit(1).await.len();
    assert!(lines <= 10 * (took + 1) + 1, "{lines} lines in {took} s");
    let all = r#"berth_client_requests_total{client="none",outcome="unauthorized"}"#;
    assert_eq!(berth.metric(all).await, Some(300.0));
}
