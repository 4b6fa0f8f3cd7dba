//! Tools with known answers behind a real RAP server.

use axum::Json;
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::time::Duration;

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
    ];
    let manifest = json!({ "name": "srv", "endpoint": format!("{url}/invoke"), "tools": tools });
    let app = axum::Router::new()
        .route("/.well-known/rap-toolset", get(move || async move { Json(manifest) }))
        .route(
            "/invoke",
            post(|Json(call): Json<Value>| async move {
                tokio::spawn(answer(call));
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
        _ => call["arguments"].to_string(),
    };
    let result =
        json!({ "type": "tool_result", "group_id": call["group_id"], "id": call["id"], "text": text });
    let callback = call["callback_url"].as_str().unwrap();
    reqwest::Client::new().post(callback).json(&result).send().await.unwrap();
}
