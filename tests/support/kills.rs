//! Slices that are killed at an await and delivered again, as a crash and the queue do it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use super::world::{Delivery, World};

/// Deliveries before a world that does not come to rest is given up on.
const MAX_DELIVERIES: usize = 2_000;

/// Polls a delivery `polls` times and drops it, as a crash does; what it answered if it was done before.
fn killed_after(delivery: impl Future<Output = Vec<String>>, polls: usize) -> Option<Vec<String>> {
    let mut delivery = pin!(delivery);
    let mut context = Context::from_waker(futures::task::noop_waker_ref());
    (0..polls).find_map(|_| match delivery.as_mut().poll(&mut context) {
        Poll::Ready(failed) => Some(failed),
        Poll::Pending => None,
    })
}

/// Works everything off, in order; `kill` says after how many polls the next slice dies, if it does.
pub async fn work_off(world: &World, mut queue: Vec<Delivery>, mut kill: impl FnMut() -> Option<usize>) {
    for _ in 0..MAX_DELIVERIES {
        for (message, dedup) in std::mem::take(&mut *world.input.sent.lock().unwrap()) {
            let known = queue.iter().any(|waiting| waiting.dedup == dedup.as_str());
            if !known {
                queue.push(Delivery { dedup: dedup.as_str().to_owned(), ..world.message(&message) });
            }
        }
        let Some(next) = queue.first().cloned() else { return };
        let done = match kill() {
            Some(polls) => killed_after(world.deliver(std::slice::from_ref(&next)), polls),
            None => Some(world.deliver(std::slice::from_ref(&next)).await),
        };
        match done {
            Some(failed) if failed.is_empty() => drop(queue.remove(0)),
            Some(_) | None => queue[0] = next.again(),
        }
    }
    panic!("it does not come to rest: {queue:?}");
}

/// Kills as a seed has it: at most three times in a row, since five attempts are a reason to give up.
pub fn seeded(seed: u64) -> impl FnMut() -> Option<usize> {
    let (mut state, mut in_a_row) = (seed, 0);
    move || {
        // SplitMix64, so that a seed is a run.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let kills = in_a_row < 3 && mixed % 4 != 0;
        in_a_row = if kills { in_a_row + 1 } else { 0 };
        kills.then_some((mixed >> 32) as usize % 60)
    }
}
