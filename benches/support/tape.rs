//! DynamoDB without the network: what a real table answered, played again.
//!
//! A conversation is committed to the embedded table and loaded once; the answers of that load are kept as bytes. The
//! store that is measured then speaks to a connector that hands them out. So every request is built, serialised,
//! signed and sent through the SDK, and every answer is parsed and decoded; only the socket, TLS and the table are
//! missing. Transactions are answered `{}`, as DynamoDB does, and change nothing.

use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::{HttpRequest, HttpResponse};
use aws_sdk_dynamodb::config::interceptors::{
    AfterDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use bytes::Bytes;
use dormouse::message::Item;
use dormouse::store::dynamodb::{DynamoStore, create_table};
use serde_json::Value;

use super::world::NOW_MS;
use super::{compact, fill, load};

#[path = "../../tests/support/ddb.rs"]
mod ddb;

const TABLE: &str = "bench";
/// Names the operation in a request.
const TARGET: &str = "x-amz-target";
/// In the body of a query for any page but the first.
const NEXT_PAGE: &str = "ExclusiveStartKey";

/// What a request that was answered looks like.
#[derive(Clone, Debug)]
struct Question {
    operation: String,
    /// Pieces of the request's body, since the order of its members changes: the key that a page starts behind, the
    /// range, or the first row.
    marks: Vec<String>,
    first_page: bool,
}

impl Storable for Question {
    type Storer = StoreReplace<Self>;
}

/// Commits `items` to an embedded table, the first `covered` of them with a summary that stands for them, loads what a
/// request needs, and returns a store for which that load is all there is.
pub async fn record(items: &[Item], covered: usize) -> DynamoStore {
    let server = ddb::Embedded::start(dynoxide::Database::memory().unwrap());
    let client = ddb::client(&server.url);
    create_table(&client, TABLE).await.unwrap();
    fill(&store(client.clone()), items).await;
    if covered > 0 {
        compact(&store(client.clone()), covered).await;
    }
    let shown = &items[covered..];
    let recorder = Recorder::default();
    let config = client.config().to_builder().interceptor(recorder.clone()).build();
    let recorded: Arc<dyn dormouse::store::Store> = Arc::new(store(Client::from_conf(config)));
    assert_eq!(load(&recorded).await.history().committed(), shown);
    server.stop();

    let player = SharedHttpConnector::new(Player(recorder.0.lock().unwrap().clone()));
    let http = http_client_fn(move |_, _| player.clone());
    let config = ddb::config("http://dynamodb.invalid").http_client(http).build();
    let played = store(Client::from_conf(config));
    let again: Arc<dyn dormouse::store::Store> = Arc::new(played.clone());
    assert_eq!(load(&again).await.history().committed(), shown, "what is played is what was recorded");
    played
}

fn store(client: Client) -> DynamoStore {
    DynamoStore::new(client, TABLE.to_owned()).with_clock(|| NOW_MS)
}

/// Keeps every answer that its client gets.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<(Question, Bytes)>>>);

impl Intercept for Recorder {
    fn name(&self) -> &'static str {
        "Recorder"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let request = context.request();
        let body: Value = serde_json::from_slice(request.body().bytes().ok_or("the request is streamed")?)?;
        let text =
            |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(|text| format!("\"{text}\""));
        let next_page = text(&format!("/{NEXT_PAGE}/sk/S"));
        let first = |part: &str| format!("/RequestItems/{TABLE}/Keys/0/{part}/S");
        let ranges = ["/ExpressionAttributeValues/:from/S".to_owned(), first("pk"), first("sk")];
        config.interceptor_state().store_put(Question {
            operation: request.headers().get(TARGET).ok_or("no operation")?.to_owned(),
            first_page: next_page.is_none(),
            marks: match next_page {
                Some(page) => vec![page],
                None => ranges.iter().filter_map(|pointer| text(pointer)).collect(),
            },
        });
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let question = config.load::<Question>().ok_or("an answer to no request")?.clone();
        let body = context.response().body().bytes().ok_or("the answer was streamed")?;
        self.0.lock().unwrap().push((question, Bytes::copy_from_slice(body)));
        Ok(())
    }
}

/// Answers from what was recorded.
#[derive(Debug)]
struct Player(Vec<(Question, Bytes)>);

impl Player {
    fn answer(&self, request: &HttpRequest) -> Option<Bytes> {
        let operation = request.headers().get(TARGET)?;
        if operation.ends_with(".TransactWriteItems") {
            return Some(Bytes::from_static(b"{}"));
        }
        let body = std::str::from_utf8(request.body().bytes()?).ok()?;
        let first_page = !body.contains(NEXT_PAGE);
        let fits = |question: &Question| {
            question.operation == operation
                && question.first_page == first_page
                && question.marks.iter().all(|mark| body.contains(mark))
        };
        self.0.iter().find(|(question, _)| fits(question)).map(|(_, answer)| answer.clone())
    }
}

impl HttpConnector for Player {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (status, body) = match self.answer(&request) {
            Some(body) => (200, body),
            // Refused, so that a bench which asks for what was not recorded fails.
            None => (400, Bytes::from_static(br#"{"__type":"NotRecorded"}"#)),
        };
        let status = status.try_into().expect("bug: a status code");
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(body))))
    }
}
