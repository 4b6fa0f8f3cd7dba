//! Which provider a configuration names, which wire format it speaks, and where its key comes from.

use std::env;

use ::genai::adapter::AdapterKind;
use ::genai::resolver::AuthData;
use url::Url;

use crate::config::ModelConfig;
use crate::model::{ErrorClass, ModelError};

/// Where Ollama listens, for its OpenAI-compatible API.
const OLLAMA_URL: &str = "http://localhost:11434/v1/";
/// Sent where a server wants no key but genai wants one.
const NO_KEY: &str = "none";
/// What the error about an unknown provider lists; genai knows some more OpenAI-compatible ones by name.
const KNOWN: &str = "scripted, openai, openai_resp, anthropic, gemini, bedrock, bedrock_api, ollama, groq, mistral, \
                     deepseek, xai, together, fireworks, open_router, moonshot, zai; any other OpenAI-compatible \
                     server is openai with a base_url";

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI Chat Completions, and every server that copies it.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini `generateContent`.
    Gemini,
    /// Bedrock Converse.
    Bedrock,
}

impl Dialect {
    /// Whether it is one of OpenAI's two.
    pub fn is_openai(self) -> bool {
        match self {
            Self::Chat | Self::Responses => true,
            Self::Anthropic | Self::Gemini | Self::Bedrock => false,
        }
    }
}

impl Dialect {
    /// Images that one request may hold. Bedrock takes 20; Anthropic takes more, but beyond 20 none that has more than
    /// 2,000 pixels a side. The others are bounded by the bytes of a request alone.
    pub fn max_images(self) -> Option<usize> {
        match self {
            Self::Anthropic | Self::Bedrock => Some(20),
            Self::Chat | Self::Responses | Self::Gemini => None,
        }
    }
}

/// A provider as genai knows it.
pub(super) struct Provider {
    pub kind: AdapterKind,
    pub dialect: Dialect,
    ollama: bool,
}

impl Provider {
    /// The provider called `name` in the configuration.
    pub fn find(name: &str) -> Result<Self, ModelError> {
        // Ollama's own protocol has no call ids; its OpenAI-compatible API does.
        let ollama = name == "ollama";
        let kind = match name {
            "ollama" => Some(AdapterKind::OpenAI),
            "bedrock" => Some(AdapterKind::BedrockSigv4),
            other => AdapterKind::from_lower_str(other),
        };
        let found = kind.and_then(|kind| Some(Self { kind, dialect: dialect(kind)?, ollama }));
        found.ok_or_else(|| fatal(format!("model field `provider`: {name:?} is not known; known: {KNOWN}")))
    }

    /// What authenticates a request.
    pub fn auth(&self, config: &ModelConfig, api_key: Option<String>) -> Result<AuthData, ModelError> {
        if self.kind == AdapterKind::BedrockSigv4 {
            return Ok(AuthData::None);
        }
        let variable = api_key_env(config);
        let from_env = || variable.as_ref().and_then(|name| env::var(name).ok());
        if let Some(key) = api_key.or_else(from_env).filter(|key| !key.trim().is_empty()) {
            return Ok(AuthData::from_single(key.trim()));
        }
        let keyless = self.ollama || (config.base_url.is_some() && config.api_key_env.is_none());
        match variable {
            _ if keyless => Ok(AuthData::from_single(NO_KEY)),
            Some(name) => Err(fatal(format!(
                "there is no key for {}: set {name}, or api_key_secret in the model's configuration",
                config.provider
            ))),
            None => Ok(AuthData::from_single(NO_KEY)),
        }
    }

    /// The address, if it is not genai's own for this provider.
    pub fn endpoint(&self, config: &ModelConfig) -> Result<Option<String>, ModelError> {
        let Some(base) = &config.base_url else {
            return Ok(self.ollama.then(|| OLLAMA_URL.to_owned()));
        };
        let mut url = Url::parse(base)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or_else(|| fatal(format!("model field `base_url`: {base:?} is no http or https address")))?;
        // genai joins its path to the address, which would replace a last part without a slash.
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        Ok(Some(url.into()))
    }

    /// Whether asking for readable reasoning is safe: older Gemini models refuse the very question, and OpenAI
    /// gives summaries to verified organisations only. Anthropic and Bedrock are not asked, they just send it.
    pub fn wants_readable_reasoning(&self, model: &str) -> bool {
        match self.dialect {
            Dialect::Gemini => !["gemini-1", "gemini-2.0", "gemma"].iter().any(|old| model.starts_with(old)),
            Dialect::Chat | Dialect::Responses | Dialect::Anthropic | Dialect::Bedrock => false,
        }
    }

