//! When a schedule fires: a cron expression over the local time of a zone. No clock: the time comes in as an argument.
//!
//! A local time that the clock skips fires at the first instant after the gap, one that comes twice at the first of the
//! two. So cron is only asked about local times, as if they were those of UTC, and what they mean is decided here.

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions, parse_crontab_with};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use serde::{Deserialize, Serialize};

/// Fields of an expression: nothing fires more often than once a minute.
const FIELDS: usize = 5;
/// Characters of an expression; every minute of an hour written out has fewer.
const MAX_CRON_CHARS: usize = 1_000;
/// Local times that are looked at for one firing: where the clock is set back, those that have been are skipped.
const MAX_STEPS: usize = 26 * 60;
/// Nothing is due beyond (the year 5000): the calendars end some thousand years later, and the search looks ahead.
const END_OF_TIME_S: i64 = 95_617_584_000;

/// How a schedule repeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recurrence {
    /// Minute, hour, day of month, month, day of week.
    pub cron: String,
    /// The IANA name of the zone whose local time it means.
    pub timezone: String,
    /// After so many firings it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_firings: Option<u32>,
}

/// One firing of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    /// Which, from 1.
    pub number: u32,
    /// When, in milliseconds since the epoch.
    pub due_ms: i64,
}

/// Why there is no such schedule. The text goes to the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecurrenceError {
    /// The expression has too many or too few fields.
    #[error(
        "a cron expression has five fields (minute, hour, day of month, month, day of week), and {0:?} has {1}"
    )]
    Fields(String, usize),
    /// The expression is not one that somebody wrote.
    #[error("the cron expression has more than {MAX_CRON_CHARS} characters")]
    TooLong,
    /// A field makes no sense.
    #[error("{0}")]
    Cron(String),
    /// There is no such zone.
    #[error("there is no time zone {0:?}; use an IANA name such as Europe/Berlin")]
    TimeZone(String),
    /// No date fits.
    #[error("{0:?} never fires in the next four years")]
    Never(String),
}

impl Recurrence {
    /// The first firing after `now_ms`.
    ///
    /// # Errors
    /// It makes no sense, or never fires.
    pub fn first(&self, now_ms: i64) -> Result<Firing, RecurrenceError> {
        Ok(Firing { number: 1, due_ms: self.next_after(now_ms)? })
    }

    /// The firing after `firing`, which was taken at `now_ms`: those that were missed in between are not made up for.
    /// None if that was the last one.
    pub fn next(&self, firing: Firing, now_ms: i64) -> Option<Firing> {
        if self.ends_with(firing) {
            return None;
        }
        let due_ms = self.next_after(firing.due_ms.max(now_ms)).ok()?;
        Some(Firing { number: firing.number.saturating_add(1), due_ms })
    }

    /// Whether no firing follows `firing`, however long one waits.
    pub fn ends_with(&self, firing: Firing) -> bool {
        self.max_firings.is_some_and(|most| firing.number >= most)
    }

    /// A time as the zone's clocks show it.
    pub fn local(&self, due_ms: i64) -> String {
        let zone = TimeZone::get(&self.timezone).unwrap_or(TimeZone::UTC);
        match Timestamp::from_millisecond(due_ms) {
            Ok(at) => format!("{} in {}", zone.to_datetime(at).strftime("%Y-%m-%d %H:%M"), self.timezone),
            Err(_) => format!("{due_ms} ms"),
        }
    }

    fn next_after(&self, after_ms: i64) -> Result<i64, RecurrenceError> {
        let never = || RecurrenceError::Never(self.cron.clone());
        let zone =
            TimeZone::get(&self.timezone).map_err(|_| RecurrenceError::TimeZone(self.timezone.clone()))?;
        let crontab = self.crontab()?;
        let after = Timestamp::from_millisecond(after_ms).map_err(|_| never())?;
        let mut local = as_if_utc(zone.to_datetime(after)).ok_or_else(never)?;
        for _ in 0..MAX_STEPS {
            if local > END_OF_TIME_S {
                break;
            }
            let from = MakeTimestamp::from_second(local).map_err(|_| never())?;
            local = crontab.find_next(from).map_err(|_| never())?.timestamp().as_second();
            let asked = Timestamp::from_second(local).map_err(|_| never())?;
            let (due, _) = instant(&zone, TimeZone::UTC.to_datetime(asked)).map_err(|_| never())?;
            if due > after {
                return Ok(due.as_millisecond());
            }
        }
        Err(never())
    }

