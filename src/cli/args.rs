//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use dormouse::message::ThreadId;

use super::CliError;

/// SQS's bound on a group id, which a thread id is.
const MAX_THREAD_CHARS: usize = 128;

const EXAMPLES: &str = "\
Examples:
  dormouse                                  chat in the terminal, on the thread `main`
  dormouse chat 'call srv_echo {\"a\":1}'     one answer on standard output, without any key
  dormouse --model anthropic::claude-sonnet-4-5 chat 'What time is it?'
  echo 'say hi' | dormouse chat -t t1       read lines, answer each
  dormouse serve --port 8787                run until Ctrl-C; any SQS client may send inputs
  dormouse send 'say later' -t t1           queue a text; also while nothing runs
  dormouse show t1                          read the conversation
  dormouse threads                          list all of them
  dormouse redrive                          list what could not be processed; `redrive ID` sends it again

Without configuration a script answers: `say TEXT`, `seen`, `think TEXT`, `slow N WORD`, `fail TEXT`,
`call TOOL JSON`, `both TOOL JSON TOOL JSON`, `look TOOL JSON`. The demo's tools are srv_echo,
srv_fail, srv_slow and srv_time. For a real model set its key, e.g. ANTHROPIC_API_KEY, and --model,
or write a dormouse.toml (see dormouse.example.toml).

What was said or queued is in --dir, and is there after a crash.
Exit codes: 0, 1 if the answer or a service failed, 2 if the command line or the configuration is wrong.";

