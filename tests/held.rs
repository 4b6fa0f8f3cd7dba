//! Calls that are held back: those of a `serial` tool server go out one after the other, destructive ones when the user
//! has said so.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/crash.rs"]
mod crash;
#[path = "support/rap.rs"]
mod peer;
#[path = "support/world.rs"]
mod world;

use std::sync::Arc;

use async_trait::async_trait;
use axum::http::StatusCode;
use crash::{Mortal, Point, distinct};
use dormouse::config::{Config, Destructive, ToolServerConfig};
use dormouse::http::{Access, HttpDeps, router};
use dormouse::message::{
    CallId, InputContent, InputMessage, ItemBody, Outcome, OutputKind, ThreadId, TypedOutput,
    UserChoiceAnswer, UserChoiceRequired,
};
use dormouse::model::scripted::{ScriptedEvent, ScriptedModel};
use dormouse::rap::{CallbackDeps, RapTools, http_client};
use dormouse::store::{ConversationStore, Hold, StateStore};
use dormouse::tools::{
    AgentTools, Execution, Invocation, Registry, Tool, ToolDefinition, ToolError, ToolOutput,
};
use peer::{Answer, FakeServer, Outbox, tokens};
use serde_json::{Value, json};
use world::{Delivery, THREAD, World};

/// A fake of the world as a tool of another server, whose calls wait for something.
struct Held {
    tool: Arc<dyn Tool>,
    server: &'static str,
    hold: Option<Hold>,
}

#[async_trait]
impl Tool for Held {
    fn definition(&self) -> &ToolDefinition {
        self.tool.definition()
    }
    fn execution(&self) -> Execution {
        self.tool.execution()
    }
    fn server(&self) -> Option<&str> {
        self.tool.server().map(|_| self.server)
    }
    fn hold(&self) -> Option<Hold> {
        self.hold
    }
    async fn execute(&self, call: &Invocation) -> Result<(), ToolError> {
        self.tool.execute(call).await
    }
    async fn execute_synchronous(&self, call: &Invocation) -> Result<ToolOutput, ToolError> {
        self.tool.execute_synchronous(call).await
    }
    async fn cancel(&self, thread: &ThreadId, call: &CallId) {
        self.tool.cancel(thread, call).await;
    }
    async fn answer_choice(&self, url: &str, choice: &CallId, selected: usize) -> Result<(), ToolError> {
        self.tool.answer_choice(url, choice, selected).await
    }
}

/// Has the calls of `tools` wait for `hold`; the others keep a server of their own.
async fn hold(world: &mut World, tools: &[&str], hold: Hold) {
    let offered = world.runtime.tools.tools("default", &ThreadId::from(THREAD)).await.registry;
    let held = offered.iter().map(|tool| {
        let is_held = tools.contains(&tool.definition().name.as_str());
        let (server, hold) = if is_held { ("held", Some(hold)) } else { ("free", None) };
        Arc::new(Held { tool: tool.clone(), server, hold }) as Arc<dyn Tool>
    });
    world.runtime.tools = Arc::new(Registry::new(held.collect::<Vec<_>>()));
}

fn text(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into()), ScriptedEvent::End("end_turn".into())]
}

fn calls(names: &[&str]) -> Vec<ScriptedEvent> {
    let mut events: Vec<ScriptedEvent> =
        names.iter().map(|name| ScriptedEvent::call(*name, *name, "{}")).collect();
    events.push(ScriptedEvent::End("tool_use".into()));
    events
}

async fn serial(responses: Vec<Vec<ScriptedEvent>>) -> World {
    let mut world = World::new(ScriptedModel::script(responses));
    hold(&mut world, &["echo", "other"], Hold::Turn).await;
    world
}

/// What was dispatched; the calls that go out at once in no order.
fn sent(world: &World) -> Vec<String> {
    world.tools.dispatched().into_iter().map(|call| call.name).collect()
}

fn call_of(world: &World, tool: &str) -> CallId {
    world.tools.dispatched().into_iter().rfind(|call| call.name == tool).unwrap().call
}

/// The newest call that was dispatched.
fn newest(world: &World) -> CallId {
    world.tools.calls().last().unwrap().clone()
}

