//! The last phase: send what the commits of this slice have promised. Sending is at least once under stable
//! ids; it happens only for what is durable (I3, I4).

use futures::future::join_all;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use super::synchronous::{arguments, invocation};
use super::{DisplayEvent, Runtime, SliceError, choices, dispatch_failed_id, held, runs, schedules};
use crate::history::wording;
use crate::message::{
    CallId, ContentPart, DedupId, InputContent, InputMessage, Item, ItemBody, OutputKind, OutputMessage,
    RawJson, SPAWN_TOOL, Seq, Synthetic, ThreadId, TypedOutput, UserChoiceRequired,
};
use crate::store::{OutboxEntry, PendingCall, Promise, RunChange, Span, ThreadKind};
use crate::thread::HistoryManager;
use crate::tools::builtin::CLOSE_TOOL;
use crate::tools::{Invocation, Registry, ToolError};

/// Characters of a call's arguments in the bracketed line that consumers are shown.
const SHOWN_ARGUMENTS: usize = 200;

/// Sends the outbox: output in order, then calls and notices, all at once. What was sent is struck.
///
/// # Errors
/// A queue that takes nothing, a tool that does not acknowledge before `deadline`, or a promise of a newer version:
/// the record is handed back, and its redelivery resumes here.
pub async fn execute_action(
    runtime: &Runtime,
    registry: &Registry,
    manager: &mut HistoryManager,
    deadline: Instant,
) -> Result<(), SliceError> {
    let owed = manager.owed().to_vec();
    if owed.is_empty() {
        return Ok(());
    }
    if owed.iter().any(|entry| matches!(entry.promise, Promise::Unknown(_))) {
        return Err(SliceError::NewerVersion);
    }
    know_calls(manager, &owed).await?;
    let span = tracing::info_span!("dispatch", entries = owed.len());
    let sending = send(runtime, registry, manager, owed).instrument(span);
    timeout_at(deadline, sending).await.map_err(|_| SliceError::Deadline)?
}

async fn send(
    runtime: &Runtime,
    registry: &Registry,
    manager: &mut HistoryManager,
    owed: Vec<OutboxEntry>,
) -> Result<(), SliceError> {
    for entry in &owed {
        if let Some(message) = output(runtime, manager, entry).await? {
            runtime.output.send(&message).await?;
        }
    }
    let calls = owed.iter().filter_map(|entry| match &entry.promise {
        Promise::Call { call } => due_call(manager, call),
        _ => None,
    });
    let cancels = owed.iter().filter_map(|entry| match &entry.promise {
        Promise::Cancel { call, server: Some(_) } => Some(call),
        _ => None,
    });
    let thread = manager.history().thread().clone();
    let dispatched = join_all(calls.map(|call| dispatch(runtime, registry, call)));
    // To every server, as RAP has it (requirement 47): one may work for another.
    let servers = registry.one_of_each_server();
    let cancelled = join_all(
        cancels
            .flat_map(|call| servers.iter().map(move |tool| (tool, call)))
            .map(|(tool, call)| tool.cancel(&thread, call)),
    );
    let (dispatched, _) = tokio::join!(dispatched, cancelled);
    for result in dispatched {
        result?;
    }
    // Whoever gives up on an input has no tools at hand: the next slice sends what is owed.
    if !registry.is_empty() {
        // After the notices: a dismissal tells the tool of a call that it was told is cancelled.
        choices::deliver(runtime, registry, manager, &owed).await?;
        held::set_expiries(runtime, registry, manager, &owed).await?;
    }
    if owed.iter().any(|entry| entry.promise == Promise::Closed) {
        join_all(servers.into_iter().map(|tool| tool.close(&thread))).await;
    }
    for entry in &owed {
        if let Some(message) = input(manager, &entry.promise) {
            runtime.input.send(&message, &DedupId::new(&entry.id)).await?;
        }
    }
    for entry in &owed {
        if let Promise::RunEnd { run, end } = &entry.promise
            && let Some(runs) = runtime.store.runs()
        {
            let end = RunChange::End(end.clone());
            runs.change_run(&thread, run, &end, runtime.clock.now_ms()).await?;
        }
    }
    schedules::set_timers(runtime, registry, manager, &owed).await?;
    for entry in owed {
        manager.sent(&entry.id);
    }
    Ok(())
}

/// Looks up the calls that the promises name and that a summary stands for: their arguments are what is sent.
async fn know_calls(manager: &mut HistoryManager, owed: &[OutboxEntry]) -> Result<(), SliceError> {
    for entry in owed {
        if let Promise::Report { call, .. } | Promise::Message { call, .. } | Promise::Schedule { call, .. } =
            &entry.promise
        {
            manager.know_call(call).await?;
        }
    }
    Ok(())
}

