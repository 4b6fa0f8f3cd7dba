//! One chunk, call by call: what is sent again after which failure, in what form, and by whom.

use std::sync::Arc;
use std::time::Duration;

use dormouse::compaction::chunk::{Chunk, ChunkFailure, Job, SummaryModel, summarise};
use dormouse::compaction::policy::Ground;
use dormouse::compaction::summary_input::Estimator;
use dormouse::history::groups;
use dormouse::history::request::ModelRequest;
use dormouse::message::{
    AssistantItem, ContentPart, Epoch, Item, ItemBody, ItemFacts, Seq, ThreadId, UserItem,
};
use dormouse::model::scripted::{ScriptedErrorClass, ScriptedEvent, ScriptedModel};
use dormouse::model::{ModelProvider, Usage};
use dormouse::store::{CompactionState, Generation, GenerationId, Pointer, Position, Span};
use tokio::time::Instant;

use crate::bed::{summary, texts};
use crate::logged::Logged;

/// Turns of a user's text and a word in answer.
fn items(turns: &[String]) -> Vec<Item> {
    let user = |text: &String| {
        ItemBody::User(UserItem { parts: vec![ContentPart::text(text.clone())], ..UserItem::default() })
    };
    let said =
        || ItemBody::Assistant(AssistantItem { text: "yes".into(), model: "m".into(), stop_reason: None });
    let bodies = turns.iter().flat_map(|text| [user(text), said()]);
    let item = |(at, body): (usize, ItemBody)| {
        let facts = ItemFacts { opens_turn: at % 2 == 0, turn: at as u32 / 2, ..ItemFacts::default() };
        Item::fresh(Seq::FIRST.plus(at), body, facts)
    };
    bodies.enumerate().map(item).collect()
}

fn turns(n: usize, bytes: usize) -> Vec<String> {
    (0..n).map(|n| format!("turn {n}: {}", "so it goes, ".repeat(bytes / 12))).collect()
}

struct Chunks {
    thread: ThreadId,
    state: CompactionState,
    spans: Vec<Span>,
    items: Vec<Item>,
    cuts: Vec<usize>,
    end: usize,
    generation: Option<Generation>,
}

impl Chunks {
    fn of(turns: &[String]) -> Self {
        let items = items(turns);
        let bodies: Vec<&ItemBody> = items.iter().map(|item| &item.body).collect();
        let thread = ThreadId::from("t");
        let to = Seq(items.len() as u64);
        let spans = vec![Span { thread: thread.clone(), epoch: Epoch(0), from: Seq(0), to }];
        let cuts = groups::cuts(&bodies, &Default::default());
        let end = items.len() - 2;
        Self { thread, state: CompactionState::default(), spans, cuts, end, items, generation: None }
    }

    /// With a summary of that text before it.
    fn behind(mut self, text: &str) -> Self {
        let id = GenerationId { thread: self.thread.clone(), epoch: Epoch(0), number: 1 };
        let through = Position { thread: self.thread.clone(), epoch: Epoch(0), seq: Seq(1) };
        self.generation = Some(Generation {
            at: Pointer { id, through, opener: None },
            text: text.into(),
            digest: "d".into(),
            parent: None,
            system: Vec::new(),
            instructions: Vec::new(),
            model: "m".into(),
            partial: false,
            source_tokens: 9,
            created_at_ms: 0,
            native: None,
        });
        self
    }

    async fn chunk(&self, models: &mut [SummaryModel]) -> Result<Chunk, ChunkFailure> {
        let job = Job {
            thread: &self.thread,
            epoch: Epoch(0),
            state: &self.state,
            spans: &self.spans,
            items: &self.items,
            cuts: &self.cuts,
            end: self.end,
            generation: self.generation.as_ref(),
            reply_budget: 100_000,
            output: None,
            focus: None,
            native: None,
            ground: Ground::Back,
            deadline: Instant::now() + Duration::from_secs(300),
            now_ms: 0,
        };
        summarise(&job, models).await
    }
}

type Answers = fn(usize) -> Vec<ScriptedEvent>;

/// A model that answers its calls so.
fn model(name: &str, answer: Answers) -> Arc<ScriptedModel> {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let respond = move |_: &ModelRequest| answer(calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    Arc::new(ScriptedModel::from_fn(respond).named(name))
}

fn with_window(model: &Arc<ScriptedModel>, window: u64) -> SummaryModel {
    let provider: Arc<dyn ModelProvider> = model.clone();
    SummaryModel::new(provider, window).unwrap()
}

fn inputs(model: &ScriptedModel) -> Vec<String> {
    model.requests().iter().map(|request| texts(request).pop().unwrap()).collect()
}

fn too_long() -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::error(ScriptedErrorClass::Overflow, "too long")]
}

