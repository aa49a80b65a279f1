//! `observe` and `off`: berth is on the wire and out of the way. What the upstream says is what the
//! client gets; only the credential is exchanged, and `observe` tells what it would have called it.

mod common;

use berth::sim::{Program, Shape, Sim, Step, Then};
use common::upstream::{Conn, Heard, LAST_CHUNK, Raw, answer, chunk};
use common::wire::{Answer, Client2, Ends, body, large_body, post, responses};
use common::{Berth, config, free_port, story};

const MODES: [&str; 2] = ["observe", "off"];

fn mode(mode: &str) -> String {
    format!("admission: {{mode: {mode}}}\n")
}

/// Answers by name, as bytes after the head's first line.
fn plays() -> Vec<(&'static str, Vec<u8>)> {
    let mut chunks = b"HTTP/1.1 200 OK\r\nx-up: 1\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in [
        ": hello\n\n",
        "data: {\"type\":\"x\"}\r\n\r\n",
        "data: half a fra",
    ] {
        chunks.extend(chunk(piece.as_bytes()));
    }
    chunks.extend_from_slice(LAST_CHUNK);
    let overloaded = r#"{"error":{"message":"m","code":"server_is_overloaded"}}"#;
    let refusal = format!(
        "event: response.created\ndata: {{\"type\":\"response.created\"}}\n\n\
         event: response.failed\ndata: {{\"type\":\"response.failed\",\"response\":{overloaded}}}\n\n"
    );
    let json = "content-type: application/json\r\n";
    let odd = "content-type: application/json\r\nETag: \"x\"\r\nx-request-id: req_1\r\n\
               x-codex-turn-state: t\r\nopenai-model: m\r\nretry-after: 7\r\nx-twice: 1\r\nx-twice: 2\r\n";
    vec![
        ("a stream that is no stream", chunks),
        ("503", answer(503, json, overloaded)),
        ("429", answer(429, odd, overloaded)),
        (
            "400",
            answer(
                400,
                json,
                r#"{"error":{"message":"Selected model is at capacity. Please try a different model."}}"#,
            ),
        ),
        ("a refusal in a stream", answer(200, "", refusal)),
        (
            "a failed document",
            answer(
                200,
                odd,
                r#"{"status":"failed","error":{"code":"server_is_overloaded"}}"#,
            ),
        ),
        (
            "a page",
            answer(200, "content-type: text/html\r\n", "<html>\u{fffd}"),
        ),
        (
            "bytes",
            answer(
                200,
                "content-type: audio/mpeg\r\n",
                (0..=255u8).collect::<Vec<_>>(),
            ),
        ),
        (
            "a coding",
            answer(200, "content-encoding: x-test\r\n", [0u8, 1, 2, 255]),
        ),
        ("nothing", answer(200, json, "")),
        ("204", b"HTTP/1.1 204 X\r\nx-up: 1\r\n\r\n".to_vec()),
    ]
}

async fn player() -> Raw {
    Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            let wanted = heard.header("x-play").unwrap();
            let play = plays().into_iter().find(|(name, _)| *name == wanted);
            conn.send(play.unwrap().1).await;
        }
    })
    .await
}

/// What the client may see that the upstream did not say, or not so.
const DOCUMENTED: [&str; 5] = [
    "x-berth-request-id",
    "date",
    "connection",
    "transfer-encoding",
    "content-length",
];

