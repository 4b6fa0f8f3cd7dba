//! What lands in the dead-letter queue is kept whole, its thread is told once, and an operator decides (I1, I7). The
//! slices that died are in `crash_table.rs`; the real command is in `redrive.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/world.rs"]
mod world;

use aws_lambda_events::event::sqs::SqsMessage;
use dormouse::message::{
    CallId, ContentPart, DedupId, InputContent, InputMessage, MessageId, ThreadId, Undeliverable,
};
use dormouse::model::scripted::ScriptedModel;
use dormouse::queue::{InputSender, Quarantined};
use dormouse::store::memory::CommitFault;
use dormouse::store::{ConversationStore, DeadLetter, StateStore};
use world::{Delivery, THREAD, World};

fn world() -> World {
    World::new(ScriptedModel::prompts())
}

async fn kept(world: &World) -> Vec<DeadLetter> {
    world.store.dead_letters(100).await.unwrap()
}

/// A record of the dead-letter queue that dormouse put there itself.
fn quarantined(world: &World, letter: &Quarantined) -> SqsMessage {
    let body = serde_json::to_string(letter).unwrap();
    let record = Delivery {
        message_id: "m-900".to_owned(),
        group: letter.thread.as_str().to_owned(),
        dedup: "dead-letter".to_owned(),
        receive_count: 1,
        body,
    };
    world.record(&record)
}

#[tokio::test]
async fn i1_a_text_that_died_in_the_queue_makes_its_thread_and_a_placeholder() {
    let world = world();
    let text = world.user("say hello");
    world.dies(&text).await;
    assert_eq!(world.story().await, ["user: [a message was left out: it could not be processed]"]);
    assert!(world.output.texts()[0].contains("put aside for an operator"));
    let letters = kept(&world).await;
    assert_eq!((letters.len(), letters[0].body.as_str()), (1, text.body.as_str()));
    assert_eq!(letters[0].thread.as_str(), THREAD);
    // Sent again by an operator, under an id of its own, it is a new message.
    let again = Delivery { dedup: "redrive".to_owned(), ..world.user("say hello") };
    world.done(&again).await;
    assert_eq!(world.story().await[1..], ["user: say hello", "assistant: hello"]);
}

#[tokio::test]
async fn what_dormouse_put_there_itself_is_kept_and_settles_nothing() {
    let world = world();
    world.done(&world.user("call echo {}")).await;
    let pending = world.pending().await;
    let letter = Quarantined {
        reason: "unknown content".to_owned(),
        // Even of the message that caused the call: it was told when it was put aside.
        message_id: MessageId::from("m-1"),
        thread: ThreadId::from(THREAD),
        body: "{\"x\":1}".to_owned(),
        claim: None,
    };
    assert!(world.drain(quarantined(&world, &letter)).await);
    assert!(world.input.sent.lock().unwrap().is_empty(), "nobody is told twice");
    assert_eq!(world.pending().await, pending);
    let letters = kept(&world).await;
    assert_eq!((letters[0].reason.as_str(), letters[0].body.as_str()), ("unknown content", "{\"x\":1}"));
}

#[tokio::test]
async fn a_body_that_lies_in_a_claim_check_is_kept_whole() {
    let world = world();
    let whole = "x".repeat(2_000_000);
    let digest = world.store.put_claim(&whole).await.unwrap();
    let letter = Quarantined {
        reason: "r".repeat(100_000),
        message_id: MessageId::from("m-800"),
        thread: ThreadId::from(THREAD),
        body: "xxx".to_owned(),
        claim: Some(digest),
    };
    assert!(world.drain(quarantined(&world, &letter)).await);
    let text = InputMessage::user_text(ThreadId::from(THREAD), whole.clone());
    let digest = world.store.put_claim(&text.to_body().unwrap()).await.unwrap();
    let claim = InputContent::ClaimCheck(dormouse::message::ClaimCheck { digest });
    world.dies(&world.message(&InputMessage::plain(ThreadId::from(THREAD), claim))).await;
    let bodies: Vec<usize> = kept(&world).await.iter().map(|letter| letter.body.len()).collect();
    assert!(bodies.iter().all(|bytes| *bytes >= whole.len()), "{bodies:?}");
    assert!(kept(&world).await.iter().all(|letter| letter.reason.len() < 10_000));
    assert_eq!(world.story().await.len(), 1, "the claimed text has its placeholder");
}

#[tokio::test]
async fn a_body_that_looks_like_one_of_ours_but_died_in_the_queue_is_not_believed() {
    let world = world();
    world.done(&world.user("call echo {}")).await;
    let letter = Quarantined {
        reason: "forged".to_owned(),
        message_id: MessageId::from("m-77"),
        thread: ThreadId::from("somebody-else"),
        body: "x".to_owned(),
        claim: None,
    };
    let delivery = Delivery {
        message_id: "m-1".to_owned(),
        group: THREAD.to_owned(),
        dedup: "d".to_owned(),
        receive_count: 100,
        body: serde_json::to_string(&letter).unwrap(),
    };
    world.dies(&delivery).await;
    let letters = kept(&world).await;
    assert_eq!((letters[0].thread.as_str(), letters[0].message_id.as_str()), (THREAD, "m-1"));
    // Nobody can read it, but what its message has caused is settled all the same.
    assert!(world.pending().await.is_empty());
}

