//! `dormouse redrive`: dead letters, for an operator to look at, to send again or to discard.

use std::io::{self, Write};

use dormouse::message::{DedupId, InputMessage};
use dormouse::queue::InputSender;
use dormouse::store::DeadLetter;

use super::CliError;
use super::access::Access;
use super::args::{Global, RedriveArgs};
use super::screen::{Colours, columns};
use super::transcript::local_time;

/// Dead letters of a list.
const MAX_LETTERS: usize = 1_000;
/// Characters of a reason in a list.
const SHOWN_REASON: usize = 70;

/// Runs the command.
pub async fn run(global: &Global, args: RedriveArgs) -> Result<(), CliError> {
    let Some(access) = Access::open_existing(global).await? else {
        eprintln!("There are no dead letters in {}.", global.place());
        return Ok(());
    };
    let done = act(global, &access, &args).await;
    access.close().await;
    done
}

async fn act(global: &Global, access: &Access, args: &RedriveArgs) -> Result<(), CliError> {
    let letters = access.store.dead_letters(MAX_LETTERS).await?;
    let mut out = io::stdout().lock();
    if args.ids.is_empty() && !args.all {
        if letters.is_empty() {
            eprintln!("There are no dead letters in {}.", global.place());
        } else {
            out.write_all(table(&letters, Colours::of(&io::stdout())).as_bytes())?;
        }
        return Ok(out.flush()?);
    }
    let chosen = match args.all {
        true => letters.iter().collect(),
        false => args.ids.iter().map(|id| find(&letters, id)).collect::<Result<Vec<_>, _>>()?,
    };
    for listed in chosen {
        let (thread, id) = (&listed.thread, &listed.message_id);
        let Some(letter) = access.store.dead_letter(thread, id).await? else { continue };
        if args.show {
            writeln!(out, "{}", letter.body)?;
            continue;
        }
        if !args.discard {
            send(access, &letter).await?;
        }
        access.store.forget_dead_letter(thread, id).await?;
        writeln!(out, "{id} {thread} {}", if args.discard { "discarded" } else { "sent again" })?;
    }
    Ok(out.flush()?)
}

fn find<'a>(letters: &'a [DeadLetter], id: &str) -> Result<&'a DeadLetter, CliError> {
    let found = letters.iter().find(|letter| letter.message_id.as_str() == id);
    found.ok_or_else(|| {
        CliError::Usage(format!("there is no dead letter {id:?}; `dormouse redrive` lists them"))
    })
}

/// Sends it under an id that is its own and new: whoever runs this twice sends it once.
async fn send(access: &Access, letter: &DeadLetter) -> Result<(), CliError> {
    let message = InputMessage::parse(letter.body.as_bytes()).map_err(|e| {
        CliError::Failed(format!(
            "{} would come back at once: {e}. Look at it with --show, discard it with --discard",
            letter.message_id
        ))
    })?;
    if message.group_id != letter.thread {
        return Err(CliError::Failed(format!(
            "{} would come back at once: its body names the thread {}, its message group is {}",
            letter.message_id, message.group_id, letter.thread
        )));
    }
    let kept_at = letter.kept_at_ms.to_string();
    let dedup = DedupId::derive("redrive", &[letter.message_id.as_str(), &kept_at]);
    Ok(access.input.send(&message, &dedup).await?)
}

fn table(letters: &[DeadLetter], colours: Colours) -> String {
    let rows: Vec<[String; 4]> = letters
        .iter()
        .map(|letter| {
            // It may quote a body, and a body may hold what a terminal obeys.
            let reason: String =
                letter.reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let mut shown: String = reason.chars().take(SHOWN_REASON).collect();
            if shown.len() < reason.len() {
                shown.push('…');
            }
            [letter.message_id.to_string(), letter.thread.to_string(), local_time(letter.kept_at_ms), shown]
        })
        .collect();
    columns(&["ID", "THREAD", "KEPT", "REASON"], &rows, colours)
}
