//! What happens when summarising fails: the thread goes on.

use dormouse::message::{Compact, InputContent, InputMessage};
use dormouse::model::scripted::{ScriptedErrorClass, ScriptedEvent};
use dormouse::slice::{AgentProfile, Agents};

use crate::bed::{Bed, HARD, WINDOW, is_summary, long, size, texts};
use crate::world::{Delivery, THREAD};

const OMITTED: &str = "[earlier parts of this conversation are left out here";

#[tokio::test]
async fn c25_89_a_window_of_1000_and_a_system_prompt_of_1100_is_no_call_and_a_clear_error() {
    struct Wordy(std::sync::Arc<dyn Agents>);
    impl Agents for Wordy {
        fn default_agent(&self) -> &str {
            self.0.default_agent()
        }
        fn knows(&self, agent: &str) -> bool {
            self.0.knows(agent)
        }
        fn profile(&self, agent: &str) -> Result<AgentProfile, dormouse::model::ModelError> {
            let profile = self.0.profile(agent)?;
            Ok(AgentProfile { system_prompt: Some("x".repeat(4_400)), ..profile })
        }
    }
    let mut bed = Bed::with(1_000, |n, _| crate::bed::summary(n));
    let agents = bed.world.runtime.agents.clone();
    bed.world.runtime.agents = std::sync::Arc::new(Wordy(agents.clone()));
    for text in ["hello", "are you there?"] {
        let told = bed.say(text).await;
        assert!(told.contains("system prompt") && told.contains("500 tokens"), "{told}");
    }
    assert_eq!(bed.world.model.calls(), 0, "no model is asked");
    assert_eq!(bed.world.story().await, ["user: hello", "user: are you there?"], "nothing is lost");
    // With the prompt mended the thread goes on.
    bed.world.runtime.agents = agents;
    let bed = bed.bare();
    assert_eq!(bed.say("say yes").await, "yes");
}

#[tokio::test]
async fn c25_a_message_that_cannot_fit_is_left_out_and_the_user_told_before_any_call() {
    let bed = Bed::new();
    bed.say("say hi").await;
    let told = bed.say(&"x".repeat(60_000)).await;
    assert!(told.contains("left out") && told.contains("15"), "{told}");
    assert_eq!(bed.world.model.calls(), 1);
    assert_eq!(bed.say("say on").await, "on", "the next one is served");
    assert!(texts(&bed.request()).iter().any(|text| text.contains("a message was left out")));
}

/// A summariser that always answers so, and a thread that is too long for its window.
async fn failing(response: Vec<ScriptedEvent>) -> Bed {
    let bed = Bed::with(WINDOW, move |_, _| response.clone());
    bed.turns(0..40).await;
    for request in bed.requests() {
        assert!(size(&request) <= HARD, "{}", size(&request));
    }
    let answers = bed.world.output.texts().iter().filter(|text| text.starts_with("echo: turn")).count();
    assert_eq!(answers, 40, "every message is answered all the same");
    let meta = bed.meta().await;
    assert_eq!(
        (meta.compaction.last, meta.compaction.newest),
        (0, None),
        "34: nothing is stored but the attempt"
    );
    assert_eq!(meta.compaction.run.attempts, 1, "within the back-off there is no second try");
    let request = bed.request();
    assert!(texts(&request)[1].starts_with(OMITTED), "{:?}", &texts(&request)[1][..80]);
    let notices =
        bed.world.output.texts().into_iter().filter(|text| text.contains("could not be summarised"));
    assert_eq!(notices.count(), 1, "the user is told once");
    bed
}

#[tokio::test]
async fn f21_c27_86_after_four_failed_jobs_nothing_is_tried_any_more_until_somebody_asks() {
    let bed = failing(vec![ScriptedEvent::error(ScriptedErrorClass::Refused, "no")]).await;
    assert_eq!(bed.summaries(), 1, "a refusal is not sent again, and there is no other model");
    for (wait, attempts) in [(31, 2), (121, 3), (601, 4), (10_000, 4), (10_000, 4)] {
        bed.pass(wait);
        bed.turn(attempts as usize + 50).await;
        assert_eq!(bed.meta().await.compaction.run.attempts, attempts);
    }
    assert_eq!(bed.summaries(), 4);
    let told = bed.world.output.texts();
    assert!(told.iter().any(|text| text.contains("`dormouse compact` does")), "the state is visible");
    // A person's word counts, also when it fails again.
    bed.compact().await;
    assert_eq!((bed.summaries(), bed.meta().await.compaction.run.attempts), (5, 1));
}

#[tokio::test]
async fn f21_a_new_window_counts_anew() {
    let bed = failing(vec![ScriptedEvent::error(ScriptedErrorClass::Refused, "no")]).await;
    let stored = bed.meta().await.compaction.run;
    assert!(stored.profile.contains("20000"), "{stored:?}");
    assert!(stored.failure.unwrap().contains("refused"));
}

