//! From stored rows to a valid request: one total, pure function (I5, I9).
//!
//! Calls and results are matched by id anywhere in the view, never by neighbourhood; a call's results are
//! emitted right behind it in call order and whatever stood between moves behind them. What cannot be sent is
//! left out and counted. Only a call that somebody is still working on is an error.

use std::collections::{BTreeMap, BTreeSet};

use super::compacted::Front;
use super::request::{
    AssistantMessage, ModelRequest, RequestCall, RequestMessage, RequestReasoning, RequestResult,
    ToolDefinition,
};
use super::wire::{WireIds, check, wire_arguments};
use super::{History, image, wording};
use crate::message::{
    CallId, ContentPart, EventItem, ItemBody, Outcome, ReasoningItem, ToolCallItem, ToolResultItem, is_blank,
};

/// The tool name under which events are shown to a model; it may not call it.
pub const EVENT_TOOL: &str = "receive_event__injected";

/// What a request is made for.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// The agent's system prompt.
    pub system: Option<String>,
    /// The model that answers; reasoning of another one stays out.
    pub model: String,
    /// Whether it takes images.
    pub image_input: bool,
    /// What it may call.
    pub tools: Vec<ToolDefinition>,
    /// A bound on its response.
    pub max_output_tokens: Option<u32>,
}

/// A request, and what was left out of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// The request.
    pub request: ModelRequest,
    /// Results without a call, or beyond the first of their call.
    pub orphan_results: usize,
    /// Rows of unknown kind.
    pub unknown_rows: usize,
}

/// Why a request cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Somebody is still working on calls of this history.
    #[error("{} call(s) are still open", .0.len())]
    OpenCalls(Vec<CallId>),
    /// There is nothing to answer.
    #[error("the history holds nothing to answer")]
    Empty,
    /// A bug of ours: the rendered request breaks a rule that every provider has.
    #[error("the rendered request is invalid: {0}")]
    Invalid(String),
}

impl History {
    /// The request for the next response.
    pub fn render_history(&self, options: &RenderOptions) -> Result<Rendered, RenderError> {
        let open = self.open_calls().map(|pending| &pending.call).collect();
        if let Some(checkpoint) = self.checkpoint_sent() {
            let shown = self.shown(Front::Checkpoint);
            match render(shown.iter().map(AsRef::as_ref), &open, options) {
                Ok(mut rendered) => {
                    rendered.request.checkpoint = checkpoint.to_vec();
                    return Ok(rendered);
                }
                // Behind it there is nothing to answer; the summary is something.
                Err(RenderError::Empty) => {}
                Err(e) => return Err(e),
            }
        }
        let shown = self.shown(Front::Summary);
        render(shown.iter().map(AsRef::as_ref), &open, options)
    }
}

/// Renders `items`. `open` are the calls that somebody is working on.
pub fn render<'a>(
    items: impl Iterator<Item = &'a ItemBody>,
    open: &BTreeSet<&CallId>,
    options: &RenderOptions,
) -> Result<Rendered, RenderError> {
    let items: Vec<&ItemBody> = items.collect();
    let results = Results::index(&items, open);
    let mut out = Builder::new(options, &results);
    for item in &items {
        out.item(item);
    }
    out.flush();
    let unanswered: Vec<CallId> = out.unanswered.iter().filter(|call| open.contains(call)).cloned().collect();
    if !unanswered.is_empty() {
        return Err(RenderError::OpenCalls(unanswered));
    }
    out.finish(&items)
}

/// The first result of each call, wherever it stands.
struct Results<'a> {
    by_call: BTreeMap<&'a CallId, Settled<'a>>,
    total: usize,
}

#[derive(Clone, Copy)]
enum Settled<'a> {
    Result(&'a ToolResultItem),
    ByUser,
    ByEvent,
}

