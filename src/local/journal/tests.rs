//! What needs another clock than the wall's: windows, retention, numbering.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

const QUEUE: &str = "q.fifo";

fn new(group: &str, dedup: &str) -> NewMessage {
    NewMessage {
        message_id: format!("id of {dedup}"),
        group_id: Some(group.to_owned()),
        dedup_id: Some(dedup.to_owned()),
        body: "body".to_owned(),
        attributes: "{}".to_owned(),
        trace_header: None,
        delay_seconds: 0,
    }
}

fn accept(journal: &Journal, scope: DedupScope, message: NewMessage, now_ms: i64) -> Acceptance {
    journal.accept(QUEUE, scope, &[message], now_ms).unwrap().remove(0)
}

#[test]
fn a_deduplication_id_counts_for_five_minutes_even_when_its_message_is_gone() {
    let journal = Journal::open(None).unwrap();
    let first = accept(&journal, DedupScope::Group, new("g", "d"), 0);
    journal.delete(QUEUE, &[first.seq]).unwrap();
    let again = accept(&journal, DedupScope::Group, new("g", "d"), DEDUP_WINDOW_MS - 1);
    assert_eq!(again, Acceptance { outcome: Outcome::Duplicate, ..first });
    assert_eq!(accept(&journal, DedupScope::Group, new("g", "d"), DEDUP_WINDOW_MS).outcome, Outcome::Queued);
}

#[test]
fn the_scope_of_a_deduplication_id_is_the_queue_or_the_group() {
    for (scope, expected) in [(DedupScope::Queue, Outcome::Duplicate), (DedupScope::Group, Outcome::Queued)] {
        let journal = Journal::open(None).unwrap();
        accept(&journal, scope, new("g", "d"), 0);
        assert_eq!(accept(&journal, scope, new("h", "d"), 1).outcome, expected);
    }
}

#[test]
fn a_batch_knows_its_own_duplicates() {
    let journal = Journal::open(None).unwrap();
    let batch = [new("g", "d"), new("g", "e"), new("g", "d")];
    let accepted = journal.accept(QUEUE, DedupScope::Group, &batch, 0).unwrap();
    assert_eq!(accepted[2].seq, accepted[0].seq);
    assert_eq!(journal.waiting().unwrap().len(), 2);
}

#[test]
fn a_number_is_never_used_twice_even_by_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    let mut last = None;
    for dedup in ["a", "b", "c"] {
        let journal = Journal::open(Some(&path)).unwrap();
        let seq = accept(&journal, DedupScope::Group, new("g", dedup), 0).seq;
        assert!(Some(seq) > last);
        journal.delete(QUEUE, &[seq]).unwrap();
        last = Some(seq);
    }
}

#[test]
fn a_sweep_takes_what_is_too_old_and_only_if_age_matters() {
    let journal = Journal::open(None).unwrap();
    accept(&journal, DedupScope::Group, new("g", "old"), 0);
    accept(&journal, DedupScope::Group, new("g", "new"), 1000);
    assert_eq!(journal.sweep(QUEUE, None, 2000).unwrap(), 0);
    assert_eq!(journal.sweep("another", Some(1000), 2000).unwrap(), 0);
    assert_eq!(journal.sweep(QUEUE, Some(1000), 2000).unwrap(), 1);
    assert_eq!(journal.waiting().unwrap().len(), 1);
}

#[test]
fn a_dead_letter_leaves_its_queue_in_the_step_in_which_it_arrives() {
    let journal = Journal::open(None).unwrap();
    let sent = accept(&journal, DedupScope::Group, new("g", "d"), 0);
    let redrive = Redrive {
        target: "dead.fifo".to_owned(),
        source_arn: "arn".to_owned(),
        max_receive_count: 1,
        fifo: true,
    };
    let receive = |seq| journal.receive(QUEUE, &[seq], Some(&redrive), 5).unwrap().remove(0);
    let Delivery::Deliver(stored) = receive(sent.seq) else { panic!("not delivered") };
    assert_eq!((stored.receive_count, stored.first_received_ms), (1, Some(5)));
    let Delivery::DeadLettered { seq, group_id } = receive(sent.seq) else { panic!("not moved") };
    assert!(seq > sent.seq && group_id.as_deref() == Some("g"));
    assert!(matches!(receive(sent.seq), Delivery::Gone));
    let waiting = journal.waiting().unwrap();
    assert_eq!(waiting.iter().map(|w| w.queue.as_str()).collect::<Vec<_>>(), ["dead.fifo"]);
    let letter = journal.receive("dead.fifo", &[seq], None, 6).unwrap().remove(0);
    let Delivery::Deliver(letter) = letter else { panic!("not delivered") };
    assert_eq!((letter.message_id.as_str(), letter.dedup_id.as_deref()), ("id of d", Some("id of d")));
    assert_eq!((letter.receive_count, letter.dead_letter_source.as_deref()), (1, Some("arn")));
}

#[test]
fn a_file_of_a_newer_dormouse_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    let journal = Journal::open(Some(&path)).unwrap();
    journal.lock().pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
    assert!(matches!(Journal::open(Some(&path)), Err(JournalError::Newer { .. })));
}
