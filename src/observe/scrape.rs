//! The metrics that are read at the moment of a scrape, and forgotten after it.

use std::collections::{BTreeMap, BTreeSet};

use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

use super::models::ModelNames;
use super::snapshot::{PairView, Snapshot};
use crate::admission::PairState;

/// The families of the pool.
pub(super) fn families(
    snapshot: &Snapshot,
    models: &ModelNames,
    audit_lost: u64,
) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let registry = Registry::new();
    let gauge = |name: &str, help: &str, labels: &[&str]| {
        let vec = IntGaugeVec::new(Opts::new(name, help), labels)?;
        registry.register(Box::new(vec.clone()))?;
        Ok::<_, prometheus::Error>(vec)
    };

    let in_flight = gauge("berth_in_flight", "Requests in flight.", &["credential"])?;
    for credential in &snapshot.credentials {
        let of = [credential.id.as_str()];
        in_flight
            .get_metric_with_label_values(&of)?
            .set(whole(credential.in_flight));
    }

    let ends = gauge(
        "berth_credential_secret_expires_timestamp_seconds",
        "When a secret that is a JWT says that it ends, in seconds since 1970.",
        &["credential"],
    )?;
    for credential in &snapshot.credentials {
        if let Some(expiry) = credential.secret_expires {
            let of = [credential.id.as_str()];
            ends.get_metric_with_label_values(&of)?
                .set(whole(expiry.as_secs()));
        }
    }

    let expired = gauge(
        "berth_rule_expired",
        "1 where the last day of a rule is over, and it matches nothing any more.",
        &["rule"],
    )?;
    for rule in snapshot.rules.iter().filter(|rule| rule.expires.is_some()) {
        let series = expired.get_metric_with_label_values(&[&*rule.name])?;
        series.set(i64::from(rule.expired));
    }

    let states = gauge(
        "berth_pair_state",
        "1 for the state that a pair is in.",
        &["credential", "model", "state"],
    )?;
    let scores = GaugeVec::new(
        Opts::new(
            "berth_pair_score",
            "How much a pair refuses newcomers; 0 is never.",
        ),
        &["credential", "model"],
    )?;
    registry.register(Box::new(scores.clone()))?;
    for ((credential, model), (state, score)) in worst_pairs(snapshot, models) {
        let of = [credential, model, state.as_str()];
        states.get_metric_with_label_values(&of)?.set(1);
        scores
            .get_metric_with_label_values(&[credential, model])?
            .set(score);
    }

    let full = gauge(
        "berth_model_full",
        "1 while every credential refuses a model.",
        &["model"],
    )?;
    for view in &snapshot.models {
        // Several models may share the label `other`: it is full if one of them is.
        let series =
            full.get_metric_with_label_values(&[models.label(Some(view.model.as_str()))])?;
        series.set(series.get().max(i64::from(view.full)));
    }

    let memory = [
        (
            "berth_memory_reserved_bytes",
            "Bytes of requests and answers that are kept.",
            snapshot.memory.used,
        ),
        (
            "berth_memory_limit_bytes",
            "Bytes that may be kept (limits.memory).",
            snapshot.memory.limit,
        ),
    ];
    for (name, help, bytes) in memory {
        let series = IntGauge::new(name, help)?;
        series.set(whole(bytes));
        registry.register(Box::new(series))?;
    }
    let connections = IntGauge::new("berth_connections", "Connections of clients that are open.")?;
    connections.set(whole(snapshot.connections));
    registry.register(Box::new(connections))?;
    let hold = Gauge::new(
        "berth_hold_limit_seconds",
        "Longest that an answer may be held (admission.hold.max_time).",
    )?;
    hold.set(snapshot.hold_limit.as_secs_f64());
    registry.register(Box::new(hold))?;
    let lost = IntCounter::new(
        "berth_audit_lost_total",
        "Audit lines that were not written.",
    )?;
    lost.inc_by(audit_lost);
    registry.register(Box::new(lost))?;

    credential_info(snapshot, &registry)?;
    Ok(registry.gather())
}

/// One state and score for each pair of labels. Pairs that share the label `other` are shown by the
/// one with the highest score.
fn worst_pairs<'s>(
    snapshot: &'s Snapshot,
    models: &ModelNames,
) -> BTreeMap<(&'s str, &'s str), (PairState, f64)> {
    let mut worst = BTreeMap::new();
    for pair in &snapshot.pairs {
        let (key, now) = (
            (pair.credential.as_str(), label(pair, models)),
            (pair.state, pair.score),
        );
        let entry = worst.entry(key).or_insert(now);
        if pair.score > entry.1 {
            *entry = now;
        }
    }
    worst
}

fn label<'p>(pair: &'p PairView, models: &ModelNames) -> &'p str {
    match &pair.model {
        None => "*",
        Some(model) => models.label(Some(model.as_str())),
    }
}

