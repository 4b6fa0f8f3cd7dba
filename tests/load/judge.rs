//! Compares what a thread said with what has come of it.

use std::collections::{BTreeMap, BTreeSet};

use dormouse::message::SettledBy;

use crate::evidence::{Evidence, Stored, is_kept};
use crate::plan::{Pace, ThreadPlan};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    Lost,
    Duplicated,
    OutOfOrder,
    /// Something that nobody asked for, or that is not as it was asked for.
    Foreign,
    /// It was not finished when everything was at rest.
    Unfinished,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub thread: String,
    pub wrong: Wrong,
    pub what: String,
}

struct Judge<'a> {
    plan: &'a ThreadPlan,
    seen: &'a Evidence,
    findings: Vec<Finding>,
}

/// Everything that is wrong with a thread.
pub fn judge(plan: &ThreadPlan, seen: &Evidence) -> Vec<Finding> {
    let mut judge = Judge { plan, seen, findings: Vec::new() };
    judge.inputs();
    judge.calls();
    judge.effects();
    judge.replies();
    judge.rest();
    judge.findings
}

impl Judge<'_> {
    fn find(&mut self, wrong: Wrong, what: impl Into<String>) {
        self.findings.push(Finding { thread: self.plan.id.clone(), wrong, what: what.into() });
    }

    /// Every input once, in the order in which it was sent.
    fn inputs(&mut self) {
        let stored = self.seen.history.iter().filter_map(|entry| match entry {
            Stored::Input(text) => Some(text.clone()),
            _ => None,
        });
        self.compare("the input", &self.plan.texts(), &stored.collect::<Vec<_>>());
    }

    /// Every call was settled once, by its own result where its tool has settled it.
    fn calls(&mut self) {
        let mut settled: BTreeMap<&str, usize> = BTreeMap::new();
        let mut ids = BTreeMap::new();
        let seen = self.seen;
        for entry in &seen.history {
            match entry {
                Stored::Call { id, operation, arguments } => {
                    if ids.insert(id.as_str(), (operation, arguments)).is_some() {
                        self.find(Wrong::Duplicated, format!("the call {id}"));
                    }
                }
                Stored::Result { call, text, by } => {
                    *settled.entry(call).or_default() += 1;
                    let Some((operation, arguments)) = ids.get(call.as_str()) else {
                        self.find(Wrong::OutOfOrder, format!("the result of {call} is not behind its call"));
                        continue;
                    };
                    let expected = self.plan.calls().find(|planned| {
                        planned.operation == *operation && planned.arguments() == **arguments
                    });
                    if *by != SettledBy::Tool || expected.is_none_or(|expected| expected.result() != *text) {
                        self.find(
                            Wrong::Foreign,
                            format!("the result of {call} is {text:?}, settled by {by:?}"),
                        );
                    }
                }
                Stored::Interrupted { call } => {
                    *settled.entry(call).or_default() += 1;
                    if self.plan.pace == Pace::Conversation {
                        self.find(Wrong::Foreign, format!("{call} was interrupted, and nobody spoke"));
                    }
                }
                Stored::LateNote if self.plan.pace == Pace::Conversation => {
                    self.find(Wrong::Foreign, "a note of a late result, and no call was interrupted");
                }
                Stored::Other(kind) => self.find(Wrong::Foreign, format!("an item of kind {kind}")),
                Stored::Input(_) | Stored::Answer(_) | Stored::Reasoning | Stored::LateNote => {}
            }
        }
        for id in ids.keys() {
            match settled.get(id).copied().unwrap_or_default() {
                1 => {}
                0 => self.find(Wrong::Lost, format!("the result of {id}")),
                _ => self.find(Wrong::Duplicated, format!("the result of {id}")),
            }
        }
    }

    /// What the tool server was asked to do: each call under one id, with one set of arguments.
    fn effects(&mut self) {
        let seen = self.seen;
        let mut by_key: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        let mut dispatched = BTreeSet::new();
        for invoked in &seen.invoked {
            let is_stored = |entry: &Stored| match entry {
                Stored::Call { id, operation, arguments } => {
                    let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap_or_default();
                    *id == invoked.id && *operation == invoked.operation && arguments == invoked.arguments
                }
                _ => false,
            };
            if !seen.history.iter().any(is_stored) {
                self.find(Wrong::Foreign, format!("{} was dispatched as it is not stored", invoked.id));
            }
            let key = invoked.arguments["key"].as_str().unwrap_or_default().to_owned();
            by_key.entry(key).or_default().insert(&invoked.id);
            dispatched.insert(invoked.id.as_str());
        }
        for (key, ids) in &by_key {
            if ids.len() > 1 {
                self.find(Wrong::Duplicated, format!("the effect {key}, under {ids:?}"));
            }
        }
        for entry in &seen.history {
            match entry {
                Stored::Result { call, .. } if !dispatched.contains(call.as_str()) => {
                    self.find(Wrong::Foreign, format!("{call} has a result and was never dispatched"));
                }
                _ => {}
            }
        }
        let keys = self.plan.keys();
        for key in by_key.keys().filter(|key| !keys.contains(key.as_str())) {
            self.find(Wrong::Foreign, format!("the effect {key}"));
        }
        if self.plan.pace == Pace::Conversation {
            for key in keys.iter().filter(|key| !by_key.contains_key(**key)) {
                self.find(Wrong::Lost, format!("the effect {key}"));
            }
        }
    }

    /// Every text that is stored was published under one id, in order, and nothing else was.
    fn replies(&mut self) {
        let seen = self.seen;
        let mut texts: BTreeMap<&str, &str> = BTreeMap::new();
        let mut first = Vec::new();
        for message in &seen.published {
            match texts.insert(&message.message_id, &message.text) {
                None => first.push(message),
                Some(before) if before != message.text => {
                    self.find(Wrong::Foreign, format!("{} says two things", message.message_id));
                }
                Some(_) => {}
            }
        }
        for message in first.iter().filter(|message| message.is_error) {
            self.find(Wrong::Foreign, format!("the user was told {:?}", message.text));
        }
        let first: Vec<String> = first
            .into_iter()
            .filter(|message| !message.is_error)
            .map(|message| message.text.clone())
            .collect();
        let lines = seen.history.iter().filter_map(|entry| match entry {
            Stored::Answer(text) => Some(text.clone()),
            Stored::Call { operation, arguments, .. } => Some(format!("[{operation}({arguments})]")),
            _ => None,
        });
        match self.plan.pace {
            Pace::Conversation => self.compare("the reply", &self.plan.replies(), &first),
            // Which texts are answered together depends on the schedule; what was answered does not.
            Pace::Burst => {
                let published: Vec<String> =
                    first.iter().flat_map(|text| text.split('\n')).map(str::to_owned).collect();
                let stored: Vec<String> =
                    lines.flat_map(|text| text.split('\n').map(str::to_owned).collect::<Vec<_>>()).collect();
                self.compare("the reply", &stored, &published);
            }
        }
    }

    /// Nothing is left to do.
    fn rest(&mut self) {
        let seen = self.seen;
        for what in &seen.unfinished {
            self.find(Wrong::Unfinished, what);
        }
        for entry in seen.outbox.iter().filter(|entry| !is_kept(entry, seen)) {
            self.find(Wrong::Lost, format!("the promise {} ({:?})", entry.id, entry.promise));
        }
        if let Some(text) = &seen.unanswered {
            self.find(Wrong::Unfinished, format!("no reply to {text:?}"));
        }
    }

    /// `expected` may hold a text several times; so must `found`.
    fn compare(&mut self, what: &str, expected: &[String], found: &[String]) {
        let count = |texts: &[String]| {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            texts.iter().for_each(|text| *counts.entry(text.clone()).or_default() += 1);
            counts
        };
        let (wanted, there) = (count(expected), count(found));
        for (text, wanted) in &wanted {
            let there = there.get(text).copied().unwrap_or_default();
            (there..*wanted).for_each(|_| self.find(Wrong::Lost, format!("{what} {text:?}")));
            (*wanted..there).for_each(|_| self.find(Wrong::Duplicated, format!("{what} {text:?}")));
        }
        for text in there.keys().filter(|text| !wanted.contains_key(*text)) {
            self.find(Wrong::Foreign, format!("{what} {text:?}"));
        }
        // Order, among what is in both: a text is out of order where it comes before one that should precede it.
        let mut places: BTreeMap<&String, Vec<usize>> = BTreeMap::new();
        for (place, text) in expected.iter().enumerate().rev() {
            places.entry(text).or_default().push(place);
        }
        let mut last = None;
        for text in found {
            let Some(place) = places.get_mut(text).and_then(Vec::pop) else { continue };
            if last.is_some_and(|last| place < last) {
                self.find(Wrong::OutOfOrder, format!("{what} {text:?}"));
            }
            last = last.max(Some(place));
        }
    }
}
