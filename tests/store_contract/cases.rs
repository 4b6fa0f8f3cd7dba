//! What holds for every store.

use std::collections::BTreeSet;

use dormouse::message::{CallId, DedupId, Epoch, ItemBody, MessageId, RawJson, Seq, ThreadId};
use dormouse::model::Usage;
use dormouse::store::{
    ChoiceRow, Commit, Committed, DedupLife, MAX_ACTIONS, OutboxEntry, PendingCall, Promise, Span,
    StoreError, SubscriptionChange, ThreadKind,
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
        parked: true,
        cause: cause.clone(),
        user: Some("ana".into()),
        extra: serde_json::from_str(r#"{"deadline":7,"of a newer version":{"a":[1,null]}}"#).unwrap(),
    }];
    meta.outbox = vec![
        OutboxEntry { id: "o1".into(), cause: cause.clone(), promise: Promise::Reply { seq: Seq(1) } },
        OutboxEntry { id: "o2".into(), cause: cause.clone(), promise: Promise::Release },
    ];
    meta.open = cause.clone();
    meta.recent = cause.clone();
    meta.redelivered = cause;
    meta.self_caused = 5;
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

pub async fn f36_results_of_400_kb_and_more_are_kept_whole(bed: &Bed) {
    const KB: usize = 1_024;
    let results = [399 * KB, 400 * KB, 401 * KB, 1_200 * KB].map(|size| {
        let (head, tail) = (r#"{"kind":"tool_result","call_id":"c","parts":[],"x":""#, r#""}"#);
        format!("{head}{}{tail}", "r".repeat(size - head.len() - tail.len()))
    });
    assert_eq!(results[0].len(), 399 * KB);
    let texts: Vec<&str> = results.iter().map(String::as_str).collect();
    let mut make = create("t", &texts);
    // The same text twice in one commit is one body.
    make.items.push(item(5, texts[1]));
    make.meta.head = Seq(6);
    make.park = vec![parked("1", texts[3])];
    make.choices = vec![ChoiceRow { id: CallId::from("c"), body: results[2].clone() }];
    let thread = make.meta.thread.clone();
    assert_eq!(bed.commit(make).await, Committed::Done);
    let loaded = bed.load(&thread).await;
    let sizes: Vec<usize> = loaded.items.iter().map(|item| item.raw.len()).collect();
    assert_eq!(sizes, [399 * KB, 400 * KB, 401 * KB, 1_200 * KB, 400 * KB]);
    assert!(raws(&loaded) == [&texts[..], &[texts[1]]].concat());
    assert!(loaded.parked[0].body == texts[3]);
    let choice = bed.store.choice(&thread, &CallId::from("c")).await.unwrap().unwrap();
    assert!(choice.body == results[2]);
}

pub async fn f36_a_thread_of_2_mb_is_loaded_whole(bed: &Bed) {
    // Inline items of 8,000 bytes: more than two of DynamoDB's 1 MB pages.
    let mut meta = bed.thread("t", &[]).await;
    let mut expected = Vec::new();
    for step in 0..5 {
        let texts: Vec<String> =
            (0..55).map(|n| said(&format!("{step}-{n} {}", "y".repeat(7_900)))).collect();
        let commit = append(&meta, &texts.iter().map(String::as_str).collect::<Vec<_>>());
        meta = commit.meta.clone();
        assert_eq!(bed.commit(commit).await, Committed::Done);
        expected.extend(texts);
    }
    assert!(expected.iter().map(String::len).sum::<usize>() > 2_000_000);
    let loaded = bed.load(&meta.thread).await;
    assert_eq!(loaded.meta.as_ref().unwrap().head, Seq(276));
    assert!(raws(&loaded) == expected);
}

pub async fn parked_inputs_are_kept_in_order_and_released_once(bed: &Bed) {
    let mut make = create("t", &[]);
    // Sequence numbers order by value; what has none comes after them.
    let keys = ["18849496460467696129", "9", "18849496460467696128", "10", "m-b", "é #"];
    make.park = keys.map(|key| parked(key, &format!("\u{0}{key}"))).to_vec();
    let meta = make.meta.clone();
    assert_eq!(bed.commit(make).await, Committed::Done);
    let order = |loaded: &dormouse::store::Loaded| -> Vec<String> {
        loaded.parked.iter().map(|parked| parked.key.clone()).collect()
    };
    let loaded = bed.load(&meta.thread).await;
    assert_eq!(order(&loaded), ["9", "10", "18849496460467696128", "18849496460467696129", "m-b", "é #"]);
    assert_eq!(loaded.parked[0], parked("9", "\u{0}9"));

    let mut release = append(&meta, &[&said("in")]);
    release.release = vec!["10".into(), "9".into(), "é #".into()];
    let after = release.meta.clone();
    assert_eq!(bed.commit(release).await, Committed::Done);
    let mut again = append(&after, &[&said("twice")]);
    again.release = vec!["m-b".into(), "9".into()];
    assert_eq!(bed.commit(again).await, Committed::LostRace, "9 is no longer there");
    let loaded = bed.load(&meta.thread).await;
    assert_eq!(order(&loaded), ["18849496460467696128", "18849496460467696129", "m-b"]);
    assert_eq!(raws(&loaded), [said("in")]);
}

pub async fn subscriptions_start_and_end(bed: &Bed) {
    let (a, b, c) = (CallId::from("a"), CallId::from("b"), CallId::from("c"));
    let mut make = create("t", &[]);
    make.subscriptions = vec![
        SubscriptionChange::Start(b.clone()),
        SubscriptionChange::Start(a.clone()),
        // A result that opens and ends one is one change of one row.
        SubscriptionChange::Start(c.clone()),
        SubscriptionChange::End(c.clone()),
    ];
    let meta = make.meta.clone();
    assert_eq!(bed.commit(make).await, Committed::Done);
    assert_eq!(bed.store.get_active_subscriptions(&meta.thread).await.unwrap(), [a.clone(), b.clone()]);
    assert!(!bed.store.subscription(&meta.thread, &c).await.unwrap().unwrap().active);
    let mut end = append(&meta, &[]);
    end.subscriptions = vec![SubscriptionChange::End(a.clone())];
    assert_eq!(bed.commit(end).await, Committed::Done);
    assert_eq!(bed.store.get_active_subscriptions(&meta.thread).await.unwrap(), [b]);
    let ended = bed.store.subscription(&meta.thread, &a).await.unwrap().unwrap();
    assert_eq!((ended.call, ended.active), (a, false));
}

pub async fn choices_views_and_manifests_are_kept(bed: &Bed) {
    let mut make = create("t", &[]);
    let choice = ChoiceRow { id: CallId::from("c0-1-x"), body: "{\"prompt\":\"\u{0}?\"}".into() };
    make.choices = vec![choice.clone()];
    let thread = make.meta.thread.clone();
    bed.commit(make).await;
    assert_eq!(bed.store.choice(&thread, &choice.id).await.unwrap(), Some(choice));

    let view = |text: &str| RawJson::parse(text).unwrap();
    let large = view(&format!(r#"{{"z":1.0,"a":"{}","z":2}}"#, "v".repeat(700_000)));
    bed.store.put_view(&thread, "plan #1", &view(r#"{"old":true}"#)).await.unwrap();
    bed.store.put_view(&thread, "plan #1", &large).await.unwrap();
    bed.store.put_view(&thread, "chart", &view(r#"[12345678901234567890123]"#)).await.unwrap();
    let views = bed.store.views(&thread).await.unwrap();
    assert_eq!(views.iter().map(|(kind, _)| kind.as_str()).collect::<Vec<_>>(), ["chart", "plan #1"]);
    assert_eq!(views[0].1.get(), "[12345678901234567890123]");
    assert!(views[1].1 == large);

    let server = "https://tools.example/x?y=z#1";
    bed.store.put_manifest(server, "[]", 1).await.unwrap();
    let large = format!("[\"{}\"]", "m".repeat(500_000));
    bed.store.put_manifest(server, &large, 1_764_460_800_123).await.unwrap();
    assert!(bed.store.manifest(server).await.unwrap() == Some((large, 1_764_460_800_123)));
}

pub async fn a_claim_check_of_1_mb_is_kept_and_put_again(bed: &Bed) {
    let body = format!("\u{0}\u{FFFE}{}", "é".repeat(524_288));
    let digest = bed.store.put_claim(&body).await.unwrap();
    assert_eq!(bed.store.put_claim(&body).await.unwrap(), digest);
    assert!(bed.store.claim(&digest).await.unwrap() == Some(body));
    let empty = bed.store.put_claim("").await.unwrap();
    assert_eq!(bed.store.claim(&empty).await.unwrap().as_deref(), Some(""));
    assert_eq!(bed.store.claim(&format!("{digest}x")).await.unwrap(), None);
}

pub async fn metadata_is_kept_to_the_byte(bed: &Bed) {
    let text =
        format!(r#"{{"z":1.0,"user_id":"U","a":12345678901234567890123,"z":"{}"}}"#, "m".repeat(15_000));
    let mut make = create("t", &[]);
    make.meta.metadata = Some(RawJson::parse(&text).unwrap());
    let meta = make.meta.clone();
    bed.commit(make).await;
    assert_eq!(bed.store.metadata(&meta.thread).await.unwrap().unwrap().get(), text);
    assert_eq!(bed.load(&meta.thread).await.meta, Some(meta.clone()));
    let mut without = append(&meta, &[]);
    without.meta.metadata = None;
    bed.commit(without).await;
    assert_eq!(bed.store.metadata(&meta.thread).await.unwrap(), None);
}

pub async fn a_hundred_actions_fit_and_one_more_is_invalid(bed: &Bed) {
    let meta = bed.thread("t", &[]).await;
    let text = said(&"x".repeat(8_000));
    let texts = vec![text.as_str(); MAX_ACTIONS - 3];
    let mut commit = append(&meta, &texts);
    commit.dedup = vec![days("1"), days("2")];
    assert_eq!(commit.actions(), MAX_ACTIONS);
    let mut over = commit.clone();
    over.dedup.push(days("3"));
    let error = bed.store.commit(over).await.unwrap_err();
    assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
    assert!(!error.is_transient());
    assert_eq!(bed.commit(commit).await, Committed::Done);
    assert_eq!(bed.load(&meta.thread).await.items.len(), MAX_ACTIONS - 3);
}

pub async fn commits_that_break_a_rule_are_refused_before_they_are_sent(bed: &Bed) {
    let meta = bed.thread("t", &[&said("a")]).await;
    let broken: [(&str, fn(&mut Commit)); 7] = [
        ("no token", |commit| commit.meta.token.clear()),
        ("a gap", |commit| commit.items[1].seq = Seq(9)),
        ("not from head", |commit| commit.items[0].seq = Seq(1)),
        ("head beyond the items", |commit| commit.meta.head = Seq(9)),
        ("a dedup id twice", |commit| commit.dedup = vec![days("d"), days("d")]),
        ("parked and released", |commit| {
            commit.park = vec![parked("1", "")];
            commit.release = vec!["1".into()];
        }),
        ("released twice", |commit| commit.release = vec!["1".into(), "1".into()]),
    ];
    for (what, break_it) in broken {
        let mut commit = append(&meta, &[&said("b"), &said("c")]);
        break_it(&mut commit);
        let result = bed.store.commit(commit).await;
        assert!(matches!(result, Err(StoreError::Invalid { .. })), "{what}: {result:?}");
    }
    assert_eq!(bed.load(&meta.thread).await.meta, Some(meta));
}

pub async fn odd_ids_neither_meet_nor_fail(bed: &Bed) {
    let long = "x".repeat(600);
    let longer = format!("{long}y");
    let hashes = "#".repeat(500);
    let odd = [
        "a#b",
        "a",
        "#",
        "%23",
        "a b",
        "~",
        "日本 #1",
        "é",
        "e\u{301}",
        "\u{0}",
        "META",
        &long,
        &longer,
        &hashes,
    ];
    for id in odd {
        let mut make = create(id, &[&said(&format!("{}", id.len()))]);
        make.dedup = odd.iter().map(|dedup| days(dedup)).collect();
        make.park = odd.iter().map(|key| parked(key, key)).collect();
        make.subscriptions = odd.iter().map(|call| SubscriptionChange::Start(CallId::from(*call))).collect();
        make.choices =
            odd.iter().map(|call| ChoiceRow { id: CallId::from(*call), body: (*call).into() }).collect();
        assert_eq!(bed.commit(make).await, Committed::Done, "{id}");
    }
    let ids: BTreeSet<String> = odd.iter().map(|id| (*id).to_owned()).collect();
    let asked: Vec<DedupId> = odd.iter().map(|id| DedupId::from(*id)).collect();
    for id in odd {
        let thread = ThreadId::from(id);
        let loaded = bed.store.load(&thread, &asked).await.unwrap();
        assert_eq!(loaded.meta.as_ref().map(|meta| &meta.thread), Some(&thread));
        assert_eq!(raws(&loaded), [said(&format!("{}", id.len()))]);
        assert_eq!(loaded.processed.len(), odd.len());
        assert_eq!(loaded.parked.len(), odd.len());
        assert!(loaded.parked.iter().all(|parked| parked.key == parked.body));
        let active = bed.store.get_active_subscriptions(&thread).await.unwrap();
        assert_eq!(active.iter().map(|call| call.as_str().to_owned()).collect::<BTreeSet<_>>(), ids);
        for call in odd {
            let choice = bed.store.choice(&thread, &CallId::from(call)).await.unwrap().unwrap();
            assert_eq!(choice.body, call);
        }
    }
}

pub async fn threads_are_listed_newest_first(bed: &Bed) {
    let base = now_ms();
    for n in 0..25_i64 {
        let mut make = create(&format!("t{n}"), &[&said("a")]);
        make.meta.created_at_ms = base + n;
        assert_eq!(bed.commit(make).await, Committed::Done);
    }
    // A commit, and closing, leave a thread where it stands.
    let mut touched = bed.store.meta(&ThreadId::from("t24")).await.unwrap().unwrap();
    let mut close = append(&touched, &[&said("b")]);
    close.meta.closed = true;
    touched = close.meta.clone();
    assert_eq!(bed.commit(close).await, Committed::Done);

    let listed = bed.store.list_threads(10).await.unwrap();
    let ids: Vec<&str> = listed.iter().map(|summary| summary.thread.as_str()).collect();
    assert_eq!(ids, ["t24", "t23", "t22", "t21", "t20", "t19", "t18", "t17", "t16", "t15"]);
    assert_eq!((listed[0].head, listed[0].closed, listed[1].closed), (touched.head, true, false));
    assert_eq!((listed[0].agent.as_str(), listed[0].created_at_ms), ("agent", base + 24));
    assert_eq!(bed.store.list_threads(100).await.unwrap().len(), 25);
    assert!(bed.store.list_threads(0).await.unwrap().is_empty());
}
