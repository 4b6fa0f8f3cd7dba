//! What the tests of the pure core share.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod damaged;
pub mod provider_rules;
pub mod say;
pub mod slice;
pub mod store;
