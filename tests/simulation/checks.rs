//! What must hold when something leaves (I3), when a batch is acknowledged (I1), and when the world is at rest
//! (I1, I4, I7).

use std::pin::pin;
use std::task::{Context, Poll};

use dormouse::compaction::policy;
use dormouse::message::{
    CallId, DedupId, InputContent, InputMessage, MessageId, OutputMessage, Seq, ThreadId,
};
use dormouse::store::{ConversationStore, OutboxEntry, Promise, StateStore, StoreError, behind};
use dormouse::tools::Invocation;
use futures::FutureExt;

use crate::ledger::{ParkedBy, Settled, Thread};
use crate::queue::Delivered;
use crate::sent::Kind;
use crate::sim::Sim;

/// Polls after which a store in memory that has not answered never will.
const MOST_POLLS: usize = 10_000;

/// What the store in memory answers: it may give way, but waits for nobody.
fn at_once<T>(asking: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
    let mut asking = pin!(asking);
    let mut cx = Context::from_waker(futures::task::noop_waker_ref());
    for _ in 0..MOST_POLLS {
        if let Poll::Ready(answer) = asking.as_mut().poll(&mut cx) {
            return answer.map_err(|e| format!("the store in memory fails: {e}"));
        }
    }
    Err("the store in memory does not answer".to_owned())
}

impl Sim {
    /// A call leaves the process.
    pub fn left(&mut self, call: &Invocation) {
        let thread = self.ledger.thread(&call.thread);
        let committed = thread.and_then(|thread| thread.calls.get(&call.call));
        let held = match committed {
            None => Err(format!("I3: {} leaves and is not committed", call.call)),
            Some(known) if known.refused => Err(format!("I3: {} leaves, but was refused", call.call)),
            Some(known) => {
                let arguments = known.item.arguments.trim();
                let same = arguments == call.arguments || (arguments.is_empty() && call.arguments == "{}");
                match same && known.item.name == call.name {
                    true => Ok(()),
                    false => Err(format!("I3: {} leaves as something else: {call:?}", call.call)),
                }
            }
        };
        self.hold(held);
    }

    pub fn cancel(&mut self, thread: &ThreadId, id: &CallId) {
        let promises = self.ledger.thread(thread).map(|thread| &thread.promised);
        let promised = promises.is_some_and(|promised| {
            promised.values().any(|e| matches!(&e.promise, Promise::Cancel { call, .. } if call == id))
        });
        if !promised {
            self.broken(format!("I3: {id} is cancelled, which no commit contains"));
        }
        *self.cancelled.entry(id.clone()).or_default() += 1;
    }

    /// A message goes to the output queue.
    pub fn publish(&mut self, message: &OutputMessage) {
        self.note(|| format!("  publish {} {:?}", message.message_id, message.text));
        let thread = self.ledger.thread(&message.thread_id);
        let promised = thread.is_some_and(|thread| thread.promised.contains_key(&message.message_id));
        let direct = ["refused-", "unreadable-"].iter().any(|kind| message.message_id.starts_with(kind));
        if !promised && !direct {
            self.broken(format!("I3: {:?} is published and no commit contains it", message.text));
        }
        let key = (message.thread_id.clone(), message.message_id.clone());
        if let Some(before) = self.published.insert(key, message.text.clone())
            && before != message.text
        {
            self.broken(format!("I4: {} was {before:?} and is now {:?}", message.message_id, message.text));
        }
    }

    fn is_refused(&self, thread: &ThreadId, dedup: &DedupId) -> bool {
        let id = DedupId::derive("refused", &[thread.as_str(), dedup.as_str()]);
        self.published.contains_key(&(thread.clone(), id.as_str().to_owned()))
    }

    /// A slice that began at `started` says that it is done with a message.
    pub fn acknowledged(&mut self, message: &Delivered, started: usize) {
        let Delivered { group, dedup, .. } = message;
        let Some(kind) = self.sent.get(group, dedup).cloned() else {
            return self.broken(format!("{dedup} was never sent"));
        };
        let fresh = Thread::default();
        let thread = self.ledger.thread(group).unwrap_or(&fresh);
        if thread.dedup.contains(dedup) || self.kept.contains(&message.id) {
            return;
        }
        let unknown_thread = self.ledger.thread(group).is_none_or(|thread| thread.born > started);
        let why = match &kind {
            Kind::Text { refusable: true, .. } if self.is_refused(group, dedup) => return,
            Kind::Text { .. } => "a person's text",
            Kind::Junk => "a body that nobody can read",
            Kind::Release | Kind::Undeliverable | Kind::Compacted => return,
            _ if unknown_thread => return,
            Kind::Compact => "somebody's wish for a compaction",
            Kind::Result { call } => match thread.calls.get(call).map(|call| call.settled) {
                None | Some(Some(Settled::Tool)) => return,
                Some(None) if thread.has_parked_result(call, &self.sent, group, ParkedBy::Tool) => return,
                Some(_) => "a result whose call the tool has not answered",
            },
            Kind::Event { call } => match thread.subscriptions.get(call) {
                None => return,
                Some(known) if known.ended || known.started > started => return,
                Some(_) => "an event of an active subscription",
            },
            Kind::Consent { call } | Kind::Choice { call }
                if !thread.pending.contains_key(call)
                    || thread.has_parked_result(call, &self.sent, group, ParkedBy::Anybody) =>
            {
                return;
            }
            Kind::Consent { .. } | Kind::Choice { .. } => "what a pending call asks for",
        };
        self.broken(format!("I1: {dedup} is acknowledged without effect: {why}"));
    }

