//! Children: how a thread makes them, and how it ends as one. A child is rows in its parent's own commit (F68); what
//! wakes it up lies parked in it, so the outbox need only say its name.

use super::HistoryManager;
use crate::history::rewind::MAX_SPANS;
use crate::history::{Arrival, wording};
use crate::message::{
    CallId, ContentPart, DedupId, Epoch, InputContent, InputMessage, Item, ItemBody, ItemFacts, ItemId,
    MessageId, Outcome, RESERVED_EVENT_TOOL, SPAWN_TOOL, Seq, SettledBy, ThreadId, ToolCallItem,
    ToolResultItem,
};
use crate::store::{Meta, NewThread, ParkedInput, PendingCall, Promise, Span, ThreadKind};
use crate::tools::{Spawn, SpawnContext};

/// Children that one commit may make: with the results of a full step they fit one transaction.
pub const MAX_SPAWNS: usize = 8;
/// Orders the first input of a child before everything that is sent to it.
const FIRST_KEY: &str = "0";

impl HistoryManager {
    /// Makes a child with the next commit and returns its id; none if the commit has enough of them. Its rows begin
    /// with a copy of `call`, whose result wakes it up.
    pub fn spawn(&mut self, call: &CallId, spawn: &Spawn, now_ms: i64) -> Option<ThreadId> {
        let item = self.history.call(call)?.clone();
        let user = self.pending_user(call);
        let child = ThreadId::child(self.history.thread(), call.as_str());
        let above = self.meta.ancestors.iter().chain([self.history.thread()]);
        let stack: Vec<&str> = above.chain([&child]).map(ThreadId::as_str).collect();
        let start = wording::child_start(child.as_str(), &stack, &spawn.instructions);
        let parts = vec![ContentPart::text(start)];
        let message = InputMessage::tool_result(child.clone(), call.clone(), parts);
        let kind = ThreadKind::Child;
        let meta = self.new_child(child, kind, call.clone(), spawn.context, now_ms);
        self.add_child(meta, vec![ItemBody::ToolCall(item)], message, user, now_ms)
    }

    /// Makes a child for one event of the subscription of `origin`: it runs beside this thread.
    pub fn spawn_for_event(
        &mut self,
        origin: &CallId,
        message: &InputMessage,
        arrival: &Arrival,
    ) -> Option<ThreadId> {
        let InputContent::ToolResult(result) = &message.content else { return None };
        if self.children.len() >= MAX_SPAWNS {
            return None;
        }
        // What wakes the child is owed for this message.
        self.work_for(arrival);
        let subscribed = self.history.call(origin).cloned();
        let child = ThreadId::child(self.history.thread(), arrival.dedup.as_str());
        let spawn_call = CallId::mint(&child, Epoch(0), Seq::FIRST);
        let event_call = CallId::mint(&child, Epoch(0), Seq(3));
        let call = |call_id: &CallId, name: &str, arguments: String| {
            ItemBody::ToolCall(ToolCallItem {
                call_id: call_id.clone(),
                provider_id: String::new(),
                name: name.to_owned(),
                arguments,
                signature: None,
                model: String::new(),
            })
        };
        let told = ItemBody::ToolResult(ToolResultItem {
            call_id: spawn_call.clone(),
            outcome: Outcome::Ok,
            parts: vec![ContentPart::text(wording::event_child_start(child.as_str()))],
            settled_by: SettledBy::Runtime,
            display_as: None,
        });
        let arguments = serde_json::json!({
            "original_tool_name": subscribed.as_ref().map(|call| call.name.as_str()),
            "original_tool_call_id": origin.as_str(),
            "original_args": subscribed.as_ref().map(|call| call.arguments.as_str()),
        });
        let items = vec![
            call(&spawn_call, SPAWN_TOOL, "{}".to_owned()),
            told,
            call(&event_call, RESERVED_EVENT_TOOL, arguments.to_string()),
        ];
        let body = InputMessage::tool_result(child.clone(), event_call, result.content.clone());
        let now_ms = arrival.now_ms;
        let meta = self.new_child(child, ThreadKind::Event, origin.clone(), SpawnContext::Inherit, now_ms);
        self.add_child(meta, items, body, self.history.current_user(), now_ms)
    }

