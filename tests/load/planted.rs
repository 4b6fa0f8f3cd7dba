//! The judge finds what is planted into the evidence of a real run, or it proves nothing.

use std::time::Duration;

use crate::evidence::{Evidence, Stored};
use crate::judge::{Wrong, judge};
use crate::plan::{Pace, Plan, ThreadPlan};
use crate::report::percentile;
use crate::stack::Stack;

/// Threads of the run, one of them a burst; with so many messages one of the others surely calls tools.
const THREADS: usize = 4;
const MESSAGES: usize = 6;
const SEED: u64 = 7;

/// Judges `seen` after `plant` has changed it.
fn planted(plan: &ThreadPlan, seen: &Evidence, plant: impl FnOnce(&mut Evidence)) -> Vec<Wrong> {
    let mut seen = seen.clone();
    plant(&mut seen);
    let mut wrong: Vec<Wrong> = judge(plan, &seen).into_iter().map(|finding| finding.wrong).collect();
    wrong.sort();
    wrong.dedup();
    wrong
}

fn places(history: &[Stored], is: impl Fn(&Stored) -> bool) -> Vec<usize> {
    history.iter().enumerate().filter(|(_, entry)| is(entry)).map(|(place, _)| place).collect()
}

fn is_input(entry: &Stored) -> bool {
    matches!(entry, Stored::Input(_))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_judge_finds_a_planted_loss_duplicate_and_swap() {
    let _turn = crate::TURN.lock().await;
    let plan = Plan { faulty: false, ..Plan::new(SEED, THREADS, MESSAGES) };
    let stack = Stack::embedded().await;
    let outcome = crate::run::run(&plan, &stack).await;
    stack.stop().await;
    assert_eq!(outcome.findings, []);

    for thread in &plan.threads {
        let seen = &outcome.evidence[&thread.id];
        let planted = |plant: fn(&mut Evidence)| planted(thread, seen, plant);
        let found =
            |wrong: Vec<Wrong>, expected| assert!(wrong.contains(&expected), "{wrong:?} in {}", thread.id);
        found(planted(|seen| drop(seen.history.remove(places(&seen.history, is_input)[1]))), Wrong::Lost);
        found(
            planted(|seen| {
                let input = seen.history[places(&seen.history, is_input)[1]].clone();
                seen.history.push(input);
            }),
            Wrong::Duplicated,
        );
        found(
            planted(|seen| {
                let inputs = places(&seen.history, is_input);
                seen.history.swap(inputs[1], inputs[2]);
            }),
            Wrong::OutOfOrder,
        );
        assert_eq!(planted(|seen| seen.history.push(Stored::Input("else".to_owned()))), [Wrong::Foreign]);
        assert_eq!(planted(|seen| seen.unfinished.push("a call is pending".to_owned())), [Wrong::Unfinished]);
        found(planted(|seen| drop(seen.published.pop())), Wrong::Lost);
        assert_eq!(
            planted(|seen| {
                let again = seen.published[0].clone();
                seen.published.push(again);
            }),
            [],
            "one message may come several times"
        );
        found(
            planted(|seen| {
                let mut again = seen.published[0].clone();
                again.message_id.push_str("-b");
                seen.published.push(again);
            }),
            Wrong::Duplicated,
        );
        found(planted(|seen| seen.published.reverse()), Wrong::OutOfOrder);
        found(planted(|seen| seen.published[0].text.push('x')), Wrong::Lost);
    }

    let calls = |thread: &&ThreadPlan| thread.pace == Pace::Conversation && thread.calls().count() > 1;
    let thread = plan.threads.iter().find(calls).unwrap();
    let seen = &outcome.evidence[&thread.id];
    let planted = |plant: fn(&mut Evidence)| planted(thread, seen, plant);
    let is_result = |entry: &Stored| matches!(entry, Stored::Result { .. });
    assert!(places(&seen.history, is_result).len() > 1);
    fn result(seen: &Evidence) -> usize {
        places(&seen.history, |entry| matches!(entry, Stored::Result { .. }))[0]
    }
    assert_eq!(planted(|seen| drop(seen.history.remove(result(seen)))), [Wrong::Lost]);
    assert_eq!(
        planted(|seen| {
            let again = seen.history[result(seen)].clone();
            seen.history.push(again);
        }),
        [Wrong::Duplicated]
    );
    assert_eq!(
        planted(|seen| {
            let place = result(seen);
            if let Stored::Result { text, .. } = &mut seen.history[place] {
                text.push('x');
            }
        }),
        [Wrong::Foreign]
    );
    assert_eq!(
        planted(|seen| {
            let again = seen.invoked[0].clone();
            seen.invoked.push(again);
        }),
        [],
        "one call may be dispatched several times"
    );
    assert_eq!(
        planted(|seen| {
            let mut again = seen.invoked[0].clone();
            again.id.push('x');
            seen.invoked.push(again);
        }),
        [Wrong::Duplicated, Wrong::Foreign],
        "but not under another id"
    );
    assert_eq!(planted(|seen| seen.invoked[0].arguments = "x".into()), [Wrong::Lost, Wrong::Foreign]);
    let invoked_once = planted(|seen| {
        let id = seen.invoked[0].id.clone();
        seen.invoked.retain(|invoked| invoked.id != id);
    });
    assert_eq!(invoked_once, [Wrong::Lost, Wrong::Foreign]);
}

#[test]
fn a_percentile_is_the_nearest_rank() {
    let seconds: Vec<Duration> = (1..=200).map(Duration::from_secs).collect();
    assert_eq!(percentile(&seconds, 50), Duration::from_secs(100));
    assert_eq!(percentile(&seconds, 99), Duration::from_secs(198));
    assert_eq!(percentile(&seconds[..1], 99), Duration::from_secs(1));
    assert_eq!(percentile(&[], 50), Duration::ZERO);
}
