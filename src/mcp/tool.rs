//! A listed tool: its definition for the model, and its calls.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use rmcp::model::JsonObject;

use super::bridge::Bridge;
use super::connection::Connection;
use super::failure::Failure;
use super::result::{self, Returned};
use crate::history::wording;
use crate::message::{CallId, ContentPart, ThreadId};
use crate::tools::{Execution, Invocation, Rerun, Tool, ToolDefinition, ToolError, ToolOutput, Waiting};

/// A tool of an MCP server.
#[derive(Clone)]
pub(super) struct McpTool {
    /// What the model is told.
    pub definition: ToolDefinition,
    /// The server's own name for it.
    pub name: String,
    /// Whether it may run again where it is not known whether it ran.
    pub rerun: Rerun,
    /// Its server.
    pub connection: Arc<Connection>,
    /// Where its calls run if they run in the background.
    pub bridge: Arc<Bridge>,
}

impl McpTool {
    /// Calls it and waits for the result, a bounded time. The error's text is for the model.
    pub async fn run(&self, call: &Invocation) -> Result<Vec<ContentPart>, ToolError> {
        let name = &self.definition.name;
        let started = Instant::now();
        let returned = match arguments(call) {
            Ok(arguments) => self
                .connection
                .call(&self.name, arguments)
                .await
                .and_then(result::read)
                .map_err(|e| self.told(&e)),
            Err(error) => {
                Err(ToolError::Failed(format!("the arguments of {name} are no JSON object: {error}")))
            }
        };
        // The audit line: never arguments, results or addresses.
        tracing::info!(
            thread = %call.thread,
            call = %call.call,
            server = self.connection.server(),
            tool = name,
            bytes = call.arguments.len(),
            ms = started.elapsed().as_millis() as u64,
            answered = returned.is_ok(),
            "MCP call"
        );
        match returned? {
            Returned::Content(parts) => Ok(parts),
            // The caller puts the same word in front.
            Returned::ToolError(text) => {
                let text = text.strip_prefix("Error:").map(str::trim_start).unwrap_or(&text);
                let text = if text.trim().is_empty() { "the tool failed and does not say why" } else { text };
                Err(ToolError::Failed(text.to_owned()))
            }
        }
    }

    fn told(&self, failure: &Failure) -> ToolError {
        let (name, server) = (&self.definition.name, self.connection.server());
        let mut text = format!("{name} gave no result: {failure}.");
        if failure.may_have_run() {
            text.push_str(" It is not known whether it ran.");
        }
        if matches!(failure, Failure::TimedOut(_)) {
            // On Lambda nothing outlives the slice that could wait for it.
            text.push_str(&format!(" Calls of {server} that take longer need a longer timeout_ms"));
            text.push_str(if cfg!(feature = "local") {
                ", or background = true."
            } else {
                " or a RAP server."
            });
        }
        ToolError::Unavailable(text)
    }
}

#[async_trait]
impl Tool for McpTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        match self.connection.settings().background {
            true => Execution::Asynchronous(Waiting::Active),
            false => Execution::Synchronous(self.rerun),
        }
    }

    fn server(&self) -> Option<&str> {
        Some(self.connection.server())
    }

    /// Starts it in the background. The same call again, while it runs, is the same call.
    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        if call.resumed && self.rerun == Rerun::Never && !self.bridge.runs(&call.call) {
            // Whether another process let it run before it died is not known, and the server cannot tell either.
            let lost = wording::lost(&self.definition.name);
            return Err(ToolError::Failed(lost.trim_start_matches("Error: ").to_owned()));
        }
        self.bridge.start(self.clone(), call)
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput { parts: self.run(call).await?, effects: Vec::new() })
    }

    async fn cancel(&self, _thread: &ThreadId, call: &CallId) {
        self.bridge.cancel(call);
    }
}

/// The arguments as rmcp takes them. A provider streams no arguments as nothing at all (F47).
fn arguments(call: &Invocation) -> Result<JsonObject, serde_json::Error> {
    let text = call.arguments.trim();
    serde_json::from_str(if text.is_empty() { "{}" } else { text })
}
