//! The wire between the AWS clients and their endpoint, and what goes wrong on it.
//!
//! It stands where the SDK's HTTP client does, below every retry of the SDK and of dormouse: requests and answers here
//! are those of the real protocol, and the service is asked unless a fault says that it was not reached.

use std::sync::{Arc, Mutex};

use aws_sdk_sqs::config::http::{HttpRequest, HttpResponse};
use aws_sdk_sqs::config::{HttpClient, RuntimeComponents, SharedHttpClient};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::faults::{Fault, Faults};

/// Batches that wait for a second worker.
const MAX_COPIES: usize = 64;
/// The longest that a message which nobody has deleted stays invisible here, in seconds: its real visibility is a
/// function's whole time.
const MAX_INVISIBLE: usize = 2;
const TARGET: &str = "x-amz-target";

/// What the wires of one run share: batches to be delivered once more, each with the worker that has it already.
#[derive(Debug, Default)]
pub struct Copies(Mutex<Vec<(usize, String)>>);

/// The wire of one process.
#[derive(Clone, Debug)]
pub struct Wire {
    http: SharedHttpClient,
    faults: Arc<Faults>,
    copies: Arc<Copies>,
    process: usize,
}

impl Wire {
    pub fn new(faults: Arc<Faults>, copies: Arc<Copies>, process: usize) -> Self {
        Self { http: plain(), faults, copies, process }
    }

    pub fn client(self) -> SharedHttpClient {
        SharedHttpClient::new(self)
    }
}

/// A wire on which nothing goes wrong.
pub fn plain() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new().build_http()
}

impl HttpClient for Wire {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(Line {
            http: self.http.http_connector(settings, components),
            wire: self.clone(),
        })
    }
}

#[derive(Clone, Debug)]
struct Line {
    http: SharedHttpConnector,
    wire: Wire,
}

impl HttpConnector for Line {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let line = self.clone();
        HttpConnectorFuture::new(async move { line.pass(request).await })
    }
}

impl Line {
    async fn pass(&self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let target = request.headers().get(TARGET).unwrap_or_default();
        let (service, operation) = target.split_once('.').unwrap_or_default();
        let (service, operation) = (service.to_owned(), operation.to_owned());
        let faults = &self.wire.faults;
        if faults.strike(Fault::Throttled) {
            return Ok(throttle(&service, faults.dice().below(2)));
        }
        match operation.as_str() {
            "ReceiveMessage" => return self.receive(request).await,
            "DeleteMessageBatch" if faults.strike(Fault::DeleteForgotten) => {
                return self.forget(request).await;
            }
            "BatchGetItem" if faults.strike(Fault::Unprocessed) => {
                let asked = body(&request);
                return Ok(answer(200, json!({"Responses": {}, "UnprocessedKeys": asked["RequestItems"]})));
            }
            "TransactWriteItems" => {
                let asked = body(&request);
                let token = asked["ClientRequestToken"].as_str().unwrap_or_default();
                if faults.strikes(Fault::CommitStuck, token) {
                    if faults.dice().below(2) == 0 {
                        return Ok(throttle(&service, 0));
                    }
                    whole(self.http.call(request).await?).await?;
                    return Err(lost());
                }
                if faults.strike(Fault::Conflict) {
                    let actions = asked["TransactItems"].as_array().map_or(1, Vec::len);
                    return Ok(conflict(actions, faults.dice().below(actions)));
                }
            }
            _ => {}
        }
        let answered = whole(self.http.call(request).await?).await?;
        if faults.strike(Fault::AnswerLost) {
            return match faults.dice().below(2) {
                0 => Err(lost()),
                _ => Ok(answer(500, json!({"__type": "InternalServerError", "message": "injected"}))),
            };
        }
        Ok(answered)
    }

    /// A receive: its messages may be handed to another worker as well, or to nobody.
    async fn receive(&self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        if let Some(copy) = self.take_copy() {
            return Ok(answer_text(200, copy));
        }
        let again = request.try_clone().expect("a request of the JSON protocol is in memory");
        let answered = whole(self.http.call(request).await?).await?;
        let received: Value =
            serde_json::from_slice(answered.body().bytes().unwrap_or_default()).unwrap_or_default();
        let messages = received["Messages"].as_array().cloned().unwrap_or_default();
        if messages.is_empty() {
            return Ok(answered);
        }
        let faults = &self.wire.faults;
        if faults.strike(Fault::AnswerLost) {
            let handles = messages.iter().map(|message| message["ReceiptHandle"].clone()).collect();
            self.show_again(again, handles).await?;
            return Err(lost());
        }
        if faults.strike(Fault::DeliveredTwice) {
            let mut copy = received;
            // The queue may or may not know that it delivers once more.
            if faults.dice().below(2) == 0 {
                copy["Messages"].as_array_mut().into_iter().flatten().for_each(count_up);
            }
            let mut copies = self.wire.copies.0.lock().unwrap();
            if copies.len() < MAX_COPIES {
                copies.push((self.wire.process, copy.to_string()));
            }
        }
        Ok(answered)
    }

