//! What a server offers: listed page by page, checked tool by tool, cached like a RAP manifest.
//!
//! A copy counts for [`LISTING_TTL`]; it is kept in the process, and in the store for other processes. A server that
//! cannot be reached keeps its last good copy, whatever its age; one that says that its tools have changed is listed
//! again before the next step. A tool that breaks a rule is left out and reported; the others stay.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::bridge::Bridge;
use super::connection::Connection;
use super::failure::Failure;
use super::tool::McpTool;
use crate::config::McpServerConfig;
use crate::store::Store;
use crate::tools::{Offer, Rerun, Tool, ToolDefinition};

/// How long a listing counts without being made again.
const LISTING_TTL: Duration = Duration::from_secs(10 * 60);
/// How long a server that failed is left in peace: no slice waits for it again meanwhile.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Pages of one listing.
const MAX_PAGES: usize = 32;
/// Tools of one server.
const MAX_TOOLS: usize = 256;
/// Bytes of a listing as it is kept.
const MAX_LISTING_BYTES: usize = 1024 * 1024;
/// Characters of a tool's name with its prefix.
const MAX_NAME_CHARS: usize = 128;
/// Characters of a description that the model gets.
const MAX_DESCRIPTION_CHARS: usize = 4_096;
/// Characters of a reason in a report.
const MAX_REASON_CHARS: usize = 200;

/// A listing as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Listing {
    /// Digest of where it came from: under another address or command the copy is nobody's.
    source: String,
    tools: Vec<ListedTool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ListedTool {
    name: String,
    #[serde(default)]
    description: String,
    input_schema: Value,
    /// Its annotations say that running it twice does no harm.
    #[serde(default)]
    repeatable: bool,
}

/// The cache of one server's listing.
#[derive(Default)]
pub(super) struct Listings {
    known: Mutex<Option<Known>>,
}

/// What this process knows of a server, and until when.
#[derive(Clone)]
struct Known {
    outcome: Result<Arc<Offer>, String>,
    until_ms: i64,
    /// What the offer was made of: made again only if that differs.
    listing: Option<Listing>,
}

