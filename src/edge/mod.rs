//! The thin shell of Pingora phases around the policy.
//!
//! A request's way: `proxy` (pingora calls) → `request` (what berth answers itself, the body) →
//! `failover` (which credential, and what then) → `attempt` (one credential, held) → `delivery` (after
//! commit). Modes `observe` and `off` take `clean` instead. `serve` makes an application of it all, and `entrance`
//! lets connections in to it.

mod answer;
mod attempt;
mod body;
mod clean;
mod client;
pub mod clients;
mod connect;
pub mod connection;
mod delivery;
pub mod drain;
pub mod entrance;
mod exchange;
mod failover;
pub mod handover;
mod hash;
mod head;
mod headers;
mod malformed;
pub mod news;
mod owners;
mod pace;
mod paths;
mod places;
mod proxy;
pub mod question;
mod report;
mod request;
pub mod serve;
mod sessions;
mod socket;
pub mod spec;
pub mod state;
mod tale;
pub mod tls;
mod turns;
pub mod upstream;
mod waiting;
