//! How often each rule has decided, and when it last did: so that dead rules are seen.
//!
//! The metric says how often as well, but not when, and a counter that stands still at 3 does not
//! tell a rule that matched this morning from one that nobody needs any more. Names of rules come from
//! the configuration and from berth's own tables, so there are as many entries as rules at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::record::Record;

/// The hits of every rule, since the start of the process.
#[derive(Debug, Default)]
pub struct RuleHits(Mutex<HashMap<Arc<str>, Hits>>);

/// The hits of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hits {
    /// How often it decided.
    pub count: u64,
    /// When the last request that it decided had ended.
    pub last: SystemTime,
}

impl RuleHits {
    /// Counts the rules that decided in a finished request.
    pub fn record(&self, record: &Record) {
        let rules = record.attempts.iter().filter_map(|it| it.rule.as_ref());
        let ended = record.ts + Duration::from_millis(record.ms_total);
        for rule in rules {
            // Plain numbers, whole between any two statements: a panic elsewhere harms none.
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let hits = all.entry(rule.clone()).or_insert(Hits {
                count: 0,
                last: ended,
            });
            hits.count += 1;
            hits.last = hits.last.max(ended);
        }
    }

    /// The hits of a rule that has any.
    pub fn of(&self, rule: &str) -> Option<Hits> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(rule).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::record::tests::failed_over;

    #[test]
    fn each_attempt_that_a_rule_decided_is_a_hit_and_the_latest_counts() {
        let hits = RuleHits::default();
        let early = failed_over();
        let mut late = failed_over();
        late.ts += Duration::from_secs(60);
        late.attempts[1].rule = late.attempts[0].rule.clone();
        hits.record(&late);
        hits.record(&early);
        let of = hits.of("openai-overloaded").unwrap();
        let last = late.ts + Duration::from_millis(late.ms_total);
        assert_eq!(of, Hits { count: 3, last });
        assert_eq!(hits.of("another"), None);
    }
}
