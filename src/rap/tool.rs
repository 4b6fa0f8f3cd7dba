//! A discovered tool: its definition for the model, and its calls as RAP invocations.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::value::RawValue;
use url::Url;

use super::client::RapClient;
use super::token::CallbackTokens;
use super::wire::InvocationBody;
use crate::config::Destructive;
use crate::history::{TIMED_OUT, wording};
use crate::message::{CallId, ContentPart, DedupId, InputMessage, ThreadId};
use crate::queue::{QueueError, TimerSender};
use crate::store::{Hold, Terms};
use crate::tools::{Execution, Invocation, Tool, ToolDefinition, ToolError, Waiting};

/// A tool of a tool server. Always asynchronous: its result comes back through the callback.
pub struct RapTool {
    /// What the model is told.
    pub definition: ToolDefinition,
    /// The name of its server in the configuration.
    pub server: String,
    /// Where its set takes invocations; checked against the configuration.
    pub endpoint: Url,
    /// Whether it says of itself that it may destroy something.
    pub destructive: bool,
    /// How its server is spoken to.
    pub client: RapClient,
    /// What its callback addresses are made with.
    pub tokens: CallbackTokens,
    /// What its time limit is set with.
    pub timers: Option<Arc<dyn TimerSender>>,
}

impl RapTool {
    /// Has the call settled when its time is up, if its server is given one. Before the call is out, so that none
    /// waits longer than it may; a call that is repeated sets the same timer again.
    async fn set_limit(&self, call: &Invocation) -> Result<(), ToolError> {
        let settings = self.client.config().tool_servers.get(&self.server);
        let Some(seconds) = settings.and_then(|server| server.result_timeout_seconds) else { return Ok(()) };
        let unset =
            || ToolError::Unavailable(format!("{} did not run: its time limit could not be set", call.name));
        let timers = self.timers.as_ref().ok_or_else(unset)?;
        let limit_ms = i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX);
        let due_ms = jiff::Timestamp::now().as_millisecond().saturating_add(limit_ms);
        let dedup = DedupId::derive(TIMED_OUT, &[call.thread.as_str(), call.call.as_str()]);
        let parts = vec![ContentPart::Text(wording::timed_out(&call.name))];
        let message = InputMessage::tool_result(call.thread.clone(), call.call.clone(), parts);
        timers.schedule(due_ms, &message, &dedup).await.map_err(|error| {
            tracing::warn!(thread = %call.thread, call = %call.call, %error, "a time limit could not be set");
            unset()
        })
    }
}

#[async_trait]
impl Tool for RapTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Asynchronous(Waiting::Active)
    }

    fn server(&self) -> Option<&str> {
        Some(&self.server)
    }

    fn hold(&self) -> Option<Hold> {
        let server = self.client.config().tool_servers.get(&self.server)?;
        match (self.destructive && server.destructive != Destructive::Off, server.serial) {
            (false, false) => None,
            (false, true) => Some(Hold::Turn),
            (true, false) => Some(Hold::Consent),
            (true, true) => Some(Hold::ConsentThenTurn),
        }
    }

    fn terms(&self) -> Terms {
        let Some(server) = self.client.config().tool_servers.get(&self.server) else {
            return Terms::default();
        };
        let ms = |seconds: u64| i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX);
        Terms {
            editable: self.destructive && server.destructive == Destructive::AskEdit,
            consent_ms: server.consent_timeout_seconds.filter(|_| self.destructive).map(ms),
            result_ms: server.result_timeout_seconds.map(ms),
            due: None,
        }
    }

    async fn set_expiry(
        &self,
        due_ms: i64,
        dismissal: &InputMessage,
        dedup: &DedupId,
    ) -> Result<(), QueueError> {
        match &self.timers {
            Some(timers) => timers.schedule(due_ms, dismissal, dedup).await,
            None => Err(QueueError::Refused("there is no delay queue".to_owned())),
        }
    }

    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        // A provider streams no arguments as nothing at all (F47).
        let arguments = Some(call.arguments.trim()).filter(|text| !text.is_empty()).unwrap_or("{}");
        let arguments: &RawValue = serde_json::from_str(arguments)
            .map_err(|_| ToolError::Failed(format!("the arguments of {} are not JSON", call.name)))?;
        let callback_url = self.tokens.url(&call.thread, &call.call);
        let user_id = call.user.as_deref().filter(|_| self.client.config().send_user_id);
        let body = InvocationBody {
            operation: &self.definition.name,
            arguments,
            id: &call.call,
            call_id: None,
            callback_url: &callback_url,
            group_id: &call.thread,
            user_id,
            thread_ancestors: Some(call.ancestors.as_slice()).filter(|ancestors| !ancestors.is_empty()),
        };
        self.set_limit(call).await?;
        let started = std::time::Instant::now();
        let outcome = self.client.invoke(&self.server, &self.endpoint, &body).await;
        // The audit line of requirement 32: never arguments, never the address.
        tracing::info!(
            thread = %call.thread,
            call = %call.call,
            server = self.server,
            tool = self.definition.name,
            bytes = call.arguments.len(),
            ms = started.elapsed().as_millis() as u64,
            acknowledged = outcome.is_ok(),
            "invocation"
        );
        outcome
    }

    async fn cancel(&self, thread: &ThreadId, call: &CallId) {
        self.client.cancel_tool_call(&self.server, thread, call).await;
    }

    async fn close(&self, thread: &ThreadId) {
        self.client.close_thread(&self.server, thread).await;
    }

    async fn answer_choice(
        &self,
        response_url: &str,
        choice: &CallId,
        selected: usize,
    ) -> Result<(), ToolError> {
        self.client.answer_choice(response_url, choice, selected).await
    }
}
