//! What a user says here ends the response that runs, at once: the queue alone would hold it back until that is over.

use std::sync::Arc;

use async_trait::async_trait;

use crate::message::{DedupId, InputMessage};
use crate::queue::{InputSender, QueueError};
use crate::slice::Running;
use crate::store::Store;

/// The input queue, as everybody uses it who takes a user's text in this process.
pub struct Interrupting {
    /// The queue.
    pub inner: Arc<dyn InputSender>,
    /// The worker's slices.
    pub running: Running,
    /// Knows what was said before.
    pub store: Arc<dyn Store>,
}

#[async_trait]
impl InputSender for Interrupting {
    async fn send(&self, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        let thread = &message.group_id;
        let is_text = message.content.is_said() && message.synthetic.is_none();
        // Before it is sent: afterwards, the slice that runs might be the one that answers it. What was answered before
        // and is only sent again interrupts nothing; where that cannot be known, the response may as well go on.
        if is_text
            && self.running.has(thread)
            && let Ok(false) = self.store.is_message_processed(thread, dedup).await
        {
            self.running.user_text(thread, dedup);
        }
        self.inner.send(message, dedup).await
    }
}
