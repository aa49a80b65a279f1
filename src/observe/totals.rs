//! Counters as one process hands them to the next.
//!
//! A counter that starts again at 0 with each reload is right for Prometheus and wrong for people, and
//! what a draining process still counts would be read by nobody. So the successor goes on counting
//! where its predecessor was, and adds what it is told later. Histograms start again: their buckets
//! cannot be added to.

use std::collections::HashMap;

use prometheus::proto::MetricType;
use serde::{Deserialize, Serialize};

use super::metrics::Metrics;

/// One series of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Total {
    name: String,
    labels: Vec<(String, String)>,
    value: u64,
}

/// Series that are believed at once (chosen: a thousand credentials with ten models and verdicts).
const MOST: usize = 100_000;

/// What was counted since the last time.
#[derive(Debug, Default)]
pub struct Since(HashMap<(String, Vec<(String, String)>), u64>);

impl Since {
    /// What was added to each counter since this was last asked.
    pub fn news(&mut self, totals: Vec<Total>) -> Vec<Total> {
        let news = totals.into_iter().filter_map(|mut total| {
            let key = (total.name.clone(), total.labels.clone());
            let before = self.0.insert(key, total.value).unwrap_or(0);
            total.value = total.value.saturating_sub(before);
            (total.value > 0).then_some(total)
        });
        news.collect()
    }
}

impl Metrics {
    /// Every counter that is not 0.
    pub fn totals(&self) -> Vec<Total> {
        let mut totals = Vec::new();
        for family in self.registry().gather() {
            if family.get_field_type() != MetricType::COUNTER {
                continue;
            }
            for metric in family.get_metric() {
                let value = metric.get_counter().get_value();
                if value > 0.0 {
                    let labels = metric.get_label().iter();
                    let labels = labels.map(|it| (it.name().to_owned(), it.value().to_owned()));
                    totals.push(Total {
                        name: family.name().to_owned(),
                        labels: labels.collect(),
                        value: value as u64,
                    });
                }
            }
        }
        totals
    }

    /// Adds what another process has counted; what this version does not count is left out.
    pub fn add_totals(&self, totals: &[Total]) {
        for total in totals.iter().take(MOST) {
            let Some(counter) = self.counter(&total.name) else {
                continue;
            };
            let label = |(name, value): &'_ (String, String)| {
                let value = match name.as_str() {
                    // The names of models are bounded here as there.
                    "model" if !matches!(value.as_str(), "none" | "other") => {
                        self.models().admitted(value);
                        self.models().label(Some(value)).to_owned()
                    }
                    _ => value.clone(),
                };
                (name.clone(), value)
            };
            let labels: HashMap<String, String> = total.labels.iter().map(label).collect();
            let labels = labels
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            if let Ok(series) = counter.get_metric_with(&labels.collect::<HashMap<_, _>>()) {
                series.inc_by(total.value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::record::tests::failed_over;

    #[test]
    fn a_successor_goes_on_counting_and_hears_only_what_is_new() {
        let (old, new) = (Metrics::new("v").unwrap(), Metrics::new("v").unwrap());
        old.record(&failed_over());
        let mut since = Since::default();
        let told = serde_json::to_string(&since.news(old.totals())).unwrap();
        new.add_totals(&serde_json::from_str::<Vec<Total>>(&told).unwrap());
        assert_eq!(sorted(new.totals()), sorted(old.totals()));
        assert!(old.totals().len() > 4);
        assert_eq!(since.news(old.totals()), []);
        old.record(&failed_over());
        new.record(&failed_over());
        new.add_totals(&since.news(old.totals()));
        let sum = |metrics: &Metrics| metrics.totals().iter().map(|it| it.value).sum::<u64>();
        assert_eq!(2 * sum(&new), 3 * sum(&old));
    }

    #[test]
    fn what_is_not_counted_here_is_left_out() {
        let metrics = Metrics::new("v").unwrap();
        let strange = |name: &str, label: &str| Total {
            name: name.to_owned(),
            labels: vec![(label.to_owned(), "x".to_owned())],
            value: 7,
        };
        metrics.add_totals(&[
            strange("berth_future_total", "a"),
            strange("berth_commits_total", "not_its_label"),
        ]);
        assert_eq!(metrics.totals(), []);
    }

    fn sorted(mut totals: Vec<Total>) -> Vec<Total> {
        totals.sort_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
        totals
    }
}