    fn take_copy(&self) -> Option<String> {
        let mut copies = self.wire.copies.0.lock().unwrap();
        let place = copies.iter().position(|(process, _)| *process != self.wire.process)?;
        Some(copies.remove(place).1)
    }

    /// A delete that never left the worker; the visibility of its messages ends soon.
    async fn forget(&self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let asked = body(&request);
        let entries = asked["Entries"].as_array().cloned().unwrap_or_default();
        let handles = entries.iter().map(|entry| entry["ReceiptHandle"].clone()).collect();
        self.show_again(request, handles).await?;
        let done: Vec<Value> = entries.iter().map(|entry| json!({"Id": entry["Id"]})).collect();
        Ok(answer(200, json!({"Successful": done, "Failed": []})))
    }

    /// What the end of a visibility does.
    async fn show_again(&self, mut request: HttpRequest, handles: Vec<Value>) -> Result<(), ConnectorError> {
        let seconds = self.wire.faults.dice().below(MAX_INVISIBLE + 1);
        let entry = |(at, handle): (usize, Value)| json!({"Id": at.to_string(), "ReceiptHandle": handle, "VisibilityTimeout": seconds});
        let entries: Vec<Value> = handles.into_iter().enumerate().map(entry).collect();
        let text = json!({"QueueUrl": body(&request)["QueueUrl"], "Entries": entries}).to_string();
        request.headers_mut().insert(TARGET, "AmazonSQS.ChangeMessageVisibilityBatch");
        request.headers_mut().insert("content-length", text.len().to_string());
        *request.body_mut() = SdkBody::from(text);
        whole(self.http.call(request).await?).await.map(drop)
    }
}

fn count_up(message: &mut Value) {
    let count = &mut message["Attributes"]["ApproximateReceiveCount"];
    let receives: u64 = count.as_str().and_then(|count| count.parse().ok()).unwrap_or(1);
    *count = json!((receives + 1).to_string());
}

fn body(request: &HttpRequest) -> Value {
    serde_json::from_slice(request.body().bytes().unwrap_or_default()).unwrap_or_default()
}

/// Reads an answer to its end: the service has done what it was asked.
async fn whole(mut response: HttpResponse) -> Result<HttpResponse, ConnectorError> {
    let read = response.take_body().collect().await;
    let bytes = read.map_err(ConnectorError::io)?.to_bytes();
    *response.body_mut() = SdkBody::from(bytes.to_vec());
    Ok(response)
}

fn lost() -> ConnectorError {
    ConnectorError::io("injected: the connection ended before the answer".into())
}

fn throttle(service: &str, kind: usize) -> HttpResponse {
    let code = match (service.starts_with("DynamoDB"), kind) {
        (true, 0) => "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
        (true, _) => "com.amazonaws.dynamodb.v20120810#ThrottlingException",
        (false, 0) => "com.amazonaws.sqs#RequestThrottled",
        (false, _) => "com.amazonaws.sqs#ThrottlingException",
    };
    answer(400, json!({"__type": code, "message": "injected"}))
}

/// `at`: the action whose row another transaction holds.
fn conflict(actions: usize, at: usize) -> HttpResponse {
    let reason = |action: usize| match action == at {
        true => json!({"Code": "TransactionConflict", "Message": "Transaction is ongoing for the item"}),
        false => json!({"Code": "None"}),
    };
    let reasons: Vec<Value> = (0..actions).map(reason).collect();
    let code = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException";
    answer(
        400,
        json!({"__type": code, "Message": "Transaction cancelled: injected", "CancellationReasons": reasons}),
    )
}

fn answer(status: u16, body: Value) -> HttpResponse {
    answer_text(status, body.to_string())
}

fn answer_text(status: u16, body: String) -> HttpResponse {
    let status = StatusCode::try_from(status).expect("a status");
    let mut response = HttpResponse::new(status, SdkBody::from(body));
    response.headers_mut().insert("content-type", "application/x-amz-json-1.0");
    response
}
