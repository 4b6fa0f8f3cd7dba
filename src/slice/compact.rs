//! When a thread is compacted: before a request that would not fit (here, and at most one chunk), beside the conversation
//! once it has grown past the soft limit (a child thread without items of its own, in its own queue group), and after a
//! provider has found a request too large (the ladder). Whatever fails, the thread goes on: with older groups left out of
//! the request, and, where nothing fits, with a word to the user.

mod background;
mod room;

use std::sync::Arc;

use super::prepare::PrepareResult;
use super::{AgentProfile, DisplayEvent, Runtime, Session};
use crate::compaction::chunk::{self, Chunk, SummaryModel};
use crate::compaction::plan::{Scope, Weight, tail_start};
use crate::compaction::policy::{self, Budgets};
use crate::history::Arrival;
use crate::message::{Compact, CompactionReport, Epoch, Item, ThreadId, tokens};
use crate::model::{ModelProvider, NativeRoute};
use crate::store::{CompactionCommit, CompactionRun, CompactionState, DedupLife, Meta, Promise};
use crate::thread::HistoryManager;
use crate::tools::Registry;

pub(super) use background::{Background, abandoned, background};
pub(super) use room::{Room, after_overflow, make_room};

/// Who summarises an agent's threads, and when.
#[derive(Clone)]
pub struct Summaries {
    /// The summarising model.
    pub model: Arc<dyn ModelProvider>,
    /// Of the window, what a history fills before it is compacted in the background, in percent.
    pub threshold_percent: u8,
    /// Whether the agent's own model may do it in its provider's way, where it can.
    pub native: bool,
}

impl Summaries {
    /// By that model, at the usual threshold.
    pub fn by(model: Arc<dyn ModelProvider>) -> Self {
        Self { model, threshold_percent: policy::DEFAULT_THRESHOLD_PERCENT, native: false }
    }
}

impl AgentProfile {
    /// The summarising model, and the one it falls back to: the agent's own.
    fn summary_models(&self, window: u64) -> Vec<SummaryModel> {
        let Some(summaries) = &self.compaction else { return Vec::new() };
        let own = (summaries.model.model() != self.model.model()).then(|| self.model.clone());
        let models = std::iter::once(summaries.model.clone()).chain(own);
        models
            .filter_map(|model| {
                let window = model.info().context_window.unwrap_or(window);
                SummaryModel::new(model, window)
            })
            .collect()
    }

    /// The provider's own way to compact, if the agent is to use it: by its own model only, which reads the result.
    pub(super) fn native(&self) -> Option<NativeRoute> {
        let summaries = self.compaction.as_ref().filter(|summaries| summaries.native)?;
        let own = summaries.model.native();
        own.filter(|own| self.model.native().as_ref() == Some(own))
    }

    /// What attempts depend on: with another one they begin anew.
    fn summary_profile(&self, window: u64) -> String {
        let by = self.compaction.as_ref().map_or("", |summaries| summaries.model.model());
        format!("{}/{window}/{by}", self.model.model())
    }
}

/// The window that requests are made for: the configured one, or what the provider has named since, if that is smaller. Who
/// configures another one is believed, until the provider says otherwise.
pub(super) fn window_of(profile: &AgentProfile, meta: &Meta) -> Option<u64> {
    let known = profile.model.info().context_window;
    let named = meta.window.as_ref();
    let named = named.filter(|named| named.model == profile.model.model() && named.configured == known);
    known.into_iter().chain(named.map(|named| named.tokens)).min()
}

/// Tokens of what every request of a session holds: the system prompt and the tools.
pub(super) fn fixed_tokens(profile: &AgentProfile, tools: &Registry) -> u64 {
    let prompt = profile.system_prompt.as_ref().map_or(0, String::len);
    let tools = tools.iter().map(|tool| {
        let definition = tool.definition();
        definition.name.len() + definition.description.len() + definition.input_schema.to_string().len()
    });
    tokens::of_bytes(prompt + tools.sum::<usize>())
}

fn budgets(profile: &AgentProfile, window: u64, fixed: u64) -> Budgets {
    let threshold =
        profile.compaction.as_ref().map_or(policy::DEFAULT_THRESHOLD_PERCENT, |s| s.threshold_percent);
    Budgets::new(window, fixed, threshold)
}

fn failure_notice(failure: &str, attempts: u32) -> String {
    let rest = match attempts >= policy::MAX_ATTEMPTS {
        true => " It is not tried again by itself; `dormouse compact` does.",
        false => "",
    };
    format!(
        "Older parts of the conversation could not be summarised ({failure}), so answers may be given without them.{rest}"
    )
}

fn commit_of(
    thread: &ThreadId,
    epoch: Epoch,
    state: &CompactionState,
    chunk: Option<&Chunk>,
    run: CompactionRun,
) -> CompactionCommit {
    let generation = chunk.map(|chunk| chunk.generation.clone());
    CompactionCommit { thread: thread.clone(), epoch, last: state.last, generation, run }
}

/// Whether a job may be tried now (C27).
fn may_try(run: &CompactionRun, profile: &str, now_ms: i64) -> bool {
    run.profile != profile || (run.attempts < policy::MAX_ATTEMPTS && now_ms >= run.next_try_at_ms)
}

