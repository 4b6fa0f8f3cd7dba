//! The one way to make a stream of events. What a slice shows comes in as [`Piece`]s, in any order, perhaps twice or in part
//! after a crash; what goes out is always a stream that every client's verifier takes:
//!
//! - A stream begins with `RUN_STARTED` and ends with one terminal event, because only [`begin`] makes a [`Stream`] and only
//!   [`Stream::end`], which consumes it, ends one.
//! - Every message that is opened is closed before the end, nothing is opened twice, and no delta is empty.
//! - An id that was closed is not opened again: what a retry says goes on under a new one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::wire::{Event, Interrupt, Message, Outcome};
use crate::message::RawJson;

/// The name of the event that shows a tool's view.
const VIEW: &str = "dormouse:view";

/// Something that a run shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Piece {
    /// More of a text.
    Text {
        /// The response it belongs to.
        message: String,
        /// The text.
        delta: String,
    },
    /// More of the reasoning before it.
    Reasoning {
        /// The response it belongs to.
        message: String,
        /// The text.
        delta: String,
    },
    /// What was shown of the response that runs does not count.
    Discard,
    /// A call, once it is committed.
    Call {
        /// The response it belongs to.
        message: String,
        /// The call.
        call: String,
        /// The tool.
        name: String,
        /// Its arguments, as text.
        arguments: String,
    },
    /// A call's result.
    Result {
        /// The call.
        call: String,
        /// What it returned.
        content: String,
    },
    /// What the application and the agent share, whole. It may be said again.
    State {
        /// JSON, as text.
        state: String,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum End {
    /// It is done, or waits for the client's own tools.
    Finished,
    /// There was nothing to do: the client is shown what there is.
    Unchanged,
    /// It waits for answers.
    Interrupted {
        /// What is asked.
        interrupts: Vec<Interrupt>,
    },
    /// It failed, was refused or was stopped.
    Failed {
        /// One of the protocol's codes.
        code: String,
        /// What happened, fit for the user.
        message: String,
    },
}

impl End {
    /// A failure.
    pub fn failed(code: &str, message: impl Into<String>) -> Self {
        Self::Failed { code: code.to_owned(), message: message.into() }
    }
}

/// What an open message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Reasoning,
    Text,
}

/// A message that was opened, by the response it belongs to.
#[derive(Debug)]
struct Opened {
    /// Its id on the wire.
    id: String,
    /// Bytes of it that were sent.
    sent: usize,
    is_open: bool,
    /// The slice that said it is over, or has died: more under its name is another message.
    is_stale: bool,
}

/// A stream that has begun and not ended.
#[derive(Debug)]
pub struct Stream {
    thread: String,
    run: String,
    /// Every id that was ever opened.
    used: BTreeSet<String>,
    messages: BTreeMap<(Kind, String), Opened>,
    calls: BTreeSet<String>,
    results: BTreeSet<String>,
    /// What the client has of the state.
    state: Option<Value>,
}

/// Begins a stream: the ids are the client's own.
pub fn begin(thread: impl Into<String>, run: impl Into<String>) -> (Stream, Event) {
    let (thread, run) = (thread.into(), run.into());
    let started = Event::RunStarted { thread_id: thread.clone(), run_id: run.clone() };
    let stream = Stream {
        thread,
        run,
        used: BTreeSet::new(),
        messages: BTreeMap::new(),
        calls: BTreeSet::new(),
        results: BTreeSet::new(),
        state: None,
    };
    (stream, started)
}

/// The id of the reasoning of a response.
pub fn reasoning_id(message: &str) -> String {
    format!("{message}-r")
}

/// The id of the message that holds a call's result.
pub fn result_id(call: &str) -> String {
    format!("{call}:tool")
}

