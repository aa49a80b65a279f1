//! The parameters of the steps that have some. Every one has a default that shows the step at its
//! plainest, except where nothing is a sensible guess.

use super::step::{Shape, Step};
use super::units::{maybe_span, size, span};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// Parameters of `admit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admit {
    /// Pieces that the text arrives in.
    pub deltas: u32,
    /// Silence before each piece but the first.
    #[serde(with = "span")]
    pub delta_gap: Duration,
    /// Silence before the response head.
    #[serde(with = "span")]
    pub head_after: Duration,
    /// Silence between the lifecycle frames and the first output.
    #[serde(with = "span")]
    pub first_output_after: Duration,
    /// Length of the text; shorter than the greeting means the greeting.
    #[serde(with = "size")]
    pub bytes: u64,
    /// A `codex.rate_limits` frame among the lifecycle frames of a Responses stream.
    pub rate_limits: bool,
    /// A tool call in place of the text.
    pub call: Option<Call>,
    /// More response headers.
    pub headers: BTreeMap<String, String>,
}

impl Default for Admit {
    fn default() -> Self {
        Admit {
            deltas: 3,
            delta_gap: Duration::ZERO,
            head_after: Duration::ZERO,
            first_output_after: Duration::ZERO,
            bytes: 0,
            rate_limits: false,
            call: None,
            headers: BTreeMap::new(),
        }
    }
}

/// A tool call, as `admit: {call: ...}` answers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The tool, for example `exec_command`.
    pub name: String,
    /// Its arguments, a JSON text.
    pub arguments: String,
}

/// Parameters of `refuse`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Refuse {
    /// How it is said.
    pub shape: Shape,
    /// In place of the shape's own code; empty for none.
    pub code: Option<String>,
    /// In place of the shape's own message.
    pub message: Option<String>,
    /// Silence before the refusal: after the lifecycle frames of a stream, else before the head.
    #[serde(with = "span")]
    pub after: Duration,
    /// Neutral frames before the refusal of a stream.
    pub lifecycle: u32,
    /// A `retry-after` header.
    #[serde(with = "maybe_span")]
    pub retry_after: Option<Duration>,
    /// Whether a refusing stream names its content type. Real ones often do not.
    pub content_type: bool,
    /// More response headers.
    pub headers: BTreeMap<String, String>,
}

impl Default for Refuse {
    fn default() -> Self {
        Refuse {
            shape: Shape::Sse,
            code: None,
            message: None,
            after: Duration::ZERO,
            lifecycle: 2,
            retry_after: None,
            content_type: false,
            headers: BTreeMap::new(),
        }
    }
}

/// Parameters of `refuse_after_output`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RefuseAfterOutput {
    /// Pieces of text before the refusal.
    pub deltas: u32,
    /// As in `refuse`.
    pub code: Option<String>,
    /// As in `refuse`.
    pub message: Option<String>,
}

impl Default for RefuseAfterOutput {
    fn default() -> Self {
        RefuseAfterOutput {
            deltas: 1,
            code: None,
            message: None,
        }
    }
}

/// Parameters of `rate_limit`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimit {
    /// A `retry-after` header, and the same in the message. Absent: nothing is said.
    #[serde(with = "maybe_span")]
    pub retry_after: Option<Duration>,
}

/// Parameters of `quota`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// When the window ends.
    #[serde(with = "span")]
    pub resets_in: Duration,
}

impl Default for Quota {
    fn default() -> Self {
        Quota {
            resets_in: Duration::from_secs(3600),
        }
    }
}

/// Parameters of `state`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// `previous_response_not_found` or `invalid_encrypted_content`.
    pub code: String,
}

impl Default for State {
    fn default() -> Self {
        State {
            code: "previous_response_not_found".into(),
        }
    }
}

/// Parameters of `keepalives_forever`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeepalivesForever {
    /// Silence between two of them.
    #[serde(with = "span")]
    pub gap: Duration,
    /// Comments instead of the dialect's own keepalive event.
    pub comments: bool,
}

impl Default for KeepalivesForever {
    fn default() -> Self {
        KeepalivesForever {
            gap: Duration::from_millis(500),
            comments: false,
        }
    }
}

/// Parameters of `cut`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cut {
    /// Pieces of text before the connection is closed.
    pub after: u32,
    /// Whether it is closed inside a frame, not between two.
    pub mid_frame: bool,
}

impl Default for Cut {
    fn default() -> Self {
        Cut {
            after: 1,
            mid_frame: false,
        }
    }
}

/// Parameters of `reset_after`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResetAfter {
    /// Pieces of text before the reset.
    pub deltas: u32,
}

impl Default for ResetAfter {
    fn default() -> Self {
        ResetAfter { deltas: 1 }
    }
}

/// Parameters of `stall`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stall {
    /// Pieces of text before the silence.
    pub after: u32,
}

impl Default for Stall {
    fn default() -> Self {
        Stall { after: 1 }
    }
}

/// Parameters of `malformed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Malformed {
    /// Pieces of text before the broken frame.
    pub after: u32,
}

impl Default for Malformed {
    fn default() -> Self {
        Malformed { after: 1 }
    }
}

/// Parameter of `lying_length`: which way the `content-length` lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Announce {
    /// More than is sent: the body ends early.
    More,
    /// Less than is sent: stray bytes follow the body.
    Less,
}

/// Parameters of `early_503`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Early503 {
    /// Bytes of the request's body that are read before the answer.
    #[serde(with = "size")]
    pub after_body_bytes: u64,
    /// Whether the connection is reset at once; else the rest is read and thrown away for a while,
    /// as careful servers do, so that the answer survives.
    pub reset: bool,
}

/// Parameters of `flap`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flap {
    /// How long each half lasts; the refusing half is first.
    #[serde(with = "span")]
    pub period: Duration,
    /// The step of the refusing half.
    #[serde(default = "boxed_refusal")]
    pub refuse: Box<Step>,
    /// The step of the admitting half.
    #[serde(default = "boxed_admission")]
    pub admit: Box<Step>,
}

/// Parameters of `chance`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chance {
    /// How many of a hundred requests are refused.
    pub percent: u8,
    /// What they meet.
    #[serde(default = "boxed_refusal")]
    pub refuse: Box<Step>,
    /// What the others meet.
    #[serde(default = "boxed_admission")]
    pub admit: Box<Step>,
    /// Seed of the draw; the program's where absent.
    #[serde(default)]
    pub seed: Option<u64>,
}

/// Parameters of `seats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seats {
    /// How many answers are played at once.
    pub count: u32,
    /// What comes when all are taken.
    #[serde(default = "boxed_refusal")]
    pub refuse: Box<Step>,
    /// What the others meet.
    #[serde(default = "boxed_admission")]
    pub admit: Box<Step>,
}

fn boxed_refusal() -> Box<Step> {
    Box::new(Step::refuse(Shape::Sse))
}

fn boxed_admission() -> Box<Step> {
    Box::new(Step::admit())
}
