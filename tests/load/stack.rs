//! The two stacks: the embedded DynamoDB and SQS of local mode, on files, and a server that somebody else wrote.

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider, SharedHttpClient};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use dormouse::assembly::Clients;
use dormouse::local::aws::{EmbeddedAws, EmbeddedOptions};
use dormouse::queue::sqs;
use dormouse::store::dynamodb::create_table;
use serde_json::json;

use crate::wire;

/// As the template sets them.
const VISIBILITY_SECONDS: u32 = 120;
const MAX_RECEIVES: u32 = 100;

/// A table and three queues, nobody else's.
pub struct Stack {
    pub name: &'static str,
    pub table: String,
    pub input: String,
    pub output: String,
    pub dead: String,
    dynamodb: String,
    sqs: String,
    embedded: Option<(EmbeddedAws, tempfile::TempDir)>,
}

impl Stack {
    pub async fn embedded() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { dir: Some(dir.path().to_owned()), ..EmbeddedOptions::default() };
        let aws = EmbeddedAws::start(options).await.unwrap();
        Self {
            name: "embedded",
            table: aws.table().to_owned(),
            input: aws.input_queue_url(),
            output: aws.output_queue_url(),
            dead: aws.dead_letter_queue_url(),
            dynamodb: aws.dynamodb_url(),
            sqs: aws.sqs_url(),
            embedded: Some((aws, dir)),
        }
    }

    /// On the server at `url`.
    pub async fn ministack(url: &str) -> Self {
        let run = uuid::Uuid::new_v4();
        let table = format!("dormouse-load-{run}");
        let clients = clients(url, url, wire::plain());
        create_table(&clients.dynamodb, &table).await.unwrap();
        let dead = fifo(&clients.sqs, &format!("load-dead-{run}.fifo"), None).await;
        let input = fifo(&clients.sqs, &format!("load-input-{run}.fifo"), Some(&dead)).await;
        let output =
            clients.sqs.create_queue().queue_name(format!("load-output-{run}")).send().await.unwrap();
        let output = output.queue_url.unwrap();
        let url = url.to_owned();
        Self {
            name: "ministack",
            table,
            input,
            output,
            dead,
            dynamodb: url.clone(),
            sqs: url,
            embedded: None,
        }
    }

    /// Clients as a function makes them, over `http`.
    pub fn clients(&self, http: SharedHttpClient) -> Clients {
        clients(&self.dynamodb, &self.sqs, http)
    }

    /// Without the time limits of an assembly's client, which gives up before a long poll is over.
    pub fn polling(&self, http: SharedHttpClient) -> aws_sdk_sqs::Client {
        aws_sdk_sqs::Client::new(&shared(&self.sqs, http))
    }

    pub async fn stop(self) {
        if let Some((aws, _dir)) = self.embedded {
            return aws.stop().await;
        }
        let clients = self.clients(wire::plain());
        for queue in [&self.input, &self.output, &self.dead] {
            clients.sqs.delete_queue().queue_url(queue).send().await.unwrap();
        }
        clients.dynamodb.delete_table().table_name(&self.table).send().await.unwrap();
    }
}

fn clients(dynamodb: &str, queues: &str, http: SharedHttpClient) -> Clients {
    Clients {
        dynamodb: aws_sdk_dynamodb::Client::new(&shared(dynamodb, http.clone())),
        sqs: sqs::client(&shared(queues, http)),
        scheduler: None,
    }
}

fn shared(endpoint: &str, http: SharedHttpClient) -> SdkConfig {
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
            "test", "test", None, None, "load",
        )))
        .http_client(http)
        .build()
}

/// A FIFO queue as the template makes it; its URL.
async fn fifo(client: &aws_sdk_sqs::Client, name: &str, dead: Option<&str>) -> String {
    let mut request = client
        .create_queue()
        .queue_name(name)
        .attributes(Attribute::FifoQueue, "true")
        .attributes(Attribute::DeduplicationScope, "messageGroup")
        .attributes(Attribute::FifoThroughputLimit, "perMessageGroupId")
        .attributes(Attribute::VisibilityTimeout, VISIBILITY_SECONDS.to_string());
    if let Some(dead) = dead {
        let arn = client.get_queue_attributes().queue_url(dead).attribute_names(Attribute::QueueArn);
        let arn = arn.send().await.unwrap().attributes.unwrap().remove(&Attribute::QueueArn).unwrap();
        let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": MAX_RECEIVES});
        request = request.attributes(Attribute::RedrivePolicy, policy.to_string());
    }
    request.send().await.unwrap().queue_url.unwrap()
}
