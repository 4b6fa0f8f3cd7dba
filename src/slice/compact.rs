//! When a thread is compacted: before a request that would not fit (here, and at most one chunk), beside the conversation
//! once it has grown past the soft limit (a child thread without items of its own, in its own queue group), and after a
//! provider has found a request too large (the ladder). Whatever fails, the thread goes on: with older groups left out of
//! the request, and, where nothing fits, with a word to the user.

use std::sync::Arc;

use tokio::time::Instant;

use super::failures::{Spent, give_up};
use super::prepare::PrepareResult;
use super::{AgentProfile, DisplayEvent, Runtime, Session, SliceError};
use crate::compaction::chunk::{self, Chunk, ChunkFailure, Job, SummaryModel};
use crate::compaction::plan::{Scope, Weight, tail_start};
use crate::compaction::policy::{self, Budgets, Ground};
use crate::history::{Arrival, LeftOutInput, groups};
use crate::message::{Compact, CompactionReport, Item, ItemBody, LeftOut, ThreadId, tokens};
use crate::model::ModelProvider;
use crate::store::{
    Compacted, CompactionCommit, CompactionRun, CompactionState, DedupLife, Generation, Meta, Promise, Span,
    behind,
};
use crate::thread::HistoryManager;
use crate::tools::Registry;

/// Chunks of one slice before its request: one where the history is too large, one more where the provider says so.
const FOREGROUND_CHUNKS: u32 = 2;

/// Who summarises an agent's threads, and when.
#[derive(Clone)]
pub struct Summaries {
    /// The summarising model.
    pub model: Arc<dyn ModelProvider>,
    /// Of the window, what a history fills before it is compacted in the background, in percent.
    pub threshold_percent: u8,
}

