//! Queues: made, deleted, emptied, described.
//!
//! `rustack-sqs` checks and keeps most attributes. Two it may not see: the maximum message size (it stops at 256 KiB)
//! and the redrive policy (it would move tickets behind the journal's back); the front keeps those and puts them back
//! into what a client reads.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use axum::body::Bytes;
use axum::response::Response;
use rustack_sqs_core::queue::extract_queue_name;
use rustack_sqs_model::error::SqsError;
use rustack_sqs_model::input::{
    CreateQueueInput, DeleteQueueInput, GetQueueAttributesInput, PurgeQueueInput, SetQueueAttributesInput,
};
use rustack_sqs_model::output::{
    CreateQueueOutput, DeleteQueueOutput, PurgeQueueOutput, SetQueueAttributesOutput,
};

use super::wire::{self, ApiError};
use super::{Front, MAX_MESSAGE_BYTES};
use crate::local::aws::{ACCOUNT_ID, DELAY_QUEUE, REGION};
use crate::local::journal::{DedupScope, QueueSpec, Redrive};

pub(super) const REDRIVE_POLICY: &str = "RedrivePolicy";
const MAXIMUM_MESSAGE_SIZE: &str = "MaximumMessageSize";
/// AWS's bounds of `MaximumMessageSize`.
const MIN_MAXIMUM_MESSAGE_SIZE: usize = 1024;
/// AWS's upper bound of `maxReceiveCount`.
const MAX_MAX_RECEIVE_COUNT: u32 = 1000;
/// AWS's default retention: 4 days.
const DEFAULT_RETENTION_SECONDS: i64 = 4 * 24 * 60 * 60;

/// A queue as the front sees it.
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) url: String,
    /// Held from the journal to the queue, so that both see the same order.
    pub(super) sending: tokio::sync::Mutex<()>,
    settings: RwLock<Settings>,
}

/// What the front itself needs of the attributes.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    attributes: HashMap<String, String>,
    pub(super) max_message_bytes: usize,
    pub(super) redrive: Option<Redrive>,
    pub(super) delay_seconds: u32,
    pub(super) content_based_deduplication: bool,
    pub(super) dedup_scope: DedupScope,
    retention_ms: i64,
}

impl Queue {
    pub(super) fn is_fifo(&self) -> bool {
        is_fifo(&self.name)
    }

    pub(super) fn settings(&self) -> Settings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How long messages are kept. A FIFO queue keeps them until they are deleted, and so does the delay queue: a
    /// machine that was off for a month must still wake what slept.
    pub(super) fn retention_ms(&self) -> Option<i64> {
        (!self.is_fifo() && self.name != DELAY_QUEUE)
            .then(|| self.settings.read().unwrap_or_else(PoisonError::into_inner).retention_ms)
    }
}

fn is_fifo(name: &str) -> bool {
    name.ends_with(".fifo")
}

impl Front {
    /// The queue a request names.
    pub(super) fn queue(&self, url: &str) -> Result<Arc<Queue>, ApiError> {
        extract_queue_name(url).and_then(|name| self.queue_named(name)).ok_or_else(|| {
            SqsError::non_existent_queue(format!(
                "The specified queue does not exist: {url}. The embedded SQS has a new port in every process unless \
                 one is set; ask for the URL again."
            ))
            .into()
        })
    }

    /// Makes a queue, here and in `rustack-sqs`, without writing it down.
    pub(super) async fn open_queue(&self, spec: QueueSpec) -> Result<String, ApiError> {
        let settings = self.settings(&spec.name, spec.attributes)?;
        let made = self
            .provider
            .create_queue(CreateQueueInput {
                queue_name: spec.name.clone(),
                attributes: for_rustack(&settings.attributes),
                tags: HashMap::new(),
            })
            .await?;
        let url = made.queue_url.unwrap_or_default();
        let queue = Queue {
            name: spec.name.clone(),
            url: url.clone(),
            sending: tokio::sync::Mutex::default(),
            settings: RwLock::new(settings),
        };
        self.queues.write().unwrap_or_else(PoisonError::into_inner).insert(spec.name, Arc::new(queue));
        Ok(url)
    }

