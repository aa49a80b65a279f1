//! What `GET /status` says: the pool at this moment, and what each pair did lately.
//!
//! The snapshot knows what holds a pair back, the counts know what it did; neither knows all pairs.
//! This is the union: a pair that only has counts is in its credential's own state, because
//! nothing is held against it. Pairs of credentials that are gone are left out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::allowances::AllowanceStatus;
use super::groups::GroupsStatus;
use super::hits::RuleHits;
use super::refusals::RefusalStatus;
use super::snapshot::{CredentialView, RuleView, Snapshot};
use super::window::{Count, Spans};
use crate::clients::ClientView;
use crate::pool::CredentialId;

/// The document.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Of this program.
    pub version: &'static str,
    /// Seconds since this process started.
    pub uptime_s: u64,
    /// No new requests are taken.
    pub draining: bool,
    /// Every configured credential.
    pub credentials: Vec<CredentialStatus>,
    /// Every pair about which something is known, by credential and model.
    pub pairs: Vec<PairStatus>,
    /// Every model about which something is known.
    pub models: Vec<ModelStatus>,
    /// The credentials by a kind, where one was asked for.
    pub groups: Option<GroupsStatus>,
    /// The latest refusals, newest first.
    pub refusals: Vec<RefusalStatus>,
    /// Every rule, in the order in which they are asked.
    pub rules: Vec<RuleStatus>,
    /// The clients that do most, the busiest first; empty where nobody has to prove who it is.
    pub clients: Vec<ClientStatus>,
    /// How many more clients there are.
    pub clients_left_out: usize,
    /// Bytes that are kept.
    pub memory: MemoryStatus,
    /// Requests that wait, for a model that is full or for a place with a credential.
    pub waiting: u64,
    /// What an operator should look at.
    pub warnings: Vec<String>,
}

/// A credential.
#[derive(Clone, Debug, Serialize)]
pub struct CredentialStatus {
    /// Its name.
    pub id: String,
    /// The name of its upstream.
    pub upstream: String,
    /// As configured.
    pub labels: BTreeMap<String, String>,
    /// The way in that its token names: its `host` and `iss` claims, if the secret is such a token.
    pub route: Option<String>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Its state for every model.
    pub state: &'static str,
    /// What is left of its allowance, as its upstream last said; for information only.
    pub allowance: Vec<AllowanceStatus>,
}

/// A pair.
#[derive(Clone, Debug, Serialize)]
pub struct PairStatus {
    /// The credential's name.
    pub credential: String,
    /// The model's name; `*` is every model.
    pub model: String,
    /// Its state.
    pub state: &'static str,
    /// Milliseconds that it has been in it; `null` for a pair that was never in another.
    pub since_ms: Option<u64>,
    /// Milliseconds that it will be; `null` where that is not known.
    pub left_ms: Option<u64>,
    /// Why, and on what evidence.
    pub basis: String,
    /// Its score, to a tenth.
    pub score: f64,
    /// How far that is above the median of the model's other pairs, to a tenth.
    pub excess: f64,
    /// Attempts refused for want of capacity.
    pub refused: SpanCounts,
    /// Attempts admitted.
    pub admitted: SpanCounts,
    /// Both, piece by piece.
    pub series: SeriesStatus,
}

/// A model.
#[derive(Clone, Debug, Serialize)]
pub struct ModelStatus {
    /// Its name.
    pub model: String,
    /// Whether it is full.
    pub full: bool,
    /// Requests that wait for a seat.
    pub waiting: u64,
}

/// A rule.
#[derive(Clone, Debug, Serialize)]
pub struct RuleStatus {
    /// Its name.
    pub name: String,
    /// `built_in` or `configured`.
    pub source: &'static str,
    /// What it means.
    pub verdict: &'static str,
    /// How often it has decided, since the start of the process.
    pub hits: u64,
    /// When it last did (RFC 3339), if ever.
    pub last_hit: Option<String>,
    /// Its last day, if it has one.
    pub expires: Option<String>,
    /// Whether that is over: it matches nothing any more.
    pub expired: bool,
}

/// A client.
#[derive(Clone, Debug, Serialize)]
pub struct ClientStatus {
    /// Its name.
    pub id: String,
    /// Requests in flight.
    pub in_flight: u32,
    /// As many as it may have; `null` is no limit.
    pub max_in_flight: Option<u32>,
    /// Requests of the last minute.
    pub requests: u32,
    /// As many as it may make.
    pub requests_per_minute: Option<u32>,
    /// Tokens of today, in UTC.
    pub tokens_today: u64,
    /// As many as it may use.
    pub tokens_per_day: Option<u64>,
    /// Its last day, if it has one.
    pub expires: Option<String>,
    /// Whether that is over.
    pub expired: bool,
}

/// Memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryStatus {
    /// Bytes reserved.
    pub used: u64,
    /// Bytes allowed.
    pub limit: u64,
}

