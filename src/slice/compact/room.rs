//! Room for a request: one chunk before it where the history is too large, else older groups left out; and, where the provider
//! finds it too large all the same, one rung of the ladder after the other.

use tokio::time::Instant;

use super::{budgets, commit_of, failure_notice, fixed_tokens, may_try, run_after, weights, window_of};
use crate::compaction::chunk::{self, Job};
use crate::compaction::plan::{Scope, tail_start};
use crate::compaction::policy::{Budgets, Ground};
use crate::history::LeftOutInput;
use crate::message::LeftOut;
use crate::slice::failures::{Spent, give_up, tell};
use crate::slice::{DisplayEvent, Runtime, Session, SliceError, runs};
use crate::store::Compacted;
use crate::thread::HistoryManager;

/// Chunks of one slice before its request: one where the history is too large, one more where the provider says so.
const FOREGROUND_CHUNKS: u32 = 2;

/// Whether a request can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::slice) enum Room {
    /// It fits, as far as estimates go.
    Enough,
    /// Nothing that could be sent fits: the user is told.
    None,
}

/// Sees to it that the next request fits the window, where that is known: by one chunk, else by leaving the oldest groups out.
pub(in crate::slice) async fn make_room(
    runtime: &Runtime,
    session: &Session,
    manager: &mut HistoryManager,
    spent: &mut Spent,
    deadline: Instant,
) -> Result<Room, SliceError> {
    let known = window_of(&session.profile, manager.meta());
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
        runs::MODEL_ERROR,
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
        give_up(manager, runs::MODEL_ERROR, &text);
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
        // Somebody waits: in the portable way alone, which is cheaper to be wrong about.
        native: None,
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
                tell(manager, &failure_notice(&failure.to_string(), run.attempts));
            }
            Ok(false)
        }
    }
}

/// What may still be done about a request that the provider found too large, one rung a repeat, each once. False: nothing.
pub(in crate::slice) async fn after_overflow(
    runtime: &Runtime,
    session: &Session,
    manager: &mut HistoryManager,
    spent: &mut Spent,
    named: Option<u64>,
    deadline: Instant,
) -> Result<bool, SliceError> {
    let fixed = fixed_tokens(&session.profile, &session.tools.registry);
    let size = manager.request_size(fixed);
    if let Some(tokens) = named {
        tracing::info!(thread = %manager.history().thread(), tokens, "the provider has named its window");
        let model = &session.profile.model;
        manager.take_window(model.model(), model.info().context_window, tokens);
    }
    // Whatever the estimate is of: of such a request the provider says that it is above its limit.
    let window = window_of(&session.profile, manager.meta()).unwrap_or(size).min(size);
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
