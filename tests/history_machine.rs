//! The pure core as a state machine: random inputs, model output, commits and crashes in any order, with the
//! invariants looked at after every step.

#[path = "support/history/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};

use dormouse::history::render::RenderError;
use dormouse::history::{Accepted, Arrival, History};
use dormouse::message::{CallId, InputMessage, ItemBody, Synthetic};
use proptest::prelude::*;
use support::provider_rules;
use support::say::{arrival, event, image, report, result, user};
use support::slice::{Kind, kind, options, respond, run_synchronous};
use support::store::{Rows, call_of, settlements};

/// Sequences of one run, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 1_000;

/// One step. Calls are named by an index into those that are committed: nobody outside knows of others.
#[derive(Clone, Debug)]
enum Step {
    Text,
    Blank,
    Image,
    Result {
        call: usize,
        again: bool,
        subscribes: bool,
    },
    ForeignResult,
    Event {
        call: usize,
        is_final: bool,
        is_report: bool,
    },
    Model {
        thinks: bool,
        says: bool,
        calls: Vec<Kind>,
    },
    RunSynchronous,
    Validated,
    Sync,
    /// Some commits of a sync, not all.
    PartOfSync,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let model = (any::<bool>(), any::<bool>(), prop::collection::vec(kind(), 0..=4));
    prop_oneof![
        3 => Just(Step::Text),
        1 => Just(Step::Blank),
        1 => Just(Step::Image),
        8 => (0..8_usize, prop::bool::weighted(0.3), any::<bool>())
            .prop_map(|(call, again, subscribes)| Step::Result { call, again, subscribes }),
        1 => Just(Step::ForeignResult),
        5 => (0..8_usize, any::<bool>(), any::<bool>())
            .prop_map(|(call, is_final, is_report)| Step::Event { call, is_final, is_report }),
        8 => model.prop_map(|(thinks, says, calls)| Step::Model { thinks, says, calls }),
        2 => Just(Step::RunSynchronous),
        1 => Just(Step::Validated),
        5 => Just(Step::Sync),
        1 => Just(Step::PartOfSync),
        3 => Just(Step::Crash),
    ]
}

/// A message of the queue, and what became of it when it was delivered last.
#[derive(Clone, Debug)]
struct Delivered {
    message: InputMessage,
    arrival: Arrival,
    tag: String,
    accepted: Option<Accepted>,
}

struct World {
    rows: Rows,
    history: History,
    queue: Vec<Delivered>,
    responses: usize,
}

impl World {
    fn new() -> Self {
        let rows = Rows::default();
        Self { history: rows.load(), rows, queue: Vec::new(), responses: 0 }
    }

    /// A new message; its text carries a tag under which it is found again.
    fn deliver(&mut self, make: impl FnOnce(&str) -> InputMessage, dedup: Option<String>) {
        let n = self.queue.len();
        let tag = format!("<{n}>");
        let dedup = dedup.unwrap_or_else(|| format!("d{n}"));
        let message = make(&tag);
        self.queue.push(Delivered { message, arrival: arrival(n, &dedup), tag, accepted: None });
        self.accept(n);
    }

    fn accept(&mut self, n: usize) {
        let Delivered { message, arrival, .. } = &self.queue[n];
        // The manager looks dedup rows up before the core sees the input.
        if !self.rows.dedup.contains(&arrival.dedup) {
            let accepted = self.history.accept(message, arrival);
            self.queue[n].accepted = Some(accepted);
        }
    }

    fn committed_call(&self, at: usize) -> Option<CallId> {
        // Newest first, so that small numbers mean what is still open.
        self.rows.calls().into_iter().rev().nth(at)
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Text => self.deliver(user, None),
            Step::Blank => self.deliver(|_| user(" \n"), None),
            Step::Image => self.deliver(image, None),
            Step::ForeignResult => self.deliver(|tag| result(&CallId::new("c0-9-nobody"), tag), None),
            Step::Result { call, again, subscribes } => {
                let Some(call) = self.committed_call(*call) else { return };
                // Results of one call share a dedup id; a failed dispatch has one of its own.
                let dedup = if *again { format!("failed-{call}") } else { format!("result-{call}") };
                let make = |tag: &str| InputMessage { subscription: *subscribes, ..result(&call, tag) };
                self.deliver(make, Some(dedup));
            }
            Step::Event { call, is_final, is_report } => {
                let Some(call) = self.committed_call(*call) else { return };
                let make = |tag: &str| match is_report {
                    true => report(&call, tag),
                    false => {
                        let mut message = event(&call, tag);
                        if let Some(Synthetic::SubscriptionEvent { r#final, .. }) = &mut message.synthetic {
                            *r#final = *is_final;
                        }
                        message
                    }
                };
                self.deliver(make, None);
            }
            Step::Model { thinks, says, calls } => self.model(*thinks, *says, calls),
            Step::RunSynchronous => run_synchronous(&mut self.history),
            Step::Validated => self.history.mark_inputs_model_validated(),
            Step::Sync => self.rows.sync(&mut self.history),
            Step::PartOfSync => {
                let plan = self.history.plan();
                if !plan.is_empty() {
                    self.rows.write(&plan);
                    self.history.apply(plan);
                }
            }
            Step::Crash => self.crash(),
        }
    }

