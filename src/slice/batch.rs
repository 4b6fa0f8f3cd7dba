//! The composed slice for the messages of one thread.

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Instrument;

use super::complete::drive;
use super::live::Live;
use super::seat::Extent;
use super::{
    Cancel, CompletionAction, DisplayEvent, PrepareResult, Runtime, Seat, Session, SliceError, choices,
    compact, execute_action, held, prepare_input, run_completion, runs, stop,
};
use crate::agui::convert::result_text;
use crate::agui::emit::End;
use crate::history::{Arrival, TIMED_OUT, wording};
use crate::message::{
    CallId, DedupId, InputContent, InputMessage, OutputKind, OutputMessage, RawJson, RunRecord, Synthetic,
    ThreadId,
};
use crate::store::{DedupLife, Promise, ThreadKind};
use crate::thread::{HistoryManager, Progress};
use crate::tools::builtin::UPDATE_STATE_TOOL;
use crate::tools::{Registry, ToolSet};

/// Times that a slice starts over after another one won.
const MAX_RACES: usize = 3;

/// One message of a thread.
#[derive(Clone, Debug)]
pub struct Input {
    /// What arrived.
    pub message: InputMessage,
    /// How.
    pub arrival: Arrival,
    /// Bytes of its body, for the log.
    pub bytes: usize,
}

/// What became of the messages of one thread.
#[derive(Debug)]
pub struct Processed {
    /// How many messages, from the first on, are done for good.
    pub done: usize,
    /// Messages that can never be processed, by index, with the reason; they count as done once they are kept
    /// for an operator.
    pub refused: Vec<(usize, String)>,
    /// Why the rest is handed back.
    pub error: Option<SliceError>,
}

/// Runs one slice for the messages of `thread`, in order. Preparing stops at the first input that fails; what
/// precedes it runs and commits. After a lost race the slice starts over, a few times.
///
/// `cancel` ends a running completion, as [`Cancel`] says.
pub async fn process_batch(
    runtime: &Runtime,
    thread: &ThreadId,
    inputs: &[Input],
    deadline: Instant,
    cancel: oneshot::Receiver<Cancel>,
) -> Processed {
    process_seated(runtime, thread, inputs, deadline, &mut Seat::new(cancel)).await
}

/// As [`process_batch`], for whoever serves the thread for longer than this slice: what is known of it is not read
/// again if the store still stands there.
pub async fn process_seated(
    runtime: &Runtime,
    thread: &ThreadId,
    inputs: &[Input],
    deadline: Instant,
    seat: &mut Seat,
) -> Processed {
    let span = tracing::info_span!("slice", %thread, inputs = inputs.len());
    async {
        let started = Instant::now();
        let mut processed = Processed { done: 0, refused: Vec::new(), error: None };
        for race in 1..=MAX_RACES {
            processed = Processed { done: 0, refused: Vec::new(), error: None };
            let result = slice(runtime, thread, inputs, deadline, seat, &mut processed).await;
            processed.error = result.err();
            if !processed.error.as_ref().is_some_and(SliceError::is_lost_race) {
                break;
            }
            tracing::info!(race, "lost a race");
        }
        if let Some(e) = &processed.error {
            let show = DisplayEvent::Retrying { why: e.to_string() };
            runtime.observer.on_event(thread, &show);
        }
        tracing::info!(
            done = processed.done,
            refused = processed.refused.len(),
            error = processed.error.as_ref().map(tracing::field::display),
            duration_ms = started.elapsed().as_millis() as u64,
            "slice ended"
        );
        processed
    }
    .instrument(span)
    .await
}

