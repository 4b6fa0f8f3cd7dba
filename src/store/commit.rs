//! The one commit: its shape, and the rules that hold before any store sends it.

use std::collections::BTreeSet;

use super::{INLINE_BYTES, Meta, ParkedInput, Span, StoreError, claim_expiry_ms};
use crate::message::{CallId, DedupId, Epoch, Item, Seq, ThreadId};

/// Actions of one DynamoDB transaction; a commit that needs more is refused before it is sent.
pub const MAX_ACTIONS: usize = 100;
/// Bytes of item text in one commit, below the 4 MB of a transaction.
pub const MAX_COMMIT_BYTES: usize = 3_000_000;

/// What must be true of the thread for a commit to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// There is no such thread yet.
    Absent,
    /// The thread is open and stands exactly here.
    At {
        /// Its log.
        epoch: Epoch,
        /// Its next free seq.
        head: Seq,
        /// The token of the commit that was read. Parking and releasing do not move the head, so without it a
        /// stale writer at the same head could overwrite what they have changed.
        token: String,
    },
}

/// A change of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriptionChange {
    /// The call's result opened one.
    Start(CallId),
    /// It has ended.
    End(CallId),
}

/// An open question to the user.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceRow {
    /// The call that asks, also the id of the choice.
    pub id: CallId,
    /// The `user_choice_required` content as JSON.
    pub body: String,
}

/// Everything one step of a slice changes, as one transaction.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The condition (I6).
    pub expect: Expect,
    /// The thread's state afterwards, `token` and outbox included. The token must be new with every commit and the
    /// same when the same commit is sent again. A store writes the attributes that a slice owns, leaves every
    /// other one as it is (that of compaction unless the commit begins a new log), and sets what a thread *is* (root, parent, kind, owner, agent, time of creation) only
    /// with [`Expect::Absent`].
    pub meta: Meta,
    /// New items, contiguous from the expected head.
    pub items: Vec<Item>,
    /// Dedup ids of what this commit caused, each on condition that it is absent or expired (I2).
    pub dedup: Vec<(DedupId, DedupLife)>,
    /// Inputs to keep aside.
    pub park: Vec<ParkedInput>,
    /// Keys of parked inputs that are now in, each on condition that it is there.
    pub release: Vec<String>,
    /// Subscriptions opened and ended.
    pub subscriptions: Vec<SubscriptionChange>,
    /// Questions opened.
    pub choices: Vec<ChoiceRow>,
    /// Threads that this one makes, each on condition that it is absent.
    pub children: Vec<NewThread>,
    /// How many more children of the root are open afterwards.
    pub open_children: i32,
    /// Questions that are over.
    pub closed_choices: Vec<CallId>,
    /// What logs inherit that the thread does not stand in: of a commit that moves to a new log the one that it leaves,
    /// of one that makes a thread its other branches. It is kept beside each, so that a hidden branch can be read.
    pub left: Vec<(Epoch, Vec<Span>)>,
    /// Whether it writes what META knows of compaction.
    pub compaction: CompactionWrite,
    /// Milliseconds since the epoch, for expiry only.
    pub now_ms: i64,
}

/// Whether a commit writes what META knows of compaction. One that makes a thread or begins a log always does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompactionWrite {
    /// It stays as it is in the store.
    #[default]
    Keep,
    /// It is as the commit's META says.
    Set,
}

/// How long a dedup row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupLife {
    /// [`DEDUP_DAYS`](super::DEDUP_DAYS): longer than a queue holds a message.
    Days,
    /// For ever: a callback may be replayed at any time.
    Forever,
}

/// A thread that another one makes, with what its first slice finds.
#[derive(Clone, Debug)]
pub struct NewThread {
    /// Its state.
    pub meta: Meta,
    /// Its own first items.
    pub items: Vec<Item>,
    /// The result that its first slice brings in, if it has one.
    pub parked: Option<ParkedInput>,
}

impl NewThread {
    fn actions(&self) -> usize {
        // META, and the note of it beside the parent.
        2 + usize::from(self.parked.is_some()) + self.items.len()
    }

    fn bytes(&self) -> usize {
        let parked = self.parked.iter().map(|parked| parked.body.as_str());
        let texts = self.items.iter().map(|item| &*item.raw).chain(parked);
        texts.map(|text| text.len().min(INLINE_BYTES)).sum()
    }
}

impl Commit {
    /// A commit that changes nothing but META.
    pub fn new(expect: Expect, meta: Meta, now_ms: i64) -> Self {
        Self {
            expect,
            meta,
            items: Vec::new(),
            dedup: Vec::new(),
            park: Vec::new(),
            release: Vec::new(),
            subscriptions: Vec::new(),
            choices: Vec::new(),
            children: Vec::new(),
            open_children: 0,
            closed_choices: Vec::new(),
            left: Vec::new(),
            compaction: CompactionWrite::Keep,
            now_ms,
        }
    }

    /// Actions the transaction needs.
    pub fn actions(&self) -> usize {
        1 + usize::from(self.made_for().is_some())
            + self.items.len()
            + self.dedup.len()
            + self.park.len()
            + self.release.len()
            + self.subscriptions.len()
            + self.choices.len()
            + self.closed_choices.len()
            + self.children.iter().map(NewThread::actions).sum::<usize>()
            + usize::from(self.open_children != 0)
            + self.left.len()
            + 2 * self.bequests().len()
    }

