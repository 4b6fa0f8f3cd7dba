//! A conversation that a client kept, as it hands it over: assistant-ui's repository of branches (H4), or a plain list of
//! messages (H3). What comes out is a tree of what is worth keeping, and the branches of it. Total on any JSON, and linear.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::convert::place_epoch;
use super::records::{self, CallResult, Part, Record};
use super::wire::{self, MAX_ID_CHARS, OPTIMISTIC, WireError, text};
use crate::message::{ContentPart, Epoch, RawJson, json};

/// Messages of one import.
pub const MAX_MESSAGES: usize = 10_000;
/// Branches of one import: as many as clients are shown of a thread.
pub const MAX_BRANCHES: usize = 64;

/// The newest epoch in ids of another thread that is made room for: a thread that begins with a later one costs a look at each
/// before it, now and then.
pub const MAX_FOREIGN_EPOCH: u32 = 1_000;

/// Why a body is no conversation that can be imported. Each is a 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// It is not JSON.
    #[error("the body is no JSON: {0}")]
    NotJson(String),
    /// It has another shape.
    #[error("the body is neither a list of messages nor an object with a list `messages`")]
    NoMessages,
    /// Where parents are named, a message can only be found by its id.
    #[error("messages[{0}].message.id is missing or empty: where parents are named, every message needs one")]
    NoId(usize),
    /// An id is longer than anybody needs.
    #[error("messages[{0}] has an id of more than {MAX_ID_CHARS} characters")]
    LongId(usize),
    /// Something is larger than anybody needs.
    #[error("the import has more than {1} {0}")]
    TooMany(&'static str, usize),
    /// Its state cannot be kept.
    #[error(transparent)]
    State(#[from] WireError),
    /// Nobody says anything in it.
    #[error("there is nothing to import: no message of a user or an assistant has content")]
    Nothing,
}

/// A conversation that a client kept, with its branches.
#[derive(Clone, Debug, PartialEq)]
pub struct Repository {
    pub(super) messages: Vec<Kept>,
    /// The last message of each branch, by index; that to go on in last.
    pub(super) branches: Vec<usize>,
    /// The epoch of the first branch: newer than any that an id names which dormouse has given in another thread. Its
    /// client knows these ids, so they are none for what is said from here on.
    pub(super) first: Epoch,
    /// What the client's application and the agent share where it goes on.
    pub(super) state: Option<RawJson>,
}

/// A message of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kept {
    /// The client's id; empty if it has none.
    pub id: String,
    /// The index of the message before it.
    pub parent: Option<usize>,
    /// What it says. Of one that says nothing whatever follows it follows the message before it.
    pub record: Record,
    pub created_at_ms: Option<i64>,
}

/// A message as it was read, before anything is known of the others.
struct Read {
    /// Empty if there is none.
    id: String,
    /// As it is named; only where parents are.
    parent: Option<String>,
    record: Record,
    created_at_ms: Option<i64>,
}

impl Repository {
    /// Reads the body of an import.
    ///
    /// # Errors
    /// [`ImportError`] for what makes it none at all. A bad record within it is left out.
    pub fn parse(body: &[u8]) -> Result<Self, ImportError> {
        let text = json::mend(body);
        let value: Value = serde_json::from_str(&text).map_err(|e| ImportError::NotJson(e.to_string()))?;
        let state = wire::state(&text, value.get("state"))?;
        Ok(Self { state, ..Self::read(&value)? })
    }

