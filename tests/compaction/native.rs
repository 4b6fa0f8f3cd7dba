//! What a provider makes of a conversation itself, over real HTTP (part 5 of the design; numbers of its checklist).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dormouse::config::ModelConfig;
use dormouse::message::{Compact, InputContent, InputMessage};
use dormouse::model::genai::GenaiModel;
use dormouse::model::scripted::ScriptedModel;
use dormouse::model::{Mechanism, ModelProvider, Usage};
use dormouse::slice::{AgentProfile, Summaries};
use dormouse::store::{ConversationStore, Generation};
use serde_json::{Value, json};

use crate::bed::{Agent, WINDOW, long};
use crate::messages_api::{Api, BETA, Fault};
use crate::world::{THREAD, World};

const SUMMARY: &str = "[Summary of the conversation up to here.";

struct Bed {
    world: World,
    api: Api,
    agent: Arc<Agent>,
}

fn model(url: &str, change: impl FnOnce(&mut ModelConfig)) -> Arc<dyn ModelProvider> {
    let mut config = ModelConfig {
        base_url: Some(url.to_owned()),
        context_window: Some(WINDOW),
        ..ModelConfig::from_spec("anthropic::claude-opus-5-5")
    };
    change(&mut config);
    let model = GenaiModel::new(&config, Some("key".into())).unwrap();
    Arc::new(model.with_timeouts(Duration::from_secs(20), Duration::from_secs(20)))
}

fn profile(model: &Arc<dyn ModelProvider>) -> AgentProfile {
    AgentProfile {
        model: model.clone(),
        system_prompt: Some("be brief".into()),
        max_output_tokens: None,
        prune: true,
        compaction: Some(Summaries { native: true, ..Summaries::by(model.clone()) }),
    }
}

impl Bed {
    async fn new() -> Self {
        let api = Api::start().await;
        let agent = Arc::new(Agent(Mutex::new(profile(&model(&api.url, |_| {})))));
        let mut world = World::new(ScriptedModel::from_fn(|_| panic!("nobody asks it")));
        world.runtime.agents = agent.clone();
        Self { world, api, agent }
    }

    /// A conversation that has just been compacted, beside it.
    async fn compacted() -> Self {
        let bed = Self::new().await;
        bed.turns(0..18).await;
        bed.world.settle().await;
        assert_eq!(bed.api.compactions().len(), 1);
        bed
    }

    fn change(&self, change: impl FnOnce(&mut AgentProfile)) {
        change(&mut self.agent.0.lock().unwrap());
    }

    async fn say(&self, text: &str) -> String {
        self.world.done(&self.world.user(text)).await;
        self.world.output.texts().last().unwrap().clone()
    }

    async fn turns(&self, n: std::ops::Range<usize>) {
        for n in n {
            assert_eq!(self.say(&long(n)).await, format!("echo: turn {n}"));
        }
    }

    async fn newest(&self) -> Option<Generation> {
        let newest = self.world.meta().await.compaction.newest?;
        self.world.store.generation(&newest.id).await.unwrap()
    }

    /// The block that the last request began with, and the whole of it.
    fn last(&self) -> (Option<Value>, String) {
        let last = self.api.messages().pop().unwrap();
        assert_eq!(
            last.block().is_some(),
            last.beta.as_deref() == Some(BETA),
            "the header goes with the block"
        );
        (last.block().cloned(), last.text())
    }
}

