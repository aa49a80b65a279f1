//! The right to send one request with one credential.
//!
//! A request can end in many ways, and an aborted attempt skips the phases in which one would tidy
//! up. So what it occupies, a place in flight and perhaps the one probe of an exclusion, is given back
//! by dropping the lease and in no other way. A lease that probes a shunned pair ends its trial with
//! the first verdict about seats, or by being dropped.

use std::sync::Arc;
use std::time::Instant;

use super::credential::{Credential, Secrets};
use super::exclusion::{ProbeToken, Stated};
use super::ledger::Trial;
use crate::admission::score::Probed;
use crate::admission::{HoldOut, Verdict};

/// One request in flight with a credential.
#[derive(Debug)]
pub struct Lease {
    credential: Arc<Credential>,
    secrets: Arc<Secrets>,
    /// The claim, and the model that it was made for.
    probe: Option<(ProbeToken, Box<str>)>,
    /// The place among the probes of a shunned pair.
    trial: Option<Trial>,
}

impl Lease {
    pub(super) fn new(credential: Arc<Credential>, probe: Option<(ProbeToken, Box<str>)>) -> Lease {
        let secrets = credential.secrets();
        Lease {
            credential,
            secrets,
            probe,
            trial: None,
        }
    }

    /// The same, as the probe of a shunned pair.
    pub(super) fn trying(self, trial: Trial) -> Lease {
        let mut lease = self;
        lease.trial = Some(trial);
        lease
    }

    /// The credential to send with.
    pub fn credential(&self) -> &Arc<Credential> {
        &self.credential
    }

    /// What to send: the secret as it was when the lease was made.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Whether this request probes an exclusion.
    pub fn is_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// Whether this request probes a shunned pair.
    pub fn is_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// Draws every consequence of `verdict` for the credential; to be called for each verdict of the
    /// attempt, also for one after output.
    pub fn learn(
        &self,
        model: Option<&str>,
        verdict: Verdict,
        stated: Option<Stated>,
        now: Instant,
    ) {
        let probed = match verdict {
            Verdict::Admitted => Some(Probed::Admitted),
            Verdict::Capacity => Some(Probed::Refused),
            // Without a word about seats the place is freed when the lease is dropped.
            _ => None,
        };
        if let (Some(trial), Some(probed)) = (&self.trial, probed) {
            trial.end(probed, now);
        }
        let doubts_secret = matches!(verdict.hold_out(), HoldOut::Doubling { .. });
        if doubts_secret && !Arc::ptr_eq(&self.secrets, &self.credential.secrets()) {
            // The secret was replaced meanwhile: this is about the old one.
            return;
        }
        let probe = self.probe.as_ref().map(|(token, model)| (*token, &**model));
        self.credential.learn(model, (verdict, stated), probe, now);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.credential.give_back(self.probe.as_ref());
    }
}