    /// As [`parse`](Self::parse), of JSON that is read already: the messages alone.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn read(value: &Value) -> Result<Self, ImportError> {
        let list = value.as_array().or_else(|| value.get("messages")?.as_array());
        let list = list.ok_or(ImportError::NoMessages)?;
        if list.len() > MAX_MESSAGES {
            return Err(ImportError::TooMany("messages", MAX_MESSAGES));
        }
        // Where one message names its parent, all do.
        let names_parents = list.iter().any(|entry| entry.get("message").is_some_and(Value::is_object));
        let mut read = Vec::with_capacity(list.len());
        for (at, entry) in list.iter().enumerate() {
            if let Some(message) = read_entry(entry, at, names_parents)? {
                read.push(message);
            }
        }
        let epochs = read.iter().filter_map(|message| place_epoch(&message.id));
        let newest = epochs.filter(|epoch| *epoch <= MAX_FOREIGN_EPOCH).max();
        let first = Epoch(newest.map_or(0, |epoch| epoch + 1));
        let head = value.get("headId").filter(|head| !head.is_null());
        let (mut messages, head) = match names_parents.then(|| parents(&read, head)).flatten() {
            Some((parents, head)) => {
                let kept = read.into_iter().zip(parents).map(|(read, parent)| kept(read, parent));
                (kept.collect(), head)
            }
            None => chain(read),
        };
        fold_results(&mut messages);
        let head = leave_out(&mut messages, head);
        join_responses(&mut messages, head);
        let (messages, branches) = branches(messages, head)?;
        Ok(Self { messages, branches, first, state: None })
    }
}

fn read_entry(entry: &Value, at: usize, names_parents: bool) -> Result<Option<Read>, ImportError> {
    let message = match names_parents {
        true => entry.get("message"),
        false => Some(entry),
    };
    let none = Map::new();
    let message = match (message.and_then(Value::as_object), names_parents) {
        (Some(message), _) => message,
        (None, true) => &none,
        (None, false) => return Ok(None),
    };
    let id = text(message, &["id"]).unwrap_or_default();
    let parent = entry.get("parentId").filter(|parent| names_parents && !parent.is_null());
    if id.is_empty() && names_parents {
        return Err(ImportError::NoId(at));
    }
    if id.chars().nth(MAX_ID_CHARS).is_some() {
        return Err(ImportError::LongId(at));
    }
    Ok(Some(Read {
        id: id.to_owned(),
        // One that is no text is no id, and so names nothing that is there.
        parent: parent.map(|parent| parent.as_str().unwrap_or_default().to_owned()),
        record: Record::read(message),
        created_at_ms: records::created_at_ms(message),
    }))
}

/// The parent of each message and the index of the head, if ids and parents make a tree; else it is degenerate.
fn parents(read: &[Read], head: Option<&Value>) -> Option<(Vec<Option<usize>>, usize)> {
    let mut places = BTreeMap::new();
    for (at, message) in read.iter().enumerate() {
        if places.insert(message.id.as_str(), at).is_some() {
            return None;
        }
    }
    let parent = |message: &Read| match &message.parent {
        Some(id) => places.get(id.as_str()).copied().map(Some),
        None => Some(None),
    };
    let parents: Vec<Option<usize>> = read.iter().map(parent).collect::<Option<_>>()?;
    let head = match head {
        Some(id) => *places.get(id.as_str()?)?,
        None => read.len().checked_sub(1)?,
    };
    // Each walk ends where one before has been: at a root, unless there is a cycle.
    let mut ends = vec![false; parents.len()];
    for start in 0..parents.len() {
        let mut path = Vec::new();
        let mut on_path = BTreeSet::new();
        let mut at = Some(start);
        while let Some(here) = at.filter(|here| !ends[*here]) {
            if !on_path.insert(here) {
                return None;
            }
            path.push(here);
            at = parents[here];
        }
        path.into_iter().for_each(|here| ends[here] = true);
    }
    Some((parents, head))
}

fn kept(read: Read, parent: Option<usize>) -> Kept {
    Kept { id: read.id, parent, record: read.record, created_at_ms: read.created_at_ms }
}

/// Messages in the order in which they stand. A repeated id keeps its first place and takes its last content.
fn chain(read: Vec<Read>) -> (Vec<Kept>, usize) {
    let mut places: BTreeMap<(u8, String), usize> = BTreeMap::new();
    let mut messages: Vec<Kept> = Vec::with_capacity(read.len());
    for message in read {
        let speaker = match &message.record {
            Record::User(_) => Some(0),
            // Reasoning may be named as the message that it belongs to.
            Record::Assistant(parts) => Some(1 + u8::from(parts.iter().all(is_reasoning))),
            Record::Tool(_) | Record::Nothing => None,
        };
        let key = speaker.filter(|_| !message.id.is_empty()).map(|speaker| (speaker, message.id.clone()));
        match key.as_ref().and_then(|key| places.get(key)) {
            Some(place) => messages[*place].record = message.record,
            None => {
                places.extend(key.map(|key| (key, messages.len())));
                messages.push(kept(message, messages.len().checked_sub(1)));
            }
        }
    }
    let last = messages.len().saturating_sub(1);
    (messages, last)
}

