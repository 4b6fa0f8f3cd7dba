//! The pure core of a conversation.

pub mod request;
