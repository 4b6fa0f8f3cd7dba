//! What a model is shown.

use dormouse::history::request::RequestMessage;
use dormouse::message::{Compact, ContentPart};
use dormouse::model::scripted::ScriptedEvent;
use dormouse::store::ConversationStore;

use crate::bed::{Bed, HARD, WINDOW, long, size, texts};
use crate::world::THREAD;

const SUMMARY: &str = "[Summary of the conversation up to here.";

#[tokio::test]
async fn d19_soft_the_older_part_is_summarised_beside_the_conversation_and_shown_right_after_the_system_prompt()
 {
    let bed = Bed::new();
    bed.turns(0..14).await;
    assert_eq!(bed.summaries(), 0, "49: within the soft limit nothing is asked for");
    for n in 14..18 {
        bed.turn(n).await;
    }
    assert_eq!(bed.summaries(), 0, "and beyond it not in the reply's way");
    bed.world.settle().await;
    assert!((1..=3).contains(&bed.summaries()), "{}", bed.summaries());
    let meta = bed.meta().await;
    assert!(meta.compaction.last >= 1 && meta.compaction.run.attempts == 0, "{:?}", meta.compaction);
    let before = bed.requests().len();
    bed.say("seen").await;
    let request = bed.request();
    assert_eq!(bed.requests().len(), before + 1, "two messages to itself ask no model");
    // C31, C32: one summary, first, user-role; the system prompt is as it was.
    assert_eq!(request.system.as_deref(), Some("be brief"));
    let RequestMessage::User(first) = &request.messages[0] else { panic!("{request:?}") };
    assert!(ContentPart::join_text(first).starts_with(SUMMARY), "{first:?}");
    assert_eq!(texts(&request).iter().filter(|text| text.starts_with(SUMMARY)).count(), 1);
    assert!(size(&request) < HARD / 2, "{}", size(&request));
    assert!(
        texts(&request).iter().any(|text| text.starts_with("turn 17")),
        "C21: the newest turns are whole"
    );
    assert!(!texts(&request).iter().any(|text| text.starts_with("turn 0:")));
    // C13: what is covered is not even read, and can be read.
    let (unread, read) = bed.read().await;
    assert!(unread > 20 && read < 20, "{unread} {read}");
    assert_eq!(bed.world.items().await.len(), unread + read);
    // C31: the same bytes on every request of the generation.
    bed.say("say more").await;
    let next = bed.request();
    let RequestMessage::User(again) = &next.messages[0] else { panic!("{next:?}") };
    assert_eq!(again[0], first[0]);
    assert!(next.messages.starts_with(&request.messages[..request.messages.len() - 1]));
    // A second run over it changes nothing (94), and nothing is asked for again.
    let (made, asked) = (bed.meta().await.compaction.last, bed.summaries());
    bed.world.settle().await;
    assert_eq!((bed.meta().await.compaction.last, bed.summaries()), (made, asked));
}

#[tokio::test]
async fn d19_hard_a_history_above_the_limit_is_summarised_before_the_reply() {
    let bed = Bed::new();
    // Nothing beside the conversation gets to work.
    bed.turns(0..40).await;
    assert!(bed.summaries() >= 1, "one chunk before a reply at a time");
    for request in bed.requests() {
        assert!(size(&request) <= HARD, "{} tokens of {HARD}", size(&request));
    }
    let answers = bed.world.output.texts().iter().filter(|text| text.starts_with("echo: turn")).count();
    assert_eq!(answers, 40, "every message is answered");
    let meta = bed.meta().await;
    assert_eq!(meta.compaction.run.attempts, 0, "{:?}", meta.compaction.run);
    assert!(meta.compaction.last >= 2);
    // 5: the chunk before is the base of the next one, and is never summarised again.
    let chain = chain(&bed).await;
    assert!(chain.windows(2).all(|pair| pair[0].1 < pair[1].1), "{chain:?}");
    let inputs: Vec<String> = bed
        .world
        .model
        .requests()
        .iter()
        .filter(|request| crate::bed::is_summary(request))
        .map(|request| texts(request).concat())
        .collect();
    for n in 0..20 {
        let told = inputs.iter().filter(|input| input.contains(&format!("turn {n}: so"))).count();
        assert!(told <= 1, "turn {n} was summarised {told} times");
    }
    assert!(inputs[1].contains("<prior_summary>\nGoal: summary number 1."));
}

/// Numbers and watermarks of all generations, oldest first.
async fn chain(bed: &Bed) -> Vec<(u32, u64)> {
    let mut chain = Vec::new();
    let mut next = bed.meta().await.compaction.newest.map(|newest| newest.id);
    while let Some(id) = next {
        let generation = bed.world.store.generation(&id).await.unwrap().unwrap();
        chain.push((id.number, generation.at.through.seq.0));
        next = generation.parent;
    }
    chain.reverse();
    chain
}

