//! The inspector in a headless Chromium against the real binary. What is in the threads is prepared here, over the API; the
//! drivers are in `inspector/`. Without a browser or drivers a test says loudly that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "local")]

#[path = "support/browser.rs"]
mod browser;
#[path = "support/command.rs"]
mod command;
#[path = "support/driver.rs"]
mod runs;
#[path = "support/tool_server.rs"]
mod tools;

use std::time::{Duration, Instant};

use browser::{drive, drivers};
use command::{Home, Serving};
use serde_json::{Value, json};

/// No thread may take longer to come to rest.
const REST: Duration = Duration::from_secs(60);

/// What is said to threads over the API, one after another.
struct Api {
    url: String,
    http: reqwest::Client,
}

impl Api {
    async fn get(&self, path: &str) -> Value {
        self.http.get(format!("{}{path}", self.url)).send().await.unwrap().json().await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) {
        let response = self.http.post(format!("{}{path}", self.url)).json(&body).send().await.unwrap();
        assert_eq!(response.status(), 202, "{path}: {}", response.text().await.unwrap());
    }

    async fn until(&self, thread: &str, what: &str, enough: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let found = self.get(&format!("/threads/{thread}")).await;
            if enough(&found) {
                return found;
            }
            assert!(started.elapsed() < REST, "{thread}: no {what} in {found:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Says something and waits for an answer.
    async fn say(&self, thread: &str, text: &str) {
        let before = answers(&self.get(&format!("/threads/{thread}")).await);
        self.post(&format!("/threads/{thread}/messages"), json!({ "text": text })).await;
        self.until(thread, text, |found| answers(found) > before && found["pending"] == json!([])).await;
    }

    async fn calls(&self) {
        self.say(
            "calls",
            r#"call srv_echo {"unit":"billing","steps":[1,2.50,12345678901234567890],"dry_run":true,"owner":"platform"}"#,
        )
        .await;
        self.say("calls", "think about it").await;
        self.say("calls", "call srv_fail {}").await;
        self.post("/threads/calls/messages", json!({ "text": r#"look srv_slow {"ms": 110000}"# })).await;
        self.until("calls", "open call", |found| found["pending"] != json!([])).await;
    }

    async fn family(&self) {
        let spawn = |what: &str| {
            format!("call spawn_thread {}", json!({ "instructions": what, "child_of": ["family"] }))
        };
        self.say("family", "say I will split this up").await;
        self.say("family", &spawn("Read the logs of last night and say what failed")).await;
        let found = self.get("/threads/family/children").await;
        let child = found["threads"][0]["thread_id"].as_str().unwrap().to_owned();
        self.until(&child, "answer of the child", |found| answers(found) > 0).await;
        let report = json!({ "report": "Two of 412 invoices failed: their currency was empty." });
        self.say(&child, &format!("call report_to_parent {report}")).await;
        self.until("family", "report", |found| found.to_string().contains("412 invoices")).await;
        self.say("family", &spawn("Write to the owners of those two")).await;
        self.post("/threads/family/fork", json!({ "thread_id": "family-copy" })).await;
        self.until("family-copy", "fork", |found| {
            found["items"].as_array().is_some_and(|items| items.len() > 3)
        })
        .await;
    }

    async fn rewound(&self) {
        for text in ["say the first step", "say the wrong way", "say even further"] {
            self.say("rewound", text).await;
        }
        self.post("/threads/rewound/rewind", json!({ "target": { "turn": 1 } })).await;
        self.until("rewound", "rewind", |found| found["epoch"] == 1).await;
        self.say("rewound", "say the right way").await;
    }

    /// Long results of turns that are long past, in a window that is more than half full.
    async fn pruned(&self) {
        let metadata = json!({ "agent": "wide" });
        for turn in 1..=5 {
            let notes = format!("turn {turn}: {}", "what was found, and where. ".repeat(500));
            let text = format!("call srv_echo {}", json!({ "notes": notes }));
            self.post("/threads/pruned/messages", json!({ "text": text, "metadata": metadata })).await;
            self.until("pruned", "answer", |found| answers(found) == turn).await;
        }
        self.say("pruned", "say that was much").await;
        let state = self.get("/threads/pruned/state").await;
        assert!(state["pruned"]["shortened_before"].as_u64().unwrap() > 0, "{state}");
    }

    async fn long(&self) {
        let line = "The billing service moves to the new cluster, one tenant after another, and each step is checked. ";
        for day in 1..=4 {
            self.say("long", &format!("say Day {day}. {}", line.repeat(45))).await;
        }
        self.post("/threads/long/compact", json!({ "focus": "dates" })).await;
        let started = Instant::now();
        while self.get("/threads/long/generations").await["generations"] == json!([]) {
            assert!(started.elapsed() < REST, "{}", self.get("/threads/long/state").await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.say("long", "say and on Monday we look back").await;
    }
}

fn answers(thread: &Value) -> usize {
    let items = thread["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter(|item| item["item"]["kind"] == "assistant").count()
}

fn serve(home: &Home, config: &str) -> (Serving, Api) {
    std::fs::write(home.path("dormouse.toml"), config).unwrap();
    let serving = home.serve(&[]);
    let url = serving.endpoints["http"].as_str().unwrap().to_owned();
    (serving, Api { url, http: reqwest::Client::new() })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_inspector_says_how_to_begin_and_chats() {
    let Some(drivers) = drivers() else { return };
    let home = Home::new();
    let (_serving, api) = serve(&home, "[models.default]\nprovider = 'scripted'\n");
    drive(&drivers, "empty.mjs", &api.url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inspector_shows_threads_as_they_are_and_as_they_change() {
    let Some(drivers) = drivers() else { return };
    let home = Home::new();
    let summary = "## What is decided\n\
                   - The billing service moves to the new cluster, one tenant after another, in the order of their size.\n\
                   - The cut-over is on Sunday at 06:00 UTC; nobody deploys from Friday noon on.\n\
                   - The old database stays readable for 14 days. Then a snapshot is kept for a year.\n\
                   - Alerts of both clusters go to the platform channel until the old one is switched off.\n\n\
                   ## What is open\n\
                   - Who watches the first invoices of the new month, and who may stop the move.\n\
                   - Whether exports to the tax office wait for the second week.";
    let script = home.path("summary.jsonl");
    std::fs::write(&script, json!([[{ "text": summary }]]).to_string()).unwrap();
    let config = format!(
        "allow_http_hosts = ['127.0.0.1']\n\
         [models.default]\nprovider = 'scripted'\ncontext_window = 24000\n\
         [models.summary]\nprovider = 'scripted'\nscript = '{}'\ncontext_window = 200000\n\
         [agents.default.compaction]\nmodel = 'summary'\n\
         [models.wide]\nprovider = 'scripted'\ncontext_window = 100000\n\
         [agents.wide]\nmodel = 'wide'\n\
         [agents.wide.compaction]\nenabled = false\n\
         [tool_servers.srv]\nurl = '{}'\ndestructive = 'ask'\n",
        script.display(),
        tools::serve().await
    );
    let (_serving, api) = serve(&home, &config);
    api.say("live", "say hello").await;
    tokio::join!(api.family(), api.rewound(), api.long(), api.pruned());
    api.calls().await;
    drive(&drivers, "threads.mjs", &api.url).await;
}

/// Who has a token sees their own threads, and nobody else's.
#[tokio::test(flavor = "multi_thread")]
async fn with_tokens_the_page_asks_for_one_and_shows_what_is_its_own() {
    let Some(drivers) = drivers() else { return };
    let home = Home::new();
    let config = "[models.default]\nprovider = 'scripted'\n[http]\nauth = 'bearer'\ntokens_env = 'TOKENS'\n";
    std::fs::write(home.path("dormouse.toml"), config).unwrap();
    let tokens = json!({ "ann": "token-of-ann-0123456789", "bob": "token-of-bob-0123456789" }).to_string();
    let serving = home.serve_with(&[], &[("TOKENS", &tokens)]);
    drive(&drivers, "tokens.mjs", serving.endpoints["http"].as_str().unwrap()).await;
}