impl<'a> Results<'a> {
    fn index(items: &[&'a ItemBody], open: &BTreeSet<&CallId>) -> Self {
        let mut by_call = BTreeMap::new();
        let mut total = 0;
        let mut unanswered: Vec<&CallId> = Vec::new();
        for item in items {
            match item {
                // A call that somebody works on is open, whatever stands behind it (R1): its result would be
                // dropped for ever if an event were taken for its interruption.
                ItemBody::ToolCall(call) if open.contains(&call.call_id) => {}
                ItemBody::ToolCall(call) => unanswered.push(&call.call_id),
                ItemBody::ToolResult(result) => {
                    total += 1;
                    by_call.entry(&result.call_id).or_insert(Settled::Result(result));
                }
                ItemBody::Interrupt(marker) => {
                    by_call.entry(&marker.call_id).or_insert(Settled::ByUser);
                }
                ItemBody::Event(_) => {
                    // No marker was written: the event is the record that it interrupted what was open. A
                    // real result behind it would be late, so it may not win over the inference later on.
                    for call in unanswered.drain(..) {
                        by_call.entry(call).or_insert(Settled::ByEvent);
                    }
                }
                ItemBody::System(_)
                | ItemBody::User(_)
                | ItemBody::Assistant(_)
                | ItemBody::BackendToolCall(_)
                | ItemBody::Reasoning(_)
                | ItemBody::State(_)
                | ItemBody::Unknown { .. } => {}
            }
        }
        Self { by_call, total }
    }
}

struct Builder<'a> {
    options: &'a RenderOptions,
    results: &'a Results<'a>,
    system: Vec<&'a str>,
    messages: Vec<RequestMessage>,
    assistant: AssistantMessage,
    calls: Vec<&'a ToolCallItem>,
    ids: WireIds,
    shown_calls: BTreeSet<&'a CallId>,
    emitted_results: usize,
    unanswered: Vec<CallId>,
    unknown_rows: usize,
    /// How many messages there were when each turn began.
    turn_starts: Vec<usize>,
    /// The response being gathered has reasoning that cannot be sent.
    lost_reasoning: bool,
    /// Turns whose reasoning is not whole.
    broken_turns: BTreeSet<usize>,
}

impl<'a> Builder<'a> {
    fn new(options: &'a RenderOptions, results: &'a Results<'a>) -> Self {
        Self {
            options,
            results,
            system: Vec::new(),
            messages: Vec::new(),
            assistant: AssistantMessage::default(),
            calls: Vec::new(),
            ids: WireIds::default(),
            shown_calls: BTreeSet::new(),
            emitted_results: 0,
            unanswered: Vec::new(),
            unknown_rows: 0,
            turn_starts: Vec::new(),
            lost_reasoning: false,
            broken_turns: BTreeSet::new(),
        }
    }

    fn item(&mut self, item: &'a ItemBody) {
        if item.starts_turn() {
            self.flush();
            self.turn_starts.push(self.messages.len());
        }
        match item {
            ItemBody::System(system) => {
                if !is_blank(&system.text) {
                    self.system.push(&system.text);
                }
            }
            ItemBody::User(user) => {
                self.flush();
                self.user(self.parts(&user.parts));
            }
            ItemBody::Reasoning(reasoning) => {
                if !self.calls.is_empty() {
                    self.flush();
                }
                self.reasoning(reasoning);
            }
            ItemBody::Assistant(assistant) => {
                if !self.calls.is_empty() {
                    self.flush();
                }
                self.say(&assistant.text);
            }
            ItemBody::BackendToolCall(call) => self.say(&call.summary),
            ItemBody::ToolCall(call) => self.calls.push(call),
            ItemBody::ToolResult(_) | ItemBody::Interrupt(_) => self.flush(),
            ItemBody::Event(event) => {
                self.flush();
                self.event(event);
            }
            // What is shared is told in the system prompt, if at all.
            ItemBody::State(_) => {}
            ItemBody::Unknown { .. } => self.unknown_rows += 1,
        }
    }

    fn say(&mut self, text: &str) {
        if is_blank(text) {
            return;
        }
        match &mut self.assistant.text {
            Some(before) => {
                before.push('\n');
                before.push_str(text);
            }
            None => self.assistant.text = Some(text.to_owned()),
        }
    }

