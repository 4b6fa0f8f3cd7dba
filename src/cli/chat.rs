//! `dormouse chat TEXT`: one answer, and the session that the terminal chat shares.

use std::time::Duration;

use dormouse::config::Config;
use dormouse::local::system::LocalSystem;
use dormouse::message::DedupId;
use dormouse::slice::DisplayEvent;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::CliError;
use super::args::{self, ChatArgs, Global, ThreadArg};
use super::conversation::{Conversation, Notices, Stage, Watcher, may_settle};
use super::screen::Screen;
use super::setup;
use super::stop::StopSignal;

/// How often the store is asked where no event says that it is worth it.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A running system and one conversation in it.
pub struct Session {
    /// The system.
    pub system: LocalSystem,
    /// The conversation.
    pub conversation: Conversation,
    /// Its events.
    pub events: UnboundedReceiver<DisplayEvent>,
    /// What was configured.
    pub config: Config,
}

impl Session {
    /// Starts the system.
    pub async fn start(global: &Global, thread: &ThreadArg) -> Result<Self, CliError> {
        let thread = thread.id()?;
        let (watcher, events) = Watcher::new(thread.clone());
        let options = setup::options(global, watcher)?;
        let config = options.config.clone();
        let system = LocalSystem::start(options).await?;
        let conversation = Conversation::new(thread, system.store(), system.input());
        Ok(Self { system, conversation, events, config })
    }

    /// Sends `text` and waits for its answer, which is on standard output then. Shows what happens meanwhile.
    pub async fn answer(
        &mut self,
        text: &str,
        screen: &mut Screen,
        timeout: Duration,
        stop: &mut StopSignal,
    ) -> Result<(), CliError> {
        let dedup = self.conversation.send(text).await?;
        let mut notices = Notices::default();
        self.until_settled(&dedup, &mut notices, screen, timeout, stop).await?;
        let answer = self.conversation.answer(&dedup).await?;
        if let Some(answer) = &answer {
            screen.answer(answer)?;
        }
        screen.settle()?;
        notices.error(answer.is_some()).map_or(Ok(()), |error| Err(CliError::Failed(error)))
    }

    async fn until_settled(
        &mut self,
        dedup: &DedupId,
        notices: &mut Notices,
        screen: &mut Screen,
        timeout: Duration,
        stop: &mut StopSignal,
    ) -> Result<(), CliError> {
        let give_up = Instant::now() + timeout;
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let worth_a_look = tokio::select! {
                Some(event) = self.events.recv() => {
                    if let Some(warning) = notices.note(&event) {
                        screen.warn(warning)?;
                    }
                    screen.show(&event)?;
                    may_settle(&event)
                }
                _ = look.tick() => true,
                () = sleep_until(give_up) => return Err(self.late(dedup, timeout).await),
                () = stop.asked() => {
                    screen.settle()?;
                    return Err(CliError::Failed(
                        "stopped before the answer was there; the thread goes on at the next start".to_owned(),
                    ));
                }
            };
            if !worth_a_look {
                continue;
            }
            let stage = self.conversation.stage(dedup).await?;
            for url in notices.new_consent(&stage) {
                screen.consent(&url)?;
            }
            if stage == Stage::Settled {
                break;
            }
        }
        // What was said at the very end is in the channel already.
        while let Ok(event) = self.events.try_recv() {
            notices.note(&event);
            screen.show(&event)?;
        }
        Ok(())
    }

    async fn late(&self, dedup: &DedupId, timeout: Duration) -> CliError {
        let problem = match self.conversation.stage(dedup).await {
            Ok(Stage::Waiting { tools, .. }) => format!(
                "the thread waits for {} and goes on with its result while `dormouse serve` or a chat runs",
                tools.join(", ")
            ),
            Ok(Stage::Queued | Stage::Working | Stage::Settled) | Err(_) => {
                "the text is kept and answered at the next start".to_owned()
            }
        };
        CliError::Failed(format!("no answer within {} s; {problem}", timeout.as_secs()))
    }
}

/// Runs the command.
pub async fn run(global: &Global, chat: ChatArgs) -> Result<(), CliError> {
    let text = args::text(&chat.text)?;
    let mut stop = StopSignal::listen();
    let mut session = Session::start(global, &chat.thread).await?;
    let mut screen = Screen::new();
    let answered = session.answer(&text, &mut screen, chat.timeout, &mut stop).await;
    drop(screen);
    session.system.stop().await;
    answered
}
