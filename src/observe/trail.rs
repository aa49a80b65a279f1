//! The one thing that the edge tells when a request has ended.
//!
//! Audit, metrics and counts are fed here and nowhere else, so that no path through the edge feeds
//! two of them and forgets the third.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;

use super::allowances::{AllowanceHandover, Allowances};
use super::audit::Audit;
use super::flood::{Flood, Place};
use super::hits::{RuleHistory, RuleHits};
use super::metrics::Metrics;
use super::otlp::Spans;
use super::record::Record;
use super::refusals::{RefusalStatus, Refusals};
use super::safe::SafeText;
use super::snapshot::Snapshot;
use super::status::Status;
use super::totals::Total;
use super::window::{Counts, PairHistory};
use super::words::{Handover, Outcome, TurnedAway};
use crate::pool::CredentialId;

/// Audit, metrics and counts of the process.
#[derive(Debug)]
pub struct Trail {
    audit: Audit,
    spans: Spans,
    metrics: Metrics,
    counts: Counts,
    refusals: Refusals,
    allowances: Allowances,
    hits: RuleHits,
    strangers: Mutex<Flood>,
    started: Instant,
}

impl Trail {
    /// A trail that begins at `started`, the start of the process.
    pub fn new(
        (audit, spans): (Audit, Spans),
        started: Instant,
    ) -> Result<Trail, prometheus::Error> {
        Ok(Trail {
            audit,
            spans,
            metrics: Metrics::new(env!("CARGO_PKG_VERSION"))?,
            counts: Counts::default(),
            refusals: Refusals::default(),
            allowances: Allowances::default(),
            hits: RuleHits::default(),
            strangers: Mutex::default(),
            started,
        })
    }

    /// These models are named in the configuration, and have their names in the metrics.
    pub fn knows(&mut self, models: impl IntoIterator<Item = SafeText>) {
        self.metrics.knows(models);
    }

    /// A request has ended. Neither blocks nor fails.
    pub fn finished(&self, record: Record, now: Instant) {
        self.metrics.record(&record);
        self.counts.record(&record, self.age(now));
        self.refusals.record(&record);
        self.hits.record(&record);
        self.spans.finished(&record);
        if self.is_worth_a_line(&record, now) {
            self.audit.write(record);
        }
    }

    /// An answer of `credential` has this head.
    pub fn heard(&self, credential: &CredentialId, headers: &HeaderMap, now: Instant) {
        self.allowances.heard(credential, headers, now);
    }

    /// A handover has come to its end.
    pub fn handed_over(&self, outcome: Handover) {
        self.metrics.handed_over(outcome);
    }

    /// A connection was turned away.
    pub fn turned_away(&self, reason: TurnedAway) {
        self.metrics.turned_away(reason);
    }

    /// The text for Prometheus.
    pub fn metrics(&self, snapshot: &Snapshot) -> String {
        self.metrics.render(snapshot, self.audit.lost())
    }

    /// The document behind `berth status`.
    pub fn status(&self, snapshot: &Snapshot, now: Instant) -> Status {
        let age = self.age(now);
        let mut status = Status::new(snapshot, self.counts.spans(age), &self.hits, age);
        for (view, shown) in snapshot.credentials.iter().zip(&mut status.credentials) {
            shown.allowance = self.allowances.of(&view.id, now);
        }
        status.refusals = self.refusals.latest();
        let lost = self.audit.lost();
        if lost > 0 {
            let warning = format!("audit: {lost} lines lost since the start; the log says why");
            status.warnings.push(warning);
        }
        status
    }

    /// The audit log is to be opened anew: `logrotate` has moved it.
    pub fn reopen_audit(&self) {
        self.audit.reopen();
    }

    /// Every counter.
    pub fn totals(&self) -> Vec<Total> {
        self.metrics.totals()
    }

    /// Counters of the process before this one.
    pub fn add_totals(&self, totals: &[Total]) {
        self.metrics.add_totals(totals);
    }

    /// Waits until what has ended is written down, or the disk hangs.
    pub fn flush(&self) {
        /// Chosen: a healthy disk takes a full queue in far less.
        const PATIENCE: Duration = Duration::from_secs(5);
        if !self.audit.flush(PATIENCE) {
            log::warn!(within:? = PATIENCE; "the last audit lines could not be written");
        }
        if !self.spans.flush(PATIENCE) {
            log::warn!(within:? = PATIENCE; "the last traces could not be sent");
        }
    }

