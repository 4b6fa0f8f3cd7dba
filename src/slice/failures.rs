//! When a completion cannot go on: what a failed request leads to, and the bounds of one slice.

use std::time::Duration;

use tokio::time::Instant;

use super::{Runtime, SliceError, runs};
use crate::history::LeftOutInput;
use crate::history::image_room::RefusedImages;
use crate::message::LeftOut;
use crate::model::{ErrorClass, ModelError};
use crate::store::Promise;
use crate::thread::HistoryManager;

/// First wait before a repeated request; doubles up to the limit of inline waits.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);

/// One slice's bounds, counted down.
#[derive(Default)]
pub(super) struct Spent {
    pub retries: u32,
    pub refused_rounds: u32,
    pub synchronous_rounds: u32,
    /// Chunks that were summarised before a request.
    pub chunks: u32,
    /// How far the ladder of a request that is too large was climbed.
    pub rung: u32,
    pub images: Images,
    /// Images that the last request held.
    pub images_sent: usize,
}

/// Whether a request that a provider has refused was tried without images: once in a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Images {
    /// Not yet.
    #[default]
    Untried,
    /// The next answer says whether they were the reason.
    SetAside,
    /// It is known.
    Tried,
}

pub(super) fn check_time(runtime: &Runtime, deadline: Instant) -> Result<(), SliceError> {
    if Instant::now() + runtime.limits.deadline_margin >= deadline {
        return Err(SliceError::Deadline);
    }
    Ok(())
}

pub(super) fn bound_reached(runtime: &Runtime, spent: &Spent) -> Option<&'static str> {
    let limits = &runtime.limits;
    if spent.refused_rounds >= limits.refused_rounds {
        return Some("The model keeps calling tools in a way that cannot work. Write again to go on.");
    }
    if spent.synchronous_rounds > limits.synchronous_rounds {
        return Some("The model has used its built-in tools too often in a row. Write again to go on.");
    }
    None
}

/// Tells the user something, with the next commit.
pub(super) fn tell(manager: &mut HistoryManager, text: &str) {
    manager.promise(Promise::Notice { text: text.to_owned() });
}

/// Tells the user, with the next commit, that the thread cannot go on by itself. A client's run ends so, with that code.
pub(super) fn give_up(manager: &mut HistoryManager, code: &'static str, text: &str) {
    manager.set_trouble(code, text);
    tell(manager, text);
}

pub(super) fn class_name(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::Throttled { .. } => "throttled",
        ErrorClass::Transient => "transient",
        ErrorClass::Overflow => "overflow",
        ErrorClass::Refused => "refused",
        ErrorClass::Checkpoint => "checkpoint",
        ErrorClass::Fatal => "fatal",
    }
}

pub(super) enum AfterFailure {
    Wait(Duration),
    Again,
    GaveUp,
}

/// What a failed request leads to. Only what a redelivery may mend is an error.
pub(super) fn failed(
    runtime: &Runtime,
    spent: &mut Spent,
    manager: &mut HistoryManager,
    e: ModelError,
    deadline: Instant,
) -> Result<AfterFailure, SliceError> {
    spent.retries += 1;
    let out_of_retries = spent.retries > runtime.limits.retries;
    let hand_back = |after| SliceError::Model { message: e.message.clone(), after };
    match e.class {
        ErrorClass::Throttled { retry_after } => {
            let delay = retry_after.unwrap_or_else(|| backoff(spent.retries, runtime));
            let too_long = delay > runtime.limits.inline_wait;
            if too_long || out_of_retries || Instant::now() + delay >= deadline {
                return Err(hand_back(Some(delay)));
            }
            Ok(AfterFailure::Wait(delay))
        }
        ErrorClass::Transient => {
            if out_of_retries {
                return Err(hand_back(None));
            }
            Ok(AfterFailure::Wait(backoff(spent.retries, runtime)))
        }
        ErrorClass::Overflow => {
            let text = format!("The conversation does not fit the model's context window ({}).", e.message);
            Ok(leave_out(manager, LeftOut::TooLarge, text, out_of_retries))
        }
        ErrorClass::Refused if !out_of_retries && sets_images_aside(spent, manager) => {
            Ok(AfterFailure::Again)
        }
        // Of a checkpoint that was not sent it is a refusal like any other.
        ErrorClass::Refused | ErrorClass::Checkpoint => {
            // Without images it was refused as well: it was not for them.
            manager.history_mut().take_images_back();
            spent.images = Images::Tried;
            let text = format!("The model's provider refused the request: {}", e.message);
            Ok(leave_out(manager, LeftOut::Refused, text, out_of_retries))
        }
        ErrorClass::Fatal => {
            // Somebody has to act; the message is kept, so that the next one finds it in the history.
            manager.history_mut().mark_inputs_model_validated();
            give_up(manager, runs::MODEL_ERROR, &format!("The model cannot be used: {}", e.message));
            Ok(AfterFailure::GaveUp)
        }
    }
}

/// A request that the provider will never take as it is: of what is new in it the largest stays out, in this and
/// in every later request, and in the history. A tool's result stands for itself as a placeholder, which is worth
/// another request; about anything else the user is told.
fn leave_out(manager: &mut HistoryManager, why: LeftOut, text: String, out_of_retries: bool) -> AfterFailure {
    let left_out = manager.history_mut().leave_out_largest_input(why);
    if left_out == Some(LeftOutInput::Result) && !out_of_retries {
        return AfterFailure::Again;
    }
    manager.history_mut().mark_inputs_model_validated();
    give_up(manager, runs::MODEL_ERROR, &text);
    AfterFailure::GaveUp
}

/// A provider does not say which image it refuses, nor, in a word of its own, that it was for an image at all: the
/// request is tried once more without those that may be the reason.
fn sets_images_aside(spent: &mut Spent, manager: &mut HistoryManager) -> bool {
    let may_be = spent.images == Images::Untried && spent.images_sent > 0;
    let tries = may_be && manager.history_mut().set_images_aside();
    if tries {
        spent.images = Images::SetAside;
    }
    tries
}

/// A response has ended. If its request was tried without images, it was for them: a single one stays out of every later
/// request. Of several nobody knows which, so all of them stay; the rest of this slice goes on without them.
pub(super) fn answered_without_images(spent: &mut Spent, manager: &mut HistoryManager) {
    if spent.images != Images::SetAside {
        return;
    }
    spent.images = Images::Tried;
    match manager.history_mut().settle_images_aside() {
        Some(RefusedImages::One) => {
            tell(manager, "The model's provider refuses an image of this conversation. It is left out.");
        }
        Some(RefusedImages::Several) => {
            // The next view has them again.
            manager.forget_usage();
            tell(
                manager,
                "The model's provider refuses an image of this conversation. This was answered without its images.",
            );
        }
        None => {}
    }
}

fn backoff(attempt: u32, runtime: &Runtime) -> Duration {
    let exponential = FIRST_BACKOFF.saturating_mul(1 << attempt.saturating_sub(1).min(8));
    exponential.min(runtime.limits.inline_wait).mul_f64(rand::random_range(0.5..=1.0))
}
