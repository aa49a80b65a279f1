//! The program of a simulated upstream: which credentials it knows, and what each does with its
//! first, second, ... request.
//!
//! Written as YAML (JSON is YAML too, so `to_json` can be sent to another process) or built in Rust.
//! Whatever way it came, `check` has seen it before a byte is served: the bounds below keep one
//! request's answer within some hundred megabytes.
//!
//! Refused alternative: steps picked by a request header. It is handy, but then the client decides
//! what the upstream does, and a proxy under test that drops the header changes the experiment.

use super::step::{Admit, Announce, Call, Chance, Early503, Flap, Refuse, Seats, Shape, Step};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, time::Duration};

/// A whole program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Program {
    /// Seed of ids and draws: the same program and the same order of requests, the same answers.
    pub seed: u64,
    /// Whether unknown keys are served, by `default`; else they get 401 `invalid_api_key`.
    pub accept_any: bool,
    /// What unknown keys meet, each with its own count of requests.
    pub default: Option<Track>,
    /// What `GET models` lists. Other models are served as well.
    pub models: Vec<String>,
    /// The known credentials, by the key that arrives (Bearer token or `x-api-key`).
    pub credentials: BTreeMap<String, Credential>,
}

/// One credential.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// The name in the log and in the answers.
    pub name: String,
    /// One step per inference request.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// What comes after the last step.
    #[serde(default)]
    pub then: Then,
    /// Tracks of their own for some models; each counts its own requests.
    #[serde(default)]
    pub by_model: BTreeMap<String, Track>,
}

/// Steps, one per request, and what follows them. No steps at all admit everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Track {
    /// One step per inference request.
    pub steps: Vec<Step>,
    /// What comes after the last step.
    pub then: Then,
}

/// What comes after the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The last step again and again.
    #[default]
    Last,
    /// From the first step again.
    Cycle,
    /// Plain admissions.
    Admit,
}

/// Why a program is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramError(String);

impl Default for Program {
    fn default() -> Self {
        Program {
            seed: 1,
            accept_any: false,
            default: None,
            models: ["gpt-sim", "gpt-sim-mini", "claude-sim"]
                .map(String::from)
                .to_vec(),
            credentials: BTreeMap::new(),
        }
    }
}

impl Program {
    /// Reads and checks a program in YAML.
    pub fn parse(yaml: &str) -> Result<Program, ProgramError> {
        let program: Program =
            serde_saphyr::from_str(yaml).map_err(|error| ProgramError(error.to_string()))?;
        program.check()?;
        Ok(program)
    }

    /// Adds a credential: `steps` in order, then `then`.
    #[must_use]
    pub fn with(
        mut self,
        key: &str,
        name: &str,
        steps: impl IntoIterator<Item = Step>,
        then: Then,
    ) -> Program {
        let credential = Credential {
            name: name.to_owned(),
            steps: steps.into_iter().collect(),
            then,
            by_model: BTreeMap::new(),
        };
        self.credentials.insert(key.to_owned(), credential);
        self
    }

    /// Gives a credential that was added before a track of its own for one model.
    #[must_use]
    pub fn for_model(
        mut self,
        key: &str,
        model: &str,
        steps: impl IntoIterator<Item = Step>,
        then: Then,
    ) -> Program {
        if let Some(credential) = self.credentials.get_mut(key) {
            let steps = steps.into_iter().collect();
            credential
                .by_model
                .insert(model.to_owned(), Track { steps, then });
        }
        self
    }

