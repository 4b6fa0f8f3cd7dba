//! How a system is put together: from a configuration, in code, or both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;

use super::AgentSystem;
use super::events::{Observers, OnEvent, OnlyEvents};
use super::input::{LocalInput, NoRedelivery, StoredDeadLetters};
use crate::config::{Config, ConfigError};
use crate::mcp::McpServers;
use crate::message::ThreadId;
use crate::model::{ErrorClass, ModelError, ModelProvider};
use crate::queue::{DeadLetters, InputSender, OutputSender, TimerSender};
use crate::slice::{
    AgentProfile, Agents, Clock, ConfiguredAgents, DisplayEvent, Limits, Observer, Runtime, Summaries,
    SystemClock,
};
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::tools::{AgentTools, Registry, Tool, ToolSet, ToolSource, builtin};

/// The agent that [`AgentSystemBuilder::model`] makes.
const DEFAULT_AGENT: &str = "default";

/// Why a system cannot be put together. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Nobody answers.
    #[error("the system has no agent; give it a model, an agent, or a configuration")]
    NoAgent,
    /// A field of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Tool servers answer by callback, which takes a signed address and an HTTP front.
    #[error(
        "the configuration has tool servers ({0}), which answer to an HTTP address; put the parts together with \
         `assembly::assemble` and make the system with `AgentSystem::over`"
    )]
    ToolServers(String),
    /// The HTTP client of MCP servers cannot be made.
    #[error("the HTTP client cannot be made: {0}")]
    Http(String),
}

/// Puts an [`AgentSystem`] together. Every part has a default but the agents: a store in memory, queues inside the
/// process, replies as events only, the tools that dormouse brings itself.
#[derive(Default)]
pub struct AgentSystemBuilder {
    profiles: BTreeMap<String, AgentProfile>,
    default_agent: Option<String>,
    config: Option<Config>,
    tools: Vec<Arc<dyn Tool>>,
    source: Option<Arc<dyn ToolSource>>,
    store: Option<Arc<dyn Store>>,
    input: Option<Arc<dyn InputSender>>,
    output: Option<Arc<dyn OutputSender>>,
    dead_letters: Option<Arc<dyn DeadLetters>>,
    timers: Option<Arc<dyn TimerSender>>,
    observers: Vec<Arc<dyn Observer>>,
    clock: Option<Arc<dyn Clock>>,
    limits: Option<Limits>,
}

impl AgentSystemBuilder {
    /// With the one agent that most systems need: this model, this system prompt.
    #[must_use]
    pub fn model(self, model: Arc<dyn ModelProvider>, system_prompt: impl Into<String>) -> Self {
        let system_prompt = Some(system_prompt.into()).filter(|prompt| !prompt.is_empty());
        let compaction = Some(Summaries::by(model.clone()));
        let profile = AgentProfile { model, system_prompt, max_output_tokens: None, prune: true, compaction };
        self.agent(DEFAULT_AGENT, profile)
    }

    /// With another agent; `metadata.agent` of a thread's first input chooses it. The first one is the default.
    #[must_use]
    pub fn agent(mut self, name: impl Into<String>, profile: AgentProfile) -> Self {
        let name = name.into();
        self.default_agent.get_or_insert_with(|| name.clone());
        self.profiles.insert(name, profile);
        self
    }

