//! The numbers of compaction, in tokens: budgets of a window, and what they mean for a history. Pure. A budget is the
//! largest size that is allowed: only what is above it triggers anything.

use std::time::Duration;

/// Tokens of the window that are kept for the response, and for estimates being off; at most half of the window.
const RESERVE: u64 = 16_384;
/// The largest part of the window that a history fills before it is compacted in the background.
pub const DEFAULT_THRESHOLD_PERCENT: u8 = 80;
/// What is kept verbatim at most.
const MAX_TAIL: u64 = 40_000;
/// Tokens of a summariser's instructions and frame.
const SUMMARY_FRAME: u64 = 2_000;
/// A summariser whose budget is not above it is of no use.
const MIN_SUMMARY_BUDGET: u64 = 2_000;
/// The largest summary that is accepted.
const MAX_SUMMARY: u64 = 16_000;
/// The least that a summary leaves of a budget.
const MIN_BESIDE_SUMMARY: u64 = 1_000;
/// The largest output that a summariser is asked for.
const MAX_SUMMARY_OUTPUT: u64 = 8_192;
/// The smallest input that a repeat is shrunk to.
const MIN_SHRUNK: u64 = 1_000;

/// The longest that one call of a summariser may take.
const CALL_TIME: Duration = Duration::from_secs(240);
/// No call is begun with less time than this.
const MIN_CALL_TIME: Duration = Duration::from_secs(30);
/// Left of the invocation for the commit.
const COMMIT_TIME: Duration = Duration::from_secs(10);
/// Left of the invocation for the reply, where somebody waits for one.
const REPLY_TIME: Duration = Duration::from_secs(120);

/// Failed jobs after which nothing is tried any more until something changes.
pub const MAX_ATTEMPTS: u32 = 4;
/// When the next job may be tried after the first, second, … failed one.
const BACK_OFF: [Duration; 3] = [Duration::from_secs(30), Duration::from_secs(120), Duration::from_secs(600)];

/// Chunks of one invocation in the background.
pub const BACKGROUND_CHUNKS: usize = 3;

/// What a model's window means for a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// The largest request.
    pub hard: u64,
    /// The largest request that is left as it is.
    pub soft: u64,
    /// The part of a request that no compaction makes smaller: system prompt and tools.
    pub fixed: u64,
}

impl Budgets {
    /// The budgets of a window.
    pub fn new(window: u64, fixed: u64, threshold_percent: u8) -> Self {
        let hard = window - RESERVE.min(window / 2);
        let threshold = u64::try_from(u128::from(window) * u128::from(threshold_percent.min(100)) / 100);
        let soft = threshold.unwrap_or(u64::MAX).min(hard - hard / 8);
        Self { hard, soft, fixed }
    }

    /// The largest history.
    pub fn hard_history(&self) -> u64 {
        self.hard.saturating_sub(self.fixed)
    }

    /// The largest history that is left as it is.
    pub fn soft_history(&self) -> u64 {
        self.soft.saturating_sub(self.fixed)
    }

    /// How much of the newest history stays verbatim.
    pub fn tail(&self) -> u64 {
        MAX_TAIL.min(self.hard_history() / 5)
    }

    /// What a history of that size asks for.
    pub fn decide(&self, history: u64) -> Decision {
        match history {
            size if size > self.hard_history() => Decision::Foreground,
            size if size > self.soft_history() => Decision::Background,
            _ => Decision::Fits,
        }
    }
}

/// What a history's size asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Fits,
    /// Compaction beside the conversation.
    Background,
    /// Compaction before the next request.
    Foreground,
}

/// Tokens of conversation that a summariser with this window reads at once.
pub fn summary_budget(window: u64) -> u64 {
    let tenths = |n: u64| u64::try_from(u128::from(window) * u128::from(n) / 10).unwrap_or(u64::MAX);
    tenths(9).saturating_sub(RESERVE).max(tenths(4)).saturating_sub(SUMMARY_FRAME)
}

/// Whether a summariser with this budget is of any use.
pub fn is_available(summary_budget: u64) -> bool {
    summary_budget > MIN_SUMMARY_BUDGET
}

/// The largest summary that every one of these budgets has room for: those of the summarisers, and the history of the
/// model that goes on with it.
pub fn accept_limit(budgets: impl IntoIterator<Item = u64>) -> u64 {
    let room = |budget: u64| budget.saturating_sub(MIN_BESIDE_SUMMARY.max(budget / 4));
    budgets.into_iter().map(room).min().unwrap_or(0).min(MAX_SUMMARY)
}

/// The output limit of a summariser's call.
pub fn summary_output(profile: Option<u32>, accept_limit: u64) -> u64 {
    MAX_SUMMARY_OUTPUT.min(accept_limit).min(profile.map_or(u64::MAX, u64::from))
}

/// The input of a repeat after one of `actual` tokens was too much; none if there is nothing smaller that still covers
/// anything (`smallest`).
pub fn shrink(actual: u64, smallest: u64, budget: u64) -> Option<u64> {
    let smaller = budget.min(MIN_SHRUNK.max(smallest).max(actual / 2));
    (smaller < actual).then_some(smaller)
}