/// The attempts after a job.
fn run_after(run: &CompactionRun, profile: &str, failure: Option<&str>, now_ms: i64) -> CompactionRun {
    let before = if run.profile == profile { run.attempts } else { 0 };
    let Some(failure) = failure else {
        // A new summary has a checkpoint of its own.
        return CompactionRun { profile: profile.to_owned(), ..CompactionRun::default() };
    };
    let attempts = before.saturating_add(1);
    let wait = i64::try_from(policy::back_off(attempts).as_millis()).unwrap_or(i64::MAX);
    CompactionRun {
        attempts,
        next_try_at_ms: now_ms.saturating_add(wait),
        failure: Some(failure.to_owned()),
        profile: profile.to_owned(),
        dead: run.dead.clone(),
    }
}

fn weights(items: &[Item]) -> Vec<Weight> {
    let weight = |item: &Item| Weight { tokens: chunk::weight(item), opens_turn: item.facts.opens_turn };
    items.iter().map(weight).collect()
}

/// With the last commit of a slice: asks for a compaction beside the conversation if that has grown past the soft limit, once
/// for each state of it, or if one is due.
pub(super) fn ask_background(runtime: &Runtime, session: &Session, manager: &mut HistoryManager) {
    if !manager.history().is_settled() {
        return;
    }
    if let Some(request) = manager.meta().asked.due.clone() {
        manager.change_asked(|asked| asked.due = None);
        manager.promise(Promise::Compact { request });
        return;
    }
    let known = window_of(&session.profile, manager.meta());
    let Some(window) = known.filter(|_| session.profile.compaction.is_some()) else { return };
    let fixed = fixed_tokens(&session.profile, &session.tools.registry);
    let budgets = budgets(&session.profile, window, fixed);
    let size = match manager.meta().usage {
        Some(usage) => usage.input.saturating_add(usage.output),
        None => manager.request_size(fixed),
    };
    let state = &manager.meta().compaction;
    let profile = session.profile.summary_profile(window);
    if size <= budgets.soft || !may_try(&state.run, &profile, runtime.clock.now_ms()) {
        return;
    }
    let history = manager.history();
    let end =
        tail_start(&weights(history.uncovered()), &history.uncovered_cuts(), budgets.tail(), Scope::Turns);
    let state = format!("{}-{}-{}", history.epoch(), state.last, state.run.attempts);
    if end > 0 && manager.meta().asked.state != state {
        tracing::info!(thread = %manager.history().thread(), size, soft = budgets.soft, "a compaction is asked for");
        manager.change_asked(|asked| asked.state = state);
        manager.promise(Promise::Compact { request: Compact::default() });
    }
}

/// Takes how an invocation of a compaction's own thread has ended into that thread.
pub(super) fn conclude(manager: &mut HistoryManager, ended: Background) {
    match ended {
        Background::Rest => manager.promise(Promise::Release),
        Background::Stale => manager.begin_closing(),
        Background::Done(report) => {
            if let Some(to) = manager.meta().parent.clone() {
                manager.promise(Promise::Compacted { to, report });
            }
            manager.begin_closing();
        }
    }
    if manager.is_closing() {
        // What was asked is content.
        manager.change_asked(|asked| asked.due = None);
    }
}

/// Takes a request for a compaction: a child does it. Never while a call is open: then it is due (C19).
pub(super) fn start(
    runtime: &Runtime,
    arrival: &Arrival,
    manager: &mut HistoryManager,
    request: &Compact,
) -> PrepareResult {
    manager.record_processed(arrival, DedupLife::Days);
    let thread = manager.history().thread().clone();
    if !manager.history().is_settled() {
        tracing::info!(%thread, "a compaction is due once no call is open");
        manager.change_asked(|asked| asked.due = Some(request.clone()));
        return PrepareResult::Handled;
    }
    let usable = match runtime.agents.profile(&manager.meta().agent) {
        Err(e) => Err(format!("The agent cannot run: {e}")),
        Ok(profile) if profile.compaction.is_none() => Err("Compaction is switched off for this agent.".to_owned()),
        Ok(profile) if window_of(&profile, manager.meta()).is_none() => Err(
            "The conversation cannot be summarised: the window of its model is not known. Set context_window.".to_owned(),
        ),
        Ok(_) => Ok(()),
    };
    match usable {
        Err(why) if request.manual => manager.promise(Promise::Notice { text: why }),
        Err(_) => {}
        Ok(()) => {
            let child = manager.spawn_compaction(request, arrival);
            tracing::info!(%thread, child = child.as_ref().map(ThreadId::as_str), "a compaction begins");
        }
    }
    PrepareResult::Handled
}

/// Takes the word that a compaction has ended. Its summary was taken over when the thread was loaded.
pub(super) fn complete(
    runtime: &Runtime,
    arrival: &Arrival,
    manager: &mut HistoryManager,
    report: &CompactionReport,
) -> PrepareResult {
    manager.record_processed(arrival, DedupLife::Days);
    // After a failure it is asked for again once its attempts have moved.
    if report.chunks == 0 && report.failure.is_none() {
        manager.change_asked(|asked| asked.state.clear());
    }
    let text = match (&report.failure, report.chunks) {
        (Some(failure), _) if report.gave_up || report.manual => {
            let attempts = if report.gave_up { policy::MAX_ATTEMPTS } else { 0 };
            Some(failure_notice(failure, attempts))
        }
        (None, 0) if report.manual => Some("There is nothing to summarise.".to_owned()),
        _ => None,
    };
    match text {
        Some(text) => manager.promise(Promise::Notice { text }),
        None if report.chunks == 0 => {}
        None => {
            let show = DisplayEvent::Notice("Older parts of the conversation were summarised.".to_owned());
            runtime.observer.on_event(manager.history().thread(), &show);
        }
    }
    PrepareResult::CompactionApplied
}
