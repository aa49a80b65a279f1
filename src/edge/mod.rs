//! The thin shell of Pingora phases around the policy.

mod answer;
mod body;
mod connect;
mod headers;
mod paths;
pub mod spec;
mod upstream;
