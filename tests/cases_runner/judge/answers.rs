//! What the client got: status, head, end and times. The body is judged next door.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Evidence, Findings, allows, body, socket};
use crate::cases_runner::exchange::{Answer, Ending, values};
use crate::cases_runner::format::{ClientExpect, HeadersExpect};
use crate::cases_runner::http1::{find, frames};

pub fn judge(evidence: &Evidence<'_>, findings: &mut Findings) {
    let expect = &evidence.case.expect.client;
    let one = |value: &Value, answer: &Answer, findings: &mut Findings| match serde_json::from_value::<
        ClientExpect,
    >(value.clone())
    {
        Ok(expect) => against(&expect, answer, evidence, findings),
        Err(e) => findings.check(false, "client", &value.to_string(), e.to_string()),
    };
    match expect {
        Value::Null => {}
        Value::String(gone) if gone == "gone" => {
            for answer in &evidence.answers {
                let told = format!("{:?}", answer.ending);
                findings.check(answer.ending == Ending::Left, "client", "gone", told);
            }
        }
        Value::Array(list) => {
            for value in list {
                let n = value["request"].as_u64().unwrap_or(1) as usize;
                match evidence.answers.get(n - 1) {
                    Some(answer) => one(value, answer, findings),
                    None => findings.check(false, "client", "an answer", format!("none to {n}")),
                }
            }
        }
        each if each.get("each").is_some() => {
            for answer in &evidence.answers {
                one(&each["each"], answer, findings);
            }
        }
        value => match evidence.answers.as_slice() {
            [answer] => one(value, answer, findings),
            many => findings.check(false, "client", "one answer", many.len().to_string()),
        },
    }
}

fn against(expect: &ClientExpect, answer: &Answer, at: &Evidence<'_>, findings: &mut Findings) {
    let told = format!("{} ({:?})", answer.status, answer.ending);
    findings.check(
        allows(&expect.status, answer.status),
        "status",
        &expect.status.to_string(),
        told,
    );
    if let Some(wanted) = &expect.content_type {
        let got = values(&answer.headers, "content-type").join(", ");
        findings.check(
            got.starts_with(wanted.as_str()),
            "content_type",
            wanted,
            got,
        );
    }
    if let Some(expected) = &expect.body {
        body::judge(expected, answer, at, findings);
    }
    if let Some(expected) = &expect.headers {
        headers(expected, answer, findings);
    }
    for sentence in &expect.never {
        never(sentence, answer, at, findings);
    }
    timing(&expect.timing, answer, at, findings);
    end(expect, answer, at, findings);
    if let Some(connection) = &expect.connection {
        let fine = connection == "closed" && answer.closed == Some(true);
        findings.check(
            fine,
            "connection",
            connection,
            format!("closed: {:?}", answer.closed),
        );
    }
    if let Some(sentence) = &expect.interim {
        let known = sentence == "one 100 within 100 ms, never forwarded twice";
        let within = |at: &Instant| at.duration_since(answer.started) <= Duration::from_millis(100);
        let fine = matches!(answer.interim.as_slice(), [(100, at)] if within(at));
        let got: Vec<_> = answer
            .interim
            .iter()
            .map(|(status, at)| (status, at.duration_since(answer.started)))
            .collect();
        findings.check(known && fine, "interim", sentence, format!("{got:?}"));
    }
    if !expect.one_of.is_empty() {
        let fits = |form: &ClientExpect| {
            let mut trial = Findings::default();
            against(form, answer, at, &mut trial);
            trial.problems.is_empty()
        };
        let fine = expect.one_of.iter().any(fits);
        let told = format!("{} {:?}", answer.status, answer.ending);
        findings.check(fine, "one_of", "one of the forms that the case lists", told);
    }
    if let Some(ws) = &expect.ws {
        socket::judge(ws, answer, at, findings);
    }
    if let Some(sentence) = &expect.second_response {
        // Either is right; that it is neither tunnelled nor awaited for ever is judged by the end.
        let known = sentence == "answered by the balancer as its own request, or connection closed";
        let told = format!("{:?}", answer.second);
        findings.check(
            known && answer.second != Some(101),
            "second_response",
            sentence,
            told,
        );
    }
}

