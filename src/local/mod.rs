//! One machine: the AWS services dormouse needs, in this process, on loopback.
//!
//! Job: give the same code that runs on Lambda a DynamoDB, an SQS and an event source mapping, so that the AWS
//! clients differ only in their endpoint and `cargo run` needs no account. What was accepted survives `kill -9`.
//! Nothing here knows a thread, a slice or a message's meaning, and nothing outside imports it except the
//! `dormouse` command and tests.
//!
//! | file | holds |
//! |---|---|
//! | [`aws`] | [`aws::EmbeddedAws`]: starts and stops the two services, owns the directory's lock |
//! | `dynamo` | DynamoDB: `dynoxide-rs` on a file, dormouse's table |
//! | `sqs` | the SQS endpoint: our front over `rustack-sqs` |
//! | `journal` | every accepted message, in SQLite, until it is deleted |
//! | [`demo`] | a small real tool server, for `cargo run` and tests |
//! | [`endpoints`] | where a running dormouse is found by other processes |
//! | `interrupts` | a user's text ends the response that runs |
//! | [`poll`] | what Lambda's event source mapping does: receive, call the handler, delete |
//! | `server` | a server on its own thread and runtime |
//! | [`system`] | [`system::LocalSystem`]: all of it together, the worker and the HTTP front included |

pub mod aws;
pub mod demo;
mod dynamo;
pub mod endpoints;
mod interrupts;
mod journal;
pub mod poll;
mod server;
mod sqs;
pub mod system;
