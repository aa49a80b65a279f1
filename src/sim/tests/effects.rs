//! Each step's exact effect.

use super::*;

/// What a client of a Responses stream sees of a step.
enum Seen {
    /// An answer: its end, its status, its event names (or the error code of a document).
    Answer(Ends, Option<u16>, &'static [&'static str]),
    /// Nothing after this status, or at all.
    Silence(Option<u16>),
}

use Seen::{Answer as Is, Silence};

const LIFECYCLE: [&str; 2] = ["response.created", "response.in_progress"];
const ADMITTED: &[&str] = &[
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
];
const MALFORMED: &[&str] = &[
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "data: {\"id\": \"half\", \"cho",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
];
const BEGUN: &[&str] = &[
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
];
const REFUSED: &[&str] = &[
    "response.created",
    "response.in_progress",
    "error",
    "response.failed",
];

/// Every step in the form in which a test can wait for its effect.
fn table() -> Vec<(Step, Seen)> {
    let whole = |status, said| Is(Ends::Whole, Some(status), said);
    let refusal = |shape| Step::refuse(shape);
    let fast = Step::KeepalivesForever(KeepalivesForever {
        gap: Duration::ZERO,
        comments: false,
    });
    let certain = |percent| {
        Step::Chance(Chance {
            percent,
            refuse: Box::new(refusal(Shape::Http503)),
            admit: Box::new(Step::admit()),
            seed: Some(7),
        })
    };
    let flap = Step::Flap(Flap {
        period: Duration::from_secs(3600),
        refuse: Box::new(refusal(Shape::Http529)),
        admit: Box::new(Step::admit()),
    });
    let seats = |count| {
        Step::Seats(Seats {
            count,
            refuse: Box::new(refusal(Shape::Http503)),
            admit: Box::new(Step::admit()),
        })
    };
    vec![
        (Step::admit(), whole(200, ADMITTED)),
        (seats(1), whole(200, ADMITTED)),
        (seats(0), whole(503, &["server_is_overloaded"])),
        (refusal(Shape::Sse), whole(200, REFUSED)),
        (
            refusal(Shape::SseBareError),
            whole(200, &["response.created", "response.in_progress", "error"]),
        ),
        (refusal(Shape::SseFirst), whole(200, &["response.failed"])),
        (refusal(Shape::Http400), whole(400, &[])),
        (refusal(Shape::Http429), whole(429, &["model_at_capacity"])),
        (
            refusal(Shape::Http500),
            whole(500, &["server_is_overloaded"]),
        ),
        (
            refusal(Shape::Http503),
            whole(503, &["server_is_overloaded"]),
        ),
        (refusal(Shape::Http529), whole(529, &[])),
        (
            refusal(Shape::Json200),
            whole(200, &["server_is_overloaded"]),
        ),
        (
            Step::RefuseAfterOutput(Default::default()),
            whole(
                200,
                &[
                    "response.created",
                    "response.in_progress",
                    "response.output_item.added",
                    "response.content_part.added",
                    "response.output_text.delta",
                    "error",
                    "response.failed",
                ],
            ),
        ),
        (
            Step::RateLimit(Default::default()),
            whole(429, &["rate_limit_exceeded"]),
        ),
        (Step::Quota(Default::default()), whole(429, &[])),
        (Step::Auth, whole(401, &["token_invalidated"])),
        (Step::Deactivated, whole(402, &["deactivated_workspace"])),
        (Step::Unsupported, whole(400, &[])),
        (Step::Forbidden, whole(403, &[])),
        (Step::Challenge, whole(403, &["<!DOCTYPE html>"])),
        (Step::Html200, whole(200, &["<!DOCTYPE html>"])),
        (Step::Policy, whole(403, &["cyber_policy"])),
        (Step::ClientError, whole(400, &["context_length_exceeded"])),
        (
            Step::State(Default::default()),
            whole(400, &["previous_response_not_found"]),
        ),
        (Step::Hang, Silence(None)),
        (Step::HangAfterHead, Silence(Some(200))),
        (fast, Is(Ends::More, Some(200), &LIFECYCLE)),
        (
            Step::Cut(Default::default()),
            Is(Ends::Fin, Some(200), BEGUN),
        ),
        (Step::Reset, Is(Ends::Rst, None, &[])),
        (
            Step::ResetAfter(Default::default()),
            Is(Ends::Rst, Some(200), BEGUN),
        ),
        (Step::Garbage, Is(Ends::Fin, None, &[])),
        (Step::HalfHead, Is(Ends::Fin, None, &[])),
        (Step::EndlessHead, Is(Ends::More, None, &[])),
        (
            Step::EndlessLifecycle,
            Is(Ends::More, Some(200), &LIFECYCLE),
        ),
        (Step::Stall(Default::default()), Silence(Some(200))),
        (Step::Malformed(Default::default()), whole(200, MALFORMED)),
        (
            Step::LyingLength(Announce::More),
            Is(Ends::Fin, Some(200), ADMITTED),
        ),
        (Step::DoubleChunkEnd, whole(200, ADMITTED)),
        (
            Step::NoTerminal,
            whole(200, &ADMITTED[..ADMITTED.len() - 1]),
        ),
        (Step::NoDone, whole(200, &ADMITTED[..ADMITTED.len() - 1])),
        (
            Step::Early503(Default::default()),
            whole(503, &["server_is_overloaded"]),
        ),
        (flap, whole(529, &[])),
        (certain(0), whole(200, ADMITTED)),
        (certain(100), whole(503, &["server_is_overloaded"])),
    ]
}

