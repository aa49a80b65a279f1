//! Connections, the control API and the log.

use super::*;
use sha2::{Digest, Sha256};

#[tokio::test]
async fn a_connection_is_kept_and_pipelined_requests_are_answered_in_order() {
    let sim = one([Step::admit(), Step::refuse(Shape::Http503)]);
    let mut peer = Peer::connect(&sim).await;
    let twice = request("POST", "/v1/responses", "sk-a", &body(true)).repeat(2);
    peer.send(&twice).await;
    assert_eq!(peer.answer().await.status, Some(200));
    assert_eq!(peer.answer().await.status, Some(503));
    assert_eq!(sim.stats().connections_accepted, 1);
    let log = sim.log();
    assert_eq!([log[0].connection, log[1].connection], [1, 1]);
}

#[tokio::test]
async fn connection_close_is_obeyed() {
    let sim = one([]);
    let mut peer = Peer::connect(&sim).await;
    peer.send("GET /v1/models HTTP/1.1\r\nauthorization: Bearer sk-a\r\nconnection: close\r\n\r\n")
        .await;
    assert_eq!(peer.answer().await.status, Some(200));
    assert_eq!(peer.answer().await.ends, Ends::Fin);
    assert!(
        sim.until(DEADLINE, |_, stats| stats.connections_open == 0)
            .await
    );
}

