//! `sleep`, `sleep_until` and `sleep_until_event_or_input`: passive calls, which anything may interrupt.
//!
//! A sleep is answered by its timer: a tool result that waits in the delay queue, under a dedup id of the call, so that
//! it wakes once however often it is sent. An interrupt does not stop it; what comes late is a note.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use serde::Deserialize;
use serde_json::json;

use super::arguments;
use crate::history::wording::{self, LocalTime};
use crate::message::{ContentPart, DedupId, InputMessage, instant};
use crate::queue::TimerSender;
use crate::tools::{Execution, Invocation, Tool, ToolDefinition, ToolError, Waiting, no_arguments};

/// The longest sleep: a year, also one with a leap day.
pub const MAX_SLEEP_SECONDS: i64 = 366 * 24 * 60 * 60;

/// A wake-up: when, and what the model reads then.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WakeUp {
    due_ms: i64,
    text: String,
}

/// Waits some seconds, or until a time.
pub(super) struct Sleep {
    definition: ToolDefinition,
    wake_up: fn(&str, Timestamp) -> Result<WakeUp, ToolError>,
    timers: Arc<dyn TimerSender>,
}

/// Waits for whatever comes.
pub(super) struct SleepUntilEventOrInput {
    definition: ToolDefinition,
}

impl Sleep {
    pub(super) fn seconds(timers: Arc<dyn TimerSender>) -> Self {
        let definition = ToolDefinition {
            name: "sleep".to_owned(),
            description: "Waits some seconds, at most a year. Nothing runs and nothing is charged meanwhile. A message \
                          of the user or an event ends the wait early."
                .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "seconds": {"type": "number", "description": "How long; fractions are rounded up"},
                    "reason": {"type": "string", "description": "What for"},
                },
                "required": ["seconds"],
            }),
        };
        Self { definition, wake_up: after_seconds, timers }
    }

    pub(super) fn until(timers: Arc<dyn TimerSender>) -> Self {
        let definition = ToolDefinition {
            name: "sleep_until".to_owned(),
            description:
                "Waits until a date and time, at most a year ahead. Nothing runs and nothing is charged \
                          meanwhile. A message of the user or an event ends the wait early."
                    .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "date": {"type": "string", "description": "YYYY-MM-DD"},
                    "time": {"type": "string", "description": "HH:MM or HH:MM:SS"},
                    "timezone": {"type": "string", "description": "An IANA name such as Europe/Berlin; UTC if absent"},
                },
                "required": ["date", "time"],
            }),
        };
        Self { definition, wake_up: at_local_time, timers }
    }
}

impl SleepUntilEventOrInput {
    pub(super) fn new() -> Self {
        let definition = ToolDefinition {
            name: "sleep_until_event_or_input".to_owned(),
            description:
                "Waits for the next event or message of the user, however long that takes. Call it alone, as \
                          the last call: results of calls beside it are read only when it ends."
                    .to_owned(),
            input_schema: no_arguments(),
        };
        Self { definition }
    }
}

#[async_trait]
impl Tool for Sleep {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Asynchronous(Waiting::Passive)
    }

    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        let WakeUp { due_ms, text } = (self.wake_up)(&call.arguments, Timestamp::now())?;
        // A repeated dispatch sends it again under the same id: the first that comes is the result.
        let dedup = DedupId::derive("timer", &[call.thread.as_str(), call.call.as_str()]);
        let parts = vec![ContentPart::text(text)];
        let message = InputMessage::tool_result(call.thread.clone(), call.call.clone(), parts);
        let sent = self.timers.schedule(due_ms, &message, &dedup).await;
        sent.map_err(|error| {
            tracing::warn!(thread = %call.thread, call = %call.call, %error, "a timer could not be set");
            ToolError::Unavailable("the timer could not be set".to_owned())
        })
    }
}

#[async_trait]
impl Tool for SleepUntilEventOrInput {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn execution(&self) -> Execution {
        Execution::Asynchronous(Waiting::Passive)
    }

    /// Whatever comes settles the call.
    async fn execute(&self, _call: &Invocation) -> Result<(), ToolError> {
        Ok(())
    }
}

fn after_seconds(text: &str, now: Timestamp) -> Result<WakeUp, ToolError> {
    #[derive(Deserialize)]
    struct Arguments {
        seconds: f64,
    }
    let Arguments { seconds } = arguments(text)?;
    if seconds.is_nan() || seconds > MAX_SLEEP_SECONDS as f64 {
        return Err(ToolError::Failed(format!(
            "seconds must be a number of at most {MAX_SLEEP_SECONDS}, a year"
        )));
    }
    let seconds = seconds.max(0.0).ceil() as i64;
    let due_ms = now.as_millisecond().saturating_add(seconds * 1000);
    Ok(WakeUp { due_ms, text: wording::slept(seconds) })
}