async fn slice(
    runtime: &Runtime,
    thread: &ThreadId,
    inputs: &[Input],
    deadline: Instant,
    seat: &mut Seat,
    processed: &mut Processed,
) -> Result<(), SliceError> {
    let dedup: Vec<DedupId> = inputs.iter().map(|input| input.arrival.dedup.clone()).collect();
    let operates = inputs.iter().any(|input| input.message.content.is_operation());
    let extent = if operates { Extent::Whole } else { Extent::Request };
    let load = seat.load(runtime, thread, &dedup, extent);
    let mut manager = load.instrument(tracing::info_span!("load")).await?;

    if manager.meta().needs_newer_version() {
        return Err(SliceError::NewerVersion);
    }
    // What an earlier delivery has committed goes out before anything else is looked at (I4).
    manager.resume_outbox(inputs.iter().map(|input| &input.arrival));
    send_outbox(runtime, &mut manager, deadline).await?;
    if manager.meta().closed {
        // What is parked there stays there: nothing is committed any more.
        tracing::info!(%thread, "input for a closed thread dropped");
        for input in inputs {
            runs::end_unbegun(runtime, &input.message, "the thread is closed").await?;
        }
        processed.done = inputs.len();
        return Ok(());
    }

    if manager.meta().kind == ThreadKind::Compaction {
        summarise(runtime, &mut manager, inputs, deadline).await?;
        processed.done = inputs.len();
        return Ok(());
    }
    let stopped = runs::take_stopped(runtime, &mut manager).await?;
    let mut due = Due::default();
    let mut news = false;
    let mut prepared = 0;
    let mut failure = None;
    for (at, input) in inputs.iter().enumerate() {
        let again = manager.is_open(&input.arrival.cause);
        let prepare = prepare_input(runtime, &input.message, &input.arrival, &mut manager);
        match prepare.instrument(tracing::info_span!("prepare", bytes = input.bytes)).await {
            Ok(PrepareResult::Ready) => {
                due.ready = true;
                due.outside |= is_outside(input);
                news |= is_outside(input) && !again;
            }
            Ok(
                PrepareResult::Handled
                | PrepareResult::Parked
                | PrepareResult::OAuthRequired
                | PrepareResult::UserChoiceRequired
                | PrepareResult::CompactionApplied,
            ) => {}
            Ok(PrepareResult::Refused(reason)) => processed.refused.push((at, reason)),
            Ok(PrepareResult::RefusedToUser(text)) => {
                runs::end_unbegun(runtime, &input.message, &text).await?;
                refuse_to_user(runtime, &manager, input, text).await?;
            }
            Err(e) => {
                failure = Some(e);
                break;
            }
        }
        prepared = at + 1;
    }
    if due.ready && manager.history().has_leftover_waiting() {
        manager.history_mut().release_waiting();
    }
    // A step that an earlier slice left answered but not closed is closed by loading it: whatever brought this slice
    // about, its results are for the model now, and what came behind them must not be lost with them.
    if manager.history().has_unvalidated() && manager.history().is_settled() && !manager.is_closing() {
        due.ready = true;
        // Whoever goes on after a crash must be told from a message that has nothing to do.
        if let Some(first) = inputs.first().filter(|_| manager.causes().is_empty()) {
            match manager.is_processed(&first.arrival.dedup).await? {
                true => manager.work_for(&first.arrival),
                false => manager.record_processed(&first.arrival, DedupLife::Days),
            }
        }
    }
    let now_ms = runtime.clock.now_ms();
    held::let_go(&mut manager, inputs.first().map(|input| &input.arrival), now_ms);
    // What its user has ended is not gone on with; what is new is another matter.
    due.rests = stopped.is_some() && !news;
    if let Some(run) = stopped {
        due.stopped = Some(run.clone());
        if manager.causes().is_empty()
            && let Some(first) = inputs.first()
        {
            manager.work_for(&first.arrival);
        }
        let end = runs::end_text(&End::failed(runs::ABORT, stop::NOTICE));
        manager.promise(Promise::RunEnd { run, end });
    }
    let mut live = Live::begin(runtime, &manager).await?;
    due.rests |= live.as_ref().is_some_and(Live::is_stopped);
    if let Some(live) = &mut live {
        // What came in is news for a client, but for what it has brought itself.
        for input in inputs.iter().take(prepared) {
            match (&input.message.content, &input.message.synthetic) {
                (InputContent::ToolResult(result), None) => {
                    live.result(&result.id, result_text(&result.content));
                }
                (InputContent::Run(request), None) => request.records.iter().for_each(|record| {
                    if let RunRecord::Tool { call, .. } = record {
                        live.knows_result(CallId::new(call));
                    }
                }),
                _ => {}
            }
        }
    }
    let finished = finish(runtime, &mut manager, due, deadline, &mut seat.cancel, &mut live).await;
    if let Some(live) = live {
        live.rest().await;
    }
    finished?;
    if let Err(e) = manager.close_redelivery(runtime.clock.now_ms()).await {
        tracing::info!(%thread, error = %e, "what was sent may be sent once more");
    }
    processed.done = prepared;
    failure.map_or(Ok(()), Err)
}

