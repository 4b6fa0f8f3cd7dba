//! DynamoDB in this process: `dynoxide-rs` on a file, with dormouse's table.
//!
//! Job: open the file, make the table if it is not there, serve the DynamoDB API, delete expired items now and then.
//! It never makes conflicts or throttles (one lock around SQLite): those are injected by tests.

use std::path::PathBuf;
use std::time::Duration;

use dynoxide::{Database, DynoxideError};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::aws::LocalError;
use super::server::{ServerThread, Serving};

/// The name of the attribute with an item's end of life, in epoch seconds.
const TTL_ATTRIBUTE: &str = "expires_at";
/// How often expired items are deleted. AWS takes up to days; a sweep counts the table's rows under its lock.
const TTL_SWEEP: Duration = Duration::from_secs(5 * 60);

/// Starts DynamoDB. Without a file the table is in memory.
pub(super) async fn start(
    file: Option<PathBuf>,
    port: u16,
    table: String,
    lock: Option<std::sync::Arc<std::fs::File>>,
) -> Result<ServerThread, LocalError> {
    ServerThread::start("dormouse-dynamodb", port, lock, move |listener, _address, stop| async move {
        let database = open(file)?;
        ensure_table(&database, &table)?;
        let sweeping = database.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TTL_SWEEP);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let database = sweeping.clone();
                match tokio::task::spawn_blocking(move || database.sweep_ttl()).await {
                    Ok(Ok(deleted)) => tracing::trace!(deleted, "swept expired items"),
                    Ok(Err(error)) => tracing::warn!(%error, "expired items could not be swept"),
                    Err(error) => tracing::warn!(%error, "the sweep of expired items panicked"),
                }
            }
        });
        Ok(Box::pin(async move {
            if let Err(error) = dynoxide::server::serve_with_shutdown(listener, database, stop).await {
                tracing::error!(%error, "the embedded DynamoDB ended");
            }
        }) as Serving)
    })
    .await
}

fn open(file: Option<PathBuf>) -> Result<Database, LocalError> {
    let Some(file) = file else { return Database::memory().map_err(dynamo_error) };
    let path = file.to_str().ok_or_else(|| LocalError::DirNotUtf8 { dir: file.clone() })?;
    Database::new(path).map_err(dynamo_error)
}

/// Makes the table and turns its TTL on; both are left alone where they are there already.
fn ensure_table(database: &Database, table: &str) -> Result<(), LocalError> {
    let created = database.create_table(request(json!({
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            { "AttributeName": "pk", "AttributeType": "S" },
            { "AttributeName": "sk", "AttributeType": "S" },
            { "AttributeName": "lpk", "AttributeType": "S" },
            { "AttributeName": "lsk", "AttributeType": "S" },
        ],
        "KeySchema": [
            { "AttributeName": "pk", "KeyType": "HASH" },
            { "AttributeName": "sk", "KeyType": "RANGE" },
        ],
        "GlobalSecondaryIndexes": [{
            "IndexName": "lists",
            "KeySchema": [
                { "AttributeName": "lpk", "KeyType": "HASH" },
                { "AttributeName": "lsk", "KeyType": "RANGE" },
            ],
            "Projection": { "ProjectionType": "KEYS_ONLY" },
        }],
    }))?);
    match created {
        Ok(_) => tracing::debug!(table, "made the table"),
        Err(DynoxideError::ResourceInUseException(_)) => {}
        Err(error) => return Err(dynamo_error(error)),
    }
    // Asked for every time: a process killed between the two calls would leave a table without TTL for ever.
    let ttl =
        database.describe_time_to_live(request(json!({ "TableName": table }))?).map_err(dynamo_error)?;
    if ttl.time_to_live_description.time_to_live_status != "ENABLED" {
        database
            .update_time_to_live(request(json!({
                "TableName": table,
                "TimeToLiveSpecification": { "AttributeName": TTL_ATTRIBUTE, "Enabled": true },
            }))?)
            .map_err(dynamo_error)?;
    }
    Ok(())
}

/// Requests are written as the JSON of the AWS API: the crate's own structs have many fields that do not matter here.
fn request<T: DeserializeOwned>(json: serde_json::Value) -> Result<T, LocalError> {
    serde_json::from_value(json).map_err(|error| LocalError::DynamoDb { reason: error.to_string() })
}

fn dynamo_error(error: DynoxideError) -> LocalError {
    LocalError::DynamoDb { reason: error.to_string() }
}