    fn model(&mut self, thinks: bool, says: bool, kinds: &[Kind]) {
        if !self.history.is_settled() || self.history.render_history(&options()).is_err() {
            return;
        }
        self.responses += 1;
        let made = respond(&mut self.history, self.responses, thinks, says, kinds);
        self.rows.responses.push(made);
    }

    /// The process dies; what has no dedup row is delivered again, in order.
    fn crash(&mut self) {
        let before = self.history.current_turn_view("m");
        self.history = self.rows.load();
        // A response that died with the process never was; the ids of its calls are free again.
        let stored: BTreeSet<CallId> = self.rows.calls().into_iter().collect();
        self.rows.responses.retain(|response| response.iter().all(|call| stored.contains(call)));
        let committed: Vec<ItemBody> = self.history.committed().iter().map(|i| i.body.clone()).collect();
        assert_eq!(committed, self.rows.bodies());
        assert!(before.starts_with(&committed), "what is committed was seen before");
        for n in 0..self.queue.len() {
            self.accept(n);
        }
    }

    fn check(&self) {
        assert_eq!(self.history.committed(), self.rows.items);
        assert_eq!(self.history.head(), self.rows.meta.head);
        let view = self.history.current_turn_view("m");
        for call in view.iter().filter_map(call_of) {
            assert!(settlements(view.iter(), call) <= 1, "{call} is settled twice");
        }
        let open: BTreeSet<CallId> = self.history.open_calls().map(|p| p.call.clone()).collect();
        match self.history.render_history(&options()) {
            Ok(rendered) => {
                assert!(open.is_empty());
                assert_eq!(rendered.orphan_results, 0, "a result is lost to the model: {view:#?}");
                provider_rules::judge(&rendered.request).expect("a valid request");
            }
            Err(RenderError::OpenCalls(calls)) => {
                assert_eq!(calls.into_iter().collect::<BTreeSet<_>>(), open)
            }
            Err(RenderError::Empty) => assert!(open.is_empty()),
            Err(RenderError::Invalid(why)) => panic!("{why}"),
        }
        self.check_inputs(&view);
    }

    /// An accepted input is in exactly one item, or it waits.
    fn check_inputs(&self, view: &[ItemBody]) {
        let texts: Vec<String> = view.iter().map(ItemBody::to_raw).collect();
        let mut first: BTreeMap<&str, bool> = BTreeMap::new();
        for input in &self.queue {
            let taken = matches!(input.accepted, Some(Accepted::Ready | Accepted::Parked | Accepted::Note));
            let found = texts.iter().filter(|text| text.contains(&input.tag)).count();
            assert!(found <= usize::from(taken), "{} is in {found} items", input.tag);
            let waits = self.rows.parked.values().any(|row| row.body.contains(&input.tag));
            if taken && !self.history.has_unsynced() {
                assert!(found == 1 || waits, "{} is nowhere", input.tag);
                let stored = self.rows.dedup.contains(&input.arrival.dedup);
                let committed = self.rows.items.iter().any(|item| item.raw.contains(&input.tag));
                assert_eq!(stored, waits || committed, "I2: {} and its dedup row differ", input.tag);
            }
            if taken {
                let again = first.insert(input.arrival.dedup.as_str(), true);
                assert!(again.is_none(), "I2: {} was taken twice", input.arrival.dedup);
            }
        }
    }

    /// Everything open is answered and released: the thread comes to rest.
    fn come_to_rest(&mut self) {
        for _ in 0..8 {
            run_synchronous(&mut self.history);
            self.rows.sync(&mut self.history);
            let open: Vec<CallId> =
                self.history.open_calls().filter(|p| !p.parked).map(|p| p.call.clone()).collect();
            for call in open {
                self.deliver(|tag| result(&call, tag), Some(format!("result-{call}")));
                self.check();
            }
            if self.history.has_leftover_waiting() {
                self.history.release_waiting();
            }
            self.history.mark_inputs_model_validated();
            self.rows.sync(&mut self.history);
            self.check();
        }
        assert!(self.history.is_settled(), "calls stay open: {:?}", self.rows.meta.pending);
        assert!(self.rows.meta.pending.is_empty());
        assert!(self.rows.parked.is_empty(), "parked rows stay behind: {:?}", self.rows.parked);
        let rendered = self.history.render_history(&options());
        assert!(matches!(rendered, Ok(_) | Err(RenderError::Empty)), "{rendered:?}");
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn i1_i2_i5_hold_after_every_step_of_any_sequence_with_crashes(steps in prop::collection::vec(step(), 1..40)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            world.check();
        }
        world.come_to_rest();
    }
}
