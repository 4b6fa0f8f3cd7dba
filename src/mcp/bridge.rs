//! Calls that outlast a slice. A call of a server with `background` is let out like a RAP invocation, after its
//! commit; it runs here, beside the slices, and its result goes to the input queue as a callback's would.
//!
//! It lives as long as the process. What was under way when the process ended is answered as lost at the next start,
//! since no MCP server keeps a result for a caller that has gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::tool::McpTool;
use crate::history::wording;
use crate::message::{CallId, ContentPart, DedupId, InputMessage, ThreadId};
use crate::queue::InputSender;
use crate::store::Store;
use crate::tools::{Invocation, ToolError};

/// Calls under way at once.
const MAX_CALLS: usize = 64;
/// Tries to put a result on the queue, the wait after the first, and the longest: about ten minutes in all.
const SEND_ATTEMPTS: u32 = 16;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Threads that are looked through for calls left behind.
const MAX_THREADS: usize = 10_000;

/// Runs calls and sends their results. One a process.
pub(super) struct Bridge {
    input: Arc<dyn InputSender>,
    running: Mutex<HashMap<CallId, AbortHandle>>,
}

impl Bridge {
    pub fn new(input: Arc<dyn InputSender>) -> Self {
        Self { input, running: Mutex::default() }
    }

    /// Whether `call` is under way.
    pub fn runs(&self, call: &CallId) -> bool {
        self.running().contains_key(call)
    }

    /// Runs `call` and returns at once.
    pub fn start(self: &Arc<Self>, tool: McpTool, call: &Invocation) -> Result<(), ToolError> {
        // Held until the call is noted, so that one that ends at once is taken out after that.
        let mut running = self.running();
        if running.contains_key(&call.call) {
            return Ok(());
        }
        if running.len() >= MAX_CALLS {
            let text = format!("{} did not run: {MAX_CALLS} calls are under way already", call.name);
            return Err(ToolError::Unavailable(text));
        }
        let (bridge, owned) = (self.clone(), call.clone());
        let task = tokio::spawn(async move {
            let parts = match tool.run(&owned).await {
                Ok(parts) => parts,
                Err(error) => vec![ContentPart::Text(format!("Error: {error}"))],
            };
            let dedup = DedupId::derive("mcp-result", &[owned.thread.as_str(), owned.call.as_str()]);
            bridge.deliver(&owned.thread, &owned.call, parts, &dedup).await;
            bridge.running().remove(&owned.call);
        });
        running.insert(call.call.clone(), task.abort_handle());
        Ok(())
    }

    /// Ends `call`; its server is told.
    pub fn cancel(&self, call: &CallId) {
        if let Some(task) = self.running().remove(call) {
            task.abort();
        }
    }

    /// Ends every call.
    pub fn stop(&self) {
        for (_, task) in self.running().drain() {
            task.abort();
        }
    }

    /// Answers the calls of servers that `background` names which no process works on any more. Best effort: what
    /// fails is logged, and done at the next start.
    pub async fn answer_lost_calls(&self, store: &dyn Store, background: impl Fn(&str) -> bool) {
        let threads = match store.list_threads(MAX_THREADS).await {
            Ok(threads) => threads,
            Err(error) => {
                tracing::warn!(%error, "calls left behind cannot be looked for");
                return;
            }
        };
        for summary in threads.into_iter().filter(|summary| summary.pending > 0 && !summary.closed) {
            let meta = match store.meta(&summary.thread).await {
                Ok(Some(meta)) => meta,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(thread = %summary.thread, %error, "calls left behind cannot be looked for");
                    continue;
                }
            };
            let left = meta.pending.iter().filter(|pending| {
                !pending.synchronous && !pending.parked && pending.server.as_deref().is_some_and(&background)
            });
            for pending in left {
                let dedup = DedupId::derive("mcp-lost", &[meta.thread.as_str(), pending.call.as_str()]);
                let parts = vec![ContentPart::Text(wording::lost(&pending.name))];
                let lost = InputMessage::tool_result(meta.thread.clone(), pending.call.clone(), parts);
                match self.input.send(&lost, &dedup).await {
                    Ok(()) => tracing::info!(thread = %meta.thread, call = %pending.call, "call left behind"),
                    Err(error) => {
                        tracing::warn!(thread = %meta.thread, call = %pending.call, %error, "call left behind");
                    }
                }
            }
        }
    }

    async fn deliver(&self, thread: &ThreadId, call: &CallId, parts: Vec<ContentPart>, dedup: &DedupId) {
        let message = InputMessage::tool_result(thread.clone(), call.clone(), parts);
        let mut wait = FIRST_WAIT;
        for attempt in 1..=SEND_ATTEMPTS {
            match self.input.send(&message, dedup).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(%thread, %call, attempt, %error, "a result could not be queued");
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
        tracing::error!(%thread, %call, "a result is given up; the call is answered as lost at the next start");
    }

    fn running(&self) -> MutexGuard<'_, HashMap<CallId, AbortHandle>> {
        // Held for map operations only, which do not panic.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
