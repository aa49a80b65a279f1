//! Which models may be a label.
//!
//! A model's name comes from the client, and each name that becomes a label is a dozen time series
//! for ever. A name is believed once an upstream has admitted it, and only the first [`NAMES`] are:
//! an upstream that admits any name at all must not fill a Prometheus. The rest are `other`. Clients can
//! take all of the places with names that they make up, so a name that the operator wrote needs none.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

use super::safe::SafeText;
use crate::pool::NO_MODEL;

/// The models that an upstream has admitted, and those that the configuration names.
#[derive(Debug, Default)]
pub struct ModelNames {
    configured: HashSet<Box<str>>,
    admitted: RwLock<HashSet<Box<str>>>,
}

impl ModelNames {
    /// Those of the configuration; none of them takes one of the places.
    pub fn new(configured: impl IntoIterator<Item = SafeText>) -> ModelNames {
        ModelNames {
            configured: configured
                .into_iter()
                .map(|it| it.as_str().into())
                .collect(),
            admitted: RwLock::default(),
        }
    }

    /// An upstream has admitted `model`.
    pub fn admitted(&self, model: &str) {
        if self.configured.contains(model) {
            return;
        }
        let known = |names: &HashSet<Box<str>>| names.contains(model) || names.len() >= NAMES;
        if known(&self.admitted.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut names = self
            .admitted
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if !known(&names) {
            names.insert(model.into());
        }
    }

    /// `model`, or `other`; [`NO_MODEL`] for a request without one.
    pub fn label<'m>(&self, model: Option<&'m str>) -> &'m str {
        let model = model.unwrap_or(NO_MODEL);
        if model == NO_MODEL || self.configured.contains(model) {
            return model;
        }
        let names = self.admitted.read().unwrap_or_else(PoisonError::into_inner);
        if names.contains(model) {
            model
        } else {
            "other"
        }
    }
}

/// The contract's.
const NAMES: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_hundred_admitted_models_keep_their_names() {
        let names = ModelNames::default();
        assert_eq!(names.label(Some("m-0")), "other");
        (0..300).for_each(|number| names.admitted(&format!("m-{number}")));
        let kept = (0..300).filter(|n| names.label(Some(&format!("m-{n}"))) != "other");
        assert_eq!(kept.count(), 200);
        assert_eq!(names.label(Some("m-199")), "m-199");
        assert_eq!(names.label(Some("m-200")), "other");
        assert_eq!(names.label(None), "none");
    }

    #[test]
    fn a_model_that_the_configuration_names_keeps_its_name_whoever_came_first() {
        let names = ModelNames::new([SafeText::new("gpt-real")]);
        (0..300).for_each(|number| names.admitted(&format!("made-up-{number}")));
        assert_eq!(names.label(Some("gpt-real")), "gpt-real");
        assert_eq!(names.label(Some("made-up-199")), "made-up-199");
        assert_eq!(names.label(Some("made-up-200")), "other");
    }
}
