//! The HTTP front over a world: what is posted is handed to its worker by the test.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use dormouse::config::Config;
use dormouse::http::{Access, HttpDeps, StreamTime, router};
use dormouse::rap::CallbackDeps;
use serde_json::Value;

use crate::support::{Outbox, tokens};
use crate::world::{Delivery, World};

pub struct Front {
    pub world: World,
    pub outbox: Arc<Outbox>,
    /// Of the routes of AG-UI clients.
    pub url: String,
    pub http: reqwest::Client,
}

impl Front {
    /// Streams are over after `time`.
    pub async fn before(world: World, access: Access, time: Duration) -> Self {
        let outbox = Arc::new(Outbox::default());
        let callback = CallbackDeps {
            store: world.runtime.store.clone(),
            sender: outbox.clone(),
            tokens: tokens("http://unused"),
            config: Arc::new(Config::default()),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/agui", listener.local_addr().unwrap());
        let app = router(HttpDeps { callback, access, webhooks: Default::default() });
        let app = app.layer(axum::Extension(StreamTime(time)));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { world, outbox, url, http: reqwest::Client::new() }
    }

    /// Hands what was posted to the worker.
    pub async fn work(&self) {
        for (message, dedup) in self.outbox.take() {
            let delivery = Delivery { dedup: dedup.as_str().to_owned(), ..self.world.message(&message) };
            self.world.done(&delivery).await;
        }
    }

    /// The same as soon as something is posted.
    pub async fn work_when_posted(&self) {
        while self.outbox.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.work().await;
    }
}

/// The events of a stream's body.
pub fn events(body: &str) -> Vec<Value> {
    let frames = body.split("\n\n").filter_map(|frame| frame.strip_prefix("data: "));
    frames.map(|frame| serde_json::from_str(frame).unwrap()).collect()
}
