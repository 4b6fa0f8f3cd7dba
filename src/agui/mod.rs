//! AG-UI: what attached clients speak. One POST with the client's view of a thread, one answer with a stream of events.
//!
//! Everything here is pure: no I/O, no clock. The HTTP routes are in [`http`](crate::http), the work of a run is a
//! [slice](mod@crate::slice) like any other, and its rows are in the [`store`](crate::store).
//!
//! | file | what it holds |
//! |---|---|
//! | `wire` | the types of the protocol: tolerant in, strict out |
//! | `emit` | the one way to make a stream of events: no illegal order can be made with it |
//! | `convert` | items to messages, and messages to those that assistant-ui keeps |
//! | `branch` | where a request stands in a thread, and what it asks for |
//! | `repository` | a conversation that a client kept, with its branches |
//! | `records` | one message of it, in either form |
//! | `planting` | that conversation as items |

pub mod branch;
pub mod convert;
pub mod emit;
pub mod planting;
mod records;
pub mod repository;
pub mod wire;
