//! What a credential may do with one request: admit it, refuse it in one of the known shapes, or
//! break the protocol in one of the ways that real upstreams and the networks before them do.
//!
//! A step is a plain value. It is written in YAML by its name (`hang`), or as its name with
//! parameters (`refuse: {shape: http_503}`), and built in Rust as the variant. What its bytes are is
//! decided in `script`, so that this file stays the list to read.
//!
//! Refused alternative: one `raw` step that carries literal bytes. It would express all of these,
//! but a program of it cannot be read, and the three dialects would need three texts for each idea.

pub use super::params::*;
use serde::de::value::{MapAccessDeserializer, MapDeserializer, StrDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, time::Duration};

/// What happens to one inference request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Step {
    /// A complete, correct answer.
    Admit(Admit),
    /// No seat, said in one of the known shapes.
    Refuse(Refuse),
    /// No seat, said after output: too late for anybody to fail over.
    RefuseAfterOutput(RefuseAfterOutput),
    /// 429 `rate_limit_exceeded`.
    RateLimit(RateLimit),
    /// 429 `usage_limit_reached`.
    Quota(Quota),
    /// 401 for a key that was valid once.
    Auth,
    /// 402: the account is closed.
    Deactivated,
    /// The account does not serve the model.
    Unsupported,
    /// A JSON 403 without a policy code.
    Forbidden,
    /// An HTML 403 of the edge in front of the upstream.
    Challenge,
    /// An HTML page under a 200, as a captive portal sends.
    #[serde(rename = "html_200")]
    Html200,
    /// A content policy refusal: no other account will see it differently.
    Policy,
    /// The client's own mistake: its context is too long.
    ClientError,
    /// State that lives on another account.
    State(State),
    /// The request is read, no byte is ever answered.
    Hang,
    /// A response head, then nothing.
    HangAfterHead,
    /// Lifecycle frames, then keepalives for ever.
    KeepalivesForever(KeepalivesForever),
    /// The connection is closed in mid stream.
    Cut(Cut),
    /// RST before any byte of a response.
    Reset,
    /// RST in mid stream.
    ResetAfter(ResetAfter),
    /// Bytes that are not HTTP.
    Garbage,
    /// Half a response head, then closed.
    HalfHead,
    /// A response head without end.
    EndlessHead,
    /// Lifecycle frames without end, as fast as they are taken.
    EndlessLifecycle,
    /// Output, then nothing, on a connection that stays open.
    Stall(Stall),
    /// A correct answer with one frame in the middle that is not JSON.
    Malformed(Malformed),
    /// A `content-length` that is not the body's.
    LyingLength(Announce),
    /// The last chunk twice, so that a stray `0\r\n\r\n` waits on a kept connection.
    DoubleChunkEnd,
    /// A clean end without the stream's terminal frame.
    NoTerminal,
    /// A whole answer that says so, without the frame after it (`[DONE]`).
    NoDone,
    /// 503 while the request is still being sent.
    #[serde(rename = "early_503")]
    Early503(Early503),
    /// Refuses and admits in turns, by the clock.
    Flap(Flap),
    /// Refuses at random, by a seeded draw.
    Chance(Chance),
    /// Admits as many at once as it has seats.
    Seats(Seats),
}

impl Step {
    /// The name of every step, in the order above.
    pub const NAMES: [&'static str; 34] = [
        "admit",
        "refuse",
        "refuse_after_output",
        "rate_limit",
        "quota",
        "auth",
        "deactivated",
        "unsupported",
        "forbidden",
        "challenge",
        "html_200",
        "policy",
        "client_error",
        "state",
        "hang",
        "hang_after_head",
        "keepalives_forever",
        "cut",
        "reset",
        "reset_after",
        "garbage",
        "half_head",
        "endless_head",
        "endless_lifecycle",
        "stall",
        "malformed",
        "lying_length",
        "double_chunk_end",
        "no_terminal",
        "no_done",
        "early_503",
        "flap",
        "chance",
        "seats",
    ];

    /// A plain admission.
    pub fn admit() -> Step {
        Step::Admit(Admit::default())
    }

    /// A plain refusal in one shape.
    pub fn refuse(shape: Shape) -> Step {
        Step::Refuse(Refuse {
            shape,
            ..Refuse::default()
        })
    }

