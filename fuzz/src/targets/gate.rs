//! The gate: any head, any bytes, any cuts, the same step as one who reads all of it again each time.

use bytes::Bytes;

use crate::admission::day::Day;
use crate::admission::dialect::{Dialect, Endpoint};
use crate::admission::facts::Facts;
use crate::admission::frame::{Meaning, meaning};
use crate::admission::gate::{AnswerHead, CommitReason, Gate, Media, Step};
use crate::admission::rules::Reading;
use crate::admission::sse::Event;
use crate::admission::verdict::Shape;

use super::Choices;
use super::splitter::by_the_standard;

/// Panics if the gate steps otherwise than the model, by the cuts, or loses a byte that it held.
pub fn run(bytes: &[u8]) {
    let Some((choices, body)) = Choices::split(bytes) else {
        return;
    };
    let answer = Answer::of(choices);
    let (mut gate, first) = answer.gate();
    if first != Step::Hold {
        let opaque = Step::Commit(CommitReason::Opaque);
        let complete = Step::Commit(CommitReason::Complete);
        assert!(answer.head.status < 400 && (first == opaque || first == complete));
        return;
    }
    let mut came = 0;
    let mut step = first;
    for piece in choices.cut(body) {
        came += piece.len();
        step = gate.push(Bytes::copy_from_slice(piece));
        let prefix = &body[..came];
        assert_eq!(decision(&step), answer.model(prefix), "after {came} bytes");
        let (mut whole, _) = answer.gate();
        let at_once = whole.push(Bytes::copy_from_slice(prefix));
        assert_eq!(
            step, at_once,
            "the cuts changed the step after {came} bytes"
        );
        if !matches!(step, Step::Hold | Step::AwaitTerminal) {
            break;
        }
    }
    if matches!(step, Step::Hold | Step::AwaitTerminal) {
        let end = match (&step, choices.bits(4) % 2) {
            (Step::AwaitTerminal, 1) => {
                let end = gate.give_up_waiting();
                assert_eq!(decision(&end), Decision::Refuse(Shape::Sse));
                end
            }
            _ => {
                let end = gate.end();
                assert_eq!(decision(&end), answer.model_at_end(body), "at the end");
                end
            }
        };
        assert!(matches!(end, Step::Commit(_) | Step::Refuse(_)), "{end:?}");
    }
    assert_eq!(gate.held_bytes(), came);
    assert_eq!(
        gate.into_held().concat(),
        &body[..came],
        "what was held is not what came"
    );
}

/// What a step decides, without what a refusal stands on.
#[derive(Debug, PartialEq)]
enum Decision {
    Hold,
    AwaitTerminal,
    Commit(CommitReason),
    Refuse(Shape),
}

fn decision(step: &Step) -> Decision {
    match step {
        Step::Hold => Decision::Hold,
        Step::AwaitTerminal => Decision::AwaitTerminal,
        Step::Commit(reason) => Decision::Commit(*reason),
        Step::Refuse(refusal) => Decision::Refuse(refusal.shape),
    }
}

/// What is known before the first byte.
struct Answer {
    endpoint: Endpoint,
    dialect: Dialect,
    head: AnswerHead,
    streamed: bool,
    max_bytes: usize,
}

/// What a body is read as.
#[derive(PartialEq)]
enum Body {
    NotKnown,
    Frames,
    Document,
    Page,
}