    /// Counts for the process that takes over.
    pub fn export_counts(&self, now: Instant) -> Vec<PairHistory> {
        self.counts.export(self.age(now))
    }

    /// Counts of the process before this one.
    pub fn import_counts(&self, history: &[PairHistory], now: Instant) {
        self.counts.import(history, self.age(now));
    }

    /// What is left of allowances, for the process that takes over.
    pub fn export_allowances(&self, now: Instant) -> Vec<AllowanceHandover> {
        self.allowances.export(now)
    }

    /// What the process before this one knew of them.
    pub fn import_allowances<'a>(
        &self,
        told: impl Iterator<Item = &'a AllowanceHandover>,
        now: Instant,
    ) {
        self.allowances.import(told, now);
    }

    /// The latest refusals, newest first.
    pub fn refusals(&self) -> Vec<RefusalStatus> {
        self.refusals.latest()
    }

    /// Those of the process before this one.
    pub fn import_refusals(&self, told: &[RefusalStatus]) {
        self.refusals.import(told);
    }

    /// How often each rule has decided, for the process that takes over.
    pub fn export_hits(&self) -> Vec<RuleHistory> {
        self.hits.export()
    }

    /// How often each had in the process before.
    pub fn import_hits(&self, history: &[RuleHistory]) {
        self.hits.import(history);
    }

    /// Whoever has no key must not fill the disk: of strangers some are written down in a second, and all
    /// are counted.
    fn is_worth_a_line(&self, record: &Record, now: Instant) -> bool {
        const STRANGERS: Place = Place {
            module: module_path!(),
            line: line!(),
            level: log::Level::Info,
        };
        if record.outcome != Outcome::Unauthorized {
            return true;
        }
        let mut strangers = self
            .strangers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        strangers.overdue(now);
        strangers.admits(STRANGERS, now)
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Verdict;
    use crate::observe::record::tests::failed_over;
    use crate::observe::scrape::tests::pool;
    use crate::observe::spec::AuditSpec;

    fn nowhere() -> Spans {
        Spans::from_environment().unwrap()
    }

    #[test]
    fn one_call_feeds_audit_metrics_and_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let now = Instant::now();
        let audit = Audit::to_file(&AuditSpec { path: path.clone() }).unwrap();
        let trail = Trail::new((audit, nowhere()), now).unwrap();
        trail.finished(failed_over(), now);
        assert!(
            trail
                .metrics(&pool())
                .contains("berth_requests_total{model=\"gpt-5.6-sol\"")
        );
        let pairs = trail.status(&pool(), now).pairs;
        assert_eq!(
            pairs
                .iter()
                .map(|pair| pair.refused.hour + pair.admitted.hour)
                .sum::<u32>(),
            2
        );
        drop(trail);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    }

    #[test]
    fn a_model_has_its_name_where_a_client_left_while_it_read_or_the_configuration_names_it() {
        let now = Instant::now();
        let mut trail = Trail::new((Audit::to_log().unwrap(), nowhere()), now).unwrap();
        trail.knows([SafeText::new("gpt-real")]);
        let mut record = failed_over();
        record.attempts.remove(0);
        record.attempts[0].verdict = Verdict::ClientGone;
        trail.finished(record.clone(), now);
        record.attempts[0].committed = false;
        for model in ["gpt-real", "made-up"] {
            record.model = Some(SafeText::new(model));
            record.attempts[0].model = record.model.clone();
            trail.finished(record.clone(), now);
        }
        let text = trail.metrics(&pool());
        for model in ["gpt-5.6-sol", "gpt-real", "other"] {
            let series = format!("model=\"{model}\",verdict=\"client_gone\"}} 1\n");
            assert!(text.contains(&series), "{model}: {text}");
        }
    }

    #[test]
    fn lost_audit_lines_are_a_warning_and_a_metric() {
        let audit = Audit::to_file(&AuditSpec {
            path: "/dev/full".into(),
        })
        .unwrap();
        let now = Instant::now();
        let trail = Trail::new((audit, nowhere()), now).unwrap();
        trail.finished(failed_over(), now);
        assert!(trail.audit.flush(Duration::from_secs(10)));
        assert!(trail.metrics(&pool()).contains("berth_audit_lost_total 1"));
        let warnings = trail.status(&pool(), now).warnings;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.starts_with("audit: 1 lines lost")),
            "{warnings:?}"
        );
    }
}
