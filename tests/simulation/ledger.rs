//! What is truly in the store, commit by commit, and the invariants that a commit must keep (I2, I6, I8).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dormouse::message::{
    CallId, CompactionReport, ContentPart, DedupId, Epoch, Item, ItemBody, MessageId, Seq, SettledBy,
    ThreadId, ToolCallItem,
};
use dormouse::store::{Commit, NewThread, OutboxEntry, PendingCall, Promise, SubscriptionChange, ThreadKind};

use crate::sent::{Kind, Sent};

#[derive(Default)]
pub struct Ledger {
    pub threads: BTreeMap<ThreadId, Thread>,
}

/// One thread as the commits have made it.
#[derive(Default)]
pub struct Thread {
    /// The step of the world in which it was made.
    pub born: usize,
    pub items: BTreeMap<(Epoch, Seq), Arc<str>>,
    pub dedup: BTreeSet<DedupId>,
    pub item_of: BTreeMap<DedupId, Seq>,
    pub calls: BTreeMap<CallId, Call>,
    /// Calls without a result, and the messages that made them.
    pub pending: BTreeMap<CallId, Vec<MessageId>>,
    pub open: Vec<MessageId>,
    pub parked: BTreeMap<String, DedupId>,
    pub promised: BTreeMap<String, OutboxEntry>,
    pub subscriptions: BTreeMap<CallId, Subscription>,
    /// Positions of what the model said.
    pub said: Vec<Seq>,
    /// Made for one event or for a compaction: nobody reads its answers.
    pub silent: bool,
    /// Made for a compaction.
    pub compacts: bool,
    /// Items that a summary stands for.
    pub covered: usize,
    head: Seq,
    last_text: Option<usize>,
}

pub struct Call {
    pub item: ToolCallItem,
    pub settled: Option<Settled>,
    /// The runtime has answered it in the commit that made it: it never leaves the process.
    pub refused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Tool,
    Runtime,
    Marker,
    Event,
}

#[derive(Clone, Copy, Debug)]
pub struct Subscription {
    pub started: usize,
    pub ended: bool,
}

impl Ledger {
    pub fn thread(&self, thread: &ThreadId) -> Option<&Thread> {
        self.threads.get(thread)
    }

    /// Takes a commit that was just written.
    pub fn take(&mut self, step: usize, commit: &Commit, sent: &Sent) -> Result<(), String> {
        let id = &commit.meta.thread;
        let new = !self.threads.contains_key(id);
        let thread = self.threads.entry(id.clone()).or_default();
        if new {
            thread.born = step;
        }
        thread.take(step, commit, sent).map_err(|e| format!("{id}: {e}"))?;
        for child in &commit.children {
            let born = Thread::born(step, child);
            if self.threads.insert(child.meta.thread.clone(), born).is_some() {
                return Err(format!("D4: {} is made twice", child.meta.thread));
            }
        }
        Ok(())
    }
}

fn causes(pending: &[PendingCall]) -> BTreeMap<CallId, Vec<MessageId>> {
    pending.iter().map(|pending| (pending.call.clone(), pending.cause.clone())).collect()
}

impl Thread {
    /// A child as its parent's commit has made it.
    fn born(step: usize, child: &NewThread) -> Self {
        let mut thread = Self {
            born: step,
            head: child.meta.head,
            silent: matches!(child.meta.kind, ThreadKind::Event | ThreadKind::Compaction),
            compacts: child.meta.kind == ThreadKind::Compaction,
            pending: causes(&child.meta.pending),
            parked: child.parked.iter().map(|parked| (parked.key.clone(), parked.dedup.clone())).collect(),
            ..Self::default()
        };
        for item in &child.items {
            thread.items.insert((child.meta.epoch, item.seq), item.raw.clone());
            match &item.body {
                // Its own first calls never leave the process.
                ItemBody::ToolCall(call) => {
                    let made = Call { item: call.clone(), settled: None, refused: true };
                    thread.calls.insert(call.call_id.clone(), made);
                }
                ItemBody::ToolResult(result) => {
                    if let Some(call) = thread.calls.get_mut(&result.call_id) {
                        call.settled = Some(Settled::Runtime);
                    }
                }
                _ => {}
            }
        }
        thread
    }

