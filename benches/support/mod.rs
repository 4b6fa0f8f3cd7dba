//! What is measured: three operations on a conversation of a given length, over two stores.
//!
//! | operation | what it does |
//! |---|---|
//! | load | `HistoryManager::load`: rows to items, and the dedup look-up of one input |
//! | render | a loaded history with one more user text becomes a model request |
//! | slice | one SQS record with a user text through the real handler: load, render, a scripted answer, commit, reply |
//!
//! The stores are [`MemoryStore`], and [`DynamoStore`] over [`tape`]: everything of a DynamoDB request but the
//! network. The length is what is stored *before* the input that an operation brings.
#![allow(dead_code, clippy::unwrap_used, reason = "each bench uses a part of it and fails by panicking")]

mod clock;
mod tape;
#[path = "../../tests/support/world.rs"]
mod world;

use std::sync::Arc;
use std::time::Duration;

pub use clock::ThreadClock;
use dormouse::history::Arrival;
use dormouse::history::render::{RenderOptions, Rendered};
use dormouse::message::{
    AssistantItem, CallId, ContentPart, DedupId, Epoch, InputMessage, Item, ItemBody, ItemFacts, ItemId,
    MessageId, Outcome, ReasoningItem, Seq, SettledBy, ThreadId, ToolCallItem, ToolResultItem, UserItem,
};
use dormouse::model::scripted::{MODEL_NAME, ScriptedEvent, ScriptedModel};
use dormouse::store::dynamodb::DynamoStore;
use dormouse::store::memory::MemoryStore;
use dormouse::store::{
    Commit, Committed, Compacted, CompactionCommit, CompactionRun, DedupLife, Expect, Generation,
    GenerationId, Meta, Pointer, Position, Store,
};
use dormouse::thread::{Handled, HistoryManager};
use dormouse::tools::ToolDefinition;
use world::{Delivery, NOW_MS, THREAD, World};

/// Items that a conversation holds.
pub const LENGTHS: [usize; 4] = [0, 100, 1_000, 10_000];
/// Items that a conversation holds of which a summary stands for all but the last [`SHOWN`].
pub const COMPACTED: [usize; 2] = [1_000, 100_000];
/// Items behind a summary.
pub const SHOWN: usize = 500;
/// Items of one turn; each length is whole turns.
const TURN: usize = 5;
/// Turns that one commit writes: with their dedup rows and META they stay below a transaction's 100 actions.
const TURNS_A_COMMIT: usize = 12;

/// Samples of one benchmark, and for how long they are taken: all benches together end within minutes.
const SAMPLES: usize = 20;
const WARM_UP: Duration = Duration::from_millis(500);
const MEASUREMENT: Duration = Duration::from_secs(2);

/// How time is measured.
pub fn timing() -> criterion::Criterion<ThreadClock> {
    criterion::Criterion::default()
        .with_measurement(ThreadClock)
        .without_plots()
        .sample_size(SAMPLES)
        .warm_up_time(WARM_UP)
        .measurement_time(MEASUREMENT)
}

/// Which store an operation runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Maps in this process.
    Memory,
    /// The DynamoDB adapter over recorded answers.
    Dynamo,
}

impl Backend {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Dynamo];

    /// As in the names of benchmarks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Dynamo => "dynamodb",
        }
    }
}

/// A conversation, and from where a store that holds it comes.
pub enum Source {
    /// A fresh store is filled each time: a slice leaves it changed.
    Memory(Vec<Item>),
    /// Recorded answers are the same each time, whatever is committed.
    Dynamo(DynamoStore),
}

impl Source {
    /// A conversation of `length` items in a store of that kind.
    pub async fn new(backend: Backend, length: usize) -> Self {
        let items = conversation(length);
        match backend {
            Backend::Memory => Self::Memory(items),
            Backend::Dynamo => Self::Dynamo(tape::record(&items, 0).await),
        }
    }

    /// A conversation of `length` items in DynamoDB that was compacted.
    pub async fn compacted(length: usize) -> Self {
        Self::Dynamo(tape::record(&conversation(length), length - SHOWN).await)
    }

