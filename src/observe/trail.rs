//! The one thing that the edge tells when a request has ended.
//!
//! Audit, metrics and counts are fed here and nowhere else, so that no path through the edge feeds
//! two of them and forgets the third.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;

use super::allowances::Allowances;
use super::audit::Audit;
use super::flood::{Flood, Place};
use super::hits::RuleHits;
use super::metrics::Metrics;
use super::record::Record;
use super::refusals::Refusals;
use super::snapshot::Snapshot;
use super::status::Status;
use super::totals::Total;
use super::window::{Counts, PairHistory};
use super::words::{Handover, Outcome};
use crate::pool::CredentialId;

/// Audit, metrics and counts of the process.
#[derive(Debug)]
pub struct Trail {
    audit: Audit,
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
    pub fn new(audit: Audit, started: Instant) -> Result<Trail, prometheus::Error> {
        Ok(Trail {
            audit,
            metrics: Metrics::new(env!("CARGO_PKG_VERSION"))?,
            counts: Counts::default(),
            refusals: Refusals::default(),
            allowances: Allowances::default(),
            hits: RuleHits::default(),
            strangers: Mutex::default(),
            started,
        })
    }

    /// A request has ended. Neither blocks nor fails.
    pub fn finished(&self, record: Record, now: Instant) {
        self.metrics.record(&record);
        self.counts.record(&record, self.age(now));
        self.refusals.record(&record);
        self.hits.record(&record);
        if self.is_worth_a_line(&record, now) {
            self.audit.write(record);
        }
    }

    /// An answer of `credential` has this head.
    pub fn heard(&self, credential: &CredentialId, headers: &HeaderMap, now: Instant) {
        self.allowances.heard(credential, headers, self.age(now));
    }

    /// A handover has come to its end.
    pub fn handed_over(&self, outcome: Handover) {
        self.metrics.handed_over(outcome);
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
            shown.allowance = self.allowances.of(&view.id, age);
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
            log::warn!("audit: the last lines could not be written within {PATIENCE:?}");
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
    use crate::observe::record::tests::failed_over;
    use crate::observe::scrape::tests::pool;
    use crate::observe::spec::AuditSpec;

    #[test]
    fn one_call_feeds_audit_metrics_and_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let now = Instant::now();
        let audit = Audit::to_file(&AuditSpec { path: path.clone() }).unwrap();
        let trail = Trail::new(audit, now).unwrap();
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
    fn lost_audit_lines_are_a_warning_and_a_metric() {
        let audit = Audit::to_file(&AuditSpec {
            path: "/dev/full".into(),
        })
        .unwrap();
        let now = Instant::now();
        let trail = Trail::new(audit, now).unwrap();
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