fn at_local_time(text: &str, now: Timestamp) -> Result<WakeUp, ToolError> {
    #[derive(Deserialize)]
    struct Arguments {
        date: String,
        time: String,
        timezone: Option<String>,
    }
    let Arguments { date, time, timezone } = arguments(text)?;
    let zone = timezone.as_deref().unwrap_or("UTC");
    let asked = parse_date(&date)?.to_datetime(parse_time(&time)?);
    let time_zone = TimeZone::get(zone).map_err(|_| {
        ToolError::Failed(format!("there is no time zone {zone:?}; use an IANA name such as Europe/Berlin"))
    })?;
    let out_of_range = |_| ToolError::Failed(format!("{asked} is out of range"));
    let (due, offset) = instant(&time_zone, asked).map_err(out_of_range)?;
    let latest = now.as_second().saturating_add(MAX_SLEEP_SECONDS);
    if due.as_second() > latest {
        return Err(ToolError::Failed(format!("{asked} in {zone} is more than a year ahead")));
    }
    let kind = match offset {
        _ if due <= now => LocalTime::Past,
        AmbiguousOffset::Unambiguous { .. } => LocalTime::Once,
        AmbiguousOffset::Fold { .. } => LocalTime::Twice,
        AmbiguousOffset::Gap { .. } => LocalTime::Skipped,
    };
    let local = |at: DateTime| at.strftime("%Y-%m-%d %H:%M:%S").to_string();
    let text = wording::slept_until(&local(time_zone.to_datetime(due)), &local(asked), zone, kind);
    Ok(WakeUp { due_ms: due.as_millisecond(), text })
}

fn parse_date(text: &str) -> Result<Date, ToolError> {
    Date::strptime("%Y-%m-%d", text)
        .map_err(|_| ToolError::Failed(format!("{text:?} is not a date of the form YYYY-MM-DD")))
}

