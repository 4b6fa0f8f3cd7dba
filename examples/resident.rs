//! Several threads, served beside each other inside this process: an observer, a client that attaches in mid-stream, and a
//! user who interrupts.
//!
//! ```sh
//! cargo run --example resident
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dormouse::agent::{AgentSystem, ResidentOptions, WriteOutcome};
use dormouse::model::scripted::ScriptedModel;
use dormouse::slice::DisplayEvent;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let responses = Arc::new(AtomicUsize::new(0));
    let counted = responses.clone();
    let system = AgentSystem::builder()
        // A model that does what it is told: `say WORDS`, `slow N WORD`, `seen`.
        .model(Arc::new(ScriptedModel::prompts()), "")
        .on_event(move |_, event| {
            if matches!(event, DisplayEvent::Asking { .. }) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build()?;
    let resident = system.start(ResidentOptions::default()).await?;

    // Three threads at once; each is one task, and answers when its commit is made.
    let greet = async |name: &str| -> Result<(), Box<dyn Error>> {
        let thread = resident.thread(name).await?;
        match thread.push_user_and_ack(format!("say hello, {name}")).await? {
            WriteOutcome::Committed => Ok(()),
            WriteOutcome::NotCommitted { why, .. } | WriteOutcome::Indeterminate { why } => Err(why.into()),
        }
    };
    tokio::try_join!(greet("ana"), greet("ben"), greet("cleo"))?;
    for name in ["ana", "ben", "cleo"] {
        let text = resident.thread(name).await?.last_text().await?;
        println!("{name}: {}", text.unwrap_or_default());
    }

    // A long response, which somebody looks at in mid-stream and then interrupts.
    let ana = resident.thread("ana").await?;
    ana.push_user("slow 1000 zzz")?;
    let live = loop {
        let snapshot = ana.snapshot().await?;
        if !snapshot.partial.is_empty() {
            break snapshot;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    println!("ana: {} items committed, and streaming", live.items.len());
    ana.push_user("say never mind")?;
    ana.flush().await?;
    println!("ana: {}", ana.last_text().await?.unwrap_or_default());
    println!("ana: {} items committed", ana.len().await?);

    resident.stop(Duration::from_secs(5)).await;
    println!("the model was asked {} times", responses.load(Ordering::Relaxed));
    Ok(())
}
