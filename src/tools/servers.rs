//! The tools of an agent: the built-in ones and those of its tool servers, whatever protocol these speak.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::{RESERVED_NAMES, Registry, Tool, ToolSet, ToolSource};
use crate::config::{AgentConfig, Config};
use crate::message::ThreadId;

/// What one tool server offers.
pub struct Offer {
    /// The server's name in the configuration.
    pub server: String,
    /// Its tools.
    pub tools: Vec<Arc<dyn Tool>>,
    /// One line, fit for the user, for each of its tools that is left out.
    pub problems: Vec<String>,
}

/// The configured tool servers of one protocol.
#[async_trait]
pub trait ToolServers: Send + Sync {
    /// Whether a server of that name is one of them.
    fn has(&self, server: &str) -> bool;

    /// What `server` offers: the same `Arc` again while nothing has changed. The error is one line for the user:
    /// which server, what is wrong, what to do.
    async fn offer(&self, server: &str) -> Result<Arc<Offer>, String>;
}

type Part = Result<Arc<Offer>, String>;
/// A tool with the server that offers it.
type Offered<'a> = (&'a str, &'a Arc<dyn Tool>);

/// Built-in tools and those of tool servers as one source. One a process.
pub struct AgentTools {
    config: Arc<Config>,
    builtins: Vec<Arc<dyn Tool>>,
    /// The same for agents that share something with their user's application.
    sharing: Vec<Arc<dyn Tool>>,
    protocols: Vec<Arc<dyn ToolServers>>,
    built: Mutex<BTreeMap<String, Built>>,
}

/// The last set of an agent, and what it was made of: the same parts make it again without compiling schemas.
#[derive(Clone)]
struct Built {
    parts: Vec<Part>,
    set: ToolSet,
}

impl AgentTools {
    /// A source over the servers of `config`; `builtins` beat any server's tool of the same name.
    pub fn new(
        config: Arc<Config>,
        builtins: Vec<Arc<dyn Tool>>,
        protocols: Vec<Arc<dyn ToolServers>>,
    ) -> Self {
        Self { config, builtins, sharing: Vec::new(), protocols, built: Mutex::default() }
    }

    /// With tools that only agents with `shared_state` have.
    #[must_use]
    pub fn sharing(self, tools: Vec<Arc<dyn Tool>>) -> Self {
        Self { sharing: tools, ..self }
    }

    /// Those of an agent that need no server.
    fn own(&self, shares: bool) -> Vec<Arc<dyn Tool>> {
        let sharing = self.sharing.iter().filter(|_| shares);
        self.builtins.iter().chain(sharing).cloned().collect()
    }

    async fn part(&self, server: &str) -> Part {
        match self.protocols.iter().find(|protocol| protocol.has(server)) {
            Some(protocol) => protocol.offer(server).await,
            None => Err(format!("Tool server {server}: it is not configured; add [tool_servers.{server}].")),
        }
    }

    fn build(&self, parts: &[Part], shares: bool) -> ToolSet {
        let mut problems: Vec<String> = Vec::new();
        let mut offered: BTreeMap<&str, Vec<Offered>> = BTreeMap::new();
        for part in parts {
            match part {
                Err(problem) => problems.push(problem.clone()),
                Ok(offer) => {
                    problems.extend(offer.problems.iter().cloned());
                    for tool in &offer.tools {
                        offered.entry(&tool.definition().name).or_default().push((&offer.server, tool));
                    }
                }
            }
        }
        let own = self.own(shares);
        let builtins: Vec<&str> = own.iter().map(|tool| tool.definition().name.as_str()).collect();
        let mut tools = own.clone();
        for (name, offers) in offered {
            let servers: Vec<&str> = offers.iter().map(|(server, _)| *server).collect();
            if builtins.contains(&name) || RESERVED_NAMES.contains(&name) {
                problems.push(format!(
                    "Tool server {}: its tool {name} is left out, since dormouse has that name itself; rename it.",
                    servers.join(" and ")
                ));
                continue;
            }
            match offers.as_slice() {
                [(_, tool)] => tools.push(Arc::clone(tool)),
                _ => problems.push(format!(
                    "Tool servers {} all offer a tool {name}, so none of them is used; rename it, or take one of \
                     them out of the agent's tool_servers.",
                    servers.join(" and ")
                )),
            }
        }
        ToolSet { registry: Registry::new(tools), problems }
    }
}

#[async_trait]
impl ToolSource for AgentTools {
    /// What a server offers is cached a server, not a session: all threads see its tools change together.
    async fn tools(&self, agent: &str, _root: &ThreadId) -> ToolSet {
        // A set: a server that is named twice must not clash with itself.
        let config = self.config.agent(agent);
        let shares = config.as_ref().is_ok_and(|config| config.shared_state.unwrap_or(false));
        let servers: BTreeSet<String> = match config {
            Ok(AgentConfig { tool_servers: Some(named), .. }) => named.into_iter().collect(),
            Ok(AgentConfig { tool_servers: None, .. }) => {
                self.config.tool_servers.keys().chain(self.config.mcp_servers.keys()).cloned().collect()
            }
            Err(error) => {
                let registry = Registry::new(self.builtins.clone());
                return ToolSet { registry, problems: vec![error.to_string()] };
            }
        };
        let parts: Vec<_> = futures::future::join_all(servers.iter().map(|server| self.part(server))).await;
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        match built.get(agent) {
            Some(last) if same(&last.parts, &parts) => last.set.clone(),
            Some(_) | None => {
                let set = self.build(&parts, shares);
                built.insert(agent.to_owned(), Built { parts, set: set.clone() });
                set
            }
        }
    }
}

fn same(a: &[Part], b: &[Part]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|pair| match pair {
            (Ok(a), Ok(b)) => Arc::ptr_eq(a, b),
            (Err(a), Err(b)) => a == b,
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        })
}
