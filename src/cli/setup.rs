//! Configuration and model of a process, checked before anything starts: what is wrong is said before it costs an
//! input.

use std::path::Path;
use std::sync::Arc;

use dormouse::config::{Config, DEFAULT_NAME, ModelConfig};
use dormouse::local::system::LocalOptions;
use dormouse::model;
use dormouse::slice::Observer;

use super::CliError;
use super::args::Global;

/// The configuration file where none is named.
const DEFAULT_FILE: &str = "dormouse.toml";
/// The provider that needs no name of a model.
pub const SCRIPTED: &str = "scripted";

/// Options of a system with the ports of last time.
pub fn options(global: &Global, observer: Arc<dyn Observer>) -> Result<LocalOptions, CliError> {
    Ok(LocalOptions {
        dir: global.dir.clone(),
        http_port: None,
        sqs_port: None,
        public_url: None,
        config: config(global)?,
        observer,
    })
}

/// The model of the default agent, for people.
pub fn model_name(config: &Config) -> String {
    match config.model(&config.default_agent) {
        Ok(model) if model.name.is_empty() => model.provider,
        Ok(model) => format!("{}::{}", model.provider, model.name),
        Err(_) => SCRIPTED.to_owned(),
    }
}

/// Reads the configuration and checks that the default agent's model can be made.
fn config(global: &Global) -> Result<Config, CliError> {
    let config = read(global)?;
    check_model(&config)?;
    Ok(config)
}

/// Reads the configuration.
pub fn read(global: &Global) -> Result<Config, CliError> {
    let file = match &global.config {
        Some(file) if !file.is_file() => {
            return Err(CliError::Usage(format!(
                "there is no configuration file {}; name one that exists, see dormouse.example.toml",
                file.display()
            )));
        }
        Some(file) => Some(file.as_path()),
        None => Some(Path::new(DEFAULT_FILE)).filter(|file| file.is_file()),
    };
    let mut model_set = Ok(());
    let loaded = Config::load_with(file, |config| {
        if let Some(spec) = &global.model {
            model_set = set_model(config, spec);
        }
    });
    model_set?;
    loaded.map_err(|e| CliError::Usage(one_line(&e.to_string())))
}

/// Makes `spec` the model of the default agent.
fn set_model(config: &mut Config, spec: &str) -> Result<(), CliError> {
    let model = match config.models.get(spec) {
        Some(model) => model.clone(),
        None if spec == SCRIPTED => ModelConfig::from_spec(spec),
        None if spec
            .split_once("::")
            .is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty()) =>
        {
            ModelConfig::from_spec(spec)
        }
        None => {
            let known: Vec<&str> = config.models.keys().map(String::as_str).collect();
            let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
            return Err(CliError::Usage(format!(
                "there is no model {spec:?}; write scripted, provider::model such as \
                 anthropic::claude-sonnet-4-5, or a name in [models]{known}"
            )));
        }
    };
    config.models.insert(DEFAULT_NAME.to_owned(), model);
    if let Some(agent) = config.agents.get_mut(&config.default_agent) {
        agent.model = None;
    }
    Ok(())
}

/// A model whose key is missing fails here, before an input is spent on it.
fn check_model(config: &Config) -> Result<(), CliError> {
    // Without a model of that name the scripted one is put in.
    let Ok(model) = config.model(&config.default_agent) else { return Ok(()) };
    if model.api_key_secret.is_some() {
        return Ok(());
    }
    model::provider(&model, None).map(drop).map_err(|e| {
        CliError::Usage(format!(
            "the model {} cannot be used: {}; or take --model scripted, which needs no key",
            model_name(config),
            one_line(&e.message)
        ))
    })
}

/// Errors of parsers are drawn over several lines.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
