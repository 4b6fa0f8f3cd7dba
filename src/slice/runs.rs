//! A client's run: what its request asks of the thread, and how it ends. The request is a view and never the history; what
//! it asks for is decided here, where the thread is loaded and only one slice can move it.

use async_trait::async_trait;

use super::prepare::PrepareResult;
use super::{Runtime, SliceError, questions, resume};
use crate::agui::branch::{self, Cut, Decision, DecisionKind, View, decide};
use crate::agui::convert::{place, said};
use crate::agui::emit::End;
use crate::agui::wire::ClientTool;
use crate::history::{Accepted, Arrival};
use crate::message::{CallId, ContentPart, DedupId, InputContent, InputMessage, RunRequest, ThreadId};
use crate::store::{DedupLife, PendingCall, RunChange, RunRow, RunState};
use crate::thread::{Branch, Handled, HistoryManager, MAX_BRANCH_ITEMS, load_branch, load_branches};
use crate::tools::{Execution, Invocation, Registry, Tool, ToolDefinition, ToolError, Waiting};

/// The server of calls that run in a client.
pub(super) const CLIENT: &str = "@client";

/// Codes of the protocol.
pub(super) const MODEL_ERROR: &str = "MODEL_ERROR";
pub(super) const STEP_LIMIT: &str = "STEP_LIMIT";
pub(super) const INTERNAL: &str = "INTERNAL";
pub(super) const ABORT: &str = "abort";
pub(super) const WORKER_LOST: &str = "WORKER_LOST";
const THREAD_BUSY: &str = "THREAD_BUSY";
const PENDING_INTERRUPTS: &str = "PENDING_INTERRUPTS";

/// A tool that runs in a client: its call is shown to it, and its result comes with a later request.
struct InClient(ToolDefinition);

#[async_trait]
impl Tool for InClient {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }

    fn execution(&self) -> Execution {
        Execution::Asynchronous(Waiting::Active)
    }

    fn server(&self) -> Option<&str> {
        Some(CLIENT)
    }

    async fn execute(&self, _call: &Invocation) -> Result<(), ToolError> {
        Ok(())
    }
}

/// The agent's tools and the client's. Of two with one name the agent's stays.
pub(super) fn with_client_tools(registry: &Registry, tools: &[ClientTool]) -> Registry {
    let own = registry.iter().cloned();
    let client = tools.iter().map(|tool| -> std::sync::Arc<dyn Tool> {
        std::sync::Arc::new(InClient(ToolDefinition {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema: tool.parameters.clone(),
        }))
    });
    Registry::new(own.chain(client))
}

