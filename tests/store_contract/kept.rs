//! What holds for every store: sizes, limits, ids, and the rows beside a history.

use std::collections::BTreeSet;

use dormouse::message::{CallId, DedupId, Epoch, MessageId, RawJson, Seq, ThreadId};
use dormouse::store::{
    ChoiceRow, Commit, Committed, Cursor, DeadLetter, Expect, MAX_ACTIONS, RunChange, RunEvents, RunRow,
    RunState, Stop, StoreError, SubscriptionChange,
};

use crate::bed::{Bed, append, create, days, item, now_ms, parked, raws, said};

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
    type Break = fn(&mut Commit);
    let broken: [(&str, Break); 7] = [
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

pub async fn i1_dead_letters_are_kept_whole_and_once_until_they_are_forgotten(bed: &Bed) {
    let letter = |thread: &str, id: &str, body: String, kept_at_ms| DeadLetter {
        thread: ThreadId::from(thread),
        message_id: MessageId::from(id),
        reason: "nobody \u{0} knows".to_owned(),
        body,
        kept_at_ms,
    };
    let small = letter("t", "m-1", "x".to_owned(), now_ms());
    let large = letter("t #é", "m-2", "y\u{0}".repeat(600_000), now_ms() + 1);
    let empty = letter("t", "m-3", String::new(), now_ms() + 2);
    for letter in [&small, &large, &empty] {
        bed.store.keep_dead_letter(letter).await.unwrap();
        let kept = bed.store.dead_letter(&letter.thread, &letter.message_id).await.unwrap();
        assert!(kept.as_ref() == Some(letter));
    }
    // Kept again, the first one stays.
    let again = DeadLetter { body: "other".to_owned(), kept_at_ms: 0, ..small.clone() };
    bed.store.keep_dead_letter(&again).await.unwrap();
    assert_eq!(bed.store.dead_letter(&small.thread, &small.message_id).await.unwrap(), Some(small.clone()));
    let ids =
        |letters: Vec<DeadLetter>| letters.into_iter().map(|l| l.message_id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(bed.store.dead_letters(10).await.unwrap()), ["m-3", "m-2", "m-1"]);
    assert_eq!(ids(bed.store.dead_letters(1).await.unwrap()), ["m-3"]);
    // Under which id a message failed.
    let (thread, cause) = (ThreadId::from("t"), MessageId::from("m-1"));
    assert_eq!(bed.store.failed_input(&thread, &cause).await.unwrap(), None);
    bed.store.raise_attempts(&thread, &DedupId::from("d #1"), &cause).await.unwrap();
    bed.store.raise_attempts(&thread, &DedupId::from("d #2"), &MessageId::from("m-2")).await.unwrap();
    bed.store.lower_attempts(&thread, &DedupId::from("d #1")).await.unwrap();
    assert_eq!(bed.store.failed_input(&thread, &cause).await.unwrap(), Some(DedupId::from("d #1")));
    // They are no threads.
    assert!(bed.store.list_threads(10).await.unwrap().is_empty());
    bed.store.forget_dead_letter(&large.thread, &large.message_id).await.unwrap();
    bed.store.forget_dead_letter(&large.thread, &large.message_id).await.unwrap();
    assert_eq!(bed.store.dead_letter(&large.thread, &large.message_id).await.unwrap(), None);
    assert_eq!(ids(bed.store.dead_letters(10).await.unwrap()), ["m-3", "m-1"]);
}

pub async fn a_name_is_whose_who_claims_it_first_and_threads_are_listed_by_owner(bed: &Bed) {
    let base = now_ms();
    let (odd, claimed) = (ThreadId::from("t #é"), ThreadId::from("claimed"));
    for _ in 0..2 {
        assert_eq!(bed.store.claim_thread(&odd, "ann", base).await.unwrap(), "ann");
        assert_eq!(bed.store.claim_thread(&odd, "bob", base).await.unwrap(), "ann");
    }
    assert_eq!(bed.store.claim_thread(&claimed, "bob", base).await.unwrap(), "bob");
    for (n, (thread, owner)) in
        [("t #é", Some("ann")), ("a2", Some("ann")), ("a3", Some("ann")), ("b1", Some("bob")), ("n", None)]
            .into_iter()
            .enumerate()
    {
        let mut make = create(thread, &[&said("a")]);
        make.meta.owner = owner.map(str::to_owned);
        make.meta.created_at_ms = base + n as i64;
        assert_eq!(bed.commit(make).await, Committed::Done);
    }
    let listed = async |owner: &str, limit| -> Vec<String> {
        let threads = bed.store.list_threads_of(owner, limit).await.unwrap();
        threads.into_iter().map(|thread| thread.thread.to_string()).collect()
    };
    assert_eq!(listed("ann", 10).await, ["a3", "a2", "t #é"]);
    assert_eq!(listed("ann", 2).await, ["a3", "a2"]);
    assert_eq!(listed("bob", 10).await, ["b1"], "a name that was only claimed is no thread yet");
    assert!(listed("eve", 10).await.is_empty() && listed("ann", 0).await.is_empty());
    // Made without a claim, it has one.
    assert_eq!(bed.store.claim_thread(&ThreadId::from("a2"), "bob", base).await.unwrap(), "ann");
    // Claimed by one and made by another, it is the maker's.
    let mut make = create("claimed", &[&said("a")]);
    make.meta.owner = Some("ann".to_owned());
    assert_eq!(bed.commit(make).await, Committed::Done);
    assert_eq!(listed("bob", 10).await, ["b1"]);
}

pub async fn i2_a_choice_is_closed_by_the_commit_that_answers_it(bed: &Bed) {
    let mut make = create("t", &[&said("a")]);
    let row = |id: &str, body: String| ChoiceRow { id: CallId::from(id), body };
    make.choices = vec![row("c-1", "x".repeat(9_000)), row("c-2", "y".to_owned())];
    let (meta, choices) = (make.meta.clone(), make.choices.clone());
    assert_eq!(bed.commit(make).await, Committed::Done);
    assert_eq!(bed.store.open_choices(&meta.thread).await.unwrap(), choices);
    assert_eq!(bed.load(&meta.thread).await.choices, choices);
    let mut stale = append(&meta, &[]);
    stale.expect = Expect::At { epoch: meta.epoch, head: meta.head, token: "another".to_owned() };
    stale.closed_choices = vec![CallId::from("c-1")];
    assert_eq!(bed.commit(stale).await, Committed::LostRace);
    assert_eq!(bed.store.open_choices(&meta.thread).await.unwrap().len(), 2);
    let mut twice = append(&meta, &[]);
    twice.closed_choices = vec![CallId::from("c-1"), CallId::from("c-1")];
    assert!(matches!(bed.store.commit(twice).await, Err(StoreError::Invalid { .. })));
    let mut close = append(&meta, &[]);
    close.closed_choices = vec![CallId::from("c-1"), CallId::from("never was")];
    assert_eq!(bed.commit(close).await, Committed::Done);
    assert_eq!(bed.store.open_choices(&meta.thread).await.unwrap(), choices[1..]);
    assert_eq!(bed.store.choice(&meta.thread, &CallId::from("c-1")).await.unwrap(), None);
}

pub async fn the_last_cancel_request_is_loaded_with_its_thread(bed: &Bed) {
    let meta = bed.thread("t", &[&said("a")]).await;
    assert_eq!(bed.store.stop(&meta.thread).await.unwrap(), None);
    assert_eq!(bed.load(&meta.thread).await.stop, None);
    for (id, head) in [("one", 2), ("two", 3)] {
        let stop = Stop { epoch: Epoch(1), head: Seq(head), id: id.to_owned() };
        bed.store.request_stop(&meta.thread, &stop).await.unwrap();
        assert_eq!(bed.store.stop(&meta.thread).await.unwrap(), Some(stop.clone()));
        let loaded = bed.load(&meta.thread).await;
        assert_eq!(loaded.stop, Some(stop));
        assert_eq!(loaded.meta, Some(meta.clone()), "it touches nothing else");
    }
}

pub async fn a_clients_run_is_made_once_changed_until_it_ends_and_shown_in_order(bed: &Bed) {
    let runs = bed.store.runs().expect("every store of ours keeps runs");
    let (thread, now) = (ThreadId::from("t"), now_ms());
    // Names are the client's own: one that begins like another, blanks, and more than a key holds.
    let names = ["main", "main#1", " ", "é", &"x".repeat(900)].map(str::to_owned);
    let config = format!("{{\"tools\":\"{}\"}}", "c".repeat(20_000));
    for name in &names {
        assert_eq!(runs.run(&thread, name).await.unwrap(), None);
        assert_eq!(runs.change_run(&thread, name, &RunChange::Begin, now).await.unwrap(), None);
        let row = RunRow::queued(name, &config, now + 5);
        assert!(runs.put_run(&thread, &row, now).await.unwrap());
        assert!(
            !runs.put_run(&thread, &RunRow::queued(name, "{}", 0), now).await.unwrap(),
            "the first one stays"
        );
        assert_eq!(runs.run(&thread, name).await.unwrap(), Some(row));
    }
    let change =
        async |change: RunChange| runs.change_run(&thread, "main", &change, now).await.unwrap().unwrap();
    assert_eq!(change(RunChange::Begin).await.attempt, 1);
    assert_eq!(change(RunChange::Wait).await.state, RunState::Waiting);
    let begun = change(RunChange::Begin).await;
    assert_eq!((begun.attempt, begun.state, begun.stop), (2, RunState::Running, false));
    assert_eq!(change(RunChange::Attach { until_ms: now + 9 }).await.attached_until_ms, now + 9);
    assert!(change(RunChange::Stop).await.stop);
    let ended = change(RunChange::End("first".to_owned())).await;
    assert_eq!((ended.state, ended.end.as_deref()), (RunState::Ended, Some("first")));
    for late in [RunChange::Begin, RunChange::Wait, RunChange::Stop, RunChange::End("second".to_owned())] {
        assert_eq!(change(late).await, ended, "an ended run stays as it is");
    }
    assert_eq!(runs.run(&thread, "main").await.unwrap(), Some(ended));

    let long = "r".repeat(500_000);
    let shown = [(1, 1, "a"), (1, 2, long.as_str()), (1, 10, "c"), (2, 1, "d"), (10, 1, "e")];
    for (attempt, n, text) in shown.iter().rev() {
        let events = RunEvents { attempt: *attempt, n: *n, text: (*text).to_owned() };
        runs.put_run_events(&thread, "main", &events, now).await.unwrap();
    }
    let of_another = RunEvents { attempt: 1, n: 1, text: "other".to_owned() };
    runs.put_run_events(&thread, "main#1", &of_another, now).await.unwrap();
    let after = async |attempt, n| {
        let events = runs.run_events(&thread, "main", Cursor { attempt, n }).await.unwrap();
        events.into_iter().map(|events| (events.attempt, events.n, events.text)).collect::<Vec<_>>()
    };
    let owned =
        |from: usize| shown[from..].iter().map(|(a, n, t)| (*a, *n, (*t).to_owned())).collect::<Vec<_>>();
    assert!(after(0, 0).await == owned(0));
    assert!(after(1, 2).await == owned(2));
    assert!(after(1, 11).await == owned(3));
    assert!(after(10, 1).await.is_empty());
}
