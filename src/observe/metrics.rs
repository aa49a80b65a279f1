//! The metrics, under the names and labels of the contract.
//!
//! Everything about a request is counted by [`Metrics::record`] when it has ended: only then is it
//! known whether its model is one that an upstream admits, and so may be a label. Everything about
//! the pool is read from the snapshot of the scrape, into a registry that lives as long as it does.
//!
//! Words of closed sets are there with 0 from the start, since a rate needs a first value. No cache
//! of handles lies above the `prometheus` vectors: a lookup there is one hash of the label values
//! and one shared lock, without an allocation, and that is what a cache of ours would be.

use http::StatusCode;
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};
use prometheus::{Registry, TextEncoder};

use super::models::ModelNames;
use super::record::{AttemptRecord, Record};
use super::safe::SafeText;
use super::scrape;
use super::snapshot::Snapshot;
use super::words::{Blocked, CommitReason, Handover, Then, TurnedAway};
use crate::admission::{Dialect, Verdict};

/// Every metric of the process.
pub struct Metrics {
    registry: Registry,
    models: ModelNames,
    requests: IntCounterVec,
    clients: IntCounterVec,
    attempts: IntCounterVec,
    responses: IntCounterVec,
    refusals: IntCounterVec,
    failovers: IntCounterVec,
    blocked: IntCounterVec,
    commits: IntCounterVec,
    hold: Histogram,
    rewrites: IntCounterVec,
    terminals: IntCounterVec,
    first_output: HistogramVec,
    tokens: IntCounterVec,
    rule_hits: IntCounterVec,
    handovers: IntCounterVec,
    turned_away: IntCounterVec,
}

