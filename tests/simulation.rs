//! The whole slice in a deterministic world: one seed drives the store's faults, the queue's redeliveries, the
//! model, the tools, the people, the clock and the crashes, and every promise of the design is looked at after
//! every step.
//!
//! A seed that breaks one prints itself, the last steps and a command that replays it. `SIM_SLICES` sets how many
//! slices are run, `SIM_FIRST` the first seed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "simulation/checks.rs"]
mod checks;
#[path = "simulation/driver.rs"]
mod driver;
#[path = "simulation/ledger.rs"]
mod ledger;
#[path = "simulation/model.rs"]
mod model;
#[path = "simulation/people.rs"]
mod people;
#[path = "simulation/plan.rs"]
mod plan;
#[path = "simulation/planted.rs"]
mod planted;
#[path = "simulation/ports.rs"]
mod ports;
#[path = "support/history/provider_rules.rs"]
mod provider_rules;
#[path = "simulation/queue.rs"]
mod queue;
#[path = "simulation/rng.rs"]
mod rng;
#[path = "simulation/sent.rs"]
mod sent;
#[path = "simulation/sim.rs"]
mod sim;
#[path = "simulation/tools.rs"]
mod tools;

use std::time::Instant;

use driver::{End, Stage};
use plan::Plan;
use planted::{Bug, Planted};
use sim::Stats;

/// Slices of a plain test run.
const SLICES: u64 = 100_000;
/// Worlds that are lived twice, with crashes and without.
const PAIRS: u64 = 300;
/// Worlds in which a planted bug must show.
const BUG_WORLDS: u64 = 2_000;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Lines of a trace: more of them with `SIM_TRACE`.
fn lines() -> usize {
    setting("SIM_TRACE").map_or(sim::TRACE, |lines| lines as usize)
}

/// Plays a failed seed again with a trace, and fails.
fn report(stage: &Stage, seed: u64, plan: Plan, broken: &str) -> ! {
    let End { broken: again, trace, .. } = stage.play(seed, plan.clone(), lines());
    panic!(
        "seed {seed}: {broken}\n{}{plan:?}\n{trace}\nreplay: SIM_SEED={seed} cargo test --test simulation \
         replay -- --nocapture\n",
        if again.as_deref() == Some(broken) { "" } else { "(a second run went another way)\n" },
    );
}

#[test]
fn i1_to_i9_hold_in_every_world() {
    let wanted = setting("SIM_SLICES").unwrap_or(SLICES);
    let stage = Stage::sound();
    let mut stats = Stats::default();
    let started = Instant::now();
    for seed in setting("SIM_FIRST").unwrap_or(1).. {
        let end = stage.play(seed, Plan::free(seed), 0);
        stats += end.stats;
        if let Some(broken) = end.broken {
            report(&stage, seed, Plan::free(seed), &broken);
        }
        if stats.slices >= wanted {
            break;
        }
    }
    println!("{stats:?}, violations: 0, {:?}", started.elapsed());
}

#[test]
fn replay() {
    let Some(seed) = setting("SIM_SEED") else { return };
    let stage = Stage::sound();
    let end = stage.play(seed, Plan::free(seed), lines());
    println!("{}\n{:?}", end.trace, end.stats);
    if let Some(broken) = end.broken {
        report(&stage, seed, Plan::free(seed), &broken);
    }
}

#[test]
fn a_world_of_crashes_ends_as_the_same_world_without_them() {
    let stage = Stage::sound();
    let first = setting("SIM_FIRST").unwrap_or(1);
    let mut stats = Stats::default();
    for seed in first..first + setting("SIM_PAIRS").unwrap_or(PAIRS) {
        let (calm, wild) = (Plan::orderly(seed, 0), Plan::orderly(seed, 500));
        let uncrashed = stage.play(seed, calm.clone(), 0);
        if let Some(broken) = uncrashed.broken {
            report(&stage, seed, calm, &broken);
        }
        let crashed = stage.play(seed, wild.clone(), 0);
        if let Some(broken) = crashed.broken {
            report(&stage, seed, wild, &broken);
        }
        if uncrashed.story != crashed.story {
            let differ = |(a, b): &(&String, &String)| a != b;
            let first = uncrashed.story.iter().zip(&crashed.story).find(differ);
            println!("{}", stage.play(seed, wild, lines()).trace);
            panic!("seed {seed}: crashes change the end: {first:#?}");
        }
        stats += crashed.stats;
    }
    println!("{stats:?}");
}

/// Lives worlds until one breaks one of the promises, as a sentence about it says.
fn breaks(bug: Bug, promises: &[&str]) {
    let stage = Stage::new(Planted::store(bug));
    for seed in 1..=BUG_WORLDS {
        let Some(broken) = stage.play(seed, Plan::free(seed), 0).broken else { continue };
        println!("{bug:?}: seed {seed}: {broken}");
        if promises.iter().any(|promise| broken.contains(promise)) {
            return;
        }
    }
    panic!("{bug:?} was not found in {BUG_WORLDS} worlds");
}

#[test]
fn planted_dedup_rows_outside_the_transaction_are_found() {
    breaks(Bug::DedupApart, &["I2", "is acknowledged without effect"]);
}

#[test]
fn planted_commits_that_are_called_durable_too_early_are_found() {
    breaks(Bug::DoneBeforeWritten, &["leaves and is not committed"]);
}

#[test]
fn planted_writers_without_a_fence_are_found() {
    breaks(Bug::NoFence, &["I2", "I6"]);
}

#[test]
fn planted_promises_that_are_forgotten_are_found() {
    breaks(Bug::NoOutbox, &["I3", "I4"]);
}

#[test]
fn planted_summaries_without_a_fence_are_found() {
    breaks(Bug::NoCompactionFence, &["C13", "C32"]);
}
