//! `dormouse export`, `import`, `redact` and `delete`: a conversation as a whole, for an operator.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::time::Duration;

use dormouse::history::snapshot::Snapshot;
use dormouse::message::{Epoch, InputContent, ItemId, ThreadId};
use dormouse::store::{ArchiveStore, Loaded, ThreadSummary};
use dormouse::thread::{
    DeleteError, RedactError, Redaction, delete as delete_thread, load_branch, redact as redact_thread,
    store_snapshot,
};
use jiff::Timestamp;

use super::CliError;
use super::access::Access;
use super::args::{DeleteArgs, ExportArgs, Global, ImportArgs, RedactArgs, thread_id};
use super::operations::{agreed, existing, queue};

/// Threads that `delete --idle` looks at at once.
const PAGE: usize = 1_000;

/// Runs `dormouse export`.
pub async fn export(global: &Global, args: ExportArgs) -> Result<(), CliError> {
    let thread = thread_id(&args.thread)?;
    let access = existing(global, &thread).await?;
    let branch = load_branch(&*access.store, &thread, args.epoch.map(Epoch)).await;
    access.close().await;
    let Some(Loaded { meta: Some(meta), items, .. }) = branch? else {
        return Err(CliError::Usage(format!("thread {thread} has no log of that epoch")));
    };
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &Snapshot::of(&meta, &items))?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Runs `dormouse import`.
pub async fn import(global: &Global, args: ImportArgs) -> Result<(), CliError> {
    let thread = thread_id(&args.new)?;
    let unreadable = |e: io::Error| CliError::Usage(format!("{} cannot be read: {e}", args.file.display()));
    let json = match args.file.as_os_str() == "-" {
        true => {
            let mut text = String::new();
            io::stdin().lock().read_to_string(&mut text).map_err(unreadable)?;
            text
        }
        false => std::fs::read_to_string(&args.file).map_err(unreadable)?,
    };
    let snapshot = Snapshot::parse(&json)
        .map_err(|why| CliError::Usage(format!("{} cannot be imported: {why}", args.file.display())))?;
    let access = Access::open(global).await?;
    let done = match access.store.meta(&thread).await? {
        Some(_) => {
            Err(CliError::Usage(format!("there is a thread {thread} already; an import needs a new name")))
        }
        None => {
            let import = store_snapshot(&*access.store, snapshot).await?;
            queue(&access, thread, InputContent::Import(import)).await
        }
    };
    access.close().await;
    done
}

/// Runs `dormouse redact`.
pub async fn redact(global: &Global, args: RedactArgs) -> Result<(), CliError> {
    let thread = thread_id(&args.thread)?;
    let what = match (args.item, args.text) {
        (Some(item), _) => Redaction::Item(ItemId::new(item)),
        (None, text) => Redaction::Text(text.unwrap_or_default()),
    };
    let access = existing(global, &thread).await?;
    let done = match args.yes || {
        eprintln!("It will be gone from thread {thread} for good.");
        agreed()?
    } {
        true => redact_thread(&access.archive, &thread, &what).await.map_err(|e| match e {
            RedactError::Store(e) => e.into(),
            RedactError::Busy => CliError::Failed(e.to_string()),
            RedactError::NoThread(_) | RedactError::NoItem(_) | RedactError::TooShort => {
                CliError::Usage(e.to_string())
            }
        }),
        false => Err(CliError::Usage("nothing was changed; --yes does it without asking".to_owned())),
    };
    access.close().await;
    writeln!(io::stdout(), "{} stored text(s) changed", done?)?;
    Ok(())
}

/// Runs `dormouse delete`.
pub async fn delete(global: &Global, args: DeleteArgs) -> Result<(), CliError> {
    let named = args.threads.iter().map(|thread| thread_id(thread)).collect::<Result<Vec<_>, _>>()?;
    let nothing = || CliError::Usage(format!("there is nothing in {}", global.place()));
    let access = Access::open_existing(global).await?.ok_or_else(nothing)?;
    let done = delete_all(&access, named, &args).await;
    access.close().await;
    done
}

async fn delete_all(access: &Access, named: Vec<ThreadId>, args: &DeleteArgs) -> Result<(), CliError> {
    let threads = match args.idle {
        Some(idle) => idle_since(access, idle).await?,
        None => named,
    };
    if threads.is_empty() {
        eprintln!("Nothing to delete.");
        return Ok(());
    }
    let names: Vec<&str> = threads.iter().map(ThreadId::as_str).collect();
    eprintln!("For good, with their children: {}", names.join(", "));
    if !args.yes && !agreed()? {
        return Err(CliError::Usage("nothing was changed; --yes does it without asking".to_owned()));
    }
    let mut failed = 0;
    for thread in &threads {
        match delete_thread(&access.archive, thread).await {
            Ok(deleted) => {
                for gone in deleted.erased {
                    writeln!(io::stdout(), "{gone} deleted")?;
                }
                for kept in deleted.kept {
                    writeln!(io::stdout(), "{kept} deleted, but for what forks inherit")?;
                }
            }
            // One that cannot be deleted must not keep the others.
            Err(e) if threads.len() > 1 => {
                failed += 1;
                eprintln!("{thread} stays: {e}");
            }
            Err(DeleteError::Store(e)) => return Err(e.into()),
            Err(e) => return Err(CliError::Usage(e.to_string())),
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(CliError::Failed(format!("{failed} of {} conversations were not deleted", threads.len()))),
    }
}

/// Closed roots in which nothing has been said for so long.
async fn idle_since(access: &Access, idle: Duration) -> Result<Vec<ThreadId>, CliError> {
    let before = Timestamp::now().as_millisecond() - i64::try_from(idle.as_millis()).unwrap_or(i64::MAX);
    let (mut threads, mut seen, mut from) = (Vec::new(), BTreeSet::new(), 0);
    loop {
        let page = access.archive.oldest_threads(from, before, PAGE).await?;
        let Some(newest) = page.last().map(|thread| thread.created_at_ms) else { return Ok(threads) };
        let new: Vec<ThreadSummary> =
            page.into_iter().filter(|listed| seen.insert(listed.thread.clone())).collect();
        // More of the same time may follow, until a page of it has nothing new.
        from = if new.is_empty() { newest + 1 } else { newest };
        for listed in new.into_iter().filter(|listed| listed.closed) {
            threads.extend(unless_used_since(access, listed, before).await?);
        }
    }
}

/// A closed thread, if it is a root and nothing has been said in it since.
async fn unless_used_since(
    access: &Access,
    listed: ThreadSummary,
    before: i64,
) -> Result<Option<ThreadId>, CliError> {
    let Some(meta) = access.store.meta(&listed.thread).await?.filter(|meta| meta.parent.is_none()) else {
        return Ok(None);
    };
    // Of what it inherits nothing is newer than itself.
    let own = access.store.log(&listed.thread, meta.epoch).await?;
    let last = own.items.last().map_or(listed.created_at_ms, |item| item.facts.created_at_ms);
    Ok((last <= before).then_some(listed.thread))
}
