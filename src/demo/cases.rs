//! What is shown, and what must happen.
//!
//! A case is one behaviour of the first credential, `a`; the others, `b` and where there is one `c`,
//! admit unless the case says otherwise. Every case has credentials, a route and a model of its own, so
//! that what berth learns in one cannot change another.

use std::time::Duration;

use crate::sim::{
    Cut, KeepalivesForever, Quota, RateLimit, Refuse, RefuseAfterOutput, Shape, Step,
};

/// The languages in which each case is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI Responses.
    Responses,
    /// OpenAI Chat Completions.
    Chat,
    /// Anthropic Messages.
    Messages,
}

/// One case.
#[derive(Debug)]
pub struct Case {
    /// Its heading, on the first case below it.
    pub heading: Option<&'static str>,
    /// Its name, also in ids: letters, digits and `_`.
    pub name: &'static str,
    /// What the first credential says, for people.
    pub says: &'static str,
    /// What each credential does, `a` first.
    pub credentials: Vec<Behaviour>,
    /// Whether the client asks for a stream.
    pub stream: bool,
    /// What must happen.
    pub expect: Expect,
}

/// What one credential does with the case's request.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// The simulator takes this step.
    Step(Step),
    /// The simulator takes this step, and berth waits for a head for a short time only.
    Impatient(Step),
    /// Nothing listens at its upstream.
    Nobody,
}

/// What must happen.
#[derive(Clone, Debug)]
pub struct Expect {
    /// The verdict on the first attempt.
    pub verdict: &'static str,
    /// Its shape in the audit; none where nothing was said in a shape.
    pub shape: Option<&'static str>,
    /// How many credentials are tried, `a` first.
    pub tried: usize,
    /// What the client sees.
    pub client: Sees,
    /// The least time that it takes, where waiting is the point.
    pub at_least: Duration,
}

/// What the client must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// The whole answer of the last credential tried, and nothing else.
    Answer,
    /// An error in the dialect's shape: its status where it is one in all dialects, its code or type,
    /// and whether it says when to come again.
    Error(Option<u16>, Codes, RetryAfter),
    /// Output of `a`, then a broken end, so that it cannot be taken for a whole answer.
    Broken,
    /// Output of `a`, then a failure in the stream, with this code.
    Failure(Codes),
}

/// What an error is called: OpenAI's code, and Anthropic's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codes {
    openai: &'static str,
    anthropic: &'static str,
}

/// Whether an answer has a `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    Said,
    NotSaid,
}

impl Dialect {
    /// All of them, in the order shown.
    pub const ALL: [Dialect; 3] = [Dialect::Responses, Dialect::Chat, Dialect::Messages];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Responses => "responses",
            Dialect::Chat => "chat",
            Dialect::Messages => "messages",
        }
    }

    /// Its path below a route's prefix.
    pub fn path(self) -> &'static str {
        match self {
            Dialect::Responses => "/responses",
            Dialect::Chat => "/chat/completions",
            Dialect::Messages => "/messages",
        }
    }
}

impl Case {
    /// The id of its `n`th credential.
    pub fn credential(&self, dialect: Dialect, n: usize) -> String {
        format!("{}-{}", self.id(dialect), letter(n))
    }

    /// Its route's prefix.
    pub fn prefix(&self, dialect: Dialect) -> String {
        format!("/demo/{}", self.id(dialect))
    }

    /// Its model.
    pub fn model(&self, dialect: Dialect) -> String {
        format!("sim-{}", self.id(dialect))
    }

    fn id(&self, dialect: Dialect) -> String {
        format!("{}-{}", self.name.replace('_', "-"), dialect.name())
    }
}

impl Codes {
    /// The one of `dialect`.
    pub fn of(self, dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Responses | Dialect::Chat => self.openai,
            Dialect::Messages => self.anthropic,
        }
    }
}

/// The short name of the `n`th credential of a case.
pub fn letter(n: usize) -> char {
    ('a'..='z').nth(n).unwrap_or('?')
}

