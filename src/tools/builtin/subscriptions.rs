//! `cancel_subscription`: ends a subscription of the calling thread (RAP 41).

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::arguments;
use crate::message::CallId;
use crate::store::Store;
use crate::tools::{Effect, Execution, Invocation, Rerun, Tool, ToolDefinition, ToolError, ToolOutput};

pub(super) struct CancelSubscription {
    definition: ToolDefinition,
    store: Arc<dyn Store>,
}

#[derive(Deserialize)]
struct Arguments {
    tool_call_id: CallId,
}

impl CancelSubscription {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let definition = ToolDefinition {
            name: "cancel_subscription".to_owned(),
            description:
                "Ends a subscription of this thread: no more events of it arrive. Takes the id of the \
                          tool call that subscribed."
                    .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {"tool_call_id": {"type": "string", "description": "The call that subscribed"}},
                "required": ["tool_call_id"],
            }),
        };
        Self { definition, store }
    }
}

#[async_trait]
impl Tool for CancelSubscription {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Synchronous(Rerun::Safe)
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        let Arguments { tool_call_id } = arguments(&call.arguments)?;
        let stored = self.store.subscription(&call.thread, &tool_call_id).await;
        let stored =
            stored.map_err(|_| ToolError::Unavailable("the subscription cannot be looked up".to_owned()))?;
        if !stored.is_some_and(|subscription| subscription.active) {
            return Err(ToolError::Failed(format!("this thread has no active subscription {tool_call_id}")));
        }
        Ok(ToolOutput::text(format!("The subscription {tool_call_id} is cancelled."))
            .with(Effect::Unsubscribe(tool_call_id)))
    }
}
