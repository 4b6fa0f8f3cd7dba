//! A server that speaks Anthropic's Messages API, as far as it is documented of compaction on demand: the beta header, what
//! must be absent, one signed block that goes first and comes back as it was given. It refuses what the API refuses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use futures::{StreamExt, stream};
use serde_json::{Value, json};

pub const BETA: &str = "compact-2026-09-04";

/// What goes wrong with the next request of its kind.
#[derive(Clone)]
pub enum Fault {
    /// A status, the type of the error, and its code.
    Refuse(u16, &'static str, &'static str),
    /// The same with a message instead of a code.
    Say(u16, String),
    /// A compaction that ends so, without a block.
    Stop(&'static str),
    /// A block that is none: these members replace its own.
    Block(Value),
    /// Another text than usual.
    Text(String),
    /// The stream ends in the middle.
    Cut,
    /// The stream begins, and nothing more comes.
    Silent,
}

#[derive(Clone)]
pub struct Received {
    pub beta: Option<String>,
    pub body: Value,
}

impl Received {
    pub fn compacts(&self) -> bool {
        self.body.get("compaction").is_some()
    }

    /// The checkpoint that it begins with.
    pub fn block(&self) -> Option<&Value> {
        let first = &self.body["messages"][0]["content"][0];
        (first["type"] == "compaction").then_some(first)
    }

    /// Everything that its messages say.
    pub fn text(&self) -> String {
        self.body["messages"].to_string()
    }

    /// It asks for a portable summary.
    pub fn is_summary(&self) -> bool {
        self.body["system"].to_string().contains("You summarise a conversation")
    }
}

#[derive(Default)]
struct Script {
    received: Vec<Received>,
    issued: Vec<Value>,
    compaction_faults: VecDeque<Fault>,
    message_faults: VecDeque<Fault>,
    /// Of every portable summary.
    summary_fault: Option<Fault>,
}

#[derive(Clone)]
pub struct Api {
    pub url: String,
    script: Arc<Mutex<Script>>,
}

impl Api {
    pub async fn start() -> Self {
        let script = Arc::<Mutex<Script>>::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(script.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, script }
    }

    pub fn received(&self) -> Vec<Received> {
        self.script.lock().unwrap().received.clone()
    }

    pub fn compactions(&self) -> Vec<Received> {
        self.received().into_iter().filter(Received::compacts).collect()
    }

    /// What is no compaction and no portable summary.
    pub fn messages(&self) -> Vec<Received> {
        self.received().into_iter().filter(|one| !one.compacts() && !one.is_summary()).collect()
    }

    pub fn summaries(&self) -> usize {
        self.received().iter().filter(|one| one.is_summary()).count()
    }

    /// Blocks that it has made, oldest first.
    pub fn issued(&self) -> Vec<Value> {
        self.script.lock().unwrap().issued.clone()
    }

    pub fn fail_compaction(&self, faults: impl IntoIterator<Item = Fault>) {
        self.script.lock().unwrap().compaction_faults.extend(faults);
    }

    pub fn fail_message(&self, faults: impl IntoIterator<Item = Fault>) {
        self.script.lock().unwrap().message_faults.extend(faults);
    }

    /// Every portable summary from here on ends so.
    pub fn summaries_fail(&self, fault: Option<Fault>) {
        self.script.lock().unwrap().summary_fault = fault;
    }

    /// It knows none of its signatures any more.
    pub fn rotate(&self) {
        self.script.lock().unwrap().issued.clear();
    }
}

async fn answer(State(script): State<Arc<Mutex<Script>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    assert_eq!(head.uri.path(), "/v1/messages");
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let beta = head.headers.get("anthropic-beta").map(|value| value.to_str().unwrap().to_owned());
    let received = Received { beta, body: serde_json::from_slice(&body).unwrap() };
    let (reply, silent) = {
        let mut script = script.lock().unwrap();
        script.received.push(received.clone());
        let fault = match (received.is_summary(), received.compacts()) {
            (true, _) => script.summary_fault.clone(),
            (false, true) => script.compaction_faults.pop_front(),
            (false, false) => script.message_faults.pop_front(),
        };
        let silent = matches!(fault, Some(Fault::Silent));
        (script.respond(&received, fault), silent)
    };
    match reply {
        Ok(events) => {
            let lines = events.iter().map(|event| {
                let kind = event["type"].as_str().unwrap();
                format!("event: {kind}\ndata: {event}\n\n")
            });
            let lines = lines.collect::<String>();
            let body = match silent {
                false => Body::from(lines),
                true => {
                    Body::from_stream(stream::iter([Ok::<_, std::io::Error>(lines)]).chain(stream::pending()))
                }
            };
            Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
        }
        Err((status, error)) => {
            let body = json!({ "type": "error", "error": error }).to_string();
            Response::builder().status(status).body(Body::from(body)).unwrap()
        }
    }
}

type Refusal = (u16, Value);

fn invalid(message: &str, code: Option<&str>) -> Refusal {
    let mut error = json!({ "type": "invalid_request_error", "message": message });
    if let Some(code) = code {
        error["details"] = json!({ "error_code": code });
    }
    (400, error)
}

impl Script {
    fn respond(&mut self, received: &Received, fault: Option<Fault>) -> Result<Vec<Value>, Refusal> {
        if let Some(Fault::Refuse(status, kind, code)) = fault {
            let details = json!({ "error_code": code });
            return Err((status, json!({ "type": kind, "message": "no", "details": details })));
        }
        if let Some(Fault::Say(status, message)) = &fault {
            return Err((*status, json!({ "type": "invalid_request_error", "message": message })));
        }
        self.judge(received)?;
        if received.compacts() {
            return Ok(self.compact(received, fault));
        }
        let said = if let Some(Fault::Text(text)) = &fault {
            text.clone()
        } else if received.is_summary() {
            format!("Goal: a portable summary. {}", "It went on. ".repeat(60))
        } else {
            let text = received.body["messages"].as_array().unwrap().last().unwrap()["content"].to_string();
            let n = text.rsplit("turn ").next().and_then(|rest| rest.split(':').next()).unwrap_or("?");
            format!("echo: turn {n}")
        };
        let stop = if let Some(Fault::Stop(stop)) = &fault { stop } else { "end_turn" };
        let input = received.body.to_string().len() / 4;
        let mut events = vec![
            json!({ "type": "message_start", "message": { "usage": { "input_tokens": input, "output_tokens": 1 } } }),
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": said } }),
            json!({ "type": "content_block_stop", "index": 0 }),
            json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": { "output_tokens": 20 } }),
            json!({ "type": "message_stop" }),
        ];
        if matches!(fault, Some(Fault::Cut | Fault::Silent)) {
            events.truncate(3);
        }
        Ok(events)
    }

