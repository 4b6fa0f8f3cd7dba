//! Configuration: one typed struct, from a TOML file, then inline TOML, then environment variables.
//!
//! Every field is documented here and in the README; an error names the field. Keys are never values of the
//! configuration but references: the name of an environment variable, or the ARN of a secret.

mod cors;
mod mcp;
mod tool_server;
mod webhooks;

use std::collections::BTreeMap;
use std::path::Path;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Deserialize, Serialize};

pub use mcp::McpServerConfig;
pub use tool_server::{Destructive, SigV4Config, ToolServerConfig};
pub use webhooks::WebhookSecretConfig;

/// The agent and model that are meant where none is named.
pub const DEFAULT_NAME: &str = "default";
/// Environment variable with inline TOML.
pub const CONFIG_ENV: &str = "DORMOUSE_CONFIG";

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The agent of threads whose first message names none in `metadata.agent`.
    pub default_agent: String,
    /// Agents by name.
    pub agents: BTreeMap<String, AgentConfig>,
    /// Models by name.
    pub models: BTreeMap<String, ModelConfig>,
    /// Tool servers that speak RAP, by name.
    pub tool_servers: BTreeMap<String, ToolServerConfig>,
    /// Tool servers that speak MCP, by name; no name is in both.
    pub mcp_servers: BTreeMap<String, McpServerConfig>,
    /// Hosts that may be spoken to over plain http; every other address must be https.
    pub allow_http_hosts: Vec<String>,
    /// Whether tool servers are told `metadata.user_id`.
    pub send_user_id: bool,
    /// Who may use the thread routes of the HTTP API.
    pub http: HttpConfig,
    /// Secrets that webhooks are signed with, by the names under which agents ask for them.
    pub webhook_secrets: BTreeMap<String, WebhookSecretConfig>,
    /// Names of AWS resources.
    pub aws: AwsConfig,
}

/// An agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// A name in `models`, or `provider::model`; absent: the model called `default`.
    pub model: Option<String>,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// What the system prompt ends with: what one deployment adds to a prompt that several share.
    pub extra_prompt: Option<String>,
    /// A file of standing instructions, at most 64 KiB, read when the process starts. A conversation begins with them as
    /// they were when it began.
    pub project_instructions: Option<String>,
    /// Names in `tool_servers` and `mcp_servers`; absent: all of them.
    pub tool_servers: Option<Vec<String>>,
    /// Bound on one response, in tokens; absent: the provider's own.
    pub max_output_tokens: Option<u32>,
    /// Whether the agent reads and changes the state of an AG-UI client, with tools of its own; absent: no. The state is kept
    /// either way.
    pub shared_state: Option<bool>,
    /// Whether old tool results are shortened when the model's window fills; absent: yes.
    pub prune: Option<bool>,
    /// Summaries of what the model's window does not hold.
    pub compaction: CompactionConfig,
}

/// Summaries of the older part of a conversation. They need `context_window` of the agent's model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CompactionConfig {
    /// Whether there are any; absent: yes.
    pub enabled: Option<bool>,
    /// Who writes them: a name in `models`, or `provider::model`; absent: the agent's own model.
    pub model: Option<String>,
    /// Whether the provider of the agent's own model summarises in its own way where it can (Anthropic, OpenAI Responses);
    /// absent: no.
    pub native: Option<bool>,
    /// Of the window, what a conversation fills before its older part is summarised in the background, in percent from 1
    /// to 100; absent: 80.
    pub threshold_percent: Option<u8>,
}

/// A model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// `scripted`, `openai`, `openai_resp`, `anthropic`, `gemini`, `bedrock`, `ollama`, or another name that
    /// genai knows.
    pub provider: String,
    /// The provider's name of the model.
    pub name: String,
    /// Another address for the same dialect: a proxy, an OpenAI-compatible server.
    pub base_url: Option<String>,
    /// The environment variable that holds the key; absent: the provider's usual one, e.g. `OPENAI_API_KEY`.
    pub api_key_env: Option<String>,
    /// The ARN of a secret whose value is the key; wins over `api_key_env`.
    pub api_key_secret: Option<String>,
    /// Tokens of the window, where dormouse does not know it.
    pub context_window: Option<u64>,
    /// Whether the model takes images.
    pub image_input: bool,
    /// Images that one request may hold; absent: what the provider takes. Some servers take few, or one.
    pub max_images: Option<usize>,
    /// Only for `scripted`: a script file; absent: the prompts decide.
    pub script: Option<String>,
}

