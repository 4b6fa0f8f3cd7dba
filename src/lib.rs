//! dormouse runs AI agents as stateless *slices*: between inputs an agent is nothing but rows in DynamoDB.
//!
//! An input is one message on an SQS FIFO queue. One invocation rebuilds the thread's history, asks the model
//! once, commits, dispatches the tool calls of the step and exits; results come back through a callback as the
//! next message. The same code runs on Lambda and, with embedded stand-ins, on a laptop.
//!
//! # Map of the house
//!
//! | room | what it holds | speaks to |
//! |---|---|---|
//! | [`message`] | the vocabulary: queue messages, items, content parts, ids | nobody |
//! | [`history`] | the pure core: layers, turn buffer, input rules, rendering | `message` |
//! | [`store`] | `ConversationStore`, `StateStore` and their adapters | `message` |
//! | [`model`] | `ModelProvider`: genai over HTTP, scripted | `message`, `history` (the request) |
//! | [`tools`] | the `Tool` trait and the registry | `message` |
//! | [`rap`] | the tool protocol: wire, discovery, client, tokens, callbacks | `tools`, `queue` |
//! | [`mcp`] | tools of MCP servers, over HTTP and as processes | `tools`, `queue`, `store` |
//! | [`queue`] | `InputSender`, `TimerSender`, `OutputSender`, `DeadLetters` over SQS and Scheduler | `message` |
//! | [`compaction`] | summaries of what the window does not hold: budgets, chunks, calls | `history`, `model`, `store` |
//! | [`thread`] | `HistoryManager`: load and commit around the core | `history`, `store` |
//! | [`agui`] | what attached clients speak: events, messages, branches; pure | `message`, `history` (bounds) |
//! | [`mod@slice`] | prepare, complete, dispatch, the SQS batch | `thread` and every port |
//! | [`http`] | the axum router that the Lambda function and local mode serve | `rap`, `store`, `queue` |
//! | [`agent`] | the library: `AgentSystem`, one step at a time or resident | `slice` and every port |
//! | [`assembly`] | puts a process together from its configuration | everything above |
//! | `local` | the embedded AWS, its journal, the poll loop (feature `local`) | everything |
//!
//! Arrows point one way: nothing imports `local` or a binary.

pub mod agent;
pub mod agui;
pub mod assembly;
pub mod compaction;
pub mod config;
pub mod history;
pub mod http;
#[cfg(feature = "local")]
pub mod local;
pub mod mcp;
pub mod message;
pub mod model;
pub mod queue;
pub mod rap;
pub mod slice;
pub mod store;
pub mod telemetry;
pub mod thread;
pub mod tools;
