//! A thread that somebody keeps in memory between its slices: what is known of it, and how that follows the commits.

use std::sync::Arc;

use futures::future::try_join_all;

use super::HistoryManager;
use crate::message::{DedupId, Item, ThreadId};
use crate::store::{ChoiceRow, ConversationStore, Generation, Loaded, Meta, StateStore, StoreError};

/// What one process knows of a thread: a copy of what the store holds, true as long as the store's token is the copy's.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its state as of the last load or commit; none: there was no such thread.
    pub meta: Option<Meta>,
    /// Its items, inherited ones first. A result that requests hold shortened may be an excerpt
    /// ([`ItemFacts::excerpt_of`](crate::message::ItemFacts::excerpt_of)).
    pub items: Arc<Vec<Item>>,
    /// The summary that stands for its older part.
    pub summary: Summary,
    /// Items in front that it stands for and that are not in hand.
    pub unread: usize,
    /// Questions that are open.
    pub choices: Vec<ChoiceRow>,
    /// Whether the store holds no parked inputs beside this.
    pub at_rest: bool,
}

/// A summary as requests show it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The summary.
    pub generation: Option<Generation>,
    /// The opener of the turn that it ends in.
    pub opener: Option<Item>,
}

/// Who keeps a copy of a thread. Called inline, after a load and after each commit that is durable: must not block.
pub trait Follower: Send + Sync {
    /// The thread stands here now.
    fn changed(&self, change: Change);
}

/// How a thread has changed.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its state.
    pub meta: Option<Meta>,
    /// How many of the items that were there before it still has.
    pub kept: usize,
    /// Its items behind those.
    pub items: Vec<Item>,
    /// As [`Known::summary`].
    pub summary: Summary,
    /// As [`Known::unread`].
    pub unread: usize,
    /// Questions that are open.
    pub choices: Vec<ChoiceRow>,
    /// As [`Known::at_rest`].
    pub at_rest: bool,
}

impl Known {
    /// Nothing yet.
    pub fn nothing() -> Self {
        Self {
            meta: None,
            items: Arc::default(),
            summary: Summary::default(),
            unread: 0,
            choices: Vec::new(),
            at_rest: false,
        }
    }

    /// Whether it holds every item, and each as it is stored.
    pub fn is_whole(&self) -> bool {
        self.unread == 0 && self.items.iter().all(|item| item.facts.excerpt_of.is_none())
    }

    /// Goes along with a change.
    pub fn follow(&mut self, change: Change) {
        let items = Arc::make_mut(&mut self.items);
        items.truncate(change.kept);
        items.extend(change.items);
        self.meta = change.meta;
        self.summary = change.summary;
        self.unread = change.unread;
        self.choices = change.choices;
        self.at_rest = change.at_rest;
    }
}

impl HistoryManager {
    /// As [`load`](Self::load), but the history is not read again: one round trip of point look-ups, whatever its length.
    /// None where the store does not stand where `known` does, or holds more than is known.
    pub async fn load_known(
        conversations: Arc<dyn ConversationStore>,
        states: Arc<dyn StateStore>,
        thread: ThreadId,
        dedup: &[DedupId],
        known: &Known,
    ) -> Result<Option<Self>, StoreError> {
        // A child's replies carry its root's metadata, which changes without a word here.
        let root = known.meta.as_ref().filter(|meta| known.at_rest && meta.parent.is_none());
        let Some(root) = root else { return Ok(None) };
        let looked_up = dedup.iter().map(|id| conversations.is_message_processed(&thread, id));
        let (meta, stop, processed) =
            tokio::try_join!(conversations.meta(&thread), states.stop(&thread), try_join_all(looked_up))?;
        // A compaction moves no token.
        let is_same =
            |meta: &Meta| meta.token == root.token && meta.compaction.newest == root.compaction.newest;
        if !meta.as_ref().is_some_and(is_same) {
            return Ok(None);
        }
        let processed = dedup.iter().zip(processed).filter(|(_, is)| *is);
        let loaded = Loaded {
            meta,
            items: known.items.to_vec(),
            unread: known.unread,
            generation: known.summary.generation.clone(),
            opener: known.summary.opener.clone(),
            processed: processed.map(|(id, _)| id.clone()).collect(),
            choices: known.choices.clone(),
            stop,
            ..Loaded::default()
        };
        let mut manager = Self::from_loaded(conversations, states, thread, loaded, dedup);
        manager.adopt_view();
        Ok(Some(manager))
    }

    /// Has `follower` told of every commit from here on.
    pub fn follow(&mut self, follower: Option<Arc<dyn Follower>>) {
        self.follower = follower;
    }

    /// The thread as it is now, for somebody who knows nothing of it.
    pub fn change(&self) -> Change {
        self.change_behind(0)
    }

    /// What has changed for somebody who knows the first `kept` items.
    pub(super) fn change_behind(&self, kept: usize) -> Change {
        let items = self.history.committed();
        Change {
            meta: self.exists.then(|| self.meta.clone()),
            kept,
            items: items[kept.min(items.len())..].to_vec(),
            summary: Summary {
                generation: self.history.generation().cloned(),
                opener: self.history.covered_opener().cloned(),
            },
            unread: self.history.unread(),
            choices: self.stored_choices.clone(),
            at_rest: self.history.is_at_rest(),
        }
    }
}
