//! `dormouse send`: queues a text and does not wait.

use std::io::{self, Write};

use super::CliError;
use super::access::Access;
use super::args::{self, Global, SendArgs};
use super::conversation::user_text;

/// Runs the command.
pub async fn run(global: &Global, send: SendArgs) -> Result<(), CliError> {
    let text = args::text(&send.text)?;
    let thread = send.thread.id()?;
    let (message, dedup) = user_text(thread.clone(), &text);
    let access = Access::open(global).await?;
    let running = access.is_running();
    access.send(&message, &dedup).await?;
    writeln!(io::stdout(), "{thread} {dedup}")?;
    eprintln!(
        "Queued for thread {thread}; {}.",
        match running {
            true => "the running dormouse answers it",
            false => "it is answered at the next start of dormouse",
        }
    );
    Ok(())
}
