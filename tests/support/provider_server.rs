//! A provider that plays recorded answers over real HTTP and keeps the requests it was sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use futures::{StreamExt, stream};
use serde_json::Value;

/// What the server answers to one request.
pub enum Reply {
    /// 200, the pieces one after the other, then the body ends.
    Stream(Vec<Vec<u8>>),
    /// 200, the pieces, then the connection breaks in mid body.
    Broken(Vec<Vec<u8>>),
    /// 200, the pieces, then nothing for ever.
    Silent(Vec<Vec<u8>>),
    /// Headers never come.
    Deaf,
    /// A refusal.
    Status(u16, Vec<(&'static str, &'static str)>, String),
}

impl Reply {
    /// A stream of server-sent events, each piece one event.
    pub fn sse(events: &[String]) -> Self {
        Self::Stream(events.iter().map(|event| event.clone().into_bytes()).collect())
    }
}

/// A request as the server got it.
#[derive(Clone)]
pub struct Received {
    pub path: String,
    pub authorization: String,
    pub body: Value,
    /// The body as it came.
    pub text: String,
}

#[derive(Clone)]
pub struct Server {
    pub url: String,
    state: Arc<Mutex<Script>>,
}

type Respond = Arc<dyn Fn(&Received) -> Reply + Send + Sync>;

#[derive(Default)]
struct Script {
    replies: VecDeque<Reply>,
    /// What decides once there are no more of them.
    respond: Option<Respond>,
    received: Vec<Received>,
}

impl Server {
    pub async fn start(replies: Vec<Reply>) -> Self {
        Self::serve(Script { replies: replies.into(), ..Script::default() }).await
    }

    /// One whose answers depend on the request.
    pub async fn answering(respond: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::serve(Script { respond: Some(Arc::new(respond)), ..Script::default() }).await
    }

    async fn serve(script: Script) -> Self {
        let state = Arc::new(Mutex::new(script));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, state }
    }

    /// Answers one request more.
    pub fn then(&self, reply: Reply) {
        self.state.lock().unwrap().replies.push_back(reply);
    }

    pub fn received(&self) -> Vec<Received> {
        self.state.lock().unwrap().received.clone()
    }
}

async fn answer(State(state): State<Arc<Mutex<Script>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let authorization = ["authorization", "x-api-key", "x-goog-api-key"].into_iter().find_map(header);
    let reply = {
        let mut script = state.lock().unwrap();
        let received = Received {
            path: head.uri.to_string(),
            authorization: authorization.unwrap_or_default(),
            body: serde_json::from_slice(&body).unwrap(),
            text: String::from_utf8(body.to_vec()).unwrap(),
        };
        script.received.push(received.clone());
        let reply = script.replies.pop_front();
        reply
            .or_else(|| script.respond.as_ref().map(|respond| respond(&received)))
            .expect("more requests than replies")
    };
    let pieces = |pieces: Vec<Vec<u8>>| {
        // A pause makes each piece a chunk of its own.
        stream::iter(pieces).then(|piece| async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            Ok::<_, std::io::Error>(Bytes::from(piece))
        })
    };
    let body = match reply {
        Reply::Stream(all) => Body::from_stream(pieces(all)),
        Reply::Broken(all) => {
            let broken = stream::once(async { Err(std::io::Error::other("broken")) });
            Body::from_stream(pieces(all).chain(broken))
        }
        Reply::Silent(all) => Body::from_stream(pieces(all).chain(stream::pending())),
        Reply::Deaf => std::future::pending().await,
        Reply::Status(status, headers, body) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            return response.body(Body::from(body)).unwrap();
        }
    };
    Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
}

/// A frame of AWS's event stream, as Bedrock sends them.
pub fn event_stream(event: &str, payload: &Value) -> Vec<u8> {
    fn crc32(bytes: &[u8]) -> [u8; 4] {
        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
            }
        }
        (!crc).to_be_bytes()
    }
    let mut headers = Vec::new();
    for (name, value) in [(":event-type", event), (":message-type", "event")] {
        headers.push(name.len() as u8);
        headers.extend(name.as_bytes());
        headers.push(7);
        headers.extend((value.len() as u16).to_be_bytes());
        headers.extend(value.as_bytes());
    }
    let payload = payload.to_string();
    let mut frame = ((16 + headers.len() + payload.len()) as u32).to_be_bytes().to_vec();
    frame.extend((headers.len() as u32).to_be_bytes());
    frame.extend(crc32(&frame));
    frame.extend(headers);
    frame.extend(payload.as_bytes());
    frame.extend(crc32(&frame));
    frame
}
