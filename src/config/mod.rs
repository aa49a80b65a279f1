//! The YAML configuration.