impl Summaries {
    /// By that model, at the usual threshold.
    pub fn by(model: Arc<dyn ModelProvider>) -> Self {
        Self { model, threshold_percent: policy::DEFAULT_THRESHOLD_PERCENT }
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

    /// What attempts depend on: with another one they begin anew.
    fn summary_profile(&self, window: u64) -> String {
        let by = self.compaction.as_ref().map_or("", |summaries| summaries.model.model());
        format!("{}/{window}/{by}", self.model.model())
    }
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

/// Whether a request can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It fits, as far as estimates go.
    Enough,
    /// Nothing that could be sent fits: the user is told.
    None,
}

/// Sees to it that the next request fits the window, where that is known: by one chunk, else by leaving the oldest groups out.
pub(super) async fn make_room(
    runtime: &Runtime,
    session: &Session,
    manager: &mut HistoryManager,
    spent: &mut Spent,
    deadline: Instant,
) -> Result<Room, SliceError> {
    let known = session.profile.model.info().context_window;
    let Some(window) = known.filter(|_| session.profile.compaction.is_some()) else {
        return Ok(Room::Enough);
    };
    let fixed = fixed_tokens(&session.profile, &session.tools.registry);
    let budgets = budgets(&session.profile, window, fixed);
    if !leave_room_for_input(manager, &budgets) {
        return Ok(Room::None);
    }
    if manager.request_size(fixed) <= budgets.hard {
        return Ok(Room::Enough);
    }
    if spent.chunks == 0 {
        let over = manager.request_size(fixed).saturating_sub(budgets.hard);
        foreground(runtime, session, manager, spent, &budgets, budgets.tail(), over, window, deadline)
            .await?;
    }
    if manager.request_size(fixed) <= budgets.hard {
        return Ok(Room::Enough);
    }
    // A saved summary is never trimmed or left out (C24).
    if manager.history_mut().omit_to_fit(budgets.hard_history()) {
        manager.forget_usage();
        tracing::warn!(thread = %manager.history().thread(), window, fixed, "older groups are left out of the request");
        return Ok(Room::Enough);
    }
    let summary = manager.history().summary_size();
    manager.history_mut().mark_inputs_model_validated();
    give_up(
        manager,
        &format!(
            "The conversation does not fit the model's window of {window} tokens, of which {} are usable: its summary has \
             about {summary}, the system prompt and the tools {fixed}. Use a model with a larger window, or a shorter \
             prompt.",
            budgets.hard
        ),
    );
    Ok(Room::None)
}

/// What has just arrived must fit beside what every request holds (C25). A result that does not is a placeholder; of a text
/// the user is told.
fn leave_room_for_input(manager: &mut HistoryManager, budgets: &Budgets) -> bool {
    let told = |manager: &mut HistoryManager, what: &str, size: u64| {
        manager.history_mut().mark_inputs_model_validated();
        let Budgets { hard, fixed, .. } = *budgets;
        let text = format!(
            "{what} does not fit the model's window: of the {hard} tokens that a request may have, the system prompt and \
             the tools take about {fixed}, and the new input {size}."
        );
        give_up(manager, &text);
        false
    };
    let size = manager.history().arrived_tokens();
    if budgets.fixed > budgets.hard {
        return told(manager, "The agent's system prompt, with its tools,", size);
    }
    while budgets.fixed.saturating_add(manager.history().arrived_tokens()) > budgets.hard {
        let size = manager.history().arrived_tokens();
        match manager.history_mut().leave_out_largest_input(LeftOut::TooLarge) {
            Some(LeftOutInput::Result) => {}
            Some(LeftOutInput::User) => return told(manager, "The message was left out: it", size),
            None => return told(manager, "What has arrived", size),
        }
    }
    true
}

/// One chunk before the request. Says whether it has made the view smaller.
#[expect(clippy::too_many_arguments, reason = "each is a fact of its own of one decision")]
async fn foreground(
    runtime: &Runtime,
    session: &Session,
    manager: &mut HistoryManager,
    spent: &mut Spent,
    budgets: &Budgets,
    tail: u64,
    over: u64,
    window: u64,
    deadline: Instant,
) -> Result<bool, SliceError> {
    let now_ms = runtime.clock.now_ms();
    let profile = session.profile.summary_profile(window);
    let mut models = session.profile.summary_models(window);
    let state = manager.meta().compaction.clone();
    // A thread that is only being made has nothing that could be covered, and a small window no room for summaries.
    if models.is_empty() || !manager.exists() || !may_try(&state.run, &profile, now_ms) {
        return Ok(false);
    }
    let history = manager.history();
    let cuts = history.uncovered_cuts();
    let weights = weights(history.uncovered());
    let turns = tail_start(&weights, &cuts, tail, Scope::Turns);
    let freed: u64 = weights[..turns].iter().map(|weight| weight.tokens).sum();
    // With room to spare: else the next request is above the limit again.
    let end = match freed > over.saturating_add(budgets.hard / 10) {
        true => turns,
        // Whole turns are not enough: the older steps of the newest one go as well.
        false => tail_start(&weights, &cuts, tail, Scope::Steps),
    };
    if end == 0 {
        return Ok(false);
    }
    let thread = history.thread().clone();
    let show = DisplayEvent::Notice("Summarising older parts of the conversation to make room …".to_owned());
    runtime.observer.on_event(&thread, &show);
    spent.chunks += 1;
    let job = Job {
        thread: &thread,
        epoch: history.epoch(),
        state: &state,
        spans: &history.uncovered_spans(),
        items: history.uncovered(),
        cuts: &cuts,
        end,
        generation: history.generation(),
        reply_budget: budgets.hard_history(),
        output: session.profile.max_output_tokens,
        focus: None,
        ground: Ground::Fore,
        deadline,
        now_ms,
    };
    let made = chunk::summarise(&job, &mut models).await;
    let epoch = job.epoch;
    match made {
        Ok(chunk) => {
            let run =
                run_after(&state.run, &profile, chunk.low_yield.then_some("it frees too little"), now_ms);
            let change = commit_of(&thread, epoch, &state, Some(&chunk), run.clone());
            match runtime.store.compact(change).await? {
                Compacted::Done => {
                    manager.set_compaction(chunk.generation.at.id.number, run);
                    manager.take_generation(chunk.generation).await?;
                }
                // Somebody else was faster.
                Compacted::Lost => manager.refresh_generation().await?,
            }
            Ok(true)
        }
        Err(failure) => {
            if failure.counts() {
                let run = run_after(&state.run, &profile, Some(&failure.to_string()), now_ms);
                let change = commit_of(&thread, epoch, &state, None, run.clone());
                if runtime.store.compact(change).await? == Compacted::Done {
                    manager.set_compaction(state.last, run.clone());
                }
                give_up(manager, &failure_notice(&failure.to_string(), run.attempts));
            }
            Ok(false)
        }
    }
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
    epoch: crate::message::Epoch,
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
        return CompactionRun { profile: profile.to_owned(), ..CompactionRun::default() };
    };
    let attempts = before.saturating_add(1);
    let wait = i64::try_from(policy::back_off(attempts).as_millis()).unwrap_or(i64::MAX);
    CompactionRun {
        attempts,
        next_try_at_ms: now_ms.saturating_add(wait),
        failure: Some(failure.to_owned()),
        profile: profile.to_owned(),
    }
}

