//! What clients may send: sizes, memory, paths, methods and versions, and that the answer to what they
//! may not send can be read.

mod common;

use std::time::Duration;

use berth::sim::{Program, Shape, Sim, Step, Then};
use common::upstream::{Conn, Raw, answer};
use common::wire::{Answer, Ends, body, large_body, post, read_answer, responses};
use common::{ADMISSION, Berth, DEADLINE, config, credentials, free_port, story, within};
use serde_json::json;
use sha2::{Digest, Sha256};

async fn sim_with(first: Step) -> Sim {
    let program = Program::default()
        .with("sk-a", "a", [first], Then::Last)
        .with("sk-b", "b", [], Then::Last);
    Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap()
}

async fn with_sim(first: Step, more: &str) -> (Sim, Berth) {
    let sim = sim_with(first).await;
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "ab", more)).await;
    (sim, berth)
}

/// The same bytes, in chunks.
fn chunked(path: &str, more: &str, body: &[u8], size: usize) -> Vec<u8> {
    let mut request =
        format!("POST {path} HTTP/1.1\r\nhost: berth\r\n{more}transfer-encoding: chunked\r\n\r\n")
            .into_bytes();
    for piece in body.chunks(size) {
        request.extend(common::upstream::chunk(piece));
    }
    request.extend_from_slice(common::upstream::LAST_CHUNK);
    request
}

