//! The work of a compaction's own thread: it summarises what it inherits of its parent, chunk by chunk, and never holds up
//! the conversation.

use tokio::time::Instant;

use super::{budgets, commit_of, fixed_tokens, may_try, run_after, weights, window_of};
use crate::compaction::chunk::{self, Chunk, ChunkFailure, Job};
use crate::compaction::native::NativeModel;
use crate::compaction::plan::{Scope, tail_start};
use crate::compaction::policy::{self, Ground};
use crate::history::groups;
use crate::message::{CompactionReport, Item, ItemBody, ThreadId};
use crate::slice::{Runtime, SliceError};
use crate::store::{Compacted, CompactionRun, Generation, Meta, Span, behind};
use crate::thread::HistoryManager;

/// Why a job that was given up on has failed.
const ABANDONED: &str = "it was given up on after several attempts";

/// How a background invocation ends.
pub(in crate::slice) enum Background {
    /// With this word to the thread.
    Done(CompactionReport),
    /// More is to be done, in another invocation.
    Rest,
    /// The thread is another one by now: nobody is told.
    Stale,
}

/// The end of a job whose invocations keep dying: it counts as one that has failed. Nothing of the history is read.
pub(in crate::slice) async fn abandoned(
    runtime: &Runtime,
    manager: &HistoryManager,
) -> Result<Background, SliceError> {
    let own = manager.meta();
    let Some(parent_id) = own.parent.clone() else { return Ok(Background::Stale) };
    let Some(parent) = live(runtime, &parent_id, &own.base).await? else { return Ok(Background::Stale) };
    let profile = runtime.agents.profile(&own.agent).ok();
    let window = profile.as_ref().and_then(|profile| window_of(profile, &parent));
    let key = profile.zip(window).map(|(profile, window)| profile.summary_profile(window));
    let mut gave_up = false;
    if let Some(key) = key {
        let run = run_after(&parent.compaction.run, &key, Some(ABANDONED), runtime.clock.now_ms());
        gave_up = run.attempts >= policy::MAX_ATTEMPTS;
        // Where somebody else was faster, theirs counts.
        runtime.store.compact(commit_of(&parent_id, parent.epoch, &parent.compaction, None, run)).await?;
    }
    let manual = own.asked.due.as_ref().is_some_and(|request| request.manual);
    let failure = Some(ABANDONED.to_owned());
    Ok(Background::Done(CompactionReport { chunks: 0, failure, manual, gave_up }))
}

/// The work of a compaction's own thread: up to [`policy::BACKGROUND_CHUNKS`] chunks of the part of its parent that it
/// inherits.
pub(in crate::slice) async fn background(
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
    let Some(window) = window_of(&profile, &parent) else {
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
        let dead = parent.compaction.run.dead.take();
        parent.compaction.run = CompactionRun { dead, ..CompactionRun::default() };
    }
    // Whoever asks by hand gets what every provider reads.
    let route = profile.native().filter(|_| !request.manual);
    let mut native = route.as_ref().map(|route| NativeModel {
        provider: &*profile.model,
        route,
        system: profile.system_prompt.as_deref(),
        tools: tools.registry.definitions(),
        budgets,
    });
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
            native: native.as_ref(),
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
        if chunk.as_ref().is_some_and(|chunk| chunk.generation.native.is_none()) {
            // What the provider has just not done it is not asked for again at once.
            native = None;
        }
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