#[tokio::test]
async fn c5_a_summary_that_is_cut_refused_empty_too_long_or_no_summary_is_never_committed() {
    let text = |text: &str| ScriptedEvent::Text(text.to_owned());
    let end = |stop: &str| ScriptedEvent::End(stop.into());
    for (calls, response) in [
        (2, vec![text(&"half ".repeat(200)), end("max_tokens")]),
        (1, vec![text("I cannot"), end("refusal")]),
        (2, vec![text(&"half ".repeat(200)), ScriptedEvent::Cut(true)]),
        (2, vec![]),
        (2, vec![text("ok")]),
        (2, vec![text(&"too long ".repeat(5_000))]),
        (1, vec![text("x"), ScriptedEvent::call("", "echo", "{}")]),
        (2, vec![ScriptedEvent::error(ScriptedErrorClass::Overflow, "too long")]),
    ] {
        let bed = failing(response.clone()).await;
        assert_eq!(bed.summaries(), calls, "{response:?}");
    }
}

#[tokio::test]
async fn f43_the_summariser_gets_text_and_no_tools() {
    let bed = Bed::new();
    for n in 0..8 {
        bed.say(&format!("call add {{\"text\":\"{n} {}\"}}", "y".repeat(1_000))).await;
    }
    bed.compact().await;
    let request = bed.world.model.requests().into_iter().find(is_summary).unwrap();
    assert!(request.tools.is_empty());
    assert_eq!(request.messages.len(), 1);
    let input = texts(&request).concat();
    assert!(input.contains("assistant calls add (call c0-2-") && input.contains("result of call c0-2-"));
    assert_eq!(bed.meta().await.compaction.last, 1);
}

#[tokio::test]
async fn c24_a_summary_that_fits_no_more_is_neither_trimmed_nor_left_out() {
    // A summary of about 1,400 tokens; then a model with a much smaller window.
    let big = |_: usize, _: &dormouse::history::request::ModelRequest| {
        vec![ScriptedEvent::Text("fact after fact, ".repeat(330))]
    };
    let bed = Bed::with(WINDOW, big);
    bed.turns(0..14).await;
    bed.compact().await;
    assert_eq!(bed.meta().await.compaction.last, 1);
    let small = Bed::with(2_400, big).bare();
    let mut world = small.world.clone();
    world.runtime.store = bed.world.runtime.store.clone();
    world.done(&bed.world.user("say hi")).await;
    let told = world.output.texts().pop().unwrap();
    assert!(told.contains("its summary has about") && told.contains("larger window"), "{told}");
    assert!(small.requests().is_empty(), "55: before any reply");
    assert_eq!(bed.meta().await.compaction.last, 1, "the state is intact");
    assert_eq!(bed.say("say yes").await, "yes", "with the old model it goes on");
}

#[tokio::test]
async fn ladder_a_provider_that_knows_better_is_believed_and_the_reply_comes() {
    // It is said to have 20,000, and takes 3,000.
    let bed = Bed::answering(
        WINDOW,
        |n, _| crate::bed::summary(n),
        |request| match size(request) {
            size if size > 3_000 => {
                vec![ScriptedEvent::error(ScriptedErrorClass::Overflow, "prompt is too long")]
            }
            _ => vec![ScriptedEvent::Text("fine".into())],
        },
    );
    for n in 0..30 {
        assert_eq!(bed.say(&long(n)).await, "fine", "turn {n}");
    }
    assert!(bed.summaries() >= 1);
    assert!(bed.world.model.calls() < 30 * 4, "no blind resends: {}", bed.world.model.calls());
    assert_eq!(bed.world.items().await.len(), 60, "nothing is lost");
    let shown = texts(&bed.request()).concat();
    assert!(shown.contains("turn 29"));
}

#[tokio::test]
async fn ladder_without_a_window_older_groups_are_left_out_of_the_request() {
    let bed = Bed::answering(
        WINDOW,
        |_, _| panic!("no summary"),
        |request| match size(request) {
            size if size > 3_000 => {
                vec![ScriptedEvent::error(ScriptedErrorClass::Overflow, "prompt is too long")]
            }
            _ => vec![ScriptedEvent::Text("fine".into())],
        },
    );
    let mut bed = bed;
    struct Off(std::sync::Arc<dyn Agents>);
    impl Agents for Off {
        fn default_agent(&self) -> &str {
            self.0.default_agent()
        }
        fn knows(&self, agent: &str) -> bool {
            self.0.knows(agent)
        }
        fn profile(&self, agent: &str) -> Result<AgentProfile, dormouse::model::ModelError> {
            Ok(AgentProfile { compaction: None, ..self.0.profile(agent)? })
        }
    }
    bed.world.runtime.agents = std::sync::Arc::new(Off(bed.world.runtime.agents.clone()));
    for n in 0..20 {
        assert_eq!(bed.say(&long(n)).await, "fine", "turn {n}: the newest message is never what is dropped");
    }
    assert_eq!(bed.summaries(), 0, "52: off is off");
    let items = bed.world.items().await;
    assert!(items.iter().all(|item| item.facts.left_out.is_none()));
}

