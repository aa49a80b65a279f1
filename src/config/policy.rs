//! `admission:` of the file, to the policy's own type.
//!
//! The defaults and their origins stand in `docs/configuration.md`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use schemars::{Schema, json_schema};

use super::field::{Fault, Leaf, Node, Placed, Slot};
use super::leaf::Choice;
use super::number;
use super::problem::{Place, Report};
use super::raw;
use crate::admission::policy::{
    ClientErrorCode, Cooldown, Full, HoldLimits, Mode, OnHoldTimeout, Policy, Probe,
    RetryAfterBounds, RetryBudget, ScoreMarks, Wait,
};
use crate::admission::rules::{Rule, Rules};

impl Choice for Mode {
    const WORDS: &'static [(&'static str, Mode)] = &[
        ("enforce", Mode::Enforce),
        ("observe", Mode::Observe),
        ("off", Mode::Off),
    ];
}

impl Choice for OnHoldTimeout {
    const WORDS: &'static [(&'static str, OnHoldTimeout)] = &[
        ("fail_over", OnHoldTimeout::FailOver),
        ("commit", OnHoldTimeout::Commit),
    ];
}

/// `keep` or a code.
pub struct ErrorCode(pub ClientErrorCode);

/// Codes at which clients give up the task instead of trying again.
const ENDS_THE_TASK: &[&str] = &["rate_limit_exceeded", "server_is_overloaded", "slow_down"];