/// A slice of a thread that summarises another one.
async fn summarise(
    runtime: &Runtime,
    manager: &mut HistoryManager,
    inputs: &[Input],
    deadline: Instant,
) -> Result<(), SliceError> {
    let mut new = false;
    for input in inputs {
        if !manager.is_processed(&input.arrival.dedup).await? {
            manager.record_processed(&input.arrival, DedupLife::Days);
            new = true;
        }
    }
    if !new || manager.meta().closed {
        return Ok(());
    }
    let ended = compact::background(runtime, manager, deadline);
    let ended = ended.instrument(tracing::info_span!("summarise")).await?;
    compact::conclude(manager, ended);
    manager.sync(Progress::Aside, runtime.clock.now_ms()).await?;
    send_outbox(runtime, manager, deadline).await
}

/// Whether somebody outside caused the slice: a person or an event. A tool's result or a report is the
/// consequence of what the thread did itself.
fn is_outside(Input { message, arrival, .. }: &Input) -> bool {
    let timed_out = arrival.dedup.is_of_kind(TIMED_OUT);
    let typed = message.content.is_said()
        || message.content.is_operation()
        || (matches!(message.content, InputContent::UserChoiceAnswer(_)) && !timed_out);
    match &message.synthetic {
        None => typed,
        Some(Synthetic::SubscriptionEvent { .. } | Synthetic::SchedulerFired { .. }) => true,
        Some(
            Synthetic::ThreadReport { .. }
            | Synthetic::ParentMessage { .. }
            | Synthetic::Compaction
            | Synthetic::CompactionComplete,
        ) => false,
    }
}

/// What the inputs of a slice lead to.
#[derive(Default)]
struct Due {
    /// The model is to be asked.
    ready: bool,
    /// Somebody outside has caused it.
    outside: bool,
    /// It is for a run that its user has ended: what there is is kept, and the model is not asked.
    rests: bool,
    /// That run, if it was ended while nobody worked for it.
    stopped: Option<String>,
}