fn parse_time(text: &str) -> Result<Time, ToolError> {
    Time::strptime("%H:%M:%S", text)
        .or_else(|_| Time::strptime("%H:%M", text))
        .map_err(|_| ToolError::Failed(format!("{text:?} is not a time of the form HH:MM or HH:MM:SS")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Registry;

    const NOW: &str = "2026-03-01T12:00:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    /// Seconds from now on, and the text.
    fn sleep(seconds: &str) -> Result<(i64, String), String> {
        told(after_seconds(&format!(r#"{{"seconds":{seconds}}}"#), now()))
    }

    fn told(wake_up: Result<WakeUp, ToolError>) -> Result<(i64, String), String> {
        let WakeUp { due_ms, text } = wake_up.map_err(|e| e.to_string())?;
        assert_eq!(due_ms % 1000, 0);
        Ok(((due_ms - now().as_millisecond()) / 1000, text))
    }

    /// When, in UTC, and the text.
    fn until(date: &str, time: &str, zone: Option<&str>) -> Result<(String, String), String> {
        let text = json!({"date": date, "time": time, "timezone": zone}).to_string();
        let WakeUp { due_ms, text } = at_local_time(&text, now()).map_err(|e| e.to_string())?;
        Ok((Timestamp::from_millisecond(due_ms).unwrap().to_string(), text))
    }

    #[test]
    fn zero_and_negative_seconds_are_due_now_and_fractions_round_up() {
        for (given, seconds) in [
            ("0", 0),
            ("-0.0", 0),
            ("-5", 0),
            ("-1e300", 0),
            ("0.001", 1),
            ("1", 1),
            ("2.5", 3),
            ("900.01", 901),
        ] {
            let (due, text) = sleep(given).unwrap();
            assert_eq!(due, seconds, "{given}");
            assert!(text.starts_with("The time is up: "), "{text}");
        }
    }

    #[test]
    fn a_year_is_slept_and_more_is_refused() {
        assert_eq!(sleep("31622400").unwrap().0, MAX_SLEEP_SECONDS);
        for given in ["31622400.5", "31622401", "1e300", "1.7976931348623157e308"] {
            assert!(sleep(given).unwrap_err().contains("at most 31622400"), "{given}");
        }
    }

    #[test]
    fn nan_and_other_nonsense_is_refused_before_the_call_goes_out() {
        struct Nowhere;
        #[async_trait]
        impl TimerSender for Nowhere {
            async fn schedule(
                &self,
                _: i64,
                _: &InputMessage,
                _: &DedupId,
            ) -> Result<(), crate::queue::QueueError> {
                unreachable!("nothing is dispatched")
            }
        }
        let tools: [Arc<dyn Tool>; 2] =
            [Arc::new(Sleep::seconds(Arc::new(Nowhere))), Arc::new(Sleep::until(Arc::new(Nowhere)))];
        let registry = Registry::new(tools);
        for given in [
            r#"{"seconds":NaN}"#,
            r#"{"seconds":"NaN"}"#,
            r#"{"seconds":1e400}"#,
            r#"{"seconds":null}"#,
            "{}",
        ] {
            assert!(registry.check_arguments("sleep", given).is_err(), "{given}");
            assert!(after_seconds(given, now()).is_err(), "{given}");
        }
        assert!(registry.check_arguments("sleep", r#"{"seconds":1.5,"reason":"tea"}"#).is_ok());
        assert!(registry.check_arguments("sleep_until", r#"{"date":"2026-03-02"}"#).is_err());
        assert!(registry.check_arguments("sleep_until", r#"{"date":"2026-03-02","time":"10:00"}"#).is_ok());
    }

    #[test]
    fn a_local_time_is_that_of_its_zone_and_utc_where_none_is_named() {
        let due = |date, time, zone| until(date, time, zone).unwrap().0;
        assert_eq!(due("2026-03-02", "10:00", None), "2026-03-02T10:00:00Z");
        assert_eq!(due("2026-03-02", "10:00:30", Some("Asia/Kolkata")), "2026-03-02T04:30:30Z");
        assert_eq!(due("2026-07-01", "10:00", Some("Europe/Berlin")), "2026-07-01T08:00:00Z");
        let (_, text) = until("2026-07-01", "10:00", Some("Europe/Berlin")).unwrap();
        assert_eq!(text, "The time is up: it is 2026-07-01 10:00:00 in Europe/Berlin.");
    }

    #[test]
    fn a_time_in_the_past_is_due_now_and_says_so() {
        let (due, text) = until("2026-03-01", "11:59", None).unwrap();
        assert_eq!(due, "2026-03-01T11:59:00Z", "what is past is sent at once");
        assert_eq!(text, "The time is up: 2026-03-01 11:59:00 in UTC was past already.");
        assert!(until("0001-01-01", "00:00", None).unwrap().1.contains("past already"));
    }

    #[test]
    fn a_skipped_hour_wakes_at_the_first_instant_after_the_gap_and_says_so() {
        let (due, text) = until("2026-03-29", "02:30", Some("Europe/Berlin")).unwrap();
        assert_eq!(due, "2026-03-29T01:00:00Z");
        assert_eq!(
            text,
            "The time is up: it is 2026-03-29 03:00:00 in Europe/Berlin. 2026-03-29 02:30:00 does not exist there, the \
             clock was set forward: this is the first moment after the gap."
        );
        // The last second before the gap and the first after it are themselves.
        assert_eq!(until("2026-03-29", "01:59:59", Some("Europe/Berlin")).unwrap().0, "2026-03-29T00:59:59Z");
        assert_eq!(until("2026-03-29", "02:00", Some("Europe/Berlin")).unwrap().0, "2026-03-29T01:00:00Z");
        assert_eq!(until("2026-03-29", "03:00", Some("Europe/Berlin")).unwrap().0, "2026-03-29T01:00:00Z");
        // A gap of half an hour.
        assert_eq!(
            until("2026-10-04", "02:15", Some("Australia/Lord_Howe")).unwrap().0,
            "2026-10-03T15:30:00Z"
        );
    }

    #[test]
    fn a_repeated_hour_wakes_at_the_earlier_and_says_so() {
        let (due, text) = until("2026-10-25", "02:30", Some("Europe/Berlin")).unwrap();
        assert_eq!(due, "2026-10-25T00:30:00Z");
        assert_eq!(
            text,
            "The time is up: it is 2026-10-25 02:30:00 in Europe/Berlin. That time comes twice there, the clock is set \
             back: this is the first of the two."
        );
    }

    #[test]
    fn bad_dates_times_and_zones_are_refused_in_plain_words() {
        for (date, time, zone, says) in [
            ("2026-02-30", "10:00", None, "not a date"),
            ("2026-3", "10:00", None, "not a date"),
            ("tomorrow", "10:00", None, "not a date"),
            ("2026-03-02T10:00", "10:00", None, "not a date"),
            ("2026-03-02", "24:00", None, "not a time"),
            ("2026-03-02", "10", None, "not a time"),
            ("2026-03-02", "10:00:00.5", None, "not a time"),
            ("2026-03-02", "10:00", Some("Mars/Olympus"), "no time zone"),
            ("2026-03-02", "10:00", Some("../../etc/passwd"), "no time zone"),
            ("2026-03-02", "10:00", Some(""), "no time zone"),
            ("2027-03-04", "10:00", None, "more than a year ahead"),
            ("9999-12-31", "23:59:59", Some("America/New_York"), "out of range"),
        ] {
            let error = until(date, time, zone).unwrap_err();
            assert!(error.contains(says), "{date} {time} {zone:?}: {error}");
        }
    }
}
