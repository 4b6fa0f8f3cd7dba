//! `dormouse` and `dormouse chat` without a text: a chat in the terminal, or line by line from a pipe.

use std::io::{self, BufRead, IsTerminal};
use std::time::Duration;

use dormouse::message::DedupId;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::CliError;
use super::args::{Global, ThreadArg};
use super::chat::{LOOK_EVERY, Session};
use super::conversation::{Notices, Stage, may_settle};
use super::screen::{Screen, Tone};
use super::setup;
use super::stop::StopSignal;

/// Lines read ahead of the answers.
const LINES_AHEAD: usize = 16;
/// How long a line of a pipe may take to be answered.
const LINE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// What to try where a script answers.
const SCRIPTED_HINT: &str =
    "A script answers. Try: say hello · call srv_echo {\"a\":1} · look srv_time {} · slow 20 tick · seen";

/// Runs the command.
pub async fn run(global: &Global, thread: ThreadArg) -> Result<(), CliError> {
    let mut stop = StopSignal::listen();
    let mut session = Session::start(global, &thread).await?;
    let mut screen = Screen::new();
    let lines = read_lines();
    let result = match io::stdin().is_terminal() {
        true => in_terminal(&mut session, &thread, lines, &mut screen, &mut stop).await,
        false => from_pipe(&mut session, lines, &mut screen, &mut stop).await,
    };
    drop(screen);
    session.system.stop().await;
    result
}

/// Each line is answered before the next one is sent. A line that fails is said, and the others go on.
async fn from_pipe(
    session: &mut Session,
    mut lines: mpsc::Receiver<String>,
    screen: &mut Screen,
    stop: &mut StopSignal,
) -> Result<(), CliError> {
    let mut failed = 0;
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            () = stop.asked() => return Err(CliError::Stopped),
        };
        let Some(line) = line else { break };
        if line.trim().is_empty() {
            continue;
        }
        match session.answer(&line, screen, LINE_TIMEOUT, stop).await {
            Ok(()) => {}
            Err(CliError::Failed(error)) => {
                failed += 1;
                screen.warn(&error)?;
            }
            Err(error @ (CliError::Usage(_) | CliError::Stopped)) => return Err(error),
        }
    }
    match failed {
        0 => Ok(()),
        1 => Err(CliError::Failed("one line was not answered, see above".to_owned())),
        failed => Err(CliError::Failed(format!("{failed} lines were not answered, see above"))),
    }
}

/// A text that waits for its answer.
struct Waiting {
    dedup: DedupId,
    notices: Notices,
}

/// Lines are sent as they are entered: one that comes while tools are out interrupts them, as the thread's rules
/// say. Leaves at Ctrl-C and Ctrl-D.
async fn in_terminal(
    session: &mut Session,
    thread: &ThreadArg,
    mut lines: mpsc::Receiver<String>,
    screen: &mut Screen,
    stop: &mut StopSignal,
) -> Result<(), CliError> {
    let model = setup::model_name(&session.config);
    screen.line(&format!("thread {} · model {model} · Ctrl-D leaves", thread.thread), Tone::Dim)?;
    if model == setup::SCRIPTED {
        screen.line(SCRIPTED_HINT, Tone::Dim)?;
    }
    let mut waiting: Option<Waiting> = None;
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    screen.prompt()?;
    loop {
        let worth_a_look = tokio::select! {
            line = lines.recv() => {
                screen.prompted();
                match line {
                    None => return Ok(()),
                    Some(line) if line.trim().is_empty() => {
                        if waiting.is_none() {
                            screen.prompt()?;
                        }
                    }
                    Some(line) => {
                        let dedup = session.conversation.send(&line).await?;
                        waiting = Some(Waiting { dedup, notices: Notices::default() });
                    }
                }
                false
            }
            Some(event) = session.events.recv() => {
                if let Some(Waiting { notices, .. }) = &mut waiting
                    && let Some(warning) = notices.note(&event)
                {
                    screen.warn(warning)?;
                }
                screen.show(&event)?;
                if waiting.is_none() && may_settle(&event) {
                    // Somebody else's message, or a callback, was answered.
                    screen.prompt()?;
                }
                may_settle(&event)
            }
            _ = look.tick(), if waiting.is_some() => true,
            () = stop.asked() => {
                screen.settle()?;
                if waiting.is_some() {
                    screen.line("Stopping: an answer under way may finish. Ctrl-C again stops at once.", Tone::Dim)?;
                }
                return Ok(());
            }
        };
        let mut settled = false;
        if let Some(text) = waiting.as_mut().filter(|_| worth_a_look) {
            let stage = session.conversation.stage(&text.dedup).await?;
            for url in text.notices.new_consent(&stage) {
                screen.consent(&url)?;
            }
            settled = stage == Stage::Settled;
        }
        if let Some(text) = waiting.take_if(|_| settled) {
            while let Ok(event) = session.events.try_recv() {
                screen.show(&event)?;
            }
            let answer = session.conversation.answer(&text.dedup).await?;
            if let Some(error) = text.notices.error(answer.is_some()) {
                screen.warn(&error)?;
            } else if let Some(answer) = answer {
                screen.answer(&answer)?;
            }
            screen.prompt()?;
        }
    }
}

/// Reads standard input on a thread of its own: a read cannot be cancelled, and must not keep the process.
fn read_lines() -> mpsc::Receiver<String> {
    let (lines, received) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            // What is not UTF-8 ends the input like its end does.
            let Ok(line) = line else { return };
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    received
}