#[tokio::test]
async fn every_step_has_exactly_its_effect() {
    let mut covered = std::collections::BTreeSet::new();
    for (step, seen) in table() {
        let name = step.name();
        covered.insert(name);
        let sim = one([step.clone()]);
        let mut peer = Peer::connect(&sim).await;
        peer.send(&request("POST", "/v1/responses", "sk-a", &body(true)))
            .await;
        match seen {
            Is(ends, status, said) => {
                let answer = peer.answer_up_to(8 << 10).await;
                assert_eq!(answer.ends, ends, "{step:?}");
                assert_eq!(answer.status, status, "{step:?}");
                check_said(&step, &answer, said);
            }
            Silence(status) => {
                if status.is_some() {
                    peer.wait_for("\r\n\r\n").await;
                }
                let played = |log: &[Record], _: &Stats| log.iter().any(|each| each.step == name);
                assert!(sim.until(DEADLINE, played).await, "{name}");
            }
        }
        drop(peer);
        let over = |log: &[Record], _: &Stats| log.iter().all(|each| each.over);
        assert!(sim.until(DEADLINE, over).await, "{name}");
        let log = sim.log();
        assert_eq!(log.len(), 1, "{name}");
        assert_eq!(log[0].step, name);
        let left_early = matches!(seen, Silence(_) | Is(Ends::More, ..));
        assert_eq!(log[0].peer_left_after_ms.is_some(), left_early, "{name}");
        if matches!(seen, Silence(None)) {
            assert_eq!(log[0].bytes_out, 0, "{name}");
        }
    }
    assert_eq!(covered, Step::NAMES.into_iter().collect());
    assert_eq!(covered.len(), 34);
}

fn check_said(step: &Step, answer: &Answer, said: &[&str]) {
    let kind = answer.headers.get("content-type").map(String::as_str);
    match kind {
        Some("application/json") => {
            let json = answer.json();
            let places = ["/error/code", "/response/error/code", "/detail/code"];
            let code = places
                .iter()
                .find_map(|place| json.pointer(place)?.as_str());
            assert_eq!(code, said.first().copied(), "{step:?}: {}", answer.body);
        }
        Some("text/html; charset=UTF-8") => {
            assert!(
                answer.body.starts_with(said[0]),
                "{step:?}: {}",
                answer.body
            );
        }
        _ if answer.ends == Ends::More => {
            let events = answer.events();
            assert!(answer.raw.len() >= 8 << 10, "{step:?}");
            assert_eq!(
                events.get(..said.len()).unwrap_or_default(),
                said,
                "{step:?}"
            );
        }
        _ => assert_eq!(answer.events(), said, "{step:?}"),
    }
}