#[tokio::test(start_paused = true)]
async fn chunk_24_26_32_after_a_context_limit_a_smaller_input_is_sent_even_where_the_budget_is_the_smallest()
{
    // A window of 10,003 leaves a budget of 2,001.
    let tried = model("m", |call| match call {
        0 => too_long(),
        _ => vec![ScriptedEvent::Text("Goal: short.".into())],
    });
    let chunks = Chunks::of(&turns(12, 600));
    let made = chunks.chunk(&mut [with_window(&tried, 10_003)]).await.unwrap();
    let sent = inputs(&tried);
    assert_eq!(sent.len(), 2);
    assert!(sent[1].len() < sent[0].len() && sent[0].starts_with(&sent[1][..40]), "of the same items, fewer");
    assert!(made.covers > 0 && made.covers < chunks.end);
}

#[tokio::test(start_paused = true)]
async fn chunk_27_29_where_nothing_smaller_is_left_the_first_error_counts_and_a_second_one_ends_it() {
    let tried = model("m", |_| too_long());
    // One turn, which cannot be made smaller than it is.
    let chunks = Chunks::of(&turns(2, 100));
    assert_eq!(
        chunks.chunk(&mut [with_window(&tried, 100_000)]).await,
        Err(ChunkFailure::Call("input too long"))
    );
    assert_eq!(tried.calls(), 1, "27: there is nothing to send again");
    let tried = model("m", |_| too_long());
    let chunks = Chunks::of(&turns(40, 2_000));
    assert!(chunks.chunk(&mut [with_window(&tried, 100_000)]).await.is_err());
    assert_eq!(tried.calls(), 2, "29: the limits hold");
}

#[tokio::test(start_paused = true)]
async fn chunk_31_33_40_a_large_earlier_summary_is_read_whole_or_nothing_is_sent() {
    let before = "fact after fact, ".repeat(300);
    let tried = model("m", |call| if call == 0 { too_long() } else { summary(1) });
    let chunks = Chunks::of(&turns(40, 2_000)).behind(&before);
    chunks.chunk(&mut [with_window(&tried, 60_000)]).await.unwrap();
    for input in inputs(&tried) {
        assert!(input.contains(before.trim_end()), "31: whole");
    }
    // 5,100 bytes of it and a budget of 2,001 tokens: no call, no loss, no loop.
    let tried = model("m", |_| panic!("nobody asks it"));
    let failed = chunks.chunk(&mut [with_window(&tried, 10_003)]).await;
    assert_eq!((failed, tried.calls()), (Err(ChunkFailure::Unavailable), 0));
}

#[tokio::test(start_paused = true)]
async fn chunk_43_dense_text_that_was_underestimated_is_counted_by_its_bytes_from_then_on() {
    let dense: Vec<String> = (0..30).map(|n| format!("{n}{}", "{\"木\":[1,2]}".repeat(100))).collect();
    let tried = model("m", |call| if call == 0 { too_long() } else { summary(1) });
    let mut models = [with_window(&tried, 30_000)];
    let chunks = Chunks::of(&dense);
    chunks.chunk(&mut models).await.unwrap();
    let sent = inputs(&tried);
    assert!(sent[1].len() * 3 < sent[0].len() * 2, "{} and {}", sent[0].len(), sent[1].len());
    // C6: it sticks to the model.
    let again = chunks.chunk(&mut models).await.unwrap();
    assert!(again.covers > 0 && inputs(&tried)[2].len() <= sent[1].len());
}

#[tokio::test(start_paused = true)]
async fn chunk_36_37_the_other_model_is_asked_once_with_the_same_input_and_signs_with_its_name() {
    let first = model("first", |_| vec![ScriptedEvent::error(ScriptedErrorClass::Transient, "down")]);
    let second = model("second", |_| summary(2));
    let chunks = Chunks::of(&turns(8, 1_000));
    let mut models = [with_window(&first, 100_000), with_window(&second, 100_000)];
    let made = chunks.chunk(&mut models).await.unwrap();
    assert_eq!((first.calls(), second.calls()), (2, 1));
    assert_eq!(inputs(&first)[0], inputs(&second)[0], "the same bytes");
    assert_eq!(made.generation.model, "second");
    // With less room it gets less, and its failure stores nothing.
    let third = model("third", |_| vec![ScriptedEvent::error(ScriptedErrorClass::Refused, "no")]);
    let mut models = [with_window(&first, 100_000), with_window(&third, 12_000)];
    assert_eq!(chunks.chunk(&mut models).await, Err(ChunkFailure::Call("refused")));
    assert_eq!((first.calls(), third.calls()), (4, 1));
    assert!(inputs(&third)[0].len() < inputs(&first)[0].len());
}

