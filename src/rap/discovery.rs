//! Manifests of tool servers: fetched, checked against every rule, and cached.
//!
//! A copy counts for [`MANIFEST_TTL`]; it is kept in the process, and in the store for other processes. A server
//! that cannot be reached keeps its last good copy, whatever its age. A manifest that breaks a rule loads
//! nothing of its set: a server that changed into something odd is not to be trusted with its old face.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use sha2::{Digest, Sha256};
use url::Url;

use super::client::{RapClient, below};
use super::wire::{Manifest, ManifestTool};
use crate::config::{Config, ToolServerConfig};
use crate::message::json;
use crate::store::Store;
use crate::tools::ToolDefinition;

/// How long a manifest counts without being fetched again.
pub const MANIFEST_TTL: Duration = Duration::from_secs(10 * 60);
/// How long a server that failed is left in peace: no slice waits for its timeout again meanwhile.
pub const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Bytes of a manifest.
pub const MAX_MANIFEST_BYTES: usize = 1024 * 1024;
/// Tools of one set.
pub const MAX_TOOLS: usize = 256;
/// Characters of a set's name and of a tool's.
const MAX_NAME_CHARS: usize = 128;
/// Characters of a description that the model gets.
const MAX_DESCRIPTION_CHARS: usize = 4_096;
/// Characters of a reason in a report.
const MAX_REASON_CHARS: usize = 300;
/// The longest wait for a manifest: a slice waits for it, and a good server answers from memory.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Where a manifest is, below a server's address.
const MANIFEST_PATH: &str = ".well-known/rap-toolset";

/// A checked manifest.
#[derive(Clone, Debug)]
pub struct Toolset {
    /// The server's name in the configuration.
    pub server: String,
    /// Where invocations go.
    pub endpoint: Url,
    /// What the model is told of each tool.
    pub tools: Vec<ToolDefinition>,
    /// Names of those that say of themselves that they may destroy something.
    pub destructive: BTreeSet<String>,
    /// Whether the server has state that `/migrate` moves.
    pub needs_migration: bool,
}

/// Fetches and caches manifests. One a process.
pub struct Discovery {
    client: RapClient,
    store: Arc<dyn Store>,
    known: Mutex<BTreeMap<String, Known>>,
}

/// What this process knows of a server, and until when.
#[derive(Clone)]
struct Known {
    outcome: Result<Arc<Toolset>, String>,
    until_ms: i64,
}

impl Discovery {
    /// A cache in front of `store`.
    pub fn new(client: RapClient, store: Arc<dyn Store>) -> Self {
        Self { client, store, known: Mutex::default() }
    }

    /// The toolset of the configured server `server`. The error is one line for the user: which server, what is
    /// wrong, what to do.
    pub async fn toolset(&self, server: &str) -> Result<Arc<Toolset>, String> {
        let now_ms = now_ms();
        if let Some(known) = self.known().get(server).filter(|known| now_ms < known.until_ms) {
            return known.outcome.clone();
        }
        let known = self.look_up(server, now_ms).await;
        if let Err(problem) = &known.outcome {
            tracing::warn!(server, problem, "a toolset is missing");
        }
        self.known().insert(server.to_owned(), known.clone());
        known.outcome
    }

    async fn look_up(&self, server: &str, now_ms: i64) -> Known {
        let retry_ms = now_ms + RETRY_AFTER.as_millis() as i64;
        let config = self.client.config();
        let Some(settings) = config.tool_servers.get(server) else {
            let problem = format!("Tool server {server}: it is not configured; add [tool_servers.{server}].");
            return Known { outcome: Err(problem), until_ms: retry_ms };
        };
        if let Some(name) = settings.bearer_env.as_ref().filter(|name| std::env::var(name).is_err()) {
            let problem = format!(
                "Tool server {server}: the environment variable {name}, which is to hold its token, is not set."
            );
            return Known { outcome: Err(problem), until_ms: retry_ms };
        }
        let stored = self.stored(server).await;
        if let Some((text, at_ms)) = &stored {
            let until_ms = at_ms + MANIFEST_TTL.as_millis() as i64;
            // A copy "from the future" comes from a clock that is wrong; it must not count for ever.
            if *at_ms <= retry_ms
                && now_ms < until_ms
                && let Ok(set) = check(config, server, settings, text)
            {
                return Known { outcome: Ok(Arc::new(set)), until_ms };
            }
        }
        match self.fetch(server, settings).await {
            Ok(text) => match check(config, server, settings, &text) {
                Ok(set) => {
                    self.keep(server, &text, now_ms).await;
                    let until_ms = now_ms + MANIFEST_TTL.as_millis() as i64;
                    Known { outcome: Ok(Arc::new(set)), until_ms }
                }
                Err(reason) => {
                    let reason: String = reason.chars().take(MAX_REASON_CHARS).collect();
                    let problem = format!(
                        "Tool server {server}: its manifest is refused and none of its tools are loaded: {}.",
                        one_line(&reason)
                    );
                    Known { outcome: Err(problem), until_ms: retry_ms }
                }
            },
            Err(cause) => {
                let copy = stored.and_then(|(text, _)| check(config, server, settings, &text).ok());
                let outcome = match copy {
                    Some(set) => {
                        tracing::warn!(server, cause, "no fresh manifest: the last good copy is used");
                        Ok(Arc::new(set))
                    }
                    None => Err(format!(
                        "Tool server {server}: its manifest cannot be fetched ({cause}), so its tools are \
                         missing; check that it runs and that tool_servers.{server}.url is right."
                    )),
                };
                Known { outcome, until_ms: retry_ms }
            }
        }
    }