#[tokio::test]
async fn f09_calls_of_a_serial_server_go_out_one_after_the_other_and_those_of_others_at_once() {
    let world = serial(vec![calls(&["echo", "other", "nap", "echo"]), text("done")]).await;
    world.done(&world.user("go")).await;
    assert_eq!(
        distinct(&sent(&world)),
        distinct(&["echo".into(), "nap".into()]),
        "the first of the serial server, and what is not serial"
    );
    world.done(&world.result(&call_of(&world, "nap"), "zzz")).await;
    assert_eq!(sent(&world).len(), 2, "the result of another server gives nobody a turn");
    world.done(&world.result(&call_of(&world, "echo"), "1")).await;
    assert_eq!(sent(&world)[2..], ["other"]);
    world.done(&world.result(&newest(&world), "2")).await;
    assert_eq!(sent(&world)[3..], ["echo"]);
    assert_eq!(world.model.calls(), 1, "the model is asked when all are in");
    world.done(&world.result(&newest(&world), "3")).await;
    assert_eq!(
        world.story().await[5..],
        ["result: 1", "result: 2", "result: zzz", "result: 3", "assistant: done"]
    );
    assert_eq!(sent(&world).len(), 4, "each went out once");
    // Parking, turn and promise are one commit: three for the parked results, two for the responses.
    assert_eq!(world.store.commits(), 5);
}

#[tokio::test]
async fn f09_a_call_that_fails_or_is_settled_by_hand_gives_way_to_the_next_over_several_steps() {
    let steps = vec![calls(&["echo", "other"]), calls(&["other", "echo"]), text("done")];
    let world = serial(steps).await;
    world.tools.failures.lock().unwrap().push(ToolError::Failed("no".into()));
    world.done(&world.user("go")).await;
    assert_eq!(sent(&world), ["echo"]);
    // What could not be dispatched has a result through the queue, and that gives the next one its turn.
    world.settle().await;
    assert_eq!(sent(&world), ["echo", "other"]);
    world.done(&world.result(&newest(&world), "2")).await;
    assert_eq!(sent(&world)[2..], ["other"], "the next step begins anew");
    let (message, dedup) =
        dormouse::http::settled_by_hand(&ThreadId::from(THREAD), &newest(&world), Some("gone"));
    let by_hand = Delivery { dedup: dedup.as_str().to_owned(), ..world.message(&message) };
    world.done(&by_hand).await;
    assert_eq!(sent(&world)[3..], ["echo"]);
    world.done(&world.result(&newest(&world), "4")).await;
    assert_eq!(
        world.story().await[3..],
        [
            "result: Error: no",
            "result: 2",
            "call: other {}",
            "call: echo {}",
            "result: Error: gone",
            "result: 4",
            "assistant: done"
        ]
    );
}

#[tokio::test]
async fn f09_what_is_interrupted_before_its_turn_did_not_run_and_its_server_hears_nothing_of_it() {
    let world = serial(vec![calls(&["echo", "other"]), calls(&["other"]), text("done")]).await;
    world.done(&world.user("go")).await;
    let first = newest(&world);
    world.done(&world.user("no, wait")).await;
    // Every server hears of the one that was out, and nobody of the one that was not.
    let mut cancelled = world.tools.cancelled.lock().unwrap().clone();
    cancelled.dedup();
    assert_eq!(cancelled, std::slice::from_ref(&first));
    let story = world.story().await;
    assert_eq!(
        story[3..],
        [
            "interrupt",
            "result: Error: other did not run: it was interrupted before its turn came.",
            "user: no, wait",
            "call: other {}"
        ]
    );
    // Nobody waits for the interrupted call: the next step's call goes out, and its late result is a note.
    assert_eq!(sent(&world), ["echo", "other"]);
    world.done(&world.result(&first, "late")).await;
    world.done(&world.result(&newest(&world), "ok")).await;
    assert_eq!(sent(&world).len(), 2);
    assert_eq!(world.story().await.last().unwrap(), "assistant: done");
}

#[tokio::test]
async fn f09_a_thread_that_is_given_its_turn_by_a_message_that_dies_sends_it_all_the_same() {
    let mut mortal = Mortal::new().await;
    hold(&mut mortal.world, &["echo", "other"], Hold::Turn).await;
    let world = &mortal.world;
    world.done(&world.user("both echo {} other {}")).await;
    // The commit that parks the result and promises the next call is written, nothing is sent, and nobody comes back.
    let result = world.result(&newest(world), "1");
    mortal.killed(Point::CommitWritten(1), &result).await;
    world.dies(&result).await;
    assert_eq!(sent(world), ["echo", "other"]);
    world.done(&world.result(&newest(world), "2")).await;
    assert!(world.pending().await.is_empty(), "{:?}", world.story().await);
}

