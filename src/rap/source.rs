//! The configured RAP servers as [`ToolServers`]: their manifests as tools.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::client::RapClient;
use super::discovery::{Discovery, Toolset};
use super::token::CallbackTokens;
use super::tool::RapTool;
use crate::config::Config;
use crate::queue::TimerSender;
use crate::store::Store;
use crate::tools::{Offer, Tool, ToolServers};

/// The RAP servers of the configuration. One a process.
pub struct RapTools {
    client: RapClient,
    discovery: Discovery,
    tokens: CallbackTokens,
    timers: Option<Arc<dyn TimerSender>>,
    /// What was made of each server's last manifest.
    made: Mutex<BTreeMap<String, Made>>,
}

struct Made {
    of: Arc<Toolset>,
    offer: Arc<Offer>,
}

impl RapTools {
    /// The servers of `config`. `http` should be [`http_client`](super::http_client), which follows no redirects.
    pub fn new(
        config: Arc<Config>,
        store: Arc<dyn Store>,
        tokens: CallbackTokens,
        http: reqwest::Client,
    ) -> Self {
        Self::over(RapClient::new(config, http), store, tokens)
    }

    /// The servers of the client's configuration.
    pub fn over(client: RapClient, store: Arc<dyn Store>, tokens: CallbackTokens) -> Self {
        let discovery = Discovery::new(client.clone(), store);
        Self { client, discovery, tokens, timers: None, made: Mutex::default() }
    }

    /// With what sets the time limits of calls; without it a server that has one takes no calls.
    pub fn with_timers(self, timers: Option<Arc<dyn TimerSender>>) -> Self {
        Self { timers, ..self }
    }

    /// For notices and answers.
    pub fn client(&self) -> &RapClient {
        &self.client
    }

    fn make(&self, set: &Toolset) -> Offer {
        let tool = |definition: &crate::tools::ToolDefinition| -> Arc<dyn Tool> {
            Arc::new(RapTool {
                definition: definition.clone(),
                server: set.server.clone(),
                endpoint: set.endpoint.clone(),
                destructive: set.destructive.contains(&definition.name),
                client: self.client.clone(),
                tokens: self.tokens.clone(),
                timers: self.timers.clone(),
            })
        };
        let tools = set.tools.iter().map(tool).collect();
        Offer { server: set.server.clone(), tools, problems: Vec::new() }
    }
}

#[async_trait]
impl ToolServers for RapTools {
    fn has(&self, server: &str) -> bool {
        self.client.config().tool_servers.contains_key(server)
    }

    /// A manifest counts for [`MANIFEST_TTL`](super::discovery::MANIFEST_TTL).
    async fn offer(&self, server: &str) -> Result<Arc<Offer>, String> {
        let set = self.discovery.toolset(server).await?;
        // Held for map operations only, which do not panic.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match made.get(server) {
            Some(last) if Arc::ptr_eq(&last.of, &set) => Ok(last.offer.clone()),
            Some(_) | None => {
                let offer = Arc::new(self.make(&set));
                made.insert(server.to_owned(), Made { of: set, offer: offer.clone() });
                Ok(offer)
            }
        }
    }
}