    /// The program as JSON, which `parse` and `POST /__sim/program` read.
    pub fn to_json(&self) -> String {
        // Every map of a program has string keys, so this cannot fail; an empty text would be
        // refused by `parse`.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The bounds and the contradictions that the types do not exclude.
    pub fn check(&self) -> Result<(), ProgramError> {
        if self.default.is_some() && !self.accept_any {
            return refuse("`default` is never reached: set `accept_any: true`, or drop it".into());
        }
        if self.credentials.len() > MAX_CREDENTIALS {
            return refuse(format!("more than {MAX_CREDENTIALS} credentials"));
        }
        if let Some(track) = &self.default {
            check_steps("default", &track.steps)?;
        }
        let mut names = BTreeMap::new();
        for (key, credential) in &self.credentials {
            let name = &credential.name;
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
                return refuse(format!(
                    "name `{name}`: 1 to 64 letters, digits, `-`, `_` or `.`"
                ));
            }
            if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return refuse(format!(
                    "the key of `{name}` cannot arrive in a header: printable ASCII, no spaces"
                ));
            }
            if names.insert(name, key).is_some() {
                return refuse(format!("two credentials are called `{name}`"));
            }
            check_steps(name, &credential.steps)?;
            for (model, track) in &credential.by_model {
                let place = format!("{name}, model {model}");
                check_steps(&place, &track.steps)?;
                let early = |step: &Step| matches!(step, Step::Early503(_));
                if track.steps.iter().chain(&credential.steps).any(early) {
                    return refuse(format!(
                        "{place}: `early_503` answers before the model is known; it cannot stand on a \
                         credential with `by_model`"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A program for a newcomer: one key per refusal and fault, named after it.
    pub fn built_in() -> Program {
        let mut program = Program::default();
        let mut add = |name: &str, steps: Vec<Step>, then: Then| {
            let credential = Credential {
                name: name.to_owned(),
                steps,
                then,
                by_model: BTreeMap::new(),
            };
            let key = format!("sk-sim-{name}");
            program.credentials.insert(key, credential);
        };
        for (name, shape) in Shape::ALL {
            let name = name.replace('_', "-");
            let name = name.strip_prefix("http-").unwrap_or(&name);
            add(name, vec![Step::refuse(shape)], Then::Last);
        }
        for step in plain_steps() {
            add(&step.name().replace('_', "-"), vec![step], Then::Last);
        }
        let tool = Admit {
            call: Some(Call {
                name: "exec_command".into(),
                arguments: r#"{"cmd":"echo hi"}"#.into(),
            }),
            ..Admit::default()
        };
        add("tool", vec![Step::Admit(tool), Step::admit()], Then::Cycle);
        let once = vec![Step::refuse(Shape::Sse)];
        add("once", once, Then::Admit);
        program
    }
}

impl Track {
    /// The step of the `n`th request, counted from 0; `None` is a plain admission.
    pub(super) fn at(&self, n: u64) -> Option<&Step> {
        step_at(&self.steps, self.then, n)
    }
}

impl Credential {
    /// The step of the `n`th request without a track of its own.
    pub(super) fn at(&self, n: u64) -> Option<&Step> {
        step_at(&self.steps, self.then, n)
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProgramError {}

fn step_at(steps: &[Step], then: Then, n: u64) -> Option<&Step> {
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    if let Some(step) = steps.get(n) {
        return Some(step);
    }
    match then {
        Then::Last => steps.last(),
        Then::Cycle => steps.get(n.checked_rem(steps.len())?),
        Then::Admit => None,
    }
}

/// Every step but the refusals by shape, with the parameters a newcomer would want to see.
fn plain_steps() -> Vec<Step> {
    vec![
        Step::admit(),
        Step::RefuseAfterOutput(Default::default()),
        Step::RateLimit(super::step::RateLimit {
            retry_after: Some(Duration::from_secs(2)),
        }),
        Step::Quota(Default::default()),
        Step::Auth,
        Step::Deactivated,
        Step::Unsupported,
        Step::Forbidden,
        Step::Challenge,
        Step::Html200,
        Step::Policy,
        Step::ClientError,
        Step::State(Default::default()),
        Step::Hang,
        Step::HangAfterHead,
        Step::KeepalivesForever(Default::default()),
        Step::Cut(Default::default()),
        Step::Reset,
        Step::ResetAfter(Default::default()),
        Step::Garbage,
        Step::HalfHead,
        Step::EndlessHead,
        Step::EndlessLifecycle,
        Step::Stall(Default::default()),
        Step::Malformed(Default::default()),
        Step::LyingLength(Announce::More),
        Step::DoubleChunkEnd,
        Step::NoTerminal,
        Step::NoDone,
        Step::Early503(Early503::default()),
        Step::Flap(Flap {
            period: Duration::from_secs(10),
            refuse: Box::new(Step::refuse(Shape::Sse)),
            admit: Box::new(Step::admit()),
        }),
        Step::Chance(Chance {
            percent: 30,
            refuse: Box::new(Step::refuse(Shape::Sse)),
            admit: Box::new(Step::admit()),
            seed: None,
        }),
        Step::Seats(Seats {
            count: 2,
            refuse: Box::new(Step::refuse(Shape::Sse)),
            admit: Box::new(Step::admit()),
        }),
    ]
}

fn check_steps(place: &str, steps: &[Step]) -> Result<(), ProgramError> {
    if steps.len() > MAX_STEPS {
        return refuse(format!("{place}: more than {MAX_STEPS} steps"));
    }
    for (index, step) in steps.iter().enumerate() {
        if let Err(why) = check_step(step, true) {
            return refuse(format!(
                "{place}, step {} (`{}`): {why}",
                index + 1,
                step.name()
            ));
        }
    }
    Ok(())
}

fn check_step(step: &Step, may_choose: bool) -> Result<(), String> {
    match step {
        Step::Admit(Admit {
            deltas,
            delta_gap,
            head_after,
            first_output_after,
            bytes,
            headers,
            rate_limits: _,
            call: _,
        }) => {
            count("deltas", *deltas)?;
            span("delta_gap", *delta_gap)?;
            span("head_after", *head_after)?;
            span("first_output_after", *first_output_after)?;
            if *bytes > MAX_TEXT {
                return Err(format!("`bytes` is at most {MAX_TEXT}"));
            }
            check_headers(headers)
        }
        Step::Refuse(Refuse {
            after,
            lifecycle,
            headers,
            ..
        }) => {
            count("lifecycle", *lifecycle)?;
            span("after", *after)?;
            check_headers(headers)
        }
        Step::RefuseAfterOutput(refusal) => count("deltas", refusal.deltas),
        Step::Cut(cut) => count("after", cut.after),
        Step::Stall(stall) => count("after", stall.after),
        Step::Malformed(malformed) => count("after", malformed.after),
        Step::ResetAfter(reset) => count("deltas", reset.deltas),
        Step::Flap(_) | Step::Chance(_) | Step::Seats(_) if !may_choose => {
            Err("`flap`, `chance` and `seats` cannot stand inside each other".into())
        }
        Step::Flap(Flap {
            period,
            refuse,
            admit,
        }) => {
            if period.is_zero() {
                return Err("`period` must be more than 0s".into());
            }
            check_choice(refuse)?;
            check_choice(admit)
        }
        Step::Chance(Chance {
            percent,
            refuse,
            admit,
            seed: _,
        }) => {
            if *percent > 100 {
                return Err("`percent` is 0 to 100".into());
            }
            check_choice(refuse)?;
            check_choice(admit)
        }
        Step::Seats(Seats { refuse, admit, .. }) => {
            check_choice(refuse)?;
            check_choice(admit)
        }
        _ => Ok(()),
    }
}

fn check_choice(step: &Step) -> Result<(), String> {
    if matches!(step, Step::Early503(_)) {
        return Err("`early_503` cannot stand inside `flap`, `chance` or `seats`".into());
    }
    check_step(step, false)
}

fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in headers {
        let name_is_good = http::HeaderName::try_from(name.as_str()).is_ok();
        if !name_is_good || http::HeaderValue::try_from(value.as_str()).is_err() {
            return Err(format!("`{name}` cannot be sent as a header"));
        }
    }
    Ok(())
}

fn count(field: &str, n: u32) -> Result<(), String> {
    if n > MAX_FRAMES {
        return Err(format!("`{field}` is at most {MAX_FRAMES}"));
    }
    Ok(())
}

fn span(field: &str, span: Duration) -> Result<(), String> {
    if span > MAX_SPAN {
        return Err(format!("`{field}` is at most one day"));
    }
    Ok(())
}

fn refuse(why: String) -> Result<(), ProgramError> {
    Err(ProgramError(why))
}

/// Credentials of one program. Chosen: ten times the largest pool that berth is meant for.
const MAX_CREDENTIALS: usize = 10_000;
/// Steps of one track. Chosen: more than anybody will read.
const MAX_STEPS: usize = 10_000;
/// Pieces or lifecycle frames of one answer. Chosen: some tens of megabytes as frames.
const MAX_FRAMES: u32 = 100_000;
/// Bytes of text of one answer. Chosen: more than any gate will hold.
const MAX_TEXT: u64 = 64 << 20;
/// Longest silence. Chosen: one day.
const MAX_SPAN: Duration = Duration::from_secs(86_400);
