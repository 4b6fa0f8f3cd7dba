//! META: what is known of a thread beside its items.

use serde::{Deserialize, Serialize};

use super::{CompactionState, Extra, GenerationId, Position, Rewrite, TextOf};
use crate::message::{
    CallId, Compact, CompactionReport, Epoch, Firing, ItemId, MessageId, RawJson, Seq, ThreadId,
};
use crate::model::Usage;

/// Causes of committed inputs that META remembers.
pub const RECENT_CAUSES: usize = 32;

/// A thread's state. Attributes that this version does not know stay in the row untouched.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    /// The thread.
    pub thread: ThreadId,
    /// The root of its tree; itself for a root.
    pub root: ThreadId,
    /// Who spawned it.
    pub parent: Option<ThreadId>,
    /// Root first, parent last; empty on a root.
    pub ancestors: Vec<ThreadId>,
    /// The call that made it: its parent's `spawn_thread`, or the subscribing call of an event.
    pub origin: Option<CallId>,
    /// What it is for.
    pub kind: ThreadKind,
    /// The principal that made it.
    pub owner: Option<String>,
    /// The agent that runs it, fixed at creation.
    pub agent: String,
    /// Milliseconds since the epoch.
    pub created_at_ms: i64,
    /// The current log.
    pub epoch: Epoch,
    /// The seq the next item gets.
    pub head: Seq,
    /// Inherited spans, oldest first.
    pub base: Vec<Span>,
    /// Takes no input any more.
    pub closed: bool,
    /// The index that the next turn gets.
    pub next_turn: u32,
    /// The opener of the current turn.
    pub turn_id: Option<ItemId>,
    /// Where the newest state stands that the thread shares with its user's application.
    pub state: Option<Position>,
    /// Calls without a result, in call order.
    pub pending: Vec<PendingCall>,
    /// What the last commit promised to send.
    pub outbox: Vec<OutboxEntry>,
    /// Causes whose slice has committed something but is not finished.
    pub open: Vec<MessageId>,
    /// Causes of the last inputs, newest last, at most 32.
    pub recent: Vec<MessageId>,
    /// Causes seen with a receive count above 1.
    pub redelivered: Vec<MessageId>,
    /// Slices since the last outside input, a bound on self-caused work.
    pub self_caused: u32,
    /// What of old tool results requests hold.
    pub prune: Prune,
    /// The newest summary, and the attempts at the next one. A slice's commit leaves them as they are, unless it says so.
    pub compaction: CompactionState,
    /// The summary that the last request was made with.
    pub shown: Option<GenerationId>,
    /// What was asked for of compaction.
    pub asked: Asked,
    /// Which images requests do not hold.
    pub images_out: ImagesOut,
    /// Which results requests do not hold, for want of room.
    pub results_out: ResultsOut,
    /// The window that a provider has named when a request was too large for it.
    pub window: Option<NamedWindow>,
    /// Usage of the last response.
    pub usage: Option<Usage>,
    /// The client's run that is under way.
    pub run: Option<String>,
    /// Opaque, root only; comes back on every output.
    pub metadata: Option<RawJson>,
    /// The token of the last commit: how a writer knows its own commit again.
    pub token: String,
    /// What the snapshot of a newer version said of this thread.
    pub extra: Extra,
}

/// The field of [`Meta::extra`] that lists what a reader must know to show the thread rightly.
const REQUIRES: &str = "requires";

impl Meta {
    /// A new root thread's state.
    pub fn new_root(
        thread: ThreadId,
        agent: impl Into<String>,
        owner: Option<String>,
        created_at_ms: i64,
    ) -> Self {
        Self {
            root: thread.clone(),
            thread,
            parent: None,
            ancestors: Vec::new(),
            origin: None,
            kind: ThreadKind::Root,
            owner,
            agent: agent.into(),
            created_at_ms,
            epoch: Epoch(0),
            head: Seq::FIRST,
            base: Vec::new(),
            closed: false,
            next_turn: 0,
            turn_id: None,
            state: None,
            pending: Vec::new(),
            outbox: Vec::new(),
            open: Vec::new(),
            recent: Vec::new(),
            redelivered: Vec::new(),
            self_caused: 0,
            prune: Prune::default(),
            compaction: CompactionState::default(),
            shown: None,
            asked: Asked::default(),
            images_out: ImagesOut::default(),
            results_out: ResultsOut::default(),
            window: None,
            usage: None,
            run: None,
            metadata: None,
            token: String::new(),
            extra: Extra::new(),
        }
    }

