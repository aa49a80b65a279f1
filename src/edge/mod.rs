//! The thin shell of Pingora phases around the policy.

pub mod spec;
