//! What is read of a thread as a whole, and what an operator does to it.

use dormouse::message::{CallId, Epoch, MessageId, RawJson, Seq, ThreadId};
use dormouse::store::{
    ChoiceRow, Commit, Committed, DeadLetter, Expect, Kinship, Logs, Meta, NewThread, RunChange, RunRow,
    RunState, Span, TextOf, ThreadKind,
};

use crate::bed::{Bed, append, create, item, parked, raws, said, token};

fn span(thread: &str, epoch: u32, to: u64) -> Span {
    Span { thread: ThreadId::from(thread), epoch: Epoch(epoch), from: Seq(0), to: Seq(to) }
}

/// A commit that moves the thread to its next log.
fn rewound(meta: &Meta, base: Vec<Span>, texts: &[&str]) -> Commit {
    let at = Meta { epoch: Epoch(meta.epoch.0 + 1), base, head: Seq::FIRST, ..meta.clone() };
    let expect = Expect::At { epoch: meta.epoch, head: meta.head, token: meta.token.clone() };
    Commit { expect, left: vec![(meta.epoch, meta.base.clone())], ..append(&at, texts) }
}

pub async fn i8_a_log_that_was_left_is_read_with_what_it_inherits(bed: &Bed) {
    let meta = bed.thread("t", &[&said("a"), &said("b")]).await;
    let first = rewound(&meta, vec![span("t", 0, 1)], &[&said("c")]);
    let after = first.meta.clone();
    assert_eq!(bed.commit(first).await, Committed::Done);
    let second = rewound(&after, vec![span("t", 0, 1), span("t", 1, 1)], &[]);
    assert_eq!(bed.commit(second).await, Committed::Done);
    let log = |epoch| async move { bed.store.log(&ThreadId::from("t"), Epoch(epoch)).await.unwrap() };
    let texts = |log: &dormouse::store::Log| -> Vec<String> {
        log.items.iter().map(|item| item.raw.to_string()).collect()
    };
    let [zero, one, two, three] = [log(0).await, log(1).await, log(2).await, log(3).await];
    assert_eq!((texts(&zero), zero.base), (vec![said("a"), said("b")], vec![]));
    assert_eq!((texts(&one), one.base), (vec![said("c")], vec![span("t", 0, 1)]));
    assert_eq!((two.items.len(), three.items.len()), (0, 0));
    assert_eq!(raws(&bed.load(&meta.thread).await), [said("a"), said("c")]);
}

pub async fn a_thread_is_made_with_branches_that_only_inherit(bed: &Bed) {
    let log = ThreadId::from("snapshot branches");
    bed.store.put_log(&log, &[item(1, &said("a")), item(2, &said("b")), item(3, &said("c"))]).await.unwrap();
    let piece = |from, to| Span { from: Seq(from), ..span("snapshot branches", 0, to) };
    let mut make = create("made", &[]);
    make.meta.epoch = Epoch(2);
    make.meta.base = vec![piece(0, 1), piece(2, 3)];
    make.left = vec![(Epoch(0), vec![piece(0, 2)]), (Epoch(1), vec![piece(0, 1)])];
    assert_eq!(bed.commit(make.clone()).await, Committed::Done);
    assert_eq!(raws(&bed.load(&"made".into()).await), [said("a"), said("c")]);
    for (epoch, base) in make.left.clone() {
        let read = bed.store.log(&"made".into(), epoch).await.unwrap();
        assert_eq!((read.base, read.items.len()), (base, 0));
    }
    make.meta.token = token();
    make.left = vec![(Epoch(0), Vec::new())];
    assert_eq!(bed.commit(make).await, Committed::LostRace, "all of it or nothing");
    assert_eq!(bed.store.log(&"made".into(), Epoch(0)).await.unwrap().base, [piece(0, 2)]);
}

pub async fn the_log_of_a_snapshot_is_written_again_without_effect(bed: &Bed) {
    let log = ThreadId::from("snapshot abc");
    let large = said(&"x".repeat(900_000));
    let items = [item(1, &said("a")), item(2, &large), item(3, "no json")];
    for _ in 0..2 {
        bed.store.put_log(&log, &items).await.unwrap();
        assert_eq!(bed.store.log(&log, Epoch(0)).await.unwrap().items, items);
    }
    assert_eq!(bed.store.meta(&log).await.unwrap(), None, "it is no thread");
    let mut make = create("t", &[&said("b")]);
    make.meta.base = vec![span("snapshot abc", 0, 3)];
    assert_eq!(bed.commit(make).await, Committed::Done);
    assert_eq!(raws(&bed.load(&"t".into()).await), [said("a"), large, "no json".to_owned(), said("b")]);
    assert_eq!(bed.archive.heirs(&log).await.unwrap(), ["t".into()]);
}

