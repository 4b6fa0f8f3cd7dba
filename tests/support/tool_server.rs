//! Tools with known answers behind a real RAP server.

use axum::Json;
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long whoever is asked for consent takes.
const CONSENT_AFTER: Duration = Duration::from_secs(3);
/// Calls whose question has no answer yet, by id.
type Asked = Arc<Mutex<HashMap<String, Value>>>;

/// The longest that `srv_slow` takes.
const MAX_SLOW_MS: u64 = 120_000;

/// Tools as the drivers of pages and clients expect them, in this process. A result goes to the callback, as of any tool server.
pub async fn serve() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tool = |name: &str, destructive: bool| json!({ "name": name, "description": "d", "inputSchema": { "type": "object" }, "annotations": { "destructive": destructive } });
    let tools = [
        tool("srv_echo", false),
        tool("srv_fail", false),
        tool("srv_slow", false),
        tool("srv_guarded", true),
        tool("srv_ask", false),
        tool("srv_consent", false),
        tool("srv_view", false),
    ];
    let manifest = json!({ "name": "srv", "endpoint": format!("{url}/invoke"), "tools": tools });
    let asked = Asked::default();
    let (ask, answer_url) = (asked.clone(), format!("{url}/answer"));
    let app = axum::Router::new()
        .route("/.well-known/rap-toolset", get(move || async move { Json(manifest) }))
        .route(
            "/invoke",
            post(move |Json(call): Json<Value>| async move {
                match call["operation"].as_str().unwrap() {
                    "srv_ask" => {
                        let question = json!({
                            "type": "user_choice", "group_id": call["group_id"], "id": call["id"],
                            "prompt": "Which one?", "choices": ["Drop", "Keep"], "default": 1,
                            "response_url": answer_url,
                        });
                        ask.lock().unwrap().insert(call["id"].to_string(), call.clone());
                        tokio::spawn(async move { send(&call, question).await });
                    }
                    _ => drop(tokio::spawn(answer(call))),
                }
            }),
        )
        .route(
            "/answer",
            post(move |Json(given): Json<Value>| async move {
                let call = asked.lock().unwrap().remove(&given["id"].to_string());
                if let Some(call) = call {
                    let text = format!("chosen {}", given["selected"]);
                    tokio::spawn(async move { send(&call, result(&call, &text)).await });
                }
            }),
        )
        .fallback(|| async {});
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}

async fn answer(call: Value) {
    let text = match call["operation"].as_str().unwrap() {
        "srv_fail" => "Error: tool broke".to_owned(),
        "srv_slow" => {
            let ms = call["arguments"]["ms"].as_u64().unwrap_or_default().min(MAX_SLOW_MS);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            call["arguments"].to_string()
        }
        "srv_consent" => {
            let oauth = json!({
                "type": "oauth", "group_id": call["group_id"], "id": call["id"],
                "auth_url": "https://idp.example/authorize",
            });
            send(&call, oauth).await;
            tokio::time::sleep(CONSENT_AFTER).await;
            "consented".to_owned()
        }
        "srv_view" => {
            let view = json!({
                "type": "view_update", "group_id": call["group_id"], "view_type": "diff",
                "content": { "patch": null, "text": "a\nb" },
            });
            send(&call, view).await;
            "seen".to_owned()
        }
        _ => call["arguments"].to_string(),
    };
    send(&call, result(&call, &text)).await;
}

fn result(call: &Value, text: &str) -> Value {
    json!({ "type": "tool_result", "group_id": call["group_id"], "id": call["id"], "text": text })
}

async fn send(call: &Value, message: Value) {
    let callback = call["callback_url"].as_str().unwrap();
    reqwest::Client::new().post(callback).json(&message).send().await.unwrap();
}
