//! Answers to interrupts (H9): whether a batch of them is one, judged before anything changes, and what each means. One that
//! was taken is remembered with what it said, so that the same one again is harmless.

use std::collections::BTreeSet;

use serde_json::Value;

use super::held::{self, Word};
use super::prepare::PrepareResult;
use super::questions::{self, Asks, Question};
use super::{Runtime, SliceError, choices};
use crate::history::{Arrival, MAX_CALLS};
use crate::message::{CallId, DedupId, ResumeAnswer, ThreadId, UserChoiceAnswer};
use crate::thread::HistoryManager;

/// Codes of the protocol.
const UNKNOWN_INTERRUPT: &str = "UNKNOWN_INTERRUPT_ID";
const PARTIAL_RESUME: &str = "PARTIAL_RESUME";
const INTERRUPT_EXPIRED: &str = "INTERRUPT_EXPIRED";
const INVALID_PAYLOAD: &str = "INVALID_PAYLOAD";
const RESUME_ERROR: &str = "INTERRUPT_RESUME_ERROR";

/// Answers of one request: two for each call of a step, which is the most that can be open, and as many that are over.
const MAX_ANSWERS: usize = 4 * MAX_CALLS;
/// Bytes of arguments that a person may give a call in place of the model's own.
const MAX_EDIT_BYTES: usize = 64 * 1024;
/// Kind of the dedup id of an answer: the same one again has no effect.
const ANSWERED: &str = "agui-answer";