    /// The name by which a program and the log call it.
    pub fn name(&self) -> &'static str {
        match self {
            Step::Admit(_) => "admit",
            Step::Refuse(_) => "refuse",
            Step::RefuseAfterOutput(_) => "refuse_after_output",
            Step::RateLimit(_) => "rate_limit",
            Step::Quota(_) => "quota",
            Step::Auth => "auth",
            Step::Deactivated => "deactivated",
            Step::Unsupported => "unsupported",
            Step::Forbidden => "forbidden",
            Step::Challenge => "challenge",
            Step::Html200 => "html_200",
            Step::Policy => "policy",
            Step::ClientError => "client_error",
            Step::State(_) => "state",
            Step::Hang => "hang",
            Step::HangAfterHead => "hang_after_head",
            Step::KeepalivesForever(_) => "keepalives_forever",
            Step::Cut(_) => "cut",
            Step::Reset => "reset",
            Step::ResetAfter(_) => "reset_after",
            Step::Garbage => "garbage",
            Step::HalfHead => "half_head",
            Step::EndlessHead => "endless_head",
            Step::EndlessLifecycle => "endless_lifecycle",
            Step::Stall(_) => "stall",
            Step::Malformed(_) => "malformed",
            Step::LyingLength(_) => "lying_length",
            Step::DoubleChunkEnd => "double_chunk_end",
            Step::NoTerminal => "no_terminal",
            Step::NoDone => "no_done",
            Step::Early503(_) => "early_503",
            Step::Flap(_) => "flap",
            Step::Chance(_) => "chance",
            Step::Seats(_) => "seats",
        }
    }

    /// The step that is really taken: `flap`, `chance` and `seats` decide, the others are themselves.
    ///
    /// `running` is the time since the program was set, `draw` a number in 0..100, `in_flight` the
    /// answers of the credential that are being played.
    pub(super) fn resolve(&self, running: Duration, draw: u64, in_flight: u64) -> &Step {
        match self {
            Step::Flap(flap) => {
                let phase = running.as_nanos() / flap.period.as_nanos().max(1);
                if phase.is_multiple_of(2) {
                    &flap.refuse
                } else {
                    &flap.admit
                }
            }
            Step::Chance(chance) => {
                if draw < u64::from(chance.percent) {
                    &chance.refuse
                } else {
                    &chance.admit
                }
            }
            Step::Seats(seats) => {
                if in_flight < u64::from(seats.count) {
                    &seats.admit
                } else {
                    &seats.refuse
                }
            }
            other => other,
        }
    }
}

/// The shapes in which an upstream says that it has no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// 200 and a stream: lifecycle frames, `error`, `response.failed`.
    Sse,
    /// The same with the `error` frame alone, and a clean end.
    SseBareError,
    /// The failure is the very first frame.
    SseFirst,
    /// `Selected model is at capacity`, as a 400 without a code.
    #[serde(rename = "http_400")]
    Http400,
    /// 429 `model_at_capacity`.
    #[serde(rename = "http_429")]
    Http429,
    /// 500 `server_is_overloaded`.
    #[serde(rename = "http_500")]
    Http500,
    /// 503 `server_is_overloaded`.
    #[serde(rename = "http_503")]
    Http503,
    /// 529 `overloaded_error`.
    #[serde(rename = "http_529")]
    Http529,
    /// A failed JSON answer under a 200, also where a stream was asked for.
    #[serde(rename = "json_200")]
    Json200,
}

impl Shape {
    /// Every shape, with the name that a program gives it.
    pub const ALL: [(&'static str, Shape); 9] = [
        ("sse", Shape::Sse),
        ("sse_bare_error", Shape::SseBareError),
        ("sse_first", Shape::SseFirst),
        ("http_400", Shape::Http400),
        ("http_429", Shape::Http429),
        ("http_500", Shape::Http500),
        ("http_503", Shape::Http503),
        ("http_529", Shape::Http529),
        ("json_200", Shape::Json200),
    ];
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Step::serialize(self, to)
    }
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Written)
    }
}

/// Reads a step that is written as a name or as a name with parameters. serde's own form of an enum
/// has only one of the two for each variant.
struct Written;

impl<'de> de::Visitor<'de> for Written {
    type Value = Step;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a step: its name, or `name: {parameters}`")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Step, E> {
        // A step without parameters first; its error would say "unit variant", so it is dropped.
        if let Ok(step) = Step::deserialize(StrDeserializer::<E>::new(name)) {
            return Ok(step);
        }
        let bare = std::iter::once((name, NoParameters));
        Step::deserialize(MapAccessDeserializer::new(MapDeserializer::<_, E>::new(
            bare,
        )))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Step, A::Error> {
        let step = Step::deserialize(MapAccessDeserializer::new(&mut map))?;
        match map.next_key::<String>()? {
            None => Ok(step),
            Some(more) => Err(de::Error::custom(format!(
                "`{more}` stands beside `{}`: a step is one name; indent its parameters",
                step.name()
            ))),
        }
    }
}

/// An empty map of parameters.
struct NoParameters;

impl<'de, E: de::Error> de::IntoDeserializer<'de, E> for NoParameters {
    type Deserializer = MapDeserializer<'de, std::iter::Empty<(&'de str, &'de str)>, E>;
    fn into_deserializer(self) -> Self::Deserializer {
        MapDeserializer::new(std::iter::empty())
    }
}
