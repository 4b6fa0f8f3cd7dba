//! `dormouse rewind`, `fork`, `compact` and `close`: what is asked of a thread itself. Each is queued; a rewind is shown first.

use std::io::{self, BufRead, IsTerminal, Write};

use dormouse::http::{Preview, preview};
use dormouse::message::{
    Compact, ContentPart, DedupId, Epoch, Fork, InputContent, InputMessage, ItemId, Rewind, RewindTarget,
    Then, ThreadId,
};
use dormouse::queue::InputSender;
use uuid::Uuid;

use super::CliError;
use super::access::Access;
use super::args::{self, CloseArgs, CompactArgs, ForkArgs, Global, RewindArgs, thread_id};

/// Runs `dormouse rewind`.
pub async fn rewind(global: &Global, args: RewindArgs) -> Result<(), CliError> {
    let thread = thread_id(&args.thread)?;
    let mut rewind = Rewind { target: target(&args), seen: None, then: then(&args)? };
    let access = existing(global, &thread).await?;
    let loaded = access.store.load(&thread, &[]).await?;
    let looked = preview(loaded, &thread, &rewind)
        .map_err(|why| CliError::Usage(format!("thread {thread} cannot be rewound so: {why}")));
    let done = match looked {
        Err(e) => Err(e),
        Ok(looked) => {
            show(&looked);
            // Nothing else than what was shown is hidden.
            rewind.seen = Some(looked.seen);
            match args.yes || agreed()? {
                true => queue(&access, thread, InputContent::Rewind(rewind)).await,
                false => Err(CliError::Usage("nothing was changed; --yes does it without asking".to_owned())),
            }
        }
    };
    access.close().await;
    done
}

/// Runs `dormouse fork`.
pub async fn fork(global: &Global, args: ForkArgs) -> Result<(), CliError> {
    let (source, target) = (thread_id(&args.thread)?, thread_id(&args.new)?);
    let access = existing(global, &source).await?;
    let fork = Fork { source, through: args.through, epoch: args.epoch.map(Epoch) };
    let done = match access.store.meta(&target).await? {
        Some(_) => {
            Err(CliError::Usage(format!("there is a thread {target} already; a fork needs a new name")))
        }
        None => queue(&access, target, InputContent::Fork(fork)).await,
    };
    access.close().await;
    done
}

/// Runs `dormouse compact`.
pub async fn compact(global: &Global, args: CompactArgs) -> Result<(), CliError> {
    let thread = thread_id(&args.thread)?;
    let focus = args.focus.map(|focus| args::text(&[focus])).transpose()?;
    let access = existing(global, &thread).await?;
    let done = queue(&access, thread, InputContent::Compact(Compact { manual: true, focus })).await;
    access.close().await;
    done
}

/// Runs `dormouse close`.
pub async fn close(global: &Global, args: CloseArgs) -> Result<(), CliError> {
    let thread = thread_id(&args.thread)?;
    let access = existing(global, &thread).await?;
    let done = queue(&access, thread, InputContent::Close).await;
    access.close().await;
    done
}

/// The place that has the thread.
pub async fn existing(global: &Global, thread: &ThreadId) -> Result<Access, CliError> {
    let missing = || CliError::Usage(format!("there is no thread {thread} in {}", global.place()));
    let access = Access::open_existing(global).await?.ok_or_else(missing)?;
    if access.store.meta(thread).await?.is_none() {
        access.close().await;
        return Err(missing());
    }
    Ok(access)
}

pub async fn queue(access: &Access, thread: ThreadId, content: InputContent) -> Result<(), CliError> {
    let dedup = DedupId::new(format!("cli-{}", Uuid::new_v4().simple()));
    access.input.send(&InputMessage::plain(thread.clone(), content), &dedup).await?;
    writeln!(io::stdout(), "{thread} {dedup}")?;
    eprintln!(
        "Queued for thread {thread}; {}.",
        match access.is_running() {
            true => "the running dormouse does it",
            false => "it is done at the next start of dormouse",
        }
    );
    Ok(())
}

fn target(args: &RewindArgs) -> RewindTarget {
    match (&args.turn, &args.item) {
        (Some(turn), _) => RewindTarget::Turn(*turn),
        (None, Some(item)) => RewindTarget::Item(ItemId::new(item.as_str())),
        (None, None) => RewindTarget::LastPrompt,
    }
}

fn then(args: &RewindArgs) -> Result<Option<Then>, CliError> {
    Ok(match &args.say {
        Some(text) => {
            let text = args::text(std::slice::from_ref(text))?;
            Some(Then::Say(vec![ContentPart::Text(text)]))
        }
        None => args.again.then_some(Then::AnswerAgain),
    })
}

fn show(looked: &Preview) {
    let plan = &looked.plan;
    eprintln!("Hidden, and still in the table:");
    for turn in &plan.turns {
        eprintln!("  turn {}: {}", turn.turn, turn.text);
    }
    if plan.turns.is_empty() {
        eprintln!("  the answer of turn {}", plan.next_turn.saturating_sub(1));
    }
    if !plan.calls.is_empty() {
        eprintln!("Not undone, what these calls did outside:");
        for (name, call) in &plan.calls {
            eprintln!("  {name} ({call})");
        }
    }
    if !plan.children.is_empty() {
        eprintln!("Told to stop: {} child thread(s).", plan.children.len());
    }
}

/// Asks a person; a script has to say `--yes`.
pub fn agreed() -> Result<bool, CliError> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("Do it? [y/N] ");
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