impl Listings {
    /// The tools of the server. The error is one line for the user.
    pub async fn offer(
        &self,
        connection: &Arc<Connection>,
        store: &dyn Store,
        bridge: &Arc<Bridge>,
    ) -> Result<Arc<Offer>, String> {
        let now_ms = now_ms();
        // Asked before the listing is made: a change while it is being made counts for the next one.
        let changed = connection.take_changed();
        let last = self.known().clone();
        if let Some(known) = last.as_ref().filter(|known| !changed && now_ms < known.until_ms) {
            return known.outcome.clone();
        }
        let known = look_up(connection, store, bridge, last, changed, now_ms).await;
        if let Err(problem) = &known.outcome {
            tracing::warn!(server = connection.server(), problem, "tools are missing");
        }
        *self.known() = Some(known.clone());
        known.outcome
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Option<Known>> {
        // Held for moves only, which do not panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn look_up(
    connection: &Arc<Connection>,
    store: &dyn Store,
    bridge: &Arc<Bridge>,
    last: Option<Known>,
    changed: bool,
    now_ms: i64,
) -> Known {
    let server = connection.server();
    let (fresh_ms, retry_ms) = (LISTING_TTL.as_millis() as i64, now_ms + RETRY_AFTER.as_millis() as i64);
    let made = |listing: Listing, until_ms: i64| {
        // The same tools stay the same offer, so that no schema is compiled again.
        let outcome = match &last {
            Some(Known { outcome: Ok(offer), listing: Some(of), .. }) if *of == listing => offer.clone(),
            Some(_) | None => Arc::new(offer(connection, bridge, &listing)),
        };
        Known { outcome: Ok(outcome), until_ms, listing: Some(listing) }
    };
    let stored = stored(connection, store).await;
    if let Some((listing, at_ms)) = &stored
        && !changed
        // A copy "from the future" comes from a clock that is wrong; it must not count for ever.
        && *at_ms <= retry_ms
        && now_ms < at_ms + fresh_ms
    {
        return made(listing.clone(), at_ms + fresh_ms);
    }
    match list(connection).await {
        Ok(listing) => {
            keep(server, store, &listing, now_ms).await;
            made(listing, now_ms + fresh_ms)
        }
        Err(cause) => match stored {
            Some((listing, _)) => {
                tracing::warn!(server, %cause, "no fresh list of tools: the last good copy is used");
                made(listing, retry_ms)
            }
            None => {
                let problem = format!(
                    "MCP server {server}: its tools cannot be listed ({cause}), so they are missing; check that it \
                     runs and that mcp_servers.{server} is right."
                );
                Known { outcome: Err(problem), until_ms: retry_ms, listing: None }
            }
        },
    }
}

/// Asks the server, following its pages.
async fn list(connection: &Connection) -> Result<Listing, Failure> {
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let page = connection.page(cursor.take()).await?;
        tools.extend(page.tools.into_iter().map(listed));
        cursor = page.next_cursor;
        if cursor.is_none() || tools.len() > MAX_TOOLS {
            break;
        }
    }
    let listing = Listing { source: source(connection.settings()), tools };
    let bytes = serde_json::to_vec(&listing).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_LISTING_BYTES {
        return Err(Failure::Lost(format!("its list of tools is larger than {MAX_LISTING_BYTES} bytes")));
    }
    Ok(listing)
}

fn listed(tool: rmcp::model::Tool) -> ListedTool {
    let hints = tool.annotations.unwrap_or_default();
    let description = tool.description.map(|text| text.into_owned()).or(tool.title).unwrap_or_default();
    ListedTool {
        name: tool.name.into_owned(),
        description: description.chars().take(MAX_DESCRIPTION_CHARS).collect(),
        input_schema: Value::Object(tool.input_schema.as_ref().clone()),
        repeatable: hints.read_only_hint == Some(true) || hints.idempotent_hint == Some(true),
    }
}

/// Makes tools of a listing. Under a provider's own rules for names, odd ones are spelled differently on its wire.
fn offer(connection: &Arc<Connection>, bridge: &Arc<Bridge>, listing: &Listing) -> Offer {
    let server = connection.server();
    let prefix = connection.settings().prefix.as_deref().unwrap_or_default();
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
    for listed in listing.tools.iter().take(MAX_TOOLS) {
        let name = format!("{prefix}{}", listed.name);
        let checked = check_name(&listed.name, &name).and_then(|()| schema(listed));
        match checked {
            Ok(_) if !names.insert(name.clone()) => {
                problems.push(format!("MCP server {server}: it has two tools {name}; the first is used."));
            }
            Ok(input_schema) => tools.push(Arc::new(McpTool {
                definition: ToolDefinition { name, description: listed.description.clone(), input_schema },
                name: listed.name.clone(),
                rerun: if listed.repeatable { Rerun::Safe } else { Rerun::Never },
                connection: connection.clone(),
                bridge: bridge.clone(),
            })),
            Err(reason) => {
                let shown: String = name.chars().take(MAX_NAME_CHARS).collect();
                let reason: String = reason.chars().take(MAX_REASON_CHARS).collect();
                problems.push(format!("MCP server {server}: its tool {shown:?} is left out: {reason}."));
            }
        }
    }
    if listing.tools.len() > MAX_TOOLS {
        problems.push(format!("MCP server {server}: of its tools only the first {MAX_TOOLS} are used."));
    }
    Offer { server: server.to_owned(), tools, problems }
}

fn check_name(own: &str, name: &str) -> Result<(), String> {
    let odd = |c: char| c.is_control() || c.is_whitespace();
    if own.is_empty() || name.chars().count() > MAX_NAME_CHARS || name.chars().any(odd) {
        return Err(format!("its name is not of 1 to {MAX_NAME_CHARS} characters without space"));
    }
    Ok(())
}

/// The schema of a tool's arguments as providers take it.
fn schema(tool: &ListedTool) -> Result<Value, String> {
    let mut schema = tool.input_schema.clone();
    let Value::Object(members) = &mut schema else { return Err("its inputSchema is no object".to_owned()) };
    // Arguments are always an object; providers want the type spelled out.
    if members.entry("type").or_insert_with(|| Value::from("object")) != "object" {
        return Err("its inputSchema does not describe an object".to_owned());
    }
    // References to other documents do not resolve and so do not compile: nothing is fetched.
    match jsonschema::validator_for(&schema) {
        Ok(_) => Ok(schema),
        Err(error) => Err(format!("its inputSchema is not a JSON schema: {}", one_line(&error.to_string()))),
    }
}

/// The row of a server's listing: RAP servers have manifests under their bare names.
fn row(server: &str) -> String {
    format!("mcp:{server}")
}

async fn stored(connection: &Connection, store: &dyn Store) -> Option<(Listing, i64)> {
    let server = connection.server();
    match store.manifest(&row(server)).await {
        Ok(Some((text, at_ms))) => {
            let listing: Listing = serde_json::from_str(&text).ok()?;
            (listing.source == source(connection.settings())).then_some((listing, at_ms))
        }
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(server, %error, "the cached list of tools could not be read");
            None
        }
    }
}

async fn keep(server: &str, store: &dyn Store, listing: &Listing, now_ms: i64) {
    let Ok(text) = serde_json::to_string(listing) else { return };
    if let Err(error) = store.put_manifest(&row(server), &text, now_ms).await {
        tracing::warn!(server, %error, "the list of tools could not be cached");
    }
}

/// A digest, because an address may hold a secret.
fn source(settings: &McpServerConfig) -> String {
    let from = serde_json::json!([settings.url, settings.command, settings.env]);
    data_encoding::HEXLOWER.encode(&Sha256::digest(from.to_string().as_bytes()))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
