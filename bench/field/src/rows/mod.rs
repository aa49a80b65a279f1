//! What is measured, one idea in each file.

pub mod bodies;
pub mod gateways;
pub mod latency;
pub mod memory;
pub mod pure;
pub mod saturation;
pub mod starting;