/// Who may use the thread routes of the HTTP API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Absent: whoever is on the machine where `dormouse` serves its loopback, and nobody anywhere else.
    pub auth: Option<HttpAuth>,
    /// ARN of the secret with the bearer tokens by principal: `{"ann":"…","bob":"…"}`.
    pub tokens_secret: Option<String>,
    /// The same JSON in an environment variable of this name, where there is no secret.
    pub tokens_env: Option<String>,
    /// Origins whose pages may use the routes of AG-UI clients; absent: all, since who may ask is decided by the token, which
    /// no browser sends by itself. Empty: what stands in front of the router says so.
    pub cors_origins: Option<Vec<String>>,
    /// Whether the function URL that streams to AG-UI clients serves the inspector too, and the thread routes that it asks;
    /// absent: no. `dormouse serve` has it always.
    pub inspector: Option<bool>,
    /// Headers that these pages may send besides the usual ones.
    pub cors_headers: Vec<String>,
}

/// How whoever asks is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpAuth {
    /// Not at all: for a machine's own loopback alone.
    None,
    /// By a bearer token, which stands for a principal.
    Bearer,
    /// By whom the function URL in front of the stream function has found out to be asking: it must ask for signatures
    /// (`AWS_IAM`).
    Iam,
}

/// Names of AWS resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AwsConfig {
    /// The table.
    pub table: String,
    /// URL of the FIFO input queue.
    pub input_queue_url: String,
    /// URL of the output queue; absent: output is not sent to a queue.
    pub output_queue_url: Option<String>,
    /// URL of the FIFO dead-letter queue.
    pub dead_letter_queue_url: Option<String>,
    /// URL of the standard delay queue; absent: the tools `sleep`, `sleep_until` and `schedule`
    /// are not offered.
    pub delay_queue_url: Option<String>,
    /// EventBridge Scheduler for timers beyond 15 minutes; absent: they hop through the delay queue.
    pub scheduler: Option<SchedulerConfig>,
    /// Where tools reach the callback: callback URLs are `{callback_base_url}/rap/{token}`, those of
    /// webhooks `{callback_base_url}/hooks/{token}`.
    pub callback_base_url: String,
    /// ARN of the secret with the callback keys: `{"active":"k1","k1":"…"}`.
    pub callback_keys_secret: Option<String>,
    /// The same JSON in an environment variable of this name, where there is no secret.
    pub callback_keys_env: Option<String>,
}

/// EventBridge Scheduler. All of it is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerConfig {
    /// The group in which schedules are made.
    pub group: String,
    /// ARN of the role under which they send to the delay queue.
    pub role_arn: String,
    /// ARN of the delay queue.
    pub queue_arn: String,
    /// ARN of the standard queue of what they could not send.
    pub dead_letter_arn: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_agent: DEFAULT_NAME.to_owned(),
            agents: BTreeMap::new(),
            models: BTreeMap::new(),
            tool_servers: BTreeMap::new(),
            mcp_servers: BTreeMap::new(),
            allow_http_hosts: Vec::new(),
            send_user_id: false,
            http: HttpConfig::default(),
            webhook_secrets: BTreeMap::new(),
            aws: AwsConfig::default(),
        }
    }
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A source cannot be read, or a field has the wrong type or name.
    #[error("the configuration cannot be read: {0}")]
    Unreadable(Box<figment::Error>),
    /// A field's value makes no sense.
    #[error("configuration field `{field}`: {problem}")]
    Field {
        /// Which field, as a path.
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
}

impl ConfigError {
    /// An error about one field.
    pub fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field { field: field.into(), problem: problem.into() }
    }
}

