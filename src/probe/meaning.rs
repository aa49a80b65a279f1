//! What the answers mean, in one sentence.
//!
//! The contrast decides, as in the policy (docs/policy.md): refused by some and admitted by others is
//! about those; refused by all is about the model. What is neither (a spent quota, a network) says
//! nothing about seats, and is said as that.

use crate::admission::Verdict;
use crate::edge::question::Finding;

/// What was answered to a credential, or to several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// Whose.
    pub name: String,
    /// It was admitted.
    pub admitted: usize,
    /// There was no seat.
    pub refused: usize,
    /// Anything else.
    pub other: usize,
}

impl Answers {
    /// Of one credential.
    pub fn of(name: &str, finding: Finding) -> Answers {
        let admitted = usize::from(finding.was_admitted());
        let refused = usize::from(finding == Finding::Judged(Verdict::Capacity));
        Answers {
            name: name.to_owned(),
            admitted,
            refused,
            other: 1 - admitted - refused,
        }
    }

    /// Of nobody yet.
    pub fn none(name: &str) -> Answers {
        Answers {
            name: name.to_owned(),
            admitted: 0,
            refused: 0,
            other: 0,
        }
    }

    /// Counts those of another too.
    pub fn add(&mut self, more: &Answers) {
        self.admitted += more.admitted;
        self.refused += more.refused;
        self.other += more.other;
    }

    fn all_refused(&self) -> bool {
        self.refused > 0 && self.admitted == 0
    }

    fn all_admitted(&self) -> bool {
        self.admitted > 0 && self.refused == 0
    }
}

/// The sentence over single credentials.
pub fn of_credentials(all: &[Answers]) -> String {
    let total = total(all);
    let refused = names(all, |it| it.refused > 0);
    let mut sentence = match (total.admitted, total.refused) {
        (0, 0) => "No answer says anything about seats.".to_owned(),
        (_, 0) => "No credential is refused: the model has seats.".to_owned(),
        (0, 1) => format!(
            "{refused} is refused, and there is no other answer to compare: ask through more credentials."
        ),
        (0, _) => "All are refused: the model is full, and no credential is at fault.".to_owned(),
        _ => format!(
            "The model has seats, and not for {refused}: it is a matter of these credentials."
        ),
    };
    if total.other > 0 {
        let other = names(all, |it| it.other > 0);
        sentence.push_str(&format!(
            " Neither admitted nor refused for want of a seat: {other}."
        ));
    }
    sentence
}

/// The sentence over groups of credentials that `kind` puts together.
pub fn of_groups(kind: &str, all: &[Answers]) -> String {
    let compared = all.iter().filter(|it| it.admitted + it.refused > 0);
    let compared: Vec<Answers> = compared.cloned().collect();
    let total = total(&compared);
    let pure = compared
        .iter()
        .all(|it| it.all_refused() || it.all_admitted());
    match (total.admitted, total.refused) {
        (0, 0) => "No answer says anything about seats.".to_owned(),
        (_, 0) => format!("No {kind} is refused: the model has seats."),
        (0, _) if compared.len() > 1 => {
            format!("Every {kind} is refused: the model is full, whatever the {kind}.")
        }
        _ if compared.len() < 2 => {
            format!("There is one {kind} only with an answer: nothing to compare.")
        }
        _ if pure => format!(
            "It is a matter of the {kind}: refused is {}, admitted is {}.",
            names(&compared, Answers::all_refused),
            names(&compared, Answers::all_admitted)
        ),
        _ => format!(
            "The {kind} alone does not decide: {} has both answers.",
            names(&compared, |it| it.admitted > 0 && it.refused > 0)
        ),
    }
}

fn total(all: &[Answers]) -> Answers {
    let mut total = Answers::none("all");
    all.iter().for_each(|it| total.add(it));
    total
}

fn names(all: &[Answers], which: impl Fn(&Answers) -> bool) -> String {
    let names = all.iter().filter(|it| which(it)).map(|it| it.name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use Finding::Unjudged;

    const ADMITTED: Finding = Finding::Judged(Verdict::Admitted);
    const CAPACITY: Finding = Finding::Judged(Verdict::Capacity);
    const QUOTA: Finding = Finding::Judged(Verdict::Quota);

    fn credentials(findings: &[Finding]) -> String {
        let names = ["a", "b", "c"].iter().zip(findings);
        let all: Vec<Answers> = names
            .map(|(name, finding)| Answers::of(name, *finding))
            .collect();
        of_credentials(&all)
    }

    #[test]
    fn the_contrast_decides() {
        for (verdicts, expected) in [
            (
                &[ADMITTED, ADMITTED][..],
                "No credential is refused: the model has seats.",
            ),
            (
                &[CAPACITY, CAPACITY],
                "All are refused: the model is full, and no credential is at fault.",
            ),
            (
                &[CAPACITY, ADMITTED],
                "The model has seats, and not for a: it is a matter of these credentials.",
            ),
            (
                &[CAPACITY],
                "a is refused, and there is no other answer to compare: ask through more credentials.",
            ),
            (
                &[ADMITTED, QUOTA],
                "No credential is refused: the model has seats. Neither admitted nor refused for want \
                 of a seat: b.",
            ),
            (
                &[QUOTA],
                "No answer says anything about seats. Neither admitted nor refused for want of a seat: a.",
            ),
            (
                &[Unjudged],
                "No answer says anything about seats. Neither admitted nor refused for want of a seat: a.",
            ),
        ] {
            assert_eq!(credentials(verdicts), expected, "{verdicts:?}");
        }
    }

    #[test]
    fn a_group_decides_only_where_it_is_of_one_mind() {
        let group = |name: &str, admitted, refused, other| Answers {
            name: name.to_owned(),
            admitted,
            refused,
            other,
        };
        for (groups, expected) in [
            (
                vec![group("new", 0, 2, 0), group("old", 3, 0, 1)],
                "It is a matter of the cohort: refused is new, admitted is old.",
            ),
            (
                vec![group("new", 1, 2, 0), group("old", 3, 0, 0)],
                "The cohort alone does not decide: new has both answers.",
            ),
            (
                vec![group("new", 0, 2, 0), group("old", 0, 1, 0)],
                "Every cohort is refused: the model is full, whatever the cohort.",
            ),
            (
                vec![group("new", 1, 2, 0), group("old", 0, 0, 1)],
                "There is one cohort only with an answer: nothing to compare.",
            ),
            (
                vec![group("old", 3, 0, 0)],
                "No cohort is refused: the model has seats.",
            ),
            (
                vec![group("old", 0, 0, 2)],
                "No answer says anything about seats.",
            ),
        ] {
            assert_eq!(of_groups("cohort", &groups), expected);
        }
    }
}