#[tokio::test]
async fn native_59_71_a_checkpoint_made_beside_the_conversation_goes_first_and_is_never_respelled() {
    let bed = Bed::new().await;
    bed.turns(0..18).await;
    let before = bed.api.messages().pop().unwrap();
    assert!(before.beta.is_none() && before.block().is_none());
    bed.world.settle().await;
    let asked = bed.api.compactions();
    assert_eq!((asked.len(), bed.api.summaries()), (1, 0), "the provider alone was asked");
    // The same prompt and tools as every request; whole turns, up to the verbatim tail.
    assert_eq!(asked[0].body["system"], before.body["system"]);
    assert_eq!(asked[0].body["tools"], before.body["tools"]);
    assert!(asked[0].text().contains("turn 0:") && !asked[0].text().contains("turn 17:"));
    assert!(!asked[0].text().contains("please continue"), "nobody is to go on there");
    let generation = bed.newest().await.unwrap();
    assert!(generation.text.starts_with("Goal: native summary number 1."), "readable by everybody");
    assert_eq!(generation.model, "claude-opus-5-5");
    let native = generation.native.unwrap();
    assert_eq!(native.mechanism, Mechanism::AnthropicOnDemand);
    let stored: Value = serde_json::from_str(native.items[0].get()).unwrap();
    assert_eq!(stored, bed.api.issued()[0]);
    // 71: the counts above the iterations are zero.
    let input = asked[0].body.to_string().len() as u64 / 4 + 5 + 7;
    assert_eq!(native.usage, Some(Usage { input, output: 201, cached: 7 }));
    // Every slice is a new process: nothing but rows is left of the last one.
    bed.turns(18..20).await;
    let (block, text) = bed.last();
    assert_eq!(block.as_ref(), bed.api.issued().first());
    assert!(!text.contains(SUMMARY) && !text.contains("turn 0:") && text.contains("turn 17:"), "{text}");
    // Whatever is covered is in the store, as it was.
    let items = bed.world.items().await;
    assert_eq!(items.len(), 40);
    // A second pass begins with the newest block, and one is sent, not two.
    for n in 20..34 {
        bed.turns(n..n + 1).await;
        bed.world.settle().await;
    }
    assert_eq!((bed.api.compactions().len(), bed.api.summaries()), (2, 0));
    assert_eq!(bed.api.compactions()[1].block(), bed.api.issued().first());
    bed.turns(34..35).await;
    assert_eq!(bed.last().0.as_ref(), bed.api.issued().last());
    let second = bed.newest().await.unwrap();
    assert_eq!((second.at.id.number, second.parent.unwrap().number), (2, 1));
}

#[tokio::test]
async fn native_62_72_another_route_reads_the_summary_and_the_row_stays_as_it_is() {
    let bed = Bed::compacted().await;
    let stored = bed.newest().await;
    let other = Api::start().await;
    let own = bed.agent.0.lock().unwrap().clone();
    let routes: [(&str, AgentProfile); 4] = [
        ("another model", profile(&model(&bed.api.url, |config| config.name = "claude-sonnet-5".into()))),
        ("another address", profile(&model(&other.url, |_| {}))),
        (
            "another account",
            profile(&model(&bed.api.url, |config| config.api_key_env = Some("OTHER".into()))),
        ),
        ("switched off", AgentProfile { compaction: Some(Summaries::by(own.model.clone())), ..own.clone() }),
    ];
    for (what, profile) in routes {
        bed.change(|agent| *agent = profile);
        bed.turns(18..19).await;
        let last = match what {
            "another address" => other.messages().pop().unwrap(),
            _ => bed.api.messages().pop().unwrap(),
        };
        assert!(last.block().is_none() && last.beta.is_none(), "{what}");
        assert!(last.text().contains(SUMMARY) && last.text().contains("native summary number 1"), "{what}");
        assert_eq!(bed.newest().await, stored, "{what}");
    }
    // Back on its own route it is what the provider reads.
    bed.change(|agent| *agent = profile(&model(&bed.api.url, |_| {})));
    bed.turns(19..20).await;
    assert_eq!(bed.last().0.as_ref(), bed.api.issued().first());
}

