//! Puts a text into a thread and knows when it is answered.
//!
//! The store decides, not the events: a text is answered when it was processed and nothing of its thread is open or
//! out any more. Events only say when to look, and what the user is told beside the answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use dormouse::message::{DedupId, InputMessage, Item, ItemBody, ThreadId};
use dormouse::queue::InputSender;
use dormouse::slice::{DisplayEvent, Observer};
use dormouse::store::{Meta, Promise, Store};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::CliError;

/// One thread, as this process speaks to it.
pub struct Conversation {
    thread: ThreadId,
    store: Arc<dyn Store>,
    input: Arc<dyn InputSender>,
}

/// How far a text is.
#[derive(Debug, PartialEq, Eq)]
pub enum Stage {
    /// In the queue, or being worked on for the first time.
    Queued,
    /// Its slice has committed something and goes on.
    Working,
    /// Calls are out.
    Waiting {
        /// Their tools.
        tools: Vec<String>,
        /// Addresses at which the user has to consent before the tools go on.
        consent: Vec<String>,
    },
    /// Nothing is open: the answer is there, or the user was told why not.
    Settled,
}

impl Conversation {
    /// Speaks to `thread`.
    pub fn new(thread: ThreadId, store: Arc<dyn Store>, input: Arc<dyn InputSender>) -> Self {
        Self { thread, store, input }
    }

    /// Queues a text of the user and returns the id under which it is processed.
    pub async fn send(&self, text: &str) -> Result<DedupId, CliError> {
        // A closed thread drops its inputs: nobody would ever answer.
        if self.store.meta(&self.thread).await?.is_some_and(|meta| meta.closed) {
            return Err(CliError::Failed(format!(
                "the thread {} is closed; take another with --thread",
                self.thread
            )));
        }
        let (message, dedup) = user_text(self.thread.clone(), text);
        self.input.send(&message, &dedup).await?;
        Ok(dedup)
    }

    /// How far the text sent as `dedup` is.
    pub async fn stage(&self, dedup: &DedupId) -> Result<Stage, CliError> {
        // In this order: what is read of the thread is then at least as new as the text's own commit.
        if !self.store.is_message_processed(&self.thread, dedup).await? {
            return Ok(Stage::Queued);
        }
        let Some(meta) = self.store.meta(&self.thread).await? else { return Ok(Stage::Queued) };
        if !meta.open.is_empty() {
            return Ok(Stage::Working);
        }
        let tools: Vec<String> =
            meta.pending.iter().filter(|call| !call.parked).map(|call| call.name.clone()).collect();
        Ok(match (tools.is_empty(), meta.pending.is_empty()) {
            (false, _) => Stage::Waiting { tools, consent: consent_urls(&meta) },
            (true, false) => Stage::Working,
            (true, true) => Stage::Settled,
        })
    }

    /// What the model answered to the text sent as `dedup`: its text behind the last tool.
    pub async fn answer(&self, dedup: &DedupId) -> Result<Option<String>, CliError> {
        let loaded = self.store.load(&self.thread, &[]).await?;
        Ok(answer_in(&loaded.items, dedup))
    }
}

/// Where the user is asked to consent. The last commit's outbox is the only place that has the address.
pub fn consent_urls(meta: &Meta) -> Vec<String> {
    meta.outbox
        .iter()
        .filter_map(|entry| match &entry.promise {
            Promise::OAuth { auth_url, .. } => Some(auth_url.clone()),
            Promise::Call { .. }
            | Promise::Cancel { .. }
            | Promise::Reply { .. }
            | Promise::Notice { .. }
            | Promise::Choice { .. }
            | Promise::Answer { .. }
            | Promise::Release
            | Promise::Wake { .. }
            | Promise::Report { .. }
            | Promise::Message { .. }
            | Promise::Schedule { .. }
            | Promise::End { .. }
            | Promise::Compact { .. }
            | Promise::Compacted { .. }
            | Promise::RunEnd { .. }
            | Promise::Closed
            | Promise::Unknown(_) => None,
        })
        .collect()
}

/// A user's text under a new id.
pub fn user_text(thread: ThreadId, text: &str) -> (InputMessage, DedupId) {
    (InputMessage::user_text(thread, text), DedupId::new(format!("cli-{}", Uuid::new_v4().simple())))
}

