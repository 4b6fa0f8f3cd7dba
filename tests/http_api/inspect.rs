//! What an observer reads beside the items: state, relatives, logs, summaries; and the page that shows it.

use super::*;
use dormouse::store::{
    CompactionCommit, CompactionRun, ConversationStore, Generation, GenerationId, Pointer, Position,
};

fn names(answer: &Value) -> Vec<&str> {
    answer["threads"].as_array().unwrap().iter().map(|one| one["thread_id"].as_str().unwrap()).collect()
}

fn texts(thread: &Value) -> Vec<String> {
    let items = thread["items"].as_array().unwrap().iter().map(|item| &item["item"]);
    items
        .map(|item| item["text"].as_str().or(item["parts"][0]["text"].as_str()).unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn rewinds_leave_branches_that_are_read_as_they_stood() {
    let front = Front::new(bearer(), ["one", "two", "three", "deux"].map(say).to_vec()).await;
    let (ann, bob) = (front.of(ANN), front.of(BOB));
    for text in ["1", "2", "3"] {
        ann.post("/threads/t/messages", json!({ "text": text })).await;
        ann.work().await;
    }
    let (_, before) = ann.get("/threads/t/state").await;
    let edit = json!({"target": {"turn": 1}, "then": {"say": [{"type": "text", "text": "zwei"}]}});
    assert_eq!(ann.post("/threads/t/rewind", edit).await.0, 202);
    ann.work().await;
    let (_, after) = ann.get("/threads/t/state").await;
    assert_ne!(before["version"], after["version"], "what is shown has changed");
    assert_eq!((&before["epoch"], &after["epoch"], &after["turns"]), (&json!(0), &json!(1), &json!(2)));
    assert_eq!(after["spans"], json!([{"thread": "t", "epoch": 0, "from": 0, "to": 2}]));

    let (status, answer) = ann.get("/threads/t/branches").await;
    let (current, left) = (&answer["branches"][0], &answer["branches"][1]);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        (&current["epoch"], &current["current"], &current["items"], &current["shared"]),
        (&json!(1), &json!(true), &json!(4), &json!(4))
    );
    assert_eq!(
        (&left["epoch"], &left["items"], &left["shared"], &left["own"]),
        (&json!(0), &json!(6), &json!(2), &json!(6))
    );
    assert_eq!(answer["next"], Value::Null);
    let (_, page) = ann.get("/threads/t/branches?limit=1").await;
    assert_eq!((page["branches"].as_array().unwrap().len(), &page["next"]), (1, &json!(1)));
    let (_, page) = ann.get("/threads/t/branches?limit=1&before=1").await;
    assert_eq!((&page["branches"][0]["epoch"], &page["next"]), (&json!(0), &Value::Null));

    let (_, hidden) = ann.get("/threads/t?epoch=0&after=2").await;
    assert_eq!(texts(&hidden), ["2", "two", "3", "three"], "what the rewind has hidden");
    assert_eq!(texts(&ann.get("/threads/t?epoch=1").await.1), ["1", "one", "zwei", "deux"]);
    let (_, shown) = ann.get("/threads/t").await;
    let item = &shown["items"][2];
    assert_eq!(
        (&item["epoch"], &item["opens_turn"], &item["left_out"]),
        (&json!(1), &json!(true), &Value::Null)
    );
    assert!(
        item["cause"].is_string() && shown["items"][3]["cause"].is_null(),
        "a slice begins with what woke it"
    );
    for path in ["/threads/t?epoch=2", "/threads/none/state", "/threads/none/branches"] {
        assert_eq!(ann.get(path).await.0, 404, "{path}");
    }
    for path in ["state", "children", "forks", "branches", "generations"] {
        assert_eq!(bob.get(&format!("/threads/t/{path}")).await.0, 404, "{path}");
        assert_eq!(front.get(&format!("/threads/t/{path}")).await.0, 401, "{path}");
        assert_eq!(
            ann.get(&format!("/threads/t/{path}?limit=0&x=1")).await.0,
            if path == "state" { 200 } else { 400 }
        );
    }
}

#[tokio::test]
async fn children_and_forks_are_listed_below_what_they_came_of() {
    let spawn = |what: &str| {
        let arguments = json!({ "instructions": what, "child_of": ["t"] }).to_string();
        vec![ScriptedEvent::call("c", "spawn_thread", arguments)]
    };
    let model = vec![spawn("a"), say("done"), spawn("b"), say("done"), say("own")];
    let world = World::with_builtins(ScriptedModel::script(model));
    let front = Front::over(world.runtime.store.clone(), world, Access::Loopback).await;
    for _ in 0..2 {
        front.post("/threads/t/messages", json!({"text": "split"})).await;
        front.work().await;
    }
    let (status, both) = front.get("/threads/t/children").await;
    assert_eq!((status, names(&both).len()), (200, 2), "{both}");
    let child = &both["threads"][0];
    assert_eq!(
        (&child["kind"], &child["parent"], &child["root"]),
        (&json!("child"), &json!("t"), &json!("t"))
    );
    assert!(child["origin"].as_str().unwrap().starts_with("c0-"), "{child}");
    let (_, first) = front.get("/threads/t/children?limit=1").await;
    assert_eq!((names(&first), &first["next"]), (vec![names(&both)[0]], &json!(names(&both)[0])));
    let (_, second) = front.get(&format!("/threads/t/children?limit=1&after={}", names(&first)[0])).await;
    assert_eq!(names(&second), [names(&both)[1]]);
    let after = second["next"].as_str().unwrap();
    let (_, last) = front.get(&format!("/threads/t/children?limit=1&after={after}")).await;
    assert_eq!(last, json!({"threads": [], "next": null}));
    let (_, state) = front.get(&format!("/threads/{}/state", names(&both)[0])).await;
    assert_eq!(state["inherited"], front.get(&format!("/threads/{}", names(&both)[0])).await.1["inherited"]);

    // A fork of a fork belongs below the fork.
    for (of, to) in [("t", "fork"), ("fork", "again")] {
        assert_eq!(front.post(&format!("/threads/{of}/fork"), json!({"thread_id": to})).await.0, 202);
        front.work().await;
        if to == "fork" {
            front.post("/threads/fork/messages", json!({"text": "x"})).await;
            front.work().await;
        }
    }
    for (of, to) in [("t", "fork"), ("fork", "again")] {
        let (_, forks) = front.get(&format!("/threads/{of}/forks")).await;
        assert_eq!((names(&forks), &forks["threads"][0]["forked_from"]), (vec![to], &json!(of)), "{forks}");
    }
    assert_eq!(names(&front.get("/threads/again/forks").await.1), Vec::<&str>::new());
    assert_eq!(front.get("/threads/t/children?after=%20").await.0, 400);
}

#[tokio::test]
async fn summaries_are_listed_newest_first_with_what_they_cover() {
    let front = Front::new(Access::Loopback, ["one", "two", "three"].map(say).to_vec()).await;
    for text in ["1", "2", "3"] {
        front.post("/threads/t/messages", json!({ "text": text })).await;
        front.work().await;
    }
    let (thread, epoch) = (ThreadId::from("t"), dormouse::message::Epoch(0));
    let id = |number| GenerationId { thread: thread.clone(), epoch, number };
    for number in 1..=2_u32 {
        let through =
            Position { thread: thread.clone(), epoch, seq: dormouse::message::Seq(u64::from(number) * 2) };
        let generation = Generation {
            at: Pointer { id: id(number), through, opener: None },
            text: format!("summary {number}"),
            digest: number.to_string(),
            parent: (number > 1).then(|| id(number - 1)),
            system: Vec::new(),
            instructions: Vec::new(),
            model: "m".to_owned(),
            partial: false,
            source_tokens: 100,
            native: None,
            created_at_ms: 7,
        };
        let run = CompactionRun::default();
        let change = CompactionCommit {
            thread: thread.clone(),
            epoch,
            last: number - 1,
            generation: Some(generation),
            run,
        };
        front.world.store.compact(change).await.unwrap();
    }
    let (status, all) = front.get("/threads/t/generations").await;
    let told: Vec<_> =
        all["generations"].as_array().unwrap().iter().map(|one| (&one["text"], &one["covers"])).collect();
    assert_eq!(status, 200);
    assert_eq!(told, [(&json!("summary 2"), &json!(4)), (&json!("summary 1"), &json!(2))]);
    let (_, page) = front.get("/threads/t/generations?limit=1").await;
    assert_eq!((&page["generations"][0]["generation"], &page["next"]), (&json!(2), &json!(1)));
    let (_, page) = front.get("/threads/t/generations?limit=1&skip=1").await;
    assert_eq!((&page["generations"][0]["generation"], &page["next"]), (&json!(1), &Value::Null));
    assert_eq!(front.get("/threads/t/state").await.1["compaction"]["generation"], 2);
}

#[tokio::test]
async fn the_page_is_served_where_threads_are_and_asks_nobody_else() {
    for (access, status) in [(Access::Loopback, 200), (bearer(), 200), (Access::Closed, 404)] {
        let front = Front::new(access, vec![]).await;
        for (path, kind) in [("", "text/html"), ("/app.js", "text/javascript"), ("/app.css", "text/css")] {
            let answer = front.http.get(format!("{}/inspector{path}", front.url)).send().await.unwrap();
            assert_eq!(answer.status(), status, "{path}");
            if status == 200 {
                let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
                assert!(header("content-type").starts_with(kind), "{path}");
                assert!(header("content-security-policy").starts_with("default-src 'none'"), "{path}");
                let text = answer.text().await.unwrap();
                assert!(!text.is_empty());
                assert!(!text.contains("//cdn") && !text.contains("googleapis"), "{path}");
            }
        }
    }
    let front = Front::new(Access::Loopback, vec![]).await;
    let other = front.http.get(format!("{}/inspector", front.url)).header("host", "evil.example");
    assert_eq!(other.send().await.unwrap().status(), 403, "a name that leads here from elsewhere");
}

#[tokio::test]
async fn what_is_out_of_order_is_a_503_for_observers_too() {
    let world = World::new(ScriptedModel::script(vec![]));
    let front = Front::over(Arc::new(StoreDown), world, Access::Loopback).await;
    for path in ["state", "children", "forks", "branches", "generations"] {
        assert_eq!(front.get(&format!("/threads/t/{path}")).await.0, 503, "{path}");
    }
}
