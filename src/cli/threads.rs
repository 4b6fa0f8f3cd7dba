//! `dormouse threads`: a list, newest first.

use std::io::{self, Write};

use dormouse::store::ThreadSummary;

use super::CliError;
use super::access::Access;
use super::args::Global;
use super::screen::{Colours, columns};
use super::show::queue_line;
use super::transcript::local_time;

/// Threads of a list.
const MAX_THREADS: usize = 1_000;

/// Runs the command.
pub async fn run(global: &Global) -> Result<(), CliError> {
    let access = Access::open_existing(global).await?;
    let (threads, queued, running) = match access {
        None => (Vec::new(), 0, false),
        Some(access) => {
            let threads = access.store.list_threads(MAX_THREADS).await;
            let (queued, running) = (access.queued().await.unwrap_or(0), access.is_running());
            access.close().await;
            (threads?, queued, running)
        }
    };
    if threads.is_empty() {
        eprintln!("There are no threads in {} yet. Begin one: dormouse chat 'say hello'", global.place());
    } else {
        let mut out = io::stdout().lock();
        out.write_all(table(&threads, Colours::of(&io::stdout())).as_bytes())?;
        out.flush()?;
    }
    if queued > 0 {
        eprintln!("{}", queue_line(queued, running));
    }
    Ok(())
}

fn table(threads: &[ThreadSummary], colours: Colours) -> String {
    let rows: Vec<[String; 6]> = threads
        .iter()
        .map(|thread| {
            let state = match (thread.closed, thread.pending) {
                (true, _) => "closed",
                (false, 0) => "asleep",
                (false, _) => "waits for tools",
            };
            [
                thread.thread.to_string(),
                thread.agent.clone(),
                local_time(thread.created_at_ms),
                thread.head.0.saturating_sub(1).to_string(),
                thread.pending.to_string(),
                state.to_owned(),
            ]
        })
        .collect();
    columns(&["THREAD", "AGENT", "CREATED", "ITEMS", "PENDING", "STATE"], &rows, colours)
}
