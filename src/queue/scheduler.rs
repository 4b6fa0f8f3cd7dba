//! Timers over EventBridge Scheduler: what is further away than one delay of the delay queue. A schedule fires once,
//! into that same queue, and is gone.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_scheduler::Client;
use aws_sdk_scheduler::config::retry::RetryConfig;
use aws_sdk_scheduler::config::timeout::TimeoutConfig;
use aws_sdk_scheduler::error::BuildError;
use aws_sdk_scheduler::operation::create_schedule::CreateScheduleError;
use aws_sdk_scheduler::types::{
    ActionAfterCompletion, DeadLetterConfig, FlexibleTimeWindow, FlexibleTimeWindowMode, Target,
};
use jiff::Timestamp;

use super::delay::{Delayed, SqsDelay};
use super::sqs::classify;
use super::{QueueError, TimerSender};
use crate::message::{DedupId, InputMessage};

/// Scheduler fires within this time of what it was told. So it is told this much earlier, and the delay queue, which
/// knows seconds, holds the rest.
const PRECISION: Duration = Duration::from_secs(60);
/// Attempts of one request.
const ATTEMPTS: u32 = 3;
/// One attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
/// All attempts.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

/// A Scheduler client with the retries and time limits that this adapter counts on.
pub fn client(shared: &aws_config::SdkConfig) -> Client {
    let timeouts = TimeoutConfig::builder()
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(OPERATION_TIMEOUT)
        .build();
    Client::from_conf(
        aws_sdk_scheduler::config::Builder::from(shared)
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(timeouts)
            .build(),
    )
}

/// Where schedules are kept and what they may do.
#[derive(Clone, Debug)]
pub struct Schedules {
    /// The group they are made in.
    pub group: String,
    /// The role under which they send.
    pub role_arn: String,
    /// The delay queue.
    pub delay_queue_arn: String,
    /// The standard queue of what could not be sent.
    pub dead_letter_arn: String,
}

/// Short timers in the delay queue, long ones as schedules.
#[derive(Clone)]
pub struct SchedulerTimers {
    near: SqsDelay,
    client: Client,
    schedules: Schedules,
}

impl SchedulerTimers {
    /// `near` takes what is due within one of its delays.
    pub fn new(near: SqsDelay, client: Client, schedules: Schedules) -> Self {
        Self { near, client, schedules }
    }

    fn target(&self, body: String) -> Result<Target, BuildError> {
        let Schedules { role_arn, delay_queue_arn, dead_letter_arn, .. } = &self.schedules;
        let dead_letters = DeadLetterConfig::builder().arn(dead_letter_arn).build();
        let target = Target::builder().arn(delay_queue_arn).role_arn(role_arn).input(body);
        target.dead_letter_config(dead_letters).build()
    }
}

#[async_trait]
impl TimerSender for SchedulerTimers {
    async fn schedule(&self, due_ms: i64, message: &InputMessage, dedup: &DedupId) -> Result<(), QueueError> {
        if due_ms.saturating_sub(Timestamp::now().as_millisecond()) <= millis(self.near.hop()) {
            return self.near.schedule(due_ms, message, dedup).await;
        }
        let fires = Timestamp::from_millisecond(due_ms.saturating_sub(millis(PRECISION)))
            .map_err(|_| QueueError::Refused("the time is out of range".to_owned()))?;
        let body = Delayed::new(due_ms, message, dedup)?.to_body()?;
        let unbuilt = |e: BuildError| QueueError::Refused(format!("the request could not be built: {e}"));
        let window = FlexibleTimeWindow::builder().mode(FlexibleTimeWindowMode::Off).build();
        let request = self.client.create_schedule();
        let created = request
            // The name keeps a repeated call from making a second one (D14).
            .name(schedule_name(dedup))
            .group_name(&self.schedules.group)
            .schedule_expression(format!("at({})", fires.strftime("%Y-%m-%dT%H:%M:%S")))
            .schedule_expression_timezone("UTC")
            .flexible_time_window(window.map_err(unbuilt)?)
            .action_after_completion(ActionAfterCompletion::Delete)
            .target(self.target(body).map_err(unbuilt)?)
            .send()
            .await;
        match created {
            Ok(_) => Ok(()),
            Err(e) if e.as_service_error().is_some_and(CreateScheduleError::is_conflict_exception) => Ok(()),
            Err(e) => Err(classify(e)),
        }
    }
}

/// A derived dedup id fits Scheduler's alphabet and 64 characters; any other is replaced by one.
fn schedule_name(dedup: &DedupId) -> String {
    let fits =
        |id: &str| id.len() <= 64 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    match fits(dedup.as_str()) {
        true => dedup.as_str().to_owned(),
        false => DedupId::derive("timer", &[dedup.as_str()]).as_str().to_owned(),
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