    /// What the last commit told the user; never part of the history.
    pub fn notices(&self) -> Vec<&str> {
        self.outbox.iter().filter_map(|entry| entry.promise.notice()).collect()
    }

    /// What is left of an erased thread: that it was there, and that it is closed.
    pub fn erased(self) -> Self {
        Self {
            root: self.root,
            parent: self.parent,
            kind: self.kind,
            epoch: self.epoch,
            closed: true,
            token: self.token,
            ..Self::new_root(self.thread, self.agent, self.owner, self.created_at_ms)
        }
    }

    /// Puts what it holds of somebody's words through `rewrite`; says whether anything has changed. But for ends of runs none of it
    /// is of a form of ours.
    pub fn rewrite_texts(&mut self, rewrite: &Rewrite<'_>) -> bool {
        let mut changed = false;
        let mut renew_as = |of: TextOf, text: &mut String| {
            if let Some(new) = rewrite(of, text) {
                *text = new;
                changed = true;
            }
        };
        for entry in &mut self.outbox {
            // What is asked quotes arguments, and what a tool wants to know; its form is ours.
            if let Promise::RunEnd { end, .. } = &mut entry.promise {
                renew_as(TextOf::State, end);
            }
        }
        let mut renew = |text: &mut String| renew_as(TextOf::Opaque, text);
        for entry in &mut self.outbox {
            match &mut entry.promise {
                Promise::Notice { text } => renew(text),
                Promise::OAuth { auth_url, .. } => renew(auth_url),
                Promise::Answer { response_url, .. } => renew(response_url),
                Promise::Compact { request } => request.focus.iter_mut().for_each(&mut renew),
                _ => {}
            }
        }
        self.asked.due.iter_mut().flat_map(|due| &mut due.focus).for_each(&mut renew);
        let renewed = |text: &str| rewrite(TextOf::Opaque, text).and_then(|new| RawJson::parse(&new).ok());
        if let Some(metadata) = self.metadata.as_ref().and_then(|metadata| renewed(metadata.get())) {
            self.metadata = Some(metadata);
            changed = true;
        }
        let extra = serde_json::to_string(&self.extra).unwrap_or_default();
        if let Some(extra) = rewrite(TextOf::Opaque, &extra).and_then(|new| serde_json::from_str(&new).ok()) {
            self.extra = extra;
            changed = true;
        }
        changed
    }

    /// Whether only a newer version knows what parts of this thread are to be shown: this one must not go on with it.
    pub fn needs_newer_version(&self) -> bool {
        self.extra.get(REQUIRES).and_then(|known| known.as_array()).is_some_and(|parts| !parts.is_empty())
    }

    /// Of a fork: the thread that it began as a copy of. The log of an import is of no thread.
    pub fn forked_from(&self) -> Option<&ThreadId> {
        let mut others = self.base.iter().rev().map(|span| &span.thread).filter(|of| **of != self.thread);
        let is_thread = |of: &&ThreadId| of.as_str().bytes().all(|byte| byte.is_ascii_graphic());
        others.next().filter(|_| self.parent.is_none()).filter(is_thread)
    }

    /// The pending entry of `call`.
    pub fn pending_call(&self, call: &CallId) -> Option<&PendingCall> {
        self.pending.iter().find(|pending| &pending.call == call)
    }

    /// The log that each item of the thread's view is in, in order.
    pub fn logs(&self) -> impl Iterator<Item = (&ThreadId, Epoch)> {
        let inherited = self
            .base
            .iter()
            .flat_map(|span| (span.from.0..span.to.0).map(move |_| (&span.thread, span.epoch)));
        inherited.chain((Seq::FIRST.0..self.head.0).map(|_| (&self.thread, self.epoch)))
    }

    /// Remembers a finished cause.
    pub fn remember(&mut self, cause: &MessageId) {
        if !self.recent.contains(cause) {
            self.recent.push(cause.clone());
        }
        let excess = self.recent.len().saturating_sub(RECENT_CAUSES);
        self.recent.drain(..excess);
    }
}

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadKind {
    /// A conversation of its own.
    Root,
    /// Spawned by a parent.
    Child,
    /// Runs one event for its parent.
    Event,
    /// Summarises its parent.
    Compaction,
}

