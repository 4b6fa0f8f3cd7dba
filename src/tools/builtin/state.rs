//! `read_state`, `update_state`: what the agent shares with its user's application (R21).

use std::sync::Arc;

use async_trait::async_trait;
use json_patch::jsonptr::PointerBuf;
use json_patch::{Patch, PatchOperation};
use serde::Deserialize;
use serde_json::Value;

use super::arguments;
use crate::message::{MAX_STATE_BYTES, MAX_STATE_DEPTH, RawJson, json};
use crate::store::{Store, shared_state};
use crate::tools::{Effect, Execution, Invocation, Rerun, Tool, ToolDefinition, ToolError, ToolOutput};

/// The tool that changes the state. An agent that has it is told of the state.
pub const UPDATE_STATE_TOOL: &str = "update_state";
/// Changes of one call.
const MAX_OPERATIONS: usize = 256;
/// Characters of one answer. More is read part by part.
const MAX_CHARS: usize = 12_000;
/// Members that are no data where clients keep objects.
const PROTOTYPES: [&str; 3] = ["__proto__", "constructor", "prototype"];

/// The tools of an agent that shares.
pub(super) fn all(store: &Arc<dyn Store>) -> Vec<Arc<dyn Tool>> {
    vec![Arc::new(ReadState::new(store.clone())), Arc::new(UpdateState::new())]
}

struct ReadState {
    definition: ToolDefinition,
    store: Arc<dyn Store>,
}

impl ReadState {
    fn new(store: Arc<dyn Store>) -> Self {
        let definition = ToolDefinition {
            name: "read_state".to_owned(),
            description:
                "Reads the state that you share with the user's application, as JSON: all of it, or the part \
                          at path."
                    .to_owned(),
            input_schema: serde_json::json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "A JSON Pointer, like /items/0; leave it out for everything"},
                },
            }),
        };
        Self { definition, store }
    }
}

#[async_trait]
impl Tool for ReadState {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Synchronous(Rerun::Safe)
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        #[derive(Deserialize)]
        struct Arguments {
            #[serde(default)]
            path: String,
        }
        let Arguments { path } = arguments(&call.arguments)?;
        let unavailable = |error: crate::store::StoreError| {
            tracing::warn!(thread = %call.thread, %error, "a state could not be read");
            ToolError::Unavailable("the state cannot be read now".to_owned())
        };
        let state = match self.store.meta(&call.thread).await.map_err(unavailable)? {
            Some(meta) => shared_state(&*self.store, &meta).await.map_err(unavailable)?,
            None => None,
        };
        let Some(state) = state else { return Ok(ToolOutput::text("Nothing is shared yet.")) };
        let text = match path.is_empty() {
            true => state.get().to_owned(),
            false => {
                let value: Value = serde_json::from_str(state.get())
                    .map_err(|_| ToolError::Failed("the state can only be read whole".to_owned()))?;
                let part = value.pointer(&path);
                part.ok_or_else(|| ToolError::Failed(format!("the state has nothing at {path:?}")))?
                    .to_string()
            }
        };
        match text.chars().nth(MAX_CHARS) {
            Some(_) => Err(ToolError::Failed(format!(
                "that is longer than {MAX_CHARS} characters; read a part of it, by path"
            ))),
            None => Ok(ToolOutput::text(text)),
        }
    }
}

struct UpdateState {
    definition: ToolDefinition,
}

impl UpdateState {
    fn new() -> Self {
        let definition = ToolDefinition {
            name: UPDATE_STATE_TOOL.to_owned(),
            description: "Changes the state that you share with the user's application, which shows the change at once. \
                          All operations of one call take effect, or none."
                .to_owned(),
            input_schema: serde_json::json!({
                "type": "object",
                "properties": {
                    "patch": {
                        "type": "array",
                        "description": "A JSON Patch (RFC 6902)",
                        "maxItems": MAX_OPERATIONS,
                        "items": {
                            "type": "object",
                            "properties": {
                                "op": {"type": "string", "enum": ["add", "remove", "replace", "move", "copy", "test"]},
                                "path": {"type": "string", "description": "A JSON Pointer; \"\" is the whole state"},
                                "from": {"type": "string", "description": "Of move and copy"},
                                "value": {"description": "Of add, replace and test"},
                            },
                            "required": ["op", "path"],
                        },
                    },
                },
                "required": ["patch"],
            }),
        };
        Self { definition }
    }
}

#[async_trait]
impl Tool for UpdateState {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Synchronous(Rerun::Safe)
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        #[derive(Deserialize)]
        struct Arguments {
            patch: Patch,
        }
        let Arguments { patch } = arguments(&call.arguments)?;
        Ok(ToolOutput::text("The state is updated.").with(Effect::Share(patch)))
    }
}

