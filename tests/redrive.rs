//! Dead letters as an operator meets them: the real binary, the embedded queue that gives up on a message after a
//! hundred receives, and `dormouse redrive`.

#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "support/command.rs"]
mod command;
#[path = "support/queue.rs"]
mod queue;

use command::Home;
use dormouse::message::{InputMessage, ThreadId};

/// Receives that the queue allows.
const MAX_RECEIVES: usize = 100;

/// What `redrive` lists, once there is something.
fn listed(home: &Home) -> Vec<String> {
    let started = std::time::Instant::now();
    loop {
        let ran = home.run(&["redrive"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let letters: Vec<String> = ran.stdout.lines().skip(1).map(str::to_owned).collect();
        if !letters.is_empty() {
            return letters;
        }
        assert!(started.elapsed() < command::LIMIT, "{ran:?}");
    }
}

#[test]
fn i1_a_message_that_no_worker_finished_is_put_aside_and_sent_again_when_an_operator_says_so() {
    let home = Home::new();
    let none = home.run(&["redrive"]);
    assert!(none.code == Some(0) && none.stderr.contains("no dead letters"), "{none:?}");
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let id = tokio.block_on(async {
        let aws = queue::start(&home.path(".dormouse")).await;
        let (client, url) = (aws.sqs_client(), aws.input_queue_url());
        let text = InputMessage::user_text(ThreadId::from("t1"), "say risen").to_body().unwrap();
        let (id, _) = queue::send(&client, &url, "t1", "d-1", &text).await;
        for _ in 0..MAX_RECEIVES {
            let message = queue::receive_one(&client, &url).await;
            let visible = client.change_message_visibility().queue_url(&url).visibility_timeout(0);
            visible.receipt_handle(message.receipt_handle().unwrap()).send().await.unwrap();
        }
        assert!(queue::receive(&client, &url, 1, 0).await.is_empty(), "the queue has given up on it");
        aws.stop().await;
        id
    });
    let serving = home.serve(&[]);
    let placeholder = "user: [a message was left out: it could not be processed]";
    home.items_when("t1", |items| items == [placeholder]);
    let letters = listed(&home);
    assert!(letters.len() == 1 && letters[0].starts_with(&format!("{id}  t1  ")), "{letters:?}");
    assert!(letters[0].contains("no worker finished it"), "{letters:?}");
    assert!(home.ok(&["redrive", &id, "--show"]).contains("say risen"));

    assert_eq!(home.ok(&["redrive", &id]), format!("{id} t1 sent again"));
    let items = home.items_when("t1", |items| items.len() == 3);
    assert_eq!(items, [placeholder, "user: say risen", "assistant: risen"]);
    let gone = home.run(&["redrive", &id]);
    assert!(gone.code == Some(2) && gone.stderr.contains("no dead letter"), "{gone:?}");
    assert!(serving.terminate().success());
}

#[test]
fn f55_a_body_that_nobody_can_read_is_kept_with_its_reason_and_is_not_sent_round_in_circles() {
    let home = Home::new();
    home.ok(&["chat", "say one", "--thread", "t1"]);
    let serving = home.serve(&[]);
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let endpoints = serving.endpoints.clone();
    let id = tokio.block_on(async {
        let client =
            dormouse::local::endpoints::Endpoints::read(&home.path(".dormouse")).unwrap().clients().sqs;
        let (id, _) =
            queue::send(&client, endpoints["input_queue"].as_str().unwrap(), "t1", "d-1", "not \u{9b}2Jjson")
                .await;
        id
    });
    let letters = listed(&home);
    assert!(letters[0].starts_with(&id) && letters[0].contains("not an InputMessage"), "{letters:?}");
    assert!(!letters[0].contains('\u{9b}'), "a terminal is not at a body's command");
    let ran = home.run(&["redrive", "--all"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("would come back at once"), "{ran:?}");
    assert_eq!(home.ok(&["redrive", &id, "--discard"]), format!("{id} t1 discarded"));
    assert_eq!(home.ok(&["redrive"]), "");
    // Its thread is as it was.
    home.ok(&["send", "say two", "--thread", "t1"]);
    let items = home.items_when("t1", |items| items.len() == 4);
    assert_eq!(items[2..], ["user: say two", "assistant: two"]);
}
