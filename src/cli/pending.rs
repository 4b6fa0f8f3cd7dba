//! `dormouse pending`: calls that have waited for a result for long, and settling or resending one by hand.

use std::io::{self, Write};

use dormouse::http::{resent_by_hand, settled_by_hand, unsendable, waiting_since};
use dormouse::message::{CallId, ThreadId};
use dormouse::queue::InputSender;
use dormouse::store::Hold;
use jiff::Timestamp;

use super::CliError;
use super::access::Access;
use super::args::{Global, PendingAction, PendingArgs, thread_id};
use super::screen::{Colours, columns};
use super::transcript::local_time;

/// The newest threads that are looked through.
const MAX_THREADS: usize = 1_000;

/// Runs the command.
pub async fn run(global: &Global, args: PendingArgs) -> Result<(), CliError> {
    let Some(access) = Access::open_existing(global).await? else {
        eprintln!("There are no threads in {}.", global.place());
        return Ok(());
    };
    let done = match (&args.action, &args.settle) {
        (Some(PendingAction::Resend { thread, call }), _) => resend(&access, thread, call).await,
        (None, Some(call)) => settle(&access, &args, call).await,
        (None, None) => list(global, &access, &args).await,
    };
    access.close().await;
    done
}

async fn list(global: &Global, access: &Access, args: &PendingArgs) -> Result<(), CliError> {
    let threads: Vec<ThreadId> = match &args.thread {
        Some(thread) => vec![thread_id(thread)?],
        None => {
            let all = access.store.list_threads(MAX_THREADS).await?;
            all.into_iter().filter(|thread| thread.pending > 0).map(|thread| thread.thread).collect()
        }
    };
    let longest = i64::try_from(args.older.as_millis()).unwrap_or(i64::MAX);
    let before_ms = Timestamp::now().as_millisecond().saturating_sub(longest);
    let mut rows: Vec<[String; 4]> = Vec::new();
    for thread in &threads {
        let loaded = access.store.load(thread, &[]).await?;
        for (call, since_ms) in waiting_since(&loaded).into_iter().filter(|(_, since)| *since <= before_ms) {
            let state = match (call.parked, call.hold) {
                (true, _) => " (result is in)",
                (false, Some(Hold::Turn)) => " (waits for its turn)",
                (false, Some(Hold::Consent | Hold::ConsentThenTurn)) => " (waits for the user)",
                (false, None) => "",
            };
            let name = format!("{}{state}", call.name);
            rows.push([call.call.to_string(), thread.to_string(), name, local_time(since_ms)]);
        }
    }
    if rows.is_empty() {
        eprintln!("No call has waited for longer in {}.", global.place());
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(
        columns(&["CALL", "THREAD", "TOOL", "SINCE"], &rows, Colours::of(&io::stdout())).as_bytes(),
    )?;
    Ok(out.flush()?)
}

async fn resend(access: &Access, thread: &str, call: &str) -> Result<(), CliError> {
    let (thread, call) = (thread_id(thread)?, CallId::from(call));
    let meta = access.store.meta(&thread).await?;
    let Some(pending) = meta.as_ref().and_then(|meta| meta.pending_call(&call)) else {
        return Err(CliError::Usage(format!("{call} is no pending call of thread {thread}")));
    };
    if let Some(why) = unsendable(pending) {
        return Err(CliError::Usage(format!("{call} cannot be sent again: {why}")));
    }
    let (message, dedup) = resent_by_hand(&thread, &call);
    access.input.send(&message, &dedup).await?;
    writeln!(io::stdout(), "{call} {thread} is sent again")?;
    Ok(())
}

async fn settle(access: &Access, args: &PendingArgs, call: &str) -> Result<(), CliError> {
    let thread = args
        .thread
        .as_deref()
        .ok_or_else(|| CliError::Usage("--settle needs the call's thread: --thread THREAD".to_owned()))?;
    let (thread, call) = (thread_id(thread)?, CallId::from(call));
    let meta = access.store.meta(&thread).await?;
    let pending = meta.as_ref().and_then(|meta| meta.pending_call(&call));
    match pending {
        None => return Err(CliError::Usage(format!("{call} is no pending call of thread {thread}"))),
        Some(pending) if pending.parked => {
            return Err(CliError::Usage(format!("the result of {call} is in already")));
        }
        Some(_) => {}
    }
    let (message, dedup) = settled_by_hand(&thread, &call, args.reason.as_deref());
    access.input.send(&message, &dedup).await?;
    writeln!(io::stdout(), "{call} {thread} settled")?;
    Ok(())
}
