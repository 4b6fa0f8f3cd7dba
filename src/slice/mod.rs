//! One slice: the unit of execution.
//!
//! `prepare_input` → barrier `sync` → `run_completion` → `sync` → `execute_action`. [`process_batch`] runs it
//! for the messages of one thread; [`records`] does that for an SQS batch of several threads. Each phase is a
//! public function, so that an embedding can arrange them differently, as long as it keeps their order.

mod batch;
mod choices;
mod compact;
mod complete;
mod dispatch;
pub mod drain;
mod events;
mod failures;
mod held;
pub mod live;
mod operations;
mod poison;
mod prepare;
pub(crate) mod questions;
pub mod records;
pub mod relay;
mod resume;
mod runs;
mod schedules;
mod seat;
mod stop;
mod synchronous;

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::message::{DedupId, ThreadId};
use crate::model::{ErrorClass, ModelError, ModelProvider};
use crate::queue::{DeadLetters, InputSender, OutputSender, QueueError, Redelivery};
use crate::store::{Store, StoreError};
use crate::thread::ThreadError;
use crate::tools::{ToolSet, ToolSource};

pub use batch::{Input, Processed, process_batch, process_seated};
pub use compact::Summaries;
pub use complete::{CompletionAction, CompletionEvent, run_completion};
pub use dispatch::execute_action;
pub use events::{DisplayEvent, NoObserver, Observer};
pub use prepare::{PrepareResult, prepare_input};
pub use seat::{Cancel, Running, Seat};

/// Everything a slice speaks to. Made once per process.
#[derive(Clone)]
pub struct Runtime {
    /// Conversations and the state beside them.
    pub store: Arc<dyn Store>,
    /// Agents: their prompt, limits and model.
    pub agents: Arc<dyn Agents>,
    /// Tools of an agent.
    pub tools: Arc<dyn ToolSource>,
    /// The input queue.
    pub input: Arc<dyn InputSender>,
    /// The output queue.
    pub output: Arc<dyn OutputSender>,
    /// Where what can never succeed is kept.
    pub dead_letters: Arc<dyn DeadLetters>,
    /// When a failed record comes back.
    pub redelivery: Arc<dyn Redelivery>,
    /// Who watches.
    pub observer: Arc<dyn Observer>,
    /// Milliseconds since the epoch: for timestamps and expiry, never for decisions about a conversation.
    pub clock: Arc<dyn Clock>,
    /// Bounds of one slice.
    pub limits: Limits,
}

/// A clock, so that tests own time.
pub trait Clock: Send + Sync {
    /// Milliseconds since the epoch.
    fn now_ms(&self) -> i64;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        jiff::Timestamp::now().as_millisecond()
    }
}

/// Bounds of one slice: every loop in it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Repeated model requests, not reset by progress.
    pub retries: u32,
    /// Rounds in which every call was refused by the runtime (unknown tool, bad arguments, cut output).
    pub refused_rounds: u32,
    /// Rounds of synchronous tools.
    pub synchronous_rounds: u32,
    /// Failed attempts of one input after which the slice gives up on it.
    pub attempts: u32,
    /// Slices that a thread may cause itself per outside input.
    pub self_caused_slices: u32,
    /// The longest wait inside a slice; a longer one goes back to the queue.
    pub inline_wait: Duration,
    /// Left over of the deadline for commit and dispatch: no request or wait begins within it.
    pub deadline_margin: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retries: 10,
            refused_rounds: 3,
            synchronous_rounds: 25,
            attempts: 5,
            self_caused_slices: 200,
            inline_wait: Duration::from_secs(5),
            deadline_margin: Duration::from_secs(10),
        }
    }
}