fn comparable(answer: &Answer) -> Vec<(String, String)> {
    let mut headers = answer.headers.clone();
    headers.retain(|(name, _)| !DOCUMENTED.contains(&name.as_str()));
    headers.sort();
    headers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_the_upstreams_byte_for_byte() {
    let upstream = player().await;
    for mode_name in MODES {
        let mut berth = Berth::start(&config(&upstream.url(), "a", &mode(mode_name))).await;
        let mut count = 0;
        for (name, _) in plays() {
            let request = |more: &str| {
                let more = format!("x-play: {name}\r\n{more}");
                post("/v1/responses", &more, body("/v1/responses", true))
            };
            let mut direct = common::wire::Client::connect(upstream.addr).await;
            direct.send(request("authorization: Bearer sk-a\r\n")).await;
            let expected = direct.answer().await;
            let got = berth.ask(request("")).await;
            let told = format!("{mode_name}, {name}");
            assert_eq!(got.status, expected.status, "{told}");
            assert_eq!(got.body, expected.body, "{told}");
            assert_eq!(got.ends, expected.ends, "{told}");
            assert_eq!(comparable(&got), comparable(&expected), "{told}");
            if got.status != 204 && expected.header("content-length").is_some() {
                assert_eq!(
                    got.header("content-length"),
                    expected.header("content-length"),
                    "{told}"
                );
            }
            assert!(got.header("x-berth-request-id").is_some(), "{told}");

            let client = Client2::connect(berth.addr).await;
            let over2 = client
                .ask(
                    "/v1/responses",
                    &[("x-play", name)],
                    body("/v1/responses", true),
                )
                .await;
            assert_eq!(over2.status, expected.status, "{told}, HTTP/2");
            assert_eq!(over2.body, expected.body, "{told}, HTTP/2");
            assert_eq!(over2.ends, Ends::Whole, "{told}, HTTP/2");
            assert_eq!(comparable(&over2), comparable(&expected), "{told}, HTTP/2");
            count += 1;
        }
        assert_eq!(count, 11);
        berth.is_well().await;
    }
}

async fn refusing() -> Sim {
    let program = Program::default()
        .with("sk-a", "a", [Step::refuse(Shape::Sse)], Then::Last)
        .with("sk-b", "b", [], Then::Last);
    Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shape_of_refusal_passes_unchanged_and_is_told_in_observe() {
    let sim = refusing().await;
    let url = format!("{}/v1", sim.url());
    let observe = Berth::start(&config(&url, "ab", &mode("observe"))).await;
    let off = Berth::start(&config(&url, "ab", &mode("off"))).await;
    let mut lines = 0;
    for (name, shape) in Shape::ALL {
        let program = Program::default()
            .with("sk-a", "a", [Step::refuse(shape)], Then::Last)
            .with("sk-b", "b", [], Then::Last);
        sim.set_program(program).unwrap();
        lines += 1;
        for berth in [&observe, &off] {
            let answer = berth.ask(responses()).await;
            let text = answer.text();
            let said = [
                "server_is_overloaded",
                "at capacity",
                "overloaded_error",
                "model_at_capacity",
            ];
            assert!(said.iter().any(|s| text.contains(s)), "{name}: {answer:?}");
            assert!(!text.contains("\"server_error\""), "{name}: {answer:?}");
            assert!(!text.contains("Hello from b."), "{name}: {answer:?}");
        }
        let line = observe.last_audit(lines).await;
        let attempts = line["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 1, "{name}: {line:#}");
        assert_eq!(attempts[0]["credential"], "a", "{name}");
        assert_eq!(attempts[0]["verdict"], "capacity", "{name}: {line:#}");
        assert!(attempts[0]["shape"].is_string(), "{name}: {line:#}");
        assert_eq!(line["rewrote"], serde_json::Value::Null);
    }
    assert_eq!(lines, 9);
    let refusals = observe.series("berth_refusals_total").await;
    let counted: f64 = refusals.iter().map(|(_, value)| value).sum();
    assert_eq!(counted, 9.0, "{refusals:?}");
    assert_eq!(
        sim.stats().credentials.get("b").map_or(0, |b| b.requests),
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_pass_both_ways() {
    let upstream = Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            conn.send(answer(
                200,
                "content-type: application/octet-stream\r\n",
                heard.body,
            ))
            .await;
        }
    })
    .await;
    let large = large_body(5 << 20);
    for mode_name in MODES {
        let mut berth = Berth::start(&config(&upstream.url(), "a", &mode(mode_name))).await;
        let mut chunks =
            b"POST /v1/responses HTTP/1.1\r\nhost: b\r\ntransfer-encoding: chunked\r\n\r\n"
                .to_vec();
        for piece in large.chunks(10_000) {
            chunks.extend(chunk(piece));
        }
        chunks.extend_from_slice(LAST_CHUNK);
        for (framing, request) in [
            ("length", post("/v1/responses", "", &large)),
            ("chunks", chunks),
        ] {
            let mut client = berth.connect().await;
            let (mut reading, mut writing) = client.stream.split();
            let mut got = Vec::new();
            // Both at once: whoever sends all before it reads would wait for itself.
            let exchange = async {
                let sending = async {
                    tokio::io::AsyncWriteExt::write_all(&mut writing, &request)
                        .await
                        .unwrap();
                };
                let receiving = async {
                    while !got.ends_with(br#""}"#) {
                        let read = tokio::io::AsyncReadExt::read_buf(&mut reading, &mut got);
                        if read.await.unwrap() == 0 {
                            break;
                        }
                    }
                };
                tokio::join!(sending, receiving);
            };
            common::within(exchange).await;
            let at = memchr::memmem::find(&got, b"\r\n\r\n").unwrap() + 4;
            assert_eq!(got.len() - at, large.len(), "{mode_name}, {framing}");
            assert!(
                got[at..] == large[..],
                "{mode_name}, {framing}: other bytes"
            );
        }
        let client = Client2::connect(berth.addr).await;
        let (response, mut sending) = client.start("/v1/responses", &[]).await;
        let body = large.clone();
        let upload = tokio::spawn(async move {
            for piece in body.chunks(50_000) {
                sending.reserve_capacity(piece.len());
                let mut piece = bytes::Bytes::copy_from_slice(piece);
                while !piece.is_empty() {
                    let room = std::future::poll_fn(|cx| sending.poll_capacity(cx)).await;
                    let Some(Ok(room)) = room else { return };
                    let part = piece.split_to(room.min(piece.len()));
                    sending.send_data(part, false).unwrap();
                }
            }
            sending.send_data(bytes::Bytes::new(), true).unwrap();
        });
        let got = common::within(common::wire::collect(response)).await;
        upload.await.unwrap();
        assert_eq!(got.ends, Ends::Whole, "{mode_name}");
        assert!(got.body == large, "{mode_name}: {} bytes", got.body.len());
        berth.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_credential_is_exchanged_and_no_secret_of_the_client_goes_up() {
    let secrets = "authorization: Bearer client-secret\r\nx-api-key: client-secret\r\n\
        api-key: client-secret\r\ncookie: s=client-secret\r\nproxy-authorization: Basic client-secret\r\n\
        openai-organization: client-secret\r\nopenai-project: client-secret\r\n\
        chatgpt-account-id: client-secret\r\nx-forwarded-for: client-secret\r\n\
        forwarded: for=client-secret\r\nx-goog-api-key: client-secret\r\nx-hop: client-secret\r\n\
        connection: keep-alive, x-hop\r\nx-kept: yes\r\n";
    for mode_name in ["enforce", "observe", "off"] {
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel::<Heard>();
        let upstream = Raw::start(move |mut conn: Conn| {
            let told = told.clone();
            async move {
                while let Some(heard) = conn.request().await {
                    told.send(heard).unwrap();
                    conn.send(answer(
                        200,
                        "content-type: application/json\r\nset-cookie: a=b\r\n",
                        "{}",
                    ))
                    .await;
                }
            }
        })
        .await;
        let berth = Berth::start(&config(&upstream.url(), "a", &mode(mode_name))).await;
        let path = "/v1/responses?key=client-secret&a=1&%6bey=client-secret";
        let answer = berth
            .ask(post(path, secrets, body("/v1/responses", false)))
            .await;
        assert_eq!(answer.status, 200, "{mode_name}: {answer:?}");
        assert_eq!(answer.header("set-cookie"), None, "{mode_name}");
        let heard = heard.recv().await.unwrap();
        assert_eq!(
            heard.header("authorization"),
            Some("Bearer sk-a"),
            "{mode_name}"
        );
        assert_eq!(heard.header("x-kept"), Some("yes"), "{mode_name}");
        assert_eq!(heard.target, "/v1/responses?a=1", "{mode_name}");
        assert_eq!(
            heard.header("host"),
            Some(upstream.addr.to_string().as_str())
        );
        let all = format!("{heard:?}");
        assert!(!all.contains("client-secret"), "{mode_name}: {all}");
        let audit = berth.audit(1).await[0].to_string();
        assert!(!audit.contains("client-secret"), "{mode_name}: {audit}");
        assert!(!audit.contains("sk-a"), "{mode_name}: {audit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_cannot_be_reached_is_said_in_the_dialects_shape() {
    for mode_name in MODES {
        let url = format!("http://{}/v1", free_port());
        let mut berth = Berth::start(&config(&url, "a", &mode(mode_name))).await;
        let answer = berth.ask(responses()).await;
        assert_eq!(
            (answer.status, answer.ends),
            (503, Ends::Whole),
            "{answer:?}"
        );
        assert_eq!(answer.json()["error"]["code"], "server_error", "{answer:?}");
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        assert!(answer.header("x-berth-request-id").is_some(), "{answer:?}");
        assert_eq!(story(&berth.last_audit(1).await), [("a", "transport")]);
        berth.is_well().await;
    }
}
