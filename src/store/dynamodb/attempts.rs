//! Failed attempts of inputs, counted beside the commits: a commit is what failed.

use std::collections::HashMap;
use std::fmt::Write as _;

use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use uuid::Uuid;

use super::codec::{self, CAUSE, DEDUP, EXPIRES_AT, n, number, s};
use super::meta_row::{REDELIVERED, TOKEN};
use super::reads::Range;
use super::{DynamoStore, keys};
use crate::message::{DedupId, MessageId, ThreadId};
use crate::store::{StoreError, claim_expiry_ms};

/// Attempts counted so far.
const COUNT: &str = "attempts";

impl DynamoStore {
    /// Adds to an input's attempts and returns them. A repeat after a lost answer may count one too many: giving
    /// up one attempt early costs nothing that a person would miss.
    pub(super) async fn add_attempts(
        &self,
        thread: &ThreadId,
        dedup: &DedupId,
        cause: Option<&MessageId>,
        by: i32,
    ) -> Result<u32, StoreError> {
        let mut update = format!("ADD #count :by SET {EXPIRES_AT} = :expiry");
        let mut values = HashMap::new();
        if let Some(cause) = cause {
            write!(update, ", {CAUSE} = :cause, {DEDUP} = :dedup").expect("bug: writing to a string");
            values.insert(":cause".to_owned(), s(cause.as_str()));
            values.insert(":dedup".to_owned(), s(dedup.as_str()));
        }
        let key = keys::attempts(thread, dedup);
        let expires_at = codec::seconds(claim_expiry_ms(self.now_ms()));
        let answer = self
            .repeat("UpdateItem", || {
                self.client
                    .update_item()
                    .table_name(&*self.table)
                    .set_key(Some(key.attributes()))
                    .update_expression(&update)
                    .expression_attribute_names("#count", COUNT)
                    .set_expression_attribute_values(Some(values.clone()))
                    .expression_attribute_values(":by", n(by))
                    .expression_attribute_values(":expiry", n(expires_at))
                    .return_values(ReturnValue::UpdatedNew)
                    .send()
            })
            .await?;
        let row = answer.attributes.unwrap_or_default();
        // Taken back more often than counted is still none.
        Ok(number::<i64>(&row, COUNT).and_then(|count| u32::try_from(count.max(0)).ok()).unwrap_or(u32::MAX))
    }

    /// The dedup id that a message's attempts are counted under.
    pub(super) async fn failed_under(
        &self,
        thread: &ThreadId,
        cause: &MessageId,
    ) -> Result<Option<DedupId>, StoreError> {
        let rows = self.query(keys::thread_pk(thread), Range::Prefix(keys::ATTEMPTS)).await?;
        let of_cause = rows.iter().find(|row| codec::text(row, CAUSE) == Some(cause.as_str()));
        Ok(of_cause.and_then(|row| codec::text(row, DEDUP)).map(DedupId::new))
    }

    /// Adds a cause to META's redelivered ones; a thread that does not exist has nothing that could die with it.
    /// The token is a new one: a slice that was loaded before would write its own list over this.
    pub(super) async fn mark_redelivered(
        &self,
        thread: &ThreadId,
        cause: &MessageId,
    ) -> Result<(), StoreError> {
        let key = keys::meta(thread);
        self.repeat("UpdateItem", || {
            let request = self
                .client
                .update_item()
                .table_name(&*self.table)
                .set_key(Some(key.attributes()))
                .update_expression("ADD #redelivered :cause SET #token = :token")
                .condition_expression(format!("attribute_exists({})", keys::PK))
                .expression_attribute_names("#redelivered", REDELIVERED)
                .expression_attribute_names("#token", TOKEN)
                .expression_attribute_values(":token", AttributeValue::S(Uuid::new_v4().to_string()))
                .expression_attribute_values(":cause", AttributeValue::Ss(vec![cause.as_str().to_owned()]));
            async {
                match request.send().await {
                    Ok(_) => Ok(()),
                    Err(SdkError::ServiceError(e)) if e.err().is_conditional_check_failed_exception() => {
                        Ok(())
                    }
                    Err(e) => Err(e),
                }
            }
        })
        .await
    }
}
