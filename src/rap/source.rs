//! The tools of an agent: the built-in ones and those of its tool servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::client::RapClient;
use super::discovery::{Discovery, Toolset};
use super::token::CallbackTokens;
use super::tool::RapTool;
use crate::config::{AgentConfig, Config};
use crate::message::ThreadId;
use crate::store::Store;
use crate::tools::{RESERVED_NAMES, Registry, Tool, ToolDefinition, ToolSet, ToolSource};

/// Built-in tools and discovered ones as one source. One a process.
pub struct RapTools {
    client: RapClient,
    discovery: Discovery,
    tokens: CallbackTokens,
    builtins: Vec<Arc<dyn Tool>>,
    built: Mutex<BTreeMap<String, Built>>,
}

/// The last set of an agent, and what it was made of: the same parts make it again without compiling schemas.
#[derive(Clone)]
struct Built {
    parts: Vec<Result<Arc<Toolset>, String>>,
    set: ToolSet,
}

impl RapTools {
    /// A source over the servers of `config`. `http` should be [`http_client`](super::http_client), which
    /// follows no redirects; `builtins` beat any discovered tool of the same name.
    pub fn new(
        config: Arc<Config>,
        store: Arc<dyn Store>,
        tokens: CallbackTokens,
        http: reqwest::Client,
        builtins: Vec<Arc<dyn Tool>>,
    ) -> Self {
        let client = RapClient::new(config, http);
        let discovery = Discovery::new(client.clone(), store);
        Self { client, discovery, tokens, builtins, built: Mutex::default() }
    }

    /// For notices and answers.
    pub fn client(&self) -> &RapClient {
        &self.client
    }

    fn build(&self, parts: &[Result<Arc<Toolset>, String>]) -> ToolSet {
        let mut problems: Vec<String> =
            parts.iter().filter_map(|part| part.as_ref().err()).cloned().collect();
        let builtins: Vec<&str> = self.builtins.iter().map(|tool| tool.definition().name.as_str()).collect();
        let mut offers: BTreeMap<&str, Vec<(&Toolset, &ToolDefinition)>> = BTreeMap::new();
        for set in parts.iter().flatten() {
            for definition in &set.tools {
                offers.entry(&definition.name).or_default().push((set, definition));
            }
        }
        let mut tools = self.builtins.clone();
        for (name, offers) in offers {
            let servers: Vec<&str> = offers.iter().map(|(set, _)| set.server.as_str()).collect();
            if builtins.contains(&name) || RESERVED_NAMES.contains(&name) {
                problems.push(format!(
                    "Tool server {}: its tool {name} is left out, since dormouse has that name itself; rename it.",
                    servers.join(" and ")
                ));
                continue;
            }
            match offers.as_slice() {
                [(set, definition)] => tools.push(self.tool(set, definition)),
                _ => problems.push(format!(
                    "Tool servers {} all offer a tool {name}, so none of them is used; rename it, or take one of \
                     them out of the agent's tool_servers.",
                    servers.join(" and ")
                )),
            }
        }
        ToolSet { registry: Registry::new(tools), problems }
    }

    fn tool(&self, set: &Toolset, definition: &ToolDefinition) -> Arc<dyn Tool> {
        Arc::new(RapTool {
            definition: definition.clone(),
            server: set.server.clone(),
            endpoint: set.endpoint.clone(),
            client: self.client.clone(),
            tokens: self.tokens.clone(),
        })
    }
}

#[async_trait]
impl ToolSource for RapTools {
    /// Manifests are cached a server, not a session: all threads see a server's tools change together, within
    /// [`MANIFEST_TTL`](super::discovery::MANIFEST_TTL).
    async fn tools(&self, agent: &str, _root: &ThreadId) -> ToolSet {
        let config = self.client.config();
        // A set: a server that is named twice must not clash with itself.
        let servers: BTreeSet<String> = match config.agent(agent) {
            Ok(AgentConfig { tool_servers: Some(named), .. }) => named.into_iter().collect(),
            Ok(AgentConfig { tool_servers: None, .. }) => config.tool_servers.keys().cloned().collect(),
            Err(error) => {
                let registry = Registry::new(self.builtins.clone());
                return ToolSet { registry, problems: vec![error.to_string()] };
            }
        };
        let parts: Vec<_> =
            futures::future::join_all(servers.iter().map(|server| self.discovery.toolset(server))).await;
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        match built.get(agent) {
            Some(last) if same(&last.parts, &parts) => last.set.clone(),
            Some(_) | None => {
                let set = self.build(&parts);
                built.insert(agent.to_owned(), Built { parts, set: set.clone() });
                set
            }
        }
    }
}

fn same(a: &[Result<Arc<Toolset>, String>], b: &[Result<Arc<Toolset>, String>]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|pair| match pair {
            (Ok(a), Ok(b)) => Arc::ptr_eq(a, b),
            (Err(a), Err(b)) => a == b,
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        })
}
