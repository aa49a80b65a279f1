//! Credentials of one kind, summed up: are refusals a matter of the account, the cohort, the region or the
//! way in?
//!
//! The labels are the operator's own words for these; the route of a token is read off the token itself
//! ([`crate::pool::TokenRoute`]). A group is what its credentials are with each model, because a model
//! that is full everywhere says nothing about a group.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::status::{CredentialStatus, PairStatus, SpanCounts, Status};

/// What credentials are put together by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value of this label.
    Label(String),
    /// The `host` and `iss` claims of a token.
    Route,
    /// The upstream.
    Upstream,
}

/// The groups of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct GroupsStatus {
    /// The kind, as it was asked for.
    pub by: String,
    /// By group and model.
    pub rows: Vec<GroupStatus>,
}

/// A group with one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupStatus {
    /// Its name.
    pub group: String,
    /// The model's name; `*` where nothing is known of any.
    pub model: String,
    /// Credentials in the group.
    pub credentials: usize,
    /// Of these: those that are ready with this model.
    pub ready: usize,
    /// Requests in flight with the group, whatever their model.
    pub in_flight: u64,
    /// Attempts refused for want of capacity.
    pub refused: SpanCounts,
    /// Attempts admitted.
    pub admitted: SpanCounts,
}

impl Kind {
    /// Reads `label:NAME`, `route` or `upstream`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Kind> {
        match text {
            "route" => Some(Kind::Route),
            "upstream" => Some(Kind::Upstream),
            _ => match text.strip_prefix("label:") {
                None | Some("") => None,
                Some(name) => Some(Kind::Label(name.to_owned())),
            },
        }
    }

    /// The same for a command line, which hears what there is.
    ///
    /// # Errors
    ///
    /// It is none of them.
    pub fn argument(text: &str) -> Result<Kind, String> {
        Kind::parse(text).ok_or_else(|| KINDS.to_owned())
    }

    /// How the groups are called.
    pub fn name(&self) -> &str {
        match self {
            Kind::Label(name) => name,
            Kind::Route => "route",
            Kind::Upstream => "upstream",
        }
    }

    /// As it is written.
    pub fn word(&self) -> String {
        match self {
            Kind::Label(name) => format!("label:{name}"),
            Kind::Route | Kind::Upstream => self.name().to_owned(),
        }
    }

    /// As a query asks for it: what is not a letter or a digit as `%XX`.
    pub fn query(&self) -> String {
        let byte = |byte: u8| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        };
        format!("by={}", self.word().bytes().map(byte).collect::<String>())
    }

    /// What is wrong with a label that is not among those that credentials have.
    pub fn problem<'l>(&self, labels: impl Iterator<Item = &'l String>) -> Option<String> {
        let Kind::Label(name) = self else { return None };
        let labels: BTreeSet<&str> = labels.map(String::as_str).collect();
        if labels.contains(name.as_str()) {
            return None;
        }
        let known: Vec<&str> = labels.into_iter().collect();
        let known = match known.is_empty() {
            true => "no credential has any: give them `labels`".to_owned(),
            false => format!("there are: {}", known.join(", ")),
        };
        Some(format!("no credential has the label `{name}`; {known}"))
    }

    fn group(&self, of: &CredentialStatus) -> String {
        match self {
            Kind::Label(name) => match of.labels.get(name) {
                Some(value) => value.clone(),
                None => format!("no {name}"),
            },
            Kind::Upstream => of.upstream.clone(),
            Kind::Route => of.route.clone().unwrap_or_else(|| NO_ROUTE.to_owned()),
        }
    }
}

impl Status {
    /// Its credentials by `kind`.
    pub fn grouped(&self, kind: &Kind) -> GroupsStatus {
        let mut groups: BTreeMap<String, Vec<&CredentialStatus>> = BTreeMap::new();
        for credential in &self.credentials {
            groups
                .entry(kind.group(credential))
                .or_default()
                .push(credential);
        }
        let rows = groups
            .iter()
            .flat_map(|(name, members)| self.rows(name, members));
        GroupsStatus {
            by: kind.word(),
            rows: rows.collect(),
        }
    }

    /// The kinds that tell these credentials apart at all.
    pub fn kinds(&self) -> Vec<Kind> {
        let labels = self.credentials.iter().flat_map(|it| it.labels.keys());
        let labels: BTreeSet<&String> = labels.collect();
        let mut kinds: Vec<Kind> = labels.into_iter().cloned().map(Kind::Label).collect();
        if self.credentials.iter().any(|it| it.route.is_some()) {
            kinds.push(Kind::Route);
        }
        kinds.push(Kind::Upstream);
        kinds
    }

