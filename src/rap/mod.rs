//! RAP, the Reactive Agent Protocol: JSON over HTTP POST between dormouse and tool servers.
//!
//! A tool call is POSTed to its server, which acknowledges at once; the result comes back, a millisecond or
//! three days later, as a POST to a callback address that names the call and is signed.
//!
//! | file | what it holds |
//! |---|---|
//! | [`wire`] | the messages, tolerant in and strict out |
//! | [`token`] | addresses of callbacks and of webhooks, and their signatures |
//! | [`discovery`] | manifests: fetched, checked, cached |
//! | [`client`] | requests to tool servers: invocations, notices, answers |
//! | [`signing`] | AWS signatures of these requests |
//! | [`tool`] | a discovered tool as a [`Tool`](crate::tools::Tool) |
//! | [`source`] | the configured servers as [`ToolServers`](crate::tools::ToolServers) |
//! | [`callback`] | what a POST to a callback address does |
//!
//! Nothing here knows about slices or histories: a callback becomes an input message and no more.

pub mod callback;
pub mod client;
pub mod discovery;
pub mod signing;
pub mod source;
pub mod token;
pub mod tool;
pub mod wire;

pub use callback::{CallbackBody, CallbackDeps, CallbackReply, CallbackRequest, handle};
pub use client::{RapClient, http_client};
pub use signing::Signer;
pub use source::RapTools;
pub use token::{CallbackKeys, CallbackTokens, Hook, HookOptions, KeysError, TokenError};