    /// What the API refuses of a block, and of a compaction.
    fn judge(&self, received: &Received) -> Result<(), Refusal> {
        let body = &received.body;
        let has_beta = received.beta.as_deref() == Some(BETA);
        let mut found = Vec::new();
        for (m, message) in body["messages"].as_array().unwrap().iter().enumerate() {
            for (b, block) in message["content"].as_array().into_iter().flatten().enumerate() {
                if block["type"] == "compaction" {
                    found.push((m, b, block));
                }
            }
        }
        if let Some((m, b, block)) = found.first() {
            if !has_beta {
                let what =
                    "Input tag 'compaction' found using 'type' does not match any of the expected tags";
                return Err(invalid(&format!("messages.{m}.content.{b}: {what}"), None));
            }
            if found.len() > 1 {
                return Err(invalid("A request can carry only one compaction block.", None));
            }
            if (*m, *b) != (0, 0) {
                return Err(invalid("It must come first.", Some("compaction_block_misplaced")));
            }
            let issued = self.issued.iter().find(|issued| issued["signature"] == block["signature"]);
            match issued {
                None => return Err(invalid("The signature.", Some("compaction_signature_invalid"))),
                // Not one member more, and each as it was.
                Some(issued) if issued != *block => {
                    return Err(invalid("The content.", Some("compaction_content_mismatch")));
                }
                Some(_) => {}
            }
        }
        if let Some(compaction) = body.get("compaction") {
            if !has_beta {
                return Err(invalid(
                    &format!("The compaction parameter requires anthropic-beta: {BETA}"),
                    None,
                ));
            }
            assert_eq!(compaction["type"], "summarize");
            for absent in ["context_management", "stop_sequences", "tool_choice", "output_config"] {
                if body.get(absent).is_some() {
                    return Err(invalid(&format!("{absent} can't be sent with it"), None));
                }
            }
            let last = body["messages"].as_array().unwrap().last();
            let calls = last.is_some_and(|last| last["content"].to_string().contains("\"tool_use\""));
            if calls {
                return Err(invalid("The last tool call has no result.", None));
            }
        }
        Ok(())
    }

    fn compact(&mut self, received: &Received, fault: Option<Fault>) -> Vec<Value> {
        let n = self.issued.len() + 1;
        let text = format!("Goal: native summary number {n}. {}", "It went on. ".repeat(60));
        let mut block = json!({ "type": "compaction", "content": text, "signature": format!("sig-{n}/+==") });
        let mut stop = "compaction";
        let mut shown = true;
        match &fault {
            Some(Fault::Stop(reason)) => (stop, shown) = (reason, false),
            Some(Fault::Block(members)) => {
                for (name, value) in members.as_object().unwrap() {
                    block[name] = value.clone();
                }
            }
            _ => {}
        }
        if shown {
            self.issued.push(block.clone());
        }
        let input = received.body.to_string().len() / 4;
        let iterations = json!([
            { "type": "message", "input_tokens": 5, "output_tokens": 1 },
            { "type": "compaction", "input_tokens": input, "output_tokens": 200, "cache_read_input_tokens": 7 },
        ]);
        let usage = json!({ "input_tokens": 0, "output_tokens": 0, "iterations": iterations });
        let mut events =
            vec![json!({ "type": "message_start", "message": { "usage": { "input_tokens": 0 } } })];
        events.push(json!({ "type": "ping" }));
        if shown {
            events.push(json!({ "type": "content_block_start", "index": 0, "content_block": block }));
            events.push(json!({ "type": "content_block_stop", "index": 0 }));
        }
        if !matches!(fault, Some(Fault::Cut)) {
            events.push(json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": usage }));
            events.push(json!({ "type": "message_stop" }));
        }
        events
    }
}