/// Barrier, completion, last commit, dispatch.
async fn finish(
    runtime: &Runtime,
    manager: &mut HistoryManager,
    Due { ready, outside, rests, stopped }: Due,
    deadline: Instant,
    cancel: &mut oneshot::Receiver<Cancel>,
    live: &mut Option<Live>,
) -> Result<(), SliceError> {
    let known = manager.history().committed().len();
    let interrupted = manager.history_mut().take_interrupted_tool_calls();
    for call in interrupted.iter().filter(|call| call.hold.is_none()) {
        manager.promise(Promise::Cancel { call: call.call.clone(), server: call.server.clone() });
    }
    choices::dismiss(manager, &interrupted);
    // With synchronous calls open, a slice that died goes on; what is out besides them is waited for afterwards.
    let runs = ready
        && (manager.history().is_settled() || manager.history().open_calls().any(|call| call.synchronous));
    if !runs {
        promise_release(manager);
        end_run(manager);
        // What it still waits for is not for the model either, when that comes.
        if let Some(run) = stopped.filter(|_| rests && manager.history().open_calls().next().is_some()) {
            manager.begin_run(&run);
        }
        manager.sync(Progress::Aside, runtime.clock.now_ms()).await?;
        show_committed(manager, known, live).await;
        return send_outbox(runtime, manager, deadline).await;
    }
    if rests {
        let now_ms = runtime.clock.now_ms();
        manager.history_mut().mark_inputs_model_validated();
        stop::give_up_open_work(manager, now_ms);
        manager.set_trouble(runs::ABORT, stop::NOTICE);
        promise_release(manager);
        end_run(manager);
        manager.sync(Progress::Last, now_ms).await?;
        show_committed(manager, known, live).await;
        return send_outbox(runtime, manager, deadline).await;
    }
    let agent = manager.meta().agent.clone();
    if let Some(text) = runtime.agents.project_instructions(&agent) {
        manager.history_mut().begin_with_instructions(text, runtime.clock.now_ms());
    }
    let self_caused = manager.count_slice(outside);
    // The barrier: markers, released results and parked inputs are durable before anything is cancelled or the
    // model is asked. Mostly there is nothing to write.
    manager.sync(Progress::More, runtime.clock.now_ms()).await?;
    if self_caused > runtime.limits.self_caused_slices {
        manager.history_mut().mark_inputs_model_validated();
        let text = "The agent has worked for a long time without you and stops here. Write again to go on.";
        manager.promise(Promise::Notice { text: text.to_owned() });
        manager.set_trouble(runs::STEP_LIMIT, text);
        end_run(manager);
        manager.sync(Progress::Last, runtime.clock.now_ms()).await?;
        return send_outbox(runtime, manager, deadline).await;
    }
    let mut profile = match runtime.agents.profile(&manager.meta().agent) {
        Ok(profile) => profile,
        Err(e) => {
            manager.history_mut().mark_inputs_model_validated();
            let text = format!("The agent cannot run: {e}");
            manager.set_trouble(runs::INTERNAL, &text);
            manager.promise(Promise::Notice { text });
            end_run(manager);
            manager.sync(Progress::Last, runtime.clock.now_ms()).await?;
            return send_outbox(runtime, manager, deadline).await;
        }
    };
    let mut tools = runtime.tools_of(&manager.meta().agent, &manager.meta().root).await;
    let mut told: Vec<String> = profile.system_prompt.take().into_iter().collect();
    if let Some(live) = live {
        let config = live.config();
        tools.registry = runs::with_client_tools(&tools.registry, &config.tools);
        told.extend(config.context.iter().map(|context| context.value.clone()));
    }
    // Last, since it changes: what is in front of it can be cached.
    if tools.registry.get(UPDATE_STATE_TOOL).is_some_and(|tool| tool.server().is_none()) {
        told.push(wording::shared_state(manager.state().await?.as_ref().map(RawJson::get)));
    }
    profile.system_prompt = (!told.is_empty()).then(|| told.join("\n\n"));
    report_problems(runtime, manager, &tools);
    let session = Session { profile, tools };
    prune(&session, manager);
    show_committed(manager, known, live).await;
    let known = manager.history().committed().len();
    // Notices about interrupted calls go out now: what they cancel is settled and durable.
    execute_action(runtime, &session.tools.registry, manager, deadline).await?;
    let thread = manager.history().thread().clone();
    let stream = run_completion(runtime, &session, manager, deadline, cancel);
    let completion = drive(stream, |event| runtime.observer.on_event(&thread, event), live.as_mut());
    let action = completion.instrument(tracing::info_span!("complete")).await?;
    if !manager.is_closing() {
        held::let_go(manager, None, runtime.clock.now_ms());
        promise_release(manager);
        compact::ask_background(runtime, &session, manager);
    }
    end_run(manager);
    manager.sync(Progress::Last, runtime.clock.now_ms()).await?;
    show_committed(manager, known, live).await;
    execute_action(runtime, &session.tools.registry, manager, deadline).await?;
    let show = match action {
        CompletionAction::Done => DisplayEvent::Done,
        CompletionAction::ExecuteToolCalls(calls) => DisplayEvent::Sleeping { calls: calls.len() },
    };
    runtime.observer.on_event(&thread, &show);
    Ok(())
}

