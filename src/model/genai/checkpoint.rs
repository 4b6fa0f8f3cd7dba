//! Anthropic's compaction on demand (beta `compact-2026-09-04`): a request with the parameter `compaction` has one signed
//! block for an answer, whose text is the summary. Every later request begins with that block, under the same header, in
//! place of what it stands for. Bedrock does not have it, and a server that only speaks the dialect need not.

use std::sync::Arc;

use ::genai::Headers;
use ::genai::adapter::AdapterKind;
use ::genai::chat::ChatStreamEvent;
use futures::StreamExt;
use serde_json::json;

use super::dialect::{Dialect, Provider, api_key_env};
use super::frames::Frames;
use super::names::ToolNames;
use super::{GenaiModel, request, stop_reason};
use crate::config::ModelConfig;
use crate::history::request::ModelRequest;
use crate::message::{RawJson, is_blank};
use crate::model::{Checkpoint, ErrorClass, ModelError, NoCheckpoint, StopReason};
use crate::store::body_digest;

/// What a compaction, and every request with its block, is sent under.
const BETA: &str = "compact-2026-09-04";
/// The largest block that is kept: a summary has 16,000 tokens at most.
const MAX_BLOCK_BYTES: usize = 128 * 1024;

/// The header of [`BETA`].
pub(super) fn beta_header() -> Headers {
    Headers::from(("anthropic-beta".to_owned(), BETA.to_owned()))
}

/// The identity of the route that a checkpoint is made on and goes back by, where there can be one: provider, address,
/// model, and where the key comes from, which stands for the account. A key that was replaced is found out by the refusal.
pub(super) fn route(provider: &Provider, config: &ModelConfig) -> Option<String> {
    if provider.dialect != Dialect::Anthropic || provider.kind != AdapterKind::Anthropic {
        return None;
    }
    let key = config.api_key_secret.clone().or_else(|| api_key_env(config));
    let named = [
        Some("anthropic_on_demand"),
        Some(config.provider.as_str()),
        Some(config.name.as_str()),
        config.base_url.as_deref(),
        key.as_deref(),
    ];
    Some(body_digest(&json!(named).to_string()))
}

/// A block as it can be sent; none if it is none of ours.
pub(super) fn block(item: &RawJson) -> Option<serde_json::Value> {
    let block: serde_json::Value = serde_json::from_str(item.get()).ok()?;
    (block["type"] == "compaction").then_some(block)
}

impl GenaiModel {
    pub(super) async fn make_checkpoint(&self, request: ModelRequest) -> Result<Checkpoint, NoCheckpoint> {
        if self.route.is_none() {
            return Err(ModelError::new(ErrorClass::Fatal, "this provider makes no checkpoints").into());
        }
        let names = ToolNames::new(&request);
        let frames = Arc::new(Frames::new(self.provider.dialect));
        let mut options = self.options(&request, &frames);
        options.extra_headers = Some(beta_header());
        options.extra_body = Some(json!({ "compaction": { "type": "summarize" } }));
        let chat = request::translate(self.provider.dialect, &request, &names, self.info.image_input);
        let response = self
            .client
            .exec_chat_stream(self.target.clone(), chat.into(), Some(&options))
            .await
            .map_err(|e| self.classifier.classify(&e, None))?;
        let mut events = response.stream;
        loop {
            match events.next().await {
                Some(Ok(ChatStreamEvent::End(_))) => break,
                Some(Ok(_)) => {}
                Some(Err(_)) | None if frames.is_complete() => break,
                Some(Err(e)) => {
                    return Err(self.classifier.classify_response(&e, frames.failure().as_ref()).into());
                }
                None => break,
            }
        }
        let usage = frames.usage();
        let block = frames.checkpoint();
        let Some((calls, stop)) = frames.finish() else { return Err(self.classifier.cut().into()) };
        if stop != "compaction" {
            return Err(match stop_reason(&stop, !calls.is_empty()) {
                Some(stop) => NoCheckpoint::Stopped(stop),
                None => self.classifier.failed_in_stream(&stop).into(),
            });
        }
        // The reason comes before the block: without a text and a signature it is none.
        let usable = block.filter(|block| block.get().len() <= MAX_BLOCK_BYTES).and_then(|block| {
            let text = block.str_field("content").filter(|text| !is_blank(text))?;
            block.str_field("signature").filter(|signature| !is_blank(signature))?;
            Some((block, text))
        });
        let Some((block, text)) = usable else {
            return Err(NoCheckpoint::Stopped(StopReason::Other("no usable block".to_owned())));
        };
        Ok(Checkpoint { text, items: vec![block], usage })
    }
}
