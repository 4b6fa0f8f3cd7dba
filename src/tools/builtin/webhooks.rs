//! `receive_webhook`: an address that any service may POST to; each POST is an event of the call.
//!
//! What the address needs to know is signed into it, so that nothing is stored but the subscription. The endpoint is
//! `http::hooks`.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::arguments;
use crate::rap::token::{CallbackTokens, Hook, HookOptions};
use crate::tools::{Effect, Execution, Invocation, Rerun, Tool, ToolDefinition, ToolError, ToolOutput};

pub(super) struct ReceiveWebhook {
    definition: ToolDefinition,
    tokens: CallbackTokens,
    /// Names of the configured secrets.
    secrets: Vec<String>,
}

/// `description` is for people who read along.
#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    secret: Option<String>,
    #[serde(default)]
    associative: Option<bool>,
}

impl ReceiveWebhook {
    pub(super) fn new(tokens: CallbackTokens, secrets: Vec<String>) -> Self {
        let secret = match secrets.is_empty() {
            true => "None is configured: leave it out".to_owned(),
            false => format!(
                "The name of the secret that the service signs its requests with; others are then refused. Configured: {}",
                secrets.join(", ")
            ),
        };
        let definition = ToolDefinition {
            name: "receive_webhook".to_owned(),
            description: "Makes a web address that another service can POST to, and subscribes this thread to it: each \
                          POST arrives as an event with the body as its text. The result begins with the address. \
                          Whoever knows it can send events, so give it only to the service that is to call it."
                .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "secret": {"type": "string", "description": secret},
                    "description": {"type": "string", "description": "What it is for"},
                    "associative": {
                        "type": "boolean",
                        "description": "Events arrive in this conversation (the default); false: each starts a child thread of its own",
                    },
                },
            }),
        };
        Self { definition, tokens, secrets }
    }
}

#[async_trait]
impl Tool for ReceiveWebhook {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Synchronous(Rerun::Safe)
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        let Arguments { secret, associative } = arguments(&call.arguments)?;
        if let Some(name) = &secret
            && !self.secrets.contains(name)
        {
            let known = match self.secrets.is_empty() {
                true => "none is configured".to_owned(),
                false => format!("configured: {}", self.secrets.join(", ")),
            };
            return Err(ToolError::Failed(format!(
                "there is no secret of that name; {known}. A secret is named here, never written out"
            )));
        }
        let hook = Hook {
            thread: call.thread.clone(),
            call: call.call.clone(),
            options: HookOptions { secret, associative: associative.unwrap_or(true) },
        };
        let text = format!(
            "{}\nEach POST to this address is an event of this thread. cancel_subscription with the tool_call_id {} \
             ends it.",
            self.tokens.hook_url(&hook),
            call.call
        );
        Ok(ToolOutput::text(text).with(Effect::Subscribe))
    }
}