impl Config {
    /// Reads `file` (if given), then inline TOML from `DORMOUSE_CONFIG`, then `DORMOUSE_…` variables
    /// (`DORMOUSE_AWS__TABLE` is `aws.table`), then the short forms `DORMOUSE_MODEL`,
    /// `DORMOUSE_MODEL_BASE_URL`, `DORMOUSE_MODEL_API_KEY_SECRET` and `DORMOUSE_TOOL_SETS`.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        Self::load_with(file, |_| {})
    }

    /// The same with a last word for `amend`, before the whole is checked: what a command line says.
    pub fn load_with(file: Option<&Path>, amend: impl FnOnce(&mut Self)) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(Config::default()));
        if let Some(file) = file {
            figment = figment.merge(Toml::file_exact(file));
        }
        if let Ok(inline) = std::env::var(CONFIG_ENV) {
            figment = figment.merge(Toml::string(&inline));
        }
        // Names without `__` are the short forms and other settings of the process, not fields.
        let fields = Env::prefixed("DORMOUSE_").filter(|key| key.as_str().contains("__")).split("__");
        let mut config: Config =
            figment.merge(fields).extract().map_err(|e| ConfigError::Unreadable(Box::new(e)))?;
        config.apply_short_forms(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
        amend(&mut config);
        config.check()?;
        Ok(config)
    }

    fn apply_short_forms(&mut self, env: impl Fn(&str) -> Option<String>) -> Result<(), ConfigError> {
        if let Some(model) = env("DORMOUSE_MODEL") {
            let model = ModelConfig {
                base_url: env("DORMOUSE_MODEL_BASE_URL"),
                api_key_secret: env("DORMOUSE_MODEL_API_KEY_SECRET"),
                ..ModelConfig::from_spec(&model)
            };
            self.models.insert(DEFAULT_NAME.to_owned(), model);
        }
        if let Some(sets) = env("DORMOUSE_TOOL_SETS") {
            self.add_tool_sets(&sets)?;
        }
        Ok(())
    }

    /// Adds tool servers from the JSON that Infinity deployments have:
    /// `{"tool_sets":[{"type":"toolset_server","server_url":"https://…","id":"optional"}]}`. A set of type `mcp` is
    /// an MCP server over streamable HTTP. A `toolset_server` may have `serial`, `result_timeout_seconds`,
    /// `consent_timeout_seconds`, `sigv4` and `destructive` as well. Other types are skipped with a warning.
    pub fn add_tool_sets(&mut self, json: &str) -> Result<(), ConfigError> {
        #[derive(Deserialize)]
        struct Sets {
            tool_sets: Vec<Set>,
        }
        #[derive(Deserialize)]
        struct Set {
            r#type: String,
            server_url: Option<String>,
            id: Option<String>,
            #[serde(default)]
            serial: bool,
            result_timeout_seconds: Option<u64>,
            consent_timeout_seconds: Option<u64>,
            sigv4: Option<SigV4Config>,
            #[serde(default)]
            destructive: Destructive,
        }
        let sets: Sets = serde_json::from_str(json).map_err(|e| {
            ConfigError::field("DORMOUSE_TOOL_SETS", format!("{e}; expected {{\"tool_sets\":[…]}}"))
        })?;
        for (i, set) in sets.tool_sets.into_iter().enumerate() {
            let name = set.id.unwrap_or_else(|| format!("toolset{i}"));
            match (set.r#type.as_str(), set.server_url) {
                ("toolset_server", Some(url)) => {
                    let server = ToolServerConfig {
                        url,
                        serial: set.serial,
                        result_timeout_seconds: set.result_timeout_seconds,
                        consent_timeout_seconds: set.consent_timeout_seconds,
                        sigv4: set.sigv4,
                        destructive: set.destructive,
                        ..ToolServerConfig::default()
                    };
                    self.tool_servers.insert(name, server);
                }
                ("mcp", Some(url)) => {
                    let server = McpServerConfig { url: Some(url), ..McpServerConfig::default() };
                    self.mcp_servers.insert(name, server);
                }
                (kind, _) => {
                    tracing::warn!(
                        r#type = kind,
                        index = i,
                        "skipped a tool set that is no toolset_server or mcp with a server_url"
                    );
                }
            }
        }
        Ok(())
    }

    /// Checks what types alone cannot say.
    pub fn check(&self) -> Result<(), ConfigError> {
        let tokens = self.http.tokens_secret.as_ref().or(self.http.tokens_env.as_ref());
        if self.http.auth == Some(HttpAuth::Bearer) && tokens.is_none() {
            let problem = "is missing, and so is http.tokens_env; `auth = \"bearer\"` needs one of them";
            return Err(ConfigError::field("http.tokens_secret", problem));
        }
        cors::check(&self.http)?;
        for (name, server) in &self.tool_servers {
            tool_server::check(self, name, server)?;
        }
        for (name, server) in &self.mcp_servers {
            mcp::check(self, name, server)?;
        }
        webhooks::check(self)?;
        for (name, model) in &self.models {
            if model.provider.is_empty() {
                return Err(ConfigError::field(
                    format!("models.{name}.provider"),
                    "is missing; name a provider such as anthropic, openai, bedrock or scripted",
                ));
            }
            if model.name.is_empty() && model.provider != "scripted" {
                return Err(ConfigError::field(
                    format!("models.{name}.name"),
                    "is missing; use the provider's name",
                ));
            }
        }
        for (name, agent) in &self.agents {
            for server in agent.tool_servers.iter().flatten() {
                if !self.tool_servers.contains_key(server) && !self.mcp_servers.contains_key(server) {
                    return Err(ConfigError::field(
                        format!("agents.{name}.tool_servers"),
                        format!("{server:?} is in neither tool_servers nor mcp_servers"),
                    ));
                }
            }
            self.model(name)?;
            if let Some(model) = &agent.compaction.model {
                self.named_model(model).map_err(|_| {
                    let problem =
                        format!("there is no model {model:?}; name one of [models], or provider::model");
                    ConfigError::field(format!("agents.{name}.compaction.model"), problem)
                })?;
            }
            if agent.compaction.threshold_percent.is_some_and(|percent| !(1..=100).contains(&percent)) {
                let field = format!("agents.{name}.compaction.threshold_percent");
                return Err(ConfigError::field(field, "is not between 1 and 100"));
            }
        }
        Ok(())
    }

    /// Checks that `url` is one that dormouse may speak to.
    pub fn check_url(&self, field: &str, url: &str) -> Result<url::Url, ConfigError> {
        let parsed = url::Url::parse(url).map_err(|e| ConfigError::field(field, format!("{url:?}: {e}")))?;
        let host = parsed.host_str().unwrap_or_default();
        match parsed.scheme() {
            "https" => Ok(parsed),
            "http" if self.allow_http_hosts.iter().any(|allowed| allowed == host) => Ok(parsed),
            "http" => Err(ConfigError::field(
                field,
                format!("plain http to {host} is not allowed; use https or add the host to allow_http_hosts"),
            )),
            other => Err(ConfigError::field(field, format!("scheme {other:?} is not http or https"))),
        }
    }

    /// The agent called `name`; an agent that is only the default need not be configured.
    pub fn agent(&self, name: &str) -> Result<AgentConfig, ConfigError> {
        match self.agents.get(name) {
            Some(agent) => Ok(agent.clone()),
            None if name == self.default_agent => Ok(AgentConfig::default()),
            None => Err(ConfigError::field(
                "agents",
                format!("there is no agent {name:?}; known: {:?}", self.agents.keys().collect::<Vec<_>>()),
            )),
        }
    }

    /// The model of the agent called `agent`.
    pub fn model(&self, agent: &str) -> Result<ModelConfig, ConfigError> {
        let wanted = self.agent(agent)?.model;
        let name = wanted.as_deref().unwrap_or(DEFAULT_NAME);
        self.named_model(name).map_err(|_| {
            let problem = format!(
                "there is no model {name:?}; set DORMOUSE_MODEL=provider::model, or add [models.{name}]"
            );
            ConfigError::field(format!("agents.{agent}.model"), problem)
        })
    }
}

