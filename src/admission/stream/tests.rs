use super::*;
use crate::admission::Dialect;
use crate::admission::Verdict;
use crate::admission::Withheld;
use crate::admission::rules::tests::reading;
use proptest::prelude::*;

const CREATED: &str = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\"},\"sequence_number\":0}\n\n";
const DELTA: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"server_is_overloaded\",\"sequence_number\":1}\n\n";
const ERROR: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"code\":\"server_is_overloaded\",\"message\":\"busy\"},\"sequence_number\":4}\n\n";
const FAILED: &str = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"resp_1\",\"error\":{\"code\":\"server_is_overloaded\",\"message\":\"busy\"}},\"sequence_number\":5}\n\n";
const COMPLETED: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":15,\"output_tokens\":2}},\"sequence_number\":5}\n\n";

fn responses() -> Stream {
    Stream::events(
        Endpoint::Responses,
        reading(Dialect::OpenAi),
        ClientErrorCode::Replace("server_error".into()),
    )
}

/// What the client gets, and how it ended.
fn run(mut stream: Stream, pieces: &[&[u8]]) -> (String, Option<Ending>, Stream) {
    let mut out = Vec::new();
    for piece in pieces {
        if stream.pass(Bytes::copy_from_slice(piece), &mut out) == Flow::EndNow {
            return (text(&out), None, stream);
        }
    }
    let ending = stream.end(&mut out);
    (text(&out), Some(ending), stream)
}

fn text(out: &[Bytes]) -> String {
    String::from_utf8(out.concat()).unwrap()
}

#[test]
fn a_healthy_stream_passes_untouched_wherever_it_is_cut() {
    for line_end in ["\n", "\r\n", "\r"] {
        let text = [CREATED, DELTA, ": ping\n\n", DELTA, COMPLETED]
            .concat()
            .replace('\n', line_end);
        for cut in 0..=text.len() {
            let (first, rest) = text.as_bytes().split_at(cut);
            let (got, ending, stream) = run(responses(), &[first, rest]);
            assert_eq!(got, text, "cut at {cut}");
            assert_eq!(ending, Some(Ending::Complete), "cut at {cut}");
            assert_eq!(stream.usage().output, 2);
        }
        let single: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(run(responses(), &single).0, text);
    }
}

#[test]
fn a_failure_is_rewritten_wherever_it_is_cut_and_ends_the_body() {
    let text = [CREATED, DELTA, ERROR, FAILED].concat();
    let expected = [
        CREATED.to_owned(),
        DELTA.to_owned(),
        ERROR.replace("server_is_overloaded", "server_error"),
        FAILED.replace("server_is_overloaded", "server_error"),
    ]
    .concat();
    for cut in 0..=text.len() {
        let (first, rest) = text.as_bytes().split_at(cut);
        let (got, ending, stream) = run(responses(), &[first, rest]);
        assert_eq!(got, expected, "cut at {cut}");
        assert_eq!(ending, None, "cut at {cut}");
        let failure = stream.failure().unwrap();
        assert_eq!(failure.ruling.verdict, Verdict::Capacity);
        assert_eq!(failure.facts.code.as_deref(), Some("server_is_overloaded"));
        assert_eq!(stream.rewritten(), Some(("server_is_overloaded", 2)));
    }
}

#[test]
fn a_bare_error_gets_its_terminal_frame() {
    let mut stream = responses();
    let mut out = Vec::new();
    let start = Bytes::from([CREATED, DELTA].concat());
    assert_eq!(stream.pass(start, &mut out), Flow::Continue);
    assert_eq!(
        stream.pass(Bytes::from(ERROR), &mut out),
        Flow::AwaitTerminal
    );
    stream.give_up_waiting(&mut out);
    stream.give_up_waiting(&mut out);
    let got = text(&out);
    assert_eq!(got.matches("event: response.failed").count(), 1);
    assert!(!got.contains("\"code\":\"server_is_overloaded\""));
    let data = got.rsplit_once("data: ").unwrap().1;
    let data: serde_json::Value = serde_json::from_str(data.trim()).unwrap();
    assert_eq!(data["sequence_number"], 5);
    assert_eq!(data["response"]["id"], "resp_1");
    assert_eq!(data["response"]["error"]["code"], "server_error");
    assert_eq!(data["response"]["error"]["message"], "busy");
    assert!(stream.synthesised());
}