/// What an agent brings to a slice.
#[derive(Clone)]
pub struct AgentProfile {
    /// Its model.
    pub model: Arc<dyn ModelProvider>,
    /// Its system prompt.
    pub system_prompt: Option<String>,
    /// A bound on one response.
    pub max_output_tokens: Option<u32>,
    /// Whether old tool results are shortened when the window fills.
    pub prune: bool,
    /// Who summarises what the window does not hold; none: nobody.
    pub compaction: Option<Summaries>,
}

/// Agents by name.
pub trait Agents: Send + Sync {
    /// The agent of threads that name none.
    fn default_agent(&self) -> &str;

    /// Whether there is such an agent.
    fn knows(&self, agent: &str) -> bool;

    /// The agent's profile. An error is one of configuration: somebody has to act.
    fn profile(&self, agent: &str) -> Result<AgentProfile, ModelError>;

    /// What a conversation with the agent begins with, before anything that a person says.
    fn project_instructions(&self, agent: &str) -> Option<&str> {
        let _ = agent;
        None
    }
}

/// The most that a file of standing instructions may have: every request of its agent holds it.
const MAX_INSTRUCTION_BYTES: u64 = 64 * 1024;

/// Agents as configured, their models made once.
pub struct ConfiguredAgents {
    config: Arc<Config>,
    models: Models,
    /// The summarising models of agents that have one of their own.
    summaries: Models,
    instructions: std::collections::BTreeMap<String, String>,
}

/// Reads a file of standing instructions.
fn read_instructions(agent: &str, file: &str) -> Result<String, ModelError> {
    let fatal = |problem: String| {
        let text = format!("configuration field `agents.{agent}.project_instructions`: {file}: {problem}");
        ModelError::new(ErrorClass::Fatal, text)
    };
    let size = std::fs::metadata(file).map_err(|e| fatal(e.to_string()))?.len();
    if size > MAX_INSTRUCTION_BYTES {
        return Err(fatal(format!("has {size} bytes, at most {MAX_INSTRUCTION_BYTES} are taken")));
    }
    std::fs::read_to_string(file).map_err(|e| fatal(e.to_string()))
}

/// Models by the agent that uses them.
type Models = std::collections::BTreeMap<String, Result<Arc<dyn ModelProvider>, ModelError>>;

impl ConfiguredAgents {
    /// Makes the model of every agent with `provider`. A model that cannot be made fails its own agents only,
    /// visibly, when they are asked.
    pub fn new(
        config: Arc<Config>,
        provider: impl Fn(&crate::config::ModelConfig) -> Result<Arc<dyn ModelProvider>, ModelError>,
    ) -> Self {
        let names = || config.agents.keys().cloned().chain([config.default_agent.clone()]);
        let fatal = |e: crate::config::ConfigError| ModelError::new(ErrorClass::Fatal, e.to_string());
        let summaries = names()
            .filter_map(|name| {
                let model = config.agent(&name).ok()?.compaction.model?;
                let model = config.named_model(&model).map_err(fatal).and_then(|model| provider(&model));
                Some((name, model))
            })
            .collect();
        let mut models: Models = names()
            .map(|name| {
                let model = config.model(&name).map_err(fatal).and_then(|model| provider(&model));
                (name, model)
            })
            .collect();
        let mut instructions = std::collections::BTreeMap::new();
        for (name, agent) in &config.agents {
            match agent.project_instructions.as_ref().map(|file| read_instructions(name, file)) {
                Some(Ok(text)) => drop(instructions.insert(name.clone(), text)),
                Some(Err(e)) => drop(models.insert(name.clone(), Err(e))),
                None => {}
            }
        }
        Self { config, models, summaries, instructions }
    }
}

impl Agents for ConfiguredAgents {
    fn default_agent(&self) -> &str {
        &self.config.default_agent
    }

    fn knows(&self, agent: &str) -> bool {
        self.models.contains_key(agent)
    }

