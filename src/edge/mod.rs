//! The thin shell of Pingora phases around the policy.
//!
//! A request's way: `proxy` (pingora calls) → `request` (what berth answers itself, the body) →
//! `failover` (which credential, and what then) → `attempt` (one credential, held) → `delivery` (after
//! commit). Modes `observe` and `off` take `clean` instead. `serve` puts it all on listeners.

mod answer;
mod attempt;
mod body;
mod clean;
mod client;
pub mod clients;
mod connect;
mod delivery;
pub mod drain;
mod failover;
pub mod handover;
mod hash;
mod head;
mod headers;
mod malformed;
pub mod news;
mod owners;
mod paths;
mod proxy;
pub mod question;
mod request;
pub mod serve;
mod sessions;
pub mod spec;
pub mod state;
mod tale;
mod task;
pub mod tls;
pub mod upstream;
mod waiting;