    /// Whether the provider signs nothing but wants its reasoning back within a turn with calls.
    pub fn echoes_plain_reasoning(&self) -> bool {
        matches!(self.kind, AdapterKind::DeepSeek | AdapterKind::Kimi | AdapterKind::Moonshot)
    }

    /// genai 0.7.2 fetches AWS credentials with `block_in_place`, which panics on a single-threaded runtime.
    pub fn check_runtime(&self) -> Result<(), ModelError> {
        let single = || {
            tokio::runtime::Handle::current().runtime_flavor() == tokio::runtime::RuntimeFlavor::CurrentThread
        };
        if self.kind == AdapterKind::BedrockSigv4 && single() {
            return Err(fatal("the provider bedrock needs tokio's multi-threaded runtime".to_owned()));
        }
        Ok(())
    }
}

/// The environment variable that holds the key of `config`: the one it names, else the provider's usual one.
/// None for providers without keys (`ollama`, `bedrock`, `scripted`) and unknown ones.
pub fn api_key_env(config: &ModelConfig) -> Option<String> {
    if let Some(name) = &config.api_key_env {
        return Some(name.clone());
    }
    let kind = AdapterKind::from_lower_str(&config.provider)?;
    kind.default_key_env_name().map(str::to_owned)
}

/// Whether OpenAI's model of this name reasons; the others refuse to be asked for encrypted reasoning.
pub(super) fn is_openai_reasoning_model(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    let is_o_series = name.starts_with('o') && name[1..].starts_with(|c: char| c.is_ascii_digit());
    is_o_series
        || name.starts_with("codex")
        || name
            .strip_prefix("gpt-")
            .and_then(|rest| rest.split(['.', '-']).next()?.parse::<u32>().ok())
            .is_some_and(|major| major >= 5 && !name.contains("chat"))
}

/// The wire format of an adapter; none for those whose format depends on the model or is not supported here.
fn dialect(kind: AdapterKind) -> Option<Dialect> {
    match kind {
        AdapterKind::Anthropic | AdapterKind::MiniMax => Some(Dialect::Anthropic),
        AdapterKind::OpenAIResp => Some(Dialect::Responses),
        AdapterKind::Gemini => Some(Dialect::Gemini),
        AdapterKind::BedrockApi | AdapterKind::BedrockSigv4 => Some(Dialect::Bedrock),
        AdapterKind::GeminiIx
        | AdapterKind::Cohere
        | AdapterKind::Ollama
        | AdapterKind::OllamaCloud
        | AdapterKind::Vertex
        | AdapterKind::Baidu
        | AdapterKind::OpenCodeGo
        | AdapterKind::Custom(_) => None,
        // All others pass through genai's OpenAI adapter.
        _ => Some(Dialect::Chat),
    }
}

fn fatal(message: String) -> ModelError {
    ModelError::new(ErrorClass::Fatal, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_ends_in_a_slash_and_keeps_its_query() {
        let endpoint = |base: &str| {
            let config = ModelConfig { base_url: Some(base.into()), ..ModelConfig::from_spec("openai::m") };
            Provider::find("openai").unwrap().endpoint(&config).unwrap().unwrap()
        };
        assert_eq!(endpoint("https://llm.example/v1"), "https://llm.example/v1/");
        assert_eq!(endpoint("https://llm.example/v1/"), "https://llm.example/v1/");
        assert_eq!(endpoint("https://llm.example/d?api-version=1"), "https://llm.example/d/?api-version=1");
    }

    #[test]
    fn only_reasoning_models_are_asked_for_encrypted_reasoning() {
        for name in
            ["o1", "o4-mini", "gpt-5", "gpt-5.1-codex-max", "gpt-6", "openai/gpt-5-mini", "codex-mini"]
        {
            assert!(is_openai_reasoning_model(name), "{name}");
        }
        for name in ["gpt-4.1", "gpt-4o", "gpt-3.5-turbo", "chatgpt-4o", "gpt-5-chat-latest", "o", "", "gpt-"]
        {
            assert!(!is_openai_reasoning_model(name), "{name}");
        }
    }

    #[test]
    fn a_server_of_ones_own_needs_no_key() {
        let config = ModelConfig {
            base_url: Some("http://127.0.0.1:1/v1".into()),
            ..ModelConfig::from_spec("heabsy::m")
        };
        let auth = Provider::find("heabsy").unwrap().auth(&config, None).unwrap();
        assert_eq!(auth.single_key_value().unwrap(), NO_KEY);
        assert_eq!(
            api_key_env(&ModelConfig::from_spec("anthropic::m")).as_deref(),
            Some("ANTHROPIC_API_KEY")
        );
        assert_eq!(api_key_env(&ModelConfig::from_spec("bedrock::m")), None);
    }
}
