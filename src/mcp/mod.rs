//! MCP, the Model Context Protocol: tools of servers over streamable HTTP, and over stdio on one machine. The
//! protocol itself is the `rmcp` crate's; dormouse is its client, without a proxy process between.
//!
//! | file | what it holds |
//! |---|---|
//! | `connection` | one server's session: made when it is needed, kept, made anew when it is gone |
//! | `http` | reqwest as rmcp's HTTP client |
//! | `process` | a server as a process |
//! | `failure` | how a request failed, in words that may be shown |
//! | `listing` | what a server offers: checked, cached with the last good copy |
//! | `tool` | a listed tool as a [`Tool`](crate::tools::Tool) |
//! | `result` | what a call returned, as content parts |
//! | `bridge` | calls that outlast a slice: run beside it, answered through the input queue |
//!
//! A call of a server is *synchronous*: it runs inside the slice, after the commit that holds it, within the
//! server's `timeout_ms`. With `background` it is *asynchronous*: the slice ends, and the result comes as the next
//! message. That needs a process which stays, so it is there on one machine only; on Lambda, what takes longer than a
//! synchronous call may belongs behind a RAP server.
//!
//! An MCP server gets no id of the call, so it cannot tell a repeat: a call that may have run before a crash runs
//! again only if the tool's annotations say that this is safe, else it is answered as lost.

mod bridge;
mod connection;
mod failure;
mod http;
mod listing;
#[cfg(feature = "local")]
mod process;
mod result;
mod tool;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use self::bridge::Bridge;
use self::connection::Connection;
use self::listing::Listings;
use crate::config::Config;
use crate::queue::InputSender;
use crate::store::Store;
use crate::tools::{Offer, ToolServers};

/// The configured MCP servers. One a process; nothing is connected to or started before a tool is needed.
pub struct McpServers {
    servers: BTreeMap<String, Server>,
    store: Arc<dyn Store>,
    bridge: Arc<Bridge>,
}

struct Server {
    connection: Arc<Connection>,
    listings: Listings,
}

impl McpServers {
    /// The servers of `config`. `http` should be [`http_client`](crate::rap::http_client), which follows no
    /// redirects; results of background calls go to `input`.
    pub fn new(
        config: &Config,
        store: Arc<dyn Store>,
        http: reqwest::Client,
        input: Arc<dyn InputSender>,
    ) -> Self {
        let servers = config.mcp_servers.iter().map(|(name, settings)| {
            let connection = Arc::new(Connection::new(name, settings.clone(), http.clone()));
            (name.clone(), Server { connection, listings: Listings::default() })
        });
        Self { servers: servers.collect(), store, bridge: Arc::new(Bridge::new(input)) }
    }

    /// Answers the background calls that a process before this one left behind. Call it once at the start, before
    /// inputs are taken.
    pub async fn answer_lost_calls(&self) {
        let background =
            |name: &str| self.servers.get(name).is_some_and(|server| server.connection.settings().background);
        if self.servers.keys().any(|name| background(name)) {
            self.bridge.answer_lost_calls(self.store.as_ref(), background).await;
        }
    }

    /// Ends background calls, sessions and processes. What was under way is answered as lost at the next start.
    pub async fn close(&self) {
        self.bridge.stop();
        futures::future::join_all(self.servers.values().map(|server| server.connection.close())).await;
    }
}

#[async_trait]
impl ToolServers for McpServers {
    fn has(&self, server: &str) -> bool {
        self.servers.contains_key(server)
    }

    async fn offer(&self, server: &str) -> Result<Arc<Offer>, String> {
        match self.servers.get(server) {
            Some(found) => found.listings.offer(&found.connection, self.store.as_ref(), &self.bridge).await,
            None => Err(format!("MCP server {server}: it is not configured; add [mcp_servers.{server}].")),
        }
    }
}
