//! Where a request stands in a thread, and what it asks for (R9 to R11). Content is never compared and a missing id never
//! cuts: user ids say where the user is, assistant ids and call ids only tell branches apart.

use std::collections::{BTreeMap, BTreeSet};

use super::convert::{Placed, client_id, responses};
use crate::message::{ContentPart, Epoch, ItemBody, RunRecord, RunRequest};

/// A log of the thread, with what it inherits in front of it.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// Which.
    pub epoch: Epoch,
    /// Its items.
    pub items: Vec<Placed<'a>>,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The index of the view.
    pub view: usize,
    /// Leading user messages that the view and the request have in common.
    pub matched: usize,
}

/// Something new that the user said.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// The client's id.
    pub id: String,
    /// What.
    pub parts: Vec<ContentPart>,
}

/// A result that the client brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The call.
    pub call: String,
    /// What its tool returned.
    pub text: String,
    /// Whether it failed.
    pub failed: bool,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Go on behind this many items of that log; none: at the end of the head.
    pub cut: Option<Cut>,
    /// Results for calls that are still open there, first ones only.
    pub results: Vec<Given>,
    /// New user messages, in order.
    pub say: Vec<Said>,
    /// Why.
    pub kind: DecisionKind,
}

/// A place in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The log.
    pub epoch: Epoch,
    /// Items of its view that stay.
    pub keep: usize,
}

/// What kind of request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionKind {
    /// The user says something.
    Say,
    /// The last user message is to be answered again.
    Reload,
    /// Results of the client's own tools.
    Continue,
    /// Nothing new.
    Nothing,
}