    fn rows(&self, group: &str, members: &[&CredentialStatus]) -> Vec<GroupStatus> {
        let names: BTreeSet<&str> = members.iter().map(|it| it.id.as_str()).collect();
        let of_it = || {
            self.pairs
                .iter()
                .filter(|it| names.contains(it.credential.as_str()))
        };
        let mut models: BTreeSet<&str> = of_it().map(|it| it.model.as_str()).collect();
        if models.len() > 1 {
            models.remove("*");
        }
        if models.is_empty() {
            models.insert("*");
        }
        let row = |model: &str| {
            let pairs: Vec<&PairStatus> = of_it().filter(|it| it.model == model).collect();
            let ready = |it: &&&CredentialStatus| {
                let mut held_back = of_it().filter(|pair| pair.state != READY);
                it.state == READY
                    && !held_back.any(|pair| {
                        pair.credential == it.id && (pair.model == model || pair.model == "*")
                    })
            };
            GroupStatus {
                group: group.to_owned(),
                model: model.to_owned(),
                credentials: members.len(),
                ready: members.iter().filter(ready).count(),
                in_flight: members.iter().map(|it| it.in_flight).sum(),
                refused: sum(pairs.iter().map(|it| it.refused)),
                admitted: sum(pairs.iter().map(|it| it.admitted)),
            }
        };
        models.into_iter().map(row).collect()
    }
}

fn sum(counts: impl Iterator<Item = SpanCounts>) -> SpanCounts {
    counts.fold(SpanCounts::default(), |all, one| SpanCounts {
        quarter: all.quarter.saturating_add(one.quarter),
        hour: all.hour.saturating_add(one.hour),
        day: all.day.saturating_add(one.day),
    })
}

/// The state in which a credential takes requests.
const READY: &str = "ready";
/// The group of secrets that are no tokens, or name no route.
pub const NO_ROUTE: &str = "no route in the secret";
const KINDS: &str = "there are: label:NAME, route, upstream";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::hits::RuleHits;
    use crate::observe::record::tests::failed_over;
    use crate::observe::scrape::tests::pool;
    use crate::observe::window::Counts;
    use std::time::Duration;

    /// `campus-a` cools and refused once, `campus-b` is drained and admitted once.
    fn status() -> Status {
        let counts = Counts::default();
        counts.record(&failed_over(), Duration::ZERO);
        let spans = counts.spans(Duration::ZERO);
        Status::new(&pool(), spans, &RuleHits::default(), Duration::ZERO)
    }

    fn rows(status: &Status, kind: &str) -> Vec<(String, String, usize, usize, u64, u32, u32)> {
        let groups = status.grouped(&Kind::parse(kind).unwrap());
        assert_eq!(groups.by, kind);
        let row = |it: &GroupStatus| {
            let (group, model) = (it.group.clone(), it.model.clone());
            let counts = (it.refused.hour, it.admitted.hour);
            (
                group,
                model,
                it.credentials,
                it.ready,
                it.in_flight,
                counts.0,
                counts.1,
            )
        };
        groups.rows.iter().map(row).collect()
    }

    fn row(
        group: &str,
        counts: (usize, usize, u64, u32, u32),
    ) -> (String, String, usize, usize, u64, u32, u32) {
        let (all, ready, in_flight, refused, admitted) = counts;
        let model = "gpt-5.6-sol".to_owned();
        (
            group.to_owned(),
            model,
            all,
            ready,
            in_flight,
            refused,
            admitted,
        )
    }

    #[test]
    fn a_group_is_the_sum_of_its_credentials() {
        let mut status = status();
        let by_cohort = [
            row("new", (1, 0, 2, 1, 0)),
            row("no cohort", (1, 0, 2, 0, 1)),
        ];
        assert_eq!(rows(&status, "label:cohort"), by_cohort);
        assert_eq!(rows(&status, "upstream"), [row("openai", (2, 0, 4, 1, 1))]);
        for pair in &mut status.pairs {
            pair.state = READY;
        }
        for credential in &mut status.credentials {
            credential.state = READY;
        }
        status.credentials[1].route = Some("host eu.test".to_owned());
        let by_route = [
            row("host eu.test", (1, 1, 2, 0, 1)),
            row(NO_ROUTE, (1, 1, 2, 1, 0)),
        ];
        assert_eq!(rows(&status, "route"), by_route);
        let kinds: Vec<String> = status.kinds().iter().map(Kind::word).collect();
        let expected = ["label:cohort", "label:cost-centre", "route", "upstream"];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn a_group_of_which_nothing_is_known_has_a_row() {
        let mut status = status();
        status.pairs.clear();
        let rows = rows(&status, "upstream");
        assert_eq!((rows.len(), rows[0].1.as_str(), rows[0].2), (1, "*", 2));
    }

    #[test]
    fn a_label_that_nobody_has_is_a_mistake() {
        let labels = ["cohort".to_owned(), "region".to_owned()];
        let problem = |word: &str| Kind::parse(word).unwrap().problem(labels.iter());
        assert_eq!(problem("label:region"), None);
        assert_eq!(problem("route"), None);
        assert_eq!(
            problem("label:x").unwrap(),
            "no credential has the label `x`; there are: cohort, region"
        );
    }
}