#[tokio::test]
async fn expect_100_continue_is_answered_before_the_body() {
    let sim = one([]);
    let mut peer = Peer::connect(&sim).await;
    let body = body(false);
    let head = format!(
        "POST /v1/responses HTTP/1.1\r\nauthorization: Bearer sk-a\r\nexpect: 100-continue\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    peer.send(head).await;
    peer.wait_for("HTTP/1.1 100 Continue\r\n\r\n").await;
    peer.rest.clear();
    peer.send(body).await;
    assert_eq!(peer.answer().await.status, Some(200));
}

#[tokio::test]
async fn the_log_says_what_came_and_hides_secrets() {
    let sim = one([]);
    let mut peer = Peer::connect(&sim).await;
    let body = body(true);
    let head = format!(
        "POST /v1/responses?a=b HTTP/1.1\r\nHost: sim\r\nAuthorization: Bearer sk-a\r\n\
         Cookie: c=1\r\nX-Trace: t1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    peer.send(head + &body).await;
    let answer = peer.answer().await;
    assert!(sim.until(DEADLINE, |log, _| log[0].over).await);
    let record = &sim.log()[0];
    assert_eq!(record.credential.as_deref(), Some("campus-a"));
    assert_eq!(
        (record.method.as_str(), record.path.as_str()),
        ("POST", "/v1/responses")
    );
    assert_eq!(record.model.as_deref(), Some("gpt-sim"));
    assert!(record.stream);
    assert_eq!(record.body_bytes, body.len() as u64);
    let digest: String = Sha256::digest(body.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(record.body_sha256, digest);
    let headers: Vec<(&str, &str)> = record
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(headers[1], ("Authorization", "<redacted>"));
    assert_eq!(headers[2], ("Cookie", "<redacted>"));
    assert_eq!(headers[3], ("X-Trace", "t1"));
    assert_eq!(record.bytes_out, answer.raw.len() as u64);
    assert_eq!(record.status, Some(200));
    assert_eq!(record.peer_left_after_ms, None);
    let line = get(&sim, "/__sim/log").await.body;
    assert!(!line.contains("sk-a"));
    assert_eq!(
        serde_json::from_str::<Record>(line.trim_end()).unwrap(),
        *record
    );
}

#[tokio::test]
async fn a_peer_that_leaves_early_is_noticed_during_silence_and_during_output() {
    let slow = Admit {
        first_output_after: Duration::from_secs(600),
        ..Admit::default()
    };
    let sim = one([Step::Admit(slow), Step::EndlessLifecycle]);
    for number in 1..=2 {
        let mut peer = Peer::connect(&sim).await;
        peer.send(&request("POST", "/v1/responses", "sk-a", &body(true)))
            .await;
        peer.wait_for("response.in_progress").await;
        assert_eq!(sim.stats().credentials["campus-a"].in_flight, 1);
        drop(peer);
        let left = |log: &[Record], _: &Stats| {
            log.len() == number && log[number - 1].peer_left_after_ms.is_some()
        };
        assert!(sim.until(DEADLINE, left).await);
        assert_eq!(sim.stats().credentials["campus-a"].in_flight, 0);
    }
}

#[tokio::test]
async fn the_program_can_be_replaced_and_the_counts_reset_over_http() {
    let sim = one([Step::admit(), Step::refuse(Shape::Http503)]);
    assert_eq!(ask(&sim, "/v1/responses", true).await.status, Some(200));
    assert_eq!(ask(&sim, "/v1/responses", true).await.status, Some(503));
    let stats: Stats = serde_json::from_str(&get(&sim, "/__sim/stats").await.body).unwrap();
    assert_eq!(stats.requests, 2, "control requests are not counted");
    assert_eq!(
        stats.credentials["campus-a"].steps,
        [("admit".to_owned(), 1), ("refuse".to_owned(), 1)].into()
    );
    let mut peer = Peer::connect(&sim).await;
    peer.send(&request("POST", "/__sim/reset", "", "")).await;
    assert_eq!(peer.answer().await.status, Some(200));
    assert!(sim.log().is_empty());
    assert_eq!(
        ask(&sim, "/v1/responses", true).await.status,
        Some(200),
        "from the first step"
    );
    let program = Program::default().with("sk-a", "other", [Step::Auth], Then::Last);
    peer.send(&request("POST", "/__sim/program", "", &program.to_json()))
        .await;
    assert_eq!(peer.answer().await.status, Some(200));
    assert_eq!(ask(&sim, "/v1/responses", true).await.status, Some(401));
    peer.send(&request("POST", "/__sim/program", "", "credentials: 7"))
        .await;
    let refused = peer.answer().await;
    assert_eq!(refused.status, Some(400));
    assert!(refused.body.contains("line 1"), "{}", refused.body);
    peer.send(&request("GET", "/__sim/nothing", "", "")).await;
    assert_eq!(peer.answer().await.status, Some(404));
}

#[tokio::test]
async fn the_page_lists_every_key_of_the_built_in_program() {
    let program = Program::built_in();
    let sim = sim(program.clone());
    let page = get(&sim, "/").await.body;
    assert_eq!(program.credentials.len(), 9 + 33 + 2);
    for key in program.credentials.keys() {
        assert!(page.contains(key), "{key}");
    }
    let mut peer = Peer::connect(&sim).await;
    peer.send(&request("POST", "/v1/responses", "sk-sim-503", &body(true)))
        .await;
    assert_eq!(peer.answer().await.status, Some(503));
}

#[tokio::test]
async fn stop_closes_the_port_and_every_connection() {
    let sim = one([Step::Hang]);
    let addr = sim.addr();
    let mut peer = Peer::connect(&sim).await;
    peer.send(&request("POST", "/v1/responses", "sk-a", &body(true)))
        .await;
    assert!(sim.until(DEADLINE, |log, _| log.len() == 1).await);
    sim.stop().await;
    assert_ne!(peer.answer().await.ends, Ends::Whole);
    assert!(TcpStream::connect(addr).await.is_err());
    let again = Sim::start(addr, Program::default()).unwrap();
    assert_eq!(again.addr(), addr);
}

#[test]
fn it_runs_on_a_runtime_of_many_threads_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let sim = Arc::new(one([]));
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let sim = sim.clone();
            clients.spawn(async move { ask(&sim, "/v1/responses", true).await.ends });
        }
        let ends = within(clients.join_all()).await;
        assert_eq!(ends, vec![Ends::Whole; 50]);
        let ids: std::collections::BTreeSet<u64> = sim.log().iter().map(|each| each.n).collect();
        assert_eq!(ids.len(), 50);
    });
}

#[tokio::test]
async fn a_bad_program_is_not_started() {
    let program = Program::default().with("sk a", "campus-a", [], Then::Last);
    let error = Sim::start(([127, 0, 0, 1], 0).into(), program)
        .err()
        .unwrap();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn serve_says_which_file_and_where_it_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program.yaml");
    std::fs::write(
        &file,
        "credentials:\n  sk-a: {name: a, steps: [frobnicate]}\n",
    )
    .unwrap();
    let listen = ([127, 0, 0, 1], 0).into();
    let why = serve(listen, Some(&file)).await.unwrap_err();
    assert!(
        why.contains("program.yaml") && why.contains("frobnicate"),
        "{why}"
    );
}