    /// With the agents, models and MCP servers of a configuration; keys of models are read from the environment. Agents
    /// that are given in code beat those of the same name, and the first of them is the default.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// With a tool for every agent; of two with one name the first stays, and dormouse's own beat all.
    #[must_use]
    pub fn tool(mut self, tool: impl Tool + 'static) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// With tools from elsewhere, and no others.
    #[must_use]
    pub fn tools(mut self, source: Arc<dyn ToolSource>) -> Self {
        self.source = Some(source);
        self
    }

    /// With a store that lasts, a [`DynamoStore`](crate::store::dynamodb::DynamoStore) say.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// With a real queue for what threads send to one another. Whoever polls it gives its messages in.
    #[must_use]
    pub fn input(mut self, input: Arc<dyn InputSender>) -> Self {
        self.input = Some(input);
        self
    }

    /// With a queue that replies go to, beside the events.
    #[must_use]
    pub fn output(mut self, output: Arc<dyn OutputSender>) -> Self {
        self.output = Some(output);
        self
    }

    /// With another place than the store for what can never be processed.
    #[must_use]
    pub fn dead_letters(mut self, dead_letters: Arc<dyn DeadLetters>) -> Self {
        self.dead_letters = Some(dead_letters);
        self
    }

    /// With timers: agents get `sleep`, `sleep_until` and `schedule`.
    #[must_use]
    pub fn timers(mut self, timers: Arc<dyn TimerSender>) -> Self {
        self.timers = Some(timers);
        self
    }

    /// With somebody who watches, called inline.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// With a callback for what is shown, called inline: it must not block.
    #[must_use]
    pub fn on_event(self, call: impl Fn(&ThreadId, &DisplayEvent) + Send + Sync + 'static) -> Self {
        self.observer(Arc::new(OnEvent(call)))
    }

    /// With another clock than the machine's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// With other bounds of a slice.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// The system.
    ///
    /// # Errors
    /// A part that is missing or makes no sense.
    pub fn build(self) -> Result<AgentSystem, BuildError> {
        if self.profiles.is_empty() && self.config.is_none() {
            return Err(BuildError::NoAgent);
        }
        let config = self.config.map(Arc::new);
        if let Some(config) = config.as_ref().filter(|config| !config.tool_servers.is_empty()) {
            let names: Vec<&str> = config.tool_servers.keys().map(String::as_str).collect();
            return Err(BuildError::ToolServers(names.join(", ")));
        }
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
        let (input, inbox): (Arc<dyn InputSender>, _) = match self.input {
            Some(input) => (input, None),
            None => {
                let (input, inbox) = LocalInput::new();
                (Arc::new(input), Some(inbox))
            }
        };
        let own = builtin::all(&store).into_iter().chain(builtin::waiting(self.timers)).chain(self.tools);
        let own: Vec<Arc<dyn Tool>> = own.collect();
        let (mut mcp, mut source) = (None, self.source);
        if let (Some(config), None) = (&config, &source) {
            let http = crate::rap::http_client().map_err(|e| BuildError::Http(e.to_string()))?;
            let servers = Arc::new(McpServers::new(config, store.clone(), http, input.clone()));
            let configured = AgentTools::new(config.clone(), own.clone(), vec![servers.clone()]);
            let in_code = self.profiles.keys().cloned().collect();
            source = Some(Arc::new(AllTools { in_code, own: Registry::new(own.clone()), configured }));
            mcp = Some(servers);
        }
        let agents = AllAgents {
            default: self.default_agent,
            profiles: self.profiles,
            configured: config.map(|config| ConfiguredAgents::new(config, configured_model)),
        };
        let dead_letters = self
            .dead_letters
            .unwrap_or_else(|| Arc::new(StoredDeadLetters { store: store.clone(), clock: clock.clone() }));
        let runtime = Runtime {
            store,
            agents: Arc::new(agents),
            tools: source.unwrap_or_else(|| Arc::new(Registry::new(own))),
            input,
            output: self.output.unwrap_or_else(|| Arc::new(OnlyEvents)),
            dead_letters,
            redelivery: Arc::new(NoRedelivery),
            observer: Arc::new(Observers(self.observers)),
            clock,
            limits: self.limits.unwrap_or_default(),
        };
        Ok(AgentSystem::with(runtime, inbox, mcp))
    }
}

/// The model of a configured agent, its key from the environment.
fn configured_model(model: &crate::config::ModelConfig) -> Result<Arc<dyn ModelProvider>, ModelError> {
    if model.api_key_secret.is_some() {
        let why = "`api_key_secret` needs AWS; use `api_key_env`, or `assembly::assemble`";
        return Err(ModelError::new(ErrorClass::Fatal, why));
    }
    crate::model::provider(model, None)
}

/// Agents that are given in code have the tools that are; those of the configuration have its servers' beside them.
struct AllTools {
    in_code: BTreeSet<String>,
    own: Registry,
    configured: AgentTools,
}

#[async_trait]
impl ToolSource for AllTools {
    async fn tools(&self, agent: &str, root: &ThreadId) -> ToolSet {
        match self.in_code.contains(agent) {
            true => self.own.tools(agent, root).await,
            false => self.configured.tools(agent, root).await,
        }
    }
}

/// Agents that were given in code, and those of the configuration.
struct AllAgents {
    default: Option<String>,
    profiles: BTreeMap<String, AgentProfile>,
    configured: Option<ConfiguredAgents>,
}

impl Agents for AllAgents {
    fn default_agent(&self) -> &str {
        match (&self.default, &self.configured) {
            (Some(default), _) => default,
            (None, Some(configured)) => configured.default_agent(),
            (None, None) => DEFAULT_AGENT,
        }
    }

    fn knows(&self, agent: &str) -> bool {
        self.profiles.contains_key(agent) || self.configured.as_ref().is_some_and(|all| all.knows(agent))
    }

    fn profile(&self, agent: &str) -> Result<AgentProfile, ModelError> {
        match (self.profiles.get(agent), &self.configured) {
            (Some(profile), _) => Ok(profile.clone()),
            (None, Some(configured)) => configured.profile(agent),
            (None, None) => Err(ModelError::new(ErrorClass::Fatal, format!("there is no agent {agent:?}"))),
        }
    }
}
