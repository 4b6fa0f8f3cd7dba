//! A model that misbehaves in every way a provider may. What it answers is decided by the request's content, so
//! that asking again gives the same answer; whether the wire holds is decided by the world's chance.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::ContentPart;
use dormouse::model::{
    ErrorClass, ModelError, ModelEvent, ModelInfo, ModelProvider, ModelStream, StopReason, Usage,
};
use dormouse::slice::{AgentProfile, Agents, Summaries};
use futures::{StreamExt, stream};

use crate::plan::Schedule;
use crate::provider_rules;
use crate::rng::{Rng, hash};
use crate::sim::World;

/// From here on the model comes to an end, so that a conversation does.
const LONG: usize = 30;
/// Names and arguments of calls, good and bad.
const CALLS: [(&str, &str); 14] = [
    ("echo", r#"{"text":"a"}"#),
    ("echo", "{}"),
    ("echo", ""),
    ("other", r#"{"text":"b","n":1.0}"#),
    ("other", "{}"),
    ("nap", "{}"),
    ("nap", r#"{"text":"c"}"#),
    ("add", r#"{"text":"1"}"#),
    ("pay", r#"{"text":"2"}"#),
    ("nothing", "{}"),
    ("receive_event__injected", "{}"),
    ("echo", r#"{"text":7}"#),
    ("echo", "no json"),
    ("add", "[1]"),
];

pub struct Model(World);

pub struct OneAgent(Arc<Model>);

impl OneAgent {
    pub fn new(world: &World) -> Self {
        Self(Arc::new(Model(world.clone())))
    }
}

impl Agents for OneAgent {
    fn default_agent(&self) -> &str {
        "default"
    }

    fn knows(&self, agent: &str) -> bool {
        agent == "default"
    }

    fn profile(&self, _agent: &str) -> Result<AgentProfile, ModelError> {
        let model: Arc<dyn ModelProvider> = self.0.clone();
        Ok(AgentProfile {
            model,
            system_prompt: Some("be brief".to_owned()),
            max_output_tokens: None,
            prune: true,
            compaction: self.0.info().context_window.map(|_| Summaries::by(self.0.clone())),
        })
    }
}

type Response = Vec<Result<ModelEvent, ModelError>>;

#[async_trait]
impl ModelProvider for Model {
    fn info(&self) -> ModelInfo {
        ModelInfo { context_window: self.0.with(|sim| sim.plan.window), ..ModelInfo::default() }
    }

    fn model(&self) -> &str {
        "simulated"
    }

    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let mut response = self.0.with(|sim| {
            sim.stats.requests += 1;
            sim.hold(provider_rules::judge(&request).map_err(|e| format!("I5: {e}")));
            let mut rng = Rng::new(digest(sim.seed, &request));
            let mut response = match (is_summary(&request), sim.plain) {
                (true, plain) => summary(&mut rng, plain),
                (false, true) => text("a plain answer"),
                (false, false) => respond(&mut rng, &request),
            };
            if let Some(window) = sim.plan.window {
                // Half of it is the answer's. What an event or a marker is worded as is a little more than what is stored.
                let size = size(&request);
                if size > window / 2 + window / 20 && !is_summary(&request) {
                    sim.broken(format!("C24: a request of {size} tokens, the window has {window}"));
                }
                count(&mut response, size);
            }
            response
        });
        if self.0.with(|sim| sim.plan.schedule == Schedule::Orderly) {
            // What a crash answers as lost makes another end.
            for event in response.iter_mut().flatten() {
                if let ModelEvent::ToolCall { name, .. } = event
                    && name == "pay"
                {
                    *name = "add".to_owned();
                }
            }
        }
        self.0.pause().await;
        let hangs = self.bend(&mut response);
        self.0.with(|sim| sim.note(|| format!("  model: {response:?}{}", if hangs { " …" } else { "" })));
        if let [Err(_)] = &response[..]
            && let Some(Err(e)) = response.pop()
        {
            return Err(e);
        }
        let world = self.0.clone();
        let events = stream::iter(response).then(move |event| {
            let world = world.clone();
            async move {
                world.pause().await;
                event
            }
        });
        Ok(match hangs {
            true => events.chain(stream::pending()).boxed(),
            false => events.boxed(),
        })
    }
}

impl Model {
    /// What the wire does to a response; says whether it falls silent.
    fn bend(&self, response: &mut Response) -> bool {
        if !self.0.strikes(|plan| plan.model, "the model's wire") {
            return false;
        }
        self.0.with(|sim| {
            let at = sim.rng.below(response.len() + 1);
            let class = match sim.rng.below(8) {
                0 => ErrorClass::Throttled { retry_after: None },
                1 => ErrorClass::Throttled { retry_after: Some(Duration::from_secs(1)) },
                2 => ErrorClass::Throttled { retry_after: Some(Duration::from_secs(7)) },
                3 | 4 => {
                    // A cut: no terminal event.
                    response.truncate(at.min(response.len().saturating_sub(1)));
                    return sim.rng.chance(100);
                }
                _ => ErrorClass::Transient,
            };
            response.truncate(at);
            response.retain(|event| !matches!(event, Ok(ModelEvent::End { .. }) | Err(_)));
            response.push(Err(ModelError::new(class, "the wire broke")));
            false
        })
    }
}

/// The newest messages and how many there are tell requests apart.
fn digest(seed: u64, request: &ModelRequest) -> u64 {
    let mut parts: Vec<String> = vec![request.messages.len().to_string()];
    for message in request.messages.iter().rev().take(2) {
        match message {
            RequestMessage::User(content) => parts.push(ContentPart::join_text(content)),
            RequestMessage::Assistant(said) => {
                parts.extend(said.text.clone());
                parts.extend(said.calls.iter().map(|call| call.id.as_str().to_owned()));
            }
            RequestMessage::ToolResults(results) => {
                parts.extend(results.iter().map(|r| format!("{}{}", r.id, ContentPart::join_text(&r.parts))));
            }
        }
    }
    hash(seed, parts.iter().map(String::as_str))
}

fn is_summary(request: &ModelRequest) -> bool {
    request.system.as_deref().is_some_and(|system| system.starts_with("You summarise a conversation"))
}

/// Tokens of a request's texts.
fn size(request: &ModelRequest) -> u64 {
    let bytes = |message: &RequestMessage| match message {
        RequestMessage::User(content) => ContentPart::join_text(content).len(),
        RequestMessage::Assistant(said) => {
            let calls = said.calls.iter().map(|call| call.name.len() + call.arguments.len());
            said.text.as_ref().map_or(0, String::len) + calls.sum::<usize>()
        }
        RequestMessage::ToolResults(results) => {
            results.iter().map(|result| ContentPart::join_text(&result.parts).len()).sum()
        }
    };
    request.messages.iter().map(bytes).sum::<usize>() as u64 / 4
}

/// What a provider counts is what there is.
fn count(response: &mut Response, size: u64) {
    let said = |event: &ModelEvent| match event {
        ModelEvent::Text(text) | ModelEvent::ReasoningText(text) => text.len(),
        ModelEvent::ToolCall { name, arguments, .. } => name.len() + arguments.len(),
        _ => 0,
    };
    let bytes: usize = response.iter().flatten().map(said).sum();
    for event in response.iter_mut().flatten() {
        if let ModelEvent::End { usage: Some(usage), .. } = event {
            (usage.input, usage.output) = (size, bytes.div_ceil(4) as u64);
        }
    }
}

/// A summary, now and then one that is none.
fn summary(rng: &mut Rng, plain: bool) -> Response {
    let fails = |class| vec![Err(ModelError::new(class, "by content"))];
    let good = format!("Goal: to go on. {}", "It went on. ".repeat(20 + rng.below(60)));
    match if plain { 99 } else { rng.below(100) } {
        0..=4 => fails(ErrorClass::Overflow),
        5..=9 => fails(ErrorClass::Refused),
        10..=12 => fails(ErrorClass::Fatal),
        13..=17 => vec![say("half of it"), end(StopReason::MaxTokens)],
        18..=20 => vec![say("I will not"), end(StopReason::Refusal)],
        21 | 22 => vec![end(StopReason::EndTurn)],
        23..=25 => vec![calls(rng).remove(0), end(StopReason::ToolUse)],
        26..=29 => vec![say(&"far too long ".repeat(6_000)), end(StopReason::EndTurn)],
        _ => text(&good),
    }
}

fn end(stop: StopReason) -> Result<ModelEvent, ModelError> {
    Ok(ModelEvent::End { stop, usage: Some(Usage { input: 10, output: 5, cached: 0 }) })
}

fn say(text: &str) -> Result<ModelEvent, ModelError> {
    Ok(ModelEvent::Text(text.to_owned()))
}

fn text(text: &str) -> Response {
    vec![say(text), end(StopReason::EndTurn)]
}

fn respond(rng: &mut Rng, request: &ModelRequest) -> Response {
    let mut events = Vec::new();
    if rng.chance(150) {
        events.push(Ok(ModelEvent::ReasoningText("hm".to_owned())));
        if rng.chance(700) {
            let signature = Some("sig".to_owned());
            events.push(Ok(ModelEvent::ReasoningBlock { signature, provider: None }));
        }
    }
    let fails = |class| vec![Err(ModelError::new(class, "by content"))];
    let long = request.messages.len() > LONG;
    match rng.below(100) {
        0 | 1 => return fails(ErrorClass::Refused),
        2 | 3 => return fails(ErrorClass::Overflow),
        4 => return fails(ErrorClass::Fatal),
        5..=8 => events.push(end(StopReason::EndTurn)),
        9 | 10 => events.extend([say(" \n"), end(StopReason::EndTurn)]),
        11 | 12 => events.extend([say("I will not"), end(StopReason::Refusal)]),
        13 => events.push(end(StopReason::Refusal)),
        14 | 15 => events.extend([say("and then"), end(StopReason::MaxTokens)]),
        16 | 17 => {
            events.extend(calls(rng));
            events.push(end(StopReason::MaxTokens));
        }
        18 => events.extend([say("odd"), end(StopReason::Other("odd".to_owned()))]),
        19..=64 if !long => {
            if rng.chance(250) {
                events.push(say("let me see"));
            }
            events.extend(calls(rng));
            if rng.chance(50) {
                events.push(say("after the call"));
            }
            events.push(end(StopReason::ToolUse));
        }
        n => {
            events.extend([say("answer "), say(&n.to_string())]);
            events.push(end(StopReason::EndTurn));
        }
    }
    events
}

fn calls(rng: &mut Rng) -> Vec<Result<ModelEvent, ModelError>> {
    let number = rng.pick(&[1, 1, 1, 1, 2, 2, 3, 4]);
    // Mostly good ones.
    let among = if rng.chance(250) { CALLS.len() } else { 9 };
    (0..number)
        .map(|_| {
            let (name, arguments) = CALLS[rng.below(among)];
            Ok(ModelEvent::ToolCall {
                provider_id: rng.pick(&["", "call_0", "call_0", "call_1"]).to_owned(),
                name: name.to_owned(),
                arguments: arguments.to_owned(),
                signature: None,
            })
        })
        .collect()
}
