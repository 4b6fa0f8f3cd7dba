//! Seeded runs: turns, calls, late results, compactions, rewinds, redactions, failing summarisers, and slices that are killed
//! at any await. After each step every item is covered or in the view, every request is one that providers take, and what was
//! redacted stands nowhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse::message::{Compact, Epoch, InputContent, InputMessage, Rewind, RewindTarget, ThreadId};
use dormouse::model::scripted::{ScriptedErrorClass, ScriptedEvent};
use dormouse::store::memory::CommitFault;
use dormouse::store::{ConversationStore, behind};
use dormouse::thread::{RedactError, Redaction, redact};

use crate::bed::{Bed, HARD, WINDOW, long, size, texts};
use crate::kills::{seeded, work_off};
use crate::world::{Delivery, THREAD};

const SEEDS: u64 = 24;
const STEPS: usize = 30;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

/// A summariser that fails as a die has it.
fn unreliable(seed: u64) -> Bed {
    let state = Arc::new(AtomicU64::new(seed));
    Bed::with(WINDOW, move |number, request| {
        let mut rng = Rng(state.fetch_add(1, Ordering::Relaxed));
        match rng.below(8) {
            0 => vec![ScriptedEvent::error(ScriptedErrorClass::Transient, "away")],
            1 => vec![ScriptedEvent::error(ScriptedErrorClass::Overflow, "too long")],
            2 => vec![ScriptedEvent::Text("half".into()), ScriptedEvent::Cut(true)],
            3 => vec![ScriptedEvent::error(ScriptedErrorClass::Refused, "no")],
            _ => {
                // A summary says of what it is.
                let first =
                    texts(request).iter().find_map(|text| text.find("turn ").map(|at| text[at..].to_owned()));
                let first: String = first.unwrap_or_default().chars().take(9).collect();
                let mut summary = crate::bed::summary(number);
                summary.insert(0, ScriptedEvent::Text(format!("{first}; ")));
                summary
            }
        }
    })
}

/// What was redacted is in no log, no summary and no later request.
async fn check_redacted(bed: &Bed, seed: u64, redacted: &[(String, usize)]) {
    let thread = ThreadId::from(THREAD);
    let Some(meta) = bed.world.store.meta(&thread).await.unwrap() else { return };
    let requests = bed.world.model.requests();
    for (phrase, since) in redacted {
        for epoch in 0..=meta.epoch.0 {
            for item in bed.world.store.log(&thread, Epoch(epoch)).await.unwrap().items {
                assert!(!item.raw.contains(phrase), "seed {seed}: {phrase} is in the log {epoch}");
            }
        }
        if let Some(newest) = &meta.compaction.newest
            && let Some(generation) = bed.world.store.generation(&newest.id).await.unwrap()
        {
            assert!(!generation.text.contains(phrase), "seed {seed}: {phrase} is in a summary");
        }
        for request in &requests[*since..] {
            assert!(
                !texts(request).iter().any(|text| text.contains(phrase)),
                "seed {seed}: {phrase} is sent"
            );
        }
    }
}

async fn check(bed: &Bed, seed: u64) {
    let thread = ThreadId::from(THREAD);
    let Some(meta) = bed.world.store.meta(&thread).await.unwrap() else { return };
    let whole = bed.world.store.load(&thread, &[]).await.unwrap();
    let request = bed.world.store.load_for_request(&thread, &[]).await.unwrap();
    let spans: u64 = meta.spans().iter().map(|span| span.to.0 - span.from.0).sum();
    assert_eq!(whole.items.len() as u64, spans, "seed {seed}: every original can be read");
    assert_eq!(
        request.unread + request.items.len(),
        whole.items.len(),
        "seed {seed}: covered or in the view"
    );
    assert_eq!(request.items, whole.items[request.unread..], "seed {seed}");
    if let Some(newest) = &meta.compaction.newest {
        let (covered, _) = behind(&meta.spans(), &newest.through).expect("the watermark is of this view");
        assert_eq!(covered, request.unread, "seed {seed}");
        let generation = bed.world.store.generation(&newest.id).await.unwrap().expect("it is there");
        assert_eq!(
            Some(generation),
            request.generation,
            "seed {seed}: the rendered summary is the active one"
        );
        assert!(newest.id.epoch != meta.epoch || newest.id.number <= meta.compaction.last, "seed {seed}");
    }
    assert!(meta.compaction.run.attempts <= 4, "seed {seed}");
}

