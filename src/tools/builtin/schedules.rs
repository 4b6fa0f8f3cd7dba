//! `schedule`: events at times that a cron expression names.
//!
//! Each firing is a message that waits as a timer, under a dedup id of its call and its time. Whoever takes it promises
//! the next one in the same commit (`history::input`), so that the chain neither breaks nor forks, whatever is
//! redelivered. After `cancel_subscription` the timer that is set is dropped when it comes, and the chain has ended.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::arguments;
use crate::history::wording;
use crate::message::{CallId, ContentPart, DedupId, Firing, InputMessage, Recurrence, Synthetic, ThreadId};
use crate::queue::{QueueError, TimerSender};
use crate::tools::{Effect, Execution, Invocation, Rerun, Tool, ToolDefinition, ToolError, ToolOutput};

/// The tool's name.
pub const SCHEDULE_TOOL: &str = "schedule";
/// Characters of what the model is told at each firing.
const MAX_MESSAGE_CHARS: usize = 8_000;

pub(super) struct Schedule {
    definition: ToolDefinition,
    timers: Arc<dyn TimerSender>,
}

#[derive(Deserialize)]
struct Arguments {
    cron: String,
    #[serde(default)]
    timezone: Option<String>,
    message: String,
    #[serde(default)]
    max_firings: Option<u32>,
}

impl Arguments {
    fn recurrence(&self) -> Recurrence {
        Recurrence {
            cron: self.cron.clone(),
            timezone: self.timezone.clone().unwrap_or_else(|| "UTC".to_owned()),
            max_firings: self.max_firings,
        }
    }
}

impl Schedule {
    pub(super) fn new(timers: Arc<dyn TimerSender>) -> Self {
        let definition = ToolDefinition {
            name: SCHEDULE_TOOL.to_owned(),
            description: "Wakes this thread again and again, at the times that a cron expression names: each time the \
                          message arrives as an event. Nothing runs and nothing is charged in between. Times that pass \
                          while nothing can run are not made up for."
                .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "cron": {
                        "type": "string",
                        "description": "Minute, hour, day of month, month, day of week; for instance 30 9 * * MON-FRI",
                    },
                    "timezone": {"type": "string", "description": "An IANA name such as Europe/Berlin; UTC if absent"},
                    "message": {"type": "string", "minLength": 1, "description": "What you are told each time"},
                    "max_firings": {"type": "integer", "minimum": 1, "maximum": u32::MAX, "description": "Ends it after so many times"},
                },
                "required": ["cron", "message"],
            }),
        };
        Self { definition, timers }
    }
}

#[async_trait]
impl Tool for Schedule {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Synchronous(Rerun::Safe)
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        let asked: Arguments = arguments(&call.arguments)?;
        if asked.message.chars().count() > MAX_MESSAGE_CHARS {
            return Err(ToolError::Failed(format!("message has more than {MAX_MESSAGE_CHARS} characters")));
        }
        let recurrence = asked.recurrence();
        let first = recurrence.first(Timestamp::now().as_millisecond());
        let first = first.map_err(|e| ToolError::Failed(e.to_string()))?;
        let text = wording::scheduled(&recurrence.local(first.due_ms), call.call.as_str());
        Ok(ToolOutput::text(text).with(Effect::Subscribe).with(Effect::Schedule(first)))
    }

    async fn set_timer(
        &self,
        thread: &ThreadId,
        call: &CallId,
        arguments: &str,
        firing: Firing,
    ) -> Result<(), QueueError> {
        let unreadable =
            |e| QueueError::Refused(format!("the arguments of the schedule cannot be read: {e}"));
        let asked: Arguments = serde_json::from_str(arguments).map_err(unreadable)?;
        let recurrence = asked.recurrence();
        let text = wording::schedule_fired(&recurrence.local(firing.due_ms), &asked.message);
        let parts = vec![ContentPart::text(text)];
        let mut event = InputMessage::tool_result(thread.clone(), call.clone(), parts);
        event.synthetic = Some(Synthetic::SchedulerFired { tool_call_id: call.clone(), firing, recurrence });
        let due = firing.due_ms.to_string();
        let dedup = DedupId::derive(SCHEDULE_TOOL, &[thread.as_str(), call.as_str(), &due]);
        self.timers.schedule(firing.due_ms, &event, &dedup).await
    }
}