/// A number for each span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanCounts {
    /// The last 15 minutes.
    #[serde(rename = "15m")]
    pub quarter: u32,
    /// The last hour.
    #[serde(rename = "1h")]
    pub hour: u32,
    /// The last 24 hours.
    #[serde(rename = "24h")]
    pub day: u32,
}

/// What was counted, for a chart of each span.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesStatus {
    /// The last 15 minutes, by the minute.
    #[serde(rename = "15m")]
    pub quarter: Pieces,
    /// The last hour, by five minutes.
    #[serde(rename = "1h")]
    pub hour: Pieces,
    /// The last 24 hours, by the hour.
    #[serde(rename = "24h")]
    pub day: Pieces,
}

/// Pieces of a span, the oldest first; the last is under way.
#[derive(Clone, Debug, Serialize)]
pub struct Pieces {
    /// Seconds of each.
    pub piece_s: u64,
    /// Refused for want of capacity in each.
    pub refused: Vec<u32>,
    /// Admitted in each.
    pub admitted: Vec<u32>,
}

impl SpanCounts {
    /// Both together.
    pub fn plus(self, other: SpanCounts) -> SpanCounts {
        SpanCounts {
            quarter: self.quarter.saturating_add(other.quarter),
            hour: self.hour.saturating_add(other.hour),
            day: self.day.saturating_add(other.day),
        }
    }
}

impl Status {
    /// The pool as `snapshot` shows it, with what each pair did lately.
    pub fn new(
        snapshot: &Snapshot,
        spans: Vec<(CredentialId, String, Spans)>,
        hits: &RuleHits,
        uptime: Duration,
    ) -> Status {
        let credentials: BTreeMap<&str, &CredentialView> = snapshot
            .credentials
            .iter()
            .map(|view| (view.id.as_str(), view))
            .collect();
        let mut pairs: BTreeMap<(String, String), PairStatus> = BTreeMap::new();
        for pair in &snapshot.pairs {
            let model = pair
                .model
                .as_ref()
                .map_or("*", |model| model.as_str())
                .to_owned();
            let row = PairStatus {
                credential: pair.credential.to_string(),
                model: model.clone(),
                state: pair.state.as_str(),
                since_ms: Some(millis(pair.since)),
                left_ms: pair.left.map(millis),
                basis: pair.basis.clone(),
                score: tenths(pair.score),
                excess: tenths(pair.excess),
                refused: SpanCounts::default(),
                admitted: SpanCounts::default(),
                series: series(&Spans::default()),
            };
            pairs.insert((pair.credential.to_string(), model), row);
        }
        for (credential, model, spans) in spans {
            let Some(of) = credentials.get(credential.as_str()) else {
                continue;
            };
            let row = pairs
                .entry((credential.to_string(), model.clone()))
                .or_insert_with(|| PairStatus {
                    credential: credential.to_string(),
                    model,
                    state: of.state.as_str(),
                    since_ms: None,
                    left_ms: None,
                    basis: String::new(),
                    score: 0.0,
                    excess: 0.0,
                    refused: SpanCounts::default(),
                    admitted: SpanCounts::default(),
                    series: series(&Spans::default()),
                });
            row.refused = each(&spans, |count| count.refused);
            row.admitted = each(&spans, |count| count.admitted);
            row.series = series(&spans);
        }
        let (clients, clients_left_out) = client_statuses(&snapshot.clients);
        Status {
            clients,
            clients_left_out,
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: uptime.as_secs(),
            draining: snapshot.draining,
            credentials: snapshot.credentials.iter().map(credential_status).collect(),
            pairs: pairs.into_values().collect(),
            models: snapshot
                .models
                .iter()
                .map(|view| ModelStatus {
                    model: view.model.to_string(),
                    full: view.full,
                    waiting: view.waiting,
                })
                .collect(),
            groups: None,
            refusals: Vec::new(),
            rules: snapshot
                .rules
                .iter()
                .map(|view| rule_status(view, hits))
                .collect(),
            waiting: snapshot.waiting,
            memory: MemoryStatus {
                used: snapshot.memory.used,
                limit: snapshot.memory.limit,
            },
            warnings: snapshot.warnings.clone(),
        }
    }
}

fn credential_status(view: &CredentialView) -> CredentialStatus {
    CredentialStatus {
        id: view.id.to_string(),
        upstream: view.upstream.clone(),
        labels: view.labels.clone(),
        route: view.route.as_ref().map(ToString::to_string),
        in_flight: view.in_flight,
        state: view.state.as_str(),
        allowance: Vec::new(),
    }
}

