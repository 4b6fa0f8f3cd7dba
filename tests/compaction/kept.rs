//! What a summary stands for is still there: for events, late results, replies that are sent late, children, forks and
//! rewinds.

use std::sync::Arc;

use dormouse::message::{
    CallId, Compact, ContentPart, Fork, InputContent, InputMessage, ItemBody, RawJson, Rewind, RewindTarget,
    RunRecord, RunRequest, Synthetic, ThreadId,
};
use dormouse::store::{ConversationStore, shared_state};
use dormouse::thread::HistoryManager;

use crate::bed::{Bed, texts};
use crate::world::{Delivery, THREAD};

fn operation(bed: &Bed, thread: &str, content: InputContent) -> Delivery {
    bed.world.message(&InputMessage::plain(ThreadId::from(thread), content))
}

/// A thread whose first call is behind a summary.
async fn with_covered_call(bed: &Bed) -> CallId {
    bed.world.done(&bed.world.user("call echo {}")).await;
    let call = bed.world.tools.calls().pop().unwrap();
    let mut result =
        InputMessage::tool_result(THREAD.into(), call.clone(), vec![ContentPart::text("subscribed")]);
    result.subscription = true;
    bed.world.done(&bed.world.message(&result)).await;
    bed.turns(0..16).await;
    bed.compact().await;
    assert!(bed.meta().await.compaction.last > 0);
    let loaded = bed.world.store.load_for_request(&THREAD.into(), &[]).await.unwrap();
    assert!(loaded.unread > 4, "the call is not even read");
    call
}