impl Metrics {
    /// All at zero. Fails only where a name or label here is malformed or there twice.
    pub fn new(version: &str) -> Result<Metrics, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let vec = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let build = IntGaugeVec::new(Opts::new("berth_build_info", "The version."), &["version"])?;
        build.get_metric_with_label_values(&[version])?.set(1);
        registry.register(Box::new(build))?;
        let hold = Histogram::with_opts(
            HistogramOpts::new("berth_hold_seconds", "From an attempt sent to its verdict.")
                .buckets(SECONDS.to_vec()),
        )?;
        registry.register(Box::new(hold.clone()))?;
        let first_output = HistogramVec::new(
            HistogramOpts::new(
                "berth_first_output_seconds",
                "From a request to its first output.",
            )
            .buckets(SECONDS.to_vec()),
            &["route"],
        )?;
        registry.register(Box::new(first_output.clone()))?;
        let metrics = Metrics {
            requests: counter(
                "berth_requests_total",
                "Requests that have ended.",
                &["route", "model", "outcome"],
            )?,
            clients: counter(
                "berth_client_requests_total",
                "Requests of a route that have ended, by who asked.",
                &["client", "outcome"],
            )?,
            attempts: counter(
                "berth_attempts_total",
                "Attempts upstream.",
                &["credential", "model", "verdict"],
            )?,
            responses: counter(
                "berth_upstream_responses_total",
                "Answers by the status that the upstream gave, whatever they meant.",
                &["credential", "status"],
            )?,
            refusals: counter(
                "berth_refusals_total",
                "Attempts refused for want of capacity.",
                &["credential", "model", "shape"],
            )?,
            failovers: counter(
                "berth_failovers_total",
                "Switches to another credential, by the verdict before; to another model: fallback_model.",
                &["route", "reason"],
            )?,
            blocked: counter(
                "berth_failover_blocked_total",
                "Requests that could not be tried elsewhere.",
                &["reason"],
            )?,
            commits: counter(
                "berth_commits_total",
                "Answers let through to the client.",
                &["reason"],
            )?,
            rewrites: counter(
                "berth_rewrites_total",
                "Error codes turned into others.",
                &["from", "to"],
            )?,
            terminals: counter(
                "berth_terminals_synthesised_total",
                "Streams whose terminal frame was made up.",
                &["dialect"],
            )?,
            tokens: counter(
                "berth_tokens_total",
                "Tokens used, as the answers count them.",
                &["client", "model", "kind"],
            )?,
            rule_hits: counter(
                "berth_rule_hits_total",
                "Verdicts by the rule that decided.",
                &["rule"],
            )?,
            handovers: counter(
                "berth_handovers_total",
                "Handovers to a fresh process, by what came of them.",
                &["outcome"],
            )?,
            turned_away: counter(
                "berth_connections_refused_total",
                "Connections that were turned away before their first request.",
                &["reason"],
            )?,
            models: ModelNames::default(),
            hold,
            first_output,
            registry: registry.clone(),
        };
        for reason in Blocked::ALL {
            metrics
                .blocked
                .get_metric_with_label_values(&[reason.as_str()])?;
        }
        for reason in CommitReason::ALL {
            metrics
                .commits
                .get_metric_with_label_values(&[reason.as_str()])?;
        }
        for outcome in Handover::ALL {
            metrics
                .handovers
                .get_metric_with_label_values(&[outcome.as_str()])?;
        }
        for reason in TurnedAway::ALL {
            metrics
                .turned_away
                .get_metric_with_label_values(&[reason.as_str()])?;
        }
        for name in [Dialect::OpenAi, Dialect::Anthropic].map(Dialect::as_str) {
            metrics.terminals.get_metric_with_label_values(&[name])?;
        }
        Ok(metrics)
    }

    /// These models are named in the configuration.
    pub fn knows(&mut self, models: impl IntoIterator<Item = SafeText>) {
        self.models = ModelNames::new(models);
    }

    /// Counts everything about a finished request.
    pub fn record(&self, record: &Record) {
        for attempt in record
            .attempts
            .iter()
            .filter(|attempt| attempt.was_admitted())
        {
            if let Some(model) = &attempt.model {
                self.models.admitted(model.as_str());
            }
        }
        let route = record.route.as_deref().unwrap_or("none");
        let model = self
            .models
            .label(record.model.as_ref().map(|model| model.as_str()));
        add(&self.requests, [route, model, record.outcome.as_str()], 1);
        // Probes of a load balancer are of no route.
        if record.route.is_some() {
            let client = record.client.as_deref().unwrap_or("none");
            add(&self.clients, [client, record.outcome.as_str()], 1);
        }
        for attempt in &record.attempts {
            self.attempt(attempt, route, record.commit_reason);
        }
        if record.fell_back() {
            add(&self.failovers, [route, "fallback_model"], 1);
        }
        if let Some(reason) = record.blocked {
            add(&self.blocked, [reason.as_str()], 1);
        }
        if let Some(reason) = record.commit_reason {
            add(&self.commits, [reason.as_str()], 1);
        }
        if let Some(codes) = &record.rewrote {
            add(
                &self.rewrites,
                [codes.from.as_str(), codes.to.as_str()],
                codes.times,
            );
        }
        if let Some(of) = record.terminal_synthesised {
            add(&self.terminals, [of.as_str()], 1);
        }
        if let Some(time) = record.first_output
            && let Ok(histogram) = self.first_output.get_metric_with_label_values(&[route])
        {
            histogram.observe(time.as_secs_f64());
        }
        self.tokens(record);
    }

    /// Counts a handover.
    pub fn handed_over(&self, outcome: Handover) {
        add(&self.handovers, [outcome.as_str()], 1);
    }

    /// Counts a connection that was turned away.
    pub fn turned_away(&self, reason: TurnedAway) {
        add(&self.turned_away, [reason.as_str()], 1);
    }

    /// The text for Prometheus: what was counted, and the pool as `snapshot` shows it.
    pub fn render(&self, snapshot: &Snapshot, audit_lost: u64) -> String {
        for rule in &snapshot.rules {
            add(&self.rule_hits, [&*rule.name], 0);
        }
        let mut families = self.registry.gather();
        let of_pool = scrape::families(snapshot, &self.models, audit_lost);
        families.extend(of_pool.unwrap_or_else(|error| {
            log::error!(error:%; "the metrics of the pool are left out");
            Vec::new()
        }));
        families.sort_by(|a: &MetricFamily, b| a.name().cmp(b.name()));
        let text = TextEncoder::new().encode_to_string(&families);
        text.unwrap_or_else(|error| {
            log::error!(error:%; "the metrics cannot be written");
            String::new()
        })
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(super) fn models(&self) -> &ModelNames {
        &self.models
    }

    /// The counter of this name.
    pub(super) fn counter(&self, name: &str) -> Option<&IntCounterVec> {
        let counters = [
            ("berth_requests_total", &self.requests),
            ("berth_client_requests_total", &self.clients),
            ("berth_attempts_total", &self.attempts),
            ("berth_upstream_responses_total", &self.responses),
            ("berth_refusals_total", &self.refusals),
            ("berth_failovers_total", &self.failovers),
            ("berth_failover_blocked_total", &self.blocked),
            ("berth_commits_total", &self.commits),
            ("berth_rewrites_total", &self.rewrites),
            ("berth_terminals_synthesised_total", &self.terminals),
            ("berth_tokens_total", &self.tokens),
            ("berth_rule_hits_total", &self.rule_hits),
            ("berth_handovers_total", &self.handovers),
            ("berth_connections_refused_total", &self.turned_away),
        ];
        let found = counters.into_iter().find(|(its, _)| *its == name);
        found.map(|(_, counter)| counter)
    }

    fn attempt(&self, attempt: &AttemptRecord, route: &str, commit: Option<CommitReason>) {
        let credential = attempt.credential.0.as_str();
        let model = self
            .models
            .label(attempt.model.as_ref().map(|model| model.as_str()));
        let verdict = attempt.verdict.as_str();
        add(&self.attempts, [credential, model, verdict], 1);
        if let Some(status) = attempt.status.and_then(|it| StatusCode::from_u16(it).ok()) {
            add(&self.responses, [credential, status_label(&status)], 1);
        }
        if let (Verdict::Capacity | Verdict::CapacityAfterCommit, Some(shape)) =
            (attempt.verdict, attempt.shape)
        {
            add(&self.refusals, [credential, model, shape.as_str()], 1);
        }
        if attempt.then == Then::FailOver {
            add(&self.failovers, [route, verdict], 1);
        }
        if let Some(rule) = &attempt.rule {
            add(&self.rule_hits, [rule], 1);
        }
        if let Some(millis) = attempt.ms_to_verdict
            && commit != Some(CommitReason::NotHeld)
        {
            self.hold.observe(millis as f64 / 1_000.0);
        }
    }

    fn tokens(&self, record: &Record) {
        let Some(usage) = record.usage else { return };
        let client = record.client.as_deref().unwrap_or("none");
        let model = self
            .models
            .label(record.answered_model().map(|model| model.as_str()));
        let kinds = [
            ("input", usage.input),
            ("cached", usage.cached),
            ("output", usage.output),
            ("reasoning", usage.reasoning),
        ];
        for (kind, tokens) in kinds.into_iter().filter(|(_, tokens)| *tokens > 0) {
            add(&self.tokens, [client, model, kind], tokens);
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The code where HTTP or a vendor knows it, else its class: an upstream must not make as many series
/// as there are numbers.
fn status_label(status: &StatusCode) -> &str {
    /// Cloudflare's and Anthropic's.
    const OF_VENDORS: [u16; 8] = [520, 521, 522, 523, 524, 525, 526, 529];
    let known = status.canonical_reason().is_some() || OF_VENDORS.contains(&status.as_u16());
    match status.as_u16() {
        _ if known => status.as_str(),
        ..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        500..600 => "5xx",
        600.. => "other",
    }
}

/// Adds to one series. The number of labels is fixed above, so a mismatch is a mistake here; it
/// costs the count and not the request.
fn add<const N: usize>(counter: &IntCounterVec, labels: [&str; N], by: u64) {
    match counter.get_metric_with_label_values(&labels) {
        Ok(series) => series.inc_by(by),
        Err(error) => debug_assert!(false, "{error}"),
    }
}

/// Chosen: dense where answers begin (1 to 5 s), with an edge at the default hold limits (120 and
/// 240 s) and at the p99 of healthy silence (94 s).
const SECONDS: [f64; 16] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 60.0, 94.0, 120.0, 240.0, 600.0,
];

#[cfg(test)]
mod tests;
