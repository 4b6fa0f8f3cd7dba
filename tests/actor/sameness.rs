//! The same scenario through an actor and through slices from a queue leaves the same rows in the table, and asks the model
//! the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use dormouse::agent::actor::{ActorOptions, ThreadActor};
use dormouse::agent::{AgentInput, AgentSystem, ThreadHandle};
use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::{ContentPart, InputContent, Rewind, RewindTarget, Synthetic, Then, ThreadId};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::model::{ModelInfo, Usage};
use dormouse::slice::records::process_records;
use dormouse::store::dynamodb::{DynamoStore, create_table};
use tokio::time::Instant;

use crate::ddb;
use crate::resident::{calls, committed, in_time, piece, text};
use crate::world::{NOW_MS, THREAD, World};

/// What the local sequence numbers begin with at the world's hour.
const FIRST: u64 = NOW_MS as u64 * 100_000;

/// Whoever takes the inputs of the scenario, one after the other.
enum Taker {
    /// A worker that gets them from a queue.
    Slices {
        sequence: u64,
    },
    Actor(ThreadHandle),
}

impl Taker {
    async fn take(&mut self, world: &World, input: AgentInput) {
        match self {
            Self::Actor(handle) => committed(handle, input).await,
            Self::Slices { sequence } => {
                let mut message = SqsMessage::default();
                message.message_id = Some(input.id.as_str().to_owned());
                message.receipt_handle = Some("handle".to_owned());
                let mut said = input.message.clone();
                said.group_id = ThreadId::from(THREAD);
                message.body = Some(said.to_body().unwrap());
                message.attributes = [
                    ("MessageGroupId", THREAD.to_owned()),
                    ("MessageDeduplicationId", input.id.as_str().to_owned()),
                    ("SequenceNumber", format!("{:020}", FIRST + *sequence)),
                    ("ApproximateReceiveCount", "1".to_owned()),
                ]
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
                *sequence += 1;
                let mut event = SqsEvent::default();
                event.records = vec![message];
                let deadline = Instant::now() + Duration::from_secs(300);
                let response = process_records(&world.runtime, event, deadline).await;
                assert!(response.batch_item_failures.is_empty(), "{response:?}");
            }
        }
        // What the thread has sent to itself comes next.
        let sent = std::mem::take(&mut *world.input.sent.lock().unwrap());
        for (message, id) in sent {
            let input = AgentInput { message, id, receives: 1 };
            in_time(Box::pin(self.take(world, input))).await;
        }
    }
}