/// Everything that is shown, in order.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Shape::ALL.into_iter().map(no_seat).collect();
    cases.push(Case {
        stream: false,
        ..fails_over(
            "no_stream",
            "the same, where no stream was asked for",
            Step::refuse(Shape::Json200),
            ("capacity", Some("json_200")),
        )
    });
    head(
        &mut cases,
        0,
        "No seat, said in every way an upstream says it",
    );

    let credential = cases.len();
    cases.extend([
        fails_over(
            "rate_limit",
            "429, too many requests, again in 2 s",
            Step::RateLimit(RateLimit {
                retry_after: Some(Duration::from_secs(2)),
            }),
            ("rate_limit", Some("http_429")),
        ),
        fails_over(
            "quota",
            "429, the allowance is used up",
            Step::Quota(Quota::default()),
            ("quota", Some("http_429")),
        ),
        fails_over(
            "auth",
            "401, the key is not valid any more",
            Step::Auth,
            ("auth", Some("http_400")),
        ),
        fails_over(
            "deactivated",
            "402, the account is closed",
            Step::Deactivated,
            ("deactivated", Some("http_400")),
        ),
        fails_over(
            "unsupported",
            "this account does not serve the model",
            Step::Unsupported,
            ("model_unsupported", Some("http_400")),
        ),
        fails_over(
            "forbidden",
            "403 without a reason",
            Step::Forbidden,
            ("forbidden", Some("http_400")),
        ),
    ]);
    head(
        &mut cases,
        credential,
        "This credential cannot, another can",
    );

    let network = cases.len();
    cases.extend([
        fails_over(
            "challenge",
            "403, a page that asks for a browser",
            Step::Challenge,
            ("challenge", Some("http_400")),
        ),
        fails_over(
            "html_200",
            "200, a captive portal's page",
            Step::Html200,
            ("transient", Some("json_200")),
        ),
        fails_over(
            "reset",
            "resets the connection",
            Step::Reset,
            ("transport", None),
        ),
        fails_over(
            "garbage",
            "bytes that are not HTTP",
            Step::Garbage,
            ("transport", None),
        ),
        fails_over(
            "half_head",
            "half a response head, then closes",
            Step::HalfHead,
            ("transport", None),
        ),
        nobody(),
        hang(),
        keepalives(),
    ]);
    head(&mut cases, network, "The network, and what stands in it");

    let own = cases.len();
    cases.extend([
        passed_on(
            "client_error",
            "400, the input is too long",
            Step::ClientError,
            "client_error",
            (
                Some(400),
                codes("context_length_exceeded", "invalid_request_error"),
            ),
        ),
        // Anthropic says it under 400, OpenAI under 403.
        passed_on(
            "policy",
            "the content policy forbids it",
            Step::Policy,
            "policy",
            (None, codes("cyber_policy", "invalid_request_error")),
        ),
    ]);
    head(
        &mut cases,
        own,
        "Nobody else would say anything different: passed on as it is",
    );

    let late = cases.len();
    cases.extend([cut(), refused_late()]);
    head(
        &mut cases,
        late,
        "After the first word there is no way back",
    );

    let all = cases.len();
    cases.extend([everyone(), everyone_limited()]);
    head(
        &mut cases,
        all,
        "Nobody has a seat: an error that clients retry, with the time to wait",
    );
    cases
}

fn head(cases: &mut [Case], first: usize, heading: &'static str) {
    if let Some(case) = cases.get_mut(first) {
        case.heading = Some(heading);
    }
}