/// A broken end is a failure unless the case asks for it, also where it says nothing.
fn end(expect: &ClientExpect, answer: &Answer, at: &Evidence<'_>, findings: &mut Findings) {
    let told = format!("{:?}", answer.ending);
    let left = at.case.requests().is_ok_and(|plan| {
        plan.requests
            .iter()
            .any(|request| !request.actions.is_empty())
    });
    match expect.end.as_deref() {
        Some(sentence) if sentence.starts_with("broken") => {
            let broken = matches!(answer.ending, Ending::Broken(_));
            findings.check(broken, "end", sentence, told);
        }
        Some(sentence @ ("clean" | "END_STREAM, no RST_STREAM")) => {
            findings.check(answer.ending == Ending::Clean, "end", sentence, told);
        }
        None if left => {}
        None => findings.check(answer.ending == Ending::Clean, "end", "a clean end", told),
        Some(sentence) => findings.unknown("end", sentence),
    }
}

fn headers(expect: &HeadersExpect, answer: &Answer, findings: &mut Findings) {
    let get = |name: &str| values(&answer.headers, name);
    for sentence in &expect.must {
        let aspect = "headers.must";
        let lengths = get("content-length");
        let (fine, got) = match sentence.as_str() {
            "content-length equals body length" => {
                let length = answer.body.len().to_string();
                (
                    lengths.iter().all(|v| *v == length),
                    format!("{lengths:?}, body {length}"),
                )
            }
            "exactly one content-length" => (lengths.len() == 1, format!("{lengths:?}")),
            "content-encoding agrees with the bytes" => {
                let coding = get("content-encoding");
                let done = body::decoded(&answer.body, coding.first().copied());
                let text = done
                    .as_ref()
                    .is_ok_and(|text| std::str::from_utf8(text).is_ok());
                (text, format!("{coding:?}"))
            }
            "content-type may be absent or text/event-stream; never application/json" => {
                let kind = get("content-type");
                (
                    kind.iter().all(|v| v.starts_with("text/event-stream")),
                    format!("{kind:?}"),
                )
            }
            "all names lower case" => {
                let upper = answer
                    .headers
                    .iter()
                    .find(|(name, _)| name.to_lowercase() != *name);
                (upper.is_none(), format!("{upper:?}"))
            }
            other => match other.split_once(": ") {
                Some((name, wanted)) => literal(get(name), wanted),
                None => {
                    findings.unknown(aspect, other);
                    continue;
                }
            },
        };
        findings.check(fine, aspect, sentence, got);
    }
    for sentence in &expect.must_not {
        let (fine, got) = match sentence.as_str() {
            "transfer-encoding together with content-length" => {
                let both =
                    !get("transfer-encoding").is_empty() && !get("content-length").is_empty();
                (!both, String::new())
            }
            name => (get(name).is_empty(), format!("{:?}", get(name))),
        };
        findings.check(fine, "headers.must_not", sentence, got);
    }
}

/// A value, `integer >= 1`, `integer 4..7` or `ceil(min remaining), 1..4`.
fn literal(got: Vec<&str>, wanted: &str) -> (bool, String) {
    let told = format!("{got:?}");
    let number = got.first().and_then(|value| value.parse::<u64>().ok());
    if let Some(least) = wanted.strip_prefix("integer >= ") {
        let least = least.parse().unwrap_or(1);
        return (number.is_some_and(|number| number >= least), told);
    }
    let range = wanted
        .rsplit(' ')
        .next()
        .and_then(|range| range.split_once(".."));
    if let Some((low, high)) =
        range.and_then(|(low, high)| Some((low.parse::<u64>().ok()?, high.parse::<u64>().ok()?)))
    {
        return (
            number.is_some_and(|number| (low..=high).contains(&number)),
            told,
        );
    }
    (got == [wanted], told)
}

fn never(sentence: &str, answer: &Answer, at: &Evidence<'_>, findings: &mut Findings) {
    let anywhere = |text: &str| {
        // berth's own header names the code that was replaced; that is for people.
        let head = answer.head.to_lowercase();
        let mut lines = head
            .lines()
            .filter(|line| !line.starts_with("x-berth-rewrote"));
        lines.any(|line| line.contains(text)) || find(&answer.body, text.as_bytes()).is_some()
    };
    let sent = |text: &str| at.seen.iter().any(|received| received.head.contains(text));
    let met = match sentence {
        "server_is_overloaded or slow_down anywhere in head or body" => {
            anywhere("server_is_overloaded") || anywhere("slow_down")
        }
        "server_is_overloaded" | "text/html" => anywhere(sentence),
        "attempt on B" => at
            .seen
            .iter()
            .any(|received| received.label.as_deref() == Some("B")),
        "client secret upstream" => ["client-key-TESTONLY", "other-TESTONLY", "k-TESTONLY"]
            .iter()
            .any(|key| sent(key)),
        other => match other.trim_start_matches("status ").parse::<u16>() {
            Ok(status) => answer.status == status,
            Err(_) => match socket::never(other, answer, at) {
                Some(met) => met,
                None => return findings.unknown("never", other),
            },
        },
    };
    findings.check(!met, "never", sentence, answer.head.clone());
}

