//! What the next commit writes of a history. Planning changes nothing; [`History::apply`] follows only when the
//! commit is durable, so memory never runs ahead of the store (D16).

use super::{Draft, History, Waiting, facts};
use crate::message::{DedupId, Item, ItemId, Seq};
use crate::store::{
    DedupLife, INLINE_BYTES, MAX_ACTIONS, MAX_COMMIT_BYTES, ParkedInput, PendingCall, SubscriptionChange,
};

/// Actions that a plan leaves free for what the slice adds: META, choices, dedup rows of inputs without items.
const RESERVED_ACTIONS: usize = 12;

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
    /// The head afterwards.
    pub head: Seq,
    /// The next turn index afterwards.
    pub next_turn: u32,
    /// The current turn's opener afterwards.
    pub turn_id: Option<ItemId>,
    /// Calls without a result afterwards.
    pub pending: Vec<PendingCall>,
    /// Known-safe drafts are left: another commit must follow.
    pub more: bool,
    taken: usize,
}

impl SyncPlan {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.park.is_empty()
    }
}

impl History {
    /// Plans the next commit: parked inputs, then known-safe drafts in order, as far as one transaction
    /// holds them. A response is never split, so no call is committed apart from its siblings.
    pub fn plan(&self) -> SyncPlan {
        let mut plan = SyncPlan {
            head: self.head,
            next_turn: self.next_turn,
            turn_id: self.turn_id.clone(),
            ..SyncPlan::default()
        };
        let mut actions = RESERVED_ACTIONS;
        let mut bytes = 0;
        for waiting in self.unstored() {
            plan.dedup.push((waiting.parked.dedup.clone(), waiting.life()));
            plan.park.push(waiting.parked.clone());
            let subscription = waiting.subscription();
            actions += 2 + usize::from(subscription.is_some());
            bytes += waiting.parked.body.len().min(INLINE_BYTES);
            plan.subscriptions.extend(subscription);
        }
        let mut rest = self.safe.as_slice();
        while let Some((group, behind)) = split_group(rest) {
            let cost: usize = group.iter().map(Draft::actions).sum();
            let weight: usize = group.iter().map(|draft| draft.body.to_raw().len().min(INLINE_BYTES)).sum();
            let full = actions + cost > MAX_ACTIONS || bytes + weight > MAX_COMMIT_BYTES;
            if full && !(plan.is_empty()) {
                break;
            }
            actions += cost;
            bytes += weight;
            for draft in group {
                plan.take(draft, self.epoch);
            }
            rest = behind;
        }
        plan.more = !rest.is_empty();
        plan.pending = self
            .open
            .iter()
            .filter(|open| open.pending.seq < plan.head)
            .map(|open| PendingCall { parked: open.arrived.is_some(), ..open.pending.clone() })
            .collect();
        plan
    }

    /// Takes a plan for granted: its commit is durable.
    pub fn apply(&mut self, plan: SyncPlan) {
        self.safe.drain(..plan.taken);
        self.committed.extend(plan.items);
        self.head = plan.head;
        self.next_turn = plan.next_turn;
        self.turn_id = plan.turn_id;
        let arrived = self.open.iter_mut().filter_map(|open| open.arrived.as_mut());
        for waiting in arrived.chain(&mut self.waiting) {
            waiting.stored |= plan.park.iter().any(|parked| parked.key == waiting.parked.key);
        }
    }

    fn unstored(&self) -> impl Iterator<Item = &Waiting> {
        let arrived = self.open.iter().filter_map(|open| open.arrived.as_ref());
        arrived.chain(&self.waiting).filter(|waiting| !waiting.stored)
    }
}

impl SyncPlan {
    fn take(&mut self, draft: &Draft, epoch: crate::message::Epoch) {
        if draft.opens_turn {
            self.turn_id = Some(ItemId::at(epoch, self.head));
            self.next_turn += 1;
        }
        let facts = facts(draft, self.next_turn.saturating_sub(1), self.turn_id.clone());
        self.items.push(Item::fresh(self.head, draft.body.clone(), facts));
        self.head = self.head.plus(1);
        self.dedup.extend(draft.dedup.clone());
        self.release.extend(draft.release.clone());
        self.subscriptions.extend(draft.subscription.clone());
        self.taken += 1;
    }
}

/// The first draft with everything that must not be committed apart from it.
fn split_group(drafts: &[Draft]) -> Option<(&[Draft], &[Draft])> {
    let (_, behind) = drafts.split_first()?;
    let length = 1 + behind.iter().take_while(|draft| draft.continues_response).count();
    Some(drafts.split_at(length))
}
