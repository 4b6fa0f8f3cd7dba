//! Tools that answer early, late, twice, wrongly or never, and what their subscriptions bring.

use std::sync::Arc;

use async_trait::async_trait;
use dormouse::message::{
    CallId, ContentPart, DedupId, InputContent, InputMessage, OAuthRequired, Synthetic, ThreadId,
    UserChoiceRequired,
};
use dormouse::tools::{
    Execution, Invocation, Registry, Rerun, Tool, ToolDefinition, ToolError, ToolOutput, ToolSet, ToolSource,
    Waiting,
};

use crate::plan::{Plan, Schedule};
use crate::queue::Window;
use crate::rng::{Rng, hash};
use crate::sent::Kind;
use crate::sim::{Later, Sim, World};

struct Fake {
    definition: ToolDefinition,
    execution: Execution,
    world: World,
}

/// The tools of every session; now and then a server is down.
pub struct Source {
    world: World,
    all: Registry,
    some: Registry,
}

impl Source {
    pub fn new(world: &World) -> Self {
        let tool = |name: &str, execution| {
            let input_schema =
                serde_json::json!({"type": "object", "properties": {"text": {"type": "string"}}});
            let definition = ToolDefinition {
                name: name.to_owned(),
                description: format!("the tool {name}"),
                input_schema,
            };
            Arc::new(Fake { definition, execution, world: world.clone() }) as Arc<dyn Tool>
        };
        let active = Execution::Asynchronous(Waiting::Active);
        let all = [
            tool("echo", active),
            tool("nap", Execution::Asynchronous(Waiting::Passive)),
            tool("add", Execution::Synchronous(Rerun::Safe)),
            tool("pay", Execution::Synchronous(Rerun::Never)),
            tool("other", active),
        ];
        Self { world: world.clone(), some: Registry::new(all[..4].iter().cloned()), all: Registry::new(all) }
    }
}

#[async_trait]
impl ToolSource for Source {
    async fn tools(&self, _agent: &str, _root: &ThreadId) -> ToolSet {
        self.world.pause().await;
        let rate = |plan: &Plan| if plan.schedule == Schedule::Free { plan.tools / 5 } else { 0 };
        match self.world.strikes(rate, "a tool server is down") {
            true => ToolSet { registry: self.some.clone(), problems: vec!["other is down".to_owned()] },
            false => ToolSet { registry: self.all.clone(), problems: Vec::new() },
        }
    }
}

#[async_trait]
impl Tool for Fake {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        self.execution
    }

    fn server(&self) -> Option<&str> {
        matches!(self.execution, Execution::Asynchronous(_)).then_some("fake")
    }

    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        self.world.pause().await;
        let accepted = self.world.with(|sim| sim.dispatch(call));
        self.world.pause().await;
        accepted
    }

    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        self.world.pause().await;
        let fails = self.world.with(|sim| {
            sim.note(|| format!("  run {} {}", call.name, call.call));
            sim.left(call);
            let runs = sim.ran.entry(call.call.clone()).or_default();
            *runs += 1;
            if *runs > 1 && self.execution == Execution::Synchronous(Rerun::Never) {
                sim.broken(format!("I2: {} ran twice", call.call));
            }
            hash(sim.seed, ["fails", call.call.as_str()]) % 10 == 0
        });
        self.world.pause().await;
        match fails {
            true => Err(ToolError::Failed("it broke".to_owned())),
            false => Ok(ToolOutput::text(format!("ran {}", call.arguments))),
        }
    }

    async fn cancel(&self, thread: &ThreadId, call: &CallId) {
        self.world.pause().await;
        self.world.with(|sim| {
            sim.note(|| format!("  cancel {call}"));
            sim.cancel(thread, call);
        });
        self.world.pause().await;
    }
}

