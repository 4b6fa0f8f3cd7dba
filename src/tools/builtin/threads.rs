//! Child threads: `spawn_thread`, `report_to_parent`, `close_thread`, `send_message_to_child` (RAP part 5).
//!
//! All run inside the slice and answer at once; what they bring about is in the commit of that answer.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments;
use crate::message::{SPAWN_TOOL, ThreadId};
use crate::store::{Store, StoreError};
use crate::tools::{
    Effect, Execution, Invocation, Rerun, Spawn, SpawnContext, Tool, ToolDefinition, ToolError, ToolOutput,
};

/// The tool that closes a thread.
pub const CLOSE_TOOL: &str = "close_thread";
/// Threads above one another, the root not counted.
const MAX_DEPTH: usize = 8;
/// Open children below one root.
const MAX_OPEN_CHILDREN: u32 = 100;
/// Characters of the instructions, a report or a message: they are stored more than once.
const MAX_TEXT_CHARS: usize = 100_000;

/// The four tools.
pub(super) fn all(store: &Arc<dyn Store>) -> Vec<Arc<dyn Tool>> {
    let kinds = [Kind::Spawn, Kind::Report, Kind::Close, Kind::Message];
    let tool = |kind| Arc::new(ThreadTool { kind, definition: definition(kind), store: store.clone() });
    kinds.map(|kind| tool(kind) as Arc<dyn Tool>).into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Spawn,
    Report,
    Close,
    Message,
}

struct ThreadTool {
    kind: Kind,
    definition: ToolDefinition,
    store: Arc<dyn Store>,
}

fn definition(kind: Kind) -> ToolDefinition {
    let text = |description: &str| json!({"type": "string", "minLength": 1, "description": description});
    let (name, description, properties, required): (_, _, Value, Value) = match kind {
        Kind::Spawn => (
            SPAWN_TOOL,
            "Starts a child thread that works on its own, beside this one. Its id is the result; its reports arrive \
             as events. It knows this conversation so far, unless fresh_context is set.",
            json!({
                "instructions": text("What the child is to do"),
                "child_of": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The stack of threads that the child belongs to: from the root thread down to this one",
                },
                "fresh_context": {"type": "boolean", "description": "The child knows nothing but its instructions"},
            }),
            json!(["instructions", "child_of"]),
        ),
        Kind::Report => (
            "report_to_parent",
            "Sends a report to the parent of this thread. The thread goes on.",
            json!({"report": text("What the parent is to know")}),
            json!(["report"]),
        ),
        Kind::Close => (
            CLOSE_TOOL,
            "Closes this thread for good, when its task is done. Nothing that arrives later is looked at.",
            json!({
                "thread_id": text("The id of this thread"),
                "report_to_parent": {"type": "string", "description": "A last report to the parent"},
            }),
            json!(["thread_id"]),
        ),
        Kind::Message => (
            "send_message_to_child",
            "Sends a message to a child of this thread that is still open.",
            json!({"thread_id": text("The child"), "message": text("What to tell it")}),
            json!(["thread_id", "message"]),
        ),
    };
    ToolDefinition {
        name: name.to_owned(),
        description: description.to_owned(),
        input_schema: json!({"type": "object", "properties": properties, "required": required}),
    }
}

#[derive(Deserialize)]
struct SpawnArguments {
    instructions: String,
    child_of: Vec<String>,
    #[serde(default)]
    fresh_context: bool,
}

#[derive(Deserialize)]
struct CloseArguments {
    thread_id: ThreadId,
    #[serde(default)]
    report_to_parent: Option<String>,
}

#[derive(Deserialize)]
struct MessageArguments {
    thread_id: ThreadId,
    message: String,
}

#[derive(Deserialize)]
struct ReportArguments {
    report: String,
}

#[async_trait]
impl Tool for ThreadTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Synchronous(Rerun::Safe)
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        match self.kind {
            Kind::Spawn => self.spawn(call).await,
            Kind::Report => report(call),
            Kind::Close => self.close(call).await,
            Kind::Message => self.message(call).await,
        }
    }
}