    /// The drain says that it has a message.
    pub fn drained(&mut self, message: &Delivered) {
        let kept = self.store.dead_letter(&message.group, &MessageId::new(&message.id)).now_or_never();
        if !matches!(kept, Some(Ok(Some(_)))) {
            self.broken(format!("I1: {} is drained and not kept", message.id));
        }
    }

    /// Dead words of dead messages, and those messages: nobody heard of them.
    fn unheard(&self) -> Vec<&str> {
        let mut unheard = Vec::new();
        for word in &self.dead {
            let content = InputMessage::parse(word.body.as_bytes()).map(|message| message.content);
            if let Ok(InputContent::Undeliverable(of)) = content {
                let dead = self.dead.iter().find(|message| message.id == of.message_id.as_str());
                unheard.extend([word.id.as_str()]);
                unheard.extend(dead.map(|message| message.id.as_str()));
            }
        }
        unheard
    }

    /// Everything that must be true once nothing is left to do.
    pub fn at_rest(&mut self) {
        let held = self.all_inputs_are_done().and_then(|()| self.all_promises_are_kept());
        self.hold(held);
        for thread in self.ledger.threads.keys().cloned().collect::<Vec<_>>() {
            let held = self.is_whole(&thread);
            self.hold(held);
        }
    }

    /// Every original is covered by the summary that META names, or in the view, and none is both; what is covered
    /// stays covered.
    pub fn is_whole(&mut self, id: &ThreadId) -> Result<(), String> {
        let store = self.store.clone();
        let Some(meta) = at_once(store.meta(id))? else { return Ok(()) };
        let whole = at_once(store.load(id, &[]))?;
        let view = at_once(store.load_for_request(id, &[]))?;
        if view.unread + view.items.len() != whole.items.len() || view.items != whole.items[view.unread..] {
            return Err(format!("C13: of {id}, {} are covered, {} shown", view.unread, view.items.len()));
        }
        let covered = meta
            .compaction
            .newest
            .as_ref()
            .map_or(Some(0), |newest| behind(&meta.spans(), &newest.through).map(|(covered, _)| covered));
        let number = view.generation.as_ref().map(|generation| generation.at.id.number);
        if covered != Some(view.unread)
            || number != meta.compaction.newest.as_ref().map(|newest| newest.id.number)
        {
            return Err(format!(
                "C32: {id} shows {number:?} for {} items, META says {covered:?}",
                view.unread
            ));
        }
        if meta.compaction.run.attempts > policy::MAX_ATTEMPTS {
            return Err(format!("C27: {id}: {} attempts", meta.compaction.run.attempts));
        }
        let before =
            self.ledger.threads.get_mut(id).map(|thread| std::mem::replace(&mut thread.covered, view.unread));
        match before.is_some_and(|before| before > view.unread) {
            true => Err(format!("C13: {id}: what was covered is shown again")),
            false => Ok(()),
        }
    }

    fn all_inputs_are_done(&self) -> Result<(), String> {
        let unheard = self.unheard();
        for (group, dedup, kind) in self.sent.iter() {
            let Kind::Text { token, refusable, .. } = kind else { continue };
            let thread = self.ledger.thread(group);
            let stored = |id: &DedupId| thread.is_some_and(|thread| thread.item_of.contains_key(id));
            // A message whose attempts nobody could count is given up on under its own id.
            let dead =
                self.dead.iter().filter(|message| &message.dedup == dedup && &message.group == group).any(
                    |message| stored(&DedupId::new(&message.id)) || unheard.contains(&message.id.as_str()),
                );
            let stored = stored(dedup);
            let refused = *refusable && self.is_refused(group, dedup);
            if !(stored || dead || refused) {
                return Err(format!("I1: {token} of {group} is lost"));
            }
        }
        Ok(())
    }

    /// A message that died although no store had ever taken the count of its redeliveries: no slice could know that it
    /// had left something to send.
    fn is_uncounted(&self, thread: &ThreadId, cause: &MessageId) -> bool {
        let died = self.dead.iter().any(|message| message.id == cause.as_str());
        let counted = self.store.failed_input(thread, cause).now_or_never();
        died && matches!(counted, Some(Ok(None)))
    }

