//! What holds for every store: commits, their conditions, and what they leave.

use std::collections::BTreeSet;

use dormouse::message::{CallId, DedupId, Epoch, ItemBody, MessageId, RawJson, Seq, ThreadId};
use dormouse::model::Usage;
use dormouse::store::{
    ChoiceRow, Commit, Committed, DedupLife, ImagesOut, Kinship, Meta, NamedWindow, NewThread, OutboxEntry,
    PendingCall, Position, Promise, Prune, ResultsOut, Span, StoreError, SubscriptionChange, ThreadKind,
};

use crate::bed::{Bed, append, create, days, item, now_ms, parked, raws, said};

const DAY_MS: i64 = 86_400_000;

fn rich(commit: &mut Commit) {
    let meta = &mut commit.meta;
    let cause = vec![MessageId::from("sqs-1")];
    meta.parent = Some(ThreadId::from("parent"));
    meta.kind = ThreadKind::Child;
    meta.next_turn = 4;
    meta.turn_id = Some(dormouse::message::ItemId::at(Epoch(0), Seq(1)));
    meta.pending = vec![PendingCall {
        call: CallId::from("c0-2-abc"),
        seq: Seq(2),
        name: "search".into(),
        passive: false,
        synchronous: false,
        server: Some("http://tools".into()),
        hold: None,
        terms: Default::default(),
        parked: true,
        cause: cause.clone(),
        user: Some("ana".into()),
        extra: serde_json::from_str(r#"{"deadline":7,"of a newer version":{"a":[1,null]}}"#).unwrap(),
    }];
    meta.outbox = vec![
        OutboxEntry {
            sequence: "7".into(),
            id: "o1".into(),
            cause: cause.clone(),
            promise: Promise::Reply { from: Seq(1), to: Seq(2), refused: vec![CallId::from("c0-1-x")] },
        },
        OutboxEntry {
            id: "o2".into(),
            cause: cause.clone(),
            sequence: "7".into(),
            promise: Promise::Release,
        },
    ];
    meta.open = cause.clone();
    meta.recent = cause.clone();
    meta.redelivered = cause;
    meta.self_caused = 5;
    meta.prune = Prune { soft_before: 4, hard_before: 1, since_turn: 6 };
    meta.images_out = ImagesOut { before: 12, nth: 1, refused: vec!["abc".into()] };
    meta.results_out = ResultsOut { epoch: Epoch(0), seqs: vec![Seq(2)] };
    meta.window = Some(NamedWindow { model: "m".into(), tokens: 128_000, configured: Some(200_000) });
    meta.state = Some(Position { thread: "p".into(), epoch: Epoch(3), seq: Seq(9) });
    meta.usage = Some(Usage { input: 10, output: 2, cached: 7 });
}

pub async fn a_thread_is_made_once_and_read_back_whole(bed: &Bed) {
    let mut commit = create("t", &[&said("a"), &said("b")]);
    rich(&mut commit);
    commit.dedup = vec![days("in-1"), days("in-2")];
    commit.park = vec![parked("7", "{}")];
    let meta = commit.meta.clone();
    let items = commit.items.clone();
    assert_eq!(bed.commit(commit).await, Committed::Done);

    let asked = [DedupId::from("in-1"), DedupId::from("in-9"), DedupId::from("in-1")];
    let loaded = bed.store.load(&meta.thread, &asked).await.unwrap();
    assert_eq!(loaded.meta.as_ref(), Some(&meta));
    assert_eq!(loaded.items, items);
    assert_eq!(loaded.processed, BTreeSet::from([DedupId::from("in-1")]));
    assert_eq!(loaded.parked, [parked("7", "{}")]);
    assert_eq!(bed.store.meta(&meta.thread).await.unwrap(), Some(meta.clone()));
    assert!(bed.store.is_message_processed(&meta.thread, &DedupId::from("in-2")).await.unwrap());

    assert_eq!(bed.commit(create("t", &[&said("c")])).await, Committed::LostRace);
    assert_eq!(bed.load(&meta.thread).await.items, items);
}

pub async fn a_thread_that_is_not_there_is_empty(bed: &Bed) {
    let thread = ThreadId::from("nobody");
    let loaded = bed.store.load(&thread, &[DedupId::from("d")]).await.unwrap();
    assert!(loaded.meta.is_none() && loaded.items.is_empty());
    assert!(loaded.processed.is_empty() && loaded.parked.is_empty());
    assert_eq!(bed.store.meta(&thread).await.unwrap(), None);
    assert_eq!(bed.store.metadata(&thread).await.unwrap(), None);
    assert!(!bed.store.is_message_processed(&thread, &DedupId::from("d")).await.unwrap());
    assert_eq!(bed.store.subscription(&thread, &CallId::from("c")).await.unwrap(), None);
    assert!(bed.store.get_active_subscriptions(&thread).await.unwrap().is_empty());
    assert_eq!(bed.store.choice(&thread, &CallId::from("c")).await.unwrap(), None);
    assert!(bed.store.views(&thread).await.unwrap().is_empty());
    assert_eq!(bed.store.manifest("http://nowhere").await.unwrap(), None);
    assert_eq!(bed.store.claim("nothing").await.unwrap(), None);
    assert!(bed.store.list_threads(10).await.unwrap().is_empty());
}

pub async fn what_a_thread_is_never_changes(bed: &Bed) {
    let meta = bed.thread("t", &[]).await;
    let mut commit = append(&meta, &[&said("a")]);
    commit.meta.owner = Some("mallory".into());
    commit.meta.agent = "other".into();
    commit.meta.created_at_ms = 1;
    commit.meta.turn_id = None;
    assert_eq!(bed.commit(commit).await, Committed::Done);
    let after = bed.store.meta(&meta.thread).await.unwrap().unwrap();
    assert_eq!((after.owner, after.agent), (meta.owner, meta.agent));
    assert_eq!((after.created_at_ms, after.head), (meta.created_at_ms, Seq(2)));
}

pub async fn i6_a_commit_counts_only_at_its_head_and_log_and_while_open(bed: &Bed) {
    let meta = bed.thread("t", &[&said("a"), &said("b")]).await;
    let raw = said("x");
    let at = |epoch: u32, head: u64| {
        let mut stale = meta.clone();
        (stale.epoch, stale.head) = (Epoch(epoch), Seq(head));
        append(&stale, &[&raw])
    };
    assert_eq!(bed.commit(at(0, 2)).await, Committed::LostRace, "head has moved");
    assert_eq!(bed.commit(at(0, 4)).await, Committed::LostRace, "head is not there yet");
    assert_eq!(bed.commit(at(1, 3)).await, Committed::LostRace, "another log");
    let mut elsewhere = append(&meta, &[&raw]);
    elsewhere.meta.thread = ThreadId::from("nobody");
    assert_eq!(bed.commit(elsewhere).await, Committed::LostRace, "no such thread");

    let mut close = append(&meta, &[&said("bye")]);
    close.meta.closed = true;
    let closed = close.meta.clone();
    assert_eq!(bed.commit(close).await, Committed::Done);
    assert_eq!(bed.commit(append(&closed, &[&raw])).await, Committed::LostRace, "closed");
    assert_eq!(raws(&bed.load(&meta.thread).await), [said("a"), said("b"), said("bye")]);
}

pub async fn i6_a_lost_race_writes_nothing(bed: &Bed) {
    let meta = bed.thread("t", &[&said("a")]).await;
    let mut winner = append(&meta, &[&said("winner")]);
    winner.park = vec![parked("1", "kept")];
    let before = winner.meta.clone();
    assert_eq!(bed.commit(winner).await, Committed::Done);

    let mut loser = append(&meta, &[&said("loser"), &said("loser")]);
    loser.dedup = vec![days("in-l")];
    loser.park = vec![parked("2", "lost")];
    loser.release = vec!["1".into()];
    loser.subscriptions = vec![SubscriptionChange::Start(CallId::from("c"))];
    loser.choices = vec![ChoiceRow { id: CallId::from("c"), body: "{}".into() }];
    loser.meta.metadata = Some(RawJson::empty_object());
    assert_eq!(bed.commit(loser).await, Committed::LostRace);

    let loaded = bed.store.load(&meta.thread, &[DedupId::from("in-l")]).await.unwrap();
    assert_eq!(loaded.meta, Some(before));
    assert_eq!(raws(&loaded), [said("a"), said("winner")]);
    assert!(loaded.processed.is_empty());
    assert_eq!(loaded.parked, [parked("1", "kept")]);
    assert!(bed.store.get_active_subscriptions(&meta.thread).await.unwrap().is_empty());
    assert_eq!(bed.store.choice(&meta.thread, &CallId::from("c")).await.unwrap(), None);
}

pub async fn i6_a_commit_that_was_loaded_before_a_redelivery_was_marked_loses_its_race(bed: &Bed) {
    let meta = bed.thread("marked", &[&said("a")]).await;
    let (dedup, cause) = (DedupId::from("d"), MessageId::from("m-7"));
    assert_eq!(bed.store.raise_attempts(&meta.thread, &dedup, &cause).await.unwrap(), 1);
    // It would write its own list of redelivered causes over the mark.
    assert_eq!(bed.commit(append(&meta, &[&said("b")])).await, Committed::LostRace);
    let now = bed.load(&meta.thread).await.meta.unwrap();
    assert_eq!(now.redelivered, [cause]);
    assert_eq!(bed.commit(append(&now, &[&said("b")])).await, Committed::Done);
}

pub async fn i6_of_many_writers_one_wins(bed: &Bed) {
    const WRITERS: usize = 8;
    let meta = bed.thread("t", &[]).await;
    let commits = (0..WRITERS).map(|n| {
        let store = bed.store.clone();
        let mut commit = append(&meta, &[&said(&n.to_string()), &said(&n.to_string())]);
        commit.dedup = vec![days(&format!("in-{n}"))];
        tokio::spawn(async move { store.commit(commit).await.unwrap() })
    });
    let mut done = Vec::new();
    for (n, task) in commits.collect::<Vec<_>>().into_iter().enumerate() {
        if task.await.unwrap() == Committed::Done {
            done.push(n);
        }
    }
    let [winner] = done[..] else { panic!("{done:?} won") };
    let asked: Vec<DedupId> = (0..WRITERS).map(|n| DedupId::new(format!("in-{n}"))).collect();
    let loaded = bed.store.load(&meta.thread, &asked).await.unwrap();
    let text = said(&winner.to_string());
    assert_eq!(raws(&loaded), [text.clone(), text]);
    assert_eq!(loaded.processed, BTreeSet::from([asked[winner].clone()]));
}

pub async fn i2_the_same_commit_sent_twice_is_applied_once(bed: &Bed) {
    let make = create("t", &[&said("a")]);
    let meta = make.meta.clone();
    assert_eq!(bed.commit(make.clone()).await, Committed::Done);
    assert_eq!(bed.commit(make).await, Committed::Done);

    let mut step = append(&meta, &[&said("b")]);
    step.dedup = vec![days("in-1")];
    step.park = vec![parked("1", "x")];
    let after = step.meta.clone();
    assert_eq!(bed.commit(step.clone()).await, Committed::Done);
    assert_eq!(bed.commit(step).await, Committed::Done);

    // One that moves no head, and whose conditions fail after it took effect.
    let mut release = append(&after, &[]);
    release.release = vec!["1".into()];
    release.dedup = vec![days("in-2")];
    assert_eq!(bed.commit(release.clone()).await, Committed::Done);
    assert_eq!(bed.commit(release.clone()).await, Committed::Done);
    // Sent by a later process, it has another expiry; it is still the same commit.
    release.now_ms += 1_000;
    assert_eq!(bed.commit(release).await, Committed::Done);

    let loaded = bed.load(&meta.thread).await;
    assert_eq!(raws(&loaded), [said("a"), said("b")]);
    assert!(loaded.parked.is_empty());
}

pub async fn i2_an_input_that_was_processed_is_refused_whole(bed: &Bed) {
    let mut make = create("t", &[&said("a")]);
    make.dedup = vec![days("in-1")];
    let meta = make.meta.clone();
    bed.commit(make).await;
    let mut again = append(&meta, &[&said("b")]);
    again.dedup = vec![days("in-2"), days("in-1")];
    assert_eq!(bed.commit(again).await, Committed::LostRace);
    let loaded = bed.store.load(&meta.thread, &[DedupId::from("in-1"), DedupId::from("in-2")]).await.unwrap();
    assert_eq!(loaded.meta, Some(meta), "META stands where it stood");
    assert_eq!(raws(&loaded), [said("a")]);
    assert_eq!(loaded.processed, BTreeSet::from([DedupId::from("in-1")]));
}

pub async fn i2_the_dedup_rows_of_results_never_expire_and_others_do(bed: &Bed) {
    let (days, forever, young) = (DedupId::from("d"), DedupId::from("f"), DedupId::from("y"));
    let now = now_ms();
    let mut old = create("t", &[]);
    old.dedup = vec![(days.clone(), DedupLife::Days), (forever.clone(), DedupLife::Forever)];
    old.now_ms = now - 20 * DAY_MS;
    let meta = old.meta.clone();
    assert_eq!(bed.commit(old).await, Committed::Done);
    let mut recent = append(&meta, &[&said("a")]);
    recent.dedup = vec![(young.clone(), DedupLife::Days)];
    recent.now_ms = now - 14 * DAY_MS;
    let meta = recent.meta.clone();
    assert_eq!(bed.commit(recent).await, Committed::Done);

    bed.advance_to(now);
    let asked = [days.clone(), forever.clone(), young.clone()];
    let loaded = bed.store.load(&meta.thread, &asked).await.unwrap();
    assert_eq!(loaded.processed, BTreeSet::from([forever.clone(), young.clone()]));
    assert!(!bed.store.is_message_processed(&meta.thread, &days).await.unwrap());
    assert!(bed.store.is_message_processed(&meta.thread, &forever).await.unwrap());

    let with = |id: &DedupId| Commit { dedup: vec![(id.clone(), DedupLife::Days)], ..append(&meta, &[]) };
    assert_eq!(bed.commit(with(&forever)).await, Committed::LostRace);
    assert_eq!(bed.commit(with(&young)).await, Committed::LostRace);
    assert_eq!(bed.commit(with(&days)).await, Committed::Done, "an expired row counts as absent");
    assert!(bed.store.is_message_processed(&meta.thread, &days).await.unwrap());
    assert_eq!(bed.commit(with(&days)).await, Committed::LostRace);
}

pub async fn i8_items_come_back_in_order_and_to_the_byte(bed: &Bed) {
    let texts = [
        // Neither valid JSON nor a known kind: kept all the same.
        "\u{0}\u{1}\u{FFFE}\u{FFFF}\u{7f}é😀\r\n\t\\\"",
        "",
        r#"{"kind":"dream","n":12345678901234567890123,"f":1.0,"e":1e400,"z":1,"a":2,"z":3, "s" : "\ud83d" }"#,
        r#"{"kind":"tool_call","call_id":"c","name":"f","arguments":"{\"a\":1.0,\"c\":12345678901234567890123,\"z\":1,\"y\":2,\"z\":3}","x":0.10}"#,
        &said(r"\u0000 \ufffe"),
        // Above what is inline, with parts to cut between characters.
        &format!("x\u{0}{}", "\u{FFFE}😀".repeat(90_000)),
    ];
    let meta = bed.thread("t", &texts).await;
    let more: Vec<String> = (0..30).map(|n| said(&n.to_string())).collect();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let commit = append(&meta, &more);
    bed.commit(commit).await;
    let loaded = bed.load(&meta.thread).await;
    assert_eq!(raws(&loaded), [&texts[..], &more].concat());
    assert!(loaded.items.iter().enumerate().all(|(n, item)| item.seq == Seq(n as u64 + 1)));
    assert_eq!(loaded.items[1], item(2, ""));
    assert!(matches!(&loaded.items[2].body, ItemBody::Unknown { .. }));
    assert!(matches!(&loaded.items[3].body, ItemBody::ToolCall(_)));
}

pub async fn i8_a_rewind_hides_and_a_fork_inherits_and_nothing_is_deleted(bed: &Bed) {
    let span = |thread: &str, epoch: u32, from: u64, to: u64| Span {
        thread: ThreadId::from(thread),
        epoch: Epoch(epoch),
        from: Seq(from),
        to: Seq(to),
    };
    let texts: Vec<String> = (1..=5).map(|n| said(&n.to_string())).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let meta = bed.thread("t", &texts).await;

    let mut rewind = append(&meta, &[]);
    rewind.meta.epoch = Epoch(1);
    rewind.meta.base = vec![span("t", 0, 0, 2)];
    rewind.meta.head = Seq(2);
    rewind.items = vec![item(1, &said("again"))];
    let rewound = rewind.meta.clone();
    assert_eq!(bed.commit(rewind).await, Committed::Done);
    assert_eq!(raws(&bed.load(&meta.thread).await), [said("1"), said("2"), said("again")]);
    assert_eq!(bed.commit(append(&meta, &[&said("6")])).await, Committed::LostRace, "the old log is over");
    assert_eq!(bed.commit(append(&rewound, &[&said("more")])).await, Committed::Done);

    let mut fork = create("fork", &[&said("own")]);
    fork.meta.base = vec![span("t", 0, 2, 4), span("t", 1, 0, 1), span("t", 0, 0, 0)];
    assert_eq!(bed.commit(fork).await, Committed::Done);
    let forked = bed.load(&ThreadId::from("fork")).await;
    assert_eq!(raws(&forked), [said("3"), said("4"), said("again"), said("own")]);

    // The whole first log is still there for whoever asks.
    let mut reader = create("reader", &[]);
    reader.meta.base = vec![span("t", 0, 0, 5)];
    bed.commit(reader).await;
    assert_eq!(raws(&bed.load(&ThreadId::from("reader")).await), texts);

    let mut broken = create("broken", &[]);
    broken.meta.base = vec![span("t", 0, 3, 6)];
    bed.commit(broken).await;
    let error = bed.store.load(&ThreadId::from("broken"), &[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Incomplete { missing: Seq(6), .. }), "{error}");
    assert!(error.is_transient());
}

pub async fn f68_children_are_made_with_their_parents_commit_or_not_at_all(bed: &Bed) {
    let meta = bed.thread("t", &[&said("one"), &said("two")]).await;
    let child = |name: &str, body: &str| {
        let mut child = Meta::new_root(ThreadId::from(name), "a", Some("o".to_owned()), now_ms());
        child.root = meta.thread.clone();
        child.parent = Some(meta.thread.clone());
        child.ancestors = vec![meta.thread.clone()];
        child.origin = Some(CallId::from("c0-2-x"));
        child.kind = ThreadKind::Child;
        child.base = vec![Span { thread: meta.thread.clone(), epoch: meta.epoch, from: Seq(0), to: Seq(1) }];
        child.head = Seq(2);
        child.token = format!("born-{name}");
        NewThread { meta: child, items: vec![item(1, &said("own"))], parked: Some(parked("0", body)) }
    };
    let large = "y".repeat(500_000);
    let mut commit = append(&meta, &[&said("three")]);
    commit.meta.metadata = RawJson::parse(r#"{"channel":1}"#).ok();
    commit.children = vec![child("c1", "first"), child("c2", &large)];
    commit.open_children = 2;
    let parent = commit.meta.clone();
    assert_eq!(bed.commit(commit.clone()).await, Committed::Done);
    assert_eq!(bed.commit(commit).await, Committed::Done, "sent again, it is known by its token");
    assert_eq!(bed.store.open_children(&meta.thread).await.unwrap(), 2);
    let children = bed.store.relatives(&meta.thread, Kinship::Child, None, 9).await.unwrap();
    assert_eq!(children, ["c1".into(), "c2".into()]);
    let behind = bed.store.relatives(&meta.thread, Kinship::Child, Some(&"c1".into()), 1).await.unwrap();
    assert_eq!(behind, ["c2".into()]);
    for (name, body) in [("c1", "first"), ("c2", large.as_str())] {
        let loaded = bed.load(&ThreadId::from(name)).await;
        assert_eq!(raws(&loaded), [said("one"), said("own")], "it inherits up to where it was made");
        let made = loaded.meta.unwrap();
        assert_eq!((&made.root, made.parent.as_ref()), (&meta.thread, Some(&meta.thread)));
        assert_eq!((made.ancestors.len(), made.origin), (1, Some(CallId::from("c0-2-x"))));
        assert!(loaded.parked.len() == 1 && loaded.parked[0].body == body);
        assert_eq!(loaded.root_metadata.unwrap().get(), r#"{"channel":1}"#);
    }
    // One that is there already: nothing of the commit is written.
    let mut again = append(&parent, &[&said("four")]);
    again.children = vec![child("c3", "x"), child("c1", "other")];
    again.open_children = 2;
    assert_eq!(bed.commit(again).await, Committed::LostRace);
    assert!(bed.store.meta(&ThreadId::from("c3")).await.unwrap().is_none());
    assert_eq!(bed.store.open_children(&meta.thread).await.unwrap(), 2);
    assert_eq!(bed.load(&meta.thread).await.items.len(), 3);
    // A child that closes.
    let mut closing = append(&bed.load(&ThreadId::from("c1")).await.meta.unwrap(), &[]);
    closing.meta.closed = true;
    closing.open_children = -1;
    assert_eq!(bed.commit(closing).await, Committed::Done);
    assert_eq!(bed.store.open_children(&meta.thread).await.unwrap(), 1);
}