fn script() -> Vec<Vec<ScriptedEvent>> {
    let call = |name: &str, arguments: &str| ScriptedEvent::call(format!("p-{name}"), name, arguments);
    let end = || ScriptedEvent::End("tool_use".into());
    let usage = ScriptedEvent::Usage(Usage { input: 100, output: 20, cached: 50 });
    vec![
        text("hello"),
        // A synchronous tool, inline, and its answer.
        vec![
            ScriptedEvent::Reasoning("hm".into()),
            ScriptedEvent::Signature("s".into()),
            call("add", r#"{"text":"1+1"}"#),
            usage,
            end(),
        ],
        text("two"),
        // Three at once, results out of order and one of them twice.
        vec![
            piece("looking"),
            call("echo", "{}"),
            call("other", r#"{"text": "ü"}"#),
            call("nap", "{}"),
            end(),
        ],
        text("both are in"),
        // Bad arguments and an unknown tool are answered by the runtime.
        vec![call("echo", "{broken"), call("nothing", "{}"), end()],
        text("so be it"),
        // One that the user interrupts.
        vec![call("echo", r#"{"text":"slow"}"#), end()],
        text("interrupted"),
        // An edit of that.
        text("said better"),
        // A large one.
        vec![call("echo", r#"{"text":"large"}"#), end()],
        text("that was large"),
    ]
}

/// Everything that a conversation is made of, one input after the other.
async fn play(world: &World, taker: &mut Taker) {
    let mut ids = 0;
    let mut next = |input: AgentInput| {
        ids += 1;
        input.with_id(format!("in-{ids}"))
    };
    let result = |at: usize, text: &str| {
        let call = world.tools.calls()[at].clone();
        AgentInput::result(call, vec![ContentPart::text(text)])
    };
    let metadata = dormouse::message::RawJson::parse(r#"{"user_id": "ana", "n": 1.0}"#).unwrap();
    taker.take(world, next(AgentInput::user("hi").with_metadata(metadata))).await;
    taker.take(world, next(AgentInput::user("what is 1+1"))).await;
    taker.take(world, next(AgentInput::user("look around"))).await;
    taker.take(world, next(result(1, "other is in"))).await;
    taker.take(world, next(result(1, "other is in twice"))).await;
    let mut event = result(0, "an event");
    event.message.synthetic = Some(Synthetic::SubscriptionEvent {
        tool_call_id: world.tools.calls()[0].clone(),
        associative: true,
        r#final: false,
    });
    taker.take(world, next(event)).await;
    taker.take(world, next(result(2, "woke up"))).await;
    taker.take(world, next(result(0, "echo is in"))).await;
    taker.take(world, next(AgentInput::user("do it wrong"))).await;
    taker.take(world, next(AgentInput::user("do it slowly"))).await;
    taker.take(world, next(AgentInput::user("stop"))).await;
    taker.take(world, next(result(3, "late"))).await;
    let edit = Rewind {
        target: RewindTarget::LastPrompt,
        seen: None,
        then: Some(Then::Say(vec![ContentPart::text("please stop")])),
    };
    taker.take(world, next(AgentInput::content(InputContent::Rewind(edit)))).await;
    taker.take(world, next(AgentInput::user("something large"))).await;
    taker.take(world, next(result(4, &"x".repeat(20_000)))).await;
    taker.take(world, next(AgentInput::user("   "))).await;
}

type Rows = BTreeMap<(String, String), BTreeMap<String, AttributeValue>>;

/// All rows, apart from tokens, which are random.
async fn rows(client: &Client, table: &str) -> Rows {
    let scanned = client.scan().table_name(table).consistent_read(true).send().await.unwrap();
    assert!(scanned.last_evaluated_key.is_none(), "a test's table is one page");
    let mut rows = Rows::new();
    for row in scanned.items.unwrap_or_default() {
        let key = |name: &str| row[name].as_s().unwrap().clone();
        let attributes = row.iter().filter(|(name, _)| *name != "token");
        let attributes = attributes.map(|(name, value)| (name.clone(), value.clone())).collect();
        rows.insert((key("pk"), key("sk")), attributes);
    }
    rows
}

#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// A bit of everything.
    Everything,
    /// Turn after turn, until old results are shortened.
    Long,
}

impl Scenario {
    fn model(self) -> ScriptedModel {
        match self {
            Self::Everything => ScriptedModel::script(script()),
            Self::Long => {
                let info = ModelInfo { context_window: Some(20_000), ..ModelInfo::default() };
                let model = ScriptedModel::from_fn(|request| match request.messages.last() {
                    Some(RequestMessage::ToolResults(_)) => text("noted"),
                    Some(_) | None => calls(&["echo"]),
                });
                model.with_info(info)
            }
        }
    }

    async fn play(self, world: &World, taker: &mut Taker) {
        match self {
            Self::Everything => {
                play(world, taker).await;
                assert_eq!(world.model.calls(), script().len(), "the whole scenario was played");
            }
            Self::Long => {
                for turn in 0..16 {
                    let said = AgentInput::user(format!("turn {turn}")).with_id(format!("in-{turn}"));
                    taker.take(world, said).await;
                    let call = world.tools.calls()[turn].clone();
                    let parts = vec![ContentPart::text(format!("{turn} {}", "long ".repeat(1_200)))];
                    taker.take(world, AgentInput::result(call, parts)).await;
                }
                let shortened = format!("{:?}", world.model.requests().pop().unwrap().messages);
                assert!(shortened.len() < 16 * 6_000 / 2, "nothing was shortened: {}", shortened.len());
            }
        }
    }
}

async fn run(scenario: Scenario, by_actor: bool) -> (Rows, Vec<ModelRequest>, Vec<String>) {
    let client = ddb::client(&ddb::shared_url());
    let table = format!("sameness-{}", uuid::Uuid::new_v4());
    create_table(&client, &table).await.unwrap();
    let store = DynamoStore::new(client.clone(), table.clone()).with_clock(|| NOW_MS);
    let world = World::over(Arc::new(store), scenario.model());
    let mut taker = match by_actor {
        true => {
            let system = AgentSystem::over(world.runtime.clone());
            Taker::Actor(ThreadActor::spawn(&system, ThreadId::from(THREAD), ActorOptions::default()))
        }
        false => Taker::Slices { sequence: 0 },
    };
    scenario.play(&world, &mut taker).await;
    (rows(&client, &table).await, world.model.requests(), world.output.texts())
}

async fn assert_same(scenario: Scenario) {
    let (by_slices, by_actor) = tokio::join!(run(scenario, false), run(scenario, true));
    let (rows, requests, replies) = by_slices;
    assert!(rows.len() > 50, "there is something to compare: {}", rows.len());
    assert_eq!(requests.len(), by_actor.1.len());
    for (at, (one, other)) in requests.iter().zip(&by_actor.1).enumerate() {
        assert_eq!(format!("{one:?}"), format!("{other:?}"), "request {at}");
    }
    assert_eq!(replies, by_actor.2);
    assert_eq!(rows.keys().collect::<Vec<_>>(), by_actor.0.keys().collect::<Vec<_>>());
    for (key, row) in &rows {
        assert_eq!(row, &by_actor.0[key], "row {key:?}");
    }
}

#[tokio::test]
async fn the_same_scenario_through_an_actor_and_through_slices_gives_the_same_rows_and_requests() {
    assert_same(Scenario::Everything).await;
}

#[tokio::test]
async fn a_long_thread_is_pruned_alike_whether_it_is_known_or_read_again() {
    assert_same(Scenario::Long).await;
}

#[tokio::test]
async fn i2_i6_two_actors_and_a_worker_on_one_thread_of_a_table_lose_nothing_and_do_nothing_twice() {
    let client = ddb::client(&ddb::shared_url());
    let table = format!("three-{}", uuid::Uuid::new_v4());
    create_table(&client, &table).await.unwrap();
    let world = World::over(Arc::new(DynamoStore::new(client, table)), ScriptedModel::prompts());
    let actor = || {
        let system = AgentSystem::over(world.runtime.clone());
        ThreadActor::spawn(&system, ThreadId::from(THREAD), ActorOptions::default())
    };
    let (one, two) = (actor(), actor());
    let push = async |handle: &ThreadHandle, name: &str| {
        for n in 0..4 {
            handle.push_user(format!("say {name}{n}")).unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        in_time(handle.flush()).await.unwrap();
    };
    let work = async {
        for n in 0..4 {
            let mut delivery = world.user(&format!("say w{n}"));
            // A queue hands it back until it is done.
            for _ in 0..20 {
                if world.deliver(std::slice::from_ref(&delivery)).await.is_empty() {
                    break;
                }
                delivery = delivery.again();
            }
        }
    };
    tokio::join!(push(&one, "a"), push(&two, "b"), work);
    let items = world.runtime.store.load(&ThreadId::from(THREAD), &[]).await.unwrap().items;
    let story: Vec<String> = items.iter().map(|item| crate::world::tell(&item.body)).collect();
    for name in ["a", "b", "w"] {
        let of = |line: &&String| line.starts_with(&format!("user: say {name}"));
        let said: Vec<&String> = story.iter().filter(of).collect();
        let expected: Vec<String> = (0..4).map(|n| format!("user: say {name}{n}")).collect();
        assert_eq!(said, expected.iter().collect::<Vec<_>>(), "{story:#?}");
    }
}
