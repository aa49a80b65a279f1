//! An upstream that tells the key that it was asked with: in a header, in errors of every shape, before
//! output and after. The client learns why it was refused, and nobody learns the key.

mod common;

use std::collections::BTreeMap;

use berth::sim::{Admit, Program, Refuse, RefuseAfterOutput, Shape, Sim, Step, Then};
use common::Berth;
use common::upstream::{Conn, Raw};
use common::wire::{Answer, Ends, body, post};

const KEY: &str = "sk-proj-0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX2yZ";

/// More of it than this is a piece too long.
const PIECE: usize = 22;

/// One credential with the key, which does this.
async fn berth_with(step: Step) -> (Sim, Berth, tempfile::NamedTempFile) {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), KEY).unwrap();
    let program = Program::default().with(KEY, "a", [step], Then::Last);
    let sim = Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap();
    let berth = Berth::start(&format!(
        "upstreams: {{up: {{base_url: \"{}/v1\"}}}}\n\
         credentials: [{{id: a, upstream: up, secret: {{file: {}}}}}]\n\
         routes: [{{path_prefix: /v1, affinity: {{enabled: false}}}}]\n\
         admission: {{wait: {{max_time: 0s}}}}\n",
        sim.url(),
        secret.path().display()
    ))
    .await;
    (sim, berth, secret)
}

fn tells_nothing(place: &str, text: &str) {
    for piece in KEY.as_bytes().windows(PIECE + 1) {
        let piece = std::str::from_utf8(piece).unwrap();
        assert!(!text.contains(piece), "{place} tells {piece}: {text}");
    }
}

/// Nobody who reads berth reads the key either.
async fn nobody_learns(berth: &Berth, answer: &Answer) {
    tells_nothing(
        "the answer",
        &format!("{} {:?}", answer.text(), answer.headers),
    );
    berth.audit_of(answer.id()).await;
    let audit = std::fs::read_to_string(berth.folder().join("audit.jsonl")).unwrap();
    for (place, text) in [
        ("the audit", audit),
        ("the log", berth.log()),
        ("the metrics", berth.get("/metrics").await.text()),
        ("the status", berth.get("/status").await.text()),
    ] {
        tells_nothing(place, &text);
    }
}

fn echo() -> String {
    format!("Incorrect API key provided: {KEY}. You can find yours in the settings.")
}

fn refuse(shape: Shape, code: &str) -> Step {
    Step::Refuse(Refuse {
        shape,
        code: Some(code.into()),
        message: Some(echo()),
        headers: BTreeMap::from([("x-debug-authorization".into(), format!("Bearer {KEY}"))]),
        content_type: true,
        ..Refuse::default()
    })
}