/// A piece of a log that a thread inherits: `(log, from, to]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Whose log.
    pub thread: ThreadId,
    /// Which log.
    pub epoch: Epoch,
    /// Exclusive lower end.
    pub from: Seq,
    /// Inclusive upper end.
    pub to: Seq,
}

/// The overlay of results that a request had no room for when they were committed already.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultsOut {
    /// Of which log.
    pub epoch: Epoch,
    /// The items, oldest first; at most a bounded number.
    pub seqs: Vec<Seq>,
}

/// A model's window as its provider has named it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedWindow {
    /// Whose: of another model nothing is known.
    pub model: String,
    /// Tokens.
    pub tokens: u64,
    /// What was configured then: with another window the model may be another one under the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<u64>,
}

/// What a thread has asked of compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// For which state of the thread the background was asked last: once for each.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Asked for while a call was open: to be asked for again once none is (C19).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Compact>,
    /// The last request began with a provider's checkpoint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub checkpoint: bool,
}

/// The overlay of pruning. All boundaries are turn indexes and only move forward, but for a rewind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prune {
    /// Results of turns before it are shortened.
    pub soft_before: u32,
    /// Results of turns before it are cleared.
    pub hard_before: u32,
    /// The turn at whose start the overlay was last changed: reasoning from before is bound to another view.
    pub since_turn: u32,
}

/// The overlay of images that are left out of requests. The boundary only moves forward, but for a rewind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagesOut {
    /// Those of the first so many items of the thread's spans and log are out, for want of room,
    #[serde(default)]
    pub before: u64,
    /// and so many of the item behind them.
    #[serde(default)]
    pub nth: u32,
    /// Digests of images that a provider has refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// A call without a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingCall {
    /// The call.
    pub call: CallId,
    /// Its item.
    pub seq: Seq,
    /// Its tool.
    pub name: String,
    /// It only waits: an event may interrupt it freely.
    #[serde(default)]
    pub passive: bool,
    /// It runs inside the slice; open only between two commits of one slice.
    #[serde(default)]
    pub synchronous: bool,
    /// The tool server it goes to.
    #[serde(default)]
    pub server: Option<String>,
    /// Its result is in, parked until the step's others are.
    #[serde(default)]
    pub parked: bool,
    /// Why it is not sent yet; absent: it went out with its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// What its tool server is given.
    #[serde(default, skip_serializing_if = "Terms::are_none")]
    pub terms: Terms,
    /// The messages that caused it.
    #[serde(default)]
    pub cause: Vec<MessageId>,
    /// The principal on whose behalf it runs.
    #[serde(default)]
    pub user: Option<String>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a tool server is given, of what counts for its calls while they wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Whoever permits a call may change its arguments.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub editable: bool,
    /// Milliseconds that it may wait for the user's word; none: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consent_ms: Option<i64>,
    /// Milliseconds that it may wait for its result once it is out; none: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_ms: Option<i64>,
    /// When the time is up that it waits now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Due>,
}

/// When a call has waited long enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Due {
    /// Milliseconds since the epoch.
    At(i64),
    /// What no version of ours has written: an answer is not taken for one that is in time.
    Unreadable(serde_json::Value),
}

impl Terms {
    fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// The user is asked: until when there may be an answer.
    pub fn begin_consent(&mut self, now_ms: i64) {
        self.due = self.consent_ms.map(|ms| Due::At(now_ms.saturating_add(ms)));
    }

    /// It goes out: until when there may be a result.
    pub fn begin_result(&mut self, now_ms: i64) {
        self.due = self.result_ms.map(|ms| Due::At(now_ms.saturating_add(ms)));
    }
}

/// What a call waits for before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Its server takes one call of a thread at a time, and another one is out.
    Turn,
    /// The user is asked whether it may run.
    Consent,
    /// The same, and then it waits for its turn.
    ConsentThenTurn,
}

impl Hold {
    /// Whether the user's word is needed.
    pub fn needs_consent(self) -> bool {
        matches!(self, Self::Consent | Self::ConsentThenTurn)
    }
}

impl PendingCall {
    /// Whether the user is, or is about to be, asked whether it may run.
    pub fn needs_consent(&self) -> bool {
        self.hold.is_some_and(Hold::needs_consent)
    }

