//! What the next commit writes of a history. Planning changes nothing; [`History::apply`] follows only when the
//! commit is durable, so memory never runs ahead of the store (D16).

use std::collections::BTreeSet;

use super::{Draft, History, Waiting, facts, turn};
use crate::message::{DedupId, Epoch, Item, ItemId, Seq, ThreadId};
use crate::store::{
    DedupLife, INLINE_BYTES, MAX_ACTIONS, MAX_COMMIT_BYTES, ParkedInput, PendingCall, Position, Promise,
    Span, SubscriptionChange,
};

/// Actions that a plan leaves free for what the slice adds: META, choices, dedup rows of inputs without items.
const RESERVED_ACTIONS: usize = 22;

// A response is committed whole, also if every call of it is refused and answered at once.
const _: () = assert!(RESERVED_ACTIONS + turn::MAX_PARTS + 2 * turn::MAX_BUFFERED_CALLS <= MAX_ACTIONS);

/// One commit's worth of a history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SyncPlan {
    /// Items with their final seqs.
    pub items: Vec<Item>,
    /// Dedup rows.
    pub dedup: Vec<(DedupId, DedupLife)>,
    /// Inputs to keep aside.
    pub park: Vec<ParkedInput>,
    /// Parked rows that are in now.
    pub release: Vec<String>,
    /// Subscriptions opened and ended.
    pub subscriptions: Vec<SubscriptionChange>,
    /// What taking these inputs promises.
    pub promises: Vec<Promise>,
    /// The log afterwards.
    pub epoch: Epoch,
    /// What it inherits.
    pub base: Vec<Span>,
    /// The head afterwards.
    pub head: Seq,
    /// The next turn index afterwards.
    pub next_turn: u32,
    /// The current turn's opener afterwards.
    pub turn_id: Option<ItemId>,
    /// Where the newest state stands afterwards.
    pub state: Option<Position>,
    /// Calls without a result afterwards.
    pub pending: Vec<PendingCall>,
    /// Known-safe drafts are left: another commit must follow.
    pub more: bool,
    taken: usize,
}

impl SyncPlan {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
            && self.park.is_empty()
            && self.release.is_empty()
            && self.subscriptions.is_empty()
    }
}

impl History {
    /// Plans the next commit: parked inputs, then known-safe drafts in order, as far as one transaction
    /// holds them. A response is never split, so no call is committed apart from its siblings.
    pub fn plan(&self) -> SyncPlan {
        let mut plan = SyncPlan {
            epoch: self.epoch,
            base: self.base.clone(),
            release: self.dropped.clone(),
            subscriptions: self.ended.clone(),
            head: self.head,
            next_turn: self.next_turn,
            turn_id: self.turn_id.clone(),
            state: self.state.clone(),
            ..SyncPlan::default()
        };
        let actions = (MAX_ACTIONS - RESERVED_ACTIONS).saturating_sub(self.dropped.len() + self.ended.len());
        let mut room = Room { actions, bytes: MAX_COMMIT_BYTES };
        for waiting in self.unstored() {
            let subscription = waiting.subscription();
            if !room
                .take(2 + usize::from(subscription.is_some()), waiting.parked.body.len().min(INLINE_BYTES))
            {
                plan.more = true;
                break;
            }
            plan.dedup.push((waiting.parked.dedup.clone(), waiting.life()));
            plan.park.push(waiting.parked.clone());
            plan.subscriptions.extend(subscription);
            plan.promises.extend(waiting.promise());
        }
        let mut rest = self.safe.as_slice();
        while let Some((group, behind)) = split_group(rest) {
            let cost: usize = group.iter().map(Draft::actions).sum();
            let weight: usize = group.iter().map(|draft| draft.body.to_raw().len().min(INLINE_BYTES)).sum();
            // A plan that holds nothing takes what there is: a group fits, by the bounds on a response.
            if plan.more || (!room.take(cost, weight) && !plan.is_empty()) {
                break;
            }
            for draft in group {
                plan.take(draft, &self.thread, self.epoch);
            }
            rest = behind;
        }
        plan.more |= !rest.is_empty();
        plan.pending = self.pending_behind(&plan, rest);
        plan
    }