/// A state behind a patch; nothing and null count as `{}`. The error is for the model, and then nothing has changed.
pub(crate) fn patched(state: Option<&RawJson>, patch: &Patch) -> Result<RawJson, String> {
    let known = state.map(|state| serde_json::from_str::<Value>(state.get()));
    let known = known.transpose().map_err(|_| "the state is not of a form that can be patched".to_owned())?;
    let mut value = known.filter(|known| !known.is_null()).unwrap_or_else(|| serde_json::json!({}));
    if patch.0.len() > MAX_OPERATIONS {
        return Err(format!("a patch has at most {MAX_OPERATIONS} operations"));
    }
    for (at, operation) in patch.0.iter().enumerate() {
        let refused = |why: String| format!("operation {at} cannot be applied, so none was: {why}");
        if pointers(operation).into_iter().any(is_prototype) {
            return Err(refused("its path names a prototype".to_owned()));
        }
        json_patch::patch(&mut value, std::slice::from_ref(operation)).map_err(|e| refused(e.to_string()))?;
        // After each: copies of copies grow faster, and deeper, than anything could hold.
        if json::is_deeper(&value, MAX_STATE_DEPTH) {
            return Err(refused(format!("a state is at most {MAX_STATE_DEPTH} levels deep")));
        }
        if value.to_string().len() > MAX_STATE_BYTES {
            return Err(refused(format!("a state has at most {MAX_STATE_BYTES} bytes")));
        }
    }
    RawJson::parse(&value.to_string()).map_err(|e| e.to_string())
}

fn pointers(operation: &PatchOperation) -> Vec<&PointerBuf> {
    match operation {
        PatchOperation::Add(to) => vec![&to.path],
        PatchOperation::Remove(to) => vec![&to.path],
        PatchOperation::Replace(to) => vec![&to.path],
        PatchOperation::Move(to) => vec![&to.from, &to.path],
        PatchOperation::Copy(to) => vec![&to.from, &to.path],
        PatchOperation::Test(to) => vec![&to.path],
    }
}

fn is_prototype(pointer: &PointerBuf) -> bool {
    pointer.tokens().any(|token| PROTOTYPES.contains(&token.decoded().as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(state: Option<&str>, patch: Value) -> Result<String, String> {
        let state = state.map(|state| RawJson::parse(state).unwrap());
        let patch = serde_json::from_value(patch).unwrap();
        patched(state.as_ref(), &patch).map(|state| state.get().to_owned())
    }

    #[test]
    fn r21_nothing_and_null_are_patched_as_an_empty_object() {
        for state in [None, Some("null"), Some("{}")] {
            let patch = serde_json::json!([{"op": "add", "path": "/n", "value": null}]);
            assert_eq!(after(state, patch).unwrap(), r#"{"n":null}"#, "{state:?}");
        }
        assert_eq!(
            after(Some("[1]"), serde_json::json!([{"op": "replace", "path": "", "value": 2}])).unwrap(),
            "2"
        );
    }

    #[test]
    fn r21_a_patch_takes_effect_whole_or_not_at_all() {
        let patch = serde_json::json!([
            {"op": "add", "path": "/a", "value": 1},
            {"op": "remove", "path": "/none"},
        ]);
        let refused = after(Some(r#"{"b":2}"#), patch).unwrap_err();
        assert!(refused.contains("operation 1") && refused.contains("none was"), "{refused}");
        let test = serde_json::json!([{"op": "test", "path": "/b", "value": 3}]);
        assert!(after(Some(r#"{"b":2}"#), test).unwrap_err().contains("operation 0"));
    }

    #[test]
    fn r21_no_path_leads_to_a_prototype_however_it_is_spelled() {
        for path in ["/__proto__/x", "/a/constructor", "/prototype/x", "/a/__proto__"] {
            for patch in [
                serde_json::json!([{"op": "add", "path": path, "value": 1}]),
                serde_json::json!([{"op": "copy", "from": path, "path": "/x"}]),
                serde_json::json!([{"op": "move", "from": "/a", "path": path}]),
            ] {
                let refused = after(Some(r#"{"a":{"b":1}}"#), patch).unwrap_err();
                assert!(refused.contains("prototype"), "{path}: {refused}");
            }
        }
        assert!(
            after(Some("{}"), serde_json::json!([{"op": "add", "path": "/__proto", "value": 1}])).is_ok()
        );
    }

    #[test]
    fn r21_no_patch_makes_a_state_larger_than_one_may_be() {
        let mut patch = vec![serde_json::json!({"op": "add", "path": "/a", "value": "x".repeat(1_000)})];
        patch
            .extend((0..40).map(|n| serde_json::json!({"op": "copy", "from": "", "path": format!("/c{n}")})));
        let refused = after(Some("{}"), Value::Array(patch)).unwrap_err();
        assert!(refused.contains("bytes"), "{refused}");
        let deep: Vec<Value> =
            (0..130).map(|_| serde_json::json!({"op": "copy", "from": "", "path": "/a"})).collect();
        let refused = after(Some(r#"{"b":1}"#), Value::Array(deep)).unwrap_err();
        assert!(refused.contains("levels deep"), "{refused}");
        let many = vec![serde_json::json!({"op": "test", "path": "", "value": {}}); MAX_OPERATIONS + 1];
        assert!(after(Some("{}"), Value::Array(many)).unwrap_err().contains("at most 256"));
    }
}