#[tokio::test]
async fn every_step_is_also_good_for_the_other_dialects_and_for_documents() {
    let mut seen = 0;
    let paths = [
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/embeddings",
    ];
    for (step, effect) in table() {
        let Is(ends, _, _) = effect else { continue };
        for path in paths {
            for stream in [true, false] {
                let sim = one([step.clone()]);
                let mut peer = Peer::connect(&sim).await;
                peer.send(&request("POST", path, "sk-a", &body(stream)))
                    .await;
                let answer = peer.answer_up_to(8 << 10).await;
                assert_eq!(answer.ends, ends, "{path}, stream {stream}: {step:?}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, (table().len() - 3) * 8);
}

#[tokio::test]
async fn a_refusing_stream_names_no_content_type_unless_told() {
    let told = Step::Refuse(Refuse {
        content_type: true,
        ..Refuse::default()
    });
    let sim = one([Step::refuse(Shape::Sse), told]);
    let first = ask(&sim, "/v1/responses", true).await;
    assert_eq!(first.headers.get("content-type"), None);
    let second = ask(&sim, "/v1/responses", true).await;
    assert_eq!(
        second.headers["content-type"],
        "text/event-stream; charset=utf-8"
    );
}

#[tokio::test]
async fn a_refusal_says_what_it_is_told_to_say() {
    let sim = one([Step::Refuse(Refuse {
        shape: Shape::Http503,
        code: Some("slow_down".into()),
        message: Some("Not now.".into()),
        retry_after: Some(Duration::from_millis(1500)),
        headers: [("x-should-retry".to_owned(), "true".to_owned())].into(),
        ..Refuse::default()
    })]);
    let answer = ask(&sim, "/v1/responses", true).await;
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "slow_down");
    assert_eq!(error["message"], "Not now.");
    assert_eq!(answer.headers["retry-after"], "2", "rounded up");
    assert_eq!(answer.headers["x-should-retry"], "true");
}

#[tokio::test]
async fn a_late_refusal_reports_its_output() {
    let late = RefuseAfterOutput {
        deltas: 4,
        ..Default::default()
    };
    let sim = one([Step::RefuseAfterOutput(late)]);
    let answer = ask(&sim, "/v1/responses", true).await;
    let deltas = answer
        .events()
        .iter()
        .filter(|name| name.ends_with("text.delta"))
        .count();
    assert_eq!(deltas, 4);
    let data = answer.data();
    let failed = data.last().unwrap();
    assert_eq!(failed["type"], "response.failed");
    assert_eq!(failed["response"]["output"].as_array().unwrap().len(), 1);
    assert!(
        failed["response"]["usage"]["output_tokens"]
            .as_u64()
            .unwrap()
            > 0
    );
}

#[tokio::test]
async fn a_cut_may_fall_inside_a_frame() {
    let sim = one([Step::Cut(Cut {
        after: 2,
        mid_frame: true,
    })]);
    let answer = ask(&sim, "/v1/chat/completions", true).await;
    assert_eq!(answer.ends, Ends::Fin);
    assert!(
        !answer.raw.ends_with(b"\r\n"),
        "the last chunk is incomplete"
    );
}

#[tokio::test]
async fn a_length_that_is_too_small_leaves_stray_bytes() {
    let sim = one([Step::LyingLength(Announce::Less)]);
    let mut peer = Peer::connect(&sim).await;
    peer.send(&request("POST", "/v1/responses", "sk-a", &body(false)))
        .await;
    let answer = peer.answer().await;
    assert_eq!(answer.ends, Ends::Whole);
    assert!(serde_json::from_str::<serde_json::Value>(&answer.body).is_err());
    peer.wait_for("}").await;
}

#[tokio::test]
async fn a_second_last_chunk_waits_on_the_kept_connection() {
    let sim = one([Step::DoubleChunkEnd]);
    let mut peer = Peer::connect(&sim).await;
    peer.send(&request("POST", "/v1/responses", "sk-a", &body(true)))
        .await;
    assert_eq!(peer.answer().await.ends, Ends::Whole);
    peer.wait_for("0\r\n\r\n").await;
    assert_eq!(peer.rest, b"0\r\n\r\n");
}

#[tokio::test]
async fn an_early_503_comes_while_the_body_is_still_being_sent() {
    let early = Early503 {
        after_body_bytes: 1000,
        reset: false,
    };
    let sim = one([Step::Early503(early)]);
    let mut peer = Peer::connect(&sim).await;
    let head = "POST /v1/responses HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer sk-a\r\n\
                content-length: 9000000\r\n\r\n";
    peer.send(head).await;
    peer.send(vec![b'x'; 1000]).await;
    let answer = peer.answer().await;
    assert_eq!(answer.status, Some(503));
    // What comes afterwards is thrown away and no RST destroys the answer; then FIN.
    peer.send(vec![b'x'; 100_000]).await;
    assert_eq!(peer.answer().await.ends, Ends::Fin);
    assert_eq!(sim.log()[0].body_bytes, 1000);
}

#[tokio::test]
async fn an_early_503_may_be_followed_by_a_reset() {
    let sim = one([Step::Early503(Early503 {
        after_body_bytes: 0,
        reset: true,
    })]);
    let mut peer = Peer::connect(&sim).await;
    peer.send("POST /v1/responses HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer sk-a\r\n")
        .await;
    peer.send("expect: 100-continue\r\ncontent-length: 10\r\n\r\n")
        .await;
    let answer = peer.answer().await;
    assert_eq!(answer.status, Some(503), "and no 100 before it");
    assert_eq!(peer.answer().await.ends, Ends::Rst);
}

#[tokio::test]
async fn keepalives_can_be_comments() {
    let step = KeepalivesForever {
        gap: Duration::from_millis(1),
        comments: true,
    };
    let sim = one([Step::KeepalivesForever(step)]);
    let mut peer = Peer::connect(&sim).await;
    peer.send(&request("POST", "/v1/responses", "sk-a", &body(true)))
        .await;
    let answer = peer.answer_up_to(4096).await;
    let comments = answer
        .events()
        .iter()
        .filter(|frame| *frame == ": keepalive")
        .count();
    assert!(comments > 10, "{comments}");
}

#[test]
fn flap_follows_the_clock_chance_its_draw_and_seats_what_is_under_way() {
    let flap = Step::Flap(Flap {
        period: Duration::from_secs(10),
        refuse: Box::new(Step::refuse(Shape::Http503)),
        admit: Box::new(Step::admit()),
    });
    let at = |seconds| flap.resolve(Duration::from_secs(seconds), 0, 0).name();
    assert_eq!(
        [at(0), at(9), at(10), at(19), at(20)],
        ["refuse", "refuse", "admit", "admit", "refuse"]
    );
    let chance = Step::Chance(Chance {
        percent: 30,
        refuse: Box::new(Step::refuse(Shape::Http503)),
        admit: Box::new(Step::admit()),
        seed: None,
    });
    let refused =
        (0..100).filter(|draw| chance.resolve(Duration::ZERO, *draw, 0).name() == "refuse");
    assert_eq!(refused.count(), 30);
    let seats = Step::Seats(Seats {
        count: 2,
        refuse: Box::new(Step::refuse(Shape::Http503)),
        admit: Box::new(Step::admit()),
    });
    let at = |in_flight| seats.resolve(Duration::ZERO, 0, in_flight).name();
    assert_eq!([at(0), at(1), at(2)], ["admit", "admit", "refuse"]);
}

#[tokio::test]
async fn chance_is_the_same_in_every_run_and_near_its_percentage() {
    let step = Step::Chance(Chance {
        percent: 30,
        refuse: Box::new(Step::refuse(Shape::Http503)),
        admit: Box::new(Step::admit()),
        seed: Some(42),
    });
    let mut runs = Vec::new();
    for _ in 0..2 {
        let sim = one([step.clone()]);
        let mut peer = Peer::connect(&sim).await;
        let mut statuses = Vec::new();
        for _ in 0..200 {
            peer.send(&request("POST", "/v1/responses", "sk-a", &body(false)))
                .await;
            statuses.push(peer.answer().await.status);
        }
        runs.push(statuses);
    }
    assert_eq!(runs[0], runs[1]);
    let refused = runs[0]
        .iter()
        .filter(|status| **status == Some(503))
        .count();
    assert!((40..=80).contains(&refused), "{refused} of 200");
}