impl Answer {
    fn of(choices: Choices) -> Answer {
        let endpoints = [
            Endpoint::Responses,
            Endpoint::Chat,
            Endpoint::Messages,
            Endpoint::Document,
            Endpoint::Models,
            Endpoint::Other,
        ];
        let media = [
            Media::Stream,
            Media::Json,
            Media::Page,
            Media::Other,
            Media::Coded,
            Media::Unstated,
        ];
        let flag = |bit: u8| choices.bits(3) >> bit & 1 == 1;
        let endpoint = choices.pick(0, &endpoints);
        Answer {
            endpoint,
            dialect: match endpoint {
                Endpoint::Messages => Dialect::Anthropic,
                _ => Dialect::OpenAi,
            },
            head: AnswerHead {
                status: choices.pick(1, &[200, 201, 400, 429, 500, 503]),
                media: choices.pick(2, &media),
                challenge: flag(0),
                spent: flag(1),
                bodiless: flag(2) && flag(3),
            },
            streamed: flag(4),
            max_bytes: choices.pick(5, &[4096, 64, 512, 1 << 20]),
        }
    }

    fn gate(&self) -> (Gate, Step) {
        let reading = Reading {
            rules: Default::default(),
            today: Day::default(),
            dialect: self.dialect,
            upstream: "upstream".into(),
            withheld: Default::default(),
        };
        Gate::new(
            self.endpoint,
            reading,
            self.head,
            self.streamed,
            self.max_bytes,
        )
    }

    /// What follows once `came` has come.
    fn model(&self, came: &[u8]) -> Decision {
        let decided = match self.body(came) {
            Body::Frames => self.frames(came, false),
            Body::NotKnown | Body::Document | Body::Page => Decision::Hold,
        };
        match decided {
            Decision::Hold | Decision::AwaitTerminal if came.len() > self.max_bytes => {
                match self.head.status {
                    400.. => Decision::Refuse(Shape::of_status(self.head.status)),
                    _ => Decision::Commit(CommitReason::HoldLimit),
                }
            }
            decided => decided,
        }
    }

    /// What follows once the body has ended.
    fn model_at_end(&self, body: &[u8]) -> Decision {
        if self.head.status >= 400 {
            return Decision::Refuse(Shape::of_status(self.head.status));
        }
        let json = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(json).is_ok();
        match self.body(body) {
            Body::Frames => self.frames(body, true),
            Body::Page => Decision::Refuse(Shape::of_status(self.head.status)),
            Body::NotKnown if self.endpoint == Endpoint::Models && !self.streamed => {
                Decision::Commit(CommitReason::Complete)
            }
            Body::Document if is_json && Facts::of_failed_document(body).is_none() => {
                Decision::Commit(CommitReason::Complete)
            }
            Body::NotKnown | Body::Document => Decision::Refuse(Shape::Json200),
        }
    }

    fn body(&self, came: &[u8]) -> Body {
        let first = came
            .iter()
            .find(|byte| !byte.is_ascii_whitespace() && !b"\xef\xbb\xbf".contains(byte));
        match (self.head.media, first) {
            _ if self.head.status >= 400 => Body::Document,
            (Media::Stream, _) => Body::Frames,
            (Media::Page, _) => Body::Page,
            (_, None) => Body::NotKnown,
            (_, Some(b'{' | b'[')) => Body::Document,
            (_, Some(b'<')) => Body::Page,
            (Media::Json, Some(first)) if !b":dei".contains(first) => Body::Document,
            _ => Body::Frames,
        }
    }

    fn frames(&self, came: &[u8], ended: bool) -> Decision {
        let mut events = by_the_standard(came);
        if !ended {
            events.pop();
        }
        let mut error = false;
        for (name, data) in &events {
            let event = Event {
                name: name.as_deref(),
                data: data.as_deref().map(Into::into),
            };
            match meaning(self.endpoint, &event) {
                Meaning::Neutral => {}
                Meaning::Error(_) => error = true,
                Meaning::Output | Meaning::Failed { output: true, .. } => {
                    return Decision::Commit(CommitReason::Output);
                }
                Meaning::Failed { .. } => return Decision::Refuse(Shape::Sse),
            }
        }
        match (ended, error) {
            (true, _) => Decision::Refuse(Shape::Sse),
            (false, true) => Decision::AwaitTerminal,
            (false, false) => Decision::Hold,
        }
    }
}