#[test]
fn what_the_upstream_must_not_say_is_taken_out_of_failures_alone() {
    const KEY: &str = "sk-0123456789abcdefghij";
    let stream = || {
        let reading = Reading {
            withheld: Withheld::new([KEY.into()]),
            ..reading(Dialect::OpenAi)
        };
        Stream::events(Endpoint::Responses, reading, ClientErrorCode::Keep)
    };
    let delta = DELTA.replace("server_is_overloaded", KEY);
    let (error, failed) = (ERROR.replace("busy", KEY), FAILED.replace("busy", KEY));
    let (clean_error, clean_failed) = (ERROR.replace("busy", "***"), FAILED.replace("busy", "***"));
    let text = [CREATED, &delta, &error, &failed].concat();
    let expected = [CREATED, &delta, &clean_error, &clean_failed].concat();
    for cut in 0..=text.len() {
        let (first, rest) = text.as_bytes().split_at(cut);
        let (got, _, stream) = run(stream(), &[first, rest]);
        assert_eq!(got, expected, "cut at {cut}");
        let told = stream.failure().unwrap().facts.message.clone();
        assert_eq!(told.as_deref(), Some("***"));
    }
    // Nor does the terminal frame that is added say it.
    let (got, _, stream) = run(stream(), &[CREATED.as_bytes(), error.as_bytes()]);
    assert!(stream.synthesised());
    assert!(
        got.contains("response.failed") && !got.contains(KEY),
        "{got}"
    );
}

#[test]
fn an_end_without_a_terminal_frame_is_truncated() {
    let (_, ending, _) = run(responses(), &[CREATED.as_bytes(), DELTA.as_bytes()]);
    assert_eq!(ending, Some(Ending::Truncated));
    let (_, ending, _) = run(
        responses(),
        &[b"data: {\"type\":\"response.created\",\"x\":\"xx"],
    );
    assert_eq!(ending, Some(Ending::Truncated));
}

#[test]
fn a_chat_is_complete_when_its_choices_are() {
    let chat = |text: &str| {
        let stream = Stream::events(
            Endpoint::Chat,
            reading(Dialect::OpenAi),
            ClientErrorCode::Keep,
        );
        let (got, ending, _) = run(stream, &[text.as_bytes()]);
        assert_eq!(got, text);
        ending
    };
    let open = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
    let last = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    assert_eq!(chat(open), Some(Ending::Truncated));
    assert_eq!(chat(&[open, last].concat()), Some(Ending::Complete));
    assert_eq!(
        chat(&[open, "data: [DONE]\n\n"].concat()),
        Some(Ending::Complete)
    );
    let error = "data: {\"choices\":[{\"finish_reason\":\"error\"}],\"error\":{\"code\":502}}\n\n";
    assert_eq!(chat(&[open, error].concat()), None);
}

#[test]
fn messages_end_with_message_stop_or_an_error() {
    let messages = |text: &str| {
        let stream = Stream::events(
            Endpoint::Messages,
            reading(Dialect::Anthropic),
            ClientErrorCode::Keep,
        );
        run(stream, &[text.as_bytes()]).1
    };
    let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let error =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    assert_eq!(messages(delta), Some(Ending::Truncated));
    assert_eq!(messages(&[delta, stop].concat()), Some(Ending::Complete));
    assert_eq!(messages(&[delta, error].concat()), None);
}

#[test]
fn text_does_not_wait_for_the_end_of_its_frame() {
    let mut stream = responses();
    let mut out = Vec::new();
    let start = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hel";
    stream.pass(Bytes::from(start), &mut out);
    assert_eq!(text(&out), start);
}

#[test]
fn an_endless_frame_is_let_go() {
    let mut stream = responses();
    let mut out = Vec::new();
    stream.pass(Bytes::from_static(b"event: error\ndata: "), &mut out);
    for _ in 0..20 {
        stream.pass(Bytes::from(vec![b'x'; LONGEST_WAIT / 10]), &mut out);
    }
    let sent: usize = out.iter().map(Bytes::len).sum();
    assert!(sent > LONGEST_WAIT, "{sent}");
}

proptest! {
    #[test]
    fn what_is_no_failure_passes_byte_for_byte(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..30),
                Just(DELTA.as_bytes().to_vec()),
                Just(CREATED.as_bytes().to_vec()),
                Just(b"data: {\"choices\":[]}\n\n".to_vec()),
            ],
            0..12,
        ),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
        endpoint in prop_oneof![Just(Endpoint::Responses), Just(Endpoint::Chat), Just(Endpoint::Messages)],
    ) {
        let whole = pieces.concat();
        let mut ends: Vec<usize> = cuts.iter().map(|c| c % (whole.len() + 1)).collect();
        ends.push(whole.len());
        ends.sort_unstable();
        let mut stream = Stream::events(
            endpoint, reading(Dialect::OpenAi), ClientErrorCode::Replace("server_error".into()),
        );
        let (mut out, mut start, mut ended) = (vec![], 0, false);
        for end in ends {
            let piece = Bytes::copy_from_slice(&whole[start..end]);
            start = end;
            if stream.pass(piece, &mut out) == Flow::EndNow {
                ended = true;
                break;
            }
        }
        if !ended {
            stream.end(&mut out);
        }
        prop_assert!(ended || stream.failure().is_some() || out.concat() == whole);
    }
}
