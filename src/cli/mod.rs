//! The `dormouse` command.
//!
//! | file | what it holds |
//! |---|---|
//! | `args` | the command line |
//! | `setup` | configuration and model of a process, checked before anything starts |
//! | `access` | the store and the queue: the running process's, or the files themselves |
//! | `conversation` | puts a text into a thread and knows when it is answered |
//! | `screen` | what a person sees meanwhile |
//! | `chat`, `repl`, `serve`, `send`, `show`, `threads`, `pending`, `operations`, `archive`, `redrive` | the commands |
//!
//! Standard output carries results only; everything else goes to standard error. Exit codes: 0, 1 for an answer or
//! a service that failed, 2 for a command line or a configuration to mend.

mod access;
mod archive;
mod args;
mod chat;
mod conversation;
mod operations;
mod pending;
mod redrive;
mod repl;
mod screen;
mod send;
mod serve;
mod setup;
mod show;
mod stop;
mod threads;
mod transcript;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use dormouse::local::aws::LocalError;
use dormouse::local::system::SystemError;
use dormouse::queue::QueueError;
use dormouse::store::StoreError;
use dormouse::telemetry;

use args::{Args, Command};

/// Logs without `-v` where a person is told on the screen what a warning would say.
const LOG_SCREEN: &str = "error,genai=off";
/// Logs without `-v`. genai logs parts of what providers answer, which is content.
const LOG_QUIET: &str = "warn,genai=off";
/// Logs with `-v`.
const LOG_INFO: &str = "warn,dormouse=info,genai=off";
/// Logs with `-vv`.
const LOG_DEBUG: &str = "info,dormouse=debug,genai=off";
/// A command line or a configuration to mend.
const EXIT_USAGE: u8 = 2;
/// An answer or a service failed.
const EXIT_FAILED: u8 = 1;

/// Why a command ends without success: one line for standard error.
#[derive(Debug, thiserror::Error)]
enum CliError {
    /// The command line or the configuration is to be mended.
    #[error("{0}")]
    Usage(String),
    /// The answer, or the service behind it, failed.
    #[error("{0}")]
    Failed(String),
    /// Somebody asked to stop, or reads no more: nothing is wrong.
    #[error("stopped")]
    Stopped,
}

impl From<SystemError> for CliError {
    fn from(error: SystemError) -> Self {
        match error {
            SystemError::Assembly(error) => Self::Usage(error.to_string()),
            SystemError::Local(error) => error.into(),
            SystemError::File { .. } | SystemError::Keys { .. } => Self::Failed(error.to_string()),
        }
    }
}

impl From<LocalError> for CliError {
    fn from(error: LocalError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<QueueError> for CliError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Refused(_) => Self::Usage(error.to_string()),
            QueueError::Unavailable(_) => Self::Failed(error.to_string()),
        }
    }
}

/// Writing to standard output. A reader that has seen enough (`| head`) is no error.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Stopped,
            _ => Self::Failed(format!("cannot write to standard output: {error}")),
        }
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        Self::Failed(format!("cannot write this as JSON: {error}"))
    }
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let on_screen = matches!(args.command, None | Some(Command::Chat(_)));
    let default = match args.global.verbose {
        0 if on_screen => LOG_SCREEN,
        0 => LOG_QUIET,
        1 => LOG_INFO,
        _ => LOG_DEBUG,
    };
    telemetry::init(telemetry::Format::Readable, default);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("dormouse: the system gives no threads ({error}); look at its limits");
            return ExitCode::from(EXIT_FAILED);
        }
    };
    let result = runtime.block_on(run(args));
    // Nothing that matters runs any more; a request to a provider may hang for a minute.
    runtime.shutdown_background();
    match result {
        Ok(()) | Err(CliError::Stopped) => ExitCode::SUCCESS,
        Err(error @ CliError::Usage(_)) => complain(&error, EXIT_USAGE),
        Err(error @ CliError::Failed(_)) => complain(&error, EXIT_FAILED),
    }
}

fn complain(error: &CliError, code: u8) -> ExitCode {
    eprintln!("dormouse: {error}");
    ExitCode::from(code)
}

async fn run(args: Args) -> Result<(), CliError> {
    let Args { global, command } = args;
    match command {
        None => repl::run(&global, args::ThreadArg::default()).await,
        Some(Command::Chat(chat)) if chat.text.is_empty() => repl::run(&global, chat.thread).await,
        Some(Command::Chat(chat)) => chat::run(&global, chat).await,
        Some(Command::Serve(serve)) => serve::run(&global, serve).await,
        Some(Command::Send(send)) => send::run(&global, send).await,
        Some(Command::Show(show)) => show::run(&global, show).await,
        Some(Command::Threads) => threads::run(&global).await,
        Some(Command::Pending(pending)) => pending::run(&global, pending).await,
        Some(Command::Rewind(rewind)) => operations::rewind(&global, rewind).await,
        Some(Command::Fork(fork)) => operations::fork(&global, fork).await,
        Some(Command::Compact(compact)) => operations::compact(&global, compact).await,
        Some(Command::Export(export)) => archive::export(&global, export).await,
        Some(Command::Import(import)) => archive::import(&global, import).await,
        Some(Command::Redact(redact)) => archive::redact(&global, redact).await,
        Some(Command::Delete(delete)) => archive::delete(&global, delete).await,
        Some(Command::Close(close)) => operations::close(&global, close).await,
        Some(Command::Redrive(redrive)) => redrive::run(&global, redrive).await,
    }
}