fn is_reasoning(part: &Part) -> bool {
    matches!(part, Part::Reasoning(_))
}

/// Gives each call its result: the first one counts, and of calls with one id the newest that has none before it, else the
/// next. A result without a call stands for itself. Then no id is left twice: a user's stays.
fn fold_results(messages: &mut [Kept]) {
    let mut open: BTreeMap<String, Vec<(usize, usize)>> = BTreeMap::new();
    let mut early: BTreeMap<String, VecDeque<usize>> = BTreeMap::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for at in 0..messages.len() {
        let mut record = std::mem::replace(&mut messages[at].record, Record::Nothing);
        match &mut record {
            Record::Assistant(parts) => {
                for (place, part) in parts.iter_mut().enumerate() {
                    let Part::Call(call) = part else { continue };
                    if call.id.is_empty() {
                        continue;
                    }
                    known.insert(call.id.clone());
                    if call.result.is_some() {
                        continue;
                    }
                    match early.get_mut(&call.id).and_then(VecDeque::pop_front) {
                        Some(result) => call.result = take_result(&mut messages[result]),
                        None => open.entry(call.id.clone()).or_default().push((at, place)),
                    }
                }
            }
            Record::Tool(result) => match open.get_mut(&result.id).and_then(Vec::pop) {
                Some((owner, place)) => {
                    if let Record::Assistant(parts) = &mut messages[owner].record
                        && let Some(Part::Call(call)) = parts.get_mut(place)
                    {
                        call.result = result.result.take();
                    }
                    continue;
                }
                None if known.contains(&result.id) => continue,
                None => early.entry(result.id.clone()).or_default().push_back(at),
            },
            Record::User(_) | Record::Nothing => {}
        }
        messages[at].record = record;
    }
    for message in messages.iter_mut() {
        if let Record::Tool(call) = &message.record {
            let id = if message.id.is_empty() { &call.id } else { &message.id };
            message.id = format!("{id}:assistant");
            message.record = match known.insert(call.id.clone()) {
                true => Record::Assistant(vec![Part::Call(call.clone())]),
                false => Record::Nothing,
            };
        }
    }
    let is_user = |message: &&mut Kept| matches!(message.record, Record::User(_));
    let mut ids: BTreeSet<String> = BTreeSet::new();
    ids.extend(messages.iter_mut().filter(is_user).map(|user| user.id.clone()));
    for message in messages.iter_mut().filter(|message| !is_user(message)) {
        if !ids.insert(message.id.clone()) {
            message.id.clear();
        }
    }
}

/// The result that a tool's message holds, which is nothing else from here on.
fn take_result(message: &mut Kept) -> Option<CallResult> {
    match std::mem::replace(&mut message.record, Record::Nothing) {
        Record::Tool(call) => call.result,
        Record::User(_) | Record::Assistant(_) | Record::Nothing => None,
    }
}

/// Leaves out what says nothing and what its client has never sent: what follows it follows the nearest real message before
/// it. The nearest one to `head` is the head; the last one if there is none.
fn leave_out(messages: &mut [Kept], head: usize) -> Option<usize> {
    for message in messages.iter_mut() {
        let says = match &message.record {
            Record::User(parts) => !parts.iter().all(ContentPart::is_blank),
            Record::Assistant(parts) => !parts.is_empty(),
            Record::Tool(_) | Record::Nothing => false,
        };
        if !says || message.id.starts_with(OPTIMISTIC) {
            message.record = Record::Nothing;
        }
    }
    // At each place the nearest real message, itself included, as far as it was looked for.
    let mut nearest: Vec<Option<Option<usize>>> = vec![None; messages.len()];
    for start in 0..messages.len() {
        let (mut path, mut at) = (Vec::new(), Some(start));
        let found = loop {
            let Some(here) = at else { break None };
            if let Some(known) = nearest[here] {
                break known;
            }
            path.push(here);
            if is_real(&messages[here]) {
                break Some(here);
            }
            at = messages[here].parent;
        };
        path.into_iter().for_each(|here| nearest[here] = Some(found));
    }
    let nearest = |at: usize| nearest[at].flatten();
    for message in messages.iter_mut() {
        message.parent = message.parent.and_then(nearest);
    }
    let head = Some(head).filter(|head| *head < messages.len()).and_then(nearest);
    head.or_else(|| messages.iter().rposition(is_real))
}

