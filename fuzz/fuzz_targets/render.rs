//! An arbitrary list of stored rows, with state and parked inputs that need not fit them, and what arrives then.
//!
//! Every request that is rendered is one that every provider accepts, in every dialect's form, and the thread takes
//! another message of its user, calls a tool and settles (I5, I7, I9). The rows of `tests/history_properties.rs`
//! are drawn from a few values; these hold whatever the fuzzer comes to.
#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use dormouse::history::History;
use dormouse::history::render::RenderOptions;
use dormouse::message::{
    AssistantItem, BackendToolCallItem, CallId, ContentPart, EventItem, ImageData, InputMessage,
    InterruptItem, Item, ItemBody, ItemFacts, LeftOut, MessageId, Outcome, RawJson, ReasoningItem, Seq,
    SettledBy, SyntheticReason, SystemItem, ToolCallItem, ToolResultItem, UserItem,
};
use dormouse::store::{Loaded, Meta, ParkedInput, PendingCall};
use dormouse_fuzz::{asks, goes_on, say};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Thread {
    rows: Vec<Row>,
    pending: Vec<Pending>,
    parked: Vec<Parked>,
    head: Option<u8>,
    images: bool,
    system: Option<Text>,
    inputs: Vec<Parked>,
}

#[derive(Arbitrary, Debug)]
struct Row {
    body: Body,
    left_out: Option<bool>,
    opens_turn: bool,
}

#[derive(Arbitrary, Debug)]
enum Body {
    System(Text),
    User(Vec<Part>, Option<Reason>),
    Assistant(Text),
    Call(Id, Text, Arguments, Text),
    Result(Id, End, Vec<Part>, bool),
    Backend(Text),
    Reasoning { own: bool, text: Text, signature: Option<Text>, native: bool },
    Interrupt(Id),
    Event(Id, Reason, Id, Text, Vec<Part>),
    Raw(String),
}

/// Few ids are common, so that calls and results meet.
#[derive(Arbitrary, Debug)]
enum Id {
    A,
    B,
    C,
    Suffixed,
    Any(String),
}

#[derive(Arbitrary, Debug)]
enum Text {
    Word,
    Blank,
    Any(String),
}

#[derive(Arbitrary, Debug)]
enum Arguments {
    Empty,
    Object,
    Any(String),
}

#[derive(Arbitrary, Debug)]
enum Part {
    Text(Text),
    Picture,
    Bytes(Text, Option<Text>),
    Url(Text),
    Unknown(Text),
}

#[derive(Arbitrary, Debug)]
enum Reason {
    Known(u8),
    Any(String),
}

#[derive(Arbitrary, Debug)]
enum End {
    Known(u8),
    Any(String),
}

#[derive(Arbitrary, Debug)]
struct Pending {
    call: Id,
    seq: u8,
    passive: bool,
    synchronous: bool,
    parked: bool,
}

#[derive(Arbitrary, Debug)]
enum Parked {
    Result(Id, Text),
    Event(Id, Text),
    Report(Id, Text),
    User(Text),
    Any(String),
}

fuzz_target!(|data: &[u8]| {
    let Ok(thread) = Thread::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let options = RenderOptions {
        model: "m".to_owned(),
        image_input: thread.images,
        system: thread.system.as_ref().map(Text::get),
        ..RenderOptions::default()
    };
    let mut history = history(&thread);
    asks(&history, &options);
    for (n, input) in thread.inputs.iter().enumerate() {
        let arrival = say::arrival(n, &format!("i{n}"));
        if let Ok(message) = InputMessage::parse(input.body().as_bytes()) {
            let _ = history.accept(&message, &arrival);
            asks(&history, &options);
        }
    }
    let _ = (history.safe_spawn_point(), history.own_items().len());
    goes_on(history, &options);
});

fn history(thread: &Thread) -> History {
    let mut meta = Meta::new_root(say::thread(), "agent", None, 0);
    meta.head = thread.head.map_or(Seq::FIRST.plus(thread.rows.len()), |head| Seq(u64::from(head)));
    meta.pending = thread.pending.iter().map(Pending::get).collect();
    let items = thread.rows.iter().enumerate().map(|(n, row)| row.item(Seq::FIRST.plus(n))).collect();
    let parked = thread.parked.iter().enumerate().map(|(n, parked)| parked.row(n)).collect();
    History::new(say::thread(), Loaded { meta: Some(meta), items, parked, ..Loaded::default() })
}

impl Row {
    /// As a store hands it out: read from its text.
    fn item(&self, seq: Seq) -> Item {
        let left_out = self.left_out.map(|large| if large { LeftOut::TooLarge } else { LeftOut::Refused });
        let facts = ItemFacts { left_out, opens_turn: self.opens_turn, ..ItemFacts::default() };
        match &self.body {
            Body::Raw(raw) => Item::stored(seq, raw.as_str(), facts),
            known => Item::stored(seq, known.get().to_raw(), facts),
        }
    }
}