/// Takes a client's request.
pub(super) async fn start(
    runtime: &Runtime,
    message: &InputMessage,
    arrival: &Arrival,
    manager: &mut HistoryManager,
    request: &RunRequest,
) -> Result<PrepareResult, SliceError> {
    manager.record_processed(arrival, DedupLife::Days);
    if is_over(runtime, manager.history().thread(), &request.run).await? {
        return Ok(PrepareResult::Handled);
    }
    // A run that a slice has begun, died, and begins once more is no other one.
    let before = manager.run().filter(|run| **run != request.run).map(str::to_owned);
    let branches = load_branches(&*runtime.store, manager.meta(), MAX_BRANCH_ITEMS).await?;
    let (decision, running) = {
        let thread = manager.history().thread();
        let mut views: Vec<View<'_>> = branches.iter().map(|branch| view(thread, branch)).collect();
        let items = place(thread, manager.meta().logs(), manager.history().committed());
        let running = branch::running(&items);
        views.push(View { epoch: manager.meta().epoch, items });
        (decide(&views, request), running)
    };
    let decision = match request.resume {
        None => decision,
        Some(_) => beside_answers(manager, decision),
    };
    let mut asked = questions::of(manager);
    asked.truncate(questions::MAX_ASKED);
    if before.is_some() && is_stale(request, &decision, running.as_deref()) {
        refuse(manager, request, before, THREAD_BUSY, "another run of this thread is under way; try again");
        return Ok(PrepareResult::Handled);
    }
    if let Some(answers) = request.resume.as_ref().filter(|answers| !answers.is_empty() || !asked.is_empty())
    {
        if let Err((code, why)) =
            resume::check(runtime, &asked, answers, manager, !decision.say.is_empty(), arrival.now_ms).await?
        {
            refuse(manager, request, before, code, &why);
            return Ok(PrepareResult::Handled);
        }
    } else if !asked.is_empty() && before.is_none() && !manager.had_run() {
        let why = "the thread waits for an answer; send `resume` with one for each interrupt";
        refuse(manager, request, before, PENDING_INTERRUPTS, why);
        return Ok(PrepareResult::Handled);
    }
    if before.is_some() {
        // Its client has gone on: what was left of it is cut short, or answered by what comes now.
        manager.end_run(end_text(&match decision.kind {
            DecisionKind::Say | DecisionKind::Reload => End::failed(ABORT, "stopped: the user has gone on"),
            DecisionKind::Continue | DecisionKind::Nothing => End::Finished,
        }));
    }
    manager.begin_run(&request.run);
    let mut result = PrepareResult::Handled;
    for question in &asked {
        let id = question.id();
        let answers = request.resume.iter().flatten();
        for answer in answers.filter(|answer| answer.interrupt == id.as_str()) {
            if resume::answer(manager, arrival, question, answer) == PrepareResult::Ready {
                result = PrepareResult::Ready;
            }
        }
    }
    if let Some(refused) = cut(runtime, manager, arrival, &decision).await? {
        manager.end_run(end_text(&End::failed(INTERNAL, refused)));
        return Ok(PrepareResult::Handled);
    }
    for given in &decision.results {
        let call = CallId::new(&given.call);
        let text = match given.failed && !given.text.starts_with("Error: ") {
            true => format!("Error: {}", given.text),
            false => given.text.clone(),
        };
        let result_message =
            InputMessage::tool_result(message.group_id.clone(), call, vec![ContentPart::Text(text)]);
        let thread = manager.history().thread().as_str().to_owned();
        let dedup = DedupId::derive("agui-result", &[&thread, &given.call]);
        match manager.handle_input(&result_message, &Arrival { dedup, ..arrival.clone() }).await? {
            Handled::Accepted(Accepted::Ready) => result = PrepareResult::Ready,
            Handled::Accepted(_) | Handled::Processed | Handled::Unfinished => {}
        }
    }
    let mut said_something = false;
    for new in &decision.say {
        let content = InputContent::Parts(new.parts.clone());
        let new_message = InputMessage {
            content,
            metadata: message.metadata.clone(),
            ..InputMessage::plain(message.group_id.clone(), InputContent::Release)
        };
        let dedup = said(manager.history().epoch(), &new.id);
        match manager.handle_input(&new_message, &Arrival { dedup, ..arrival.clone() }).await? {
            Handled::Accepted(Accepted::Ready) => said_something = true,
            Handled::Accepted(_) | Handled::Processed | Handled::Unfinished => {}
        }
    }
    // What the user said is in the commit that says that this message is processed.
    manager.history_mut().mark_inputs_model_validated();
    share(manager, request, arrival.now_ms).await?;
    Ok(match decision.kind {
        DecisionKind::Say if said_something => PrepareResult::Ready,
        DecisionKind::Say => {
            manager.end_run(end_text(&End::failed(INTERNAL, "the message is empty: nothing was stored")));
            PrepareResult::Handled
        }
        DecisionKind::Reload => PrepareResult::Ready,
        DecisionKind::Continue => result,
        DecisionKind::Nothing if result == PrepareResult::Ready || !asked.is_empty() => result,
        // The same answers once more: what they have set going is shown to whoever asks now.
        DecisionKind::Nothing if request.resume.is_some() && outcome(manager).is_none() => result,
        // A turn whose model never answered, because its run failed say, is answered now.
        DecisionKind::Nothing if manager.history().awaits_answer() && request.resume.is_none() => {
            PrepareResult::Ready
        }
        DecisionKind::Nothing => {
            manager.end_run(end_text(&End::Unchanged));
            PrepareResult::Handled
        }
    })
}

/// Takes what the client shares, if it is news. It stands behind the message that it came with.
async fn share(manager: &mut HistoryManager, request: &RunRequest, now_ms: i64) -> Result<(), SliceError> {
    let Some(state) = &request.state else { return Ok(()) };
    let is_known = manager.state().await?.is_some_and(|known| known.is_same(state));
    if !is_known {
        manager.history_mut().put_state(state.clone(), now_ms);
    }
    Ok(())
}

/// Takes the run that is under way off the thread if its user has ended it, while nobody worked on it or when a slice could
/// not heed it any more, and names it.
pub(super) async fn take_stopped(
    runtime: &Runtime,
    manager: &mut HistoryManager,
) -> Result<Option<String>, SliceError> {
    let (Some(run), Some(runs)) = (manager.run(), runtime.store.runs()) else { return Ok(None) };
    let row = runs.run(manager.history().thread(), run).await?;
    Ok(row.filter(RunRow::is_stopped).and_then(|_| manager.take_run()))
}