#[tokio::test]
async fn i7_c27_a_compaction_that_is_given_up_on_ends_counts_as_failed_and_its_thread_is_told() {
    let open = async |bed: &Bed| {
        dormouse::store::StateStore::open_children(&bed.world.store, &THREAD.into()).await.unwrap()
    };
    let bed = Bed::new();
    bed.turns(0..4).await;
    // By attempts that fail, and by the queue.
    for (attempts, died) in [(1, false), (2, true)] {
        let request = InputContent::Compact(Compact { manual: true, focus: None });
        bed.world.done(&bed.world.message(&InputMessage::plain(THREAD.into(), request))).await;
        let (wake, dedup) = bed.world.input.sent.lock().unwrap().pop().unwrap();
        let wake = Delivery { dedup: dedup.as_str().to_owned(), ..bed.world.message(&wake) };
        assert_eq!(open(&bed).await, 1);
        match died {
            true => bed.world.dies(&wake).await,
            false => {
                let mut wake = wake;
                for _ in 0..5 {
                    bed.world.store.fail_loads(1);
                    assert_eq!(bed.world.deliver(std::slice::from_ref(&wake)).await.len(), 1);
                    wake = wake.again();
                }
                bed.world.done(&wake).await;
                bed.world.settle().await;
            }
        }
        assert_eq!(open(&bed).await, 0, "its thread is closed");
        assert_eq!((bed.summaries(), bed.meta().await.compaction.run.attempts), (0, attempts));
        let told = bed.world.output.texts().into_iter().filter(|text| text.contains("given up on")).count();
        assert_eq!(told, attempts as usize);
    }
    bed.compact().await;
    assert!(bed.summaries() > 0, "the next one is done");
}

#[tokio::test]
async fn ladder_a_result_that_a_users_text_has_brought_in_gives_way_when_it_is_committed_already() {
    struct Bare(std::sync::Arc<dyn Agents>);
    impl Agents for Bare {
        fn default_agent(&self) -> &str {
            self.0.default_agent()
        }
        fn knows(&self, agent: &str) -> bool {
            self.0.knows(agent)
        }
        fn profile(&self, agent: &str) -> Result<AgentProfile, dormouse::model::ModelError> {
            Ok(AgentProfile { compaction: None, prune: false, ..self.0.profile(agent)? })
        }
    }
    let mut bed = Bed::answering(
        WINDOW,
        |_, _| panic!("no summary"),
        |request| match size(request) {
            size if size > 3_000 => {
                vec![ScriptedEvent::error(ScriptedErrorClass::Overflow, "prompt is too long")]
            }
            _ => dormouse::model::scripted::prompts::respond(request),
        },
    );
    // Nothing else can give way.
    bed.world.runtime.agents = std::sync::Arc::new(Bare(bed.world.runtime.agents.clone()));
    bed.world.done(&bed.world.user(r#"both echo {"n":1} other {"n":2}"#)).await;
    let calls = bed.world.pending().await;
    // It is parked; the text brings it in, and that is committed before the model is asked.
    bed.world.done(&bed.world.result(&calls[0], &"large ".repeat(3_000))).await;
    assert_eq!(bed.say("say on").await, "on");
    assert_eq!(
        bed.world.model.calls(),
        3,
        "the call, the request that was too large, and the one that was not"
    );
    let items = bed.world.items().await;
    let large = items.iter().find(|item| item.raw.contains("large large")).expect("I8: it is as it was");
    assert_eq!(large.facts.left_out, None, "I8: and so is its row");
    let meta = bed.meta().await;
    assert_eq!((meta.results_out.epoch, &meta.results_out.seqs), (meta.epoch, &vec![large.seq]));
    // Every later request is without it, too, and the provider is not asked in vain.
    let before = bed.world.model.calls();
    assert_eq!(bed.say("say more").await, "more");
    assert_eq!(bed.world.model.calls(), before + 1);
    assert!(!texts(&bed.request()).concat().contains("large large"));
}

#[tokio::test]
async fn c12_47_what_was_summarised_before_a_failure_stays_and_the_failure_makes_no_loop() {
    let bed = Bed::with(WINDOW, |n, _| match n {
        1 => crate::bed::summary(1),
        _ => vec![ScriptedEvent::error(ScriptedErrorClass::Refused, "no")],
    });
    bed.turns(0..40).await;
    let compaction = bed.meta().await.compaction;
    assert_eq!((compaction.last, compaction.run.attempts), (1, 1));
    assert_eq!(bed.summaries(), 2, "one that worked, one that failed, and no third within the back-off");
    let shown = texts(&bed.request());
    assert!(shown[1].contains("summary number 1") && shown.last().unwrap().starts_with("turn 39"));
}