impl Body {
    fn get(&self) -> ItemBody {
        let parts = |parts: &[Part]| parts.iter().map(Part::get).collect();
        match self {
            Self::System(text) => ItemBody::System(SystemItem { text: text.get() }),
            Self::User(said, reason) => ItemBody::User(UserItem {
                parts: parts(said),
                synthetic_reason: reason.as_ref().map(Reason::get),
                ..UserItem::default()
            }),
            Self::Assistant(text) => {
                ItemBody::Assistant(AssistantItem { text: text.get(), model: "m".into(), stop_reason: None })
            }
            Self::Call(id, name, arguments, provider_id) => ItemBody::ToolCall(ToolCallItem {
                call_id: id.get(),
                provider_id: provider_id.get(),
                name: name.get(),
                arguments: arguments.get(),
                signature: None,
                model: "m".into(),
            }),
            Self::Result(id, end, said, tool) => ItemBody::ToolResult(ToolResultItem {
                call_id: id.get(),
                outcome: end.get(),
                parts: parts(said),
                settled_by: if *tool { SettledBy::Tool } else { SettledBy::Runtime },
                display_as: None,
            }),
            Self::Backend(summary) => ItemBody::BackendToolCall(BackendToolCallItem {
                tool_type: "search".into(),
                provider: RawJson::empty_object(),
                summary: summary.get(),
            }),
            Self::Reasoning { own, text, signature, native } => ItemBody::Reasoning(ReasoningItem {
                model: if *own { "m" } else { "other" }.into(),
                text: text.get(),
                signature: signature.as_ref().map(Text::get),
                provider: native.then(RawJson::empty_object),
            }),
            Self::Interrupt(id) => ItemBody::Interrupt(InterruptItem { call_id: id.get() }),
            Self::Event(id, reason, origin, arguments, said) => ItemBody::Event(EventItem {
                call_id: id.get(),
                reason: reason.get(),
                original_tool_name: "s".into(),
                original_tool_call_id: origin.get(),
                original_args: arguments.get(),
                parts: parts(said),
            }),
            Self::Raw(raw) => ItemBody::parse(raw),
        }
    }
}

impl Id {
    fn get(&self) -> CallId {
        CallId::new(match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::Suffixed => "a_2",
            Self::Any(text) => text,
        })
    }
}

impl Text {
    fn get(&self) -> String {
        match self {
            Self::Word => "x".to_owned(),
            Self::Blank => "\u{2003}\n".to_owned(),
            Self::Any(text) => text.clone(),
        }
    }
}

impl Arguments {
    fn get(&self) -> String {
        match self {
            Self::Empty => String::new(),
            Self::Object => r#"{"a":1.0}"#.to_owned(),
            Self::Any(text) => text.clone(),
        }
    }
}

impl Part {
    fn get(&self) -> ContentPart {
        match self {
            Self::Text(text) => ContentPart::Text(text.get()),
            Self::Picture => {
                ContentPart::Image { data: ImageData::Base64("iVBORw0KGgo=".to_owned()), media_type: None }
            }
            Self::Bytes(data, media_type) => ContentPart::Image {
                data: ImageData::Base64(data.get()),
                media_type: media_type.as_ref().map(Text::get),
            },
            Self::Url(url) => ContentPart::Image { data: ImageData::Url(url.get()), media_type: None },
            Self::Unknown(text) => ContentPart::Unknown(text.get().into()),
        }
    }
}

impl Reason {
    fn get(&self) -> SyntheticReason {
        let known =
            ["late_result", "subscription_event", "thread_report", "parent_message", "compaction_meta"];
        match self {
            Self::Known(n) => SyntheticReason::from_tag(known[usize::from(*n) % known.len()]),
            Self::Any(tag) => SyntheticReason::from_tag(tag),
        }
    }
}

impl End {
    fn get(&self) -> Outcome {
        let known = [Outcome::Ok, Outcome::Error, Outcome::Interrupted, Outcome::Halted, Outcome::Truncated];
        match self {
            Self::Known(n) => known[usize::from(*n) % known.len()].clone(),
            Self::Any(tag) => Outcome::Unknown(tag.clone()),
        }
    }
}

impl Pending {
    fn get(&self) -> PendingCall {
        PendingCall {
            call: self.call.get(),
            seq: Seq(u64::from(self.seq)),
            name: "f".into(),
            passive: self.passive,
            synchronous: self.synchronous,
            server: None,
            hold: None,
            terms: Default::default(),
            parked: self.parked,
            cause: vec![MessageId::new("m")],
            user: None,
            extra: Default::default(),
        }
    }
}

impl Parked {
    fn body(&self) -> String {
        let message = match self {
            Self::Result(call, text) => say::result(&call.get(), &text.get()),
            Self::Event(origin, text) => say::event(&origin.get(), &text.get()),
            Self::Report(origin, text) => say::report(&origin.get(), &text.get()),
            Self::User(text) => say::user(&text.get()),
            Self::Any(text) => return text.clone(),
        };
        message.to_body().expect("a body")
    }

    fn row(&self, n: usize) -> ParkedInput {
        let arrival = say::arrival(n, &format!("p{n}"));
        ParkedInput { key: arrival.key, dedup: arrival.dedup, cause: arrival.cause, body: self.body() }
    }
}