fn weights(items: &[Item]) -> Vec<Weight> {
    let weight = |item: &Item| Weight { tokens: chunk::weight(item), opens_turn: item.facts.opens_turn };
    items.iter().map(weight).collect()
}

/// What may still be done about a request that the provider found too large, one rung a repeat, each once. False: nothing.
pub(super) async fn after_overflow(
    runtime: &Runtime,
    session: &Session,
    manager: &mut HistoryManager,
    spent: &mut Spent,
    deadline: Instant,
) -> Result<bool, SliceError> {
    let fixed = fixed_tokens(&session.profile, &session.tools.registry);
    let size = manager.request_size(fixed);
    // Whatever the estimate is of: of such a request the provider says that it is above its limit.
    let window = session.profile.model.info().context_window.unwrap_or(size).min(size);
    let budgets = budgets(&session.profile, window, fixed);
    loop {
        spent.rung += 1;
        let changed = match spent.rung {
            1 => session.profile.prune && manager.prune_all(),
            2 if spent.chunks < FOREGROUND_CHUNKS => {
                let (tail, over) = (budgets.tail(), size.saturating_sub(budgets.hard));
                foreground(runtime, session, manager, spent, &budgets, tail, over, window, deadline).await?
            }
            3 if spent.chunks < FOREGROUND_CHUNKS => {
                let (tail, over) = (budgets.tail() / 2, size.saturating_sub(budgets.hard));
                foreground(runtime, session, manager, spent, &budgets, tail, over, window, deadline).await?
            }
            2 | 3 => false,
            4 => manager.history_mut().leave_out_largest_result(LeftOut::TooLarge),
            5 => omits(manager, Some(budgets.hard_history() / 2)),
            6 => omits(manager, None),
            _ => return Ok(false),
        };
        tracing::warn!(thread = %manager.history().thread(), rung = spent.rung, changed, size, "the request was too large");
        if changed {
            manager.forget_usage();
            return Ok(true);
        }
    }
}