/// Why a batch of answers is none: a code and a text for the user.
pub(super) type Refusal = (&'static str, String);

/// Whether a batch of answers is one: in this order shape, unknown, duplicate, missing, expiry, payload. Nothing has changed
/// yet. `goes_on`: its user says something besides, which gives up whatever is not answered.
pub(super) async fn check(
    runtime: &Runtime,
    asked: &[Question],
    answers: &[ResumeAnswer],
    manager: &mut HistoryManager,
    goes_on: bool,
    now_ms: i64,
) -> Result<Result<(), Refusal>, SliceError> {
    if answers.len() > MAX_ANSWERS {
        return Ok(Err((RESUME_ERROR, format!("there are more than {MAX_ANSWERS} answers"))));
    }
    if answers.iter().any(|answer| answer.interrupt.is_empty()) {
        let why = "an answer names no interrupt, or has a status that is neither `resolved` nor `cancelled`";
        return Ok(Err((RESUME_ERROR, why.to_owned())));
    }
    let of = |answer: &ResumeAnswer| asked.iter().find(|question| question.id().as_str() == answer.interrupt);
    let mut unknown = None;
    let (mut over, mut moot) = (0, 0);
    for answer in answers.iter().filter(|answer| of(answer).is_none()) {
        let (code, why) = match standing(manager, answer).await? {
            // Its client could not know that the tool has gone on by itself, and has to answer everything it was asked.
            Standing::Moot => {
                moot += 1;
                continue;
            }
            Standing::Over => {
                over += 1;
                (UNKNOWN_INTERRUPT, "has been answered")
            }
            Standing::Expired => (INTERRUPT_EXPIRED, "has expired"),
            Standing::Unknown => (UNKNOWN_INTERRUPT, "is not open"),
        };
        unknown.get_or_insert_with(|| (code, format!("interrupt {:?} {why}", answer.interrupt)));
    }
    // The same answers once more, after a lost answer of ours: there is nothing left to do.
    let nothing_is_left = asked.is_empty() || !goes_on;
    if over + moot == answers.len() && over + moot > 0 && nothing_is_left {
        return Ok(Ok(()));
    }
    if let Some(unknown) = unknown {
        return Ok(Err(unknown));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = answers.iter().find(|answer| !seen.insert(&answer.interrupt)) {
        return Ok(Err((RESUME_ERROR, format!("interrupt {:?} is answered twice", twice.interrupt))));
    }
    let answered = |question: &&Question| answers.iter().any(|a| a.interrupt == question.id().as_str());
    // What has taken the place of one that is moot was asked of nobody yet.
    let told = asked.iter().take(questions::MAX_ASKED.saturating_sub(moot));
    if let Some(missing) = told.clone().find(|question| !answered(question)) {
        return Ok(Err((PARTIAL_RESUME, format!("interrupt {:?} has no answer", missing.id().as_str()))));
    }
    for question in told {
        if let Some(why) = question.expired(now_ms) {
            return Ok(Err((INTERRUPT_EXPIRED, format!("interrupt {:?} {why}", question.id().as_str()))));
        }
    }
    for answer in answers.iter().filter(|answer| answer.resolved) {
        let Some(question) = of(answer) else { continue };
        if let Some(problem) = question.problem(answer.payload.as_ref()) {
            return Ok(Err((INVALID_PAYLOAD, format!("the answer to {:?} {problem}", answer.interrupt))));
        }
    }
    Ok(check_edits(runtime, asked, answers, manager).await)
}

/// Whether arguments that the user has given in place of the model's fit their tools. Tools are looked up only for those.
async fn check_edits(
    runtime: &Runtime,
    asked: &[Question],
    answers: &[ResumeAnswer],
    manager: &HistoryManager,
) -> Result<(), Refusal> {
    let resolved = answers.iter().filter(|answer| answer.resolved);
    let edits: Vec<(&Question, String)> = resolved
        .filter_map(|answer| {
            let question = asked.iter().find(|question| question.id().as_str() == answer.interrupt)?;
            Some((question, question.edited(answer.payload.as_ref())?))
        })
        .collect();
    if edits.is_empty() {
        return Ok(());
    }
    let registry = runtime.tools_of(&manager.meta().agent, &manager.meta().root).await.registry;
    for (question, arguments) in edits {
        let id = question.id();
        if arguments.len() > MAX_EDIT_BYTES {
            let why =
                format!("the answer to {:?} has `editedArgs` above {MAX_EDIT_BYTES} bytes", id.as_str());
            return Err((INVALID_PAYLOAD, why));
        }
        if let Err(problem) = registry.check_arguments(&question.call.name, &arguments) {
            let why = format!("the answer to {:?} has `editedArgs` that do not do: {problem}", id.as_str());
            return Err((INVALID_PAYLOAD, why));
        }
    }
    Ok(())
}

/// How an answer stands whose question is not open.
enum Standing {
    /// It was given before.
    Over,
    /// It is not needed any more.
    Moot,
    /// Nobody has given one in time.
    Expired,
    /// There was no such question, or it has another answer.
    Unknown,
}

async fn standing(manager: &mut HistoryManager, answer: &ResumeAnswer) -> Result<Standing, SliceError> {
    let thread = manager.history().thread().clone();
    if manager.is_processed(&answer_id(&thread, answer)).await? {
        return Ok(Standing::Over);
    }
    let id = CallId::new(&answer.interrupt);
    let call = CallId::of_choice(&id);
    if id == call.authorization() && manager.history().call(&call).is_some() {
        return Ok(Standing::Moot);
    }
    Ok(match manager.is_processed(&held::expiry_id(&thread, &id)).await? {
        true => Standing::Expired,
        false => Standing::Unknown,
    })
}

/// An answer, as it is remembered: the same one again is none.
fn answer_id(thread: &ThreadId, answer: &ResumeAnswer) -> DedupId {
    let payload = answer.payload.as_ref().map(Value::to_string).unwrap_or_default();
    let status = if answer.resolved { "resolved" } else { "cancelled" };
    DedupId::derive(ANSWERED, &[thread.as_str(), &answer.interrupt, status, &payload])
}

/// Takes one checked answer. Given up is what stands for no answer: it is refused, or the tool's default.
pub(super) fn answer(
    manager: &mut HistoryManager,
    arrival: &Arrival,
    question: &Question,
    answer: &ResumeAnswer,
) -> PrepareResult {
    let dedup = answer_id(manager.history().thread(), answer);
    let arrival = Arrival { dedup, ..arrival.clone() };
    let payload = answer.payload.as_ref().filter(|_| answer.resolved);
    let member = |name| payload.and_then(|payload| payload.get(name));
    let (selected, word) = match &question.asks {
        Asks::Permission(_) if member("approved") == Some(&Value::Bool(true)) => {
            (Some(held::ALLOW), Word::Allowed { arguments: question.edited(payload) })
        }
        Asks::Permission(_) => {
            let reason = member("reason").and_then(Value::as_str).map(str::to_owned);
            (None, Word::Refused { reason })
        }
        Asks::Choice(choice) => (questions::selected(choice, payload), Word::Refused { reason: None }),
        Asks::Authorization(_) => {
            return choices::authorize(&arrival, manager, &question.call, answer.resolved);
        }
    };
    choices::answer_with(&arrival, manager, &UserChoiceAnswer { id: question.id(), selected }, word)
}
