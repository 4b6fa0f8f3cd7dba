//! What providers make of a conversation themselves.
//!
//! Anthropic's compaction on demand (beta `compact-2026-09-04`): a request with the parameter `compaction` has one signed
//! block for an answer, whose text is the summary. Every later request begins with that block, under the same header, in
//! place of what it stands for. Bedrock does not have it, and a server that only speaks the dialect need not.
//!
//! OpenAI's `/responses/compact`: one POST, whose answer is the window to go on with, the user's messages and an encrypted
//! item. genai 0.7.2 has no room for it, so the call is made here.

use std::sync::Arc;

use ::genai::Headers;
use ::genai::adapter::AdapterKind;
use ::genai::chat::ChatStreamEvent;
use futures::StreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use url::Url;

use super::dialect::{Provider, api_key_env};
use super::frames::Frames;
use super::names::ToolNames;
use super::{GenaiModel, openai, request, stop_reason};
use crate::config::ModelConfig;
use crate::history::request::ModelRequest;
use crate::message::{RawJson, is_blank};
use crate::model::{
    Checkpoint, ErrorClass, Mechanism, ModelError, NativeRoute, NoCheckpoint, StopReason, Usage,
};
use crate::store::body_digest;

/// What a compaction, and every request with its block, is sent under.
const BETA: &str = "compact-2026-09-04";
/// The largest block that is kept: a summary has 16,000 tokens at most.
const MAX_BLOCK_BYTES: usize = 128 * 1024;

/// OpenAI's own address.
const OPENAI_URL: &str = "https://api.openai.com/v1/";
/// The largest answer of OpenAI's that is read.
const MAX_WINDOW_BYTES: usize = 256 * 1024;

/// The header of [`BETA`].
pub(super) fn beta_header() -> Headers {
    Headers::from(("anthropic-beta".to_owned(), BETA.to_owned()))
}

/// How a provider compacts on one route.
pub(super) struct Native {
    mechanism: Mechanism,
    route: String,
    /// For the call that genai does not make.
    http: reqwest::Client,
    url: Option<Url>,
    key: String,
}

impl Native {
    /// None where the provider does not, or may not: a server that only speaks a dialect.
    pub fn find(provider: &Provider, config: &ModelConfig, key: &str, http: reqwest::Client) -> Option<Self> {
        let (mechanism, name) = match provider.kind {
            AdapterKind::Anthropic => (Mechanism::AnthropicOnDemand, "anthropic_on_demand"),
            AdapterKind::OpenAIResp => (Mechanism::OpenaiCompact, "openai_compact"),
            _ => return None,
        };
        let url = compact_url(config.base_url.as_deref().unwrap_or(OPENAI_URL));
        let route = route(name, config);
        Some(Self { mechanism, route, http, url, key: key.to_owned() })
    }

    pub fn route(&self) -> NativeRoute {
        NativeRoute { mechanism: self.mechanism, route: self.route.clone() }
    }
}

/// The identity of the route that a checkpoint is made on and goes back by: provider, address, model, and where the key comes
/// from, which stands for the account. A key that was replaced is found out by the refusal.
fn route(mechanism: &str, config: &ModelConfig) -> String {
    let key = config.api_key_secret.clone().or_else(|| api_key_env(config));
    let named = [
        Some(mechanism),
        Some(config.provider.as_str()),
        Some(config.name.as_str()),
        config.base_url.as_deref(),
        key.as_deref(),
    ];
    body_digest(&json!(named).to_string())
}

/// Where OpenAI compacts; a query of the address (Azure's version) stays.
fn compact_url(base: &str) -> Option<Url> {
    let mut url = Url::parse(base).ok()?;
    let path = format!("{}/responses/compact", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Some(url)
}

/// What is read of OpenAI's answer.
#[derive(Deserialize)]
struct Window<'a> {
    #[serde(borrow)]
    output: Vec<&'a RawValue>,
    #[serde(default)]
    usage: Value,
}

/// A block as it can be sent; none if it is none of ours.
pub(super) fn block(item: &RawJson) -> Option<serde_json::Value> {
    let block: serde_json::Value = serde_json::from_str(item.get()).ok()?;
    (block["type"] == "compaction").then_some(block)
}

impl GenaiModel {
    pub(super) async fn make_checkpoint(&self, request: ModelRequest) -> Result<Checkpoint, NoCheckpoint> {
        match &self.native {
            Some(native) if native.mechanism == Mechanism::OpenaiCompact => {
                self.compact_window(native, &request).await
            }
            Some(_) => self.compact_on_demand(request).await,
            None => Err(ModelError::new(ErrorClass::Fatal, "this provider makes no checkpoints").into()),
        }
    }

    async fn compact_window(
        &self,
        native: &Native,
        request: &ModelRequest,
    ) -> Result<Checkpoint, NoCheckpoint> {
        let fatal = || ModelError::new(ErrorClass::Fatal, "base_url is no address");
        let url = native.url.clone().ok_or_else(fatal)?;
        let names = ToolNames::new(request);
        let mut body = json!({
            "model": self.name,
            "input": openai::responses_input(request, &names, self.info.image_input),
        });
        if let Some(system) = &request.system {
            body["instructions"] = json!(system);
        }
        let sent = native.http.post(url).bearer_auth(&native.key).json(&body).send().await;
        let mut response = sent.map_err(|e| self.classifier.of_transport(&e))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|e| self.classifier.of_transport(&e))? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > MAX_WINDOW_BYTES {
                return Err(NoCheckpoint::Stopped(StopReason::Other(
                    "a window that is too large".to_owned(),
                )));
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        if !status.is_success() {
            return Err(self.classifier.of_http(status, &headers, &text).into());
        }
        let window: Window<'_> = serde_json::from_str(&text).map_err(|_| self.classifier.unreadable())?;
        let items: Vec<RawJson> =
            window.output.iter().filter_map(|item| RawJson::parse(item.get()).ok()).collect();
        let is_sealed = |item: &RawJson| {
            let sealed = item.str_field("encrypted_content").is_some_and(|sealed| !is_blank(&sealed));
            sealed && item.str_field("type").as_deref() == Some("compaction")
        };
        if !items.iter().any(is_sealed) {
            return Err(NoCheckpoint::Stopped(StopReason::Other("no compaction item".to_owned())));
        }
        let count = |pointer| window.usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let usage = Usage {
            input: count("/input_tokens"),
            output: count("/output_tokens"),
            cached: count("/input_tokens_details/cached_tokens"),
        };
        Ok(Checkpoint { text: None, items, usage: Some(usage) })
    }

    async fn compact_on_demand(&self, request: ModelRequest) -> Result<Checkpoint, NoCheckpoint> {
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
        Ok(Checkpoint { text: Some(text), items: vec![block], usage })
    }
}
