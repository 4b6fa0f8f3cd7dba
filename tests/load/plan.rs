//! What a run is: how many threads say what, and how often something goes wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::rng::{Rng, hash};

/// The size of a run that nobody has sized: small enough for every run of the suite.
const DEFAULT_THREADS: usize = 30;
const DEFAULT_MESSAGES: usize = 5;
const DEFAULT_SEED: u64 = 20_261_130;
/// Conversations under way at once: more would measure the length of the queue, not the agent.
const DEFAULT_ACTIVE: usize = 64;
/// What a run may take, beside what it is given for each message.
const BASE_TIME: Duration = Duration::from_secs(100);
const TIME_PER_MESSAGE: Duration = Duration::from_millis(300);
/// However large it is, unless `LOAD_SECONDS` says something else: a machine may have other things to do.
const MAX_TIME: Duration = Duration::from_secs(900);
/// One thread of so many says everything at once instead of waiting for replies.
const BURST_OF: usize = 4;

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub threads: Vec<ThreadPlan>,
    pub active: usize,
    pub time: Duration,
    pub faulty: bool,
}

/// What one thread says.
#[derive(Clone, Debug)]
pub struct ThreadPlan {
    pub id: String,
    pub pace: Pace,
    pub messages: Vec<Message>,
}

/// When the next message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// After the reply to the one before: every effect is known beforehand.
    Conversation,
    /// At once: texts interrupt the calls of those before them.
    Burst,
}

/// One input and what it is to cause in a conversation.
#[derive(Clone, Debug)]
pub struct Message {
    pub text: String,
    pub calls: Vec<Call>,
    /// Texts of the output queue, the last of which ends the turn.
    pub replies: Vec<String>,
}

/// A call that a message asks for; the key is nobody else's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub operation: &'static str,
    pub key: String,
}

impl Call {
    pub fn arguments(&self) -> String {
        format!(r#"{{"key":"{}"}}"#, self.key)
    }

    /// What the tool answers.
    pub fn result(&self) -> String {
        format!("{} {}", self.operation, self.key)
    }

    /// How the output queue shows it.
    fn line(&self) -> String {
        format!("[{}({})]", self.operation, self.arguments())
    }
}

impl Plan {
    pub fn new(seed: u64, threads: usize, messages: usize) -> Self {
        let total = u32::try_from(threads * messages).unwrap_or(u32::MAX);
        let time = BASE_TIME.saturating_add(TIME_PER_MESSAGE.saturating_mul(total)).min(MAX_TIME);
        let threads = (0..threads).map(|number| ThreadPlan::new(seed, number, messages)).collect();
        Self { seed, threads, active: DEFAULT_ACTIVE, time, faulty: true }
    }

    /// As the environment says: `LOAD_THREADS`, `LOAD_MESSAGES`, `LOAD_SEED`, `LOAD_ACTIVE`, `LOAD_SECONDS`, and
    /// `LOAD_FAULTS=0` for a run without faults, to compare with.
    pub fn from_environment() -> Self {
        let messages = number("LOAD_MESSAGES", DEFAULT_MESSAGES);
        let plan =
            Self::new(number("LOAD_SEED", DEFAULT_SEED), number("LOAD_THREADS", DEFAULT_THREADS), messages);
        let active = number("LOAD_ACTIVE", DEFAULT_ACTIVE).max(1);
        let time = Duration::from_secs(number("LOAD_SECONDS", plan.time.as_secs()));
        Self { active, time, faulty: number("LOAD_FAULTS", 1) != 0, ..plan }
    }

    pub fn messages(&self) -> usize {
        self.threads.iter().map(|thread| thread.messages.len()).sum()
    }
}

fn number<T: std::str::FromStr>(variable: &str, default: T) -> T {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => default,
    }
}

impl ThreadPlan {
    fn new(seed: u64, number: usize, messages: usize) -> Self {
        let id = format!("load-{number}");
        let mut rng = Rng::new(hash(seed, [id.as_str()]));
        let mut plan = Vec::with_capacity(messages);
        for at in 1..=messages {
            let word = format!("{id}.{at}");
            plan.push(if at == messages { seen(&plan) } else { message(&mut rng, &word) });
        }
        let pace = if number % BURST_OF == BURST_OF - 1 { Pace::Burst } else { Pace::Conversation };
        Self { id, pace, messages: plan }
    }

    pub fn texts(&self) -> Vec<String> {
        self.messages.iter().map(|message| message.text.clone()).collect()
    }

    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.messages.iter().flat_map(|message| &message.calls)
    }

    pub fn replies(&self) -> Vec<String> {
        self.messages.iter().flat_map(|message| message.replies.clone()).collect()
    }

    pub fn keys(&self) -> BTreeSet<&str> {
        self.calls().map(|call| call.key.as_str()).collect()
    }
}

/// The scripted model's prompts.
fn message(rng: &mut Rng, word: &str) -> Message {
    let call = |operation, key: &str| Call { operation, key: key.to_owned() };
    let plain =
        |text: String, reply: &str| Message { text, calls: Vec::new(), replies: vec![reply.to_owned()] };
    match rng.below(10) {
        0 | 1 => plain(format!("say {word}"), word),
        2 => plain(format!("think {word}"), word),
        3 | 4 => plain(format!("hello {word}"), &format!("echo: hello {word}")),
        5 => {
            let note = call("note", word);
            Message {
                text: format!("look note {}", note.arguments()),
                replies: vec![format!("let me look\n{}", note.line()), format!("it is {}", note.result())],
                calls: vec![note],
            }
        }
        6 | 7 => {
            let (a, b) = (call("note", &format!("{word}a")), call("mark", &format!("{word}b")));
            Message {
                text: format!("both note {} mark {}", a.arguments(), b.arguments()),
                replies: vec![
                    format!("{}\n{}", a.line(), b.line()),
                    format!("result: {}, {}", a.result(), b.result()),
                ],
                calls: vec![a, b],
            }
        }
        _ => {
            let mark = call("mark", word);
            Message {
                text: format!("call mark {}", mark.arguments()),
                replies: vec![mark.line(), format!("result: {}", mark.result())],
                calls: vec![mark],
            }
        }
    }
}

/// The last word of a thread: the model says what it was shown, in the order in which it was shown.
fn seen(earlier: &[Message]) -> Message {
    let texts: Vec<&str> = earlier.iter().map(|message| message.text.as_str()).collect();
    let reply = format!("seen: {}", texts.join("|"));
    Message { text: "seen".to_owned(), calls: Vec::new(), replies: vec![reply] }
}
