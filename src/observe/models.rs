//! Which models may be a label.
//!
//! A model's name comes from the client, and each name that becomes a label is a dozen time series
//! for ever. A name is believed once an upstream has admitted it, and only the first [`NAMES`] are:
//! an upstream that admits any name at all must not fill a Prometheus. The rest are `other`.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

/// The models that an upstream has admitted.
#[derive(Debug, Default)]
pub struct ModelNames(RwLock<HashSet<Box<str>>>);

impl ModelNames {
    /// An upstream has admitted `model`.
    pub fn admitted(&self, model: &str) {
        let known = |names: &HashSet<Box<str>>| names.contains(model) || names.len() >= NAMES;
        if known(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if !known(&names) {
            names.insert(model.into());
        }
    }

    /// `model`, or `other`; `none` for a request without one.
    pub fn label<'m>(&self, model: Option<&'m str>) -> &'m str {
        let Some(model) = model else { return "none" };
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
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
}