impl Config {
    /// The model of that name in `models`, or as `provider::name` says.
    pub fn named_model(&self, name: &str) -> Result<ModelConfig, ConfigError> {
        match self.models.get(name) {
            Some(model) => Ok(model.clone()),
            None if name.contains("::") || name == "scripted" => Ok(ModelConfig::from_spec(name)),
            None => Err(ConfigError::field("models", format!("there is no model {name:?}"))),
        }
    }
}

impl ModelConfig {
    /// A model from `provider::name`, or `scripted`.
    pub fn from_spec(spec: &str) -> Self {
        let (provider, name) = spec.split_once("::").unwrap_or((spec, ""));
        Self { provider: provider.to_owned(), name: name.to_owned(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn parse(toml: &str) -> Result<Config, String> {
        let config: Config = Figment::from(Serialized::defaults(Config::default()))
            .merge(Toml::string(toml))
            .extract()
            .map_err(|e| e.to_string())?;
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn errors_name_the_field() {
        assert!(parse("defualt_agent = 'x'").unwrap_err().contains("defualt_agent"));
        assert!(
            parse("[tool_servers.b]\nurl = 'http://b.example'").unwrap_err().contains("tool_servers.b.url")
        );
        assert!(parse("[models.m]\nprovider = 'openai'").unwrap_err().contains("models.m.name"));
        assert!(parse("[agents.a]\nmodel = 'm'").unwrap_err().contains("agents.a.model"));
        assert!(parse("[agents.a]\nmodel='scripted'\ntool_servers=['x']").unwrap_err().contains("\"x\""));
        assert!(parse("[aws]\ntable = 7").unwrap_err().contains("aws.table"));
        let server = |field: &str| parse(&format!("[tool_servers.b]\nurl = 'https://b.example'\n{field}"));
        for field in ["result_timeout_seconds", "consent_timeout_seconds"] {
            for seconds in [0, 31_622_401] {
                let error = server(&format!("{field} = {seconds}")).unwrap_err();
                assert!(error.contains(&format!("tool_servers.b.{field}")), "{error}");
            }
        }
        assert!(server("consent_timeout_seconds = 86400\ndestructive = 'ask_edit'").is_ok());
        assert!(server("serial = true\nresult_timeout_seconds = 600\ndestructive = 'ask'").is_ok());
        assert!(server("sigv4 = { service = 'execute-api' }").is_ok());
        assert!(server("sigv4 = { service = '' }").unwrap_err().contains("tool_servers.b.sigv4.service"));
        assert!(server("sigv4 = { region = 'eu-central-1' }").unwrap_err().contains("service"));
        let both = server("bearer_env = 'X'\nsigv4 = { service = 'lambda' }").unwrap_err();
        assert!(both.contains("tool_servers.b.sigv4"), "{both}");
        assert!(server("destructive = 'maybe'").unwrap_err().contains("destructive"));
    }

    #[test]
    fn rap_06_plain_http_is_allowed_only_for_named_hosts() {
        assert!(
            parse("allow_http_hosts=['127.0.0.1']\n[tool_servers.b]\nurl='http://127.0.0.1:1/x'").is_ok()
        );
        assert!(
            parse("allow_http_hosts=['127.0.0.1']\n[tool_servers.b]\nurl='http://127.0.0.2:1/x'").is_err()
        );
        assert!(parse("[tool_servers.b]\nurl='ftp://x/'").unwrap_err().contains("ftp"));
    }

    #[test]
    fn short_forms_make_the_default_model_and_the_tool_servers() {
        let mut config = Config::default();
        config
            .apply_short_forms(|name| match name {
                "DORMOUSE_MODEL" => Some("openai::gpt-x".into()),
                "DORMOUSE_MODEL_BASE_URL" => Some("https://llm.example/v1/".into()),
                "DORMOUSE_TOOL_SETS" => Some(
                    r#"{"tool_sets":[{"type":"toolset_server","server_url":"https://b.example","id":"b","serial":true,"sigv4":{"service":"lambda"},"destructive":"ask"},{"type":"mcp","server_url":"https://m.example/mcp","id":"m"},{"type":"local"}]}"#.into(),
                ),
                _ => None,
            })
            .unwrap();
        let model = config.model(DEFAULT_NAME).unwrap();
        assert_eq!((model.provider.as_str(), model.name.as_str()), ("openai", "gpt-x"));
        let b = &config.tool_servers["b"];
        assert_eq!((b.url.as_str(), b.serial, b.destructive), ("https://b.example", true, Destructive::Ask));
        assert_eq!(b.sigv4.as_ref().unwrap().service, "lambda");
        assert_eq!(config.mcp_servers["m"].url.as_deref(), Some("https://m.example/mcp"));
        assert_eq!((config.tool_servers.len(), config.mcp_servers.len()), (1, 1));
    }
}
