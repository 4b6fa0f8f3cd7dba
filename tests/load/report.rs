//! The table that a run prints.

use std::io::Write;
use std::time::Duration;

use crate::faults::Fault;
use crate::judge::Wrong;
use crate::plan::Plan;
use crate::run::Outcome;

/// Findings that are shown one by one.
const SHOWN: usize = 20;

/// Printed past the capture of test output: the figures are what the run is for.
pub fn print(plan: &Plan, outcome: &Outcome) {
    let count = |wrong| outcome.findings.iter().filter(|finding| finding.wrong == wrong).count();
    let mut rows: Vec<(String, String)> = vec![
        ("stack".into(), outcome.stack.into()),
        ("seed".into(), plan.seed.to_string()),
        (
            "threads × messages".into(),
            format!("{} × {}", plan.threads.len(), plan.messages() / plan.threads.len()),
        ),
        ("threads active at once".into(), plan.active.to_string()),
        ("slices".into(), outcome.slices.to_string()),
        ("redeliveries".into(), outcome.redeliveries.to_string()),
    ];
    rows.extend(Fault::ALL.map(|fault| (fault.name().into(), outcome.faults.injected(fault).to_string())));
    rows.extend([
        ("lost".into(), count(Wrong::Lost).to_string()),
        ("duplicated".into(), count(Wrong::Duplicated).to_string()),
        ("out of order".into(), count(Wrong::OutOfOrder).to_string()),
        ("foreign".into(), count(Wrong::Foreign).to_string()),
        ("unfinished".into(), count(Wrong::Unfinished).to_string()),
        ("slices per second".into(), format!("{:.1}", outcome.slices as f64 / outcome.busy.as_secs_f64())),
        ("send to reply, p50".into(), shown(percentile(&outcome.latencies, 50))),
        ("send to reply, p99".into(), shown(percentile(&outcome.latencies, 99))),
        ("busy".into(), shown(outcome.busy)),
        ("wall".into(), shown(outcome.wall)),
    ]);
    let mut text = String::from("\n");
    for (name, value) in rows {
        text.push_str(&format!("{name:<28}{value:>12}\n"));
    }
    for finding in outcome.findings.iter().take(SHOWN) {
        text.push_str(&format!("{:?} in {}: {}\n", finding.wrong, finding.thread, finding.what));
    }
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

fn shown(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// The smallest value that so many percent do not exceed (nearest rank).
pub fn percentile(ascending: &[Duration], percent: usize) -> Duration {
    let rank = (ascending.len() * percent).div_ceil(100).max(1);
    ascending.get(rank - 1).copied().unwrap_or_default()
}