/// Kills the slice of the first result of two serial calls at `point`, delivers its message again, and goes on.
async fn killed(at: usize, point: Option<Point>) -> (Vec<String>, Vec<CallId>) {
    let mut mortal = Mortal::new().await;
    hold(&mut mortal.world, &["echo", "other"], Hold::Turn).await;
    let world = &mortal.world;
    for step in 0..3 {
        let delivery = match step {
            0 => world.user("both echo {} other {}"),
            _ => {
                let calls: Vec<CallId> = distinct(&world.tools.calls()).into_iter().collect();
                assert_eq!(calls.len(), step, "only what has its turn is out");
                let next = calls.iter().find(|call| Some(*call) == world.tools.calls().last());
                world.result(next.unwrap(), &format!("r{step}"))
            }
        };
        match point.filter(|_| at == step) {
            Some(point) => {
                mortal.killed(point, &delivery).await;
                world.done(&delivery.again()).await;
            }
            None => world.done(&delivery).await,
        }
    }
    (world.story().await, distinct(&world.tools.calls()).into_iter().collect())
}

#[tokio::test]
async fn i4_a_turn_survives_a_crash_at_every_point() {
    let expected = killed(9, None).await;
    assert_eq!(expected.0[3..5], ["result: r1", "result: r2"]);
    let points = [
        (0, Point::CommitAsked(1)),
        (0, Point::CommitWritten(1)),
        (0, Point::CallAsked("echo")),
        (0, Point::CallTaken("echo")),
        (1, Point::Load),
        (1, Point::CommitAsked(1)),
        (1, Point::CommitWritten(1)),
        (1, Point::CallAsked("other")),
        (1, Point::CallTaken("other")),
        (2, Point::CommitAsked(1)),
    ];
    for (at, point) in points {
        assert_eq!(killed(at, Some(point)).await, expected, "{point:?} of step {at}");
    }
}

#[tokio::test]
async fn i4_a_serial_call_beside_one_that_runs_inside_the_slice_survives_too() {
    for point in [Point::CommitWritten(1), Point::Ran("add"), Point::CommitAsked(2), Point::CommitWritten(2)]
    {
        let mut mortal = Mortal::new().await;
        hold(&mut mortal.world, &["echo", "other"], Hold::Turn).await;
        let world = &mortal.world;
        let message = world.user("both add {} echo {}");
        mortal.killed(point, &message).await;
        world.done(&message.again()).await;
        assert_eq!(distinct(&world.tools.calls()).len(), 1, "{point:?}");
        world.done(&world.result(&newest(world), "E")).await;
        let story = world.story().await;
        assert_eq!(story[3..5], ["result: ran {}", "result: E"], "{point:?}");
    }
}

#[tokio::test]
async fn a_hold_is_part_of_the_stored_state_and_gone_when_the_call_is_out() {
    let world = serial(vec![calls(&["echo", "other"]), text("done")]).await;
    world.done(&world.user("go")).await;
    let holds = async || -> Vec<Option<Hold>> {
        let meta = world.store.meta(&ThreadId::from(THREAD)).await.unwrap().unwrap();
        meta.pending.into_iter().map(|call| call.hold).collect()
    };
    assert_eq!(holds().await, [None, Some(Hold::Turn)]);
    world.done(&world.result(&newest(&world), "1")).await;
    assert_eq!(holds().await, [None, None]);
}

// RAP requirement 27: the user is asked before a destructive call.

async fn asking(responses: Vec<Vec<ScriptedEvent>>) -> World {
    let mut world = World::new(ScriptedModel::script(responses));
    hold(&mut world, &["echo", "other"], Hold::Consent).await;
    world
}

/// The open questions, as stored.
async fn questions(world: &World) -> Vec<UserChoiceRequired> {
    let rows = world.store.open_choices(&ThreadId::from(THREAD)).await.unwrap();
    rows.iter().map(|row| serde_json::from_str(&row.body).unwrap()).collect()
}

fn answer(world: &World, question: &CallId, selected: Option<usize>) -> Delivery {
    let answer = UserChoiceAnswer { id: question.clone(), selected };
    world.message(&InputMessage::plain(ThreadId::from(THREAD), InputContent::UserChoiceAnswer(answer)))
}