fn is_real(message: &Kept) -> bool {
    message.record != Record::Nothing
}

/// How many messages follow each.
fn followers(messages: &[Kept]) -> Vec<usize> {
    let mut followers = vec![0; messages.len()];
    for parent in messages.iter().filter(|message| is_real(message)).filter_map(|message| message.parent) {
        followers[parent] += 1;
    }
    followers
}

/// Makes one message of those that no result, user or branch stands between: in a thread they are one response, and its id
/// is that of the first one that says or calls something, since reasoning has none of its own.
fn join_responses(messages: &mut [Kept], head: Option<usize>) {
    let followers = followers(messages);
    let goes_on = |at: usize| match &messages[at].record {
        Record::Assistant(parts) => {
            followers[at] == 1 && Some(at) != head && !matches!(parts.last(), Some(Part::Call(_)))
        }
        Record::User(_) | Record::Tool(_) | Record::Nothing => false,
    };
    let is_answer = |message: &Kept| matches!(message.record, Record::Assistant(_));
    // Of each the message that it goes on from.
    let before: Vec<Option<usize>> = messages
        .iter()
        .map(|message| message.parent.filter(|at| is_answer(message) && goes_on(*at)))
        .collect();
    let continued: BTreeSet<usize> = before.iter().flatten().copied().collect();
    for last in (0..messages.len()).filter(|at| before[*at].is_some() && !continued.contains(at)) {
        let mut run = vec![last];
        while let Some(at) = run.last().and_then(|at| before[*at]) {
            run.push(at);
        }
        run.reverse();
        let mut parts = Vec::new();
        let (parent, created_at_ms) = (messages[run[0]].parent, messages[run[0]].created_at_ms);
        let mut id: Option<String> = None;
        for at in run {
            let message = &mut messages[at];
            let Record::Assistant(more) = std::mem::replace(&mut message.record, Record::Nothing) else {
                continue;
            };
            if id.is_none() && !message.id.is_empty() && !more.iter().all(is_reasoning) {
                id = Some(std::mem::take(&mut message.id));
            }
            more.into_iter().for_each(|part| records::push(&mut parts, part));
        }
        let id = id.unwrap_or_else(|| std::mem::take(&mut messages[last].id));
        messages[last] = Kept { id, parent, record: Record::Assistant(parts), created_at_ms };
    }
}

/// A branch for each message that nothing follows, in an order that keeps that of siblings. The head's is the last one: once
/// more, where others stand behind it.
fn branches(messages: Vec<Kept>, head: Option<usize>) -> Result<(Vec<Kept>, Vec<usize>), ImportError> {
    let head = head.ok_or(ImportError::Nothing)?;
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); messages.len()];
    let mut next = Vec::new();
    // From the end, since what is put on the stack last is looked at first.
    for (at, message) in messages.iter().enumerate().rev().filter(|(_, message)| is_real(message)) {
        match message.parent {
            Some(parent) => followers[parent].push(at),
            None => next.push(at),
        }
    }
    let mut branches = Vec::new();
    while let Some(at) = next.pop() {
        next.extend(&followers[at]);
        if followers[at].is_empty() {
            branches.push(at);
        }
    }
    if branches.len() > MAX_BRANCHES {
        return Err(ImportError::TooMany("branches", MAX_BRANCHES));
    }
    if branches.last() != Some(&head) {
        branches.push(head);
    }
    Ok((messages, branches))
}