#[tokio::test]
async fn c26_usage_of_the_view_before_does_not_count_for_the_one_after() {
    let bed = Bed::new();
    bed.turns(0..18).await;
    let counted = bed.meta().await.usage.unwrap();
    assert!(counted.input > 8_000);
    bed.world.settle().await;
    let asked = bed.summaries();
    // Had the old count been believed, this would be above the limit at once.
    bed.turns(18..21).await;
    bed.world.settle().await;
    assert_eq!(bed.summaries(), asked);
    assert!(bed.meta().await.usage.unwrap().input < counted.input);
}

#[tokio::test]
async fn c33_what_was_thought_of_another_view_is_not_shown() {
    let bed = Bed::new();
    bed.turns(0..17).await;
    bed.say("think hard").await;
    let thoughts = |bed: &Bed| {
        let thinks = |message: &RequestMessage| match message {
            RequestMessage::Assistant(said) => said.reasoning.len(),
            _ => 0,
        };
        bed.request().messages.iter().map(thinks).sum::<usize>()
    };
    bed.say("say yes").await;
    assert_eq!(thoughts(&bed), 1, "it goes back to its model");
    bed.world.settle().await;
    bed.say("say no").await;
    assert!(bed.summaries() > 0);
    assert!(texts(&bed.request()).iter().any(|text| text == "think hard"), "its turn is in the tail");
    assert_eq!(thoughts(&bed), 0, "it was bound to what stood before it");
    bed.say("think again").await;
    bed.say("say well").await;
    assert_eq!(thoughts(&bed), 1, "what comes after is shown");
}

#[tokio::test]
async fn c21_80_in_a_long_turn_the_older_steps_are_summarised_and_its_opener_stays_word_for_word() {
    // One turn of many synchronous steps, each 700 tokens.
    let steps = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let bed = Bed::answering(
        WINDOW,
        |n, _| crate::bed::summary(n),
        move |request| {
            let last = request.messages.last();
            let asks = matches!(last, Some(RequestMessage::User(parts)) if ContentPart::join_text(parts).contains("count to"));
            let hi = matches!(last, Some(RequestMessage::User(parts)) if ContentPart::join_text(parts).contains("say hi"));
            if asks {
                steps.store(0, std::sync::atomic::Ordering::Relaxed);
            }
            match steps.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                n if n < 24 && !hi => {
                    let text = format!("{{\"text\":\"step {n} {}\"}}", "x".repeat(1_400));
                    vec![ScriptedEvent::call("", "add", text)]
                }
                _ => vec![ScriptedEvent::Text("counted".into())],
            }
        },
    );
    bed.say("say hi").await;
    assert_eq!(bed.say("count to twenty, whatever it takes").await, "counted");
    assert!(bed.summaries() >= 1);
    let request = bed.request();
    assert!(size(&request) <= HARD, "{}", size(&request));
    let RequestMessage::User(first) = &request.messages[0] else { panic!("{request:?}") };
    assert!(ContentPart::join_text(&first[..1]).starts_with(SUMMARY));
    assert_eq!(ContentPart::join_text(&first[1..2]), "count to twenty, whatever it takes", "right behind it");
    let meta = bed.meta().await;
    assert!(meta.compaction.newest.unwrap().opener.is_some());
}

#[tokio::test]
async fn manual_it_is_done_at_once_with_a_focus_and_says_so_if_there_is_nothing() {
    let bed = Bed::new();
    bed.say("say hi").await;
    bed.compact().await;
    assert_eq!(bed.summaries(), 0);
    assert_eq!(bed.world.output.texts().last().unwrap(), "There is nothing to summarise.");
    bed.turns(0..10).await;
    bed.ask(Compact { manual: true, focus: Some("the <colours>".into()) }).await;
    assert_eq!(bed.summaries(), 1);
    let request = bed.world.model.requests().into_iter().find(crate::bed::is_summary).unwrap();
    let RequestMessage::User(parts) = &request.messages[0] else { panic!("{request:?}") };
    let input = ContentPart::join_text(parts);
    assert!(input.ends_with("<focus>\nthe &lt;colours&gt;\n</focus>\n"), "C1: the focus is no instruction");
    assert!(input.contains(&format!("[3] user\n{}", long(0))));
    bed.say("say on").await;
    assert!(texts(&bed.request())[1].starts_with(SUMMARY));
    // 81: the same message once more is one compaction.
    let message = dormouse::message::InputMessage::plain(
        THREAD.into(),
        dormouse::message::InputContent::Compact(Compact { manual: true, focus: None }),
    );
    bed.turns(10..20).await;
    let once = bed.world.message(&message);
    bed.world.done(&once).await;
    bed.world.done(&once.again()).await;
    bed.world.settle().await;
    let made = bed.summaries();
    bed.world.settle().await;
    assert_eq!(bed.summaries(), made);
}