#[tokio::test]
async fn native_92_a_refused_checkpoint_is_dead_the_request_is_repeated_once_and_it_is_never_tried_again() {
    let unknown = "messages.0.content.0: Input tag 'compaction' found using 'type' does not match any of the expected tags";
    for fault in [
        Fault::Refuse(400, "invalid_request_error", "compaction_signature_invalid"),
        Fault::Refuse(400, "invalid_request_error", "compaction_content_mismatch"),
        Fault::Refuse(400, "invalid_request_error", "compaction_block_misplaced"),
        Fault::Say(400, unknown.into()),
    ] {
        let bed = Bed::compacted().await;
        let stored = bed.newest().await;
        let before = bed.api.messages().len();
        bed.api.fail_message([fault]);
        bed.turns(18..20).await;
        let asked: Vec<bool> =
            bed.api.messages()[before..].iter().map(|message| message.block().is_some()).collect();
        assert_eq!(asked, [true, false, false], "with it, without it, and the next turn without");
        assert!(bed.last().1.contains(SUMMARY));
        let compaction = bed.world.meta().await.compaction;
        assert_eq!(compaction.run.dead, compaction.newest.map(|newest| newest.id));
        assert_eq!(bed.newest().await, stored, "I8: the row is as it was");
        // The next summary has a block of its own, made from the text.
        bed.turns(20..34).await;
        bed.world.settle().await;
        assert!(bed.api.compactions()[1].block().is_none());
        assert!(bed.api.compactions()[1].text().contains(SUMMARY));
        bed.turns(34..35).await;
        assert_eq!(bed.last().0.as_ref(), bed.api.issued().last());
        assert_eq!(bed.world.meta().await.compaction.run.dead, None);
    }
    // Keys are rotated: the server itself knows no signature any more.
    let bed = Bed::compacted().await;
    bed.api.rotate();
    bed.turns(18..19).await;
    assert!(bed.last().0.is_none());
}

#[tokio::test]
async fn native_92_if_the_summary_is_refused_as_well_the_user_is_told_and_the_next_message_is_served() {
    let bed = Bed::compacted().await;
    let refuse = || Fault::Refuse(400, "invalid_request_error", "compaction_signature_invalid");
    let before = bed.api.messages().len();
    bed.api.fail_message([refuse(), refuse()]);
    let told = bed.say(&long(18)).await;
    assert!(told.contains("refused the request") && !told.contains("echo"), "{told}");
    assert_eq!(bed.api.messages().len() - before, 2, "one retry");
    bed.turns(19..20).await;
    assert!(bed.last().0.is_none());
}

#[tokio::test]
async fn native_529_that_passes_kills_no_checkpoint() {
    let bed = Bed::compacted().await;
    let before = bed.api.messages().len();
    bed.api.fail_message([Fault::Refuse(529, "overloaded_error", "compaction_unavailable")]);
    bed.turns(18..19).await;
    let asked: Vec<bool> =
        bed.api.messages()[before..].iter().map(|message| message.block().is_some()).collect();
    assert_eq!(asked, [true, true]);
    assert_eq!(bed.world.meta().await.compaction.run.dead, None);
}

#[tokio::test]
async fn native_63_without_a_block_that_can_be_used_the_portable_way_is_taken() {
    let unavailable = || Fault::Refuse(529, "overloaded_error", "compaction_unavailable");
    for (what, calls, faults) in [
        ("refused", 1, vec![Fault::Stop("refusal")]),
        ("no text", 1, vec![Fault::Stop("end_turn")]),
        ("it called a tool", 1, vec![Fault::Stop("tool_use")]),
        (
            "no room for the prompt",
            1,
            vec![Fault::Stop("model_context_window_exceeded"), Fault::Stop("refusal")],
        ),
        ("null", 1, vec![Fault::Block(json!({ "content": null }))]),
        ("blank", 1, vec![Fault::Block(json!({ "content": " \n" }))]),
        ("unsigned", 1, vec![Fault::Block(json!({ "signature": "" }))]),
        ("too long", 1, vec![Fault::Block(json!({ "content": "x ".repeat(20_000) }))]),
        ("degenerate", 1, vec![Fault::Block(json!({ "content": "ok" }))]),
        ("cut twice", 2, vec![Fault::Stop("max_tokens"), Fault::Stop("max_tokens")]),
        ("down", 2, vec![unavailable(), unavailable()]),
        ("the stream is cut", 2, vec![Fault::Cut, Fault::Cut]),
        ("not on this model", 1, vec![Fault::Say(400, "compaction: Extra inputs are not permitted".into())]),
        ("no key", 1, vec![Fault::Say(401, "no".into())]),
    ] {
        let bed = Bed::new().await;
        bed.api.fail_compaction(faults);
        bed.turns(0..18).await;
        bed.world.settle().await;
        let generation = bed.newest().await.unwrap();
        assert!(generation.text.starts_with("Goal: a portable summary."), "{what}");
        assert_eq!(generation.native, None, "{what}");
        let wanted = if what == "no room for the prompt" { 2 } else { calls };
        assert_eq!(bed.api.compactions().len(), wanted, "{what}");
        assert_eq!(bed.world.meta().await.compaction.run.attempts, 0, "{what}: it is no failed attempt");
        bed.turns(18..19).await;
        assert!(bed.last().0.is_none() && bed.last().1.contains("a portable summary"), "{what}");
    }
    // A block that the output limit cut is asked for again, with more room.
    let bed = Bed::new().await;
    bed.api.fail_compaction([Fault::Stop("max_tokens")]);
    bed.turns(0..18).await;
    bed.world.settle().await;
    let room: Vec<u64> =
        bed.api.compactions().iter().map(|one| one.body["max_tokens"].as_u64().unwrap()).collect();
    assert_eq!(room.len(), 2);
    assert_eq!(room[1], room[0] * 2);
    assert!(bed.newest().await.unwrap().native.is_some());
}