/// Output messages about questions, each once: asked and over.
fn asked_and_over(world: &World) -> (usize, usize) {
    let sent = world.output.sent.lock().unwrap().clone();
    let ids = |over: bool| {
        let of_kind = sent.iter().filter(|message| match &message.kind {
            OutputKind::Typed(TypedOutput::UserChoiceRequired { .. }) => !over,
            OutputKind::Typed(TypedOutput::UserChoiceComplete { .. }) => over,
            OutputKind::Typed(TypedOutput::Error | TypedOutput::OauthRequired { .. })
            | OutputKind::Text {} => false,
        });
        distinct(&of_kind.map(|message| message.message_id.clone()).collect::<Vec<_>>()).len()
    };
    (ids(false), ids(true))
}

const REFUSED: &str = "result: Error: echo was not permitted by the user. It did not run.";

#[tokio::test]
async fn rap_27_a_destructive_call_goes_out_when_the_user_allows_it_and_others_do_not_wait() {
    let world = asking(vec![calls(&["echo", "nap"]), text("done")]).await;
    world.done(&world.user("go")).await;
    assert_eq!(sent(&world), ["nap"]);
    let asked = questions(&world).await.remove(0);
    assert_eq!(
        (asked.choices.as_slice(), asked.default),
        (&["Allow".to_owned(), "Refuse".to_owned()][..], 1)
    );
    assert_eq!(
        asked.prompt,
        "May echo of the tool server held run? It is marked as destructive. Arguments: {}"
    );
    assert_eq!(asked_and_over(&world), (1, 0));
    world.done(&answer(&world, &asked.id, Some(0))).await;
    assert_eq!(sent(&world), ["nap", "echo"]);
    assert_eq!((questions(&world).await.len(), asked_and_over(&world)), (0, (1, 1)));
    // An answer that comes late, to a question that is over, changes nothing; nobody outside is told of any.
    world.done(&answer(&world, &asked.id, Some(1))).await;
    world.done(&world.result(&call_of(&world, "nap"), "zzz")).await;
    world.done(&world.result(&call_of(&world, "echo"), "gone")).await;
    assert_eq!(world.story().await[3..], ["result: gone", "result: zzz", "assistant: done"]);
    assert!(world.tools.answered.lock().unwrap().is_empty());
}

#[tokio::test]
async fn rap_27_what_is_refused_dismissed_or_interrupted_did_not_run_and_its_server_hears_nothing() {
    for selected in [Some(1), None] {
        let world = asking(vec![calls(&["echo"]), text("as you wish")]).await;
        world.done(&world.user("go")).await;
        let asked = questions(&world).await.remove(0);
        world.done(&answer(&world, &asked.id, selected)).await;
        assert_eq!(world.story().await[2..], [REFUSED, "assistant: as you wish"]);
        let ItemBody::ToolResult(result) = &world.items().await[2].body else { panic!() };
        assert_eq!(result.outcome, Outcome::Refused);
        assert_eq!((sent(&world).len(), asked_and_over(&world)), (0, (1, 1)));
    }
    let world = asking(vec![calls(&["echo"]), text("all right"), text("more")]).await;
    world.done(&world.user("go")).await;
    let asked = questions(&world).await.remove(0);
    world.done(&world.user("rather not")).await;
    assert_eq!(world.story().await[2..], [REFUSED, "user: rather not", "assistant: all right"]);
    assert_eq!((questions(&world).await.len(), asked_and_over(&world)), (0, (1, 1)));
    world.done(&answer(&world, &asked.id, Some(0))).await;
    assert!(sent(&world).is_empty() && world.tools.cancelled.lock().unwrap().is_empty());
    // The refusal is in the next request, and does not say that anything may have happened.
    world.done(&world.user("and?")).await;
    assert!(!format!("{:?}", world.model.requests().last().unwrap()).contains("may have taken effect"));
}