    /// Whether a promise is still in the outbox of its thread, marked so that the next slice sends it.
    fn is_owed(&self, thread: &ThreadId, entry: &OutboxEntry) -> bool {
        let meta = self.store.meta(thread).now_or_never().and_then(Result::ok).flatten();
        meta.is_some_and(|meta| {
            meta.outbox.iter().any(|owed| owed.id == entry.id)
                && entry.cause.iter().any(|cause| meta.redelivered.contains(cause))
        })
    }

    fn all_promises_are_kept(&self) -> Result<(), String> {
        let dead = self.unheard();
        for (id, thread) in &self.ledger.threads {
            let open: Vec<_> = thread.open.iter().filter(|c| !dead.contains(&c.as_str())).collect();
            if !open.is_empty() {
                return Err(format!("I7: {id}: {open:?} are still open"));
            }
            let word_lost = self.dead.iter().any(|one| &one.group == id && dead.contains(&one.id.as_str()));
            if thread.pending.is_empty() && !thread.parked.is_empty() && !word_lost {
                return Err(format!("I7: {id}: {:?} are parked for ever", thread.parked));
            }
            let closed = |id| {
                self.store.meta(id).now_or_never().and_then(Result::ok).flatten().is_some_and(|m| m.closed)
            };
            if thread.compacts && !word_lost && !closed(id) {
                return Err(format!("I7: {id} neither compacts any more nor has ended"));
            }
            for entry in thread.promised.values() {
                let gone = |cause: &MessageId| dead.contains(&cause.as_str()) || self.is_uncounted(id, cause);
                // What was to wake the thread died, and so did the word of that: the next input sends what is owed.
                if entry.cause.iter().any(gone) || (word_lost && self.is_owed(id, entry)) {
                    continue;
                }
                let published = self.published.contains_key(&(id.clone(), entry.id.clone()));
                let lost = match &entry.promise {
                    Promise::Reply { from, to, .. } => {
                        let said = thread.said.iter().any(|seq| {
                            seq >= from
                                && seq < to
                                && !thread.calls.values().any(|call| {
                                    call.settled == Some(Settled::Runtime) && {
                                        let minted = CallId::mint(id, dormouse::message::Epoch(0), *seq);
                                        call.item.call_id == minted
                                    }
                                })
                        });
                        said && !published && !thread.silent
                    }
                    Promise::Notice { .. } | Promise::OAuth { .. } | Promise::Answer { .. } => !published,
                    // A question that is over before it was shown is not shown any more.
                    Promise::Choice { call } => {
                        !published && thread.calls.get(call).is_none_or(|call| call.settled.is_none())
                    }
                    Promise::Call { call } => {
                        let settled = thread.calls.get(call).is_some_and(|call| call.settled.is_some());
                        // A result without a dispatch says that the dispatch was not possible.
                        let answered =
                            settled || thread.has_parked_result(call, &self.sent, id, ParkedBy::Anybody);
                        !answered && !self.dispatched.contains_key(call)
                    }
                    Promise::Cancel { call, server } => {
                        server.is_some() && !self.cancelled.contains_key(call)
                    }
                    Promise::Wake { thread } => self.sent.get(thread, &DedupId::new(&entry.id)).is_none(),
                    Promise::Report { to, .. }
                    | Promise::Message { to, .. }
                    | Promise::End { thread: to }
                    | Promise::Compacted { to, .. } => self.sent.get(to, &DedupId::new(&entry.id)).is_none(),
                    Promise::Compact { .. } => self.sent.get(id, &DedupId::new(&entry.id)).is_none(),
                    Promise::Release
                    | Promise::Schedule { .. }
                    | Promise::RunEnd { .. }
                    | Promise::Closed
                    | Promise::Unknown(_) => false,
                };
                if lost {
                    return Err(format!("I4: {id}: {entry:?} was never sent"));
                }
            }
            let replied = |seq: Seq| {
                thread.promised.values().any(
                    |entry| matches!(&entry.promise, Promise::Reply { from, to, .. } if seq >= *from && seq < *to),
                )
            };
            if let Some(seq) = thread.said.iter().find(|seq| !replied(**seq)) {
                return Err(format!("I4: {id}: nobody promised to publish seq {seq}"));
            }
            for (call, known) in &thread.calls {
                let answered = known.settled.is_some()
                    || thread.has_parked_result(call, &self.sent, id, ParkedBy::Anybody);
                // Its message died, and so did the word of it: the next input settles what was open for it.
                let of_dead =
                    |causes: &[MessageId]| causes.iter().any(|cause| dead.contains(&cause.as_str()));
                let promised = thread.promised.values().any(|entry| {
                    matches!(&entry.promise, Promise::Call { call: of } if of == call)
                        && of_dead(&entry.cause)
                });
                let unheard = promised || thread.pending.get(call).is_some_and(|causes| of_dead(causes));
                if !answered && !unheard && !known.refused && !self.dispatched.contains_key(call) {
                    return Err(format!("I4: {id}: {call} ({}) was never dispatched", known.item.name));
                }
            }
        }
        Ok(())
    }
}
