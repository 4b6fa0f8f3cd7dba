//! Load with faults: many threads at once through the real clients, handler, tool server and callbacks, on a wire on
//! which answers get lost, requests are throttled and transactions collide, with workers that die and messages that
//! come twice. Afterwards every input, effect and reply is counted from outside: none lost, none twice, order kept.
//!
//! ```sh
//! cargo test --test load                                                   # small, on every stack there is
//! LOAD_STACK=embedded LOAD_THREADS=1000 LOAD_MESSAGES=10 cargo test --test load i1_i2
//! ```
//!
//! `LOAD_STACK` is `embedded` or `ministack` (which needs `DORMOUSE_TEST_DYNAMODB_URL`), absent: both. `LOAD_SEED`
//! chooses texts and faults, not the schedule; `LOAD_ACTIVE` is how many threads are spoken to at once; `LOAD_SECONDS`
//! bounds a run (at most 15 minutes where it is absent); `LOAD_FAULTS=0` is a run without faults.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![cfg(feature = "local")]

#[path = "support/ddb.rs"]
mod ddb;
#[path = "load/evidence.rs"]
mod evidence;
#[path = "load/faults.rs"]
mod faults;
#[path = "load/judge.rs"]
mod judge;
#[path = "load/plan.rs"]
mod plan;
#[path = "load/planted.rs"]
mod planted;
#[path = "load/report.rs"]
mod report;
#[allow(dead_code, reason = "the simulation uses the rest of it")]
#[path = "simulation/rng.rs"]
mod rng;
#[path = "load/run.rs"]
mod run;
#[path = "load/stack.rs"]
mod stack;
#[path = "load/tools.rs"]
mod tools;
#[path = "load/wire.rs"]
mod wire;

use plan::Plan;
use stack::Stack;

/// One run at a time: each is to be measured.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn holds(stack: Stack) {
    let plan = Plan::from_environment();
    let outcome = run::run(&plan, &stack).await;
    stack.stop().await;
    report::print(&plan, &outcome);
    let missing = outcome.faults.missing();
    assert!(missing.is_empty(), "never injected: {missing:?}");
    assert!(outcome.findings.is_empty(), "{} findings, the first of them above", outcome.findings.len());
}

/// Whether the environment wants a run on `stack`.
fn wanted(stack: &str) -> bool {
    match std::env::var("LOAD_STACK") {
        Ok(wanted) => {
            assert!(["embedded", "ministack"].contains(&wanted.as_str()), "LOAD_STACK={wanted} is no stack");
            wanted == stack
        }
        Err(_) => true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i2_on_the_embedded_stack_nothing_is_lost_doubled_or_out_of_order() {
    let _turn = TURN.lock().await;
    if wanted("embedded") {
        holds(Stack::embedded().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i2_on_a_foreign_server_nothing_is_lost_doubled_or_out_of_order() {
    let _turn = TURN.lock().await;
    if let Some(url) = ddb::server_url().filter(|_| wanted("ministack")) {
        holds(Stack::ministack(&url).await).await;
    }
}
