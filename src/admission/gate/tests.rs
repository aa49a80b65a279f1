use super::*;
use crate::admission::Dialect;
use crate::admission::Verdict;
use crate::admission::rules::tests::reading;
use proptest::prelude::*;

const CREATED: &str = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"instructions\":\"Selected model is at capacity\"}}\n\n";
const ERROR: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"code\":\"server_is_overloaded\",\"message\":\"busy\"},\"sequence_number\":2}\n\n";
const FAILED: &str = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"r\",\"error\":{\"code\":\"server_is_overloaded\",\"message\":\"busy\"},\"output\":[]}}\n\n";
const DELTA: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Selected model is at capacity\"}\n\n";

fn head(status: u16, media: Media) -> AnswerHead {
    AnswerHead {
        status,
        media,
        challenge: false,
        spent: false,
        bodiless: false,
    }
}

fn gate(head: AnswerHead) -> (Gate, Step) {
    Gate::new(
        Endpoint::Responses,
        reading(Dialect::OpenAi),
        head,
        true,
        1 << 20,
    )
}

/// The first step that decides, the position of the piece that brought it, and what is held then.
fn run(head: AnswerHead, pieces: &[&[u8]]) -> (Step, Vec<u8>) {
    let (mut gate, mut step) = gate(head);
    for piece in pieces {
        if !matches!(step, Step::Hold | Step::AwaitTerminal) {
            break;
        }
        step = gate.push(Bytes::copy_from_slice(piece));
    }
    if matches!(step, Step::Hold | Step::AwaitTerminal) {
        step = gate.end();
    }
    (step, gate.into_held().concat())
}

fn verdict(step: &Step) -> Option<Verdict> {
    match step {
        Step::Refuse(refusal) => Some(refusal.ruling.verdict),
        _ => None,
    }
}

