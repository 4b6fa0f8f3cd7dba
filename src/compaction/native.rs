//! A chunk in the provider's own way: it is shown the conversation as its model is, and answers with a checkpoint. One whose
//! text is a summary is judged as any other summary is, and where there is none, the portable way is taken. One that only the
//! provider can read is kept beside the summary that was made in the portable way.

use tokio::time::{Instant, sleep, timeout_at};

use super::chunk::{Chunk, ChunkFailure, Job, SAME_INPUT_WAIT, made, source_tokens};
use super::policy::{self, Budgets};
use super::summary_input::{self, Built};
use crate::history::render::{RenderOptions, render};
use crate::history::request::{ModelRequest, RequestMessage, ToolDefinition};
use crate::history::{Front, in_front, shown_item, wording};
use crate::message::{ContentPart, ItemBody, tokens};
use crate::model::{Checkpoint, ErrorClass, ModelProvider, NativeRoute, NoCheckpoint, StopReason};
use crate::store::Native;

/// Calls for one checkpoint.
const CALLS: usize = 2;

/// Who makes it, and what every request of the agent holds.
pub struct NativeModel<'a> {
    /// The agent's own model.
    pub provider: &'a dyn ModelProvider,
    /// Its route.
    pub route: &'a NativeRoute,
    /// The system prompt: the same as in every other request, or what was thought behind the block would not hold.
    pub system: Option<&'a str>,
    /// The tools, likewise.
    pub tools: Vec<ToolDefinition>,
    /// What a request may have.
    pub budgets: Budgets,
}

/// Makes the chunk by what the provider says alone; none: the portable way is to be taken. Everything up to the tail is
/// covered at once, so it must fit.
///
/// # Errors
/// [`ChunkFailure::NoTime`] alone.
pub async fn checkpoint(
    job: &Job<'_>,
    native: &NativeModel<'_>,
    limit: u64,
) -> Result<Option<Chunk>, ChunkFailure> {
    if !native.route.mechanism.is_readable() {
        return Ok(None);
    }
    let made = ask(job, native, job.end, policy::summary_output(job.output, limit)).await?;
    Ok(made.and_then(|checkpoint| chunk(job, native, limit, checkpoint)))
}

/// Adds the provider's checkpoint to a chunk whose summary is made already, where nobody but the provider can read it. What
/// goes wrong costs the checkpoint alone.
pub async fn seal(job: &Job<'_>, native: &NativeModel<'_>, limit: u64, chunk: &mut Chunk) {
    let (mechanism, route) = (native.route.mechanism, native.route.route.clone());
    if mechanism.is_readable() {
        return;
    }
    let Ok(Some(Checkpoint { items, usage, .. })) = ask(job, native, chunk.covers, 0).await else { return };
    // It must leave as much room as a summary does (C23).
    let size = tokens::of_bytes(items.iter().map(|item| item.get().len()).sum());
    if size > limit || size >= chunk.generation.source_tokens {
        tracing::warn!(thread = %job.thread, size, limit, "the provider's checkpoint is not taken");
        return;
    }
    chunk.generation.native = Some(Native::new(mechanism, route, usage, &chunk.generation.text, items));
}