/// The busiest, and how many more there are: a list of thousands is read by nobody.
fn client_statuses(views: &[ClientView]) -> (Vec<ClientStatus>, usize) {
    /// Chosen: more than a person reads.
    const MOST: usize = 200;
    let mut views: Vec<&ClientView> = views.iter().collect();
    views.sort_by_key(|it| std::cmp::Reverse((it.in_flight, it.requests, it.tokens)));
    let status = |view: &&ClientView| ClientStatus {
        id: view.id.to_string(),
        in_flight: view.in_flight,
        max_in_flight: view.max_in_flight,
        requests: view.requests,
        requests_per_minute: view.requests_per_minute,
        tokens_today: view.tokens,
        tokens_per_day: view.tokens_per_day,
        expires: view.expires.map(|day| day.to_string()),
        expired: view.expired,
    };
    let shown = views.iter().take(MOST).map(status).collect();
    (shown, views.len().saturating_sub(MOST))
}

fn rule_status(view: &RuleView, hits: &RuleHits) -> RuleStatus {
    let hits = hits.of(&view.name);
    RuleStatus {
        name: view.name.to_string(),
        source: view.source,
        verdict: view.verdict.as_str(),
        hits: hits.map_or(0, |hits| hits.count),
        last_hit: hits.map(|hits| humantime::format_rfc3339_seconds(hits.last).to_string()),
        expires: view.expires.map(|day| day.to_string()),
        expired: view.expired,
    }
}

fn each(spans: &Spans, number: fn(Count) -> u32) -> SpanCounts {
    SpanCounts {
        quarter: number(spans.quarter),
        hour: number(spans.hour),
        day: number(spans.day),
    }
}

fn series(spans: &Spans) -> SeriesStatus {
    let pieces = |piece_s, counts: &[Count]| Pieces {
        piece_s,
        refused: counts.iter().map(|count| count.refused).collect(),
        admitted: counts.iter().map(|count| count.admitted).collect(),
    };
    SeriesStatus {
        quarter: pieces(60, &spans.series.quarter),
        hour: pieces(300, &spans.series.hour),
        day: pieces(3_600, &spans.series.day),
    }
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::record::tests::failed_over;
    use crate::observe::scrape::tests::pool;
    use crate::observe::window::Counts;

    #[test]
    fn pairs_are_the_union_of_what_is_held_and_what_was_counted() {
        let counts = Counts::default();
        counts.record(&failed_over(), Duration::ZERO);
        let status = Status::new(
            &pool(),
            counts.spans(Duration::ZERO),
            &RuleHits::default(),
            Duration::from_secs(90),
        );
        let rows: Vec<_> = status
            .pairs
            .iter()
            .map(|p| {
                (
                    p.credential.as_str(),
                    p.model.as_str(),
                    p.state,
                    p.refused.hour,
                    p.admitted.day,
                )
            })
            .collect();
        let expected = [
            ("campus-a", "gpt-5.6-sol", "cooling", 1, 0),
            ("campus-b", "*", "drained", 0, 0),
            ("campus-b", "gpt-5.6-sol", "ready", 0, 1),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn the_document_has_the_promised_names() {
        let hits = RuleHits::default();
        hits.record(&failed_over());
        let status = Status::new(&pool(), Vec::new(), &hits, Duration::from_secs(90));
        let json = serde_json::to_value(&status).unwrap();
        let pieces = |piece_s: u64, count: usize| {
            let none = vec![0; count];
            serde_json::json!({"piece_s": piece_s, "refused": none, "admitted": none})
        };
        let pair = serde_json::json!({
            "credential": "campus-a", "model": "gpt-5.6-sol", "state": "cooling",
            "since_ms": 1_500, "left_ms": 3_500, "basis": "score 20 against a median of 0",
            "score": 20.0, "excess": 20.0,
            "refused": {"15m": 0, "1h": 0, "24h": 0}, "admitted": {"15m": 0, "1h": 0, "24h": 0},
            "series": {"15m": pieces(60, 15), "1h": pieces(300, 12), "24h": pieces(3_600, 24)},
        });
        assert_eq!(json["pairs"][0], pair);
        assert_eq!(json["uptime_s"], 90);
        assert_eq!(json["draining"], false);
        assert_eq!(json["credentials"][0]["labels"]["cohort"], "new");
        assert_eq!(
            json["models"][0],
            serde_json::json!({"model": "gpt-5.6-sol", "full": true, "waiting": 4})
        );
        assert_eq!(
            json["memory"],
            serde_json::json!({"used": 1_024, "limit": 4_096})
        );
        let rule = serde_json::json!({
            "name": "openai-overloaded", "source": "configured", "verdict": "capacity", "hits": 1,
            "last_hit": "2026-04-01T12:00:05Z", "expires": "2027-03-01", "expired": false,
        });
        assert_eq!(json["rules"][0], rule);
        assert_eq!(json["rules"][1]["last_hit"], serde_json::Value::Null);
        assert_eq!(json["warnings"][0], "rule vendor-x-busy has expired");
    }

    #[test]
    fn counts_of_a_credential_that_is_gone_are_left_out() {
        let counts = Counts::default();
        counts.record(&failed_over(), Duration::ZERO);
        let status = Status::new(
            &Snapshot::default(),
            counts.spans(Duration::ZERO),
            &RuleHits::default(),
            Duration::ZERO,
        );
        assert_eq!(status.pairs.len(), 0);
    }
}