const CLEAN: &str = "Incorrect API key provided: ***. You can find yours in the settings.";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_goes_on_without_the_key() {
    for (shape, code, stream, status) in [
        // The client's own fault: as it came.
        (Shape::Http400, "invalid_prompt", true, 400),
        (Shape::Http400, "invalid_prompt", false, 400),
        // The same inside a 200.
        (Shape::Json200, "invalid_prompt", false, 200),
        (Shape::Sse, "invalid_prompt", true, 200),
        (Shape::SseBareError, "invalid_prompt", true, 200),
        (Shape::SseFirst, "invalid_prompt", true, 200),
        // In berth's words around the upstream's.
        (Shape::Http429, "rate_limit_exceeded", true, 429),
        (Shape::Http503, "server_is_overloaded", true, 503),
        (Shape::Sse, "server_is_overloaded", true, 503),
    ] {
        for path in ["/v1/responses", "/v1/chat/completions", "/v1/messages"] {
            let (_sim, berth, _secret) = berth_with(refuse(shape, code)).await;
            let answer = berth.ask(post(path, "", body(path, stream))).await;
            let what = format!("{shape:?} {code} {path}: {answer:?}");
            assert_eq!(answer.ends, Ends::Whole, "{what}");
            // Without a code in its place Anthropic's error says something else to berth.
            if path != "/v1/messages" {
                assert_eq!(answer.status, status, "{what}");
                assert!(answer.text().contains(CLEAN), "{what}");
            }
            assert_eq!(answer.header("x-debug-authorization"), None, "{what}");
            nobody_learns(&berth, &answer).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_after_output_goes_on_without_the_key() {
    let late = Step::RefuseAfterOutput(RefuseAfterOutput {
        message: Some(echo()),
        ..RefuseAfterOutput::default()
    });
    for path in ["/v1/responses", "/v1/chat/completions", "/v1/messages"] {
        let (_sim, berth, _secret) = berth_with(late.clone()).await;
        let answer = berth.ask(post(path, "", body(path, true))).await;
        assert_eq!(answer.status, 200);
        assert!(answer.text().contains(CLEAN), "{path}: {answer:?}");
        nobody_learns(&berth, &answer).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_with_the_key_is_left_out_in_every_mode() {
    let headers = BTreeMap::from([
        ("x-debug-authorization".to_owned(), format!("Bearer {KEY}")),
        ("x-kept".to_owned(), "kept".to_owned()),
    ]);
    let admit = Step::Admit(Admit {
        headers,
        ..Admit::default()
    });
    for mode in ["enforce", "observe", "off"] {
        let (_sim, berth, _secret) = berth_with(admit.clone()).await;
        berth.reconfigure("admission: {", &format!("admission: {{mode: {mode}, "));
        berth.reload().await;
        let path = "/v1/responses";
        let answer = berth.ask(post(path, "", body(path, true))).await;
        assert_eq!(
            (answer.status, answer.ends),
            (200, Ends::Whole),
            "{answer:?}"
        );
        assert_eq!(answer.header("x-kept"), Some("kept"));
        assert_eq!(answer.header("x-debug-authorization"), None, "{mode}");
        nobody_learns(&berth, &answer).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_the_words_of_a_status_nor_the_name_of_a_header_tell_the_key() {
    let upstream = Raw::start(|mut conn: Conn| async move {
        while conn.request().await.is_some() {
            let head = format!(
                "HTTP/1.1 200 {KEY}\r\nX-{KEY}: 1\r\nx-kept: kept\r\ncontent-type: application/json\r\n\
                 content-length: 2\r\n\r\n{{}}"
            );
            if !conn.send(head).await {
                return;
            }
        }
    })
    .await;
    for mode in ["observe", "off", "enforce"] {
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), KEY).unwrap();
        let berth = Berth::start(&format!(
            "upstreams: {{up: {{base_url: \"{}/v1\"}}}}\n\
             credentials: [{{id: a, upstream: up, secret: {{file: {}}}}}]\n\
             admission: {{mode: {mode}}}\n",
            upstream.url(),
            secret.path().display()
        ))
        .await;
        let mut client = berth.connect().await;
        client
            .send("GET /v1/models HTTP/1.1\r\nhost: b\r\n\r\n")
            .await;
        let head = client.wait_for("\r\n\r\n").await;
        assert!(
            head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("x-kept: kept"),
            "{mode}: {head}"
        );
        tells_nothing("the head", &head);
        tells_nothing(
            "the head, in small letters",
            &head.replace(&KEY.to_lowercase(), KEY),
        );
    }
}

/// A process that serves leaves no memory behind when it dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_no_core_dump() {
    let (_sim, berth, _secret) = berth_with(Step::admit()).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", berth.pid())).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let words: Vec<_> = core.unwrap().split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"], "{limits}");
    // What may not be dumped belongs to root in /proc, whoever started it.
    use std::os::unix::fs::MetadataExt as _;
    let owner = std::fs::metadata(format!("/proc/{}", berth.pid()))
        .unwrap()
        .uid();
    assert_eq!(owner, 0);
}