    /// Whether the question called `choice` is one of this call as it stands: of its tool once it is out, before that
    /// whether it may run.
    pub fn is_asked_by(&self, choice: &CallId) -> bool {
        match self.needs_consent() {
            true => *choice == self.call.permission(),
            false => *choice == self.call || *choice == self.call.authorization(),
        }
    }
}

/// Something a commit promised to send. Sending is at least once, under a stable id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutboxEntry {
    /// Stable over resends.
    pub id: String,
    /// The messages that caused it.
    pub cause: Vec<MessageId>,
    /// The largest sequence number among them: once a later message is delivered, this was sent.
    #[serde(default)]
    pub sequence: String,
    /// What.
    pub promise: Promise,
}

/// What an outbox entry sends: references, never bodies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Promise {
    /// Dispatch the pending call.
    Call {
        /// Which.
        call: CallId,
    },
    /// Tell its server that the call is cancelled.
    Cancel {
        /// Which.
        call: CallId,
        /// To whom; none: nobody outside knows of it.
        server: Option<String>,
    },
    /// Publish the text and the calls of the items in `[from, to)`.
    Reply {
        /// The first item of the response.
        from: Seq,
        /// The seq behind its last one.
        to: Seq,
        /// Calls that the runtime refused at once: never shown. What settles a call later must not change what
        /// is published under one id.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        refused: Vec<CallId>,
    },
    /// Tell the user that something went wrong; a short text of ours, without content.
    Notice {
        /// What to say.
        text: String,
    },
    /// Show the user where to consent. The address lives here and in the open question alone.
    OAuth {
        /// The call that waits.
        call: CallId,
        /// Where.
        auth_url: String,
    },
    /// Show the user the choice stored under `call`.
    Choice {
        /// The call that waits.
        call: CallId,
    },
    /// Tell the tool what the user chose, and everybody that the question is over. The address lives here alone.
    Answer {
        /// The call that asked, also the id of the choice.
        call: CallId,
        /// Its server.
        server: Option<String>,
        /// Where the answer is POSTed; empty: it was dormouse itself that asked.
        response_url: String,
        /// Index of the answer.
        selected: usize,
    },
    /// Ask the own queue to release what is still parked.
    Release,
    /// Wake a child that this thread has made.
    Wake {
        /// The child.
        thread: ThreadId,
    },
    /// Send a report to the parent; its text is among the arguments of `call`.
    Report {
        /// The parent.
        to: ThreadId,
        /// `report_to_parent` or `close_thread`.
        call: CallId,
    },
    /// Send a message to a child; its text is among the arguments of `call`.
    Message {
        /// The child.
        to: ThreadId,
        /// The call that made the child.
        origin: CallId,
        /// `send_message_to_child`.
        call: CallId,
    },
    /// Set the timer of the next firing of a schedule; what it tells is among the arguments of `call`.
    Schedule {
        /// The call that made it.
        call: CallId,
        /// Which firing, and when.
        firing: Firing,
    },
    /// Tell a client that its run is over.
    RunEnd {
        /// Its name.
        run: String,
        /// How, as JSON; a text of ours at most.
        end: String,
    },
    /// Tell a child that its part of the conversation is over.
    End {
        /// The child.
        thread: ThreadId,
    },
    /// Ask the own queue for a compaction.
    Compact {
        /// How.
        request: Compact,
    },
    /// Tell the thread that a compaction beside it has ended.
    Compacted {
        /// The thread.
        to: ThreadId,
        /// How.
        report: CompactionReport,
    },
    /// Tell every tool server that this thread is closed.
    Closed,
    /// A promise of a newer version: kept as it is, and not for this one to send.
    #[serde(untagged)]
    Unknown(serde_json::Value),
}

impl Promise {
    /// What the user is told, if it is that.
    pub fn notice(&self) -> Option<&str> {
        match self {
            Self::Notice { text } => Some(text),
            Self::Call { .. }
            | Self::Cancel { .. }
            | Self::Reply { .. }
            | Self::OAuth { .. }
            | Self::Choice { .. }
            | Self::Answer { .. }
            | Self::Release
            | Self::Wake { .. }
            | Self::Report { .. }
            | Self::Message { .. }
            | Self::Schedule { .. }
            | Self::RunEnd { .. }
            | Self::End { .. }
            | Self::Compact { .. }
            | Self::Compacted { .. }
            | Self::Closed
            | Self::Unknown(_) => None,
        }
    }
}
