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
#[path = "simulation/plan.rs"]
mod plan;
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
use sim::Stats;

/// Slices of a plain test run.
const SLICES: u64 = 100_000;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Plays a failed seed again with a trace, and fails.
fn report(stage: &Stage, seed: u64, plan: Plan, broken: &str) -> ! {
    let End { broken: again, trace, .. } = stage.play(seed, plan.clone(), true);
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
        let end = stage.play(seed, Plan::free(seed), false);
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
    let end = stage.play(seed, Plan::free(seed), true);
    println!("{}\n{:?}", end.trace, end.stats);
    if let Some(broken) = end.broken {
        report(&stage, seed, Plan::free(seed), &broken);
    }
}
