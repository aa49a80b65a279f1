//! How often each rule has decided, and when it last did: so that dead rules are seen.
//!
//! The metric says how often as well, but not when, and a counter that stands still at 3 does not
//! tell a rule that matched this morning from one that nobody needs any more. So a reload hands both over.
//! Names of rules come from configurations and from berth's own tables; those of rules that were removed
//! are bounded by [`MOST`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::record::Record;

/// The hits of every rule, since the start of the service.
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

/// The hits of one rule, for the process that takes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleHistory {
    rule: String,
    count: u64,
    last: SystemTime,
}

/// Rules that are told of at once (chosen: more than any configuration has).
const MOST: usize = 10_000;

impl RuleHistory {
    /// What one finished request adds.
    pub fn of(record: &Record) -> Vec<RuleHistory> {
        let ended = ended(record);
        let hit = |rule: &Arc<str>| RuleHistory {
            rule: rule.to_string(),
            count: 1,
            last: ended,
        };
        decided(record).map(hit).collect()
    }
}

impl RuleHits {
    /// Counts the rules that decided in a finished request.
    pub fn record(&self, record: &Record) {
        let ended = ended(record);
        for rule in decided(record) {
            self.add(rule, (1, ended));
        }
    }

    /// Everything.
    pub fn export(&self) -> Vec<RuleHistory> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let history = all.iter().take(MOST).map(|(rule, hits)| RuleHistory {
            rule: rule.to_string(),
            count: hits.count,
            last: hits.last,
        });
        history.collect()
    }

    /// Adds what another process exported.
    pub fn import(&self, history: &[RuleHistory]) {
        for it in history.iter().take(MOST) {
            self.add(&it.rule.as_str().into(), (it.count, it.last));
        }
    }

    fn add(&self, rule: &Arc<str>, (count, last): (u64, SystemTime)) {
        // Plain numbers, whole between any two statements: a panic elsewhere harms none.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hits = all.entry(rule.clone()).or_insert(Hits { count: 0, last });
        hits.count = hits.count.saturating_add(count);
        hits.last = hits.last.max(last);
    }

    /// The hits of a rule that has any.
    pub fn of(&self, rule: &str) -> Option<Hits> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(rule).copied()
    }
}

/// The rules that decided in a request, one for each attempt.
fn decided(record: &Record) -> impl Iterator<Item = &Arc<str>> {
    record.attempts.iter().filter_map(|it| it.rule.as_ref())
}

fn ended(record: &Record) -> SystemTime {
    let took = Duration::from_millis(record.ms_total);
    record.ts.checked_add(took).unwrap_or(record.ts)
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

    #[test]
    fn a_successor_goes_on_from_where_it_was_and_hears_of_the_rest() {
        let (old, new) = (RuleHits::default(), RuleHits::default());
        old.record(&failed_over());
        let told = serde_json::to_string(&old.export()).unwrap();
        new.import(&serde_json::from_str::<Vec<RuleHistory>>(&told).unwrap());
        assert_eq!(new.of("openai-overloaded"), old.of("openai-overloaded"));
        let mut late = failed_over();
        late.ts += Duration::from_secs(60);
        old.record(&late);
        new.import(&RuleHistory::of(&late));
        assert_eq!(new.of("openai-overloaded"), old.of("openai-overloaded"));
        assert_eq!(new.of("openai-overloaded").unwrap().count, 2);
    }
}
