//! What holds for every store: summaries beside the items, and META's pointer to the newest one.

use std::collections::BTreeSet;

use dormouse::message::{Epoch, RawJson, Seq, ThreadId};
use dormouse::model::{Mechanism, Usage};
use dormouse::store::{
    Compacted, CompactionCommit, CompactionRun, Generation, GenerationId, Meta, Native, Pointer, Position,
    Span,
};

use crate::bed::{Bed, append, raws, said};

/// The `number`th summary of a thread's first log, up to `through`.
pub fn generation(meta: &Meta, number: u32, through: u64, text: &str) -> Generation {
    let at = |seq| Position { thread: meta.thread.clone(), epoch: meta.epoch, seq: Seq(seq) };
    let id = |number| GenerationId { thread: meta.thread.clone(), epoch: meta.epoch, number };
    Generation {
        at: Pointer {
            id: id(number),
            through: at(through),
            opener: through.is_multiple_of(2).then(|| at(1)),
        },
        text: text.to_owned(),
        digest: format!("digest of {text:.20}"),
        parent: (number > 1).then(|| id(number - 1)),
        system: vec!["be brief".to_owned()],
        instructions: vec!["use tabs".to_owned()],
        model: "m".to_owned(),
        partial: false,
        source_tokens: 7,
        created_at_ms: 1,
        native: (number == 1).then(|| checkpoint(text)),
    }
}

