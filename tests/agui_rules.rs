//! What the pure part of AG-UI promises: streams that every client takes, messages that agree with what was streamed, and
//! requests that are understood as the client meant them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "agui_rules/branches.rs"]
mod branches;
#[path = "agui_rules/messages.rs"]
mod messages;
#[path = "agui_rules/streams.rs"]
mod streams;
#[path = "agui_rules/view.rs"]
mod view;
#[path = "agui_rules/wire.rs"]
mod wire;
