//! The order of a slice around the pure core, as `slice` keeps it, small enough to be killed anywhere.

use dormouse::history::render::{RenderError, RenderOptions};
use dormouse::history::{Accepted, Arrival, History, Layer};
use dormouse::message::{CallId, ContentPart, InputMessage, ItemBody, Outcome, SettledBy};
use dormouse::model::ModelEvent;
use proptest::prelude::*;

use super::say::{answer, calls, says, signs, thinks};
use super::store::Rows;

/// How the runtime takes a call of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Asynchronous,
    Passive,
    Synchronous,
    Refused,
}

pub fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Asynchronous),
        2 => Just(Kind::Passive),
        2 => Just(Kind::Synchronous),
        1 => Just(Kind::Refused),
    ]
}

pub fn options() -> RenderOptions {
    RenderOptions { model: "m".into(), image_input: true, ..RenderOptions::default() }
}

/// One response, its calls taken as the slice takes them.
pub fn respond(history: &mut History, n: usize, thinking: bool, text: bool, kinds: &[Kind]) -> Vec<CallId> {
    let mut events: Vec<ModelEvent> = Vec::new();
    if thinking {
        events.extend([thinks("hm"), signs()]);
    }
    if text {
        events.push(says(&format!("answer {n}")));
    }
    events.extend(kinds.iter().map(|_| calls("call_0", "f", "{}")));
    let made = answer(history, &events);
    assert_eq!(made.len(), kinds.len());
    for (call, kind) in made.iter().zip(kinds) {
        match kind {
            Kind::Refused => {
                let parts = vec![ContentPart::text("Error: no")];
                let by = SettledBy::Runtime;
                history.settle(&call.call_id, Outcome::Refused, parts, by, Layer::WithResponse, 0);
            }
            Kind::Asynchronous | Kind::Passive | Kind::Synchronous => {
                history.describe_call(&call.call_id, |pending| {
                    pending.passive = *kind == Kind::Passive;
                    pending.synchronous = *kind == Kind::Synchronous;
                });
            }
        }
    }
    made.into_iter().map(|call| call.call_id).collect()
}

/// Runs the open synchronous calls, as the slice does.
pub fn run_synchronous(history: &mut History) {
    let open: Vec<CallId> =
        history.open_calls().filter(|pending| pending.synchronous).map(|p| p.call.clone()).collect();
    let others = history.open_calls().any(|pending| !pending.synchronous);
    let layer = if others { Layer::Safe } else { Layer::Unvalidated };
    for call in open {
        history.settle(&call, Outcome::Ok, vec![ContentPart::text("ran")], SettledBy::Tool, layer, 0);
    }
}

/// One response of the scripted model.
#[derive(Clone, Debug)]
pub struct Response {
    pub thinks: bool,
    pub calls: Vec<Kind>,
}

/// The process was killed.
#[derive(Debug)]
pub struct Killed;

/// Slices over one thread's rows. The model answers with the script's next response, the `n`th time it is
/// heard, so that a response that died is given again.
pub struct Slices {
    pub rows: Rows,
    pub script: Vec<Response>,
    /// Points at which a process can die that are still to be passed; none: it lives.
    pub lives_for: Option<usize>,
    /// A slice has committed something and is not finished: its causes are open.
    unfinished: bool,
}

impl Slices {
    pub fn new(script: Vec<Response>) -> Self {
        Self { rows: Rows::default(), script, lives_for: None, unfinished: false }
    }

    /// Processes a batch until it is acknowledged: a killed slice is redelivered.
    pub fn process(&mut self, batch: &[(InputMessage, Arrival)]) {
        for _ in 0..10 {
            if self.slice(batch).is_ok() {
                let rested = self.rows.load();
                assert!(!rested.has_leftover_waiting(), "parked rows that nothing will release");
                assert!(!rested.has_unvalidated(), "a step that is answered and not closed");
                return;
            }
            self.lives_for = None;
        }
        panic!("a batch never ends");
    }

    fn may_die(&mut self) -> Result<(), Killed> {
        match &mut self.lives_for {
            None => Ok(()),
            Some(0) => Err(Killed),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn slice(&mut self, batch: &[(InputMessage, Arrival)]) -> Result<(), Killed> {
        let mut history = self.rows.load();
        let mut ready = false;
        for (message, arrival) in batch {
            ready |= match self.rows.dedup.contains(&arrival.dedup) {
                true => self.unfinished,
                false => history.accept(message, arrival) == Accepted::Ready,
            };
        }
        self.may_die()?;
        // An open synchronous call is this slice's business, also beside an asynchronous sibling.
        let runs = history.is_settled() || history.open_calls().any(|pending| pending.synchronous);
        if !ready || !runs {
            return self.sync(&mut history, false);
        }
        self.sync(&mut history, true)?;
        for _ in 0..20 {
            run_synchronous(&mut history);
            if !history.is_settled() {
                break;
            }
            match history.render_history(&options()) {
                Ok(rendered) => super::provider_rules::judge(&rendered.request).expect("valid"),
                Err(RenderError::Empty) => break,
                Err(e) => panic!("{e}"),
            }
            self.may_die()?;
            let spoken = |body: &&ItemBody| matches!(body, ItemBody::Assistant(_));
            let n = history.current_turn_view("m").iter().filter(spoken).count();
            let plain = Response { thinks: false, calls: Vec::new() };
            let response = self.script.get(n).cloned().unwrap_or(plain);
            let made = respond(&mut history, n, response.thinks, true, &response.calls);
            self.rows.responses.push(made);
            if response.calls.is_empty() {
                break;
            }
            let again = |kind: &Kind| matches!(kind, Kind::Synchronous | Kind::Refused);
            if response.calls.iter().all(|kind| *kind == Kind::Refused)
                || response.calls.contains(&Kind::Synchronous) && response.calls.iter().any(again)
            {
                self.sync(&mut history, true)?;
            }
        }
        self.sync(&mut history, false)
    }

    /// A sync, killed before or behind any of its commits.
    fn sync(&mut self, history: &mut History, unfinished: bool) -> Result<(), Killed> {
        loop {
            self.may_die()?;
            let plan = history.plan();
            let more = plan.more;
            if !plan.is_empty() || (self.unfinished && !unfinished) {
                self.rows.write(&plan);
                self.unfinished = unfinished || more;
            }
            history.apply(plan);
            if !more {
                return self.may_die();
            }
        }
    }
}