    fn reasoning(&mut self, item: &ReasoningItem) {
        let signature = item.signature.as_ref().filter(|signature| !is_blank(signature));
        let proven = signature.is_some() || item.provider.is_some();
        if proven && item.model == self.options.model {
            self.assistant.reasoning.push(RequestReasoning {
                text: item.text.clone(),
                signature: signature.cloned(),
                provider: item.provider.clone(),
            });
        } else {
            self.lost_reasoning = true;
        }
    }

    /// The turn that the message at `index` belongs to.
    fn turn_of(&self, index: usize) -> usize {
        self.turn_starts.partition_point(|start| *start <= index)
    }

    /// F40: a turn's reasoning goes back whole or not at all.
    fn drop_broken_reasoning(&mut self) {
        for index in 0..self.messages.len() {
            let broken = self.broken_turns.contains(&self.turn_of(index));
            if let (RequestMessage::Assistant(said), true) = (&mut self.messages[index], broken) {
                said.reasoning.clear();
            }
        }
    }

    fn user(&mut self, parts: Vec<ContentPart>) {
        if parts.is_empty() {
            return;
        }
        match self.messages.last_mut() {
            Some(RequestMessage::User(before)) => before.extend(parts),
            Some(RequestMessage::Assistant(_) | RequestMessage::ToolResults(_)) | None => {
                self.messages.push(RequestMessage::User(parts));
            }
        }
    }

    /// Blank text goes; what this model cannot take becomes a note.
    fn parts(&self, parts: &[ContentPart]) -> Vec<ContentPart> {
        let shown = |part: &ContentPart| match part {
            ContentPart::Text(_) => part.clone(),
            ContentPart::Image { .. } if !self.options.image_input => {
                ContentPart::text(wording::IMAGE_OMITTED)
            }
            ContentPart::Image { data, .. } if image::is_acceptable(data) => part.clone(),
            ContentPart::Image { .. } => ContentPart::text(wording::IMAGE_UNUSABLE),
            ContentPart::Unknown(_) => ContentPart::text(wording::UNKNOWN_CONTENT),
        };
        parts.iter().filter(|part| !part.is_blank()).map(shown).collect()
    }

    /// Closes the assistant message: its calls, and their results right behind it in call order.
    fn flush(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        let mut message = std::mem::take(&mut self.assistant);
        let mut results = Vec::new();
        for call in calls {
            let id = self.ids.take(&call.call_id);
            let (arguments, problem) = wire_arguments(&call.arguments);
            // A second row of the same call has no result of its own.
            let first = self.shown_calls.insert(&call.call_id);
            let settled = self.results.by_call.get(&call.call_id);
            if settled.is_none() && first {
                self.unanswered.push(call.call_id.clone());
            }
            results.push(self.result(&id, call, settled.copied().filter(|_| first), problem));
            message.calls.push(RequestCall {
                id,
                name: call.name.clone(),
                arguments,
                // As reasoning: only the model that signed it takes it back (F39, F42).
                signature: call
                    .signature
                    .clone()
                    .filter(|signature| call.model == self.options.model && !is_blank(signature)),
            });
        }
        let lost = std::mem::take(&mut self.lost_reasoning);
        if message.text.is_none() && message.calls.is_empty() {
            // Reasoning alone is never sent.
            return;
        }
        if lost {
            self.broken_turns.insert(self.turn_of(self.messages.len()));
        }
        self.assistant_message(message);
        if !results.is_empty() {
            self.messages.push(RequestMessage::ToolResults(results));
        }
    }

