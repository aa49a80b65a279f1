//! What is excluded afterwards, from `GET /status`: nothing that the case does not list.

use serde_json::Value;

use super::{Books, Evidence, Findings};
use crate::cases_runner::config;
use crate::cases_runner::format::Exclusion;

const ASPECT: &str = "cooldown";

/// The states that take a pair out; cooling and shunned pairs only go last.
const EXCLUDED: [&str; 7] = [
    "limited",
    "spent",
    "rejected",
    "unsupported",
    "unreachable",
    "held_out",
    "drained",
];

/// Reasons whose scope is the whole credential, whatever model was asked for.
const WHOLE: [&str; 6] = [
    "quota",
    "auth",
    "deactivated",
    "challenge",
    "edge_block",
    "unreachable",
];

fn state(reason: &str) -> &str {
    match reason {
        "rate_limit" => "limited",
        "quota" => "spent",
        "auth" | "deactivated" | "forbidden" | "challenge" => "rejected",
        other => other,
    }
}

pub fn judge(evidence: &Evidence<'_>, books: &Books, findings: &mut Findings) {
    let case = evidence.case;
    let Some(expected) = &case.expect.cooldown else {
        return;
    };
    let Some(pairs) = books.status["pairs"].as_array() else {
        return findings.check(
            false,
            ASPECT,
            "`pairs` in /status",
            books.status.to_string(),
        );
    };
    let staged = |pair: &Value| {
        pair["state"] == "held_out"
            && case
                .setup
                .cooldowns
                .iter()
                .any(|held| pair["credential"] == *config::id(&held.credential))
    };
    let drained = |pair: &Value| pair["state"] == "drained" && !case.setup.after_ready.is_empty();
    let excluded: Vec<&Value> = pairs
        .iter()
        .filter(|pair| {
            pair["state"]
                .as_str()
                .is_some_and(|state| EXCLUDED.contains(&state))
        })
        .filter(|pair| !staged(pair) && !drained(pair))
        .collect();
    let told = || {
        excluded
            .iter()
            .map(|pair| pair.to_string())
            .collect::<Vec<_>>()
            .join("\n")
    };
    for exclusion in expected {
        if exclusion.basis.is_some() {
            findings.skip("cooldown: basis");
        }
        // The entry that says for how long; a pair below an excluded credential may not.
        let covering = || excluded.iter().filter(|pair| covers(pair, exclusion));
        let found = covering()
            .find(|pair| pair["left_ms"].is_i64() || pair["left_ms"].is_u64())
            .or(covering().next());
        findings.check(found.is_some(), ASPECT, &format!("{exclusion:?}"), told());
        let Some(left) = found.map(|pair| pair["left_ms"].as_i64()) else {
            continue;
        };
        // Since the last thing that this credential's upstream said.
        let since = evidence
            .seen
            .iter()
            .filter(|received| received.label.as_ref() == Some(&exclusion.credential))
            .filter_map(|received| received.written.last())
            .max()
            .map(|said| books.status_at.saturating_duration_since(*said));
        let whole = left.map(|left| left + since.map_or(0, |since| since.as_millis() as i64));
        let fine = match whole {
            // Without an end: until someone acts.
            None => exclusion.max_ms.is_none() && exclusion.accept_ms.is_empty(),
            Some(ms) => {
                let ranges = &exclusion.accept_ms;
                exclusion.min_ms.is_none_or(|min| ms >= min)
                    && exclusion.max_ms.is_none_or(|max| ms <= max)
                    && (ranges.is_empty()
                        || ranges.iter().any(|[low, high]| (low..=high).contains(&&ms)))
            }
        };
        findings.check(
            fine,
            ASPECT,
            &format!("{exclusion:?}"),
            format!("{whole:?} ms"),
        );
    }
    for pair in &excluded {
        let listed = expected
            .iter()
            .chain(&case.expect.cooldown_may)
            .any(|exclusion| covers(pair, exclusion));
        findings.check(listed, ASPECT, "no other exclusion", pair.to_string());
    }
    for other in &case.expect.cooldown_must_not_apply_to {
        let met = excluded.iter().find(|pair| {
            pair["credential"] == *config::id(&other.credential)
                && (pair["model"] == *other.model || pair["model"] == "*")
        });
        findings.check(met.is_none(), ASPECT, &format!("not for {other:?}"), told());
    }
}

fn covers(pair: &Value, exclusion: &Exclusion) -> bool {
    let reason = exclusion.reason.as_deref();
    let whole = reason.is_none_or(|reason| WHOLE.contains(&reason));
    pair["credential"] == *config::id(&exclusion.credential)
        && (pair["model"] == *exclusion.model || whole)
        && reason.is_none_or(|reason| pair["state"] == *state(reason))
}