    pub(super) fn new_child(
        &self,
        thread: ThreadId,
        kind: ThreadKind,
        origin: CallId,
        context: SpawnContext,
        now_ms: i64,
    ) -> Meta {
        let parent = &self.meta;
        let mut base = match context {
            SpawnContext::Fresh => Vec::new(),
            SpawnContext::Inherit => parent.base.clone(),
        };
        let to = self.safe_spawn_point();
        if context == SpawnContext::Inherit && to > Seq(0) && base.len() < MAX_SPANS {
            base.push(Span { thread: parent.thread.clone(), epoch: parent.epoch, from: Seq(0), to });
        }
        let ancestors = parent.ancestors.iter().cloned().chain([parent.thread.clone()]).collect();
        Meta {
            root: parent.root.clone(),
            parent: Some(parent.thread.clone()),
            ancestors,
            origin: Some(origin),
            kind,
            compaction: self.inherited(&base),
            state: self.history.state_of_child(&base),
            base,
            ..Meta::new_root(thread, parent.agent.clone(), parent.owner.clone(), now_ms)
        }
    }

    /// Gives a child its first items; the last of them is the call that `wake` answers.
    fn add_child(
        &mut self,
        mut meta: Meta,
        items: Vec<ItemBody>,
        wake: InputMessage,
        user: Option<String>,
        now_ms: i64,
    ) -> Option<ThreadId> {
        if self.children.len() >= MAX_SPAWNS {
            return None;
        }
        let child = meta.thread.clone();
        let opener = ItemId::at(Epoch(0), Seq::FIRST);
        let last = Seq(items.len() as u64);
        if let Some(ItemBody::ToolCall(call)) = items.last() {
            meta.pending = vec![PendingCall {
                call: call.call_id.clone(),
                seq: last,
                name: call.name.clone(),
                passive: false,
                synchronous: false,
                server: None,
                hold: None,
                terms: Default::default(),
                parked: true,
                cause: self.working.clone(),
                user: user.clone(),
                extra: Default::default(),
            }];
        }
        let facts = |opens_turn| ItemFacts {
            opens_turn,
            turn_id: Some(opener.clone()),
            user: user.clone(),
            created_at_ms: now_ms,
            ..ItemFacts::default()
        };
        let items: Vec<Item> = items
            .into_iter()
            .enumerate()
            .map(|(at, body)| Item::fresh(Seq::FIRST.plus(at), body, facts(at == 0)))
            .collect();
        meta.head = last.plus(1);
        meta.next_turn = 1;
        meta.turn_id = Some(opener);
        meta.token = DedupId::derive("born", &[child.as_str()]).as_str().to_owned();
        let parked = ParkedInput {
            key: FIRST_KEY.to_owned(),
            dedup: DedupId::derive("start", &[child.as_str()]),
            cause: self.working.first().cloned().unwrap_or_else(|| MessageId::new("")),
            // An InputMessage of ours serialises.
            body: wake.to_body().expect("bug: an input message serialises"),
        };
        self.children.push(NewThread { meta, items, parked: Some(parked) });
        self.promise(Promise::Wake { thread: child.clone() });
        Some(child)
    }

    fn pending_user(&self, call: &CallId) -> Option<String> {
        self.history.open_calls().find(|pending| &pending.call == call)?.user.clone()
    }

    /// The next commit closes the thread.
    pub fn begin_closing(&mut self) {
        self.closing = true;
    }

    /// Closes the thread with the next commit, which is its last one. Calls that are out are settled and cancelled.
    pub fn close(&mut self, now_ms: i64) {
        let out: Vec<PendingCall> =
            self.history.open_calls().filter(|pending| !pending.synchronous).cloned().collect();
        for pending in out {
            let (call, server) = (pending.call, pending.server.filter(|_| pending.hold.is_none()));
            let layer = crate::history::Layer::Safe;
            let by = SettledBy::Runtime;
            self.history.settle(&call, Outcome::Halted, Vec::new(), by, layer, now_ms);
            if server.is_some() {
                self.promise(Promise::Cancel { call, server });
            }
        }
        self.promise(Promise::Closed);
    }

    /// Whether the next commit closes the thread.
    pub fn is_closing(&self) -> bool {
        self.closing
    }
}