fn answer_in(items: &[Item], dedup: &DedupId) -> Option<String> {
    let asked = items.iter().position(|item| item.facts.dedup.as_ref() == Some(dedup))?;
    let mut texts: Vec<&str> = Vec::new();
    for item in &items[asked + 1..] {
        match &item.body {
            ItemBody::Assistant(said) => texts.push(&said.text),
            ItemBody::ToolCall(_) | ItemBody::ToolResult(_) | ItemBody::Interrupt(_) => texts.clear(),
            // Texts that were queued together are answered together; a later one has its own answer.
            ItemBody::User(user) if user.synthetic_reason.is_none() && !texts.is_empty() => break,
            ItemBody::User(_)
            | ItemBody::System(_)
            | ItemBody::BackendToolCall(_)
            | ItemBody::Reasoning(_)
            | ItemBody::Event(_)
            | ItemBody::State(_)
            | ItemBody::Unknown { .. } => {}
        }
    }
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// Hands the events of one thread to a channel.
pub struct Watcher {
    thread: ThreadId,
    events: mpsc::UnboundedSender<DisplayEvent>,
}

impl Watcher {
    /// Watches `thread`.
    pub fn new(thread: ThreadId) -> (Arc<Self>, mpsc::UnboundedReceiver<DisplayEvent>) {
        let (events, watched) = mpsc::unbounded_channel();
        (Arc::new(Self { thread, events }), watched)
    }
}

impl Observer for Watcher {
    fn on_event(&self, thread: &ThreadId, event: &DisplayEvent) {
        if *thread == self.thread {
            // Nobody listens any more: the process is about to end.
            let _ = self.events.send(event.clone());
        }
    }
}

/// What the user is told beside the answer, and whether it is the end of it.
///
/// What comes before the model is asked (a tool server that cannot be reached) costs no answer; what comes after
/// it, and was not said before, is how the slice ended.
#[derive(Debug, Default)]
pub struct Notices {
    asked: bool,
    said: BTreeSet<String>,
    ending: Vec<String>,
    shown_urls: BTreeSet<String>,
}

impl Notices {
    /// Takes note of an event; returns what is to be shown at once.
    pub fn note<'a>(&mut self, event: &'a DisplayEvent) -> Option<&'a str> {
        match event {
            DisplayEvent::Asking { .. } => {
                self.asked = true;
                self.ending.clear();
            }
            DisplayEvent::Notice(text) if self.said.insert(text.clone()) => match self.asked {
                true => self.ending.push(text.clone()),
                false => return Some(text),
            },
            DisplayEvent::Notice(_)
            | DisplayEvent::Text(_)
            | DisplayEvent::Reasoning(_)
            | DisplayEvent::Discarded { .. }
            | DisplayEvent::Call { .. }
            | DisplayEvent::Result { .. }
            | DisplayEvent::Consent { .. }
            | DisplayEvent::Choice { .. }
            | DisplayEvent::Done
            | DisplayEvent::Sleeping { .. }
            | DisplayEvent::Retrying { .. } => {}
        }
        None
    }

    /// The addresses of `stage` that the user was not shown yet.
    pub fn new_consent(&mut self, stage: &Stage) -> Vec<String> {
        match stage {
            Stage::Waiting { consent, .. } => {
                consent.iter().filter(|url| self.shown_urls.insert((*url).clone())).cloned().collect()
            }
            Stage::Queued | Stage::Working | Stage::Settled => Vec::new(),
        }
    }

    /// What went wrong, if the slice ended in a notice, or in nothing at all.
    pub fn error(self, answered: bool) -> Option<String> {
        match (self.ending.is_empty(), answered) {
            (false, _) => Some(self.ending.join("\n")),
            (true, true) => None,
            (true, false) if self.said.is_empty() => {
                Some("the text was processed, but nothing was answered; see `dormouse show`".to_owned())
            }
            (true, false) => Some(self.said.into_iter().collect::<Vec<_>>().join("\n")),
        }
    }
}

/// Whether an event may be the last one of a slice.
pub fn may_settle(event: &DisplayEvent) -> bool {
    match event {
        DisplayEvent::Done
        | DisplayEvent::Sleeping { .. }
        | DisplayEvent::Notice(_)
        | DisplayEvent::Consent { .. }
        | DisplayEvent::Retrying { .. } => true,
        DisplayEvent::Asking { .. }
        | DisplayEvent::Text(_)
        | DisplayEvent::Reasoning(_)
        | DisplayEvent::Discarded { .. }
        | DisplayEvent::Call { .. }
        | DisplayEvent::Choice { .. }
        | DisplayEvent::Result { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking() -> DisplayEvent {
        DisplayEvent::Asking { model: "m".into() }
    }

    #[test]
    fn a_notice_before_the_model_is_asked_is_no_failure_even_if_it_is_published_afterwards() {
        let mut notices = Notices::default();
        let missing = DisplayEvent::Notice("tools are missing".into());
        assert_eq!(notices.note(&missing), Some("tools are missing"));
        assert_eq!(notices.note(&asking()), None);
        assert_eq!(notices.note(&missing), None);
        assert_eq!(notices.error(true), None);
    }

    #[test]
    fn a_notice_after_the_model_was_asked_is_how_it_ended() {
        let mut notices = Notices::default();
        notices.note(&asking());
        assert_eq!(notices.note(&DisplayEvent::Notice("refused".into())), None);
        assert_eq!(notices.error(true).as_deref(), Some("refused"));
        let mut notices = Notices::default();
        notices.note(&DisplayEvent::Notice("the agent cannot run".into()));
        assert_eq!(notices.error(false).as_deref(), Some("the agent cannot run"));
    }
}