impl Sim {
    /// Takes a call, and decides what its tool will do about it.
    fn dispatch(&mut self, call: &Invocation) -> Result<(), ToolError> {
        self.note(|| format!("  dispatch {} {}", call.name, call.call));
        self.left(call);
        self.stats.dispatches += 1;
        let times = self.dispatched.entry(call.call.clone()).or_default();
        *times += 1;
        let times = *times;
        // Decided by the call alone, so that a world with crashes has the same tools.
        let orderly = self.plan.schedule == Schedule::Orderly;
        let nth = if orderly { 1 } else { times };
        let mut rng = Rng::new(hash(self.seed, ["tool", call.call.as_str(), &nth.to_string()]));
        if rng.chance(self.plan.tools) {
            return Err(ToolError::Failed("the tool answered 404".to_owned()));
        }
        if times > 1 && (orderly || rng.chance(500)) {
            return Ok(());
        }
        self.answer(&mut rng, call);
        if rng.chance(self.plan.answers) {
            self.answer_oddly(&mut rng, call);
        }
        Ok(())
    }

    fn answer(&mut self, rng: &mut Rng, call: &Invocation) {
        let odd = self.plan.answers / 2;
        if rng.chance(odd) {
            return; // Never.
        }
        let subscribes = rng.chance(self.plan.events);
        let mut result = result(&call.thread, &call.call, ["fine", "fine", "", "Error: no"][rng.below(4)]);
        result.subscription = subscribes;
        let dedup = DedupId::new(format!("result-{}", call.call));
        if subscribes {
            let events = rng.below(5);
            for n in 0..events {
                self.event(rng, call, n, n + 1 == events);
            }
        }
        if rng.chance(odd) {
            let second = DedupId::new(format!("again-{}", call.call));
            self.later(result.clone(), second, Window::Kept);
        }
        if self.plan.schedule == Schedule::Free && rng.chance(300) {
            // Before the dispatching slice has ended (F62).
            let kind = Kind::of(&result);
            self.send(&result, &dedup, kind, Window::Kept);
        } else {
            self.later(result, dedup, Window::Kept);
        }
    }

    fn answer_oddly(&mut self, rng: &mut Rng, call: &Invocation) {
        let id = |kind: &str| DedupId::new(format!("{kind}-{}", call.call));
        match rng.below(6) {
            0 => {
                let stray = result(&call.thread, &CallId::from("c0-999-nobody"), "stray");
                self.later(stray, id("stray"), Window::Kept);
            }
            1 => {
                let other = ThreadId::new(format!("t{}", rng.below(self.plan.threads + 1)));
                self.later(result(&other, &call.call, "elsewhere"), id("foreign"), Window::Kept);
            }
            2 => {
                let again = result(&call.thread, &call.call, "fine");
                self.later(again, id("result"), Window::Passed);
            }
            3 => {
                let consent = InputContent::OAuthRequired(OAuthRequired {
                    id: call.call.clone(),
                    call_id: None,
                    auth_url: "https://consent.example".to_owned(),
                });
                self.later(InputMessage::plain(call.thread.clone(), consent), id("consent"), Window::Kept);
            }
            4 => {
                let choice = InputContent::UserChoiceRequired(UserChoiceRequired {
                    id: call.call.clone(),
                    call_id: None,
                    prompt: "which?".to_owned(),
                    choices: vec!["a".to_owned(), "b".to_owned()],
                    default: 0,
                    response_url: "https://answer.example".to_owned(),
                });
                self.later(InputMessage::plain(call.thread.clone(), choice), id("choice"), Window::Kept);
            }
            _ => self.event(rng, call, 9, false),
        }
    }

    fn event(&mut self, rng: &mut Rng, call: &Invocation, n: usize, last: bool) {
        let mut event = result(&call.thread, &call.call, &format!("event {n}"));
        event.synthetic = Some(Synthetic::SubscriptionEvent {
            tool_call_id: call.call.clone(),
            associative: rng.chance(700),
            r#final: last && rng.chance(500),
        });
        self.later(event, DedupId::new(format!("event-{n}-{}", call.call)), Window::Kept);
    }

    fn later(&mut self, message: InputMessage, dedup: DedupId, window: Window) {
        self.later.push(Later { message, dedup, window });
    }
}

fn result(thread: &ThreadId, call: &CallId, text: &str) -> InputMessage {
    InputMessage::tool_result(thread.clone(), call.clone(), vec![ContentPart::text(text)])
}