    /// Calls without a committed result once `plan` is durable: those that are open, and those whose result,
    /// marker or interrupting event is still a draft. A crash then finds them as they were.
    fn pending_behind(&self, plan: &SyncPlan, rest: &[Draft]) -> Vec<PendingCall> {
        let drafts = rest.iter().chain(&self.unvalidated).flat_map(|draft| draft.settles.iter().cloned());
        let open = self.open.iter().map(|open| {
            let arrived = open.arrived.as_ref();
            let parks = arrived.is_some_and(|waiting| plan.parks(&waiting.parked.key));
            PendingCall { parked: open.stored_state().parked || parks, ..open.pending.clone() }
        });
        let mut pending: Vec<PendingCall> =
            drafts.chain(open).filter(|pending| pending.seq < plan.head).collect();
        pending.sort_by_key(|pending| pending.seq);
        pending
    }

    /// Takes a plan for granted: its commit is durable.
    pub fn apply(&mut self, plan: SyncPlan) {
        self.moved = false;
        self.dropped.clear();
        self.ended.clear();
        self.safe.drain(..plan.taken);
        self.committed.extend(plan.items);
        self.head = plan.head;
        self.next_turn = plan.next_turn;
        self.turn_id = plan.turn_id;
        self.state = plan.state;
        let parked: BTreeSet<&str> = plan.park.iter().map(|parked| parked.key.as_str()).collect();
        let arrived = self.open.iter_mut().filter_map(|open| open.arrived.as_mut());
        for waiting in arrived.chain(&mut self.waiting) {
            waiting.stored |= parked.contains(waiting.parked.key.as_str());
        }
    }

    fn unstored(&self) -> impl Iterator<Item = &Waiting> {
        let arrived = self.open.iter().filter_map(|open| open.arrived.as_ref());
        arrived.chain(&self.waiting).filter(|waiting| !waiting.stored)
    }
}

/// What is left of one transaction.
struct Room {
    actions: usize,
    bytes: usize,
}

impl Room {
    /// Takes the room if there is that much; text above [`INLINE_BYTES`] is kept in rows of its own.
    fn take(&mut self, actions: usize, bytes: usize) -> bool {
        let left = self.actions.checked_sub(actions).zip(self.bytes.checked_sub(bytes));
        if let Some((actions, bytes)) = left {
            *self = Self { actions, bytes };
        }
        left.is_some()
    }
}

impl SyncPlan {
    fn parks(&self, key: &str) -> bool {
        self.park.iter().any(|parked| parked.key == key)
    }

    fn take(&mut self, draft: &Draft, thread: &ThreadId, epoch: Epoch) {
        if draft.opens_turn {
            self.turn_id = Some(ItemId::at(epoch, self.head));
            // A row may say that this is the last one there can be.
            self.next_turn = self.next_turn.saturating_add(1);
        }
        if draft.body.state().is_some() {
            self.state = Some(Position { thread: thread.clone(), epoch, seq: self.head });
        }
        let facts = facts(draft, self.next_turn.saturating_sub(1), self.turn_id.clone());
        self.items.push(Item::fresh(self.head, draft.body.clone(), facts));
        self.head = self.head.plus(1);
        self.dedup.extend(draft.dedup.clone());
        self.release.extend(draft.release.clone());
        self.subscriptions.extend(draft.subscription.clone());
        self.promises.extend(draft.promise.clone());
        self.taken += 1;
    }
}

/// The first draft with everything that must not be committed apart from it.
fn split_group(drafts: &[Draft]) -> Option<(&[Draft], &[Draft])> {
    let (_, behind) = drafts.split_first()?;
    let length = 1 + behind.iter().take_while(|draft| draft.continues_response).count();
    Some(drafts.split_at(length))
}
