//! The middle phase: ask the model, stream its response, run synchronous tools, until the step ends in one
//! action. Nothing is committed without the provider's terminal event (F50), and nothing is dispatched here.

use std::pin::pin;

use async_stream::try_stream;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::failures::{
    AfterFailure, Spent, answered_without_images, bound_reached, check_time, class_name, failed, give_up,
};
use super::live::Live;
use super::stop::StoppedBy;
use super::synchronous::{arguments, run_open_synchronous_calls};
use super::{Cancel, DisplayEvent, Runtime, Session, SliceError, compact, runs, stop};
use crate::history::render::{RenderError, RenderOptions};
use crate::history::{Layer, MAX_CALLS, wording};
use crate::message::{CallId, ContentPart, Epoch, Item, ItemId, Outcome, SettledBy, ToolCallItem};
use crate::model::{ErrorClass, ModelError, ModelEvent, StopReason, Usage};
use crate::store::{Hold, Promise, Terms};
use crate::thread::{HistoryManager, Progress};
use crate::tools::{Execution, RESERVED_NAMES, Waiting};

/// What a completion tells whoever drives it.
#[derive(Clone, Debug, PartialEq)]
pub enum CompletionEvent {
    /// Something to show.
    Show(DisplayEvent),
    /// A response begins, for an attached client: its first item would stand there.
    Response(ItemId),
    /// What a commit in between has added, for an attached client.
    Committed(Epoch, Vec<Item>),
    /// The terminal event.
    Action(CompletionAction),
}

/// How a completion ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionAction {
    /// The model is done, or cannot go on and the user is told.
    Done,
    /// Calls wait to be dispatched, after the next sync.
    ExecuteToolCalls(Vec<CallId>),
}

/// One complete response.
struct Response {
    stop: StopReason,
    usage: Option<Usage>,
}