    fn take(&mut self, step: usize, commit: &Commit, sent: &Sent) -> Result<(), String> {
        for (dedup, _) in &commit.dedup {
            if !self.dedup.insert(dedup.clone()) {
                return Err(format!("I2: a second dedup row for {dedup}"));
            }
            if sent.get(&commit.meta.thread, dedup).is_none() && !is_of_a_dead_message(dedup, commit) {
                return Err(format!("I2: a dedup row for {dedup}, which nobody sent"));
            }
        }
        for item in &commit.items {
            self.item(commit, item, sent)?;
        }
        if commit.meta.head != self.head {
            return Err(format!("I6: the head is {} behind seq {}", commit.meta.head, self.head));
        }
        self.settle_by_absence(commit)?;
        for key in &commit.release {
            self.parked.remove(key).ok_or_else(|| format!("I2: released {key}, which is not parked"))?;
        }
        for parked in &commit.park {
            self.parked.insert(parked.key.clone(), parked.dedup.clone());
        }
        self.rows_have_effects(commit, sent)?;
        for change in commit.subscription_changes() {
            match change {
                SubscriptionChange::Start(call) => {
                    self.subscriptions.insert(call.clone(), Subscription { started: step, ended: false });
                }
                SubscriptionChange::End(call) => {
                    let started = self.subscriptions.get(call).map_or(step, |known| known.started);
                    self.subscriptions.insert(call.clone(), Subscription { started, ended: true });
                }
            }
        }
        for entry in &commit.meta.outbox {
            self.promised.entry(entry.id.clone()).or_insert_with(|| entry.clone());
        }
        self.open.clone_from(&commit.meta.open);
        Ok(())
    }

    fn item(&mut self, commit: &Commit, item: &Item, sent: &Sent) -> Result<(), String> {
        if item.seq != self.head {
            return Err(format!("I6: seq {} is written where {} is due", item.seq, self.head));
        }
        self.head = self.head.plus(1);
        if self.items.insert((commit.meta.epoch, item.seq), item.raw.clone()).is_some() {
            return Err(format!("I6: seq {} is written twice", item.seq));
        }
        if let Some(dedup) = &item.facts.dedup
            && let Some(other) = self.item_of.insert(dedup.clone(), item.seq)
        {
            return Err(format!("I2: {dedup} is in at seq {other} and at seq {}", item.seq));
        }
        match &item.body {
            ItemBody::User(user) => {
                let kind = item.facts.dedup.as_ref().and_then(|d| sent.get(&commit.meta.thread, d));
                match kind {
                    // Given up on, though another delivery had refused it before.
                    Some(Kind::Text { refusable: true, .. }) => {}
                    Some(Kind::Text { order, token, .. }) => {
                        let text = ContentPart::join_text(&user.parts);
                        if !text.contains(token.as_str()) && !text.contains("was left out") {
                            return Err(format!("I1: the text {token} became {text:?}"));
                        }
                        // What died in the queue is given up on when the drain says so, or is in by its next message.
                        let thread = &commit.meta.thread;
                        let again = item.facts.dedup.as_ref().is_some_and(|id| sent.has_died(thread, id));
                        let died = says_that_it_died(commit) || again;
                        if !died && self.last_text.is_some_and(|last| last > *order) {
                            return Err(format!("order: {token} stands behind a text that was sent later"));
                        }
                        self.last_text = self.last_text.max(Some(*order));
                    }
                    Some(Kind::Result { .. }) => {}
                    None if item.facts.dedup.as_ref().is_some_and(|d| is_of_a_dead_message(d, commit)) => {}
                    other => return Err(format!("I2: a user item from {other:?}")),
                }
            }
            ItemBody::ToolCall(call) => {
                let minted = CallId::mint(&commit.meta.thread, commit.meta.epoch, item.seq);
                if call.call_id != minted {
                    return Err(format!("I2: the call at seq {} has the id {}", item.seq, call.call_id));
                }
                self.said.push(item.seq);
                let call = Call { item: call.clone(), settled: None, refused: false };
                self.calls.insert(minted, call);
            }
            ItemBody::ToolResult(result) => {
                let how = match result.settled_by {
                    SettledBy::Tool => Settled::Tool,
                    SettledBy::Runtime => Settled::Runtime,
                };
                let here = |call: &Call| {
                    commit.items.iter().any(
                        |item| matches!(&item.body, ItemBody::ToolCall(c) if c.call_id == call.item.call_id),
                    )
                };
                let call = self.settle(&result.call_id, how)?;
                call.refused = how == Settled::Runtime && here(call);
            }
            ItemBody::Interrupt(marker) => {
                self.settle(&marker.call_id, Settled::Marker)?;
            }
            ItemBody::Assistant(_) => self.said.push(item.seq),
            ItemBody::Reasoning(_) | ItemBody::Event(_) => {}
            ItemBody::System(_)
            | ItemBody::BackendToolCall(_)
            | ItemBody::State(_)
            | ItemBody::Unknown { .. } => {
                return Err(format!("an item of kind {}", item.body.kind()));
            }
        }
        Ok(())
    }

    fn settle(&mut self, id: &CallId, how: Settled) -> Result<&mut Call, String> {
        let call = self.calls.get_mut(id).ok_or_else(|| format!("I2: {id} is settled and was never made"))?;
        if let Some(before) = call.settled {
            return Err(format!("I2: {id} is settled {how:?} and was settled {before:?}"));
        }
        call.settled = Some(how);
        Ok(call)
    }

