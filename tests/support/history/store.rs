//! A store that is nothing but its rules: what a plan writes is checked and kept, and a history can be
//! rebuilt from it at any time, as after a crash.

use std::collections::{BTreeMap, BTreeSet};

use dormouse::history::{History, SyncPlan};
use dormouse::message::{CallId, DedupId, InputContent, InputMessage, Item, ItemBody, Seq};
use dormouse::store::{Loaded, MAX_ACTIONS, Meta, ParkedInput};

use super::say::thread;

/// What a slice adds to a plan: META, and at most ten dedup rows and a question of inputs without items.
const OTHER_ACTIONS: usize = 12;

/// The rows of one thread.
#[derive(Clone, Debug)]
pub struct Rows {
    pub meta: Meta,
    pub items: Vec<Item>,
    pub dedup: BTreeSet<DedupId>,
    pub parked: BTreeMap<String, ParkedInput>,
    pub released: BTreeSet<String>,
    /// Calls of one response: never split over two commits.
    pub responses: Vec<Vec<CallId>>,
    pub commits: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            meta: Meta::new_root(thread(), "agent", None, 0),
            items: Vec::new(),
            dedup: BTreeSet::new(),
            parked: BTreeMap::new(),
            released: BTreeSet::new(),
            responses: Vec::new(),
            commits: 0,
        }
    }
}

impl Rows {
    /// Rows that were there before.
    pub fn of(head: Seq, items: Vec<Item>) -> Self {
        let mut rows = Self { items, ..Self::default() };
        rows.meta.head = head;
        rows
    }

    /// A history as a new slice loads it.
    pub fn load(&self) -> History {
        let mut parked: Vec<ParkedInput> = self.parked.values().cloned().collect();
        parked.sort_by(ParkedInput::arrival_order);
        let loaded = Loaded {
            root_metadata: None,
            meta: Some(self.meta.clone()),
            items: self.items.clone(),
            processed: BTreeSet::new(),
            parked,
            choices: Vec::new(),
            stop: None,
            ..Loaded::default()
        };
        History::new(thread(), loaded)
    }

    /// Writes all that is known-safe or waits, in as many commits as it takes.
    pub fn sync(&mut self, history: &mut History) {
        for _ in 0..20 {
            let plan = history.plan();
            let more = plan.more;
            if !plan.is_empty() {
                self.write(&plan);
            }
            history.apply(plan);
            if !more {
                assert!(!history.has_unsynced(), "a sync leaves something behind");
                return;
            }
        }
        panic!("a sync does not end");
    }

    /// One commit, under the rules of every store and of a sound thread.
    pub fn write(&mut self, plan: &SyncPlan) {
        self.write_unchecked(plan);
        self.check_pending();
    }

    /// One commit, under the rules of every store.
    pub fn write_unchecked(&mut self, plan: &SyncPlan) {
        let actions = plan.items.len()
            + plan.dedup.len()
            + plan.park.len()
            + plan.release.len()
            + plan.subscriptions.len();
        assert!(actions + OTHER_ACTIONS <= MAX_ACTIONS, "{actions} actions");
        for (n, item) in plan.items.iter().enumerate() {
            assert_eq!(item.seq, self.meta.head.plus(n), "seqs are contiguous");
        }
        assert_eq!(plan.head, self.meta.head.plus(plan.items.len()));
        for (id, _) in &plan.dedup {
            assert!(self.dedup.insert(id.clone()), "I2: dedup row {id} is written twice");
        }
        for parked in &plan.park {
            assert!(!self.released.contains(&parked.key), "{} is parked again", parked.key);
            assert!(self.parked.insert(parked.key.clone(), parked.clone()).is_none());
        }
        for key in &plan.release {
            assert!(self.parked.remove(key).is_some(), "parked row {key} is deleted twice");
            self.released.insert(key.clone());
        }
        let written: BTreeSet<&CallId> = plan.items.iter().filter_map(|item| call_of(&item.body)).collect();
        for response in &self.responses {
            let count = response.iter().filter(|call| written.contains(call)).count();
            assert!(count == 0 || count == response.len(), "a response is split over two commits");
        }
        self.items.extend(plan.items.iter().cloned());
        self.meta.head = plan.head;
        self.meta.next_turn = plan.next_turn;
        self.meta.turn_id.clone_from(&plan.turn_id);
        self.meta.pending.clone_from(&plan.pending);
        self.commits += 1;
    }

    /// A committed call is pending, or something committed has settled it; never both.
    fn check_pending(&self) {
        for (at, item) in self.items.iter().enumerate() {
            let Some(call) = call_of(&item.body) else { continue };
            let settled = settlements(self.items.iter().map(|item| &item.body), call);
            let pending = self.meta.pending.iter().filter(|pending| &pending.call == call).count();
            assert!(settled + pending <= 1, "{call}: settled {settled} times, pending {pending} times");
            let events = self.items[at..].iter().any(|item| matches!(item.body, ItemBody::Event(_)));
            assert!(settled + pending == 1 || events, "{call} is neither settled nor pending: it is lost");
        }
        assert!(self.meta.pending.is_sorted_by_key(|pending| pending.seq));
        for pending in &self.meta.pending {
            let row = self.parked.values().any(|row| answers(row, &pending.call));
            assert_eq!(pending.parked, row, "{}: marked parked, and whether there is a row", pending.call);
        }
    }

    /// All committed calls, in order.
    pub fn calls(&self) -> Vec<CallId> {
        self.items.iter().filter_map(|item| call_of(&item.body)).cloned().collect()
    }

    /// Bodies of the committed items.
    pub fn bodies(&self) -> Vec<ItemBody> {
        self.items.iter().map(|item| item.body.clone()).collect()
    }

    /// The newest committed position.
    pub fn last(&self) -> Seq {
        Seq(self.meta.head.0 - 1)
    }
}

/// Whether a parked row holds the result of `call`.
fn answers(row: &ParkedInput, call: &CallId) -> bool {
    let message = InputMessage::parse(row.body.as_bytes()).expect("a parked message");
    match (&message.content, &message.synthetic) {
        (InputContent::ToolResult(result), None) => &result.id == call,
        _ => false,
    }
}

/// The call that an item is.
pub fn call_of(body: &ItemBody) -> Option<&CallId> {
    match body {
        ItemBody::ToolCall(call) => Some(&call.call_id),
        _ => None,
    }
}

/// Results and markers of `call`.
pub fn settlements<'a>(bodies: impl Iterator<Item = &'a ItemBody>, call: &CallId) -> usize {
    let settles = |body: &&ItemBody| match body {
        ItemBody::ToolResult(result) => &result.call_id == call,
        ItemBody::Interrupt(marker) => &marker.call_id == call,
        _ => false,
    };
    bodies.filter(settles).count()
}
