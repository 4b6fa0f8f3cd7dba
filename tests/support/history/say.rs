//! Short spellings for messages, arrivals and model output.

use dormouse::history::{Arrival, History};
use dormouse::message::{
    CallId, ContentPart, DedupId, ImageData, InputContent, InputMessage, MessageId, Synthetic, ThreadId,
    ToolCallItem,
};
use dormouse::model::ModelEvent;

/// The thread of every test.
pub fn thread() -> ThreadId {
    ThreadId::from("th")
}

/// The `n`th message of the thread's queue, under the dedup id `dedup`.
pub fn arrival(n: usize, dedup: &str) -> Arrival {
    Arrival {
        dedup: DedupId::new(dedup),
        cause: MessageId::new(format!("m{n}")),
        key: format!("{n:020}"),
        receives: 1,
        now_ms: n as i64,
    }
}

pub fn user(text: &str) -> InputMessage {
    InputMessage::user_text(thread(), text)
}

pub fn image(url: &str) -> InputMessage {
    let data = ImageData::Url(url.to_owned());
    InputMessage::plain(thread(), InputContent::Image { data, media_type: None })
}

pub fn result(call: &CallId, text: &str) -> InputMessage {
    InputMessage::tool_result(thread(), call.clone(), vec![ContentPart::text(text)])
}

pub fn event(origin: &CallId, text: &str) -> InputMessage {
    let mut message = result(&CallId::new(""), text);
    message.synthetic = Some(Synthetic::SubscriptionEvent {
        tool_call_id: origin.clone(),
        associative: true,
        r#final: false,
    });
    message
}

pub fn report(origin: &CallId, text: &str) -> InputMessage {
    let mut message = result(&CallId::new(""), text);
    message.synthetic = Some(Synthetic::ThreadReport {
        tool_call_id: origin.clone(),
        child_thread_id: ThreadId::from("child"),
    });
    message
}

pub fn says(text: &str) -> ModelEvent {
    ModelEvent::Text(text.to_owned())
}

pub fn thinks(text: &str) -> ModelEvent {
    ModelEvent::ReasoningText(text.to_owned())
}

pub fn signs() -> ModelEvent {
    ModelEvent::ReasoningBlock { signature: Some("sig".to_owned()), provider: None }
}

pub fn calls(provider_id: &str, name: &str, arguments: &str) -> ModelEvent {
    ModelEvent::ToolCall {
        provider_id: provider_id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
        signature: None,
    }
}

/// The model answers: inputs are validated by its first output, the response becomes known-safe.
pub fn answer(history: &mut History, events: &[ModelEvent]) -> Vec<ToolCallItem> {
    history.mark_inputs_model_validated();
    for event in events {
        history.buffer(event);
    }
    history.flush_turn_trimming_reasoning("m", "end_turn", None, 0)
}
