//! Frozen formats: what stands in `tests/golden/` is what other people's programs, and older and newer versions of
//! ours, read and write. A difference is a decision; `UPDATE_GOLDEN=1 cargo test --test golden` writes it down.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

#[path = "support/ddb.rs"]
mod ddb;
#[path = "support/world.rs"]
mod world;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use dormouse::message::{InputMessage, RawJson, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::store::dynamodb::{DynamoStore, create_table};
use serde_json::{Value, json};
use world::{THREAD, World};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Compares with a golden file, or writes it when told to.
fn assert_golden(name: &str, actual: &Value) {
    let path = golden(name);
    let text = serde_json::to_string_pretty(actual).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == text, "{} differs from what is written now:\n{text}", path.display());
}

#[test]
fn every_input_message_is_read_and_written_as_the_golden_files_have_it() {
    let mut files = 0;
    for entry in std::fs::read_dir(golden("input")).unwrap() {
        let path = entry.unwrap().path();
        let body = std::fs::read_to_string(&path).unwrap();
        let message = InputMessage::parse(body.as_bytes()).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert_eq!(message.to_body().unwrap(), body.trim(), "{path:?}");
        files += 1;
    }
    assert!(files >= 13, "{files}");
}

#[test]
fn the_old_form_of_an_event_is_read_and_missing_fields_have_their_defaults() {
    let body = r#"{"content":{"type":"toolresult","id":"x","content":[]},"group_id":"t","synthetic":"c-1"}"#;
    let written: Value =
        serde_json::from_str(&InputMessage::parse(body.as_bytes()).unwrap().to_body().unwrap()).unwrap();
    assert_eq!(
        written["synthetic"],
        json!({"type": "subscription_event", "tool_call_id": "c-1", "associative": false, "final": false})
    );
}

/// A conversation with everything that this version stores, as rows of the table and messages of the output queue.
#[tokio::test]
async fn rows_and_output_messages_are_what_the_golden_files_have() {
    let server = ddb::Embedded::start(dynoxide::Database::memory().unwrap());
    let client = ddb::client(&server.url);
    create_table(&client, "golden").await.unwrap();
    let store = DynamoStore::new(client.clone(), "golden".to_owned()).with_clock(|| world::NOW_MS);
    let end = |reason: &str| ScriptedEvent::End(reason.into());
    let world = World::over(
        Arc::new(store),
        ScriptedModel::script(vec![
            vec![
                ScriptedEvent::Reasoning("hm".into()),
                ScriptedEvent::Text("let me look".into()),
                ScriptedEvent::call("p-1", "echo", r#"{"text":"A"}"#),
                ScriptedEvent::call("p-2", "other", ""),
                end("tool_use"),
            ],
            vec![ScriptedEvent::call("", "nothing", "{}"), end("tool_use")],
            vec![ScriptedEvent::Text("done".into()), end("end_turn")],
        ]),
    );
    let mut first = InputMessage::user_text(ThreadId::from(THREAD), "hi");
    first.metadata = Some(RawJson::parse(r#"{"user_id":"u-1","n":1.0}"#).unwrap());
    world.done(&world.message(&first)).await;
    let calls = world.tools.calls();
    world.done(&world.result(&calls[1], "B")).await;
    world.done(&world.user(&"stop ".repeat(2_000))).await;
    world.done(&world.result(&calls[0], "late")).await;

    let mut rows = Vec::new();
    let scanned = client.scan().table_name("golden").consistent_read(true).send().await.unwrap();
    for item in scanned.items() {
        let mut row: Vec<(String, Value)> = item
            .iter()
            .map(|(name, value)| {
                // A token is new with every commit; a body's text is long.
                let value = match name.as_str() {
                    "token" => json!("TOKEN"),
                    _ => attribute(value),
                };
                (name.clone(), value)
            })
            .collect();
        row.sort_by(|a, b| a.0.cmp(&b.0));
        rows.push(Value::Object(row.into_iter().collect()));
    }
    rows.sort_by_key(|row| (row["pk"].to_string(), row["sk"].to_string()));
    assert_golden("rows.json", &Value::Array(rows));

    let sent = world.output.sent.lock().unwrap().clone();
    let sent: Vec<Value> =
        sent.iter().map(|message| serde_json::from_str(&message.to_body().unwrap()).unwrap()).collect();
    assert_golden("output.json", &Value::Array(sent));
}

fn attribute(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) if text.len() > 5_000 => {
            json!(format!("{}… {} bytes", &text[..60], text.len()))
        }
        AttributeValue::S(text) => json!(text),
        AttributeValue::N(number) => json!({ "N": number }),
        AttributeValue::Bool(flag) => json!(flag),
        other => json!(format!("{other:?}")),
    }
}