    /// The threads whose logs a thread inherits that this commit makes: each keeps a note of it, so that nobody erases
    /// rows that somebody reads. Children need none, they go with their parents.
    pub fn bequests(&self) -> BTreeSet<&ThreadId> {
        let made = self.expect == Expect::Absent && self.meta.parent.is_none();
        self.meta.base.iter().filter(|_| made).map(|span| &span.thread).collect()
    }

    /// The owner of a thread that this commit makes: it is listed under that name.
    pub fn made_for(&self) -> Option<&str> {
        self.meta.owner.as_deref().filter(|_| self.expect == Expect::Absent)
    }

    /// Bytes of text the transaction carries; bodies kept apart do not count.
    pub fn bytes(&self) -> usize {
        let inline = |text: &str| text.len().min(INLINE_BYTES);
        let items: usize = self.items.iter().map(|item| inline(&item.raw)).sum();
        let parked: usize = self.park.iter().map(|parked| inline(&parked.body)).sum();
        let children: usize = self.children.iter().map(NewThread::bytes).sum();
        items + parked + children + self.choices.iter().map(|choice| inline(&choice.body)).sum::<usize>()
    }

    /// The position that the first new item must have: the expected head, or the start of a new log.
    pub fn first_seq(&self) -> Seq {
        match &self.expect {
            Expect::At { epoch, head, .. } if *epoch == self.meta.epoch => *head,
            Expect::At { .. } | Expect::Absent => Seq::FIRST,
        }
    }

    /// Whether it says what the thread's newest summary is: where it makes the thread, or begins a new log.
    pub fn sets_compaction(&self) -> bool {
        match &self.expect {
            Expect::Absent => true,
            Expect::At { epoch, .. } => *epoch != self.meta.epoch || self.compaction == CompactionWrite::Set,
        }
    }

    /// The change that counts for each call: a result that opens a subscription and ends it is one change.
    pub fn subscription_changes(&self) -> Vec<&SubscriptionChange> {
        let mut last: Vec<&SubscriptionChange> = Vec::new();
        for change in &self.subscriptions {
            last.retain(|earlier| earlier.call() != change.call());
            last.push(change);
        }
        last
    }

    /// The rules that hold before anything is sent; every store checks them first.
    ///
    /// Fails with [`StoreError::Invalid`] on a commit without a token, above [`MAX_ACTIONS`] or
    /// [`MAX_COMMIT_BYTES`], whose items do not lead from the expected head to `meta.head`, or that touches
    /// one row twice.
    pub fn validate(&self) -> Result<(), StoreError> {
        let invalid = |reason: String| Err(StoreError::Invalid { thread: self.meta.thread.clone(), reason });
        if self.meta.token.is_empty() {
            // Without one, a commit whose answer was lost could not be told from another writer's.
            return invalid("it has no token".to_owned());
        }
        if self.actions() > MAX_ACTIONS {
            return invalid(format!("{} actions, at most {MAX_ACTIONS} fit", self.actions()));
        }
        if self.bytes() > MAX_COMMIT_BYTES {
            return invalid(format!("{} bytes, at most {MAX_COMMIT_BYTES} fit", self.bytes()));
        }
        let first = self.first_seq();
        if let Some((n, item)) = self.items.iter().enumerate().find(|(n, item)| item.seq != first.plus(*n)) {
            return invalid(format!("item {n} has seq {}, expected {}", item.seq, first.plus(n)));
        }
        let head = first.plus(self.items.len());
        if self.meta.head != head {
            return invalid(format!("head is {}, its items lead to {head}", self.meta.head));
        }
        let dedup = self.dedup.iter().map(|(id, _)| ("dedup id", id.as_str()));
        let parked = self.park.iter().map(|parked| ("parked input", parked.key.as_str()));
        let released = self.release.iter().map(|key| ("parked input", key.as_str()));
        let choices = self.choices.iter().map(|choice| ("choice", choice.id.as_str()));
        let choices = choices.chain(self.closed_choices.iter().map(|id| ("choice", id.as_str())));
        let mut rows = BTreeSet::new();
        for (kind, id) in dedup.chain(parked).chain(released).chain(choices) {
            if !rows.insert((kind, id)) {
                return invalid(format!("it names the {kind} {id:?} twice"));
            }
        }
        Ok(())
    }
}

impl SubscriptionChange {
    /// The call that subscribed.
    pub fn call(&self) -> &CallId {
        match self {
            Self::Start(call) | Self::End(call) => call,
        }
    }
}

impl DedupLife {
    /// Until when the row counts, milliseconds since the epoch; none: for ever.
    pub fn expiry_ms(self, now_ms: i64) -> Option<i64> {
        match self {
            Self::Days => Some(claim_expiry_ms(now_ms)),
            Self::Forever => None,
        }
    }
}

/// How a commit ended, where it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It is durable.
    Done,
    /// A condition failed and the stored token is not ours: somebody else moved the thread. Nothing was
    /// written; the turn is to be discarded.
    LostRace,
}