#[tokio::test]
async fn an_event_of_a_subscription_behind_the_summary_still_arrives() {
    let bed = Bed::new();
    let call = with_covered_call(&bed).await;
    let mut event =
        InputMessage::tool_result(THREAD.into(), CallId::new(""), vec![ContentPart::text("it rains")]);
    event.synthetic =
        Some(Synthetic::SubscriptionEvent { tool_call_id: call.clone(), associative: true, r#final: false });
    bed.world.done(&bed.world.message(&event)).await;
    assert_eq!(bed.world.story().await[bed.world.items().await.len() - 2], "event: it rains");
    let items = bed.world.items().await;
    let ItemBody::Event(stored) = &items[items.len() - 2].body else { panic!("no event") };
    assert_eq!((stored.original_tool_name.as_str(), &stored.original_tool_call_id), ("echo", &call));
}

#[tokio::test]
async fn a_late_result_of_a_call_behind_the_summary_is_a_note_and_a_duplicate_is_none() {
    let bed = Bed::new();
    bed.world.done(&bed.world.user("call echo {}")).await;
    let call = bed.world.tools.calls().pop().unwrap();
    bed.say("never mind").await;
    bed.turns(0..16).await;
    bed.compact().await;
    let before = bed.world.items().await.len();
    let result = bed.world.result(&call, "after all");
    bed.world.done(&result).await;
    bed.world.done(&result.again()).await;
    let story = bed.world.story().await;
    assert_eq!(story.len(), before + 1);
    assert!(story.last().unwrap().starts_with("user: [late result of echo"), "{:?}", story.last());
}

#[tokio::test]
async fn c19_87_while_a_call_is_open_compaction_is_due_and_runs_once_it_is_settled() {
    let bed = Bed::new();
    bed.turns(0..14).await;
    bed.world.done(&bed.world.user("call echo {}")).await;
    let call = bed.world.tools.calls().pop().unwrap();
    bed.compact().await;
    assert_eq!((bed.summaries(), bed.meta().await.asked.due.is_some()), (0, true));
    bed.world.done(&bed.world.result(&call, "42")).await;
    bed.world.settle().await;
    assert_eq!((bed.summaries(), bed.meta().await.asked.due), (1, None));
    bed.say("say on").await;
    let shown = texts(&bed.request());
    assert!(shown.iter().any(|text| text == "42"), "the call and its result are on the same side");
}

#[tokio::test]
async fn c20_88_what_is_open_when_a_summary_is_made_is_answered_beside_it() {
    let bed = Bed::new();
    bed.turns(0..14).await;
    // The compaction's thread is made before the call is, and works while it is open.
    bed.world.done(&operation(&bed, THREAD, InputContent::Compact(Compact::default()))).await;
    bed.world.done(&bed.world.user("both echo {} other {}")).await;
    let calls = bed.world.tools.calls();
    bed.world.done(&bed.world.result(&calls[1], "second")).await;
    bed.world.settle().await;
    assert_eq!(bed.meta().await.compaction.last, 1, "it may finish: its range was fixed before");
    assert_eq!(bed.meta().await.pending.len(), 2);
    bed.world.done(&bed.world.result(&calls[0], "first")).await;
    assert_eq!(bed.world.output.texts().last().unwrap(), "result: first, second");
}

#[tokio::test]
async fn c14_c15_93_a_rewind_falls_back_to_the_newest_summary_that_is_left() {
    let bed = Bed::new();
    bed.turns(0..10).await;
    bed.compact().await;
    let first = bed.meta().await.compaction.newest.unwrap();
    bed.turns(10..20).await;
    bed.compact().await;
    let second = bed.meta().await.compaction.newest.unwrap();
    assert!(second.through.seq > first.through.seq && second.id.number > first.id.number);
    let rewind =
        |turn| InputContent::Rewind(Rewind { target: RewindTarget::Turn(turn), seen: None, then: None });
    // Into what only the second one covers.
    let turn = u32::try_from((first.through.seq.0 + second.through.seq.0) / 4).unwrap();
    bed.world.done(&operation(&bed, THREAD, rewind(turn))).await;
    let meta = bed.meta().await;
    assert_eq!((meta.compaction.newest.as_ref(), meta.compaction.last, meta.epoch.0), (Some(&first), 0, 1));
    bed.say("say back").await;
    let shown = texts(&bed.request());
    assert!(shown[1].contains("summary number 1"), "{}", &shown[1]);
    assert!(
        shown.iter().any(|text| text.starts_with(&format!("turn {}:", turn - 1))),
        "items are whole again"
    );
    // The new log numbers on its own.
    bed.turns(30..45).await;
    bed.compact().await;
    let newest = bed.meta().await.compaction.newest.unwrap();
    assert_eq!((newest.id.epoch.0, newest.id.number), (1, bed.meta().await.compaction.last));
    let generation = bed.world.store.generation(&newest.id).await.unwrap().unwrap();
    assert!(generation.parent.is_some());
    // And to the very beginning: none is left.
    bed.world.done(&operation(&bed, THREAD, rewind(0))).await;
    assert_eq!(bed.meta().await.compaction.newest, None);
    assert_eq!(bed.say("say anew").await, "anew");
    assert_eq!(texts(&bed.request()), ["be brief", "say anew"]);
}

#[tokio::test]
async fn c14_a_fork_and_a_child_inherit_the_summary_and_change_nothing_of_their_source() {
    let bed = Bed::new();
    bed.turns(0..12).await;
    bed.compact().await;
    let source = bed.meta().await;
    let fork = InputContent::Fork(Fork { source: THREAD.into(), through: None, epoch: None });
    bed.world.done(&operation(&bed, "fork", fork)).await;
    let text = InputMessage::user_text("fork".into(), "say forked");
    bed.world.done(&bed.world.message(&text)).await;
    assert!(texts(&bed.request())[1].starts_with("[Summary of the conversation"));
    let of = |thread: &'static str| async { bed.world.store.meta(&thread.into()).await.unwrap().unwrap() };
    assert_eq!(of("fork").await.compaction.newest, source.compaction.newest);
    // A fork that ends before the summary does begins with the items.
    let early = InputContent::Fork(Fork { source: THREAD.into(), through: Some(1), epoch: None });
    bed.world.done(&operation(&bed, "early", early)).await;
    assert_eq!(of("early").await.compaction.newest, None);
    let text = InputMessage::user_text("early".into(), "say early");
    bed.world.done(&bed.world.message(&text)).await;
    let shown = texts(&bed.request());
    assert!(shown[1].starts_with("turn 0:") && shown.iter().any(|text| text.starts_with("turn 1:")));
    // A child of the thread, and its own compaction, which is no business of its parent's (48).
    let arguments = format!(r#"call spawn_thread {{"instructions":"say child","child_of":["{THREAD}"]}}"#);
    bed.world.done(&bed.world.user(&arguments)).await;
    let child = bed.world.store.list_threads(10).await.unwrap();
    let child = child.iter().map(|thread| &thread.thread).find(|thread| thread.as_str().starts_with("th-"));
    let child = child.filter(|child| child.as_str() != THREAD).unwrap().clone();
    bed.world.settle().await;
    let parent = bed.meta().await;
    let inherited = bed.world.store.meta(&child).await.unwrap().unwrap();
    assert_eq!(inherited.compaction.newest, parent.compaction.newest);
    for n in 0..12 {
        let text = InputMessage::user_text(child.clone(), crate::bed::long(n));
        bed.world.done(&bed.world.message(&text)).await;
    }
    let compact = InputContent::Compact(Compact { manual: true, focus: None });
    bed.world.done(&operation(&bed, child.as_str(), compact)).await;
    bed.world.settle().await;
    let after = bed.world.store.meta(&child).await.unwrap().unwrap();
    assert!(after.compaction.last > 0 && after.compaction.newest.unwrap().id.thread == child);
    assert_eq!(bed.meta().await.compaction, parent.compaction, "the parent's is as it was");
}

#[tokio::test]
async fn c12_c27_46_the_thread_of_a_compaction_ends_and_is_no_conversation() {
    let bed = Bed::new();
    bed.turns(0..18).await;
    let threads = bed.world.store.list_threads(10).await.unwrap().len();
    bed.world.settle().await;
    assert!(bed.meta().await.compaction.last > 0);
    assert_eq!(bed.world.store.list_threads(10).await.unwrap().len(), threads);
    assert_eq!(
        dormouse::store::StateStore::open_children(&bed.world.store, &THREAD.into()).await.unwrap(),
        0
    );
}

#[tokio::test]
async fn i4_a_reply_that_is_sent_after_its_items_were_summarised_is_sent_whole() {
    let bed = Bed::new();
    bed.turns(0..4).await;
    *bed.world.output.failures.lock().unwrap() = 1;
    let text = bed.world.user("say it is important");
    assert_eq!(bed.world.deliver(std::slice::from_ref(&text)).await, std::slice::from_ref(&text.message_id));
    assert!(!bed.world.output.texts().contains(&"it is important".to_owned()));
    // Somebody compacts beside it, all but the last group.
    let meta = bed.meta().await;
    let at = |seq| dormouse::store::Position {
        thread: THREAD.into(),
        epoch: meta.epoch,
        seq: dormouse::message::Seq(seq),
    };
    let id = dormouse::store::GenerationId { thread: THREAD.into(), epoch: meta.epoch, number: 1 };
    let generation = dormouse::store::Generation {
        at: dormouse::store::Pointer { id, through: at(meta.head.0 - 1), opener: None },
        text: "all of it".into(),
        digest: "d".into(),
        parent: None,
        system: Vec::new(),
        instructions: Vec::new(),
        model: "m".into(),
        partial: false,
        source_tokens: 9,
        created_at_ms: 0,
        native: None,
    };
    let change = dormouse::store::CompactionCommit {
        thread: THREAD.into(),
        epoch: meta.epoch,
        last: 0,
        generation: Some(generation),
        run: Default::default(),
    };
    bed.world.store.compact(change).await.unwrap();
    bed.world.done(&text.again()).await;
    assert_eq!(bed.world.output.texts().last().unwrap(), "it is important");
    // F22, F23: only the summary is left; one system entry, and it ends on a user's message.
    bed.say("seen").await;
    assert_eq!(texts(&bed.request())[..1], ["be brief"]);
    assert_eq!(bed.world.output.texts().last().unwrap().matches("all of it").count(), 1);
}

#[tokio::test]
async fn c16_75_76_what_is_redacted_is_in_no_summary_any_more() {
    use dormouse::message::{Epoch, ItemId, Seq};
    use dormouse::thread::{Redaction, redact};
    let bed = Bed::new();
    bed.say("say the word is tomato").await;
    bed.turns(0..10).await;
    bed.compact().await;
    let covered = bed.meta().await.compaction;
    assert_eq!(covered.last, 1);
    // A live item keeps the summary.
    let live = ItemId::at(Epoch(0), Seq(bed.meta().await.head.0 - 1));
    redact(&bed.world.store, &THREAD.into(), &Redaction::Item(live)).await.unwrap();
    let kept = bed.meta().await.compaction;
    assert_eq!(kept.newest, covered.newest);
    assert!(kept.last > covered.last, "a summary that is being written loses its race");
    // A covered one takes it along, for good, and the items count again.
    redact(&bed.world.store, &THREAD.into(), &Redaction::Item(ItemId::at(Epoch(0), Seq(1)))).await.unwrap();
    let after = bed.meta().await.compaction;
    assert_eq!(after.newest, None);
    let erased = bed.world.store.generation(&covered.newest.unwrap().id).await.unwrap();
    assert_eq!(erased, None, "erased, not only bypassed");
    bed.say("say on").await;
    let shown = texts(&bed.request());
    assert!(shown[1].starts_with("[redacted]") && shown.iter().any(|text| text.starts_with("turn 0:")));
    // A text is taken out of a summary like out of anything else.
    bed.compact().await;
    redact(&bed.world.store, &THREAD.into(), &Redaction::Text("It went on".into())).await.unwrap();
    bed.say("say well").await;
    let shown = texts(&bed.request());
    assert!(shown[1].contains("[redacted]") && !shown[1].contains("It went on"), "{}", &shown[1]);
}

#[tokio::test]
async fn standing_instructions_stay_word_for_word_in_front_of_the_summary_and_are_placed_once() {
    use std::sync::Arc;

    use dormouse::model::ModelError;
    use dormouse::slice::{AgentProfile, Agents};
    struct Instructed(Arc<dyn Agents>);
    impl Agents for Instructed {
        fn default_agent(&self) -> &str {
            self.0.default_agent()
        }
        fn knows(&self, agent: &str) -> bool {
            self.0.knows(agent)
        }
        fn profile(&self, agent: &str) -> Result<AgentProfile, ModelError> {
            self.0.profile(agent)
        }
        fn project_instructions(&self, _agent: &str) -> Option<&str> {
            Some("use tabs, never spaces")
        }
    }
    let mut bed = Bed::new();
    bed.world.runtime.agents = Arc::new(Instructed(bed.world.runtime.agents.clone()));
    bed.turns(0..10).await;
    for range in [10..14, 14..18] {
        bed.compact().await;
        bed.turns(range).await;
        let shown = texts(&bed.request());
        assert_eq!(shown[1], "use tabs, never spaces");
        assert!(shown[2].starts_with("[Summary of the conversation"), "{}", &shown[2]);
        assert_eq!(shown.iter().filter(|text| text.contains("use tabs")).count(), 1);
    }
    let told = bed.world.model.requests().into_iter().filter(crate::bed::is_summary);
    assert!(told.into_iter().all(|request| !texts(&request).concat().contains("use tabs")));
}

#[tokio::test]
async fn r21_a_state_behind_the_summary_is_still_what_is_shared() {
    let bed = Bed::new();
    let store = &bed.world.store;
    let shares = RunRequest {
        run: "r1".to_owned(),
        records: vec![RunRecord::User { id: "u1".to_owned(), parts: vec![ContentPart::text("say one")] }],
        append: true,
        resume: None,
        state: Some(RawJson::parse(r#"{"a":1}"#).unwrap()),
    };
    bed.say("say zero").await;
    bed.world.done(&operation(&bed, THREAD, InputContent::Run(shares))).await;
    bed.turns(0..16).await;
    bed.compact().await;
    let manager = || {
        let (port, states) = (Arc::new(store.clone()), Arc::new(store.clone()));
        HistoryManager::load(port, states, ThreadId::from(THREAD), &[])
    };
    let state = async || {
        let state = manager().await.unwrap().state().await.unwrap();
        let meta = bed.meta().await;
        assert_eq!(shared_state(store, &meta).await.unwrap(), state, "whoever looks it up");
        state.map(|state| state.get().to_owned())
    };
    assert!(manager().await.unwrap().history().unread() > 6, "its item is not even read");
    assert_eq!(state().await.as_deref(), Some(r#"{"a":1}"#));
    let rewind = |turn| Rewind { target: RewindTarget::Turn(turn), seen: None, then: None };
    bed.world.done(&operation(&bed, THREAD, InputContent::Rewind(rewind(4)))).await;
    assert_eq!(
        state().await.as_deref(),
        Some(r#"{"a":1}"#),
        "a rewind behind it, and in front of the summary's end"
    );
    bed.world.done(&operation(&bed, THREAD, InputContent::Rewind(rewind(1)))).await;
    assert_eq!(state().await, None);
}