    /// A store that holds the conversation and nothing else.
    pub async fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(items) => {
                let store = MemoryStore::new();
                fill(&store, items).await;
                Arc::new(store)
            }
            Self::Dynamo(store) => Arc::new(store.clone()),
        }
    }
}

/// One thread is enough: nothing of what is measured is concurrent, and its allocations can be counted.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The load of a slice.
pub async fn load(store: &Arc<dyn Store>) -> HistoryManager {
    let dedup = DedupId::new("d-next");
    HistoryManager::load(store.clone(), store.clone(), ThreadId::from(THREAD), &[dedup]).await.unwrap()
}

/// A loaded conversation with one more user text, ready to be rendered.
pub struct Asking {
    manager: HistoryManager,
    options: RenderOptions,
}

impl Asking {
    /// Loads `source` and takes the text in.
    pub async fn new(source: &Source) -> Self {
        let mut manager = load(&source.store().await).await;
        let message = InputMessage::user_text(ThreadId::from(THREAD), "And the build after that?");
        let arrival = Arrival {
            dedup: DedupId::new("d-next"),
            cause: MessageId::new("m-next"),
            key: "1".to_owned(),
            receives: 1,
            now_ms: NOW_MS,
        };
        let handled = manager.handle_input(&message, &arrival).await.unwrap();
        assert!(matches!(handled, Handled::Accepted(dormouse::history::Accepted::Ready)), "{handled:?}");
        let tool = ToolDefinition {
            name: "build_status".to_owned(),
            description: "The state of a build.".to_owned(),
            input_schema: serde_json::json!({"type": "object", "properties": {"build": {"type": "integer"}}}),
        };
        let options = RenderOptions {
            system: Some("be brief".to_owned()),
            model: MODEL_NAME.to_owned(),
            tools: vec![tool],
            ..RenderOptions::default()
        };
        Self { manager, options }
    }

    /// The request.
    pub fn render(&self) -> Rendered {
        self.manager.render_history(&self.options).unwrap()
    }
}

/// A process with one message to handle.
pub struct Slice {
    world: World,
    delivery: Delivery,
}

impl Slice {
    /// Over a conversation as it was stored.
    pub async fn new(source: &Source) -> Self {
        let answer = "It is green; all 214 tests passed, and it was deployed at noon.";
        let model = ScriptedModel::from_fn(move |_| {
            vec![ScriptedEvent::Text(answer.to_owned()), ScriptedEvent::End("end_turn".to_owned())]
        });
        let world = World::over(source.store().await, model);
        let delivery = world.user("And the build after that?");
        Self { world, delivery }
    }

    /// Handles the message to its end, and hands the process back, so that dropping it is not measured.
    pub async fn run(self) -> Self {
        self.world.done(&self.delivery).await;
        self
    }

    /// It asked the model once, with the whole conversation, and answered.
    pub fn check(&self, length: usize) {
        let requests = self.world.model.requests();
        assert_eq!((requests.len(), self.world.output.texts().len()), (1, 1), "one answer to one request");
        // A turn is a user message, a call, its result and an answer.
        assert_eq!(requests[0].messages.len(), length / TURN * 4 + 1, "the request holds everything");
    }

    /// It asked the model with the summary and what is behind it.
    pub fn check_compacted(&self) {
        let requests = self.world.model.requests();
        assert_eq!((requests.len(), self.world.output.texts().len()), (1, 1), "one answer to one request");
        // The summary stands in the first user message.
        assert_eq!(requests[0].messages.len(), SHOWN / TURN * 4 + 1, "what is behind the summary");
    }
}

/// A conversation of whole turns: a question, reasoning, a call, its result, the answer.
fn conversation(length: usize) -> Vec<Item> {
    (0..length / TURN).flat_map(turn).collect()
}