    async fn fetch(&self, server: &str, settings: &ToolServerConfig) -> Result<String, String> {
        let url = below(&settings.url, MANIFEST_PATH).ok_or("its address is malformed")?;
        let timeout = self.client.timeout(server).min(FETCH_TIMEOUT);
        let body = self.client.get(server, url, timeout, MAX_MANIFEST_BYTES).await.map_err(|e| e.cause)?;
        // Kept as it came: a pinned digest is one of the bytes, and of mended ones it does not match.
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    async fn stored(&self, server: &str) -> Option<(String, i64)> {
        match self.store.manifest(server).await {
            Ok(stored) => stored,
            Err(error) => {
                tracing::warn!(server, %error, "the cached manifest could not be read");
                None
            }
        }
    }

    async fn keep(&self, server: &str, text: &str, now_ms: i64) {
        if let Err(error) = self.store.put_manifest(server, text, now_ms).await {
            tracing::warn!(server, %error, "the manifest could not be cached");
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        // Held for map operations only, which do not panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks a manifest's text against every rule of RAP and of the configuration. The error says which rule.
pub fn check(
    config: &Config,
    server: &str,
    settings: &ToolServerConfig,
    text: &str,
) -> Result<Toolset, String> {
    if text.len() > MAX_MANIFEST_BYTES {
        return Err(format!("it is larger than {MAX_MANIFEST_BYTES} bytes"));
    }
    if let Some(pinned) = &settings.manifest_sha256 {
        let found = data_encoding::HEXLOWER.encode(&Sha256::digest(text.as_bytes()));
        if !pinned.trim().eq_ignore_ascii_case(&found) {
            return Err(format!("its SHA-256 is {found}, not the pinned manifest_sha256"));
        }
    }
    let manifest: Manifest = serde_json::from_str(&json::mend(text.as_bytes())).map_err(|e| e.to_string())?;
    if !(1..=MAX_NAME_CHARS).contains(&manifest.name.chars().count()) {
        return Err(format!("name is not of 1 to {MAX_NAME_CHARS} characters"));
    }
    let endpoint = config.check_url("endpoint", &manifest.endpoint).map_err(|e| e.to_string())?;
    if !(1..=MAX_TOOLS).contains(&manifest.tools.len()) {
        return Err(format!("tools has {} entries, not 1 to {MAX_TOOLS}", manifest.tools.len()));
    }
    let mut names = BTreeSet::new();
    for tool in &manifest.tools {
        check_name(&tool.name)?;
        if !names.insert(tool.name.as_str()) {
            return Err(format!("two tools are called {}", tool.name));
        }
        check_schema(tool)?;
    }
    let destroys =
        |tool: &&ManifestTool| tool.annotations.as_ref().is_some_and(|it| it.destructive == Some(true));
    Ok(Toolset {
        server: server.to_owned(),
        endpoint,
        destructive: manifest.tools.iter().filter(destroys).map(|tool| tool.name.clone()).collect(),
        tools: manifest.tools.into_iter().map(definition).collect(),
        needs_migration: manifest.needs_migration,
    })
}

fn check_name(name: &str) -> Result<(), String> {
    let fits = (1..=MAX_NAME_CHARS).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if fits {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME_CHARS).collect();
    Err(format!("the tool name {shown:?} is not of 1 to {MAX_NAME_CHARS} letters, digits, `_` and `-`"))
}

fn check_schema(tool: &ManifestTool) -> Result<(), String> {
    let name = &tool.name;
    let Value::Object(schema) = &tool.input_schema else {
        return Err(format!("inputSchema of {name} is not an object"));
    };
    // Arguments are always an object: a schema of something else can never be met.
    if schema.get("type").is_some_and(|kind| kind != "object") {
        return Err(format!("inputSchema of {name} does not describe an object"));
    }
    // References to other documents do not resolve and so do not compile: nothing is fetched.
    jsonschema::validator_for(&tool.input_schema)
        .map(drop)
        .map_err(|e| format!("inputSchema of {name} is not a JSON schema: {e}"))
}

fn definition(tool: ManifestTool) -> ToolDefinition {
    let mut input_schema = tool.input_schema;
    // Providers want the type spelled out.
    if let Value::Object(schema) = &mut input_schema {
        schema.entry("type").or_insert_with(|| Value::from("object"));
    }
    ToolDefinition {
        name: tool.name,
        description: tool.description.chars().take(MAX_DESCRIPTION_CHARS).collect(),
        input_schema,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut manifest = json!({
            "name": "builds", "endpoint": "https://b.example/invoke", "needsMigration": null, "later": 1,
            "tools": [{"name": "watch", "description": "d", "inputSchema": {}, "annotations": {"x.y": 1}}],
        });
        change(&mut manifest);
        let settings = ToolServerConfig::default();
        check(&Config::default(), "b", &settings, &manifest.to_string()).map_or_else(|e| e, |_| String::new())
    }

    #[test]
    fn rap_21_22_each_broken_rule_refuses_the_whole_set_and_is_named() {
        assert_eq!(refusal(|_| {}), "");
        let tool =
            |field: &'static str, value: Value| refusal(move |manifest| manifest["tools"][0][field] = value);
        let cases = [
            (refusal(|m| m["name"] = json!("")), "name"),
            (refusal(|m| m["name"] = json!("n".repeat(129))), "name"),
            (refusal(|m| m["name"] = json!(7)), "string"),
            (refusal(|m| m["description"] = json!([])), "string"),
            (refusal(|m| m["endpoint"] = json!("http://b.example/")), "plain http to b.example"),
            (refusal(|m| m["endpoint"] = json!("file:///etc/passwd")), "scheme"),
            (refusal(|m| m["endpoint"] = json!("/invoke")), "endpoint"),
            (refusal(|m| m["tools"] = json!([])), "tools has 0"),
            (refusal(|m| m["tools"] = json!({})), "sequence"),
            (refusal(|m| m["needsMigration"] = json!("yes")), "boolean"),
            (refusal(|m| *m = json!([])), "invalid"),
            (
                refusal(|m| {
                    let tool = m["tools"][0].clone();
                    m["tools"] = json!([tool, tool])
                }),
                "two tools",
            ),
            (
                refusal(|m| {
                    let tool = m["tools"][0].clone();
                    m["tools"] = json!(vec![tool; 257])
                }),
                "257",
            ),
            (tool("name", json!("")), "tool name"),
            (tool("name", json!("n".repeat(129))), "tool name"),
            (tool("name", json!("a b")), "tool name"),
            (tool("name", json!("foo@bar")), "tool name"),
            (tool("name", json!("größe")), "tool name"),
            (tool("description", json!(null)), "string"),
            (tool("inputSchema", json!("object")), "not an object"),
            (tool("inputSchema", json!({"type": "string"})), "describe an object"),
            (tool("inputSchema", json!({"properties": {"a": {"type": "wrong"}}})), "not a JSON schema"),
            (tool("inputSchema", json!({"$ref": "https://x.example/schema"})), "not a JSON schema"),
            (tool("annotations", json!("readOnly")), "Annotations"),
            (tool("annotations", json!({"readOnly": "yes"})), "boolean"),
            (tool("displayScript", json!(1)), "string"),
        ];
        for (i, (found, expected)) in cases.iter().enumerate() {
            assert!(found.contains(expected), "case {i}: {found:?} does not say {expected:?}");
        }
    }

    #[test]
    fn rap_26_descriptions_are_bounded_and_schemas_say_that_they_describe_an_object() {
        let manifest = json!({"name": "n", "endpoint": "https://b.example", "tools": [
            {"name": "t", "description": "ü".repeat(10_000), "inputSchema": {}}]});
        let settings = ToolServerConfig::default();
        let set = check(&Config::default(), "b", &settings, &manifest.to_string()).unwrap();
        assert_eq!(set.tools[0].description.chars().count(), MAX_DESCRIPTION_CHARS);
        assert_eq!(set.tools[0].input_schema, json!({"type": "object"}));
    }

    #[test]
    fn rap_25_a_pinned_digest_must_match() {
        let text = r#"{"name":"n","endpoint":"https://b.example","tools":[{"name":"t","description":"","inputSchema":{}}]}"#;
        let digest = data_encoding::HEXUPPER.encode(&Sha256::digest(text.as_bytes()));
        let pinned =
            |digest: String| ToolServerConfig { manifest_sha256: Some(digest), ..Default::default() };
        assert!(check(&Config::default(), "b", &pinned(digest.clone()), text).is_ok());
        let changed = text.replace("\"t\"", "\"u\"");
        let error = check(&Config::default(), "b", &pinned(digest), &changed).unwrap_err();
        assert!(error.contains("manifest_sha256"), "{error}");
    }
}