    pub(super) async fn create_queue(&self, body: &Bytes) -> Result<Response, ApiError> {
        let input: CreateQueueInput = wire::parse(body)?;
        let _one_at_a_time = self.administration.lock().await;
        if let Some(existing) = self.queue_named(&input.queue_name) {
            let theirs = existing.settings().attributes;
            for name in [REDRIVE_POLICY, MAXIMUM_MESSAGE_SIZE] {
                if input.attributes.get(name).is_some_and(|wanted| theirs.get(name) != Some(wanted)) {
                    return Err(SqsError::queue_already_exists(format!(
                        "A queue already exists with the same name and a different value for attribute {name}."
                    ))
                    .into());
                }
            }
            let attributes = for_rustack(&input.attributes);
            let output = self.provider.create_queue(CreateQueueInput { attributes, ..input }).await?;
            return wire::success(&output);
        }
        let spec = QueueSpec { name: input.queue_name, attributes: input.attributes };
        let url = self.open_queue(spec.clone()).await?;
        self.journal(move |journal| journal.save_queue(&spec)).await?;
        wire::success(&CreateQueueOutput { queue_url: Some(url) })
    }

    pub(super) async fn delete_queue(&self, body: &Bytes) -> Result<Response, ApiError> {
        let input: DeleteQueueInput = wire::parse(body)?;
        let queue = self.queue(&input.queue_url)?;
        let _one_at_a_time = self.administration.lock().await;
        let _no_sends = queue.sending.lock().await;
        self.queues.write().unwrap_or_else(PoisonError::into_inner).remove(&queue.name);
        self.provider.delete_queue(input).await?;
        let name = queue.name.clone();
        self.journal(move |journal| journal.forget_queue(&name)).await?;
        wire::success(&DeleteQueueOutput {})
    }

    pub(super) async fn purge_queue(&self, body: &Bytes) -> Result<Response, ApiError> {
        let input: PurgeQueueInput = wire::parse(body)?;
        let queue = self.queue(&input.queue_url)?;
        let _no_sends = queue.sending.lock().await;
        self.provider.purge_queue(input).await?;
        let name = queue.name.clone();
        self.journal(move |journal| journal.purge(&name)).await?;
        wire::success(&PurgeQueueOutput {})
    }

    pub(super) async fn get_queue_attributes(&self, body: &Bytes) -> Result<Response, ApiError> {
        let input: GetQueueAttributesInput = wire::parse(body)?;
        let settings = self.queue(&input.queue_url)?.settings();
        let asks_for_policy =
            input.attribute_names.iter().any(|name| name == "All" || name == REDRIVE_POLICY);
        let mut output = self.provider.get_queue_attributes(input).await?;
        if let Some(size) = output.attributes.get_mut(MAXIMUM_MESSAGE_SIZE) {
            *size = settings.max_message_bytes.to_string();
        }
        if let Some(policy) = settings.attributes.get(REDRIVE_POLICY).filter(|_| asks_for_policy) {
            output.attributes.insert(REDRIVE_POLICY.to_owned(), policy.clone());
        }
        wire::success(&output)
    }

    pub(super) async fn set_queue_attributes(&self, body: &Bytes) -> Result<Response, ApiError> {
        let input: SetQueueAttributesInput = wire::parse(body)?;
        let queue = self.queue(&input.queue_url)?;
        let _one_at_a_time = self.administration.lock().await;
        let mut attributes = queue.settings().attributes;
        for (name, value) in &input.attributes {
            // An empty policy takes the policy away, as on AWS.
            if name == REDRIVE_POLICY && value.is_empty() {
                attributes.remove(name);
            } else {
                attributes.insert(name.clone(), value.clone());
            }
        }
        let settings = self.settings(&queue.name, attributes.clone())?;
        let for_rustack = for_rustack(&input.attributes);
        self.provider
            .set_queue_attributes(SetQueueAttributesInput { attributes: for_rustack, ..input })
            .await?;
        *queue.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
        let spec = QueueSpec { name: queue.name.clone(), attributes };
        self.journal(move |journal| journal.save_queue(&spec)).await?;
        wire::success(&SetQueueAttributesOutput {})
    }

