//! A broken or hostile upstream costs one attempt: never a hang, a crash, or a truncated answer that
//! looks clean.
//!
//! Credential `a` is the hostile one and is asked first; `b` is good.

mod common;

use std::time::{Duration, Instant};

use berth::sim::{Announce, Early503, Program, Shape, Sim, Step, Then};
use common::upstream::{Conn, Heard, LAST_CHUNK, Raw, STREAM_HEAD, answer, chunk};
use common::wire::{Answer, Client2, Ends, body, large_body, post, responses};
use common::{Berth, config, story, within};

/// Short times, so that what never comes is given up soon.
const IMPATIENT: &str = "admission: {retry_budget: {ratio: 100.0, min_per_second: 10000}, \
     hold: {max_bytes: 256KiB, max_time: 1s, request_max_time: 20s}}\n";

const GOOD: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"good\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\"}}\n\n";

fn good() -> Vec<u8> {
    let mut bytes = STREAM_HEAD.as_bytes().to_vec();
    bytes.extend(chunk(GOOD.as_bytes()));
    bytes.extend_from_slice(LAST_CHUNK);
    bytes
}

fn stream_with(more: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{more}\r\n")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    coder.write_all(bytes).unwrap();
    coder.finish().unwrap()
}

/// What the hostile credential does, by the name that the request carries in `x-fault`.
async fn fault(conn: &mut Conn, heard: &Heard) {
    let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
    match heard.header("x-fault").unwrap() {
        "no head" => {}
        "half a status line" => drop(conn.send("HTTP/1.1 2").await),
        "half a head" => drop(conn.send("HTTP/1.1 200 OK\r\ncontent-ty").await),
        "garbage" => drop(conn.send("\0\x01\x02 this is no HTTP \r\n\r\n\r\n").await),
        "a status of letters" => drop(conn.send("HTTP/1.1 abc OK\r\n\r\n").await),
        "another protocol" => drop(conn.send("SSH-2.0-OpenSSH_9.6\r\n").await),
        "endless head" => {
            while conn.send("x-more: more and more and more\r\n").await {
                if !head.is_empty() {
                    conn.send(std::mem::take(&mut head)).await;
                }
            }
        }
        "endless head from its start" => {
            conn.send(&head).await;
            while conn.send("x-more: more and more and more\r\n").await {}
        }
        "a thousand headers" => {
            for n in 0..1000 {
                head.extend_from_slice(format!("x-{n}: 1\r\n").as_bytes());
            }
            head.extend_from_slice(b"content-length: 0\r\n\r\n");
            conn.send(head).await;
        }
        "a huge header" => {
            head.extend_from_slice(b"x-huge: ");
            head.extend(std::iter::repeat_n(b'a', 4 << 20));
            head.extend_from_slice(b"\r\ncontent-length: 0\r\n\r\n");
            conn.send(head).await;
        }
        "conflicting lengths" => {
            let head = stream_with("content-length: 5\r\ncontent-length: 500\r\n");
            conn.send(head + GOOD).await;
        }
        "a length that is no number" => {
            conn.send(stream_with("content-length: five\r\n") + GOOD)
                .await;
        }
        "a chunk size that is none" => {
            conn.send(STREAM_HEAD.to_owned() + "xyz\r\n" + GOOD).await;
        }
        "a chunk size beyond any" => {
            conn.send(STREAM_HEAD.to_owned() + "fffffffffffffffffff\r\n" + GOOD)
                .await;
        }
        "a chunk size that is negative" => {
            conn.send(STREAM_HEAD.to_owned() + "-5\r\n" + GOOD).await;
        }
        "silence" => conn.until_closed().await,
        "silence after the head" => {
            conn.send(STREAM_HEAD).await;
            conn.until_closed().await;
        }
        "endless lifecycle comments" => {
            conn.send(STREAM_HEAD).await;
            let piece = chunk(": still here\n\n".repeat(100).as_bytes());
            // Slow enough to stay below the byte limit until the time is over.
            while conn.send(&piece).await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        "a page" => {
            let page = "<!DOCTYPE html><html>Please log in</html>";
            conn.send(answer(200, "content-type: text/html\r\n", page))
                .await;
        }
        "a page that says it is a stream of JSON" => {
            conn.send(answer(200, "", "<html>Please log in</html>"))
                .await;
        }
        "a truncated gzip stream" => {
            let coded = gzip(GOOD.as_bytes());
            let half = &coded[..coded.len() / 3];
            let head = "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
            conn.send(answer(200, head, half)).await;
        }
        "gzip that is none" => {
            let head = "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
            conn.send(answer(200, head, "this is not gzip at all, but text"))
                .await;
        }
        "an empty stream" => drop(conn.send(STREAM_HEAD.to_owned() + "0\r\n\r\n").await),
        "a 503 with a broken body" => {
            let said = r#"{"error":{"code":"server_is_ov"#;
            let head = "HTTP/1.1 503 X\r\ncontent-length: 500\r\n\r\n";
            conn.send(head.to_owned() + said).await;
        }
        other => panic!("no such fault: {other}"),
    }
}

async fn hostile() -> Raw {
    Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            if heard.credential() == "b" {
                conn.send(good()).await;
            } else {
                fault(&mut conn, &heard).await;
                return conn.close().await;
            }
        }
    })
    .await
}