impl Leaf for ErrorCode {
    fn read(node: Node) -> Result<ErrorCode, Fault> {
        let bad = "`keep` or a code of 1 to 64 of the characters a-z, 0-9 and `_` is expected here";
        let Node::Text(code) = node else {
            return Err(bad.into());
        };
        if code == "keep" {
            return Ok(ErrorCode(ClientErrorCode::Keep));
        }
        if ENDS_THE_TASK.contains(&code.as_str()) {
            return Err(
                "this code ends the client's task instead of making it try again; \
                 use `server_error`, or `keep` to leave codes as they come"
                    .into(),
            );
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        match (1..=64).contains(&code.len()) && code.bytes().all(plain) {
            true => Ok(ErrorCode(ClientErrorCode::Replace(code))),
            false => Err(bad.into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[a-z0-9_]{1,64}$",
            "not": { "enum": ENDS_THE_TASK }
        })
    }
}

pub fn policy(raw: raw::Admission, rules: Vec<Rule>, report: &mut Report) -> Policy {
    Policy {
        mode: raw.mode.or(Mode::Enforce, report),
        max_attempts: count("max_attempts", raw.max_attempts, 3, 20, report),
        retry_budget: retry_budget(raw.retry_budget.or_empty().value, report),
        hold: hold(raw.hold.or_empty(), report),
        on_hold_timeout: raw.on_hold_timeout.or(OnHoldTimeout::FailOver, report),
        score: score(raw.score.or_empty(), report),
        cooldown: cooldown(raw.cooldown.or_empty(), report),
        probe: probe(raw.probe.or_empty(), report),
        full: full(raw.full.or_empty().value, report),
        wait: wait(raw.wait.or_empty().value, report),
        retry_after: retry_after(raw.retry_after.or_empty(), report),
        client_error_code: raw
            .client_error_code
            .take(report)
            .map_or(server_error(), |code| code.value.0),
        rules: Arc::new(Rules::new(rules)),
    }
}

fn server_error() -> ClientErrorCode {
    ClientErrorCode::Replace("server_error".to_owned())
}

fn retry_budget(raw: raw::RetryBudget, report: &mut Report) -> RetryBudget {
    RetryBudget {
        ratio: raw.ratio.or(1.0, report),
        min_per_second: number("min_per_second", raw.min_per_second, 10, 0..=10_000, report),
    }
}

fn hold(raw: Placed<raw::Hold>, report: &mut Report) -> HoldLimits {
    let bytes = raw.value.max_bytes.take(report);
    let max_bytes = bytes.as_ref().map_or(4 << 20, |placed| placed.value.0);
    if let Some(Placed { at, value }) = bytes
        && !(1 << 10..=256 << 20).contains(&value.0)
    {
        report.problem(at, "`hold.max_bytes` is `1KiB` to `256MiB`");
    }
    let max_time = time("hold.max_time", raw.value.max_time, 120, report);
    let request_max_time = time(
        "hold.request_max_time",
        raw.value.request_max_time,
        240,
        report,
    );
    in_order(
        raw.at,
        ("hold.max_time", max_time),
        ("hold.request_max_time", request_max_time),
        report,
    );
    HoldLimits {
        max_bytes: usize::try_from(max_bytes).unwrap_or(usize::MAX),
        max_time,
        request_max_time,
    }
}

fn score(raw: Placed<raw::Score>, report: &mut Report) -> ScoreMarks {
    let Placed { at, value: raw } = raw;
    let marks = ScoreMarks {
        refused: raw.refused.or(10.0, report),
        admitted: raw.admitted.or(1.0, report),
        cool_at: raw.cool_at.or(18.0, report),
        shun_at: raw.shun_at.or(36.0, report),
        ceiling: raw.ceiling.or(60.0, report),
        half_life: time("score.half_life", raw.half_life, 15 * 60, report),
        episode: time("score.episode", raw.episode, 5 * 60, report),
    };
    let ScoreMarks {
        cool_at,
        shun_at,
        ceiling,
        ..
    } = marks;
    if !(0.0 < cool_at && cool_at < shun_at && shun_at <= ceiling) {
        report.problem(
            at,
            format!(
                "`score` needs 0 < `cool_at` < `shun_at` <= `ceiling`, but with the defaults \
                 filled in they are {cool_at}, {shun_at} and {ceiling}"
            ),
        );
    }
    marks
}

fn cooldown(raw: Placed<raw::Cooldown>, report: &mut Report) -> Cooldown {
    let base = time("cooldown.base", raw.value.base, 5, report);
    let max = time("cooldown.max", raw.value.max, 20, report);
    in_order(
        raw.at,
        ("cooldown.base", base),
        ("cooldown.max", max),
        report,
    );
    Cooldown { base, max }
}

fn probe(raw: Placed<raw::Probe>, report: &mut Report) -> Probe {
    let first = time("probe.first", raw.value.first, 60, report);
    let max = time("probe.max", raw.value.max, 300, report);
    in_order(raw.at, ("probe.first", first), ("probe.max", max), report);
    Probe {
        first,
        max,
        admissions: count("probe.admissions", raw.value.admissions, 5, 100, report),
    }
}

fn full(raw: raw::Full, report: &mut Report) -> Full {
    Full {
        sessions: count("full.sessions", raw.sessions, 3, 1000, report),
        within: time("full.within", raw.within, 10, report),
    }
}

fn wait(raw: raw::Wait, report: &mut Report) -> Wait {
    Wait {
        max_time: raw.max_time.or(Duration::from_secs(15), report),
        max_waiting: number(
            "wait.max_waiting",
            raw.max_waiting,
            100,
            0..=100_000,
            report,
        ),
    }
}

fn retry_after(raw: Placed<raw::RetryAfter>, report: &mut Report) -> RetryAfterBounds {
    let min = raw.value.min.or(Duration::from_secs(5), report);
    let max = time("retry_after.max", raw.value.max, 30, report);
    in_order(
        raw.at,
        ("retry_after.min", min),
        ("retry_after.max", max),
        report,
    );
    RetryAfterBounds { min, max }
}

/// A duration above zero; `default` in seconds.
pub fn time(key: &str, slot: Slot<Duration>, default: u64, report: &mut Report) -> Duration {
    let default = Duration::from_secs(default);
    match slot.take(report) {
        None => default,
        Some(Placed { at, value }) if value.is_zero() => {
            report.problem(at, format!("`{key}` must be longer than `0s`"));
            default
        }
        Some(placed) => placed.value,
    }
}

fn count(key: &str, slot: Slot<u64>, default: u32, most: u32, report: &mut Report) -> NonZeroU32 {
    let count = number(key, slot, default, 1..=u64::from(most), report);
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

fn in_order(at: Place, low: (&str, Duration), high: (&str, Duration), report: &mut Report) {
    if low.1 > high.1 {
        report.problem(
            at,
            format!(
                "`{}` must not exceed `{}`, but with the defaults filled in they are {} and {}",
                low.0,
                high.0,
                humantime::format_duration(low.1),
                humantime::format_duration(high.1),
            ),
        );
    }
}