#[tokio::test]
async fn native_68_by_hand_by_another_model_and_by_default_it_is_portable() {
    let ask = async |bed: &Bed| {
        let compact = InputContent::Compact(Compact { manual: true, focus: None });
        bed.world.done(&bed.world.message(&InputMessage::plain(THREAD.into(), compact))).await;
        bed.world.settle().await;
    };
    let bed = Bed::new().await;
    bed.turns(0..10).await;
    ask(&bed).await;
    assert_eq!(bed.api.compactions().len(), 0, "by hand");
    assert!(bed.api.summaries() > 0);
    let bed = Bed::new().await;
    let other = model(&bed.api.url, |config| config.name = "claude-haiku".into());
    bed.change(|agent| agent.compaction = Some(Summaries { native: true, ..Summaries::by(other) }));
    bed.turns(0..18).await;
    bed.world.settle().await;
    assert_eq!(bed.api.compactions().len(), 0, "another model summarises");
    assert!(bed.api.summaries() > 0);
    let bed = Bed::new().await;
    bed.change(|agent| agent.compaction.as_mut().unwrap().native = false);
    bed.turns(0..18).await;
    bed.world.settle().await;
    assert_eq!(bed.api.compactions().len(), 0, "nobody has asked for it");
    assert!(bed.api.summaries() > 0);
    let settings = dormouse::config::CompactionConfig::default();
    assert_eq!(settings.native, None);
}

#[tokio::test]
async fn native_65_75_a_redacted_text_is_in_no_checkpoint_and_none_is_sent_any_more() {
    use dormouse::thread::{Redaction, redact};
    let bed = Bed::compacted().await;
    redact(&bed.world.store, &THREAD.into(), &Redaction::Text("It went on".into())).await.unwrap();
    let generation = bed.newest().await.unwrap();
    assert!(generation.text.contains("[redacted]"));
    assert_eq!(generation.native, None);
    bed.turns(18..19).await;
    let (block, text) = bed.last();
    assert!(block.is_none() && !text.contains("It went on"), "{text}");
}

#[tokio::test]
async fn native_93_a_rewind_behind_a_checkpoint_falls_back_and_one_behind_the_tail_keeps_it() {
    use dormouse::message::{Rewind, RewindTarget};
    let bed = Bed::compacted().await;
    let rewind = async |turns| {
        let target = RewindTarget::Turn(turns);
        let content = InputContent::Rewind(Rewind { target, seen: None, then: None });
        bed.world.done(&bed.world.message(&InputMessage::plain(THREAD.into(), content))).await;
        bed.world.settle().await;
    };
    rewind(17).await;
    bed.turns(18..19).await;
    assert!(bed.last().0.is_some(), "its spans allow it");
    rewind(1).await;
    bed.turns(19..20).await;
    let (block, text) = bed.last();
    assert!(block.is_none() && text.contains("turn 0:") && !text.contains(SUMMARY), "{text}");
}
