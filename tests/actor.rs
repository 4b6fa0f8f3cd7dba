//! Resident threads: the checklist "Actor" of the conversation's rules, a theme a file. What an actor commits is compared
//! with what slices from a queue commit, row by row and request by request.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "local")]
#[path = "support/ddb.rs"]
mod ddb;
#[cfg(feature = "local")]
#[path = "support/provider_server.rs"]
#[allow(dead_code, reason = "shared by several test binaries, each using a part")]
mod provider_server;
#[path = "support/resident.rs"]
mod resident;
#[path = "support/world.rs"]
mod world;

#[path = "actor/interrupts.rs"]
mod interrupts;
#[path = "actor/lifetime.rs"]
mod lifetime;
#[path = "actor/reads.rs"]
mod reads;
#[cfg(feature = "local")]
#[path = "actor/sameness.rs"]
mod sameness;
#[path = "actor/system.rs"]
mod system;
#[cfg(feature = "local")]
#[path = "actor/wire.rs"]
mod wire;
#[path = "actor/writes.rs"]
mod writes;