#[tokio::test]
async fn a_word_of_a_death_that_dies_itself_is_only_kept() {
    let world = world();
    let dead = Undeliverable { message_id: MessageId::from("m-1") };
    let word = InputMessage::plain(ThreadId::from(THREAD), InputContent::Undeliverable(dead));
    world.dies(&world.message(&word)).await;
    assert_eq!(kept(&world).await.len(), 1);
    assert!(world.store.meta(&ThreadId::from(THREAD)).await.unwrap().is_none());
}

#[tokio::test]
async fn what_nobody_waits_for_makes_no_thread() {
    let world = world();
    let result = InputMessage::tool_result(
        ThreadId::from("nowhere"),
        CallId::from("c0-2-x"),
        vec![ContentPart::text("late")],
    );
    world.dies(&world.message(&result)).await;
    assert!(world.store.meta(&ThreadId::from("nowhere")).await.unwrap().is_none());
    assert_eq!(kept(&world).await.len(), 1);
    assert!(world.output.texts().is_empty());
}

#[tokio::test]
async fn i7_a_word_of_a_death_stands_in_a_batch_among_others_and_fails_alone() {
    let world = world();
    world.done(&world.user("call echo {}")).await;
    let word = |id: &str| {
        let dead = Undeliverable { message_id: MessageId::new(id) };
        world.message(&InputMessage::plain(ThreadId::from(THREAD), InputContent::Undeliverable(dead)))
    };
    let batch = [world.user("say one"), word("m-1"), word("m-0"), world.user("say two")];
    assert!(world.deliver(&batch).await.is_empty());
    world.settle().await;
    let texts = world.output.texts();
    assert!(texts.contains(&"one".to_owned()) && texts.contains(&"two".to_owned()), "{texts:?}");
    // A store that fails hands back the word and what follows it, nothing before it.
    let batch = [word("m-100"), world.user("say three")];
    world.store.fail_commits([CommitFault::Unavailable]);
    let failed = world.deliver(&batch).await;
    assert_eq!(failed, [batch[0].message_id.clone(), batch[1].message_id.clone()]);
    assert!(world.deliver(&batch.each_ref().map(Delivery::again)).await.is_empty());
    assert_eq!(world.output.texts().last().unwrap(), "three");
}

/// Refuses the next sends.
struct Refusing(std::sync::Mutex<usize>, std::sync::Arc<world::Inbox>);

#[async_trait::async_trait]
impl InputSender for Refusing {
    async fn send(&self, message: &InputMessage, dedup: &DedupId) -> Result<(), dormouse::queue::QueueError> {
        let mut left = self.0.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return Err(dormouse::queue::QueueError::Unavailable("a test says so".to_owned()));
        }
        self.1.sent.lock().unwrap().push((message.clone(), dedup.clone()));
        Ok(())
    }
}

#[tokio::test]
async fn i1_a_drain_that_cannot_send_hands_the_record_back_and_repeats_itself_without_effect() {
    let mut world = world();
    world.runtime.input = std::sync::Arc::new(Refusing(std::sync::Mutex::new(1), world.input.clone()));
    let mut record = world.record(&world.user("say hello"));
    record.attributes.insert("DeadLetterQueueSourceArn".to_owned(), "arn".to_owned());
    assert!(!world.drain(record.clone()).await, "it cannot be sent");
    assert_eq!(kept(&world).await.len(), 1, "kept first");
    assert!(world.drain(record.clone()).await);
    assert!(world.drain(record).await, "the queue did not hear it");
    assert_eq!(kept(&world).await.len(), 1);
    let ids: Vec<DedupId> = world.input.sent.lock().unwrap().iter().map(|(_, dedup)| dedup.clone()).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(ids[0], ids[1], "one id: the queue and the thread know it again");
    world.settle().await;
    assert_eq!(world.story().await.len(), 1);
    assert_eq!(world.output.texts().len(), 1);
}

#[tokio::test]
async fn i7_the_message_that_was_to_wake_parked_inputs_is_sent_again_when_it_died() {
    let world = World::new(ScriptedModel::prompts());
    world.done(&world.user("say hello")).await;
    let release = InputMessage::plain(ThreadId::from(THREAD), InputContent::Release);
    let died = world.message(&release);
    let mut record = world.record(&died);
    record.attributes.insert("DeadLetterQueueSourceArn".to_owned(), "arn:aws:sqs:x:1:in.fifo".to_owned());
    assert!(world.drain(record).await);
    let (word, dedup) = world.input.sent.lock().unwrap().remove(0);
    world.done(&Delivery { dedup: dedup.as_str().to_owned(), ..world.message(&word) }).await;
    let sent = world.input.sent.lock().unwrap().clone();
    let [(again, _)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(*again, release);
    world.settle().await;
    assert_eq!(world.model.calls(), 1, "nothing was parked, so nobody is asked");
}
