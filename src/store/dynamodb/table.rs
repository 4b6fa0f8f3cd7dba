//! The table itself, as `template.yaml` declares it for AWS: local mode and the tests make their own.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType, TableStatus, TimeToLiveSpecification,
};

use super::calls::{Failure, failure};
use super::codec::EXPIRES_AT;
use super::keys::{LISTS, LPK, LSK, PK, SK};
use crate::store::StoreError;

/// How often a new table is looked at until it is there.
const LOOKS: usize = 100;
/// The pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Makes the table, unless there is one of that name, and waits until it can be used.
///
/// `pk` and `sk`, on demand, TTL on `expires_at`, and the sparse index `lists` (`lpk`, `lsk`) that holds keys only:
/// so an ordinary commit, which changes neither, does not touch it.
pub async fn create_table(client: &Client, table: &str) -> Result<(), StoreError> {
    let create = request(client, table).map_err(|error| StoreError::Refused(error.to_string()))?;
    match create.send().await {
        Ok(_) => {}
        Err(error) if is_there(error.as_service_error()) => {}
        Err(error) => return Err(failure("CreateTable", &error).into()),
    }
    for _ in 0..LOOKS {
        let answer = client.describe_table().table_name(table).send().await;
        let answer = answer.map_err(|error| StoreError::from(failure("DescribeTable", &error)))?;
        if answer.table().and_then(|table| table.table_status()) == Some(&TableStatus::Active) {
            return expire_rows(client, table).await;
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    Err(StoreError::Unavailable(format!("table {table} does not become active")))
}

fn is_there(error: Option<&CreateTableError>) -> bool {
    matches!(error, Some(CreateTableError::ResourceInUseException(_)))
}

fn request(
    client: &Client,
    table: &str,
) -> Result<aws_sdk_dynamodb::operation::create_table::builders::CreateTableFluentBuilder, BuildError> {
    let text = |name: &str| {
        let attribute = AttributeDefinition::builder().attribute_name(name);
        attribute.attribute_type(ScalarAttributeType::S).build()
    };
    let key = |name: &str, role| KeySchemaElement::builder().attribute_name(name).key_type(role).build();
    let lists = GlobalSecondaryIndex::builder()
        .index_name(LISTS)
        .key_schema(key(LPK, KeyType::Hash)?)
        .key_schema(key(LSK, KeyType::Range)?)
        .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build())
        .build()?;
    Ok(client
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(text(PK)?)
        .attribute_definitions(text(SK)?)
        .attribute_definitions(text(LPK)?)
        .attribute_definitions(text(LSK)?)
        .key_schema(key(PK, KeyType::Hash)?)
        .key_schema(key(SK, KeyType::Range)?)
        .global_secondary_indexes(lists))
}

async fn expire_rows(client: &Client, table: &str) -> Result<(), StoreError> {
    let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name(EXPIRES_AT).build();
    let ttl = ttl.map_err(|error| StoreError::Refused(error.to_string()))?;
    match client.update_time_to_live().table_name(table).time_to_live_specification(ttl).send().await {
        Ok(_) => Ok(()),
        // A table that was there has it already, and says so by refusing.
        Err(error) => match failure("UpdateTimeToLive", &error) {
            Failure::Refused(why) => {
                tracing::debug!(%why, "the table's TTL stays as it is");
                Ok(())
            }
            transient @ Failure::Transient(_) => Err(transient.into()),
        },
    }
}
