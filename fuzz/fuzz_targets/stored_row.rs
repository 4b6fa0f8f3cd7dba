//! Rows as they may lie in the table: a JSON list of rows, spelled as in `tests/golden/rows.json`, or else one
//! item's text a line.
//!
//! Reading never panics, what was read survives being written and read again, and a thread made of such rows takes
//! another message of its user (I7, I8, I9).
#![no_main]

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use dormouse::history::History;
use dormouse::history::render::RenderOptions;
use dormouse::message::{Epoch, Seq, ThreadId};
use dormouse::store::dynamodb::fuzzing as rows;
use dormouse::store::{INLINE_BYTES, Loaded, Meta};
use dormouse_fuzz::{asks, goes_on, say};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

type Row = HashMap<String, AttributeValue>;

/// Where the text of a row is.
const RAW: &str = "raw";
/// The most rows of one thread; more only take longer.
const MAX_ROWS: usize = 64;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let table: Vec<Row> = match serde_json::from_str::<Vec<Value>>(&text) {
        Ok(rows) => rows.iter().take(MAX_ROWS).map(row).collect(),
        Err(_) => text.lines().take(MAX_ROWS).map(|line| [(RAW.to_owned(), s(line))].into()).collect(),
    };
    let mut loaded = Loaded::default();
    let mut meta = None;
    for (at, row) in table.iter().enumerate() {
        let seq = rows::seq(row).unwrap_or(Seq::FIRST.plus(at));
        let item = rows::item(seq, row);
        if row.get(RAW).is_some_and(|raw| raw.is_s()) && item.raw.len() <= INLINE_BYTES {
            let written = rows::item_row(&thread_of(row), Epoch(0), &item);
            assert_eq!(rows::item(seq, &written), item);
        }
        let parked = rows::parked(row);
        if parked.body.len() <= INLINE_BYTES {
            assert_eq!(rows::parked(&rows::parked_row(&thread_of(row), &parked)), parked);
        }
        if let Ok(mut read) = rows::meta(row) {
            // A set on the row.
            read.redelivered.sort();
            read.redelivered.dedup();
            assert_eq!(rows::meta(&rows::meta_row(&read)).expect("what was written can be read"), read);
            meta = Some(read);
        } else if row.get("sk").and_then(|sk| sk.as_s().ok()).is_some_and(|sk| sk.starts_with("P#")) {
            loaded.parked.push(parked);
        } else {
            loaded.items.push(item);
        }
    }
    let mut meta = meta.unwrap_or_else(|| Meta::new_root(say::thread(), "agent", None, 0));
    meta.thread = say::thread();
    loaded.meta = Some(meta);
    let options = RenderOptions { model: "m".to_owned(), image_input: true, ..RenderOptions::default() };
    let history = History::new(say::thread(), loaded);
    asks(&history, &options);
    goes_on(history, &options);
});

fn thread_of(row: &Row) -> ThreadId {
    ThreadId::new(row.get("pk").and_then(|pk| pk.as_s().ok()).map(String::as_str).unwrap_or_default())
}

fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

fn row(value: &Value) -> Row {
    let members = value.as_object().into_iter().flatten();
    members.map(|(name, value)| (name.clone(), attribute(value))).collect()
}

/// Text, `{"N":"1"}`, `{"SS":["a"]}` and flags as themselves; anything else as the map or list that it is.
fn attribute(value: &Value) -> AttributeValue {
    match value {
        Value::Null => AttributeValue::Null(true),
        Value::Bool(flag) => AttributeValue::Bool(*flag),
        Value::Number(number) => AttributeValue::N(number.to_string()),
        Value::String(text) => s(text),
        Value::Array(list) => AttributeValue::L(list.iter().map(attribute).collect()),
        Value::Object(members) => match (value["N"].as_str(), value["SS"].as_array()) {
            (Some(number), _) => AttributeValue::N(number.to_owned()),
            (None, Some(set)) => {
                AttributeValue::Ss(set.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            }
            (None, None) => AttributeValue::M(
                members.iter().map(|(name, value)| (name.clone(), attribute(value))).collect(),
            ),
        },
    }
}
