//! What operators see of a pool and do to it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::choice::Pool;
use super::credential::{Credential, CredentialSecretError};
use super::exclusion::{Basis, Shown};
use super::ledger::{FullModel, Scored};
use super::spec::CredentialId;
use crate::admission::PairState;
use crate::admission::score::Evidence;

/// The state of a credential or of a pair, for status and metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct PairView {
    /// The credential.
    pub credential: CredentialId,
    /// The model, `*` for the credential itself; [`super::NO_MODEL`] for requests that name none.
    pub model: String,
    /// What it is.
    pub state: PairState,
    /// For how long.
    pub since: Option<Duration>,
    /// How much longer; `None` where that is not known.
    pub left: Option<Duration>,
    /// Where the end comes from.
    pub basis: Option<Basis>,
    /// Its score now; nothing for a whole credential.
    pub score: f64,
    /// The score above the median of the model's other pairs.
    pub excess: f64,
    /// What the score rests on.
    pub evidence: Evidence,
}

/// What a look at the secret files brought.
#[derive(Debug, Default)]
pub struct SecretChanges {
    /// Those that have another secret now.
    pub changed: Vec<CredentialId>,
    /// Those that keep their old one for want of a good one.
    pub errors: Vec<CredentialSecretError>,
}

impl Pool {
    /// The state of each credential (model `*`), and of each pair about which something is known. What
    /// excludes a pair by its own word is shown before its place in the order, and what excludes its
    /// credential before both, unless it ends sooner.
    pub fn snapshot(&self, now: Instant) -> Vec<PairView> {
        let mut views = Vec::with_capacity(self.credentials.len());
        let mut scored = self.ledger.scored(now).into_iter().peekable();
        let wide = self.ledger.wide(now);
        for credential in &self.credentials {
            let (whole, pairs) = credential.shown(now);
            let is_wide = wide.contains(&credential.index());
            let mut view = PairView::new(credential.id(), "*".to_owned(), whole.clone(), now);
            if view.state == PairState::Ready && is_wide {
                view.state = PairState::Shunned;
                view.basis = Some(BY_MODELS);
            }
            views.push(view);
            let mut of_models: BTreeMap<String, PairView> = BTreeMap::new();
            while let Some(scored) = scored.next_if(|it| it.credential == credential.index()) {
                let view = PairView::of_score(credential.id(), &scored, now);
                of_models.insert(scored.model, view);
            }
            for (model, shown) in pairs {
                let known = of_models.remove(&model);
                let view = PairView::new(credential.id(), model.clone(), Some(shown), now);
                let view = PairView {
                    score: known.as_ref().map_or(0.0, |it| it.score),
                    excess: known.as_ref().map_or(0.0, |it| it.excess),
                    evidence: known.map(|it| it.evidence).unwrap_or_default(),
                    ..view
                };
                of_models.insert(model, view);
            }
            let of_models = of_models.into_values();
            views.extend(of_models.map(|view| view.within(whole.as_ref(), now)));
        }
        views
    }

    /// Takes a credential, or one model of it, out for a time; whether it exists.
    pub fn hold_out(
        &self,
        id: &CredentialId,
        model: Option<&str>,
        time: Duration,
        now: Instant,
    ) -> bool {
        self.with(id, |it| it.hold_out(model, time, now))
    }

    /// Takes a credential out until it is enabled; whether it exists.
    pub fn drain(&self, id: &CredentialId, now: Instant) -> bool {
        self.with(id, |it| it.drain(now))
    }

    /// Ends a drain, hold-outs and the exclusions that doubt the secret; whether it exists.
    pub fn enable(&self, id: &CredentialId) -> bool {
        self.with(id, Credential::enable)
    }

    /// Forgets everything that was learned about a credential; whether it exists.
    pub fn reset(&self, id: &CredentialId) -> bool {
        self.with(id, |it| {
            it.reset();
            self.ledger.forget(it.index());
        })
    }

    /// Reads again the secrets whose files were written since. Reads files: not for a thread that
    /// serves requests.
    pub fn reload_secrets(&self) -> SecretChanges {
        let mut changes = SecretChanges::default();
        for credential in &self.credentials {
            match credential.reload() {
                Ok(true) => changes.changed.push(credential.id().clone()),
                Ok(false) => {}
                Err(error) => changes.errors.push(error),
            }
        }
        changes
    }

    /// The models that are full.
    pub fn full_models(&self, now: Instant) -> Vec<FullModel> {
        self.ledger.full_models(now)
    }

    fn with(&self, id: &CredentialId, act: impl FnOnce(&Credential)) -> bool {
        self.credential(id).map(|it| act(it)).is_some()
    }
}

impl PairView {
    fn new(
        credential: &CredentialId,
        model: String,
        shown: Option<Shown>,
        now: Instant,
    ) -> PairView {
        let since = |it: &Shown| now.saturating_duration_since(it.since);
        PairView {
            credential: credential.clone(),
            model,
            state: shown.as_ref().map_or(PairState::Ready, |it| it.state),
            since: shown.as_ref().map(since),
            left: shown.as_ref().and_then(|it| it.left),
            basis: shown.map(|it| it.basis),
            score: 0.0,
            excess: 0.0,
            evidence: Evidence::default(),
        }
    }

    /// The same, of a credential that may be excluded with every model.
    fn within(self, whole: Option<&Shown>, now: Instant) -> PairView {
        // What ends at no known time outlasts what does.
        let end = |left: Option<Duration>| left.unwrap_or(Duration::MAX);
        let own_exclusion = !matches!(self.basis, None | Some(BY_SCORE));
        match whole {
            Some(whole) if !own_exclusion || end(whole.left) >= end(self.left) => PairView {
                score: self.score,
                excess: self.excess,
                evidence: self.evidence,
                ..PairView::new(&self.credential, self.model, Some(whole.clone()), now)
            },
            Some(_) | None => self,
        }
    }

    fn of_score(credential: &CredentialId, scored: &Scored, now: Instant) -> PairView {
        PairView {
            credential: credential.clone(),
            model: scored.model.clone(),
            state: scored.state,
            since: scored.since.map(|it| now.saturating_duration_since(it)),
            left: scored.until.map(|it| it.saturating_duration_since(now)),
            basis: scored.since.map(|_| BY_SCORE),
            score: scored.score,
            excess: scored.excess,
            evidence: scored.evidence,
        }
    }
}

/// The basis of what two or more shunned models say of their credential.
const BY_MODELS: Basis = "two or more of its models are shunned";
/// The basis of what comes from a score.
pub const BY_SCORE: Basis = "score";
