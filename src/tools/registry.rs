//! The tools of one session by name, and the check of arguments against their schema.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::schema::is_bounded;
use super::{Tool, ToolDefinition};
use crate::message::RESERVED_EVENT_TOOL;

/// Names that no tool may have: the runtime writes calls under them itself.
pub const RESERVED_NAMES: [&str; 2] = [RESERVED_EVENT_TOOL, "__harness_begin_compaction__"];
/// Violations that an argument error names; more help nobody.
const MAX_VIOLATIONS: usize = 5;
/// Characters of an argument error.
const MAX_ERROR_CHARS: usize = 1_000;

/// Tools by name. Cheap to clone.
#[derive(Clone, Default)]
pub struct Registry {
    tools: Arc<BTreeMap<String, Entry>>,
}

#[derive(Clone)]
struct Entry {
    tool: Arc<dyn Tool>,
    schema: Option<Arc<jsonschema::Validator>>,
}

/// Why arguments do not fit. The text goes to the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArgumentError(String);

impl Registry {
    /// A registry of `tools`; of two with one name the first stays.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Self {
        let mut map = BTreeMap::new();
        for tool in tools {
            let definition = tool.definition();
            // One that does not compile was reported by discovery.
            let schema = Some(&definition.input_schema)
                .filter(|schema| is_bounded(schema))
                .and_then(|schema| jsonschema::validator_for(schema).ok())
                .map(Arc::new);
            map.entry(definition.name.clone()).or_insert(Entry { tool, schema });
        }
        Self { tools: Arc::new(map) }
    }

    /// The tool called `name`.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.get(name).map(|entry| &entry.tool)
    }

    /// Some tool of `server`: where notices about its calls go.
    pub fn of_server(&self, server: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.values().map(|entry| &entry.tool).find(|tool| tool.server() == Some(server))
    }

    /// One tool of each server.
    pub fn one_of_each_server(&self) -> Vec<&Arc<dyn Tool>> {
        let mut of: BTreeMap<&str, &Arc<dyn Tool>> = BTreeMap::new();
        for tool in self.iter() {
            if let Some(server) = tool.server() {
                of.entry(server).or_insert(tool);
            }
        }
        of.into_values().collect()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// All tools, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Tool>> {
        self.tools.values().map(|entry| &entry.tool)
    }

    /// What the model is told, by name, so that the request's prefix is stable.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        self.tools.values().map(|entry| entry.tool.definition().clone()).collect()
    }

    /// Checks the arguments of a call to `name`: that they are an object, and that they fit the tool's schema where
    /// its check is bounded (see `schema`).
    pub fn check_arguments(&self, name: &str, arguments: &str) -> Result<(), ArgumentError> {
        let Some(entry) = self.tools.get(name) else {
            return Err(ArgumentError(format!("there is no tool {name}")));
        };
        let value: Value = serde_json::from_str(arguments)
            .map_err(|e| ArgumentError(format!("the arguments of {name} are not JSON: {e}")))?;
        if !value.is_object() {
            return Err(ArgumentError(format!("the arguments of {name} are not a JSON object")));
        }
        let Some(schema) = &entry.schema else { return Ok(()) };
        let violations: Vec<String> = schema
            .iter_errors(&value)
            .take(MAX_VIOLATIONS)
            .map(|e| match e.instance_path().as_str() {
                "" => e.to_string(),
                path => format!("{path}: {e}"),
            })
            .collect();
        if violations.is_empty() {
            return Ok(());
        }
        let text = format!("the arguments do not fit the schema of {name}: {}", violations.join("; "));
        Err(ArgumentError(text.chars().take(MAX_ERROR_CHARS).collect()))
    }
}