/// Asks for a checkpoint of the first `covers` items and what is before them; `output` bounds the answer, where it can be.
async fn ask(
    job: &Job<'_>,
    native: &NativeModel<'_>,
    covers: usize,
    mut output: u64,
) -> Result<Option<Checkpoint>, ChunkFailure> {
    let source = source_tokens(job, covers);
    // The answer has the reserve.
    if source.saturating_add(native.budgets.fixed) > native.budgets.hard {
        return Ok(None);
    }
    let Some(request) = request(job, native, covers) else { return Ok(None) };
    for call in 1..=CALLS {
        let left = job.deadline.saturating_duration_since(Instant::now());
        let time = policy::call_time(left, job.ground).ok_or(ChunkFailure::NoTime)?;
        let started = Instant::now();
        let max_output_tokens = Some(u32::try_from(output).unwrap_or(u32::MAX));
        let asked = native.provider.checkpoint(ModelRequest { max_output_tokens, ..request.clone() });
        let answer = timeout_at(started + time, asked).await;
        let outcome = match &answer {
            Err(_) => "timeout".to_owned(),
            Ok(Err(why)) => why.to_string(),
            Ok(Ok(_)) => "checkpoint".to_owned(),
        };
        let usage = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok()?.usage).unwrap_or_default();
        tracing::info!(
            thread = %job.thread,
            model = native.provider.model(),
            call,
            items = covers,
            source_tokens = source,
            input_tokens = usage.input,
            output_tokens = usage.output,
            duration_ms = started.elapsed().as_millis() as u64,
            outcome,
            "native compaction"
        );
        match answer {
            Ok(Ok(checkpoint)) => return Ok(Some(checkpoint)),
            // Its thoughts count as well.
            Ok(Err(NoCheckpoint::Stopped(StopReason::MaxTokens))) => output = output.saturating_mul(2),
            Ok(Err(NoCheckpoint::Failed(e))) if passes(e.class) => sleep(SAME_INPUT_WAIT).await,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    Ok(None)
}

/// Whether the same may work at once. What is throttled for longer is not worth waiting for: the portable way waits itself.
fn passes(class: ErrorClass) -> bool {
    match class {
        ErrorClass::Transient | ErrorClass::Throttled { retry_after: None } => true,
        ErrorClass::Throttled { retry_after: Some(_) }
        | ErrorClass::Overflow
        | ErrorClass::Refused
        | ErrorClass::Checkpoint
        | ErrorClass::Fatal => false,
    }
}

/// What is before the tail, as a request: without images, which no summary carries, and without reasoning, which is bound to
/// the view that it was thought of.
fn request(job: &Job<'_>, native: &NativeModel<'_>, covers: usize) -> Option<ModelRequest> {
    let prior = job.generation.and_then(|generation| {
        let block = generation.native.as_ref()?;
        let alive = job.state.run.dead.as_ref() != Some(&generation.at.id);
        (block.route == native.route.route && alive).then_some(block)
    });
    let front = if prior.is_some() { Front::Checkpoint } else { Front::Summary };
    let front = job.generation.map(|generation| in_front(generation, front)).unwrap_or_default();
    let items: Vec<_> = job.items[..covers].iter().map(shown_item).collect();
    let all = front.iter().chain(items.iter().map(AsRef::<ItemBody>::as_ref));
    let options = RenderOptions {
        system: native.system.map(str::to_owned),
        tools: native.tools.clone(),
        ..RenderOptions::default()
    };
    let mut request = render(all, &Default::default(), &options).ok()?.request;
    // Nobody is to go on here.
    let nudge = RequestMessage::User(vec![ContentPart::text(wording::CONTINUE)]);
    if request.messages.last() == Some(&nudge) {
        request.messages.pop();
    }
    request.checkpoint = prior.map(|block| block.items.clone()).unwrap_or_default();
    (!request.messages.is_empty()).then_some(request)
}

fn chunk(job: &Job<'_>, native: &NativeModel<'_>, limit: u64, checkpoint: Checkpoint) -> Option<Chunk> {
    let Checkpoint { text, items, usage } = checkpoint;
    let source = source_tokens(job, job.end);
    let told = match summary_input::accept(text.as_deref().unwrap_or_default(), source, limit) {
        Ok(told) => told,
        Err(why) => {
            tracing::warn!(thread = %job.thread, ?why, "the provider's summary is not taken");
            return None;
        }
    };
    // What it was made of is named by what came of it: a signature is never the same twice.
    let named = items.iter().map(|item| item.get()).collect::<Vec<_>>().join("\n");
    let built = Built { text: named, tokens: source, covers: job.end, smallest: 0, partial: false };
    let mut chunk = made(job, native.provider.model(), &built, told);
    let (mechanism, route) = (native.route.mechanism, native.route.route.clone());
    chunk.generation.native = Some(Native::new(mechanism, route, usage, &chunk.generation.text, items));
    Some(chunk)
}