    /// Reads the attributes the front needs. What it does not look at, `rustack-sqs` checks.
    fn settings(&self, name: &str, attributes: HashMap<String, String>) -> Result<Settings, ApiError> {
        let fifo = is_fifo(name);
        let number = |attribute: &str| attributes.get(attribute).and_then(|value| value.parse::<u32>().ok());
        let max_message_bytes = match attributes.get(MAXIMUM_MESSAGE_SIZE) {
            None => MAX_MESSAGE_BYTES,
            Some(value) => value
                .parse()
                .ok()
                .filter(|size| (MIN_MAXIMUM_MESSAGE_SIZE..=MAX_MESSAGE_BYTES).contains(size))
                .ok_or_else(|| {
                    ApiError::invalid(format!(
                        "MaximumMessageSize must be between {MIN_MAXIMUM_MESSAGE_SIZE} and {MAX_MESSAGE_BYTES}."
                    ))
                })?,
        };
        let redrive = attributes.get(REDRIVE_POLICY).map(|policy| self.redrive(name, policy)).transpose()?;
        let by_group = attributes.get("DeduplicationScope").is_some_and(|scope| scope == "messageGroup");
        Ok(Settings {
            max_message_bytes,
            redrive,
            delay_seconds: number("DelaySeconds").unwrap_or(0),
            content_based_deduplication: attributes
                .get("ContentBasedDeduplication")
                .is_some_and(|value| value == "true"),
            dedup_scope: match (fifo, by_group) {
                (false, _) => DedupScope::Nowhere,
                (true, false) => DedupScope::Queue,
                (true, true) => DedupScope::Group,
            },
            retention_ms: number("MessageRetentionPeriod").map_or(DEFAULT_RETENTION_SECONDS, i64::from)
                * 1000,
            attributes,
        })
    }

    /// Reads a redrive policy. AWS takes the count as a number or as text.
    fn redrive(&self, name: &str, policy: &str) -> Result<Redrive, ApiError> {
        let invalid = |reason: &str| ApiError::invalid(format!("RedrivePolicy of {name}: {reason}."));
        let policy: serde_json::Value =
            serde_json::from_str(policy).map_err(|_| invalid("it is not JSON"))?;
        let count = &policy["maxReceiveCount"];
        let max_receive_count = count
            .as_u64()
            .or_else(|| count.as_str()?.parse().ok())
            .and_then(|count| u32::try_from(count).ok())
            .filter(|count| (1..=MAX_MAX_RECEIVE_COUNT).contains(count))
            .ok_or_else(|| invalid("maxReceiveCount must be between 1 and 1000"))?;
        let target = policy["deadLetterTargetArn"]
            .as_str()
            .and_then(|arn| arn.strip_prefix(&arn_of("")))
            .ok_or_else(|| invalid("deadLetterTargetArn must be the ARN of a queue of this endpoint"))?;
        if self.queue_named(target).is_none() {
            return Err(invalid("the dead-letter queue does not exist; make it first"));
        }
        if is_fifo(target) != is_fifo(name) {
            return Err(invalid(
                "a FIFO queue needs a FIFO dead-letter queue, a standard one a standard one",
            ));
        }
        Ok(Redrive {
            target: target.to_owned(),
            source_arn: arn_of(name),
            max_receive_count,
            fifo: is_fifo(name),
        })
    }
}

fn arn_of(queue: &str) -> String {
    format!("arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{queue}")
}

/// The attributes `rustack-sqs` may see.
fn for_rustack(attributes: &HashMap<String, String>) -> HashMap<String, String> {
    let mut attributes = attributes.clone();
    attributes.retain(|name, _| name != REDRIVE_POLICY && name != MAXIMUM_MESSAGE_SIZE);
    attributes
}
