//! The credentials: what each is, whether it takes a request now, and which one is chosen.

mod exclusion;
mod memory;
mod retry_budget;
mod secret;
pub mod spec;

pub use exclusion::{Basis, MAX_MODELS, Stated};
pub use memory::{Full, MemoryBudget, Reservation};
pub use retry_budget::RetryWindow;
pub use secret::{SecretError, read_secret};
pub use spec::{Balance, CredentialId, CredentialSpec, HeaderSource, ModelPatterns, SecretSource};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic elsewhere: every critical section in this module leaves plain
/// values that are whole between any two statements, so poisoning would only spread the damage.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