/// The user message of the turn that runs, or ran last, in the view of the head.
pub fn running(head: &[Placed<'_>]) -> Option<String> {
    head.iter().rfind(|placed| placed.is_said()).map(Placed::id)
}

/// Whether a request knows of the running turn (R13): its client has stopped listening to it and goes on. Any other one that
/// wants to go on comes from a stale view.
pub fn knows(request: &RunRequest, running: &str) -> bool {
    let is_running = |record: &RunRecord| matches!(record, RunRecord::User { id, .. } if id == running);
    request.append || request.records.iter().any(is_running)
}

fn users<'a>(items: &'a [Placed<'a>]) -> impl Iterator<Item = (usize, &'a Placed<'a>)> {
    items.iter().enumerate().filter(|(_, placed)| placed.is_said())
}

/// All ids under which a client may know what the user has said.
fn user_ids(items: &[Placed<'_>]) -> BTreeSet<String> {
    let ids = users(items).map(|(_, placed)| (placed.id(), client_id(placed.item).map(str::to_owned)));
    ids.flat_map(|(shown, own)| [Some(shown), own]).flatten().collect()
}

fn asked(request: &RunRequest) -> Vec<&str> {
    let users = request.records.iter().filter_map(|record| match record {
        RunRecord::User { id, .. } => Some(id.as_str()),
        RunRecord::Assistant { .. } | RunRecord::Tool { .. } => None,
    });
    users.collect()
}

/// What the request shows of model output.
fn shown(request: &RunRequest) -> BTreeSet<&str> {
    let mut shown = BTreeSet::new();
    for record in &request.records {
        match record {
            RunRecord::Assistant { id, calls } => {
                shown.insert(id.as_str());
                shown.extend(calls.iter().map(String::as_str));
            }
            RunRecord::Tool { call, .. } => {
                shown.insert(call.as_str());
            }
            RunRecord::User { .. } => {}
        }
    }
    shown
}

/// The log with the longest match of leading user ids; among equals the one that holds most of what the request shows up to
/// there; among equals the newest. `views` are in the order of their epochs; linear in their items.
pub fn locate(views: &[View<'_>], request: &RunRequest) -> Located {
    let asked = asked(request);
    let shown = shown(request);
    let mut best = (Located { view: views.len().saturating_sub(1), matched: 0 }, None);
    for (index, view) in views.iter().enumerate() {
        let known: Vec<(usize, &Placed<'_>)> = users(&view.items).collect();
        let same = known.iter().zip(&asked).take_while(|((_, placed), asked)| placed.is_known_as(asked));
        let matched = same.count();
        let end = known.get(matched).map_or(view.items.len(), |(at, _)| *at);
        let firsts = responses(&view.items[..end]);
        let hits = firsts.iter().enumerate().filter(|(at, first)| match &view.items[*at].item.body {
            ItemBody::ToolCall(call) if shown.contains(call.call_id.as_str()) => true,
            _ => {
                let placed = &view.items[*at];
                let is_shown = shown.contains(placed.place_id().as_str());
                **first == Some(*at)
                    && (is_shown || client_id(placed.item).is_some_and(|id| shown.contains(id)))
            }
        });
        let hits = hits.count();
        if best.1.is_none_or(|known| (matched, hits) >= known) {
            best = (Located { view: index, matched }, Some((matched, hits)));
        }
    }
    best.0
}

/// Calls of a view that have no result.
fn open_calls<'a>(items: &'a [Placed<'a>]) -> BTreeMap<&'a str, usize> {
    let mut open = BTreeMap::new();
    for (at, placed) in items.iter().enumerate() {
        match &placed.item.body {
            ItemBody::ToolCall(call) => {
                open.insert(call.call_id.as_str(), at);
            }
            ItemBody::ToolResult(result) => {
                open.remove(result.call_id.as_str());
            }
            ItemBody::Interrupt(interrupt) => {
                open.remove(interrupt.call_id.as_str());
            }
            ItemBody::System(_)
            | ItemBody::User(_)
            | ItemBody::Assistant(_)
            | ItemBody::BackendToolCall(_)
            | ItemBody::Reasoning(_)
            | ItemBody::Event(_)
            | ItemBody::State(_)
            | ItemBody::Unknown { .. } => {}
        }
    }
    open
}

/// What a request without answers to interrupts asks for. `views` are all logs that count, the head last.
pub fn decide(views: &[View<'_>], request: &RunRequest) -> Decision {
    let Some(head) = views.last() else {
        return append(request, &BTreeSet::new());
    };
    if request.append {
        let known = user_ids(&head.items);
        return Decision { results: results(&head.items, request), ..append(request, &known) };
    }
    let at = locate(views, request);
    let view = &views[at.view];
    let known: Vec<(usize, &Placed<'_>)> = users(&view.items).collect();
    let ids = user_ids(&view.items);
    let asked = asked(request);
    // What stands in front of something known is no news: it is ignored.
    let mut fresh: Vec<Said> = Vec::new();
    let mut seen = 0;
    for record in &request.records {
        let RunRecord::User { id, parts } = record else { continue };
        seen += 1;
        if seen > at.matched && !ids.contains(id) && !fresh.iter().any(|said| &said.id == id) {
            fresh.push(Said { id: id.clone(), parts: parts.clone() });
        }
    }
    let is_head = at.view + 1 == views.len();
    let cut_to = |keep: usize| {
        let stays = is_head && keep == view.items.len();
        (!stays).then_some(Cut { epoch: view.epoch, keep })
    };
    if !fresh.is_empty() {
        let keep = match known.get(at.matched) {
            None => view.items.len(),
            Some(_) => edit_point(view, &known, at.matched, &asked, request),
        };
        return Decision {
            cut: cut_to(keep),
            results: results(&view.items[..keep], request),
            say: fresh,
            kind: DecisionKind::Say,
        };
    }
    if matches!(request.records.last(), Some(RunRecord::User { .. })) && at.matched > 0 {
        let keep = known.get(at.matched - 1).map_or(0, |(index, _)| behind_state(view, index + 1));
        return Decision {
            cut: cut_to(keep),
            results: Vec::new(),
            say: Vec::new(),
            kind: DecisionKind::Reload,
        };
    }
    let results = results(&view.items, request);
    if !results.is_empty() {
        let cut = cut_to(view.items.len());
        return Decision { cut, results, say: Vec::new(), kind: DecisionKind::Continue };
    }
    Decision { cut: None, results, say: Vec::new(), kind: DecisionKind::Nothing }
}

fn append(request: &RunRequest, known: &BTreeSet<String>) -> Decision {
    let mut say: Vec<Said> = Vec::new();
    for record in &request.records {
        if let RunRecord::User { id, parts } = record
            && !known.contains(id)
            && !say.iter().any(|said| &said.id == id)
        {
            say.push(Said { id: id.clone(), parts: parts.clone() });
        }
    }
    let kind = if say.is_empty() { DecisionKind::Nothing } else { DecisionKind::Say };
    Decision { cut: None, results: Vec::new(), say, kind }
}

/// Items that an edit keeps: the whole turn of the last common message where the client still shows its answer, else no more
/// than the message itself.
fn edit_point(
    view: &View<'_>,
    known: &[(usize, &Placed<'_>)],
    matched: usize,
    asked: &[&str],
    request: &RunRequest,
) -> usize {
    let Some(last) = matched.checked_sub(1) else { return 0 };
    let position = |id: Option<&&str>| {
        let id = *id?;
        request.records.iter().position(|record| matches!(record, RunRecord::User { id: of, .. } if of == id))
    };
    let from = position(asked.get(last)).map_or(0, |at| at + 1);
    let to = position(asked.get(matched)).unwrap_or(request.records.len());
    let between = request.records.get(from..to).unwrap_or_default();
    match between.iter().any(|record| !matches!(record, RunRecord::User { .. })) {
        true => known.get(matched).map_or(view.items.len(), |(at, _)| *at),
        false => known.get(last).map_or(0, |(at, _)| behind_state(view, at + 1)),
    }
}

/// The place behind what the client has shared with a message that ends before `at`: it is kept with the message.
fn behind_state(view: &View<'_>, at: usize) -> usize {
    let shared = view.items.iter().skip(at);
    at + shared.take_while(|placed| matches!(placed.item.body, ItemBody::State(_))).count()
}

/// The first result for each call that is open in `items`.
fn results(items: &[Placed<'_>], request: &RunRequest) -> Vec<Given> {
    let mut open = open_calls(items);
    let mut given = Vec::new();
    for record in &request.records {
        if let RunRecord::Tool { call, text, failed } = record
            && open.remove(call.as_str()).is_some()
        {
            given.push(Given { call: call.clone(), text: text.clone(), failed: *failed });
        }
    }
    given
}