/// Runs the model until the step ends in an action. The stream borrows the manager; its last event is
/// [`CompletionEvent::Action`], after which the caller syncs and calls `execute_action`.
///
/// # Errors
/// Whatever a redelivery may mend. A failure that it cannot mend is told to the user and ends in
/// [`CompletionAction::Done`].
pub fn run_completion<'a>(
    runtime: &'a Runtime,
    session: &'a Session,
    manager: &'a mut HistoryManager,
    deadline: Instant,
    cancel: &'a mut oneshot::Receiver<Cancel>,
) -> impl Stream<Item = Result<CompletionEvent, SliceError>> + 'a {
    try_stream! {
        let mut spent = Spent::default();
        let mut shown_up_to = manager.history().committed().len();
        loop {
            if run_open_synchronous_calls(runtime, session, manager, deadline).await? {
                spent.synchronous_rounds += 1;
                // Results that came with an effect are committed with it.
                if let Some(new) = committed_since(manager, &mut shown_up_to) {
                    yield new;
                }
            }
            if manager.is_closing() {
                yield CompletionEvent::Action(CompletionAction::Done);
                return;
            }
            if !manager.history().is_settled() {
                let calls = manager.history().open_calls().map(|pending| pending.call.clone()).collect();
                yield CompletionEvent::Action(CompletionAction::ExecuteToolCalls(calls));
                return;
            }
            if let Some(bound) = bound_reached(runtime, &spent) {
                manager.history_mut().mark_inputs_model_validated();
                give_up(manager, runs::STEP_LIMIT, bound);
                yield CompletionEvent::Action(CompletionAction::Done);
                return;
            }
            let stop_at = deadline.checked_sub(runtime.limits.deadline_margin).unwrap_or(deadline);
            let mut asked = stop::asked(runtime, manager);
            let native = session.profile.native();
            let route = native.as_ref().map(|native| native.route.as_str());
            manager.take_route(route);
            let room = compact::make_room(runtime, session, manager, &mut spent, deadline);
            let room = match unless_stopped(room, stop_at, cancel, &mut asked).await? {
                Waited::Done(room) => Ok(room?),
                Waited::Stopped(by) => Err(by),
            };
            if room != Ok(compact::Room::Enough) {
                if let Err(by) = room {
                    stop::end_response(runtime, session, manager, by);
                }
                yield CompletionEvent::Action(CompletionAction::Done);
                return;
            }
            // There may be another summary now.
            manager.take_route(route);
            let most_images = session.profile.model.info().max_images;
            let rendered = match manager.render_with_room(&options(session), most_images) {
                Ok(rendered) => rendered,
                Err(RenderError::Empty) => {
                    yield CompletionEvent::Action(CompletionAction::Done);
                    return;
                }
                Err(e @ (RenderError::OpenCalls(_) | RenderError::Invalid(_))) => {
                    Err(SliceError::Bug(e.to_string()))?;
                    return;
                }
            };
            if rendered.orphan_results + rendered.unknown_rows > 0 {
                tracing::warn!(
                    thread = %manager.history().thread(),
                    orphan_results = rendered.orphan_results,
                    unknown_rows = rendered.unknown_rows,
                    "rows were left out of the request"
                );
            }
            check_time(runtime, deadline)?;
            spent.images_sent = rendered.request.images();
            let model = session.profile.model.model().to_owned();
            if manager.run().is_some() {
                let history = manager.history();
                yield CompletionEvent::Response(ItemId::at(history.epoch(), history.next_seq_after_inputs()));
            }
            yield CompletionEvent::Show(DisplayEvent::Asking { model: model.clone() });
            let started = Instant::now();
            let mut response = Err(ModelError::new(ErrorClass::Transient, "the stream was cut"));
            let request = session.profile.model.stream(rendered.request);
            let mut stopped = None;
            match unless_stopped(request, stop_at, cancel, &mut asked).await? {
                Waited::Stopped(by) => stopped = Some(by),
                Waited::Done(Err(e)) => response = Err(e),
                Waited::Done(Ok(mut stream)) => loop {
                    match unless_stopped(stream.next(), stop_at, cancel, &mut asked).await? {
                        Waited::Stopped(by) => { stopped = Some(by); break; }
                        Waited::Done(None) => break,
                        Waited::Done(Some(Err(e))) => { response = Err(e); break; }
                        Waited::Done(Some(Ok(ModelEvent::End { stop, usage }))) => {
                            response = Ok(Response { stop, usage });
                            break;
                        }
                        Waited::Done(Some(Ok(event))) => {
                            manager.history_mut().mark_inputs_model_validated();
                            manager.history_mut().buffer(&event);
                            if let Some(show) = shown(&event) {
                                yield CompletionEvent::Show(show);
                            }
                        }
                    }
                },
            }
            tracing::info!(
                thread = %manager.history().thread(),
                model,
                duration_ms = started.elapsed().as_millis() as u64,
                outcome = match (&stopped, &response) {
                    (Some(_), _) => "stopped",
                    (None, Ok(response)) => response.stop.as_str(),
                    (None, Err(e)) => class_name(e.class),
                },
                input_tokens = response.as_ref().ok().and_then(|r| r.usage).map_or(0, |u| u.input),
                output_tokens = response.as_ref().ok().and_then(|r| r.usage).map_or(0, |u| u.output),
                "model response"
            );
            if let Some(by) = stopped {
                stop::end_response(runtime, session, manager, by);
                yield CompletionEvent::Action(CompletionAction::Done);
                return;
            }
            match response {
                Ok(response) => {
                    let step = take_response(runtime, session, manager, response);
                    answered_without_images(&mut spent, manager);
                    match step {
                        Step::Done => {
                            yield CompletionEvent::Action(CompletionAction::Done);
                            return;
                        }
                        Step::Asynchronous => {}
                        step @ (Step::Refused | Step::Synchronous) => {
                            spent.refused_rounds += u32::from(matches!(step, Step::Refused));
                            manager.sync(Progress::More, runtime.clock.now_ms()).await?;
                            if let Some(new) = committed_since(manager, &mut shown_up_to) {
                                yield new;
                            }
                        }
                    }
                }
                Err(e) => {
                    if !manager.history().turn().is_empty() {
                        yield CompletionEvent::Show(DisplayEvent::Discarded { why: e.message.clone() });
                    }
                    manager.history_mut().discard_turn();
                    if e.class == ErrorClass::Checkpoint
                        && spent.retries < runtime.limits.retries
                        && manager.bury_checkpoint().await?
                    {
                        spent.retries += 1;
                        continue;
                    }
                    if e.class == ErrorClass::Overflow
                        && spent.retries < runtime.limits.retries
                        && compact::after_overflow(runtime, session, manager, &mut spent, e.limit, deadline)
                            .await?
                    {
                        spent.retries += 1;
                        continue;
                    }
                    match failed(runtime, &mut spent, manager, e, deadline)? {
                        AfterFailure::Wait(delay) => {
                            let waited = unless_stopped(sleep(delay), stop_at, cancel, &mut asked).await?;
                            if let Waited::Stopped(by) = waited {
                                stop::end_response(runtime, session, manager, by);
                                yield CompletionEvent::Action(CompletionAction::Done);
                                return;
                            }
                        }
                        AfterFailure::Again => {}
                        AfterFailure::GaveUp => {
                            yield CompletionEvent::Action(CompletionAction::Done);
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// What an attached client has not seen of the committed items, if there is one.
fn committed_since(manager: &HistoryManager, shown_up_to: &mut usize) -> Option<CompletionEvent> {
    let history = manager.history();
    let new = history.committed().get(*shown_up_to..).filter(|new| !new.is_empty())?.to_vec();
    *shown_up_to = history.committed().len();
    manager.run().map(|_| CompletionEvent::Committed(history.epoch(), new))
}

/// How waiting for the model ended.
enum Waited<T> {
    Done(T),
    /// Somebody wants the response to end, and what there is of it kept.
    Stopped(StoppedBy),
}

/// Waits for the model, but no longer than the invocation lasts or the caller or the user wants.
async fn unless_stopped<T>(
    work: impl Future<Output = T>,
    stop_at: Instant,
    cancel: &mut oneshot::Receiver<Cancel>,
    asked: &mut BoxFuture<'static, ()>,
) -> Result<Waited<T>, SliceError> {
    tokio::select! {
        // In this order, not in a random one: a simulated run is the same each time.
        biased;
        // A dropped sender is nobody who could cancel; a receiver that has said so must not be asked again.
        Ok(cancelled) = &mut *cancel, if !cancel.is_terminated() => match cancelled {
            Cancel::HandBack => Err(SliceError::Cancelled),
            Cancel::Stop => Ok(Waited::Stopped(StoppedBy::Request)),
            Cancel::UserText => Ok(Waited::Stopped(StoppedBy::UserText)),
        },
        () = tokio::time::sleep_until(stop_at) => Err(SliceError::Deadline),
        () = asked => Ok(Waited::Stopped(StoppedBy::Request)),
        done = work => Ok(Waited::Done(done)),
    }
}

fn options(session: &Session) -> RenderOptions {
    let info = session.profile.model.info();
    RenderOptions {
        system: session.profile.system_prompt.clone(),
        model: session.profile.model.model().to_owned(),
        image_input: info.image_input,
        tools: session.tools.registry.definitions(),
        max_output_tokens: session.profile.max_output_tokens,
    }
}

fn shown(event: &ModelEvent) -> Option<DisplayEvent> {
    match event {
        ModelEvent::Text(text) => Some(DisplayEvent::Text(text.clone())),
        ModelEvent::ReasoningText(text) => Some(DisplayEvent::Reasoning(text.clone())),
        ModelEvent::ReasoningBlock { .. } | ModelEvent::ToolCall { .. } | ModelEvent::End { .. } => None,
    }
}

enum Step {
    /// Nothing is open.
    Done,
    /// Every call was answered by the runtime; the model is asked again.
    Refused,
    /// Synchronous calls are to be run after a commit.
    Synchronous,
    /// Calls are to be dispatched after the last commit.
    Asynchronous,
}

/// Takes a complete response into the history and decides what its calls are.
fn take_response(
    runtime: &Runtime,
    session: &Session,
    manager: &mut HistoryManager,
    response: Response,
) -> Step {
    let now_ms = runtime.clock.now_ms();
    if let Some(usage) = response.usage {
        manager.set_usage(usage);
    }
    let model = session.profile.model.model().to_owned();
    let user = manager.history().current_user();
    let first = manager.history().next_seq_after_inputs();
    let history = manager.history_mut();
    let calls =
        history.flush_turn_trimming_reasoning(&model, response.stop.as_str(), user.as_deref(), now_ms);
    let last = manager.history().next_seq_after_inputs();
    let cut = response.stop == StopReason::MaxTokens;
    let admitted: Vec<_> = calls.iter().enumerate().map(|(at, call)| admit(session, call, at, cut)).collect();
    if last > first {
        let refused = calls.iter().zip(&admitted).filter(|(_, admitted)| admitted.is_err());
        let refused = refused.map(|(call, _)| call.call_id.clone()).collect();
        manager.promise(Promise::Reply { from: first, to: last, refused });
    }
    if calls.is_empty() {
        let notice = match response.stop {
            StopReason::Refusal => Some("The model declined to answer."),
            StopReason::MaxTokens => Some("The answer was cut: it reached the model's output limit."),
            StopReason::EndTurn | StopReason::ToolUse | StopReason::Other(_) if last == first => {
                Some("The model returned an empty answer.")
            }
            StopReason::EndTurn | StopReason::ToolUse | StopReason::Other(_) => None,
        };
        if let Some(notice) = notice {
            give_up(manager, runs::MODEL_ERROR, notice);
        }
        return Step::Done;
    }
    let mut step = Step::Refused;
    for (call, admitted) in calls.iter().zip(admitted) {
        match admitted {
            Err((outcome, text)) => manager.history_mut().settle(
                &call.call_id,
                outcome,
                vec![ContentPart::Text(text)],
                SettledBy::Runtime,
                Layer::WithResponse,
                now_ms,
            ),
            Ok(Admitted { execution, server, hold, mut terms }) => {
                if hold.is_none() {
                    terms.begin_result(now_ms);
                }
                let cause = manager.causes().to_vec();
                manager.history_mut().describe_call(&call.call_id, |pending| {
                    pending.synchronous = matches!(execution, Execution::Synchronous(_));
                    pending.passive = execution == Execution::Asynchronous(Waiting::Passive);
                    pending.server = server;
                    pending.hold = hold;
                    pending.terms = terms;
                    pending.cause = cause;
                });
                match execution {
                    Execution::Synchronous(_) => step = Step::Synchronous,
                    Execution::Asynchronous(_) => {
                        // What is held is let go by the last commit of the slice, or by a later one.
                        if hold.is_none() {
                            manager.promise(Promise::Call { call: call.call_id.clone() });
                        }
                        if matches!(step, Step::Refused) {
                            step = Step::Asynchronous;
                        }
                    }
                }
            }
        }
    }
    step
}

/// How a call goes out.
struct Admitted {
    execution: Execution,
    server: Option<String>,
    hold: Option<Hold>,
    terms: Terms,
}

/// Whether a call may go out, and how; otherwise its result.
fn admit(
    session: &Session,
    call: &ToolCallItem,
    at: usize,
    cut: bool,
) -> Result<Admitted, (Outcome, String)> {
    if cut {
        // Where the output stopped is not known: a cut prefix may happen to be valid JSON (F49).
        return Err((Outcome::Truncated, wording::truncated(&call.name)));
    }
    if at >= MAX_CALLS {
        return Err((Outcome::Refused, wording::too_many_calls(&call.name, MAX_CALLS)));
    }
    let registry = &session.tools.registry;
    let tool = registry.get(&call.name).filter(|_| !RESERVED_NAMES.contains(&call.name.as_str()));
    let Some(tool) = tool else {
        let known: Vec<String> = registry.iter().map(|tool| tool.definition().name.clone()).collect();
        return Err((Outcome::Error, wording::unknown_tool(&call.name, &known)));
    };
    registry
        .check_arguments(&call.name, arguments(call))
        .map_err(|e| (Outcome::Error, wording::bad_arguments(&e.to_string())))?;
    let server = tool.server().map(str::to_owned);
    Ok(Admitted { execution: tool.execution(), server, hold: tool.hold(), terms: tool.terms() })
}

/// Keeps the stream's type nameable where it must be pinned.
pub(super) async fn drive(
    stream: impl Stream<Item = Result<CompletionEvent, SliceError>>,
    mut show: impl FnMut(&DisplayEvent),
    mut live: Option<&mut Live>,
) -> Result<CompletionAction, SliceError> {
    let mut stream = pin!(stream);
    loop {
        let event = match live.as_deref_mut() {
            None => stream.next().await,
            Some(live) => loop {
                tokio::select! {
                    biased;
                    event = stream.next() => break event,
                    () = live.wait() => live.tend().await,
                }
            },
        };
        let Some(event) = event else { break };
        match event? {
            CompletionEvent::Show(event) => {
                show(&event);
                if let Some(live) = live.as_deref_mut() {
                    match &event {
                        DisplayEvent::Text(delta) => live.text(delta),
                        DisplayEvent::Reasoning(delta) => live.reasoning(delta),
                        DisplayEvent::Discarded { .. } => live.discard(),
                        DisplayEvent::Asking { .. }
                        | DisplayEvent::Call { .. }
                        | DisplayEvent::Result { .. }
                        | DisplayEvent::Consent { .. }
                        | DisplayEvent::Choice { .. }
                        | DisplayEvent::Notice(_)
                        | DisplayEvent::Done
                        | DisplayEvent::Sleeping { .. }
                        | DisplayEvent::Retrying { .. } => {}
                    }
                }
            }
            CompletionEvent::Response(first) => {
                if let Some(live) = live.as_deref_mut() {
                    live.asking(&first);
                }
            }
            CompletionEvent::Committed(epoch, items) => {
                if let Some(live) = live.as_deref_mut() {
                    live.committed(epoch, &items);
                    live.flush().await;
                }
            }
            CompletionEvent::Action(action) => return Ok(action),
        }
    }
    Err(SliceError::Bug("a completion ended without an action".to_owned()))
}