impl Stream {
    /// The events of one piece: none if it says nothing new.
    pub fn show(&mut self, piece: &Piece) -> Vec<Event> {
        let mut events = Vec::new();
        match piece {
            Piece::Text { message, delta } => {
                self.close(Kind::Reasoning, &mut events);
                self.say(Kind::Text, message, delta, &mut events);
            }
            Piece::Reasoning { message, delta } => self.say(Kind::Reasoning, message, delta, &mut events),
            Piece::Discard => {
                self.close_all(&mut events);
                self.messages.clear();
            }
            Piece::Call { message, call, name, arguments } => {
                self.call(message, call, name, arguments, &mut events)
            }
            Piece::Result { call, content } => {
                if self.results.insert(call.clone()) {
                    self.close_all(&mut events);
                    events.push(Event::ToolCallResult {
                        message_id: result_id(call),
                        tool_call_id: call.clone(),
                        content: content.clone(),
                        role: "tool",
                    });
                }
            }
            Piece::State { state } => events.extend(self.share(state)),
        }
        events
    }

    /// What the client does not have of the state yet: all of it at first, then what has changed, where that is less.
    pub fn share(&mut self, state: &str) -> Option<Event> {
        // It goes out as it stands, and a line break would end its frame.
        let raw = RawJson::parse(state).ok()?.on_one_line();
        let new = serde_json::from_str::<Value>(state).ok()?;
        let snapshot = || Event::StateSnapshot { snapshot: raw.clone() };
        let event = match &self.state {
            Some(known) if *known == new => return None,
            None => snapshot(),
            Some(known) => match serde_json::to_value(json_patch::diff(known, &new)) {
                Ok(delta) if delta.to_string().len() < state.len() => Event::StateDelta { delta },
                Ok(_) | Err(_) => snapshot(),
            },
        };
        self.state = Some(new);
        Some(event)
    }