/// A promised call that is still pending; one that was answered or interrupted since is not sent again.
fn due_call(manager: &HistoryManager, call: &CallId) -> Option<Invocation> {
    let due = |pending: &&PendingCall| &pending.call == call && !pending.parked && pending.hold.is_none();
    // Whoever shows the run shows the call.
    let in_client = |pending: &&PendingCall| pending.server.as_deref() == Some(runs::CLIENT);
    let pending = manager.history().open_calls().find(due).filter(|pending| !in_client(pending))?;
    let item = manager.history().call(call)?;
    Some(invocation(manager, pending, item))
}

/// Dispatches one call. A final failure becomes a result, through the own queue: the model reads it.
async fn dispatch(runtime: &Runtime, registry: &Registry, call: Invocation) -> Result<(), SliceError> {
    let show = DisplayEvent::Call { name: call.name.clone(), arguments: call.arguments.clone() };
    runtime.observer.on_event(&call.thread, &show);
    let started = tokio::time::Instant::now();
    let result = match registry.get(&call.name) {
        Some(tool) => tool.execute(&call).await,
        None => Err(ToolError::Failed(format!("{} is not available any more", call.name))),
    };
    tracing::info!(
        thread = %call.thread,
        call = %call.call,
        tool = call.name,
        bytes = call.arguments.len(),
        duration_ms = started.elapsed().as_millis() as u64,
        ok = result.is_ok(),
        "dispatch"
    );
    if let Err(e) = result {
        let dedup = dispatch_failed_id(&call.thread, &call.call);
        let text = format!("Error: {e}");
        let result = InputMessage::tool_result(call.thread, call.call, vec![ContentPart::Text(text)]);
        runtime.input.send(&result, &dedup).await?;
    }
    Ok(())
}

/// The input, of this thread or a related one, that a promise stands for.
fn input(manager: &HistoryManager, promise: &Promise) -> Option<InputMessage> {
    let own = manager.history().thread();
    match promise {
        Promise::Release => Some(InputMessage::plain(own.clone(), InputContent::Release)),
        Promise::Wake { thread } => Some(InputMessage::plain(thread.clone(), InputContent::Release)),
        Promise::End { thread } => Some(InputMessage::plain(thread.clone(), InputContent::Close)),
        Promise::Compact { request } => {
            Some(InputMessage::plain(own.clone(), InputContent::Compact(request.clone())))
        }
        Promise::Compacted { to, report } => {
            Some(InputMessage::plain(to.clone(), InputContent::CompactionComplete(report.clone())))
        }
        Promise::Report { to, call } => {
            let text = match manager.history().call(call).filter(|item| item.name != SPAWN_TOOL) {
                Some(item) => report_text(own, &item.name, arguments(item)),
                // It was closed by hand.
                None => wording::child_closed(own.as_str(), None),
            };
            let origin = manager.meta().origin.clone()?;
            let synthetic = Synthetic::ThreadReport { tool_call_id: origin, child_thread_id: own.clone() };
            Some(related(to, text, synthetic))
        }
        Promise::Message { to, origin, call } => {
            let text = text_argument(arguments(manager.history().call(call)?), "message").unwrap_or_default();
            Some(related(to, text, Synthetic::ParentMessage { tool_call_id: origin.clone() }))
        }
        Promise::Call { .. }
        | Promise::Cancel { .. }
        | Promise::Reply { .. }
        | Promise::Notice { .. }
        | Promise::OAuth { .. }
        | Promise::Choice { .. }
        | Promise::Answer { .. }
        | Promise::Schedule { .. }
        | Promise::RunEnd { .. }
        | Promise::Closed
        | Promise::Unknown(_) => None,
    }
}

/// A text for another thread of the family: a result without a call, as the queue's format has it.
fn related(to: &ThreadId, text: String, synthetic: Synthetic) -> InputMessage {
    let mut message = InputMessage::tool_result(to.clone(), CallId::new(""), vec![ContentPart::Text(text)]);
    message.synthetic = Some(synthetic);
    message
}

fn report_text(thread: &ThreadId, tool: &str, arguments: &str) -> String {
    match tool {
        CLOSE_TOOL => {
            wording::child_closed(thread.as_str(), text_argument(arguments, "report_to_parent").as_deref())
        }
        _ => wording::child_report(thread.as_str(), &text_argument(arguments, "report").unwrap_or_default()),
    }
}

fn text_argument(arguments: &str, name: &str) -> Option<String> {
    serde_json::from_str::<serde_json::Value>(arguments).ok()?.get(name)?.as_str().map(str::to_owned)
}

