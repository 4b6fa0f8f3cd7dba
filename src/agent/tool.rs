//! Tools from closures.

use std::future::Future;

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::tools::{Execution, Invocation, Rerun, Tool, ToolDefinition, ToolError, ToolOutput};

type Run = dyn Fn(Value) -> BoxFuture<'static, Result<String, ToolError>> + Send + Sync;

/// A tool that runs a closure inside the slice, after the commit of its call. For anything that takes longer than a
/// moment, write a [`Tool`] of your own that is [asynchronous](Execution::Asynchronous) and give its result in later.
pub struct FnTool {
    definition: ToolDefinition,
    rerun: Rerun,
    run: Box<Run>,
}

impl FnTool {
    /// A tool called `name`, with the JSON Schema of its arguments (an object). `run` gets arguments that fit the schema,
    /// and returns the text for the model. After a crash that hid whether it ran, the model is told so, and it does not
    /// run again: see [`FnTool::safe_to_repeat`].
    pub fn new<F, Running>(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: Value,
        run: F,
    ) -> Self
    where
        F: Fn(Value) -> Running + Send + Sync + 'static,
        Running: Future<Output = Result<String, ToolError>> + Send + 'static,
    {
        let definition = ToolDefinition { name: name.into(), description: description.into(), input_schema };
        let run = Box::new(move |arguments| -> BoxFuture<'static, _> { Box::pin(run(arguments)) });
        Self { definition, rerun: Rerun::Never, run }
    }

    /// It only looks, or does the same twice: a call that a crash has cut short runs again.
    #[must_use]
    pub fn safe_to_repeat(mut self) -> Self {
        self.rerun = Rerun::Safe;
        self
    }
}

#[async_trait]
impl Tool for FnTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Synchronous(self.rerun)
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        let arguments = serde_json::from_str(&call.arguments)
            .map_err(|e| ToolError::Failed(format!("the arguments cannot be read: {e}")))?;
        (self.run)(arguments).await.map(ToolOutput::text)
    }
}
