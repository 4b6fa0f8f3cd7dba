//! Compaction, slice by slice: what a model is shown once older parts are summarised, who summarises and when, and that no
//! failure of it keeps a thread from going on. Numbers are those of the checklist; F-numbers those of the field cases.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/kills.rs"]
mod kills;
#[path = "support/logged.rs"]
mod logged;
#[cfg(feature = "local")]
#[path = "compaction/outages.rs"]
mod outages;
#[path = "support/history/provider_rules.rs"]
mod provider_rules;
#[cfg(feature = "local")]
#[path = "support/provider_server.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod provider_server;
#[cfg(feature = "local")]
#[path = "provider_threads/replies.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod replies;
#[path = "support/world.rs"]
mod world;

#[path = "compaction/bed.rs"]
mod bed;
#[path = "compaction/chunks.rs"]
mod chunks;
#[path = "compaction/failures.rs"]
mod failures;
#[path = "compaction/fuzz.rs"]
mod fuzz;
#[path = "compaction/kept.rs"]
mod kept;
#[cfg(feature = "local")]
#[path = "compaction/limits.rs"]
mod limits;
#[cfg(feature = "local")]
#[path = "compaction/messages_api.rs"]
mod messages_api;
#[cfg(feature = "local")]
#[path = "compaction/native.rs"]
mod native;
#[cfg(feature = "local")]
#[path = "compaction/native_openai.rs"]
mod native_openai;
#[path = "compaction/views.rs"]
mod views;