pub async fn a_fork_is_noted_with_those_it_inherits_from(bed: &Bed) {
    bed.thread("a", &[&said("1")]).await;
    let mut fork = create("b", &[&said("2")]);
    fork.meta.base = vec![span("a", 0, 1)];
    assert_eq!(bed.commit(fork).await, Committed::Done);
    let mut fork = create("c", &[]);
    fork.meta.base = vec![span("a", 0, 1), span("b", 0, 1)];
    let (meta, lost) =
        (fork.meta.clone(), Commit { meta: Meta { token: token(), ..fork.meta.clone() }, ..fork.clone() });
    assert_eq!(bed.commit(fork).await, Committed::Done);
    assert_eq!(bed.commit(lost).await, Committed::LostRace);
    let heirs = |of: &str| {
        let of = ThreadId::from(of);
        async move { bed.archive.heirs(&of).await.unwrap() }
    };
    assert_eq!(heirs("a").await, ["b".into(), "c".into()]);
    assert_eq!(heirs("b").await, ["c".into()]);
    assert!(heirs("c").await.is_empty());
    let page = |after: Option<&str>, limit| {
        let after = after.map(ThreadId::from);
        async move { bed.store.relatives(&"a".into(), Kinship::Heir, after.as_ref(), limit).await.unwrap() }
    };
    assert_eq!(page(None, 1).await, ["b".into()]);
    assert_eq!(page(Some("b"), 9).await, ["c".into()]);
    assert_eq!(page(Some("bb"), 9).await, ["c".into()], "a name that is not there has its place");
    assert!(page(Some("c"), 9).await.is_empty());
    // What it inherits later, by a rewind, is a part of what it inherits now.
    assert_eq!(bed.commit(append(&meta, &[&said("3")])).await, Committed::Done);
    bed.archive.erase(&"c".into(), Logs::Erase).await.unwrap();
    assert_eq!((heirs("a").await, heirs("b").await), (vec!["b".into()], vec![]));
}