impl ThreadTool {
    async fn spawn(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        let SpawnArguments { instructions, child_of, fresh_context } = arguments(&call.arguments)?;
        check_text("instructions", &instructions)?;
        let stack: Vec<&str> = call.ancestors.iter().chain([&call.thread]).map(ThreadId::as_str).collect();
        if child_of != stack {
            return Err(ToolError::Failed(format!(
                "this is the thread {}, whose stack is {}. If you were started as a child to do a task, do it \
                 yourself; to spawn a child of this thread, pass that stack as child_of",
                call.thread,
                json!(stack)
            )));
        }
        if call.ancestors.len() >= MAX_DEPTH {
            return Err(ToolError::Failed(format!("threads are at most {MAX_DEPTH} deep; do the task here")));
        }
        let root = call.ancestors.first().unwrap_or(&call.thread);
        let open = self.store.open_children(root).await.map_err(unavailable)?;
        if open >= MAX_OPEN_CHILDREN {
            return Err(ToolError::Failed(format!(
                "{open} children are open, and {MAX_OPEN_CHILDREN} are the most; wait until some have closed"
            )));
        }
        let context = if fresh_context { SpawnContext::Fresh } else { SpawnContext::Inherit };
        let child = ThreadId::child(&call.thread, call.call.as_str());
        Ok(ToolOutput::text(child.as_str()).with(Effect::Spawn(Spawn { context, instructions })))
    }

    async fn close(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        let CloseArguments { thread_id, report_to_parent } = arguments(&call.arguments)?;
        check_text("report_to_parent", report_to_parent.as_deref().unwrap_or_default())?;
        check_is_child(call)?;
        if thread_id != call.thread {
            return Err(ToolError::Failed(format!(
                "a thread closes only itself, and this is the thread {}",
                call.thread
            )));
        }
        let mut output = ToolOutput::text("closed");
        let subscriptions = self.store.get_active_subscriptions(&call.thread).await.map_err(unavailable)?;
        output.effects.extend(subscriptions.into_iter().map(Effect::Unsubscribe));
        let meta = self.store.meta(&call.thread).await.map_err(unavailable)?;
        // Of a thread that was made for an event, its parent hears only what it reports.
        let silent = meta.is_some_and(|meta| meta.kind == crate::store::ThreadKind::Event);
        if !silent || report_to_parent.is_some() {
            output.effects.push(Effect::Report);
        }
        Ok(output.with(Effect::Close))
    }

    async fn message(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        let MessageArguments { thread_id, message } = arguments(&call.arguments)?;
        check_text("message", &message)?;
        let child = self.store.meta(&thread_id).await.map_err(unavailable)?;
        let child = child.filter(|child| child.parent.as_ref() == Some(&call.thread));
        let Some(child) = child else {
            return Err(ToolError::Failed(format!("this thread has no child {thread_id}")));
        };
        let Some(origin) = child.origin.filter(|_| !child.closed) else {
            return Err(ToolError::Failed(format!("the child {thread_id} has closed")));
        };
        Ok(ToolOutput::text(format!("The message to {thread_id} is sent."))
            .with(Effect::Message { to: thread_id, origin }))
    }
}

fn report(call: &Invocation) -> Result<ToolOutput, ToolError> {
    let ReportArguments { report } = arguments(&call.arguments)?;
    check_text("report", &report)?;
    check_is_child(call)?;
    Ok(ToolOutput::text("The report is sent.").with(Effect::Report))
}

fn check_is_child(call: &Invocation) -> Result<(), ToolError> {
    match call.ancestors.is_empty() {
        true => {
            Err(ToolError::Failed("this is a root thread: it has no parent, and is not closed".to_owned()))
        }
        false => Ok(()),
    }
}

fn check_text(name: &str, text: &str) -> Result<(), ToolError> {
    match text.chars().count() > MAX_TEXT_CHARS {
        true => Err(ToolError::Failed(format!("{name} has more than {MAX_TEXT_CHARS} characters"))),
        false => Ok(()),
    }
}

fn unavailable(error: StoreError) -> ToolError {
    tracing::warn!(%error, "a built-in tool cannot read the store");
    ToolError::Unavailable("the state of the thread cannot be read now; try again".to_owned())
}