#[tokio::test]
async fn i1_i5_i7_79_no_mixture_of_crashes_failures_and_operations_loses_anything_or_wedges_a_thread() {
    let mut generations = 0;
    for seed in 0..SEEDS {
        generations += run(seed).await;
    }
    assert!(generations > SEEDS, "the runs compact at all: {generations}");
}

async fn run(seed: u64) -> u64 {
    let mut rng = Rng(seed);
    let bed = unreliable(seed);
    let mut kill = seeded(seed);
    let mut said = 0;
    let mut redacted = Vec::new();
    let operation = |content| InputMessage::plain(ThreadId::from(THREAD), content);
    let mut made = 0;
    for step in 0..STEPS {
        let mut queue: Vec<Delivery> = Vec::new();
        match rng.below(13) {
            0..=5 => {
                for _ in 0..=rng.below(3) {
                    queue.push(bed.world.user(&long(said)));
                    said += 1;
                }
            }
            6 | 7 => {
                let count = bed.world.tools.calls().len();
                queue.push(bed.world.user("both echo {} other {}"));
                work_off(&bed.world, std::mem::take(&mut queue), &mut kill).await;
                for call in
                    bed.world.tools.calls().into_iter().skip(count).collect::<std::collections::BTreeSet<_>>()
                {
                    if rng.below(4) > 0 {
                        queue.push(bed.world.result(&call, &"r".repeat(3_000)));
                    }
                }
            }
            8 => queue.push(bed.world.message(&operation(InputContent::Compact(Compact {
                manual: rng.below(2) == 0,
                focus: None,
            })))),
            9 => {
                let turn = u32::try_from(rng.below(20)).unwrap();
                let rewind = Rewind { target: RewindTarget::Turn(turn), seen: None, then: None };
                queue.push(bed.world.message(&operation(InputContent::Rewind(rewind))));
            }
            10 => {
                let faults = [CommitFault::Unavailable, CommitFault::LostRace, CommitFault::AnswerLost];
                bed.world.store.fail_commits([faults[usize::try_from(rng.below(3)).unwrap()]]);
                queue.push(bed.world.user(&long(said)));
                said += 1;
            }
            11 if said > 0 => {
                let phrase = format!("turn {}:", rng.below(said as u64));
                let what = Redaction::Text(phrase.clone());
                match redact(&bed.world.store, &ThreadId::from(THREAD), &what).await {
                    Ok(_) => redacted.push((phrase, bed.world.model.requests().len())),
                    Err(RedactError::NoThread(_)) => {}
                    Err(e) => panic!("seed {seed}: {e}"),
                }
            }
            _ => bed.pass(i64::try_from(rng.below(1_000)).unwrap()),
        }
        work_off(&bed.world, queue, &mut kill).await;
        check(&bed, seed).await;
        check_redacted(&bed, seed, &redacted).await;
        let meta = bed.world.store.meta(&THREAD.into()).await.unwrap();
        made += u64::from(step == STEPS - 1) * meta.map_or(0, |meta| u64::from(meta.compaction.last));
    }
    for request in bed.requests() {
        assert!(size(&request) <= HARD, "seed {seed}: {}", size(&request));
    }
    // Whatever has happened, it answers.
    work_off(&bed.world, vec![bed.world.user("say still here")], || None).await;
    assert!(bed.world.output.texts().iter().any(|text| text == "still here"), "seed {seed}");
    made
}
