//! The credentials: what each is, whether it takes a request now, and which one is chosen.

pub mod spec;

pub use spec::{Balance, CredentialId, CredentialSpec, HeaderSource, ModelPatterns, SecretSource};