/// The output frames that the timing sentences speak of.
const DELTA: &str = "response.output_text.delta";

fn timing(expect: &Value, answer: &Answer, at: &Evidence<'_>, findings: &mut Findings) {
    let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_millis() as u64;
    let first = answer
        .pieces
        .first()
        .map(|(when, _)| ms(answer.sent, *when));
    let whole = ms(answer.sent, answer.ended);
    let between = |low: u64, high: u64| first.is_some_and(|first| (low..=high).contains(&first));
    let hold = at.case.setup.config.bootstrap_max_ms.unwrap_or(5_000);
    let told = format!("first byte after {first:?} ms, end after {whole} ms");
    if let Some(map) = expect.as_object() {
        for (key, value) in map {
            let limit = value.as_u64().unwrap_or(0);
            let fine = match key.as_str() {
                "end_max_ms" => whole <= limit,
                "first_byte_between" => between(
                    value[0].as_u64().unwrap_or(0),
                    value[1].as_u64().unwrap_or(0),
                ),
                "connection_reused" => at.answers.iter().any(|answer| answer.reused),
                _ => return findings.unknown("timing", key),
            };
            findings.check(fine, "timing", &format!("{key}: {value}"), told.clone());
        }
        return;
    }
    let Some(sentence) = expect.as_str() else {
        return;
    };
    let fine = match sentence {
        "completes" => answer.ending == Ending::Clean,
        "no 1 s stall" => ms(answer.started, answer.ended) < 1_000,
        "no body byte before 3600 ms" => first.is_some_and(|first| first >= 3_600),
        "answer within 1500 ms" => whole <= 1_500,
        "within 200 ms (or within the configured wait, if one is set)" => whole <= 200,
        "first byte between bootstrap_max_ms and bootstrap_max_ms + 1000" => {
            between(hold, hold + 1_000)
        }
        // The limit is crossed 0.64 s after the start; the answer as a whole takes 5 s.
        "first body byte soon after the hold limit is crossed" => between(0, 2_500),
        "next request on the same connection works (no bytes after the head)" => {
            at.answers.last().is_some_and(|last| last.reused)
        }
        "terminal frame and end of body within 1500 ms of the error frame" => {
            let error = at.seen.first().and_then(|received| received.written.last());
            error.is_some_and(|error| ms(*error, answer.ended) <= 1_500)
        }
        "first delta reaches the client < 350 ms; each later delta within 100 ms of its upstream write" =>
        {
            return deltas(answer, at, findings);
        }
        other => return findings.unknown("timing", other),
    };
    findings.check(fine, "timing", sentence, told);
}

fn deltas(answer: &Answer, at: &Evidence<'_>, findings: &mut Findings) {
    let got: Vec<Instant> = frames(&answer.body)
        .iter()
        .filter(|frame| frame.event == DELTA)
        .filter_map(|frame| answer.received(frame.end - 1))
        .collect();
    let steps = at
        .case
        .upstream
        .first()
        .map_or(&[][..], |entry| &entry.response.writes);
    let written: Vec<Instant> = steps
        .iter()
        .zip(
            at.seen
                .first()
                .map_or(&[][..], |received| &received.written),
        )
        .filter(|(write, _)| {
            write
                .bytes
                .as_ref()
                .is_some_and(|bytes| bytes.contains(DELTA))
        })
        .map(|(_, when)| *when)
        .collect();
    let late: Vec<u128> = got
        .iter()
        .zip(&written)
        .map(|(got, written)| got.saturating_duration_since(*written).as_millis())
        .collect();
    let first = got
        .first()
        .map(|when| when.duration_since(answer.sent).as_millis());
    let fine = got.len() == written.len()
        && !got.is_empty()
        && first.is_some_and(|first| first < 350)
        && late.iter().skip(1).all(|late| *late <= 100);
    let told = format!("first after {first:?} ms, each late by {late:?} ms");
    findings.check(
        fine,
        "timing",
        "first delta < 350 ms, the others within 100 ms",
        told,
    );
}