    /// The events of pieces that hold everything so far of what they tell: only what was not sent yet is.
    pub fn catch_up(&mut self, pieces: &[Piece]) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in pieces {
            let (kind, message, delta) = match piece {
                Piece::Text { message, delta } => (Kind::Text, message, delta),
                Piece::Reasoning { message, delta } => (Kind::Reasoning, message, delta),
                Piece::Discard | Piece::Call { .. } | Piece::Result { .. } | Piece::State { .. } => {
                    events.extend(self.show(piece));
                    continue;
                }
            };
            let sent = self.sent(&(kind, message.clone()));
            let Some(rest) = delta.get(sent..).filter(|rest| !rest.is_empty()) else { continue };
            let rest = rest.to_owned();
            events.extend(self.show(&match kind {
                Kind::Text => Piece::Text { message: message.clone(), delta: rest },
                Kind::Reasoning => Piece::Reasoning { message: message.clone(), delta: rest },
            }));
        }
        events
    }

    /// Ends what is open, because another slice goes on with the run: what it says under the same name, the one before
    /// it having died, is another message.
    pub fn next_slice(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.close_all(&mut events);
        for opened in self.messages.values_mut() {
            opened.is_stale = true;
        }
        events
    }

    /// Bytes that were sent of a message, if it still goes on.
    fn sent(&self, key: &(Kind, String)) -> usize {
        self.messages.get(key).filter(|opened| !opened.is_stale).map_or(0, |opened| opened.sent)
    }

    /// Something that a tool shows beside the conversation: it opens and closes nothing.
    pub fn view(&self, value: RawJson) -> Event {
        Event::Custom { name: VIEW, value }
    }

    /// Shows the client the whole list. Only where the client has none of this run's messages open.
    pub fn snapshot(&mut self, messages: Vec<Message>) -> Vec<Event> {
        let mut events = Vec::new();
        self.close_all(&mut events);
        events.push(Event::MessagesSnapshot { messages });
        events
    }

    /// The last events. `messages` is the thread as it stands, for a run that has changed nothing.
    pub fn end(mut self, end: End, messages: impl FnOnce() -> Vec<Message>) -> Vec<Event> {
        let mut events = Vec::new();
        self.close_all(&mut events);
        let finished = |outcome| Event::RunFinished {
            thread_id: self.thread.clone(),
            run_id: self.run.clone(),
            outcome,
        };
        match end {
            End::Finished => events.push(finished(None)),
            End::Unchanged => {
                events.push(Event::MessagesSnapshot { messages: messages() });
                events.push(finished(None));
            }
            // An empty list is refused by every client.
            End::Interrupted { interrupts } if interrupts.is_empty() => events.push(finished(None)),
            End::Interrupted { interrupts } => events.push(finished(Some(Outcome::Interrupt { interrupts }))),
            End::Failed { code, message } => events.push(Event::RunError { message, code }),
        }
        events
    }

    fn say(&mut self, kind: Kind, message: &str, delta: &str, events: &mut Vec<Event>) {
        if delta.is_empty() {
            return;
        }
        let key = (kind, message.to_owned());
        let sent = self.sent(&key);
        if !self.messages.get(&key).is_some_and(|opened| opened.is_open) {
            let id = self.fresh(match kind {
                Kind::Text => message.to_owned(),
                Kind::Reasoning => reasoning_id(message),
            });
            // One text and one span of reasoning at a time.
            self.close(kind, events);
            match kind {
                Kind::Text => {
                    events.push(Event::TextMessageStart { message_id: id.clone(), role: "assistant" });
                }
                Kind::Reasoning => {
                    events.push(Event::ReasoningStart { message_id: id.clone() });
                    events.push(Event::ReasoningMessageStart { message_id: id.clone(), role: "reasoning" });
                }
            }
            self.messages.insert(key.clone(), Opened { id, sent, is_open: true, is_stale: false });
        }
        let Some(opened) = self.messages.get_mut(&key) else { return };
        opened.sent += delta.len();
        let (message_id, delta) = (opened.id.clone(), delta.to_owned());
        events.push(match kind {
            Kind::Text => Event::TextMessageContent { message_id, delta },
            Kind::Reasoning => Event::ReasoningMessageContent { message_id, delta },
        });
    }

    fn call(&mut self, message: &str, call: &str, name: &str, arguments: &str, events: &mut Vec<Event>) {
        if !self.calls.insert(call.to_owned()) {
            return;
        }
        self.close_all(events);
        // The message that carries the step's text; without one the id exists through the call alone.
        let key = (Kind::Text, message.to_owned());
        let parent_message_id = match self.messages.get(&key) {
            Some(owner) => owner.id.clone(),
            None => {
                let id = self.fresh(message.to_owned());
                let owner = Opened { id: id.clone(), sent: 0, is_open: false, is_stale: false };
                self.messages.insert(key, owner);
                id
            }
        };
        let tool_call_id = call.to_owned();
        events.push(Event::ToolCallStart {
            tool_call_id: tool_call_id.clone(),
            tool_call_name: name.to_owned(),
            parent_message_id,
        });
        if !arguments.is_empty() {
            let delta = arguments.to_owned();
            events.push(Event::ToolCallArgs { tool_call_id: tool_call_id.clone(), delta });
        }
        events.push(Event::ToolCallEnd { tool_call_id });
    }

    /// An id that was not used in this stream: the asked one, or the first of its kind.
    fn fresh(&mut self, asked: String) -> String {
        // No client takes an empty one.
        let asked = if asked.is_empty() { "message".to_owned() } else { asked };
        let mut id = asked.clone();
        let mut generation = 2_u32;
        while !self.used.insert(id.clone()) {
            id = format!("{asked}.{generation}");
            generation = generation.saturating_add(1);
        }
        id
    }

    fn close(&mut self, kind: Kind, events: &mut Vec<Event>) {
        for ((of, _), opened) in &mut self.messages {
            if *of != kind || !opened.is_open {
                continue;
            }
            opened.is_open = false;
            let message_id = opened.id.clone();
            match kind {
                Kind::Text => events.push(Event::TextMessageEnd { message_id }),
                Kind::Reasoning => {
                    events.push(Event::ReasoningMessageEnd { message_id: message_id.clone() });
                    events.push(Event::ReasoningEnd { message_id });
                }
            }
        }
    }

    fn close_all(&mut self, events: &mut Vec<Event>) {
        self.close(Kind::Reasoning, events);
        self.close(Kind::Text, events);
    }
}