/// The output message that an entry promises, if it promises one.
async fn output(
    runtime: &Runtime,
    manager: &HistoryManager,
    entry: &OutboxEntry,
) -> Result<Option<OutputMessage>, SliceError> {
    let (kind, text) = match &entry.promise {
        // Nobody reads along with a thread that was made for an event.
        Promise::Reply { .. } if manager.meta().kind == ThreadKind::Event => return Ok(None),
        Promise::Reply { from, to, refused } => match reply(runtime, manager, *from, *to, refused).await? {
            Some(text) => (OutputKind::TEXT, text),
            None => return Ok(None),
        },
        Promise::Notice { text } => {
            runtime.observer.on_event(manager.history().thread(), &DisplayEvent::Notice(text.clone()));
            (OutputKind::ERROR, text.clone())
        }
        Promise::OAuth { auth_url, .. } => {
            let show = DisplayEvent::Consent { auth_url: auth_url.clone() };
            runtime.observer.on_event(manager.history().thread(), &show);
            let text = format!("Please consent here, then the tool goes on by itself: {auth_url}");
            (OutputKind::Typed(TypedOutput::OauthRequired { auth_url: auth_url.clone() }), text)
        }
        Promise::Choice { call } => match choice_output(runtime, manager, call).await? {
            Some(choice) => choice,
            None => return Ok(None),
        },
        Promise::Answer { call, .. } => choices::over(call),
        Promise::Call { .. }
        | Promise::Cancel { .. }
        | Promise::Release
        | Promise::Wake { .. }
        | Promise::Report { .. }
        | Promise::Message { .. }
        | Promise::Schedule { .. }
        | Promise::End { .. }
        | Promise::Compact { .. }
        | Promise::Compacted { .. }
        | Promise::RunEnd { .. }
        | Promise::Closed
        | Promise::Unknown(_) => return Ok(None),
    };
    let thread = manager.history().thread().clone();
    let text = match manager.meta().parent {
        Some(_) => format!("[{thread}] {text}"),
        None => text,
    };
    Ok(Some(OutputMessage {
        kind,
        text,
        metadata: manager.metadata().cloned().unwrap_or_else(RawJson::empty_object),
        message_id: entry.id.clone(),
        thread_id: thread,
    }))
}

/// The text of a response. One that is sent late may be behind a summary by now: then it is read.
async fn reply(
    runtime: &Runtime,
    manager: &HistoryManager,
    from: Seq,
    to: Seq,
    refused: &[CallId],
) -> Result<Option<String>, SliceError> {
    let own = manager.history().own_items();
    if own.first().is_some_and(|first| first.seq <= from) || !manager.history().has_unread() {
        return Ok(reply_text(own, from, to, refused));
    }
    let meta = manager.meta();
    let (thread, epoch) = (meta.thread.clone(), meta.epoch);
    let span = Span { thread, epoch, from: Seq(from.0.saturating_sub(1)), to: Seq(to.0.saturating_sub(1)) };
    Ok(reply_text(&runtime.store.read_span(&span).await?, from, to, refused))
}

/// Text of a response, and its calls as bracketed lines; not those that the runtime has refused itself.
fn reply_text(own_log: &[Item], from: Seq, to: Seq, refused: &[CallId]) -> Option<String> {
    let lines: Vec<String> = own_log
        .iter()
        .filter(|item| item.seq >= from && item.seq < to)
        .filter_map(|item| match &item.body {
            ItemBody::Assistant(assistant) => Some(assistant.text.clone()),
            ItemBody::ToolCall(call) if refused.contains(&call.call_id) => None,
            ItemBody::ToolCall(call) => Some(format!("[{}]", call_line(&call.name, &call.arguments))),
            ItemBody::System(_)
            | ItemBody::User(_)
            | ItemBody::ToolResult(_)
            | ItemBody::BackendToolCall(_)
            | ItemBody::Reasoning(_)
            | ItemBody::Interrupt(_)
            | ItemBody::Event(_)
            | ItemBody::State(_)
            | ItemBody::Unknown { .. } => None,
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// `name(args)`, arguments cut on a character boundary.
pub(crate) fn call_line(name: &str, arguments: &str) -> String {
    let mut shown: String = arguments.chars().take(SHOWN_ARGUMENTS).collect();
    if shown.len() < arguments.len() {
        shown.push('…');
    }
    format!("{name}({shown})")
}

async fn choice_output(
    runtime: &Runtime,
    manager: &HistoryManager,
    call: &CallId,
) -> Result<Option<(OutputKind, String)>, SliceError> {
    let Some(row) = runtime.store.choice(manager.history().thread(), call).await? else { return Ok(None) };
    let Ok(choice) = serde_json::from_str::<UserChoiceRequired>(&row.body) else { return Ok(None) };
    let options: Vec<String> =
        choice.choices.iter().enumerate().map(|(at, choice)| format!("{}. {choice}", at + 1)).collect();
    let text = format!("{}\n{}", choice.prompt, options.join("\n"));
    runtime.observer.on_event(manager.history().thread(), &DisplayEvent::Choice { text: text.clone() });
    let kind = TypedOutput::UserChoiceRequired {
        id: choice.id,
        prompt: choice.prompt,
        choices: choice.choices,
        default: choice.default,
    };
    Ok(Some((OutputKind::Typed(kind), text)))
}
