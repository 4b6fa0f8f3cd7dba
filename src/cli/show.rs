//! `dormouse show`: reads a conversation.

use std::io::{self, Write};

use dormouse::message::ThreadId;
use dormouse::store::Loaded;
use dormouse::thread::generations;

use super::CliError;
use super::access::Access;
use super::args::{self, Global, ShowArgs};
use super::screen::Colours;
use super::transcript;

/// Runs the command.
pub async fn run(global: &Global, show: ShowArgs) -> Result<(), CliError> {
    let thread = args::thread_id(&show.thread)?;
    let nowhere = || CliError::Failed(format!("there is no thread {thread} in {}", global.place()));
    let access = Access::open_existing(global).await?.ok_or_else(nowhere)?;
    if show.generations {
        let shown = summaries(&access, &thread, &show).await;
        access.close().await;
        return shown.and_then(|shown| shown.ok_or_else(nowhere));
    }
    let loaded = access.store.load(&thread, &[]).await;
    let queued = access.queued().await.unwrap_or(0);
    let running = access.is_running();
    access.close().await;
    let loaded = loaded?;
    let Loaded { meta: Some(meta), .. } = &loaded else {
        return Err(match queued {
            0 => nowhere(),
            _ => CliError::Failed(format!("{}; {}", nowhere(), queue_line(queued, running))),
        });
    };
    let mut out = io::stdout().lock();
    if show.json {
        writeln!(out, "{}", transcript::json(meta, &loaded)?)?;
    } else {
        write!(out, "{}", transcript::readable(meta, &loaded, Colours::of(&io::stdout())))?;
        if queued > 0 {
            writeln!(out, "{}", queue_line(queued, running))?;
        }
    }
    Ok(out.flush()?)
}

/// The summaries of a thread; none: there is no such thread.
async fn summaries(access: &Access, thread: &ThreadId, show: &ShowArgs) -> Result<Option<()>, CliError> {
    let Some(meta) = access.store.meta(thread).await? else { return Ok(None) };
    let found = generations(&*access.store, meta.compaction.newest.as_ref()).await?;
    let mut out = io::stdout().lock();
    match show.json {
        true => writeln!(out, "{}", transcript::generations_json(&meta, &found)?)?,
        false => write!(out, "{}", transcript::generations(&meta, &found))?,
    }
    out.flush()?;
    Ok(Some(()))
}

/// What the queue holds, for people.
pub fn queue_line(queued: u64, running: bool) -> String {
    let (messages, are) = if queued == 1 { ("message", "is") } else { ("messages", "are") };
    match running {
        true => format!("{queued} {messages} {are} being worked on, of all threads."),
        false => {
            format!("{queued} {messages} {are} queued, of all threads; they are answered at the next start.")
        }
    }
}