/// Ends a client's run with the next commit, if nothing works for it any more.
fn end_run(manager: &mut HistoryManager) {
    if manager.run().is_some()
        && let Some(end) = runs::outcome(manager)
    {
        manager.end_run(runs::end_text(&end));
    }
}

/// Shows an attached client what was committed behind the first `known` items. Before the outbox, which may end the run.
async fn show_committed(manager: &HistoryManager, known: usize, live: &mut Option<Live>) {
    if let Some(live) = live {
        let history = manager.history();
        live.committed(history.epoch(), history.committed().get(known..).unwrap_or_default());
        if !live.shares() {
            match manager.state().await {
                Ok(state) => state.iter().for_each(|state| live.state(state)),
                Err(error) => tracing::info!(thread = %history.thread(), %error, "a state cannot be shown"),
            }
        }
        live.flush().await;
    }
}

/// Shortens old results where a turn begins and the window is half full. The request holds them so from here on; the
/// next commit, whichever it is, makes that durable.
fn prune(session: &Session, manager: &mut HistoryManager) {
    let window = compact::window_of(&session.profile, manager.meta()).filter(|_| session.profile.prune);
    let fixed = compact::fixed_tokens(&session.profile, &session.tools.registry);
    if let Some(window) = window
        && manager.prune(window, fixed)
    {
        let prune = manager.history().prune();
        tracing::info!(thread = %manager.history().thread(), ?prune, "old results are shortened");
    }
}

/// What is left parked although nothing is open any more wakes the thread by a message of its own.
fn promise_release(manager: &mut HistoryManager) {
    if manager.history().has_leftover_waiting() {
        manager.promise(Promise::Release);
    }
}

/// A tool set that is missing costs its tools, not the thread; the user is told on the first turn, when it is
/// news, and the log each time.
fn report_problems(runtime: &Runtime, manager: &mut HistoryManager, tools: &ToolSet) {
    for problem in &tools.problems {
        tracing::warn!(thread = %manager.history().thread(), problem, "tools are missing");
    }
    if !tools.problems.is_empty() && !manager.exists() {
        manager.promise(Promise::Notice { text: tools.problems.join("\n") });
    }
    if !tools.problems.is_empty() {
        let show = DisplayEvent::Notice(tools.problems.join("\n"));
        runtime.observer.on_event(manager.history().thread(), &show);
    }
}

/// Sends what is owed where no session is at hand. Tools are looked up only if a call or a notice is owed.
pub(super) async fn send_outbox(
    runtime: &Runtime,
    manager: &mut HistoryManager,
    deadline: Instant,
) -> Result<(), SliceError> {
    let needs_tools = manager.owed().iter().any(|entry| match &entry.promise {
        Promise::Call { .. }
        | Promise::Cancel { .. }
        | Promise::Answer { .. }
        | Promise::Schedule { .. }
        | Promise::Closed => true,
        // Whether a call may run is asked until its time is up, and the tool has the timer.
        Promise::Choice { call } => CallId::of_choice(call) != *call,
        _ => false,
    });
    let registry = match needs_tools {
        true => runtime.tools_of(&manager.meta().agent, &manager.meta().root).await.registry,
        false => Registry::default(),
    };
    execute_action(runtime, &registry, manager, deadline).await
}

/// A refusal is published at once: there is nothing to commit, and a repeat has the same message id.
async fn refuse_to_user(
    runtime: &Runtime,
    manager: &HistoryManager,
    input: &Input,
    text: String,
) -> Result<(), SliceError> {
    let thread = manager.history().thread().clone();
    runtime.observer.on_event(&thread, &DisplayEvent::Notice(text.clone()));
    let id = DedupId::derive("refused", &[thread.as_str(), input.arrival.dedup.as_str()]);
    let metadata = input.message.metadata.clone().or_else(|| manager.metadata().cloned());
    let message = OutputMessage {
        kind: OutputKind::ERROR,
        text,
        metadata: metadata.unwrap_or_else(RawJson::empty_object),
        message_id: id.as_str().to_owned(),
        thread_id: thread,
    };
    Ok(runtime.output.send(&message).await?)
}