fn is_good(answer: &Answer, told: &str) {
    assert_eq!(answer.status, 200, "{told}: {answer:?}");
    assert_eq!(answer.ends, Ends::Whole, "{told}: {answer:?}");
    assert_eq!(answer.text(), GOOD, "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_broken_answer_costs_one_attempt_and_the_next_credential_answers() {
    let upstream = hostile().await;
    let mut berth = Berth::start(&config(&upstream.url(), "ab", IMPATIENT)).await;
    let faults = [
        "no head",
        "half a status line",
        "half a head",
        "garbage",
        "a status of letters",
        "another protocol",
        "endless head",
        "endless head from its start",
        "a thousand headers",
        "a huge header",
        "conflicting lengths",
        "a length that is no number",
        "a chunk size that is none",
        "a chunk size beyond any",
        "a chunk size that is negative",
        "silence",
        "silence after the head",
        "endless lifecycle comments",
        "a page",
        "a page that says it is a stream of JSON",
        "a truncated gzip stream",
        "gzip that is none",
        "an empty stream",
        "a 503 with a broken body",
    ];
    let mut wrong = Vec::new();
    for fault in faults {
        berth.reset("a").await;
        let since = Instant::now();
        let request = post(
            "/v1/responses",
            &format!("x-fault: {fault}\r\n"),
            body("/v1/responses", true),
        );
        let answer = berth.ask(request).await;
        let line = berth.audit_of(answer.id()).await;
        let asked: Vec<&str> = story(&line).iter().map(|(id, _)| *id).collect();
        let good = answer.status == 200 && answer.ends == Ends::Whole && answer.text() == GOOD;
        let soon = since.elapsed() < Duration::from_secs(8);
        if !good || asked != ["a", "b"] || !soon {
            wrong.push(format!(
                "{fault}: {:?} after {:?}, status {}, {:?}, {:?}",
                story(&line),
                since.elapsed(),
                answer.status,
                answer.ends,
                answer.text().chars().take(200).collect::<String>(),
            ));
        }
        // The same process, asked again, with nothing wrong.
        berth.reset("a").await;
        berth.is_well().await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A simulator in which `a` does one thing and `b` admits.
async fn with_sim(step: Step, more: &str) -> (Sim, Berth) {
    let program = Program::default()
        .with("sk-a", "a", [step], Then::Last)
        .with("sk-b", "b", [], Then::Last);
    let sim = Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap();
    let berth = Berth::start(&config(&format!("{}/v1", sim.url()), "ab", more)).await;
    (sim, berth)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_lifecycle_frames_are_let_through_at_the_limit_and_end_with_the_client() {
    let (sim, mut berth) = with_sim(Step::EndlessLifecycle, IMPATIENT).await;
    let mut client = berth.connect().await;
    client.send(responses()).await;
    let text = client.wait_for("response.in_progress").await;
    let id = text.split("x-berth-request-id: ").nth(1).unwrap();
    let id = id.split("\r\n").next().unwrap().to_owned();
    drop(client);
    let line = berth.audit_of(&id).await;
    assert_eq!(line["commit_reason"], "hold_limit", "{line}");
    assert_eq!(line["outcome"], "client_gone", "{line}");
    let left = |stats: &berth::sim::Stats| stats.credentials["a"].in_flight == 0;
    assert!(sim.until(common::DEADLINE, |_, stats| left(stats)).await);
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_that_promises_more_ends_broken_or_is_asked_elsewhere() {
    let (_sim, mut berth) = with_sim(Step::LyingLength(Announce::More), IMPATIENT).await;
    let answer = berth.ask(responses()).await;
    let line = berth.audit_of(answer.id()).await;
    match story(&line).as_slice() {
        [("a", _)] => {
            // The whole stream came, its terminal frame included: that is what the client gets.
            assert!(answer.text().contains("response.completed"), "{answer:?}");
        }
        [("a", "transport"), ("b", "admitted")] => assert_eq!(answer.ends, Ends::Whole),
        other => panic!("{other:?}: {answer:?}"),
    }
    // In one piece there is no terminal frame: only the length tells, and it says that some is missing.
    let request = post("/v1/responses", "", body("/v1/responses", false));
    let answer = berth.ask(request).await;
    let line = berth.audit_of(answer.id()).await;
    assert_eq!(story(&line), [("a", "transport"), ("b", "admitted")]);
    assert_eq!(answer.ends, Ends::Whole);
    assert_eq!(answer.json()["status"], "completed");
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stray_bytes_after_an_answer_never_reach_the_next_one() {
    for step in [Step::LyingLength(Announce::Less), Step::DoubleChunkEnd] {
        let name = step.name();
        let (_sim, mut berth) = with_sim(step, IMPATIENT).await;
        for stream in [false, true, true, false] {
            let request = post("/v1/responses", "", body("/v1/responses", stream));
            let mut client = berth.connect().await;
            client.send(&request).await;
            let answer = client.answer().await;
            // What the client gets is one answer from its start; a truncated one does not look whole.
            assert!(
                answer.status == 200 || answer.status == 503,
                "{name}: {answer:?}"
            );
            let start = answer.text();
            let start = start.trim_start();
            assert!(
                start.starts_with(if stream {
                    "event: response.created"
                } else {
                    "{"
                }) || answer.status == 503,
                "{name}: {answer:?}"
            );
            if stream && answer.ends == Ends::Whole && answer.status == 200 {
                assert!(
                    answer.text().contains("response.completed"),
                    "{name}: {answer:?}"
                );
            }
        }
        berth.reset("a").await;
        berth.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_1xx_heads_before_the_answer_is_no_hang() {
    let upstream = Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            let many = heard.header("x-many").map_or(0, |n| n.parse().unwrap());
            if heard.credential() == "a" {
                for _ in 0..many {
                    if !conn
                        .send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
                        .await
                    {
                        return;
                    }
                }
            }
            conn.send(good()).await;
        }
    })
    .await;
    let mut berth = Berth::start(&config(&upstream.url(), "ab", IMPATIENT)).await;
    for many in [1, 10, 10_000] {
        let request = post(
            "/v1/responses",
            &format!("x-many: {many}\r\n"),
            body("/v1/responses", true),
        );
        is_good(&berth.ask(request).await, &format!("{many} of them"));
    }
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_flood_of_1xx_heads_is_given_up() {
    let upstream = Raw::start(|mut conn: Conn| async move {
        while let Some(heard) = conn.request().await {
            if heard.credential() == "a" {
                while conn
                    .send("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100))
                    .await
                {}
                return;
            }
            conn.send(good()).await;
        }
    })
    .await;
    let mut berth = Berth::start(&config(&upstream.url(), "ab", IMPATIENT)).await;
    is_good(&berth.ask(responses()).await, "after the flood");
    berth.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_503_in_the_middle_of_a_40_mib_upload_counts_as_that_refusal() {
    for reset in [false, true] {
        let early = Early503 {
            after_body_bytes: 1 << 20,
            reset,
        };
        let (sim, mut berth) = with_sim(Step::Early503(early), "").await;
        let request = post("/v1/responses", "", large_body(40 << 20));
        let mut client = berth.connect().await;
        within(client.try_send(&request)).await.unwrap();
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "reset {reset}: {answer:?}");
        let line = berth.audit_of(answer.id()).await;
        // With an RST right behind it the answer may be lost on the way: then it is a lost connection.
        let first = story(&line)[0];
        if reset {
            assert!(matches!(first, ("a", "capacity" | "transport")), "{line:#}");
        } else {
            assert_eq!(first, ("a", "capacity"), "{line:#}");
        }
        assert_eq!(story(&line)[1], ("b", "admitted"));
        let log = sim.log();
        assert_eq!(
            log.last().unwrap().body_bytes,
            large_body(40 << 20).len() as u64
        );
        berth.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_bomb_is_not_unpacked_into_memory() {
    let upstream = Raw::start(|mut conn: Conn| async move {
        // 256 MiB of neutral frames in some hundred KiB.
        let frame = ": zeros and more zeros\n\n".repeat(1 << 12);
        let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        for _ in 0..(256 << 20) / frame.len() {
            std::io::Write::write_all(&mut coder, frame.as_bytes()).unwrap();
        }
        let bomb = coder.finish().unwrap();
        while let Some(heard) = conn.request().await {
            if heard.credential() == "a" {
                let head = "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
                conn.send(answer(200, head, &bomb)).await;
                return conn.close().await;
            }
            conn.send(good()).await;
        }
    })
    .await;
    let mut berth = Berth::start(&config(&upstream.url(), "ab", IMPATIENT)).await;
    let peak = |berth: &Berth| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", berth.pid())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib / 1024
    };
    let before = peak(&berth);
    let mut client = berth.connect().await;
    client.send(responses()).await;
    let answer = client.answer().await;
    // Committed at the byte limit or dropped; in no case a stream that looks complete without its end.
    assert!(
        answer.text() == GOOD || answer.ends == Ends::Broken || answer.status == 503,
        "{} {:?} {}",
        answer.status,
        answer.ends,
        answer.body.len()
    );
    let after = peak(&berth);
    assert!(
        after < before + 100,
        "{before} MiB before, {after} MiB after"
    );
    berth.is_well().await;
    let client = Client2::connect(berth.addr).await;
    let answer = client
        .ask("/v1/responses", &[], body("/v1/responses", true))
        .await;
    assert!(
        answer.status == 200 || answer.status == 503,
        "{}",
        answer.status
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_every_fault_of_the_simulator_the_same_process_serves_a_good_request() {
    let faults = [
        (Step::Hang, "timeout"),
        (Step::HangAfterHead, "timeout"),
        (Step::Reset, "transport"),
        (Step::Garbage, "transport"),
        (Step::HalfHead, "transport"),
        (Step::EndlessHead, "transport"),
        (Step::Html200, "transient"),
        (Step::NoTerminal, ""),
        (Step::refuse(Shape::SseBareError), "capacity"),
        (Step::Challenge, "challenge"),
    ];
    let (sim, mut berth) = with_sim(Step::admit(), IMPATIENT).await;
    let mut wrong = Vec::new();
    for (step, verdict) in faults {
        let name = step.name();
        let program = |step| {
            Program::default()
                .with("sk-a", "a", [step], Then::Last)
                .with("sk-b", "b", [], Then::Last)
        };
        sim.set_program(program(step)).unwrap();
        berth.reset("a").await;
        let answer = berth.ask(responses()).await;
        let line = berth.audit_of(answer.id()).await;
        if verdict.is_empty() {
            // Output without an end: no other credential is asked, and the client sees it broken.
            assert_eq!(answer.ends, Ends::Broken, "{name}: {line:#}");
        } else if story(&line) != [("a", verdict), ("b", "admitted")]
            || answer.ends != Ends::Whole
            || !answer.text().contains("Hello from b.")
        {
            wrong.push(format!("{name}: {:?} {:?}", story(&line), answer.ends));
        }
        sim.set_program(program(Step::admit())).unwrap();
        berth.reset("a").await;
        let answer = berth.ask(responses()).await;
        assert!(
            answer.text().contains("Hello from a."),
            "after {name}: {answer:?}"
        );
        berth.is_well().await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