/// Whether a run was stopped before anybody worked on it.
async fn is_over(runtime: &Runtime, thread: &ThreadId, run: &str) -> Result<bool, SliceError> {
    let Some(runs) = runtime.store.runs() else { return Ok(false) };
    Ok(runs.run(thread, run).await?.is_some_and(|row| row.state == RunState::Ended))
}

/// Ends a run before it begins; the one that is under way stays.
fn refuse(manager: &mut HistoryManager, request: &RunRequest, before: Option<String>, code: &str, why: &str) {
    manager.begin_run(&request.run);
    manager.end_run(end_text(&End::failed(code, why)));
    if let Some(before) = before {
        manager.begin_run(&before);
    }
}

/// Ends the run that a message was to begin, where nothing is committed for it.
pub(super) async fn end_unbegun(
    runtime: &Runtime,
    message: &InputMessage,
    why: &str,
) -> Result<(), SliceError> {
    if let (InputContent::Run(request), Some(runs)) = (&message.content, runtime.store.runs()) {
        let end = RunChange::End(end_text(&End::failed(INTERNAL, why)));
        runs.change_run(&message.group_id, &request.run, &end, runtime.clock.now_ms()).await?;
    }
    Ok(())
}

/// How a run ended, as it is kept.
pub(super) fn end_text(end: &End) -> String {
    serde_json::to_string(end).expect("bug: an end serialises")
}

/// Whether a request comes from a view that does not know of the running turn (R13).
fn is_stale(request: &RunRequest, decision: &Decision, running: Option<&str>) -> bool {
    let goes_on = match decision.kind {
        DecisionKind::Say | DecisionKind::Reload => true,
        DecisionKind::Continue => false,
        DecisionKind::Nothing => request.resume.is_none(),
    };
    goes_on && !running.is_some_and(|running| branch::knows(request, running))
}

fn view<'a>(thread: &ThreadId, branch: Branch<'a>) -> View<'a> {
    View { epoch: branch.epoch, items: place(thread, branch.logs.into_iter(), branch.items) }
}

/// Goes on where the request stands; says why that cannot be, fit for the user.
async fn cut(
    runtime: &Runtime,
    manager: &mut HistoryManager,
    arrival: &Arrival,
    decision: &Decision,
) -> Result<Option<String>, SliceError> {
    let Some(Cut { epoch, keep }) = decision.cut else { return Ok(None) };
    let branch = match epoch == manager.meta().epoch {
        true => None,
        false => load_branch(&*runtime.store, manager.history().thread(), Some(epoch)).await?,
    };
    Ok(manager.cut(keep, branch, arrival).await?.err().map(|refused| refused.to_string()))
}

/// What a request asks for besides its answers. They are for the head as it stands: what the user says goes to its end, and
/// of results only those count that the client's own tools have brought.
fn beside_answers(manager: &HistoryManager, mut decision: Decision) -> Decision {
    let in_client = |call: &str| {
        let mut open = manager.history().open_calls();
        open.any(|open| open.call.as_str() == call && open.server.as_deref() == Some(CLIENT))
    };
    decision.results.retain(|given| in_client(&given.call));
    let kind = match (decision.say.is_empty(), decision.results.is_empty()) {
        (false, _) => DecisionKind::Say,
        (true, false) => DecisionKind::Continue,
        (true, true) => DecisionKind::Nothing,
    };
    Decision { cut: None, kind, ..decision }
}

/// How the run ends as the thread stands now; none: it goes on, somebody works for it.
pub(super) fn outcome(manager: &HistoryManager) -> Option<End> {
    if let Some((code, text)) = manager.trouble() {
        return Some(End::failed(code, text));
    }
    let in_client = |call: &PendingCall| call.server.as_deref() == Some(CLIENT);
    let history = manager.history();
    let open: Vec<&PendingCall> =
        history.open_calls().filter(|call| !history.has_arrived(&call.call)).collect();
    let asked = questions::of(manager);
    let waits = |call: &PendingCall| asked.iter().any(|question| question.call.call == call.call);
    // What is held back works for nobody yet: it waits for the user, or for one that is out.
    // One that only waits is not worth a pause for nothing, but holds none up.
    let works = |call: &PendingCall| call.hold.is_none() && !in_client(call) && !waits(call);
    if open.iter().any(|call| works(call) && (asked.is_empty() || !call.passive)) {
        return None;
    }
    if asked.is_empty() {
        // One whose question waits for its turn will be asked.
        return open.iter().all(|call| in_client(call)).then_some(End::Finished);
    }
    Some(End::Interrupted { interrupts: questions::told(&asked) })
}