    /// A call that is pending no longer was settled by this commit, or by an event in it.
    fn settle_by_absence(&mut self, commit: &Commit) -> Result<(), String> {
        let event = commit.items.iter().any(|item| matches!(item.body, ItemBody::Event(_)));
        let pending = causes(&commit.meta.pending);
        for id in pending.keys() {
            match self.calls.get(id) {
                None => return Err(format!("{id} is pending and was never made")),
                Some(call) if call.settled.is_some() => {
                    return Err(format!("{id} is pending and was settled {:?}", call.settled));
                }
                Some(_) => {}
            }
        }
        for (id, call) in &mut self.calls {
            if call.settled.is_none() && !pending.contains_key(id) {
                if !event {
                    return Err(format!("I4: {id} has no result and is not pending"));
                }
                call.settled = Some(Settled::Event);
            }
        }
        self.pending = pending;
        Ok(())
    }

    /// A dedup row means that its input has an effect in the same commit, is parked by it, or has none by right.
    fn rows_have_effects(&self, commit: &Commit, sent: &Sent) -> Result<(), String> {
        let thread = &commit.meta.thread;
        for (dedup, _) in &commit.dedup {
            let parked = commit.park.iter().any(|parked| &parked.dedup == dedup);
            let item = commit.items.iter().any(|item| item.facts.dedup.as_ref() == Some(dedup));
            let kind = sent.get(thread, dedup);
            let without = match kind {
                Some(kind) => self.may_lack_effect(kind, commit),
                None => is_of_a_dead_message(dedup, commit),
            };
            let child = matches!(kind, Some(Kind::Event { .. })) && !commit.children.is_empty();
            if !(parked || item || child || without) {
                return Err(format!("I1: {dedup} counts as processed and has no effect"));
            }
        }
        Ok(())
    }

    fn may_lack_effect(&self, kind: &Kind, commit: &Commit) -> bool {
        let given_up = gives_up(commit);
        match kind {
            Kind::Result { .. } | Kind::Event { .. } | Kind::Consent { .. } | Kind::Choice { .. }
                if given_up =>
            {
                true
            }
            Kind::Text { refusable, .. } => *refusable,
            Kind::Event { call } => self.subscriptions.get(call).is_none_or(|known| known.ended),
            // Nobody waits for it: it is the first of a batch that only goes on with what an earlier slice left.
            Kind::Consent { call } | Kind::Choice { call } | Kind::Result { call }
                if !self.pending.contains_key(call) =>
            {
                true
            }
            Kind::Consent { call } | Kind::Choice { call } => {
                commit.meta.outbox.iter().any(|entry| match &entry.promise {
                    Promise::OAuth { call: of, .. } | Promise::Choice { call: of } => of == call,
                    _ => false,
                })
            }
            Kind::Release | Kind::Undeliverable | Kind::Compact | Kind::Compacted => true,
            Kind::Result { .. } | Kind::Junk => false,
        }
    }

    /// Whether a result of `call` is parked.
    pub fn has_parked_result(&self, call: &CallId, sent: &Sent, thread: &ThreadId, by: ParkedBy) -> bool {
        self.parked.values().any(|dedup| {
            let stands_in = dedup.as_str().starts_with("dispatch-failed");
            let of_call = matches!(sent.get(thread, dedup), Some(Kind::Result { call: of }) if of == call);
            of_call && (by == ParkedBy::Anybody || !stands_in)
        })
    }
}

/// Whose result is parked: the runtime answers where a tool could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedBy {
    Tool,
    Anybody,
}

/// Whether a commit tells the user that an input is left out.
pub fn gives_up(commit: &Commit) -> bool {
    says_that_it_died(commit) || notices(commit).any(|text| text.contains("after several attempts"))
}

/// Whether a commit tells the user that a message died in the queue.
fn says_that_it_died(commit: &Commit) -> bool {
    notices(commit).any(|text| text.contains("put aside for an operator"))
}

/// Whether an input is given up on under the id of its message, as it is where nobody could count its attempts.
fn is_of_a_dead_message(dedup: &DedupId, commit: &Commit) -> bool {
    dedup.as_str().starts_with("m-") && (says_that_it_died(commit) || abandons(commit))
}

/// Whether a commit ends a compaction that is given up on.
fn abandons(commit: &Commit) -> bool {
    let given_up =
        |report: &CompactionReport| report.failure.as_ref().is_some_and(|why| why.contains("given up on"));
    commit
        .meta
        .outbox
        .iter()
        .any(|entry| matches!(&entry.promise, Promise::Compacted { report, .. } if given_up(report)))
}

fn notices(commit: &Commit) -> impl Iterator<Item = &str> {
    commit.meta.outbox.iter().filter_map(|entry| match &entry.promise {
        Promise::Notice { text } => Some(text.as_str()),
        _ => None,
    })
}