    fn profile(&self, agent: &str) -> Result<AgentProfile, ModelError> {
        let fatal = |e: crate::config::ConfigError| ModelError::new(ErrorClass::Fatal, e.to_string());
        let settings = self.config.agent(agent).map_err(fatal)?;
        let model = self.models.get(agent).cloned().unwrap_or_else(|| {
            Err(ModelError::new(ErrorClass::Fatal, format!("there is no agent {agent:?}")))
        })?;
        let summaries = match self.summaries.get(agent) {
            Some(own) => own.clone()?,
            None => model.clone(),
        };
        let threshold_percent = settings
            .compaction
            .threshold_percent
            .unwrap_or(crate::compaction::policy::DEFAULT_THRESHOLD_PERCENT);
        Ok(AgentProfile {
            compaction: settings.compaction.enabled.unwrap_or(true).then_some(Summaries {
                model: summaries,
                threshold_percent,
                native: settings.compaction.native.unwrap_or(false),
            }),
            model,
            system_prompt: system_prompt(&settings),
            max_output_tokens: settings.max_output_tokens,
            prune: settings.prune.unwrap_or(true),
        })
    }

    fn project_instructions(&self, agent: &str) -> Option<&str> {
        self.instructions.get(agent).map(String::as_str)
    }
}

/// The agent's prompt with what its deployment adds.
fn system_prompt(settings: &crate::config::AgentConfig) -> Option<String> {
    let parts = [&settings.system_prompt, &settings.extra_prompt].into_iter().flatten();
    let parts: Vec<&str> = parts.map(String::as_str).filter(|part| !crate::message::is_blank(part)).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

/// Agent and tools of one slice.
pub struct Session {
    /// The agent.
    pub profile: AgentProfile,
    /// Its tools.
    pub tools: ToolSet,
}

impl Runtime {
    /// The tools of a thread.
    pub async fn tools_of(&self, agent: &str, root: &ThreadId) -> ToolSet {
        self.tools.tools(agent, root).await
    }
}

/// Why a slice did not finish. The record is handed back, never acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// The thread's store.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// A queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The model cannot answer now.
    #[error("the model cannot answer now ({message}); the message will be delivered again")]
    Model {
        /// What happened.
        message: String,
        /// When the provider wants to be asked again.
        after: Option<Duration>,
    },
    /// The invocation is nearly over.
    #[error("the invocation's time is up; the message will be delivered again")]
    Deadline,
    /// A newer version has promised something that this one does not know.
    #[error("the thread was left by a newer version of dormouse; the message waits for it")]
    NewerVersion,
    /// The completion was cancelled from outside.
    #[error("the completion was cancelled")]
    Cancelled,
    /// A bug of ours, said rather than panicked.
    #[error("bug: {0}")]
    Bug(String),
}

impl From<StoreError> for SliceError {
    fn from(e: StoreError) -> Self {
        Self::Thread(e.into())
    }
}

impl SliceError {
    /// The provider's own delay before the next try, if it named one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Model { after, .. } => *after,
            Self::Thread(_)
            | Self::Queue(_)
            | Self::Deadline
            | Self::NewerVersion
            | Self::Cancelled
            | Self::Bug(_) => None,
        }
    }

    /// Whether the attempt failed by no fault of its input, so that it does not count against it.
    pub fn is_blameless(&self) -> bool {
        match self {
            Self::Model { after, .. } => after.is_some(),
            Self::Cancelled | Self::NewerVersion => true,
            Self::Thread(_) | Self::Queue(_) | Self::Deadline | Self::Bug(_) => self.is_lost_race(),
        }
    }

    /// Whether another slice won: starting over at once may succeed.
    pub fn is_lost_race(&self) -> bool {
        matches!(self, Self::Thread(ThreadError::LostRace(_)))
    }
}

/// The dedup id of the error result that stands for a dispatch that finally failed.
fn dispatch_failed_id(thread: &ThreadId, call: &crate::message::CallId) -> DedupId {
    DedupId::derive(crate::history::DISPATCH_FAILED, &[thread.as_str(), call.as_str()])
}
