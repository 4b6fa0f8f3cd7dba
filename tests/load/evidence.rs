//! What is there after a run, seen from outside: rows, messages of the output queue, what the tool server wrote down.

use std::collections::BTreeMap;

use dormouse::message::{ContentPart, ItemBody, OutputKind, OutputMessage, SettledBy, ThreadId};
use dormouse::store::dynamodb::DynamoStore;
use dormouse::store::{ConversationStore, OutboxEntry, Promise};
use futures::{StreamExt, stream};

use crate::plan::Plan;
use crate::tools::Invoked;

/// Threads that are read at once.
const READS: usize = 8;

/// An entry of the stored history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A person's text.
    Input(String),
    Call {
        id: String,
        operation: String,
        arguments: String,
    },
    Result {
        call: String,
        text: String,
        by: SettledBy,
    },
    Interrupted {
        call: String,
    },
    /// The model's text.
    Answer(String),
    Reasoning,
    /// A result that came after its call was interrupted.
    LateNote,
    Other(String),
}

/// A message of the output queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub message_id: String,
    pub text: String,
    pub is_error: bool,
    /// When the queue took it, then the order in which it was read.
    pub place: (u64, usize),
}

impl Published {
    pub fn new(message: OutputMessage, place: (u64, usize)) -> Self {
        let is_error = message.kind != OutputKind::TEXT;
        Self { message_id: message.message_id, text: message.text, is_error, place }
    }
}

/// Of one thread.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub history: Vec<Stored>,
    /// In order of `place`; one message may be there several times.
    pub published: Vec<Published>,
    pub invoked: Vec<Invoked>,
    /// What is not finished: open calls, open causes, parked inputs.
    pub unfinished: Vec<String>,
    /// What the last commit promised to send.
    pub outbox: Vec<OutboxEntry>,
    /// The text to which no reply came.
    pub unanswered: Option<String>,
}

/// Reads what is stored; the rest is handed in.
pub async fn collect(
    plan: &Plan,
    store: &DynamoStore,
    mut published: BTreeMap<String, Vec<Published>>,
    mut invoked: BTreeMap<String, Vec<Invoked>>,
    mut unanswered: BTreeMap<String, String>,
) -> BTreeMap<String, Evidence> {
    let reads = plan.threads.iter().map(|thread| async {
        let loaded = store.load(&ThreadId::from(thread.id.as_str()), &[]).await.unwrap();
        (thread.id.clone(), loaded)
    });
    let mut threads = BTreeMap::new();
    let mut reads = stream::iter(reads).buffer_unordered(READS);
    while let Some((id, loaded)) = reads.next().await {
        let mut published = published.remove(&id).unwrap_or_default();
        published.sort_by_key(|message| message.place);
        let parked = loaded.parked.iter().map(|parked| format!("{} is parked", parked.dedup));
        let mut evidence = Evidence {
            history: loaded.items.iter().map(|item| stored(&item.body)).collect(),
            published,
            invoked: invoked.remove(&id).unwrap_or_default(),
            unfinished: parked.collect(),
            outbox: Vec::new(),
            unanswered: unanswered.remove(&id),
        };
        match loaded.meta {
            None => evidence.unfinished.push("there is no such thread".to_owned()),
            Some(meta) => {
                let pending = meta.pending.iter().map(|pending| format!("{} is pending", pending.call));
                let open = meta.open.iter().map(|cause| format!("{cause} is open"));
                evidence.unfinished.extend(pending.chain(open));
                evidence.outbox = meta.outbox;
            }
        }
        threads.insert(id, evidence);
    }
    threads
}

fn stored(body: &ItemBody) -> Stored {
    match body {
        ItemBody::User(user) => match &user.synthetic_reason {
            None => Stored::Input(ContentPart::join_text(&user.parts)),
            Some(dormouse::message::SyntheticReason::LateResult) => Stored::LateNote,
            Some(reason) => Stored::Other(reason.tag().to_owned()),
        },
        ItemBody::ToolCall(call) => Stored::Call {
            id: call.call_id.as_str().to_owned(),
            operation: call.name.clone(),
            arguments: call.arguments.clone(),
        },
        ItemBody::ToolResult(result) => Stored::Result {
            call: result.call_id.as_str().to_owned(),
            text: ContentPart::join_text(&result.parts),
            by: result.settled_by,
        },
        ItemBody::Interrupt(marker) => Stored::Interrupted { call: marker.call_id.as_str().to_owned() },
        ItemBody::Assistant(answer) => Stored::Answer(answer.text.clone()),
        ItemBody::Reasoning(_) => Stored::Reasoning,
        ItemBody::System(_)
        | ItemBody::Event(_)
        | ItemBody::BackendToolCall(_)
        | ItemBody::State(_)
        | ItemBody::Unknown { .. } => Stored::Other(body.kind().to_owned()),
    }
}

/// Whether a promise was kept, as far as it can be seen from outside.
pub fn is_kept(entry: &OutboxEntry, evidence: &Evidence) -> bool {
    let is_published = || evidence.published.iter().any(|message| message.message_id == entry.id);
    match &entry.promise {
        Promise::Reply { .. } | Promise::Notice { .. } => is_published(),
        Promise::Call { call } => evidence.history.iter().any(|entry| match entry {
            Stored::Result { call: of, .. } | Stored::Interrupted { call: of } => of == call.as_str(),
            _ => false,
        }),
        // Nobody waits for these.
        Promise::Cancel { .. } | Promise::Release => true,
        Promise::OAuth { .. }
        | Promise::Choice { .. }
        | Promise::Answer { .. }
        | Promise::Wake { .. }
        | Promise::Report { .. }
        | Promise::Message { .. }
        | Promise::Schedule { .. }
        | Promise::End { .. }
        | Promise::Compact { .. }
        | Promise::Compacted { .. }
        | Promise::RunEnd { .. }
        | Promise::Closed
        | Promise::Unknown(_) => false,
    }
}