#[test]
fn a_refusal_is_found_wherever_the_network_cuts() {
    let refused = [CREATED, ERROR, FAILED].concat();
    for text in [
        refused.clone(),
        refused.replace('\n', "\r\n"),
        refused.replace('\n', "\r"),
        format!("\u{feff}{refused}"),
        refused.trim_end().to_owned(),
    ] {
        let bytes = text.as_bytes();
        for media in [Media::Stream, Media::Unstated] {
            for cut in 0..=bytes.len() {
                let (step, _) = run(head(200, media), &[&bytes[..cut], &bytes[cut..]]);
                assert_eq!(
                    verdict(&step),
                    Some(Verdict::Capacity),
                    "cut at {cut}: {text:?}"
                );
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            let (step, _) = run(head(200, media), &single);
            assert_eq!(verdict(&step), Some(Verdict::Capacity), "byte by byte");
        }
    }
}

#[test]
fn output_commits_wherever_the_network_cuts_and_keeps_every_byte() {
    let text = [CREATED, DELTA, FAILED].concat();
    let bytes = text.as_bytes();
    for cut in 0..=bytes.len() {
        let pieces = [&bytes[..cut], &bytes[cut..]];
        let (step, held) = run(head(200, Media::Stream), &pieces);
        assert_eq!(step, Step::Commit(CommitReason::Output), "cut at {cut}");
        assert!(bytes.starts_with(&held), "cut at {cut}");
        assert!(held.len() >= CREATED.len() + DELTA.len(), "cut at {cut}");
    }
}

#[test]
fn a_bare_error_waits_and_then_refuses() {
    let (mut gate, _) = gate(head(200, Media::Stream));
    assert_eq!(gate.push(Bytes::from(CREATED)), Step::Hold);
    assert_eq!(gate.push(Bytes::from(ERROR)), Step::AwaitTerminal);
    assert_eq!(gate.push(Bytes::from(": ping\n\n")), Step::AwaitTerminal);
    assert_eq!(verdict(&gate.give_up_waiting()), Some(Verdict::Capacity));
}

#[test]
fn a_bare_error_at_the_end_refuses() {
    let (step, _) = run(
        head(200, Media::Stream),
        &[CREATED.as_bytes(), ERROR.as_bytes()],
    );
    assert_eq!(verdict(&step), Some(Verdict::Capacity));
}

#[test]
fn a_failure_that_reports_output_commits() {
    let failed = FAILED.replace("\"output\":[]", "\"output\":[{\"type\":\"message\"}]");
    let (step, _) = run(head(200, Media::Stream), &[failed.as_bytes()]);
    assert_eq!(step, Step::Commit(CommitReason::Output));
}

#[test]
fn the_byte_limit_commits() {
    let (mut gate, _) = Gate::new(
        Endpoint::Responses,
        reading(Dialect::OpenAi),
        head(200, Media::Stream),
        true,
        100,
    );
    assert_eq!(gate.push(Bytes::from(vec![b'x'; 100])), Step::Hold);
    assert_eq!(
        gate.push(Bytes::from_static(b"x")),
        Step::Commit(CommitReason::HoldLimit)
    );
    assert_eq!(gate.into_held().concat().len(), 101);
}

#[test]
fn a_stream_that_ends_without_an_answer_is_refused() {
    for text in ["", CREATED, ": ping\n\n"] {
        let (step, _) = run(head(200, Media::Stream), &[text.as_bytes()]);
        assert_eq!(verdict(&step), Some(Verdict::Transient), "{text:?}");
    }
}

#[test]
fn documents_are_judged_whole() {
    let busy =
        r#"{"error":{"message":"Selected model is at capacity.","code":"server_is_overloaded"}}"#;
    let quoting =
        r#"{"status":"completed","error":null,"output":[{"text":"server_is_overloaded"}]}"#;
    let page = "<html><h1>We'll be right back</h1></html>";
    for (status, media, body, expected, shape) in [
        (
            200,
            Media::Json,
            busy,
            Some(Verdict::Capacity),
            Some(Shape::Json200),
        ),
        (
            200,
            Media::Unstated,
            busy,
            Some(Verdict::Capacity),
            Some(Shape::Json200),
        ),
        (
            503,
            Media::Json,
            busy,
            Some(Verdict::Capacity),
            Some(Shape::Http503),
        ),
        (
            400,
            Media::Json,
            busy,
            Some(Verdict::Capacity),
            Some(Shape::Http400),
        ),
        (200, Media::Json, quoting, None, None),
        (
            200,
            Media::Page,
            page,
            Some(Verdict::Transient),
            Some(Shape::Json200),
        ),
        (
            200,
            Media::Unstated,
            page,
            Some(Verdict::Transient),
            Some(Shape::Json200),
        ),
        (
            403,
            Media::Page,
            page,
            Some(Verdict::Challenge),
            Some(Shape::Http400),
        ),
        (
            403,
            Media::Json,
            "{}",
            Some(Verdict::Forbidden),
            Some(Shape::Http400),
        ),
        (
            520,
            Media::Page,
            page,
            Some(Verdict::Transient),
            Some(Shape::Http500),
        ),
        (
            503,
            Media::Unstated,
            "upstream connect error",
            Some(Verdict::Transient),
            Some(Shape::Http503),
        ),
        (
            529,
            Media::Stream,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
            Some(Verdict::Capacity),
            Some(Shape::Http529),
        ),
    ] {
        for cut in 0..=body.len() {
            let pieces = [&body.as_bytes()[..cut], &body.as_bytes()[cut..]];
            let (step, held) = run(head(status, media), &pieces);
            assert_eq!(verdict(&step), expected, "{status} {body} cut at {cut}");
            if let Step::Refuse(refusal) = &step {
                assert_eq!(Some(refusal.shape), shape, "{status} {body}");
            } else {
                assert_eq!(step, Step::Commit(CommitReason::Complete));
                assert_eq!(held, body.as_bytes());
            }
        }
    }
}

#[test]
fn what_berth_does_not_read_commits_at_once() {
    let (_, step) = gate(AnswerHead {
        bodiless: true,
        ..head(204, Media::Unstated)
    });
    assert_eq!(step, Step::Commit(CommitReason::Complete));
    let (_, step) = Gate::new(
        Endpoint::Other,
        reading(Dialect::OpenAi),
        head(200, Media::Other),
        false,
        100,
    );
    assert_eq!(step, Step::Commit(CommitReason::Opaque));
}

#[test]
fn the_error_that_says_more_decides() {
    let silent = FAILED.replace(
        "\"error\":{\"code\":\"server_is_overloaded\",\"message\":\"busy\"},",
        "",
    );
    let (step, _) = run(
        head(200, Media::Stream),
        &[ERROR.as_bytes(), silent.as_bytes()],
    );
    assert_eq!(verdict(&step), Some(Verdict::Capacity));
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_never_panic_and_never_lose(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                Just(CREATED.as_bytes().to_vec()),
                Just(DELTA.as_bytes().to_vec()),
                Just(ERROR.as_bytes().to_vec()),
                Just(FAILED.as_bytes().to_vec()),
            ],
            0..12,
        ),
        status in prop_oneof![Just(200u16), Just(503), Just(403)],
        media in prop_oneof![Just(Media::Stream), Just(Media::Json), Just(Media::Unstated)],
    ) {
        let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let (step, held) = run(head(status, media), &slices);
        prop_assert!(!matches!(step, Step::Hold | Step::AwaitTerminal));
        prop_assert!(pieces.concat().starts_with(&held));
    }
}