fn turn(turn: usize) -> [Item; TURN] {
    let first = turn * TURN;
    let seq = |at: usize| Seq::FIRST.plus(first + at);
    let call_id = CallId::mint(&ThreadId::from(THREAD), Epoch(0), seq(2));
    let model = MODEL_NAME.to_owned();
    let bodies = [
        ItemBody::User(UserItem {
            parts: vec![ContentPart::text(format!("Is build {turn} green? {}", prose(80)))],
            ..UserItem::default()
        }),
        ItemBody::Reasoning(ReasoningItem {
            model: model.clone(),
            text: prose(240),
            signature: Some("c2lnbmF0dXJl".repeat(16)),
            provider: None,
        }),
        ItemBody::ToolCall(ToolCallItem {
            call_id: call_id.clone(),
            provider_id: format!("call_{turn}"),
            name: "build_status".to_owned(),
            arguments: format!(r#"{{"build":{turn},"branch":"main","fields":["state","tests"]}}"#),
            signature: None,
            model: model.clone(),
        }),
        ItemBody::ToolResult(ToolResultItem {
            call_id: call_id.clone(),
            outcome: Outcome::Ok,
            parts: vec![ContentPart::text(prose(600))],
            settled_by: SettledBy::Tool,
            display_as: None,
        }),
        ItemBody::Assistant(AssistantItem {
            text: prose(320),
            model,
            stop_reason: Some("end_turn".to_owned()),
        }),
    ];
    // Not as the world names what it delivers: that would be a duplicate.
    let arrived_as = [Some(format!("turn-{turn}")), None, None, Some(format!("result-{call_id}")), None];
    let mut bodies = bodies.into_iter().zip(arrived_as).enumerate();
    std::array::from_fn(|_| {
        let (at, (body, dedup)) = bodies.next().unwrap();
        let facts = ItemFacts {
            dedup: dedup.map(DedupId::new),
            cause: Some(MessageId::new(format!("5f0c8a8e-0000-4000-8000-{:012}", first + at))),
            turn: u32::try_from(turn).unwrap(),
            turn_id: Some(ItemId::at(Epoch(0), seq(0))),
            opens_turn: at == 0,
            user: (at == 0).then(|| "u-1".to_owned()),
            created_at_ms: NOW_MS,
            ..ItemFacts::default()
        };
        Item::fresh(seq(at), body, facts)
    })
}

/// Text of `length` bytes, with what JSON must escape in it.
fn prose(length: usize) -> String {
    "The tests of \"parser\" passed in 12 s;\nthree were skipped. ".chars().cycle().take(length).collect()
}

/// A summary of the first items of a conversation, as long as they come.
pub async fn compact(store: &dyn Store, covered: usize) {
    let thread = ThreadId::from(THREAD);
    let meta = store.meta(&thread).await.unwrap().unwrap();
    let id = GenerationId { thread: thread.clone(), epoch: meta.epoch, number: 1 };
    let through = Position { thread: thread.clone(), epoch: meta.epoch, seq: Seq::FIRST.plus(covered - 1) };
    let generation = Generation {
        at: Pointer { id, through, opener: None },
        text: prose(8_000),
        digest: "of what it was made of".to_owned(),
        parent: None,
        system: Vec::new(),
        instructions: Vec::new(),
        model: MODEL_NAME.to_owned(),
        partial: false,
        source_tokens: covered as u64 * 100,
        created_at_ms: NOW_MS,
    };
    let run = CompactionRun::default();
    let change = CompactionCommit { thread, epoch: meta.epoch, last: 0, generation: Some(generation), run };
    assert_eq!(store.compact(change).await.unwrap(), Compacted::Done);
}

/// Commits a conversation as slices would have.
pub async fn fill(store: &dyn Store, items: &[Item]) {
    let mut meta = Meta::new_root(ThreadId::from(THREAD), "default", None, NOW_MS);
    for (n, items) in items.chunks(TURNS_A_COMMIT * TURN).enumerate() {
        let expect = match n {
            0 => Expect::Absent,
            _ => Expect::At { epoch: meta.epoch, head: meta.head, token: meta.token.clone() },
        };
        meta.head = meta.head.plus(items.len());
        meta.next_turn += u32::try_from(items.len() / TURN).unwrap();
        meta.turn_id = items.last().and_then(|item| item.facts.turn_id.clone());
        meta.token = format!("token-{n}");
        let dedup = items.iter().filter_map(|item| item.facts.dedup.clone());
        let commit = Commit {
            items: items.to_vec(),
            dedup: dedup.map(|id| (id, DedupLife::Forever)).collect(),
            ..Commit::new(expect, meta.clone(), NOW_MS)
        };
        assert_eq!(store.commit(commit).await.unwrap(), Committed::Done);
    }
}