/// Leaves older groups out until the history has at most that budget, or as many as can be; says whether that was more than
/// before.
fn omits(manager: &mut HistoryManager, budget: Option<u64>) -> bool {
    let before = manager.history().omitted();
    let history = manager.history_mut();
    match budget {
        Some(budget) => drop(history.omit_to_fit(budget)),
        None => history.omit_all(),
    }
    manager.history().omitted() > before
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
    let known = session.profile.model.info().context_window;
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
        Ok(profile) if profile.model.info().context_window.is_none() => Err(
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
    if report.chunks == 0 {
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

/// How a background invocation ends.
pub(super) enum Background {
    /// With this word to the thread.
    Done(CompactionReport),
    /// More is to be done, in another invocation.
    Rest,
    /// The thread is another one by now: nobody is told.
    Stale,
}

/// The work of a compaction's own thread: up to [`policy::BACKGROUND_CHUNKS`] chunks of the part of its parent that it
/// inherits.
pub(super) async fn background(
    runtime: &Runtime,
    manager: &HistoryManager,
    deadline: Instant,
) -> Result<Background, SliceError> {
    let own = manager.meta();
    let request = own.asked.due.clone().unwrap_or_default();
    let Some(parent_id) = own.parent.clone() else { return Ok(Background::Stale) };
    let range = own.base.clone();
    let born = own.compaction.last;
    let Some(mut parent) = live(runtime, &parent_id, &range).await? else { return Ok(Background::Stale) };
    let report = |parent: &Meta, failure: Option<String>, gave_up| {
        let chunks = parent.compaction.last.saturating_sub(born);
        Background::Done(CompactionReport { chunks, failure, manual: request.manual, gave_up })
    };
    let profile = match runtime.agents.profile(&own.agent) {
        Ok(profile) => profile,
        Err(e) => return Ok(report(&parent, Some(e.to_string()), false)),
    };
    let Some(window) = profile.model.info().context_window else {
        return Ok(report(&parent, Some(ChunkFailure::Unavailable.to_string()), false));
    };
    let tools = runtime.tools_of(&own.agent, &own.root).await;
    let budgets = budgets(&profile, window, fixed_tokens(&profile, &tools.registry));
    let key = profile.summary_profile(window);
    let mut models = profile.summary_models(window);
    if !request.manual && !may_try(&parent.compaction.run, &key, runtime.clock.now_ms()) {
        return Ok(report(&parent, None, false));
    }
    if request.manual {
        // A person asks: what has failed before does not count.
        parent.compaction.run = CompactionRun::default();
    }
    for made in 0..policy::BACKGROUND_CHUNKS {
        let now_ms = runtime.clock.now_ms();
        let Some(source) = source(runtime, &parent, &range).await? else {
            return Ok(report(&parent, None, false));
        };
        let bodies: Vec<&ItemBody> = source.items.iter().map(|item| &item.body).collect();
        let cuts = groups::cuts(&bodies, &Default::default());
        let end = tail_start(&weights(&source.items), &cuts, budgets.tail(), Scope::Turns);
        let job = Job {
            thread: &parent_id,
            epoch: parent.epoch,
            state: &parent.compaction,
            spans: &source.spans,
            items: &source.items,
            cuts: &cuts,
            end,
            generation: source.generation.as_ref(),
            reply_budget: budgets.hard_history(),
            output: profile.max_output_tokens,
            focus: request.focus.as_deref(),
            ground: Ground::Back,
            deadline,
            now_ms,
        };
        let result = chunk::summarise(&job, &mut models).await;
        let failure = match &result {
            Err(ChunkFailure::Nothing) => return Ok(report(&parent, None, false)),
            Err(ChunkFailure::NoTime) if made > 0 => return Ok(Background::Rest),
            // A function that never has the time would ask itself for ever.
            Err(failure) => Some(failure.to_string()),
            Ok(chunk) => chunk.low_yield.then(|| "it frees too little".to_owned()),
        };
        let run = run_after(&parent.compaction.run, &key, failure.as_deref(), now_ms);
        let chunk = result.ok();
        let change = commit_of(&parent_id, parent.epoch, &parent.compaction, chunk.as_ref(), run.clone());
        match runtime.store.compact(change).await? {
            Compacted::Done => {
                parent.compaction.run = run;
                if let Some(Chunk { generation, .. }) = chunk {
                    parent.compaction.last = generation.at.id.number;
                    parent.compaction.newest = Some(generation.at);
                }
            }
            // Somebody else was faster, or the thread was rewound.
            Compacted::Lost => match live(runtime, &parent_id, &range).await? {
                Some(again) => {
                    parent = again;
                    continue;
                }
                None => return Ok(Background::Stale),
            },
        }
        if failure.is_some() {
            let gave_up = parent.compaction.run.attempts >= policy::MAX_ATTEMPTS;
            return Ok(report(&parent, failure, gave_up));
        }
    }
    Ok(Background::Rest)
}

/// The thread that is compacted, if it is open and still in the log that the range is of.
async fn live(runtime: &Runtime, thread: &ThreadId, range: &[Span]) -> Result<Option<Meta>, SliceError> {
    let meta = runtime.store.meta(thread).await?;
    let of_range = |meta: &Meta| match range.last() {
        Some(last) => last.thread != *thread || last.epoch == meta.epoch,
        None => false,
    };
    Ok(meta.filter(|meta| !meta.closed && of_range(meta)))
}

/// What of a range no generation stands for yet.
struct Uncovered {
    generation: Option<Generation>,
    spans: Vec<Span>,
    items: Vec<Item>,
}

/// None if everything is covered.
async fn source(runtime: &Runtime, parent: &Meta, range: &[Span]) -> Result<Option<Uncovered>, SliceError> {
    let mut generation = None;
    let mut spans = range.to_vec();
    if let Some(newest) = &parent.compaction.newest {
        // One that reaches beyond the range leaves nothing of it.
        let Some((_, rest)) = behind(range, &newest.through) else { return Ok(None) };
        // One that cannot be read stands for nothing: it begins anew, from the items.
        generation = runtime.store.generation(&newest.id).await?;
        if generation.is_some() {
            spans = rest;
        }
    }
    let mut items = Vec::new();
    for span in &spans {
        items.extend(runtime.store.read_span(span).await?);
    }
    Ok(Some(Uncovered { generation, spans, items }))
}