/// A provider's checkpoint, with spellings that must stay as they are.
fn checkpoint(text: &str) -> Native {
    let block =
        RawJson::parse(r#"{"type":"compaction", "n":1.0,"content":"a\u0062","signature":"s=="}"#).unwrap();
    let usage = Some(Usage { input: 3, output: 2, cached: 1 });
    Native::new(Mechanism::AnthropicOnDemand, "r".into(), usage, text, vec![block])
}

pub fn chunk(meta: &Meta, last: u32, generation: Generation) -> CompactionCommit {
    CompactionCommit {
        thread: meta.thread.clone(),
        epoch: meta.epoch,
        last,
        generation: Some(generation),
        run: CompactionRun { profile: "p".into(), ..CompactionRun::default() },
    }
}

async fn thread(bed: &Bed, items: usize) -> Meta {
    let texts: Vec<String> = (1..=items).map(|n| said(&n.to_string())).collect();
    bed.thread("t", &texts.iter().map(String::as_str).collect::<Vec<_>>()).await
}

pub async fn c9_c13_a_generation_hides_items_from_requests_and_from_nothing_else(bed: &Bed) {
    let meta = thread(bed, 6).await;
    let long = "ä".repeat(20_000);
    let first = generation(&meta, 1, 4, &long);
    assert_eq!(bed.store.compact(chunk(&meta, 0, first.clone())).await.unwrap(), Compacted::Done);
    assert_eq!(bed.store.generation(&first.at.id).await.unwrap().as_ref(), Some(&first), "to the byte");

    let request = bed.store.load_for_request(&meta.thread, &[]).await.unwrap();
    assert_eq!((request.unread, raws(&request)), (4, vec![&*said("5"), &said("6")]));
    assert_eq!(request.generation.as_ref(), Some(&first));
    assert_eq!(request.opener.map(|item| item.seq), Some(Seq(1)), "C21");
    let stored = request.meta.unwrap();
    assert_eq!(stored.compaction.newest.as_ref(), Some(&first.at));
    assert_eq!((stored.compaction.last, stored.compaction.run.profile.as_str()), (1, "p"));

    let whole = bed.load(&meta.thread).await;
    assert_eq!((whole.unread, whole.items.len()), (0, 6), "I8: everything can be read");
    assert_eq!(whole.generation, Some(first.clone()));
    let span = Span { thread: meta.thread.clone(), epoch: Epoch(0), from: Seq(1), to: Seq(3) };
    let read: Vec<u64> = bed.store.read_span(&span).await.unwrap().iter().map(|item| item.seq.0).collect();
    assert_eq!(read, [2, 3]);

    // The next one continues it; the older one is still there.
    let second = generation(&meta, 2, 5, "shorter");
    assert_eq!(bed.store.compact(chunk(&meta, 1, second.clone())).await.unwrap(), Compacted::Done);
    let request = bed.store.load_for_request(&meta.thread, &[]).await.unwrap();
    assert_eq!((request.unread, request.items.len(), request.generation), (5, 1, Some(second)));
    assert_eq!(request.opener, None);
    assert!(bed.store.generation(&first.at.id).await.unwrap().is_some());
    let nothing = GenerationId { number: 9, ..first.at.id };
    assert_eq!(bed.store.generation(&nothing).await.unwrap(), None);
}

pub async fn c10_a_slice_and_a_compaction_overwrite_nothing_of_each_other(bed: &Bed) {
    let meta = thread(bed, 4).await;
    // The slice was loaded before the compaction, and commits after it.
    let mut slice = append(&meta, &[&said("5")]);
    slice.meta.self_caused = 3;
    assert_eq!(
        bed.store.compact(chunk(&meta, 0, generation(&meta, 1, 2, "s"))).await.unwrap(),
        Compacted::Done
    );
    assert_eq!(bed.commit(slice).await, dormouse::store::Committed::Done, "neither head nor token has moved");
    let now = bed.store.meta(&meta.thread).await.unwrap().unwrap();
    assert_eq!((now.head, now.self_caused), (Seq(6), 3));
    assert_eq!(
        (now.compaction.last, now.compaction.newest.map(|newest| newest.through.seq)),
        (1, Some(Seq(2)))
    );
    // And the other way round: the compaction was planned before the slice's commit.
    let second = generation(&meta, 2, 3, "s2");
    assert_eq!(bed.store.compact(chunk(&meta, 1, second)).await.unwrap(), Compacted::Done);
    let now = bed.store.meta(&meta.thread).await.unwrap().unwrap();
    assert_eq!((now.head, now.self_caused, now.compaction.last), (Seq(6), 3, 2));
}

pub async fn c10_c16_a_compaction_counts_only_where_it_was_planned(bed: &Bed) {
    let meta = thread(bed, 4).await;
    let lost = |change| async { bed.store.compact(change).await.unwrap() == Compacted::Lost };
    let before = bed.store.meta(&meta.thread).await.unwrap();
    assert!(lost(chunk(&meta, 1, generation(&meta, 2, 2, "s"))).await, "another number");
    let rewound = Meta { epoch: Epoch(1), ..meta.clone() };
    assert!(lost(chunk(&rewound, 0, generation(&rewound, 1, 2, "s"))).await, "another log");
    let nobody = Meta { thread: ThreadId::from("nobody"), ..meta.clone() };
    assert!(lost(chunk(&nobody, 0, generation(&nobody, 1, 2, "s"))).await, "a thread that is not there");
    assert_eq!(bed.store.meta(&nobody.thread).await.unwrap(), None, "C16: it is not made");
    assert_eq!(bed.store.meta(&meta.thread).await.unwrap(), before, "nothing was written");
    let mut close = append(&meta, &[]);
    close.meta.closed = true;
    bed.commit(close).await;
    assert!(lost(chunk(&meta, 0, generation(&meta, 1, 2, "s"))).await, "a closed thread");
    assert_eq!(bed.store.generation(&generation(&meta, 1, 2, "s").at.id).await.unwrap(), None);
}

pub async fn c11_c82_sent_twice_it_is_done_once_and_of_two_compactors_one_wins(bed: &Bed) {
    let meta = thread(bed, 4).await;
    let mine = chunk(&meta, 0, generation(&meta, 1, 2, "mine"));
    assert_eq!(bed.store.compact(mine.clone()).await.unwrap(), Compacted::Done);
    assert_eq!(bed.store.compact(mine).await.unwrap(), Compacted::Done, "its answer was lost");
    let theirs = chunk(&meta, 0, generation(&meta, 1, 3, "theirs"));
    assert_eq!(bed.store.compact(theirs).await.unwrap(), Compacted::Lost);
    let stored = bed.store.load_for_request(&meta.thread, &[]).await.unwrap();
    assert_eq!(stored.generation.unwrap().text, "mine");
    let many =
        (0..8).map(|n| bed.store.compact(chunk(&meta, 1, generation(&meta, 2, 3, &format!("{n} wins")))));
    let outcomes = futures::future::join_all(many).await;
    let done = outcomes.into_iter().filter(|outcome| matches!(outcome, Ok(Compacted::Done))).count();
    assert_eq!(done, 1);
}

pub async fn c27_attempts_are_stored_and_leave_the_summary_as_it_is(bed: &Bed) {
    let meta = thread(bed, 4).await;
    let run = |attempts| CompactionRun {
        attempts,
        next_try_at_ms: 77,
        failure: Some("timeout".into()),
        profile: "p".into(),
        dead: (attempts == 2).then(|| generation(&meta, 1, 2, "s").at.id),
    };
    let failed = |last, attempts| CompactionCommit {
        thread: meta.thread.clone(),
        epoch: Epoch(0),
        last,
        generation: None,
        run: run(attempts),
    };
    assert_eq!(bed.store.compact(failed(0, 1)).await.unwrap(), Compacted::Done);
    let stored = bed.store.meta(&meta.thread).await.unwrap().unwrap().compaction;
    assert_eq!((stored.run, stored.last, stored.newest), (run(1), 0, None));
    bed.store.compact(chunk(&meta, 0, generation(&meta, 1, 2, "s"))).await.unwrap();
    assert_eq!(bed.store.compact(failed(1, 2)).await.unwrap(), Compacted::Done);
    assert_eq!(bed.store.compact(failed(0, 9)).await.unwrap(), Compacted::Lost);
    let stored = bed.store.meta(&meta.thread).await.unwrap().unwrap().compaction;
    assert_eq!((stored.run, stored.last), (run(2), 1));
    assert_eq!(stored.newest.unwrap().through.seq, Seq(2));
}

pub async fn c14_c15_a_rewind_keeps_the_generation_it_is_told_and_numbers_anew(bed: &Bed) {
    let meta = thread(bed, 6).await;
    let kept = generation(&meta, 1, 2, "kept");
    bed.store.compact(chunk(&meta, 0, kept.clone())).await.unwrap();
    bed.store.compact(chunk(&meta, 1, generation(&meta, 2, 5, "hidden"))).await.unwrap();
    let mut rewind = append(&meta, &[]);
    rewind.meta.epoch = Epoch(1);
    rewind.meta.head = Seq(1);
    rewind.meta.base = vec![Span { thread: meta.thread.clone(), epoch: Epoch(0), from: Seq(0), to: Seq(4) }];
    rewind.meta.compaction.newest = Some(kept.at.clone());
    let after = rewind.meta.clone();
    bed.commit(rewind).await;
    let request = bed.store.load_for_request(&meta.thread, &[]).await.unwrap();
    let seqs: BTreeSet<u64> = request.items.iter().map(|item| item.seq.0).collect();
    assert_eq!((request.unread, seqs), (2, BTreeSet::from([3, 4])));
    assert_eq!(request.meta.unwrap().compaction.last, 0);
    let next = generation(&Meta { epoch: Epoch(1), ..after.clone() }, 1, 1, "of the new log");
    let next = Generation {
        at: Pointer { through: Position { seq: Seq(3), ..kept.at.through.clone() }, ..next.at },
        ..next
    };
    assert_eq!(bed.store.compact(chunk(&after, 0, next.clone())).await.unwrap(), Compacted::Done);
    let request = bed.store.load_for_request(&meta.thread, &[]).await.unwrap();
    assert_eq!((request.unread, request.generation.unwrap().text.as_str()), (3, "of the new log"));
}