#[tokio::test]
async fn chunk_13_35_what_is_dropped_in_a_call_or_in_a_wait_asks_nobody_any_more() {
    for answer in
        [(|_| vec![ScriptedEvent::DelayMs(60_000), ScriptedEvent::Text("late".into())]) as Answers, |_| {
            vec![ScriptedEvent::error(ScriptedErrorClass::Transient, "down")]
        }]
    {
        let tried = model("m", answer);
        let chunks = Chunks::of(&turns(8, 1_000));
        let mut models = [with_window(&tried, 100_000)];
        let dropped = tokio::time::timeout(Duration::from_millis(300), chunks.chunk(&mut models)).await;
        assert!(dropped.is_err(), "it was not done");
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(tried.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn chunk_85_without_the_time_for_a_call_none_is_begun() {
    let tried = model("m", |_| panic!("nobody asks it"));
    let chunks = Chunks::of(&turns(8, 1_000));
    tokio::time::advance(Duration::from_secs(1)).await;
    let job = |deadline| Job {
        thread: &chunks.thread,
        epoch: Epoch(0),
        state: &chunks.state,
        spans: &chunks.spans,
        items: &chunks.items,
        cuts: &chunks.cuts,
        end: chunks.end,
        generation: None,
        reply_budget: 100_000,
        output: None,
        focus: None,
        native: None,
        ground: Ground::Back,
        deadline,
        now_ms: 0,
    };
    let deadline = Instant::now() + Duration::from_secs(39);
    let failed = summarise(&job(deadline), &mut [with_window(&tried, 100_000)]).await;
    assert_eq!((failed.as_ref().map(|_| ()), tried.calls()), (Err(&ChunkFailure::NoTime), 0));
    assert!(!failed.unwrap_err().counts(), "it is no failed attempt");
}

#[tokio::test(start_paused = true)]
async fn chunk_89_a_chunk_after_which_the_view_is_hardly_smaller_says_so() {
    let mut texts = turns(1, 3_000);
    texts.extend(turns(1, 60_000));
    let chunks = Chunks::of(&texts);
    let tried = model("m", |_| summary(1));
    let made = chunks.chunk(&mut [with_window(&tried, 100_000)]).await.unwrap();
    assert!(made.low_yield && made.covers == 2);
    let chunks = Chunks::of(&turns(20, 2_000));
    assert!(!chunks.chunk(&mut [with_window(&tried, 100_000)]).await.unwrap().low_yield);
}

#[tokio::test(start_paused = true)]
async fn chunk_25_58_each_call_is_logged_with_its_estimator_and_its_usage_and_without_what_it_says() {
    let logged = Logged::here();
    let tried = model("m", |call| match call {
        0 => too_long(),
        _ => vec![
            ScriptedEvent::Text("Goal: short.".into()),
            ScriptedEvent::Usage(Usage { input: 4_321, output: 12, cached: 0 }),
        ],
    });
    Chunks::of(&turns(12, 600)).chunk(&mut [with_window(&tried, 10_003)]).await.unwrap();
    let log = logged.text();
    let calls: Vec<&str> = log.lines().filter(|line| line.contains("summary call")).collect();
    assert_eq!(calls.len(), 2, "one a call: {log}");
    // A context limit says that the estimate was too low: from then on a byte counts as a token.
    for (line, estimator) in calls.iter().zip([Estimator::Bytes2, Estimator::Bytes1]) {
        let estimator = format!("estimator=\"{}\"", estimator.name());
        for part in [estimator.as_str(), "thread=t", "items=", "input_tokens=", "source_tokens=", "outcome="]
        {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
    let used: Vec<&str> = log.lines().filter(|line| line.contains("a summary's usage")).collect();
    assert_eq!(used.len(), 1, "{log}");
    assert!(used[0].contains("input=4321") && used[0].contains("output=12"), "{}", used[0]);
    assert!(!log.contains("so it goes") && !log.contains("Goal: short"), "nothing of what was said: {log}");
}