fn is_413(answer: &Answer, anthropic: bool) {
    assert_eq!(answer.status, 413, "{answer:?}");
    assert_eq!(answer.ends, Ends::Whole, "{answer:?}");
    assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
    assert_eq!(answer.header("retry-after"), None);
    let error = answer.json();
    if anthropic {
        assert_eq!(error["type"], "error");
        assert_eq!(error["error"]["type"], "request_too_large");
    } else {
        assert_eq!(error["error"]["code"], "request_too_large");
        assert_eq!(error["error"]["type"], "invalid_request_error");
    }
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("limits.request_body"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_gets_a_413_in_the_dialects_shape() {
    let sim = sim_with(Step::admit()).await;
    let url = format!("{}/v1", sim.url());
    let mut berth = Berth::start(&format!(
        "upstreams:\n  up: {{base_url: \"{url}\"}}\n  \
         anthropic: {{base_url: \"{url}\", dialect: anthropic}}\n\
         {}{}routes:\n- {{path_prefix: /v1, credentials: [a]}}\n\
         - {{path_prefix: /anthropic/v1, credentials: [b]}}\n\
         {ADMISSION}limits: {{request_body: 1MiB}}\n",
        credentials("up", "a"),
        credentials("anthropic", "b").replace("credentials:\n", ""),
    ))
    .await;
    let large = large_body(3 << 20);
    for (path, anthropic) in [("/v1/responses", false), ("/anthropic/v1/messages", true)] {
        for request in [
            post(path, "", &large),
            chunked(path, "", &large, 16 << 10),
            chunked(path, "", &large, 3 << 20),
        ] {
            // Still uploading: the writing half goes on by itself, as in a client with two threads.
            let mut client = berth.connect().await;
            let (reading, mut writing) = client.stream.split();
            let sending = async {
                let sent = tokio::io::AsyncWriteExt::write_all(&mut writing, &request).await;
                // berth may close while more is coming; what counts is that the answer is read.
                let _ = sent;
                std::future::pending::<()>().await;
            };
            let answer = within(async {
                tokio::select! {
                    answer = read_answer(reading) => answer,
                    () = sending => unreachable!(),
                }
            })
            .await;
            is_413(&answer, anthropic);
        }
    }
    assert_eq!(sim.log().len(), 0, "nothing of it went upstream");
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_will_be_too_large_is_not_asked_for() {
    let (sim, berth) = with_sim(Step::admit(), "limits: {request_body: 1MiB}\n").await;
    let mut client = berth.connect().await;
    client
        .send(
            "POST /v1/responses HTTP/1.1\r\nhost: berth\r\nexpect: 100-continue\r\n\
             content-length: 2000000\r\n\r\n",
        )
        .await;
    let answer = client.answer().await;
    is_413(&answer, false);
    assert_eq!(answer.informational, Vec::<u16>::new());
    assert_eq!(sim.log().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_is_answered_here() {
    let (sim, berth) = with_sim(Step::admit(), "").await;
    for value in ["100-continue", "100-Continue"] {
        let mut client = berth.connect().await;
        let body = body("/v1/responses", true);
        let head = format!(
            "POST /v1/responses HTTP/1.1\r\nhost: berth\r\nexpect: {value}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.send(head).await;
        client.wait_for("HTTP/1.1 100").await;
        client.send(body).await;
        let answer = client.answer().await;
        assert_eq!(answer.informational, [100]);
        assert_eq!((answer.status, answer.ends), (200, Ends::Whole));
    }
    for record in sim.log() {
        assert!(record.headers.iter().all(|(name, _)| name != "expect"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_above_replay_body_is_streamed_with_one_attempt() {
    let limits = "limits: {replay_body: 128KiB}\n";
    let (sim, berth) = with_sim(Step::refuse(Shape::Sse), limits).await;
    let large = large_body(1 << 20);
    let sum = format!("{:x}", Sha256::digest(&large));
    let requests = [
        post("/v1/responses", "", &large),
        chunked("/v1/responses", "", &large, 10_000),
    ];
    for (n, request) in requests.iter().enumerate() {
        let answer = berth.ask(request).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.header("retry-after").is_some());
        let line = berth.last_audit(n + 1).await;
        assert_eq!(story(&line), [("a", "capacity")]);
        assert_eq!(line["blocked"], "body_not_replayable");
        let log = sim.log();
        assert_eq!(log.len(), n + 1);
        assert_eq!(log[n].body_bytes, large.len() as u64);
        assert_eq!(log[n].body_sha256, sum);
    }
    // A body below it is tried elsewhere by the same process.
    let answer = berth
        .ask(post("/v1/responses", "", large_body(100 << 10)))
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(story(&berth.last_audit(3).await).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_body_still_moves_where_the_connection_was_refused() {
    let sim = sim_with(Step::admit()).await;
    let closed = free_port();
    let berth = Berth::start(&format!(
        "upstreams:\n  gone: {{base_url: \"http://{closed}/v1\"}}\n  \
         up: {{base_url: \"{}/v1\"}}\n{}{}\
         routes: [{{path_prefix: /v1, balance: fill_first, affinity: {{enabled: false}}}}]\n\
         {ADMISSION}limits: {{replay_body: 128KiB}}\n",
        sim.url(),
        credentials("gone", "a"),
        credentials("up", "b").replace("credentials:\n", ""),
    ))
    .await;
    let large = large_body(1 << 20);
    let answer = berth.ask(post("/v1/responses", "", &large)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let line = berth.last_audit(1).await;
    assert_eq!(story(&line), [("a", "transport"), ("b", "admitted")]);
    let record = sim.log().pop().unwrap();
    assert_eq!(record.body_sha256, format!("{:x}", Sha256::digest(&large)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_memory_is_tight_large_requests_are_told_when_to_come_back_and_small_ones_pass() {
    let sim = sim_with(Step::admit()).await;
    let program = Program::default()
        .with("sk-a", "a", [], Then::Last)
        .for_model("sk-a", "hanging", [Step::Hang], Then::Last);
    sim.set_program(program).unwrap();
    let limits = "limits: {memory: 16MiB}\n";
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "a", limits)).await;
    let hanging = String::from_utf8(large_body(15 << 20))
        .unwrap()
        .replace("gpt-sim", "hanging");
    let mut holder = berth.connect().await;
    holder.send(post("/v1/responses", "", hanging)).await;
    assert!(sim.until(DEADLINE, |log, _| log.len() == 1).await);

    let large = berth
        .ask(post("/v1/responses", "", large_body(1 << 20)))
        .await;
    assert_eq!(large.status, 503, "{large:?}");
    assert_eq!(large.json()["error"]["code"], "server_error");
    let after: u64 = large.header("retry-after").unwrap().parse().unwrap();
    assert!((5..=30).contains(&after), "{after}");
    let chunks = chunked("/v1/responses", "", &large_body(1 << 20), 10_000);
    assert_eq!(berth.ask(chunks).await.status, 503);
    let small = berth.ask(responses()).await;
    assert_eq!((small.status, small.ends), (200, Ends::Whole), "{small:?}");

    // What was held is free again when its client leaves.
    drop(holder);
    berth
        .metric_becomes("berth_memory_reserved_bytes", 0.0)
        .await;
    let large = berth
        .ask(post("/v1/responses", "", large_body(1 << 20)))
        .await;
    assert_eq!(large.status, 200, "{large:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_mib_are_failed_over_byte_for_byte() {
    let (sim, berth) = with_sim(Step::refuse(Shape::Http503), "").await;
    let large = large_body(40 << 20);
    let sum = format!("{:x}", Sha256::digest(&large));
    for request in [
        post("/v1/responses", "", &large),
        chunked("/v1/responses", "", &large, 100_000),
    ] {
        sim.reset();
        let answer = berth.ask(request).await;
        assert_eq!(
            (answer.status, answer.ends),
            (200, Ends::Whole),
            "{answer:?}"
        );
        let log = sim.log();
        let got: Vec<_> = log
            .iter()
            .map(|record| (record.body_bytes, record.body_sha256.as_str()))
            .collect();
        assert_eq!(got, [(large.len() as u64, sum.as_str()); 2]);
    }
    berth
        .metric_becomes("berth_memory_reserved_bytes", 0.0)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_used_again_after_every_kind_of_whole_answer() {
    let steps = [
        Step::admit(),
        Step::ClientError,
        Step::Policy,
        Step::refuse(Shape::Sse),
        Step::refuse(Shape::Http503),
        Step::RefuseAfterOutput(Default::default()),
        Step::RateLimit(Default::default()),
    ];
    let program = Program::default().with("sk-a", "a", steps.clone(), Then::Admit);
    let sim = Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap();
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "a", "")).await;
    let mut client = berth.connect().await;
    let mut statuses = Vec::new();
    for step in &steps {
        client.send(responses()).await;
        let answer = client.answer().await;
        assert_eq!(answer.ends, Ends::Whole, "{}: {answer:?}", step.name());
        statuses.push(answer.status);
        berth.reset("a").await;
    }
    assert_eq!(statuses, [200, 400, 403, 503, 503, 200, 429]);
    for (request, method, status) in [
        ("GET /v1/models HTTP/1.1\r\nhost: b\r\n\r\n", "GET", 200),
        ("GET /nowhere HTTP/1.1\r\nhost: b\r\n\r\n", "GET", 404),
        ("GET /v1/files HTTP/1.1\r\nhost: b\r\n\r\n", "GET", 404),
        ("HEAD / HTTP/1.1\r\nhost: b\r\n\r\n", "HEAD", 200),
        ("GET /v1/../x HTTP/1.1\r\nhost: b\r\n\r\n", "GET", 400),
        ("GET /healthz HTTP/1.1\r\nhost: b\r\n\r\n", "GET", 200),
    ] {
        client.send(request).await;
        let answer = client.answer_to(method).await;
        assert_eq!(
            (answer.status, answer.ends),
            (status, Ends::Whole),
            "{request}: {answer:?}"
        );
    }
    client.send(responses()).await;
    assert_eq!(client.answer().await.status, 200);

    // A body that nobody reads: the answer says that the connection ends with it.
    client
        .send("POST /v1/files HTTP/1.1\r\nhost: b\r\ncontent-length: 5\r\n\r\nhello")
        .await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.ends), (404, Ends::Whole));
    assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
    assert!(client.is_closed().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_and_paths_are_answered_without_an_upstream() {
    let (sim, berth) = with_sim(Step::admit(), "").await;
    let expected = [
        ("HEAD", "/", 200),
        ("HEAD", "/v1/responses", 200),
        ("HEAD", "/anything/at/all", 200),
        ("GET", "/healthz", 200),
        ("GET", "/", 404),
        ("OPTIONS", "/v1/responses", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/files", 404),
        ("DELETE", "/v1/responses/x", 404),
        ("POST", "/v2/responses", 404),
        ("POST", "/v1responses", 404),
        ("POST", "/v1/../v1/responses", 400),
        ("POST", "/v1/./responses", 400),
        ("POST", "/v1//responses", 400),
        ("POST", "//v1/responses", 400),
        ("POST", "/v1/%2e%2e/files", 400),
        ("POST", "/v1/%2E%2E/files", 400),
        ("POST", "/v1/..%2ffiles", 400),
        ("POST", "/v1%2fresponses", 400),
        ("POST", "/v1/responses%00", 400),
        ("POST", "/v1/%252e%252e/files", 400),
        ("POST", "/v1/..\\files", 400),
        ("POST", "/v1/%5c..%5cfiles", 400),
    ];
    let mut wrong = Vec::new();
    for (method, path, status) in expected {
        let mut client = berth.connect().await;
        client
            .send(format!(
                "{method} {path} HTTP/1.1\r\nhost: berth\r\ncontent-length: 0\r\n\r\n"
            ))
            .await;
        let answer = client.answer_to(method).await;
        if answer.status != status {
            wrong.push(format!(
                "{method} {path}: {} instead of {status}",
                answer.status
            ));
        } else if status >= 400 {
            assert!(answer.json()["error"]["message"].is_string(), "{answer:?}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(sim.log().len(), 0, "{:?}", sim.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_can_be_read_in_two_ways_is_never_sent_on() {
    let (sim, mut berth) = with_sim(Step::admit(), "").await;
    let tricks = [
        "POST /v1/responses HTTP/1.1\r\nhost: b\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nhost: b\r\n\r\n",
        "POST /v1/responses HTTP/1.1\r\nhost: b\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        "POST /v1/responses HTTP/1.1\r\nhost: b\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST /v1/responses HTTP/1.1\r\nhost: b\r\ncontent-length: -1\r\n\r\n",
        "POST /v1/responses HTTP/1.1\r\nhost: b\r\ncontent-length: 5x\r\n\r\nhello",
        "POST /v1/responses HTTP/1.1\r\nhost : b\r\ncontent-length: 0\r\n\r\n",
        "POST /v1/responses HTTP/1.1\r\nhost: b\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
        "NONSENSE\r\n\r\n",
    ];
    for trick in tricks {
        let mut client = berth.connect().await;
        client.send(trick).await;
        // One side's FIN ends the wait where berth waits for more of it.
        tokio::io::AsyncWriteExt::shutdown(&mut client.stream)
            .await
            .unwrap();
        let answer = client.answer().await;
        assert!(
            answer.status == 0 || (400..500).contains(&answer.status),
            "{trick}: {answer:?}"
        );
    }
    assert_eq!(sim.log().len(), 0, "{:?}", sim.log());
    berth.is_well().await;
    assert_eq!(berth.ask(responses()).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_is_told_to_use_http() {
    let (sim, berth) = with_sim(Step::admit(), "").await;
    let mut client = berth.connect().await;
    client
        .send(
            "GET /v1/responses HTTP/1.1\r\nhost: berth\r\nconnection: Upgrade\r\n\
             upgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .await;
    let answer = client.answer_to("GET").await;
    assert_eq!(
        (answer.status, answer.ends),
        (426, Ends::Whole),
        "{answer:?}"
    );
    assert!(answer.json()["error"]["message"].is_string());
    assert_eq!(sim.log().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_1_0_client_gets_its_answer_without_chunks() {
    let (_sim, berth) = with_sim(Step::refuse(Shape::Sse), "").await;
    for stream in [true, false] {
        let body = body("/v1/responses", stream);
        let mut client = berth.connect().await;
        client
            .send(format!(
                "POST /v1/responses HTTP/1.0\r\nhost: berth\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("transfer-encoding"), None, "{answer:?}");
        assert!(answer.text().contains("Hello from b."), "{answer:?}");
        if stream {
            assert_eq!(answer.ends, Ends::Close);
            assert!(answer.text().contains("response.completed"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunked_request_arrives_whole_however_it_is_cut() {
    let (sim, berth) = with_sim(Step::refuse(Shape::Http503), "").await;
    let body = body("/v1/responses", true);
    let sum = format!("{:x}", Sha256::digest(&body));
    let mut client = berth.connect().await;
    for size in 1..=body.len() {
        client
            .send(chunked("/v1/responses", "", body.as_bytes(), size))
            .await;
        let answer = client.answer().await;
        assert_eq!(
            (answer.status, answer.ends),
            (200, Ends::Whole),
            "{size}: {answer:?}"
        );
    }
    let log = sim.log();
    assert_eq!(log.len(), 2 * body.len());
    assert!(log.iter().all(|record| record.body_sha256 == sum));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_uploads_slowly_is_waited_for() {
    let upstream = Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            let length = heard.body.len().to_string();
            conn.send(answer(200, "content-type: application/json\r\n", length))
                .await;
        }
    })
    .await;
    let berth = Berth::start(&config(&upstream.url(), "a", "")).await;
    let request = post("/v1/responses", "", body("/v1/responses", false));
    let mut client = berth.connect().await;
    for piece in request.chunks(20) {
        client.send(piece).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answer = client.answer().await;
    let length = body("/v1/responses", false).len();
    assert_eq!(answer.json(), json!(length));
}