pub async fn redaction_rewrites_every_text_of_a_thread_and_no_other(bed: &Bed) {
    const KB: usize = 1_024;
    let large = |word: &str| {
        format!(
            r#"{{"kind":"tool_result","call_id":"c","outcome":"ok","parts":[{{"type":"text","text":"{}{word}"}}],"settled_by":"tool"}}"#,
            "x".repeat(800 * KB)
        )
    };
    let thread = ThreadId::from("t");
    for name in ["t", "u"] {
        let mut make = create(name, &[&said("secret"), &large("secret"), &large("fine"), &large("fine")]);
        make.park =
            vec![parked("1", "parked secret"), parked("2", &format!("{}secret", "y".repeat(20 * KB)))];
        make.choices = vec![ChoiceRow { id: CallId::from("c"), body: "choice secret".to_owned() }];
        let meta = make.meta.clone();
        assert_eq!(bed.commit(make).await, Committed::Done);
        let moved = rewound(&meta, vec![span(name, 0, 4)], &[&said("new secret")]);
        assert_eq!(bed.commit(moved).await, Committed::Done);
        let view = RawJson::parse(r#"{"v":"secret"}"#).unwrap();
        bed.store.put_view(&meta.thread, "chart", &view).await.unwrap();
        let letter = DeadLetter {
            thread: meta.thread.clone(),
            message_id: MessageId::from("m"),
            reason: "r".to_owned(),
            body: "dead secret".to_owned(),
            kept_at_ms: 1,
        };
        bed.store.keep_dead_letter(&letter).await.unwrap();
    }
    let other = bed.load(&"u".into()).await;
    let seen = std::sync::Mutex::new(Vec::new());
    let rewrite = |of: TextOf, text: &str| {
        seen.lock().unwrap().push(of);
        text.contains("secret").then(|| text.replace("secret", "gone"))
    };
    assert_eq!(bed.archive.rewrite_texts(&thread, &rewrite).await.unwrap(), 8);
    let found = seen.lock().unwrap().clone();
    assert!(
        found.contains(&TextOf::Item(Epoch(1), Seq(1))) && found.contains(&TextOf::Item(Epoch(0), Seq(4)))
    );
    let loaded = bed.load(&thread).await;
    let expected = [said("gone"), large("gone"), large("fine"), large("fine"), said("new gone")];
    assert!(raws(&loaded) == expected);
    assert_eq!(loaded.items[1].facts.turn, 3, "what is known of an item stays");
    assert_eq!(loaded.parked[0].body, "parked gone");
    assert!(loaded.parked[1].body.ends_with("ygone"));
    assert_eq!(loaded.choices[0].body, "choice gone");
    assert_eq!(bed.store.views(&thread).await.unwrap()[0].1.get(), r#"{"v":"gone"}"#);
    let letter = bed.store.dead_letter(&thread, &MessageId::from("m")).await.unwrap().unwrap();
    assert_eq!(letter.body, "dead gone");
    let nothing = |_: TextOf, text: &str| text.contains("secret").then(String::new);
    assert_eq!(bed.archive.rewrite_texts(&thread, &nothing).await.unwrap(), 0);
    let untouched = bed.load(&"u".into()).await;
    assert!(untouched.items == other.items && untouched.parked == other.parked);
}

pub async fn redaction_finds_what_a_run_ended_with(bed: &Bed) {
    let thread = ThreadId::from("t");
    assert_eq!(bed.commit(create("t", &[&said("a")])).await, Committed::Done);
    let runs = bed.store.runs().unwrap();
    let row = RunRow::queued("r", r#"{"tools":["a secret"]}"#, 0);
    runs.put_run(&thread, &row, 1).await.unwrap();
    runs.change_run(&thread, "r", &RunChange::End(r#"{"asked":"a secret"}"#.into()), 2).await.unwrap();
    let rewrite = |_: TextOf, text: &str| text.contains("secret").then(|| text.replace("secret", "gone"));
    assert!(bed.archive.rewrite_texts(&thread, &rewrite).await.unwrap() > 0);
    let row = runs.run(&thread, "r").await.unwrap().unwrap();
    assert_eq!(
        (row.config.as_str(), row.end.as_deref()),
        (r#"{"tools":["a gone"]}"#, Some(r#"{"asked":"a gone"}"#))
    );
    assert_eq!(row.state, RunState::Ended);
    assert_eq!(bed.archive.rewrite_texts(&thread, &rewrite).await.unwrap(), 0);
}

pub async fn erasure_leaves_a_closed_name_and_what_others_inherit(bed: &Bed) {
    let large = said(&"z".repeat(700_000));
    for name in ["t", "u"] {
        let mut make = create(name, &[&said("a"), &large]);
        make.park = vec![parked("1", "p")];
        let meta = Meta {
            root: name.into(),
            parent: Some(name.into()),
            kind: ThreadKind::Child,
            token: format!("born-{name}"),
            ..Meta::new_root(format!("child-of-{name}").as_str().into(), "default", None, 1)
        };
        make.children = vec![NewThread { meta, items: Vec::new(), parked: None }];
        assert_eq!(bed.commit(make).await, Committed::Done);
    }
    let mut fork = create("f", &[]);
    fork.meta.base = vec![span("u", 0, 2)];
    assert_eq!(bed.commit(fork).await, Committed::Done);
    let (t, u) = (ThreadId::from("t"), ThreadId::from("u"));
    for _ in 0..2 {
        bed.archive.erase(&t, Logs::Erase).await.unwrap();
        bed.archive.erase(&u, Logs::Keep).await.unwrap();
    }
    for thread in [&t, &u] {
        let loaded = bed.load(thread).await;
        let meta = loaded.meta.unwrap();
        assert!(
            meta.closed && meta.head == Seq::FIRST && loaded.items.is_empty() && loaded.parked.is_empty()
        );
    }
    assert!(bed.store.log(&t, Epoch(0)).await.unwrap().items.is_empty());
    assert!(
        raws(&bed.load(&"f".into()).await) == [said("a"), large],
        "the same text of another thread stays"
    );
    assert_eq!(bed.archive.heirs(&u).await.unwrap(), ["f".into()]);
    // Where others inherit, a child may be kept as well, and is to be found once they are gone.
    assert_eq!(bed.archive.children(&u).await.unwrap(), ["child-of-u".into()]);
    assert!(bed.archive.children(&t).await.unwrap().is_empty());
    let listed: Vec<ThreadId> =
        bed.store.list_threads(10).await.unwrap().into_iter().map(|thread| thread.thread).collect();
    assert_eq!(
        listed,
        ["f".into(), "child-of-u".into(), "child-of-t".into()],
        "what was erased is in no list"
    );
    // Nothing makes it again, and nothing goes on with it.
    assert_eq!(bed.commit(create("t", &[&said("again")])).await, Committed::LostRace);
    let meta = bed.store.meta(&t).await.unwrap().unwrap();
    assert_eq!(bed.commit(append(&meta, &[&said("on")])).await, Committed::LostRace);
    // What was never there is erased without a trace.
    bed.archive.erase(&"never".into(), Logs::Erase).await.unwrap();
    assert_eq!(bed.store.meta(&"never".into()).await.unwrap(), None::<Meta>);
}

pub async fn nobody_begins_to_inherit_of_what_is_about_to_be_erased(bed: &Bed) {
    bed.thread("a", &[&said("1")]).await;
    let mut fork = create("b", &[]);
    fork.meta.base = vec![span("a", 0, 1)];
    let a = ThreadId::from("a");
    bed.archive.set_inheritable(&a, false).await.unwrap();
    assert_eq!(bed.commit(fork.clone()).await, Committed::LostRace);
    assert!(bed.archive.heirs(&a).await.unwrap().is_empty());
    bed.archive.set_inheritable(&a, true).await.unwrap();
    fork.meta.token = token();
    assert_eq!(bed.commit(fork).await, Committed::Done);
    // An erased one stays closed to heirs; the log of a snapshot is open again once it is written again.
    bed.archive.set_inheritable(&a, false).await.unwrap();
    bed.archive.erase(&a, Logs::Erase).await.unwrap();
    let mut late = create("c", &[]);
    late.meta.base = vec![span("a", 0, 1)];
    assert_eq!(bed.commit(late).await, Committed::LostRace);
    let log = ThreadId::from("snapshot x");
    for _ in 0..2 {
        bed.store.put_log(&log, &[item(1, &said("s"))]).await.unwrap();
        bed.archive.set_inheritable(&log, false).await.unwrap();
        bed.archive.erase(&log, Logs::Erase).await.unwrap();
        assert!(bed.store.log(&log, Epoch(0)).await.unwrap().items.is_empty());
    }
    bed.store.put_log(&log, &[item(1, &said("s"))]).await.unwrap();
    let mut import = create("d", &[]);
    import.meta.base = vec![span("snapshot x", 0, 1)];
    assert_eq!(bed.commit(import).await, Committed::Done);
}

pub async fn what_was_redacted_of_a_snapshot_stays_so_when_it_is_written_again(bed: &Bed) {
    let log = ThreadId::from("snapshot y");
    let items = [item(1, &said("secret")), item(2, &said(&format!("{} secret", "x".repeat(20_000))))];
    bed.store.put_log(&log, &items).await.unwrap();
    let rewrite = |_: TextOf, text: &str| text.contains("secret").then(|| text.replace("secret", "gone"));
    assert_eq!(bed.archive.rewrite_texts(&log, &rewrite).await.unwrap(), 2);
    bed.store.put_log(&log, &items).await.unwrap();
    let read = bed.store.log(&log, Epoch(0)).await.unwrap().items;
    assert!(read.iter().all(|item| !item.raw.contains("secret")) && read.len() == 2);
}

pub async fn the_oldest_threads_are_listed_first_and_only_those_before_a_time(bed: &Bed) {
    let mut made = Vec::new();
    for n in 0..12_i64 {
        let mut make = create(&format!("t-{n}"), &[]);
        make.meta.created_at_ms = 1_000_000 + n * 1_000;
        assert_eq!(bed.commit(make.clone()).await, Committed::Done);
        made.push(make.meta.thread);
    }
    let names = |from, limit| async move {
        let found = bed.archive.oldest_threads(from, 1_008_000, limit).await.unwrap();
        found.into_iter().map(|thread| thread.thread).collect::<Vec<_>>()
    };
    assert_eq!(names(0, 100).await, made[..8]);
    assert_eq!(names(0, 3).await, made[..3]);
    assert_eq!(names(1_002_000, 3).await, made[2..5], "page by page");
    assert_eq!(names(1_007_001, 3).await, []);
    assert_eq!(names(1_008_000, 3).await, []);
}