#[tokio::test]
async fn rap_27_with_siblings_out_a_refusal_waits_for_them_and_many_are_asked_a_few_at_a_time() {
    let names = ["echo", "other", "echo", "other", "echo", "nap"];
    let world = asking(vec![calls(&names), text("done")]).await;
    world.done(&world.user("go")).await;
    assert_eq!((sent(&world), questions(&world).await.len()), (vec!["nap".to_owned()], 4));
    // Two answers in one batch: the last question is asked by the commit that takes them.
    let open = questions(&world).await;
    let batch = [answer(&world, &open[0].id, Some(1)), answer(&world, &open[1].id, Some(0))];
    assert!(world.deliver(&batch).await.is_empty());
    assert_eq!((sent(&world).len(), questions(&world).await.len()), (2, 3));
    for question in questions(&world).await {
        world.done(&answer(&world, &question.id, Some(1))).await;
    }
    assert_eq!((asked_and_over(&world), world.model.calls()), ((5, 5), 1));
    for call in distinct(&world.tools.calls()) {
        world.done(&world.result(&call, "ok")).await;
    }
    let story = world.story().await;
    assert_eq!(story.last().unwrap(), "assistant: done", "{story:?}");
    assert_eq!(story.iter().filter(|line| line.contains("was not permitted")).count(), 4);
    assert!(world.pending().await.is_empty());
}

#[tokio::test]
async fn rap_27_with_serial_a_permitted_call_still_waits_for_its_turn() {
    let mut world = World::new(ScriptedModel::script(vec![calls(&["echo", "other", "echo"]), text("done")]));
    hold(&mut world, &["echo", "other"], Hold::ConsentThenTurn).await;
    world.done(&world.user("go")).await;
    let asked: Vec<CallId> = questions(&world).await.into_iter().map(|question| question.id).collect();
    assert_eq!((sent(&world).len(), asked.len()), (0, 3));
    world.done(&answer(&world, &asked[1], Some(0))).await;
    world.done(&answer(&world, &asked[0], Some(0))).await;
    assert_eq!(sent(&world).len(), 1, "the one that was allowed first is out");
    world.done(&answer(&world, &asked[2], Some(1))).await;
    world.done(&world.result(&newest(&world), "1")).await;
    assert_eq!(sent(&world).len(), 2);
    world.done(&world.result(&newest(&world), "2")).await;
    assert_eq!((sent(&world).len(), world.model.calls()), (2, 2));
    assert_eq!(world.story().await.last().unwrap(), "assistant: done");
}

#[tokio::test]
async fn rap_27_the_tool_s_own_question_is_another_one_than_whether_it_may_run() {
    let world = asking(vec![calls(&["echo"]), text("done")]).await;
    world.done(&world.user("go")).await;
    let permission = questions(&world).await.remove(0).id;
    world.done(&answer(&world, &permission, Some(0))).await;
    let call = newest(&world);
    let choice = UserChoiceRequired {
        id: call.clone(),
        call_id: None,
        prompt: "Which one?".into(),
        choices: vec!["All".into(), "None".into()],
        default: 1,
        response_url: "https://b.example/answer".into(),
    };
    let thread = ThreadId::from(THREAD);
    world.done(&world.message(&InputMessage::plain(thread, InputContent::UserChoiceRequired(choice)))).await;
    // The word on whether it may run, once more, is no answer to the tool.
    world.done(&answer(&world, &permission, Some(0))).await;
    assert!(world.tools.answered.lock().unwrap().is_empty());
    world.done(&answer(&world, &call, Some(1))).await;
    assert_eq!(*world.tools.answered.lock().unwrap(), [("https://b.example/answer".to_owned(), call, 1)]);
}

/// One destructive call, asked for and allowed, with a slice killed on the way.
async fn killed_asking(
    at: usize,
    point: Option<Point>,
    selected: usize,
) -> (Vec<String>, usize, (usize, usize)) {
    let mut mortal = Mortal::new().await;
    hold(&mut mortal.world, &["echo"], Hold::Consent).await;
    let world = &mortal.world;
    for step in 0..2 {
        let delivery = match step {
            0 => world.user("call echo {}"),
            _ => answer(world, &questions(world).await[0].id, Some(selected)),
        };
        match point.filter(|_| at == step) {
            Some(point) => {
                mortal.killed(point, &delivery).await;
                world.done(&delivery.again()).await;
            }
            None => world.done(&delivery).await,
        }
        assert_eq!(world.tools.calls().is_empty(), step == 0 || selected == 1, "before the user's word");
    }
    (world.story().await, distinct(&world.tools.calls()).len(), asked_and_over(world))
}

