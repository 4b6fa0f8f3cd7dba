//! A run of an attached client, as the queue carries it: where its user stands in the conversation, and what is new. It
//! is a view, never the history: nothing the thread knows already is taken from it.

use serde::{Deserialize, Serialize};

use super::content::ContentPart;
use super::json::RawJson;

/// Asks a thread to take what is new in a client's view, and to answer it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRequest {
    /// The client's name of it, unique within the thread.
    pub run: String,
    /// The client's list of messages, as far as it counts.
    pub records: Vec<RunRecord>,
    /// The client keeps no history: every new message goes to the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub append: bool,
    /// Answers to what the run before was interrupted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Vec<ResumeAnswer>>,
    /// What the client's application and the agent share from here on; absent: what they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RawJson>,
}

/// One message of a client's list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum RunRecord {
    /// Something the user said.
    User {
        /// The client's id of it.
        id: String,
        /// What.
        parts: Vec<ContentPart>,
    },
    /// Something the model said: only its ids count.
    Assistant {
        /// Its id.
        id: String,
        /// Its calls.
        calls: Vec<String>,
    },
    /// A call's result.
    Tool {
        /// The call.
        call: String,
        /// What the tool returned.
        text: String,
        /// Whether it failed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        failed: bool,
    },
}

/// An answer to one interrupt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResumeAnswer {
    /// The interrupt.
    pub interrupt: String,
    /// Whether it was answered at all; else it was given up.
    pub resolved: bool,
    /// The answer, as JSON; absent: none was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<serde_json::Value>,
}
