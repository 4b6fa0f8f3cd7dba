//! One chunk: from the items behind the watermark to a generation that stands for them. Calls the summarising model, repeats
//! what a repeat may mend, falls back to the other model, and accepts only what every model has room for (C23). Nothing is
//! written here.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::native::{self, NativeModel};
use super::policy::{self, Ground};
use super::summary_call::{self, Answer, CallFailure};
use super::summary_input::{self, Built, Estimator, Source, Unfit};
use crate::history::standing_instructions;
use crate::message::{Epoch, Item, ItemBody, ThreadId, tokens};
use crate::model::ModelProvider;
use crate::store::{
    CompactionState, Generation, GenerationId, Pointer, Position, Span, body_digest, position,
};

/// Calls of the first model for one chunk.
const PRIMARY_CALLS: usize = 2;
/// Calls of the model that it falls back to.
const FALLBACK_CALLS: usize = 1;
/// The wait before the same input is sent again.
pub(super) const SAME_INPUT_WAIT: Duration = Duration::from_secs(1);
/// The longest wait that a provider asks for and gets; a longer one is the next job's.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Of a view, what may be left after a job that has covered all it could, in percent: else it counts as a failed one.
const YIELD_PERCENT: u64 = 90;

/// A summarising model with its budget: one value, so that no call sees a mix (C6). A budget that was shrunk after a
/// failure stays so for later chunks, and so does the estimator.
#[derive(Clone)]
pub struct SummaryModel {
    provider: Arc<dyn ModelProvider>,
    budget: u64,
    estimator: Estimator,
}

impl SummaryModel {
    /// A model with the given window; none if that leaves no budget that is of any use.
    pub fn new(provider: Arc<dyn ModelProvider>, window: u64) -> Option<Self> {
        let budget = policy::summary_budget(window);
        policy::is_available(budget).then_some(Self { provider, budget, estimator: Estimator::Bytes2 })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.provider.model()
    }
}

/// What one chunk is made of. Frozen for its calls.
pub struct Job<'a> {
    /// The thread.
    pub thread: &'a ThreadId,
    /// Its log.
    pub epoch: Epoch,
    /// What META knew of compaction.
    pub state: &'a CompactionState,
    /// The pieces of logs behind the watermark.
    pub spans: &'a [Span],
    /// Their items, as far as they are in range.
    pub items: &'a [Item],
    /// Where they can be cut.
    pub cuts: &'a [usize],
    /// Where the verbatim tail begins.
    pub end: usize,
    /// The summary so far.
    pub generation: Option<&'a Generation>,
    /// The largest history of the model that goes on with it.
    pub reply_budget: u64,
    /// A bound on its output.
    pub output: Option<u32>,
    /// What to keep more of.
    pub focus: Option<&'a str>,
    /// Who makes checkpoints in its own way; none: nobody, or not this time.
    pub native: Option<&'a NativeModel<'a>>,
    /// Whether somebody waits.
    pub ground: Ground,
    /// The invocation's end.
    pub deadline: Instant,
    /// Milliseconds since the epoch.
    pub now_ms: i64,
}