#[tokio::test]
async fn i4_rap_27_it_is_asked_once_and_sent_once_wherever_a_slice_dies() {
    let (asked, allowed) = (
        (1, 1),
        [Point::Load, Point::CommitAsked(1), Point::CommitWritten(1), Point::OutputAsked, Point::OutputSent],
    );
    let expected = killed_asking(9, None, 0).await;
    assert_eq!((expected.1, expected.2), (1, asked));
    for point in allowed {
        for at in [0, 1] {
            assert_eq!(killed_asking(at, Some(point), 0).await, expected, "{point:?} of step {at}");
        }
    }
    for point in [Point::CallAsked("echo"), Point::CallTaken("echo")] {
        assert_eq!(killed_asking(1, Some(point), 0).await, expected, "{point:?}");
    }
    let expected = killed_asking(9, None, 1).await;
    assert_eq!((expected.0[2].as_str(), expected.1, expected.2), (REFUSED, 0, asked));
    for point in
        [Point::CommitAsked(1), Point::CommitWritten(1), Point::Streaming(1), Point::CommitWritten(2)]
    {
        assert_eq!(killed_asking(1, Some(point), 1).await, expected, "{point:?}");
    }
}

#[tokio::test]
async fn rap_27_the_policy_of_the_configuration_over_real_http() {
    let server = FakeServer::start(|seen, _| match seen.path.as_str() {
        "/.well-known/rap-toolset" => {
            let endpoint = format!("http://{}/invoke", seen.headers["host"].to_str().unwrap());
            let tool = |name: &str, destructive: bool| {
                json!({"name": name, "description": "d", "inputSchema": {}, "annotations": {"destructive": destructive}})
            };
            let tools = [tool("drop_table", true), tool("count", false)];
            Answer::from(json!({"name": "s", "endpoint": endpoint, "tools": tools}).to_string())
        }
        _ => StatusCode::OK.into(),
    })
    .await;
    let long = format!("{{\"table\":\"{}\"}}", "x".repeat(5_000));
    let step = vec![
        ScriptedEvent::call("a", "drop_table", &long),
        ScriptedEvent::call("b", "count", "{}"),
        ScriptedEvent::End("tool_use".into()),
    ];
    for (policy, at_once) in [(Destructive::Off, 2), (Destructive::Ask, 1)] {
        let before = server.at("/invoke").len();
        let mut world = World::new(ScriptedModel::script(vec![step.clone()]));
        let settings =
            ToolServerConfig { url: server.url.clone(), destructive: policy, ..Default::default() };
        let config = Arc::new(Config {
            tool_servers: [("db".to_owned(), settings)].into(),
            allow_http_hosts: vec!["127.0.0.1".into()],
            ..Config::default()
        });
        let store = Arc::new(world.store.clone());
        let rap = RapTools::new(
            config.clone(),
            store.clone(),
            tokens("https://cb.example"),
            http_client().unwrap(),
        );
        world.runtime.tools = Arc::new(AgentTools::new(config.clone(), vec![], vec![Arc::new(rap)]));
        world.done(&world.user("go")).await;
        assert_eq!(server.at("/invoke").len() - before, at_once, "{policy:?}");
        if policy == Destructive::Off {
            continue;
        }
        let outbox = Arc::new(Outbox::default());
        let tokens = tokens("http://unused");
        let callback = CallbackDeps { store, sender: outbox.clone(), tokens, config };
        let app = router(HttpDeps { callback, access: Access::Loopback, webhooks: Default::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/threads/{THREAD}/choices", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let http = reqwest::Client::new();
        let open: Value = http.get(&url).send().await.unwrap().json().await.unwrap();
        let question = &open["choices"][0];
        let prompt = question["prompt"].as_str().unwrap();
        assert!(
            prompt.contains("drop_table") && prompt.contains("server db") && prompt.ends_with('…'),
            "{prompt}"
        );
        assert!(prompt.len() < 1_200, "bounded");
        let path = format!("{url}/{}", question["choice_id"].as_str().unwrap());
        assert_eq!(http.post(&path).json(&json!({"selected": 0})).send().await.unwrap().status(), 202);
        let (message, dedup) = outbox.take().remove(0);
        world.done(&Delivery { dedup: dedup.as_str().to_owned(), ..world.message(&message) }).await;
        let invoked = server.at("/invoke");
        assert_eq!(invoked.len() - before, 2);
        assert_eq!(invoked.last().unwrap().json()["operation"], "drop_table");
        assert!(server.at("/answer").is_empty() && server.seen().iter().all(|seen| seen.path != "/"));
        assert_eq!(http.post(&path).json(&json!({"selected": 1})).send().await.unwrap().status(), 404);
    }
}