/// The operator's labels, as `label_*`. Prometheus wants one set of names for all series of a
/// family, and takes an empty value for a label that is not there.
fn credential_info(snapshot: &Snapshot, registry: &Registry) -> Result<(), prometheus::Error> {
    let labels = snapshot
        .credentials
        .iter()
        .flat_map(|credential| credential.labels.keys());
    let names: BTreeSet<String> = labels.map(|key| label_name(key)).collect();
    let mut all = vec!["credential", "upstream"];
    all.extend(names.iter().map(String::as_str));
    let info = IntGaugeVec::new(
        Opts::new("berth_credential_info", "1; the labels say which."),
        &all,
    )?;
    for credential in &snapshot.credentials {
        let own: BTreeMap<String, &str> = credential
            .labels
            .iter()
            .map(|(key, value)| (label_name(key), value.as_str()))
            .collect();
        let mut values = vec![credential.id.as_str(), credential.upstream.as_str()];
        values.extend(
            names
                .iter()
                .map(|name| own.get(name).copied().unwrap_or_default()),
        );
        info.get_metric_with_label_values(&values)?.set(1);
    }
    registry.register(Box::new(info))
}

fn label_name(key: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("label_{}", key.chars().map(plain).collect::<String>())
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::admission::Verdict;
    use crate::admission::day::Day;
    use crate::observe::metrics::Metrics;
    use crate::observe::safe::SafeText;
    use crate::observe::snapshot::{CredentialView, MemoryView, ModelView, RuleView};
    use crate::pool::{CredentialId, Expiry};
    use std::time::Duration;

    /// Two credentials, of which one cools, and one full model.
    pub(crate) fn pool() -> Snapshot {
        let credential = |id: &str, labels: &[(&str, &str)]| CredentialView {
            id: CredentialId::new(id).unwrap(),
            upstream: "openai".to_owned(),
            labels: labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            route: None,
            in_flight: 2,
            secret_expires: (id == "campus-a").then(|| Expiry::at(1_795_000_000)),
            state: PairState::Ready,
        };
        let rule = |name: &str, source, expires| RuleView {
            name: name.into(),
            source,
            verdict: Verdict::Capacity,
            expires,
            expired: false,
        };
        let model = SafeText::new("gpt-5.6-sol");
        Snapshot {
            clients: Vec::new(),
            waiting: 4,
            connections: 7,
            draining: false,
            credentials: vec![
                credential("campus-a", &[("cohort", "new"), ("cost-centre", "7")]),
                credential("campus-b", &[]),
            ],
            pairs: vec![
                PairView {
                    credential: CredentialId::new("campus-a").unwrap(),
                    model: Some(model.clone()),
                    state: PairState::Cooling,
                    since: Duration::from_millis(1_500),
                    left: Some(Duration::from_millis(3_500)),
                    basis: "score 20 against a median of 0".to_owned(),
                    score: 20.0,
                    excess: 20.0,
                },
                PairView {
                    credential: CredentialId::new("campus-b").unwrap(),
                    model: None,
                    state: PairState::Drained,
                    since: Duration::from_secs(60),
                    left: None,
                    basis: "an operator".to_owned(),
                    score: 0.0,
                    excess: 0.0,
                },
            ],
            models: vec![ModelView {
                model,
                full: true,
                waiting: 4,
            }],
            rules: vec![
                rule("openai-overloaded", "configured", Day::parse("2027-03-01")),
                rule("capacity", "built_in", None),
            ],
            memory: MemoryView {
                used: 1_024,
                limit: 4_096,
            },
            hold_limit: Duration::from_secs(120),
            warnings: vec!["rule vendor-x-busy has expired".to_owned()],
        }
    }

    #[test]
    fn series_of_what_is_gone_disappear() {
        let metrics = Metrics::new("v").unwrap();
        assert!(metrics.render(&pool(), 0).contains("campus-a"));
        let mut later = pool();
        later.credentials.remove(0);
        later.pairs.remove(0);
        let text = metrics.render(&later, 0);
        assert!(!text.contains("campus-a") && text.contains("campus-b"));
    }

    #[test]
    fn pairs_that_share_a_label_are_shown_once_by_the_worst() {
        let mut snapshot = pool();
        let pair = |model: &str, state, score| PairView {
            model: Some(SafeText::new(model)),
            state,
            score,
            ..pool().pairs.remove(0)
        };
        snapshot.pairs = vec![
            pair("x", PairState::Ready, 1.0),
            pair("y", PairState::Shunned, 40.0),
            pair("z", PairState::Ready, 2.0),
        ];
        let text = Metrics::new("v").unwrap().render(&snapshot, 0);
        let shown: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("berth_pair_state{"))
            .collect();
        assert_eq!(
            shown,
            [r#"berth_pair_state{credential="campus-a",model="other",state="shunned"} 1"#]
        );
    }

    #[test]
    fn labels_that_become_the_same_name_do_not_break_the_scrape() {
        let mut snapshot = pool();
        snapshot.credentials[0].labels = [("a-b", "1"), ("a_b", "2"), ("é", "3")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        let text = Metrics::new("v").unwrap().render(&snapshot, 0);
        assert!(text.contains(r#"label_a_b="2""#), "{text}");
    }
}