/// A chunk's outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// What to store.
    pub generation: Generation,
    /// Items that it covers.
    pub covers: usize,
    /// All there was to cover is covered, and the view has hardly become smaller.
    pub low_yield: bool,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkFailure {
    /// No failure: everything is covered, or belongs to the tail.
    #[error("there is nothing to summarise")]
    Nothing,
    /// No failure of its own: the invocation is nearly over.
    #[error("the invocation's time is up")]
    NoTime,
    /// No summarising model has a usable window.
    #[error("no model's window has room for summaries")]
    Unavailable,
    /// The calls failed.
    #[error("the summary failed: {0}")]
    Call(&'static str),
}

impl ChunkFailure {
    /// Whether it counts as a failed attempt.
    pub fn counts(&self) -> bool {
        match self {
            Self::Unavailable | Self::Call(_) => true,
            Self::Nothing | Self::NoTime => false,
        }
    }
}

/// Makes one chunk. `models` are the summarising model and the one it falls back to.
///
/// # Errors
/// A [`ChunkFailure`]; whatever it is, nothing was written.
pub async fn summarise(job: &Job<'_>, models: &mut [SummaryModel]) -> Result<Chunk, ChunkFailure> {
    if job.end == 0 {
        return Err(ChunkFailure::Nothing);
    }
    if models.is_empty() {
        return Err(ChunkFailure::Unavailable);
    }
    let limit = policy::accept_limit(models.iter().map(|model| model.budget).chain([job.reply_budget]));
    if let Some(own) = job.native
        && let Some(chunk) = native::checkpoint(job, own, limit).await?
    {
        return Ok(chunk);
    }
    let mut failure = ChunkFailure::Unavailable;
    for (at, model) in models.iter_mut().enumerate() {
        let calls = if at == 0 { PRIMARY_CALLS } else { FALLBACK_CALLS };
        match attempt(job, model, limit, calls).await {
            Ok((built, text)) => {
                let mut chunk = made(job, model.name(), &built, text);
                if let Some(own) = job.native {
                    native::seal(job, own, limit, &mut chunk).await;
                }
                return Ok(chunk);
            }
            Err(ChunkFailure::NoTime) => return Err(ChunkFailure::NoTime),
            Err(e) => {
                tracing::warn!(thread = %job.thread, model = model.name(), error = %e, "no summary");
                failure = e;
            }
        }
    }
    Err(failure)
}

/// The calls of one model.
async fn attempt(
    job: &Job<'_>,
    model: &mut SummaryModel,
    limit: u64,
    calls: usize,
) -> Result<(Built, String), ChunkFailure> {
    let source = Source {
        prior: job.generation.map(|generation| generation.text.as_str()),
        items: job.items,
        cuts: job.cuts,
        end: job.end,
        focus: job.focus,
    };
    let mut output = policy::summary_output(job.output, limit);
    let mut failure = ChunkFailure::Unavailable;
    for call in 1..=calls {
        let Some(built) = summary_input::build(&source, model.budget, model.estimator) else {
            return Err(failure);
        };
        let left = job.deadline.saturating_duration_since(Instant::now());
        let time = policy::call_time(left, job.ground).ok_or(ChunkFailure::NoTime)?;
        let request = summary_call::request(&built.text, output, output / 2);
        let started = Instant::now();
        let answer = summary_call::ask(&*model.provider, request, started + time).await;
        let covered = source_tokens(job, built.covers);
        let judged = answer.and_then(|Answer { text, usage }| {
            let usage = usage.unwrap_or_default();
            tracing::info!(input = usage.input, output = usage.output, "a summary's usage");
            match summary_input::accept(&text, covered, limit) {
                Ok(text) => Ok(text),
                // Nothing in it: the input was too much for the model.
                Err(Unfit::Empty) => Err(CallFailure::TimedOut),
                Err(Unfit::Degenerate | Unfit::TooLarge) => Err(CallFailure::Cut),
            }
        });
        tracing::info!(
            thread = %job.thread,
            model = model.name(),
            call,
            items = built.covers,
            input_tokens = built.tokens,
            source_tokens = covered,
            estimator = model.estimator.name(),
            partial = built.partial,
            duration_ms = started.elapsed().as_millis() as u64,
            outcome = judged.as_ref().err().map_or("summary", CallFailure::name),
            "summary call"
        );
        let problem = match judged {
            Ok(text) => return Ok((built, text)),
            Err(problem) => problem,
        };
        failure = ChunkFailure::Call(problem.name());
        if call == calls {
            break;
        }
        match problem {
            CallFailure::TimedOut | CallFailure::TooLong => {
                if problem == CallFailure::TooLong {
                    model.estimator = Estimator::Bytes1;
                }
                let Some(smaller) = policy::shrink(built.tokens, built.smallest, model.budget) else {
                    return Err(failure);
                };
                model.budget = smaller;
            }
            // The input was not the problem.
            CallFailure::Cut => output = (output / 2).max(1),
            CallFailure::Transient => sleep(SAME_INPUT_WAIT).await,
            CallFailure::Throttled(after) => match after.unwrap_or(SAME_INPUT_WAIT) {
                wait if wait <= MAX_WAIT => sleep(wait).await,
                _ => return Err(failure),
            },
            CallFailure::Final(_) => return Err(failure),
        }
    }
    Err(failure)
}

/// Estimated tokens of what a chunk stands for, as the conversation holds it.
pub(super) fn source_tokens(job: &Job<'_>, covers: usize) -> u64 {
    let prior = job.generation.map_or(0, |generation| tokens::of_bytes(generation.text.len()));
    job.items[..covers].iter().map(weight).fold(prior, u64::saturating_add)
}

/// What an item weighs where it is planned.
pub fn weight(item: &Item) -> u64 {
    match item.facts.est_tokens {
        0 => tokens::of_item(&item.body, item.raw.len()),
        estimate => u64::from(estimate),
    }
}

pub(super) fn made(job: &Job<'_>, model: &str, built: &Built, text: String) -> Chunk {
    let (covered, kept) = job.items.split_at(built.covers);
    let place = |index: usize| position(job.spans, index);
    // Cuts lie behind an item, so there is a last one.
    let through = place(built.covers - 1).expect("bug: a chunk covers items of its spans");
    let source = source_tokens(job, built.covers);
    let all = source_tokens(job, job.items.len());
    let summary = tokens::of_bytes(text.len());
    let after = all.saturating_sub(source).saturating_add(summary);
    let mut system = job.generation.map(|generation| generation.system.clone()).unwrap_or_default();
    system.extend(covered.iter().filter_map(|item| match &item.body {
        ItemBody::System(system) => Some(system.text.clone()),
        _ => None,
    }));
    let mut instructions =
        job.generation.map(|generation| generation.instructions.clone()).unwrap_or_default();
    instructions.extend(covered.iter().filter_map(|item| standing_instructions(&item.body)));
    let id = GenerationId {
        thread: job.thread.clone(),
        epoch: job.epoch,
        number: job.state.last.saturating_add(1),
    };
    let generation = Generation {
        at: Pointer { id, through, opener: opener(job, covered, kept.first()) },
        digest: body_digest(&format!("{model}\n{}", built.text)),
        text,
        parent: job.generation.map(|generation| generation.at.id.clone()),
        system,
        instructions,
        model: model.to_owned(),
        partial: built.partial,
        source_tokens: source,
        created_at_ms: job.now_ms,
        native: None,
    };
    let low_yield = built.covers == job.end && after.saturating_mul(100) > all.saturating_mul(YIELD_PERCENT);
    Chunk { generation, covers: built.covers, low_yield }
}

/// The opener of the turn that a chunk ends within, wherever it stands (C21).
fn opener(job: &Job<'_>, covered: &[Item], kept: Option<&Item>) -> Option<Position> {
    let kept = kept.filter(|kept| !kept.facts.opens_turn)?;
    let of_turn = |item: &Item| item.facts.opens_turn && item.facts.turn_id == kept.facts.turn_id;
    match covered.iter().rposition(of_turn) {
        Some(index) => position(job.spans, index),
        None => {
            // An earlier chunk has covered it.
            let before = job.generation?.at.opener.clone()?;
            let same = covered.iter().all(|item| !item.facts.opens_turn);
            same.then_some(before)
        }
    }
}