/// Durable AI agents on one machine: DynamoDB, SQS, the worker and the callback endpoint in one process.
#[derive(Debug, Parser)]
#[command(name = "dormouse", version, after_help = EXAMPLES)]
pub struct Args {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Options of every command.
#[derive(Debug, ClapArgs)]
pub struct Global {
    /// Where conversations and queues are kept
    #[arg(long, global = true, default_value = ".dormouse", env = "DORMOUSE_DIR", hide_env_values = true)]
    pub dir: PathBuf,
    /// Configuration file [default: dormouse.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Default model: `scripted`, `provider::model` (anthropic::…, openai::…, ollama::…), or a name in [models]
    #[arg(long, global = true, value_name = "SPEC")]
    pub model: Option<String>,
    /// The deployed stack instead of --dir, for send, show, threads, pending and redrive: its table and queue from the
    /// configuration (DORMOUSE_AWS__TABLE, DORMOUSE_AWS__INPUT_QUEUE_URL), credentials from the environment
    #[arg(long, global = true)]
    pub aws: bool,
    /// Logs on standard error; twice for more (or DORMOUSE_LOG=filter)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// What to do; nothing named: chat in the terminal.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ask and print the answer; without TEXT, chat in the terminal or answer lines of standard input
    #[command(after_help = "\
Examples:
  dormouse chat 'say hello'
  dormouse chat 'call srv_slow {\"ms\":2000}' --timeout 30s
  printf 'say one\\nseen\\n' | dormouse chat

Waits for tools and their callbacks. When the time is up nothing is lost: the thread goes on later.")]
    Chat(ChatArgs),
    /// Run until Ctrl-C or SIGTERM: answer inputs from the queue and take callbacks
    #[command(after_help = "\
One JSON line on standard output says when it is ready and where:
  {\"http\":…,\"sqs\":…,\"dynamodb\":…,\"input_queue\":…,\"output_queue\":…,\"dead_letter_queue\":…,\"table\":…}
The same is in DIR/endpoints.json. Any SQS client may send inputs there, with any credentials:
  {\"content\":{\"type\":\"text\",\"text\":\"say hi\"},\"group_id\":\"t1\"}    MessageGroupId: t1
Replies are messages on the output queue.")]
    Serve(ServeArgs),
    /// Queue a text; the running process answers it, or else the next one
    #[command(after_help = "Prints the thread and the id under which the text is processed at most once.")]
    Send(SendArgs),
    /// Read a conversation
    Show(ShowArgs),
    /// List conversations, newest first
    Threads,
    /// List calls that have waited long for a result; give one an error for a result, or send it again
    #[command(after_help = "\
Examples:
  dormouse pending --older 2h
  dormouse pending --thread t1 --settle c0-4-abcdefghijkl --reason 'the build server is gone'
  dormouse pending resend t1 c0-4-abcdefghijkl

The model reads the error and goes on. If the tool answers all the same, its result is kept as a note.
A call that is sent again keeps its id: a server that knows it does not run it twice.")]
    Pending(PendingArgs),
    /// Hide a conversation's newest turns; shows what, and asks
    #[command(after_help = "\
Examples:
  dormouse rewind t1                        take the last message and its answer back
  dormouse rewind t1 --turn 3 --yes         from turn 3 on
  dormouse rewind t1 --say 'say it better'  say something else instead
  dormouse rewind t1 --again                have the last message answered again

Nothing is deleted, and what tools did outside is not undone.")]
    Rewind(RewindArgs),
    /// Begin a new conversation as a copy of another one
    Fork(ForkArgs),
    /// Summarise the older part of a conversation now; nothing is deleted
    #[command(after_help = "\
Examples:
  dormouse compact t1
  dormouse compact t1 --focus 'the names of the files'
  dormouse show t1 --generations

It happens by itself when the model's window fills. What has failed before is tried again.")]
    Compact(CompactArgs),
    /// Write a conversation as JSON, to keep it or to go on with it elsewhere
    #[command(after_help = "\
Examples:
  dormouse export t1 > t1.json
  dormouse import t1.json t2
  dormouse export t1 --epoch 0              a branch that a rewind has hidden

It is the conversation as it is stored, and holds what was said in it. Nothing that is under way is in it.")]
    Export(ExportArgs),
    /// Make a new conversation of an export
    Import(ImportArgs),
    /// End a conversation for good, and its children
    Close(CloseArgs),
    /// Take something out of a conversation for good, wherever it is stored
    #[command(after_help = "\
Examples:
  dormouse redact t1 --item i0-3            everything that this item says
  dormouse redact t1 --text hunter2         this text, wherever it stands

It cannot be undone. What was sent to a model or a tool, or is still in a queue, is not reached; nor are forks' own items.")]
    Redact(RedactArgs),
    /// Delete closed conversations and their children for good
    #[command(after_help = "\
Examples:
  dormouse delete t1
  dormouse delete --idle 90d --yes          all that are closed and were last used 90 days ago

A name stays used. What forks inherit stays until they are deleted as well.")]
    Delete(DeleteArgs),
    /// List dead letters; with IDs, send them again
    #[command(after_help = "\
A dead letter is a message that can never be processed, or that no worker finished. It is kept until it is sent
again or discarded. Sent again it is a new message, at the end of its thread, under a new id.")]
    Redrive(RedriveArgs),
}

impl Global {
    /// Where conversations are, for people.
    pub fn place(&self) -> String {
        match self.aws {
            true => "the deployed stack".to_owned(),
            false => self.dir.display().to_string(),
        }
    }
}

/// Which thread.
#[derive(Clone, Debug, ClapArgs)]
pub struct ThreadArg {
    /// The conversation
    #[arg(long, short, value_name = "THREAD", default_value = DEFAULT_THREAD)]
    pub thread: String,
}

/// The thread that is meant where none is named.
const DEFAULT_THREAD: &str = "main";

impl Default for ThreadArg {
    fn default() -> Self {
        Self { thread: DEFAULT_THREAD.to_owned() }
    }
}

impl ThreadArg {
    /// The thread's id, if SQS can carry it.
    pub fn id(&self) -> Result<ThreadId, CliError> {
        thread_id(&self.thread)
    }
}

/// A thread id that SQS can carry.
pub fn thread_id(text: &str) -> Result<ThreadId, CliError> {
    if (1..=MAX_THREAD_CHARS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(ThreadId::from(text));
    }
    Err(CliError::Usage(format!(
        "the thread {text:?} is not of 1 to {MAX_THREAD_CHARS} ASCII letters, digits and punctuation"
    )))
}

/// `dormouse chat`.
#[derive(Debug, ClapArgs)]
pub struct ChatArgs {
    /// What to say; several words are joined by spaces
    #[arg(value_name = "TEXT")]
    pub text: Vec<String>,
    /// Where.
    #[command(flatten)]
    pub thread: ThreadArg,
    /// How long to wait for the answer: 90s, 10m, 2h
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
}

/// `dormouse serve`.
#[derive(Debug, ClapArgs)]
pub struct ServeArgs {
    /// Port of HTTP [default: the one of last time, else a free one]
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Port of SQS [default: the one of last time, else a free one]
    #[arg(long, value_name = "N")]
    pub sqs_port: Option<u16>,
    /// Where tool servers on other machines reach the HTTP port: the address of a tunnel
    #[arg(long, value_name = "URL")]
    pub public_url: Option<String>,
}

/// `dormouse send`.
#[derive(Debug, ClapArgs)]
pub struct SendArgs {
    /// What to say; several words are joined by spaces
    #[arg(value_name = "TEXT", required = true)]
    pub text: Vec<String>,
    /// Where.
    #[command(flatten)]
    pub thread: ThreadArg,
}

/// `dormouse show`.
#[derive(Debug, ClapArgs)]
pub struct ShowArgs {
    /// The conversation
    #[arg(value_name = "THREAD", default_value = DEFAULT_THREAD)]
    pub thread: String,
    /// Everything as one JSON object, for scripts
    #[arg(long)]
    pub json: bool,
    /// The summaries that stand for its older parts, newest first, and how the next one is getting on
    #[arg(long)]
    pub generations: bool,
}

/// `dormouse compact`.
#[derive(Debug, ClapArgs)]
pub struct CompactArgs {
    /// The conversation
    #[arg(value_name = "THREAD")]
    pub thread: String,
    /// What to keep more of
    #[arg(long, value_name = "TEXT")]
    pub focus: Option<String>,
}

/// `dormouse pending`.
#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PendingArgs {
    /// Only calls that have waited at least so long: 90s, 10m, 2h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub older: Duration,
    /// Only this conversation
    #[arg(long, short, value_name = "THREAD")]
    pub thread: Option<String>,
    /// The call to settle
    #[arg(long, value_name = "CALL", requires = "thread")]
    pub settle: Option<String>,
    /// What the model reads
    #[arg(long, value_name = "TEXT", requires = "settle")]
    pub reason: Option<String>,
    /// What to do with one of them.
    #[command(subcommand)]
    pub action: Option<PendingAction>,
}

/// `dormouse pending …`.
#[derive(Debug, Subcommand)]
pub enum PendingAction {
    /// Send a call to its tool once more, under the same id
    Resend {
        /// The conversation
        #[arg(value_name = "THREAD")]
        thread: String,
        /// The call
        #[arg(value_name = "CALL")]
        call: String,
    },
}

/// `dormouse rewind`.
#[derive(Debug, ClapArgs)]
pub struct RewindArgs {
    /// The conversation
    #[arg(value_name = "THREAD")]
    pub thread: String,
    /// From this turn on, the first one is 0 [default: from the last message of a person on]
    #[arg(long, value_name = "N", conflicts_with = "item")]
    pub turn: Option<u32>,
    /// From the turn on that this item opens
    #[arg(long, value_name = "ITEM")]
    pub item: Option<String>,
    /// Say this instead
    #[arg(long, value_name = "TEXT", conflicts_with = "again")]
    pub say: Option<String>,
    /// Keep the message and have it answered again
    #[arg(long)]
    pub again: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// `dormouse fork`.
#[derive(Debug, ClapArgs)]
pub struct ForkArgs {
    /// The conversation to copy
    #[arg(value_name = "THREAD")]
    pub thread: String,
    /// The name of the new one
    #[arg(value_name = "NEW")]
    pub new: String,
    /// The last turn to copy [default: all]
    #[arg(long, value_name = "N")]
    pub through: Option<u32>,
    /// A branch that a rewind has hidden, by its epoch [default: what is shown]
    #[arg(long, value_name = "N")]
    pub epoch: Option<u32>,
}

/// `dormouse export`.
#[derive(Debug, ClapArgs)]
pub struct ExportArgs {
    /// The conversation
    #[arg(value_name = "THREAD")]
    pub thread: String,
    /// A branch that a rewind has hidden, by its epoch [default: what is shown]
    #[arg(long, value_name = "N")]
    pub epoch: Option<u32>,
}

/// `dormouse import`.
#[derive(Debug, ClapArgs)]
pub struct ImportArgs {
    /// What `export` has written; `-` reads standard input
    #[arg(value_name = "FILE")]
    pub file: std::path::PathBuf,
    /// The name of the new conversation
    #[arg(value_name = "NEW")]
    pub new: String,
}

/// `dormouse redact`.
#[derive(Debug, ClapArgs)]
pub struct RedactArgs {
    /// The conversation
    #[arg(value_name = "THREAD")]
    pub thread: String,
    /// An item, by its id
    #[arg(long, value_name = "ITEM", required_unless_present = "text", conflicts_with = "text")]
    pub item: Option<String>,
    /// A text
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// `dormouse delete`.
#[derive(Debug, ClapArgs)]
pub struct DeleteArgs {
    /// The conversations
    #[arg(value_name = "THREAD", required_unless_present = "idle")]
    pub threads: Vec<String>,
    /// All closed ones that were last used so long ago, such as 90d
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "threads")]
    pub idle: Option<Duration>,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// `dormouse close`.
#[derive(Debug, ClapArgs)]
pub struct CloseArgs {
    /// The conversation
    #[arg(value_name = "THREAD")]
    pub thread: String,
}

/// `dormouse redrive`.
#[derive(Debug, ClapArgs)]
pub struct RedriveArgs {
    /// Which; nothing named: list them
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// All that are listed
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
    /// Print their bodies instead
    #[arg(long, requires = "ids")]
    pub show: bool,
    /// Forget them instead
    #[arg(long, conflicts_with = "show")]
    pub discard: bool,
}

/// The words as one text that says something.
pub fn text(words: &[String]) -> Result<String, CliError> {
    let text = words.join(" ");
    if text.trim().is_empty() {
        return Err(CliError::Usage("the text is empty; write something to answer".to_owned()));
    }
    Ok(text)
}

/// Reads `90s`, `10m`, `2h`, `3d`; a bare number is seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err("expected a time such as 90s, 10m, 2h or 3d".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a time such as 90s, 10m, 2h or 3d".to_owned())?;
    Ok(Duration::from_secs(number.saturating_mul(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7_200)));
        assert_eq!(duration("2d"), Ok(Duration::from_secs(172_800)));
        assert!(duration("2w").is_err() && duration("m").is_err() && duration("-1s").is_err());
    }
}