/// Whether somebody waits for a reply that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Before a reply.
    Fore,
    /// Beside the conversation.
    Back,
}

/// How long a call may take when so much of the invocation is left; none: not to be begun.
pub fn call_time(left: Duration, ground: Ground) -> Option<Duration> {
    let margins = match ground {
        Ground::Back => COMMIT_TIME,
        Ground::Fore => COMMIT_TIME + REPLY_TIME,
    };
    let time = left.saturating_sub(margins).min(CALL_TIME);
    (time >= MIN_CALL_TIME).then_some(time)
}

/// How long nothing is tried after that many failed jobs.
pub fn back_off(attempts: u32) -> Duration {
    let last = BACK_OFF.len() - 1;
    BACK_OFF[usize::try_from(attempts.saturating_sub(1)).unwrap_or(last).min(last)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_6_windows() {
        for (window, fixed, hard, soft, hard_history, soft_history, tail) in [
            (1_000, 1_100, 500, 438, 0, 0, 0),
            (8_000, 2_000, 4_000, 3_500, 2_000, 1_500, 400),
            (32_000, 4_000, 16_000, 14_000, 12_000, 10_000, 2_400),
            (64_000, 6_000, 47_616, 41_664, 41_616, 35_664, 8_323),
            (128_000, 8_000, 111_616, 97_664, 103_616, 89_664, 20_723),
            (200_000, 10_000, 183_616, 160_000, 173_616, 150_000, 34_723),
            (1_000_000, 20_000, 983_616, 800_000, 963_616, 780_000, 40_000),
        ] {
            let budgets = Budgets::new(window, fixed, DEFAULT_THRESHOLD_PERCENT);
            assert_eq!((budgets.hard, budgets.soft), (hard, soft), "{window}");
            let all = (budgets.hard_history(), budgets.soft_history(), budgets.tail());
            assert_eq!(all, (hard_history, soft_history, tail), "{window}");
        }
        let odd = Budgets::new(0, 7, 100);
        assert_eq!((odd.hard, odd.soft, odd.tail()), (0, 0, 0));
        assert_eq!(Budgets::new(u64::MAX, 0, 255).tail(), MAX_TAIL);
    }

    #[test]
    fn part_6_summary_budgets() {
        for (window, budget, available, limit) in [
            (5_000, 0, false, None),
            (9_999, 1_999, false, None),
            (10_000, 2_000, false, None),
            (10_003, 2_001, true, Some(1_001)),
            (16_000, 4_400, true, Some(3_300)),
            (32_000, 10_800, true, Some(8_100)),
            (64_000, 39_216, true, Some(16_000)),
            (128_000, 96_816, true, Some(16_000)),
            (200_000, 161_616, true, Some(16_000)),
            (1_000_000, 881_616, true, Some(16_000)),
        ] {
            assert_eq!(summary_budget(window), budget, "{window}");
            assert_eq!(is_available(budget), available, "{window}");
            if let Some(limit) = limit {
                assert_eq!(accept_limit([budget]), limit, "{window}");
            }
        }
        assert_eq!(accept_limit([12_000, 39_216]), 9_000, "the least over all of them");
        assert_eq!(accept_limit([1_300, 39_216]), 300);
        assert_eq!(accept_limit([]), 0);
        assert_eq!(summary_output(Some(4_096), 16_000), 4_096);
        assert_eq!(summary_output(None, 16_000), 8_192);
        assert_eq!(summary_output(None, 300), 300);
    }

    #[test]
    fn part_6_decisions() {
        let budgets = Budgets::new(200_000, 10_000, DEFAULT_THRESHOLD_PERCENT);
        assert_eq!(budgets.decide(150_000), Decision::Fits);
        assert_eq!(budgets.decide(150_001), Decision::Background);
        assert_eq!(budgets.decide(173_616), Decision::Background);
        assert_eq!(budgets.decide(173_617), Decision::Foreground);
    }

    #[test]
    fn part_6_shrinking() {
        assert_eq!(shrink(96_000, 3_000, 96_816), Some(48_000));
        assert_eq!(shrink(2_400, 1_800, 96_816), Some(1_800));
        assert_eq!(shrink(1_900, 900, 2_001), Some(1_000));
        assert_eq!(shrink(1_500, 1_600, 2_001), None);
        assert_eq!(shrink(1_000, 200, 2_001), None);
    }

    #[test]
    fn part_6_time_left() {
        let time = |left, ground| call_time(Duration::from_secs(left), ground).map(|time| time.as_secs());
        assert_eq!(time(900, Ground::Back), Some(240));
        assert_eq!(time(100, Ground::Back), Some(90));
        assert_eq!(time(39, Ground::Back), None);
        assert_eq!(time(300, Ground::Fore), Some(170));
        assert_eq!(time(150, Ground::Fore), None);
    }

    #[test]
    fn c27_attempts_back_off() {
        let seconds: Vec<u64> = (1..=5).map(|attempts| back_off(attempts).as_secs()).collect();
        assert_eq!(seconds, [30, 120, 600, 600, 600]);
    }
}