    fn assistant_message(&mut self, mut message: AssistantMessage) {
        let turn = self.turn_of(self.messages.len());
        let turn_before = self.turn_of(self.messages.len().saturating_sub(1));
        if let Some(RequestMessage::Assistant(before)) = self.messages.last_mut() {
            // The message before has no calls, or their results would stand between. Reasoning must precede
            // the text of its own response, so of two merged responses it is left out. An event is no response.
            let responses = message.text.is_some() || !message.reasoning.is_empty();
            if responses && !(before.reasoning.is_empty() && message.reasoning.is_empty()) {
                self.broken_turns.extend([turn_before, turn]);
            }
            match (&mut before.text, message.text.take()) {
                (Some(text), Some(more)) => {
                    text.push('\n');
                    text.push_str(&more);
                }
                (text @ None, more) => *text = more,
                (Some(_), None) => {}
            }
            before.calls.append(&mut message.calls);
        } else {
            self.messages.push(RequestMessage::Assistant(message));
        }
    }

    fn result(
        &mut self,
        id: &CallId,
        call: &ToolCallItem,
        settled: Option<Settled<'_>>,
        problem: Option<String>,
    ) -> RequestResult {
        let text = |text: String| vec![ContentPart::Text(text)];
        let (parts, is_error) = match settled {
            Some(Settled::Result(result)) => {
                self.emitted_results += 1;
                let mut parts = self.parts(&result.parts);
                if parts.is_empty() {
                    parts = text(wording::blank_outcome(&result.outcome, &call.name));
                }
                (parts, !matches!(result.outcome, Outcome::Ok | Outcome::Unknown(_)))
            }
            Some(Settled::ByUser) => (text(wording::interrupted_by_user(&call.name)), true),
            Some(Settled::ByEvent) => (text(wording::interrupted_by_event(&call.name)), true),
            None => (text(problem.unwrap_or_else(|| wording::lost(&call.name))), true),
        };
        RequestResult { id: id.clone(), name: call.name.clone(), parts, is_error }
    }

    fn event(&mut self, event: &EventItem) {
        let id = self.ids.take(&event.call_id);
        let arguments = serde_json::json!({
            "original_tool_name": event.original_tool_name,
            "original_tool_call_id": event.original_tool_call_id,
            "original_args": event.original_args,
        });
        let mut parts = self.parts(&event.parts);
        if parts.is_empty() {
            parts = vec![ContentPart::text(wording::NO_OUTPUT)];
        }
        self.assistant_message(AssistantMessage {
            calls: vec![RequestCall {
                id: id.clone(),
                name: EVENT_TOOL.to_owned(),
                arguments: arguments.to_string(),
                signature: None,
            }],
            ..AssistantMessage::default()
        });
        self.messages.push(RequestMessage::ToolResults(vec![RequestResult {
            id,
            name: EVENT_TOOL.to_owned(),
            parts,
            is_error: false,
        }]));
    }

    fn finish(mut self, items: &[&ItemBody]) -> Result<Rendered, RenderError> {
        self.drop_broken_reasoning();
        let note = |text: &str| RequestMessage::User(vec![ContentPart::text(text)]);
        match self.messages.last() {
            None => return Err(RenderError::Empty),
            Some(RequestMessage::Assistant(_)) => self.messages.push(note(wording::CONTINUE)),
            Some(RequestMessage::User(_) | RequestMessage::ToolResults(_)) => {}
        }
        if !matches!(self.messages.first(), Some(RequestMessage::User(_))) {
            self.messages.insert(0, note(wording::START));
        }
        let prompts = self.options.system.iter().map(String::as_str).filter(|text| !is_blank(text));
        let system: Vec<&str> = prompts.chain(self.system.iter().copied()).collect();
        let request = ModelRequest {
            system: (!system.is_empty()).then(|| system.join("\n\n")),
            messages: self.messages,
            tools: self.options.tools.clone(),
            max_output_tokens: self.options.max_output_tokens,
            checkpoint: Vec::new(),
            without_thoughts: false,
        };
        check(&request).map_err(RenderError::Invalid)?;
        debug_assert!(items.len() >= self.unknown_rows);
        Ok(Rendered {
            request,
            orphan_results: self.results.total - self.emitted_results,
            unknown_rows: self.unknown_rows,
        })
    }
}