    fn crontab(&self) -> Result<Crontab, RecurrenceError> {
        if self.cron.chars().count() > MAX_CRON_CHARS {
            return Err(RecurrenceError::TooLong);
        }
        let fields = self.cron.split_whitespace().count();
        if fields != FIELDS {
            return Err(RecurrenceError::Fields(self.cron.clone(), fields));
        }
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        parse_crontab_with(&self.cron, options).map_err(|e| RecurrenceError::Cron(e.to_string()))
    }
}

/// Seconds since the epoch of a local time, were it one of UTC.
fn as_if_utc(local: DateTime) -> Option<i64> {
    TimeZone::UTC.to_timestamp(local).ok().map(Timestamp::as_second)
}

/// The instant of a local time, and what kind of time it is: of one that was skipped the first after the gap, of one that
/// comes twice the earlier.
///
/// # Errors
/// It is beyond the calendar.
pub fn instant(zone: &TimeZone, local: DateTime) -> Result<(Timestamp, AmbiguousOffset), jiff::Error> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    let kind = ambiguous.offset();
    if let AmbiguousOffset::Gap { after, .. } = kind {
        // With the offset of after the gap the time lies before it: the next change of the zone is the gap's end.
        let before = after.to_timestamp(local)?;
        let end = zone.following(before).next().map(|change| change.timestamp());
        return Ok((end.map_or_else(|| ambiguous.later(), Ok)?, kind));
    }
    Ok((ambiguous.earlier()?, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(cron: &str, timezone: &str) -> Recurrence {
        Recurrence { cron: cron.to_owned(), timezone: timezone.to_owned(), max_firings: None }
    }

    fn ms(time: &str) -> i64 {
        time.parse::<Timestamp>().unwrap().as_millisecond()
    }

    /// The next `count` firings, in UTC.
    fn firings(cron: &str, timezone: &str, after: &str, count: usize) -> Vec<String> {
        let rule = rule(cron, timezone);
        let mut after = ms(after);
        let mut all = Vec::new();
        for _ in 0..count {
            after = rule.next_after(after).unwrap();
            all.push(Timestamp::from_millisecond(after).unwrap().to_string());
        }
        all
    }

    #[test]
    fn an_expression_means_the_local_time_of_its_zone() {
        assert_eq!(
            firings("30 9 * * mon-fri", "Europe/Berlin", "2026-03-27T08:00:00Z", 3),
            ["2026-03-27T08:30:00Z", "2026-03-30T07:30:00Z", "2026-03-31T07:30:00Z"],
            "a weekend, in which the clock is set forward, lies in between"
        );
        assert_eq!(firings("0 9 * * *", "Asia/Kolkata", "2026-03-01T00:00:00Z", 1), ["2026-03-01T03:30:00Z"]);
        assert_eq!(
            firings("*/20 0 1 JAN,jul *", "UTC", "2026-01-01T00:20:00Z", 3),
            ["2026-01-01T00:40:00Z", "2026-07-01T00:00:00Z", "2026-07-01T00:20:00Z"]
        );
        assert_eq!(firings("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", 1), ["2028-02-29T00:00:00Z"]);
        // Vixie's rule: with both days given, either will do.
        assert_eq!(
            firings("0 0 13 * fri", "UTC", "2026-03-02T00:00:00Z", 3),
            ["2026-03-06T00:00:00Z", "2026-03-13T00:00:00Z", "2026-03-20T00:00:00Z"]
        );
        // Strictly after, also within the minute.
        assert_eq!(firings("* * * * *", "UTC", "2026-03-01T00:00:59.999Z", 1), ["2026-03-01T00:01:00Z"]);
    }

    #[test]
    fn a_skipped_local_time_fires_at_the_first_instant_after_the_gap_and_once() {
        // 02:00 to 03:00 does not exist in Berlin on that day.
        assert_eq!(
            firings("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 2),
            ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        );
        assert_eq!(
            firings("*/20 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", 3),
            ["2026-03-29T00:40:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:20:00Z"],
            "three times of the gap and the one after it are one instant"
        );
        // A whole day: there was no 30 December 2011 in Samoa.
        assert_eq!(
            firings("0 12 * * *", "Pacific/Apia", "2011-12-29T23:00:00Z", 2),
            ["2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"]
        );
    }

    #[test]
    fn a_local_time_that_comes_twice_fires_at_the_first_of_the_two() {
        assert_eq!(
            firings("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
        assert_eq!(
            firings("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:10:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z"]
        );
        // Asked for within the second of the two hours, nothing of the past is due.
        assert_eq!(
            firings("* * * * *", "Europe/Berlin", "2026-10-25T01:15:30Z", 1),
            ["2026-10-25T02:00:00Z"]
        );
    }

    #[test]
    fn missed_firings_are_not_made_up_for_and_the_last_is_the_last() {
        let rule = Recurrence { max_firings: Some(3), ..rule("0 * * * *", "UTC") };
        let first = rule.first(ms("2026-03-01T00:30:00Z")).unwrap();
        assert_eq!(first, Firing { number: 1, due_ms: ms("2026-03-01T01:00:00Z") });
        let second = rule.next(first, ms("2026-03-04T10:10:00Z")).unwrap();
        assert_eq!(second, Firing { number: 2, due_ms: ms("2026-03-04T11:00:00Z") });
        // A clock that lags, or a timer that is early, does not fire twice for one time.
        let third = rule.next(second, ms("2026-03-04T10:59:00Z")).unwrap();
        assert_eq!(third, Firing { number: 3, due_ms: ms("2026-03-04T12:00:00Z") });
        assert_eq!(rule.next(third, third.due_ms), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_plain_words() {
        for (cron, zone, says) in [
            ("* * * * * *", "UTC", "has 6"),
            ("@daily", "UTC", "has 1"),
            ("* * * *", "UTC", "has 4"),
            ("", "UTC", "has 0"),
            ("60 * * * *", "UTC", "60"),
            ("a * * * *", "UTC", "a"),
            ("*/0 * * * *", "UTC", "0"),
            ("5-1 * * * *", "UTC", "5-1"),
            ("* * * * * ", "Mars/Olympus", "no time zone"),
            ("* * * * *", "../../etc/passwd", "no time zone"),
            (&"*".repeat(1_001), "UTC", "more than 1000"),
            ("0 0 30 2 *", "UTC", "never fires"),
            ("0 0 31 4,6 *", "UTC", "never fires"),
        ] {
            let error = rule(cron, zone).first(ms("2026-03-01T00:00:00Z")).unwrap_err().to_string();
            assert!(error.contains(says), "{cron} {zone}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn i9_no_expression_is_a_panic_and_what_it_names_lies_ahead(
            cron in "([0-9*/,#LWH?@a-zé-]{1,6}[ \\t\u{3000}]){4}[0-9*/,#LWH?a-z-]{1,6}|\\PC{0,40}",
            after in -62_000_000_000_000_i64..95_000_000_000_000,
        ) {
            if let Ok(due) = rule(&cron, "Europe/Berlin").next_after(after) {
                proptest::prop_assert!(due > after && due % 1000 == 0);
            }
        }
    }

    #[test]
    fn i9_no_time_however_odd_is_a_panic() {
        let rule = rule("* * * * *", "America/New_York");
        for ms in
            [i64::MIN, -1, 0, 1, i64::MAX, END_OF_TIME_S * 1000, 253_402_207_199_999, -377_705_023_200_000]
        {
            let _ = rule.next_after(ms);
            let _ = rule.local(ms);
        }
        assert_eq!(rule.next(Firing { number: u32::MAX, due_ms: i64::MAX }, 0), None);
    }
}