fn no_seat((name, shape): (&'static str, Shape)) -> Case {
    let (says, read_as) = match shape {
        Shape::Sse => ("200, a stream opens, then \"overloaded\"", "sse"),
        Shape::SseBareError => ("the same, without the terminal frame", "sse"),
        Shape::SseFirst => ("200, \"failed\" as the very first frame", "sse"),
        Shape::Http400 => ("400 \"at capacity\", without a code", "http_400"),
        Shape::Http429 => ("429 \"at capacity\"", "http_429"),
        Shape::Http500 => ("500 \"overloaded\"", "http_500"),
        Shape::Http503 => ("503 \"overloaded\"", "http_503"),
        Shape::Http529 => ("529 \"overloaded\"", "http_529"),
        Shape::Json200 => ("200, a JSON document that has failed", "json_200"),
    };
    let step = Step::Refuse(Refuse {
        shape,
        // Real ones take one to three seconds.
        after: match shape {
            Shape::Sse | Shape::SseBareError => Duration::from_millis(200),
            _ => Duration::ZERO,
        },
        ..Refuse::default()
    });
    fails_over(name, says, step, ("capacity", Some(read_as)))
}

/// `a` does `step`, and the client sees the answer of `b`.
fn fails_over(
    name: &'static str,
    says: &'static str,
    step: Step,
    (verdict, shape): (&'static str, Option<&'static str>),
) -> Case {
    Case {
        heading: None,
        name,
        says,
        credentials: vec![Behaviour::Step(step), Behaviour::Step(Step::admit())],
        stream: true,
        expect: Expect {
            verdict,
            shape,
            tried: 2,
            client: Sees::Answer,
            at_least: Duration::ZERO,
        },
    }
}

/// `a` does `step`, and the client sees that.
fn passed_on(
    name: &'static str,
    says: &'static str,
    step: Step,
    verdict: &'static str,
    (status, codes): (Option<u16>, Codes),
) -> Case {
    let case = fails_over(name, says, step, (verdict, Some("http_400")));
    Case {
        expect: Expect {
            tried: 1,
            client: Sees::Error(status, codes, RetryAfter::NotSaid),
            ..case.expect
        },
        ..case
    }
}

fn nobody() -> Case {
    Case {
        credentials: vec![Behaviour::Nobody, Behaviour::Step(Step::admit())],
        ..fails_over(
            "nobody",
            "nothing listens there",
            Step::admit(),
            ("transport", None),
        )
    }
}

fn hang() -> Case {
    let case = fails_over("hang", "silence", Step::Hang, ("timeout", None));
    Case {
        credentials: vec![
            Behaviour::Impatient(Step::Hang),
            Behaviour::Step(Step::admit()),
        ],
        expect: Expect {
            at_least: super::stage::HEADER_TIMEOUT,
            ..case.expect
        },
        ..case
    }
}

fn keepalives() -> Case {
    let step = Step::KeepalivesForever(KeepalivesForever {
        gap: Duration::from_millis(100),
        comments: false,
    });
    let says = "a stream, then keepalives without end";
    let case = fails_over("keepalives", says, step, ("timeout", None));
    Case {
        expect: Expect {
            at_least: super::stage::HOLD_TIME,
            ..case.expect
        },
        ..case
    }
}

fn cut() -> Case {
    let step = Step::Cut(Cut {
        after: 2,
        mid_frame: true,
    });
    let says = "an answer, cut off in the middle";
    let case = fails_over("cut", says, step, ("truncated_after_commit", None));
    Case {
        expect: Expect {
            tried: 1,
            client: Sees::Broken,
            ..case.expect
        },
        ..case
    }
}

fn refused_late() -> Case {
    let step = Step::RefuseAfterOutput(RefuseAfterOutput::default());
    let says = "half an answer, then \"overloaded\"";
    let verdict = ("capacity_after_commit", Some("sse"));
    let case = fails_over("late", says, step, verdict);
    Case {
        expect: Expect {
            tried: 1,
            client: Sees::Failure(codes("server_error", "overloaded_error")),
            ..case.expect
        },
        ..case
    }
}

fn everyone() -> Case {
    let refuse = |shape| Behaviour::Step(Step::refuse(shape));
    let case = fails_over(
        "everyone",
        "no seat; b and c say the same",
        Step::admit(),
        ("capacity", Some("sse")),
    );
    Case {
        credentials: vec![
            refuse(Shape::Sse),
            refuse(Shape::Http503),
            refuse(Shape::Http400),
        ],
        expect: Expect {
            tried: 3,
            client: Sees::Error(
                Some(503),
                codes("server_error", "api_error"),
                RetryAfter::Said,
            ),
            ..case.expect
        },
        ..case
    }
}

fn everyone_limited() -> Case {
    let limit = |secs| {
        Behaviour::Step(Step::RateLimit(RateLimit {
            retry_after: Some(Duration::from_secs(secs)),
        }))
    };
    let verdict = ("rate_limit", Some("http_429"));
    let case = fails_over(
        "all_limited",
        "429; b says the same",
        Step::admit(),
        verdict,
    );
    let limited = codes("rate_limit_exceeded", "rate_limit_error");
    Case {
        credentials: vec![limit(30), limit(20)],
        expect: Expect {
            client: Sees::Error(Some(429), limited, RetryAfter::Said),
            ..case.expect
        },
        ..case
    }
}

fn codes(openai: &'static str, anthropic: &'static str) -> Codes {
    Codes { openai, anthropic }
}
