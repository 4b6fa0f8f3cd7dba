//! Rows other than META, to and from attributes.
//!
//! A row that holds a text keeps it in `raw`, or, above [`INLINE_BYTES`], names a body by `body` (its digest) and
//! `parts`. Reading is total: what an item row lacks becomes an item of unknown kind, never an error (I7).

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use super::bodies::{Bodies, BodyRef, part_count};
use super::keys::{self, Key, LPK, LSK, List};
use super::meta_row::{HEAD, LOG};
use crate::message::{
    CallId, DedupId, Epoch, Item, ItemBody, ItemFacts, ItemId, LeftOut, MessageId, Seq, ThreadId, excerpt_of,
};
use crate::store::{
    ChoiceRow, DeadLetter, Extra, Generation, INLINE_BYTES, ParkedInput, Prune, RunEvents, Span, Stop,
    Subscription, body_digest,
};

/// A row's attributes.
pub(super) type Row = HashMap<String, AttributeValue>;

/// When a row stops counting, epoch seconds; also the table's TTL attribute.
pub(super) const EXPIRES_AT: &str = "expires_at";
const RAW: &str = "raw";
const BODY: &str = "body";
const PARTS: &str = "parts";
const KIND: &str = "kind";
/// The dedup id an input came under.
pub(super) const DEDUP: &str = "dedup";
/// The message that brought it.
pub(super) const CAUSE: &str = "cause";
const TURN: &str = "turn";
const TURN_ID: &str = "turn_id";
const OPENS_TURN: &str = "opens_turn";
const USER: &str = "user";
const CREATED_AT: &str = "created_at";
const EST: &str = "est";
/// Why the content is left out of requests.
const LEFT_OUT: &str = "left_out";
/// The short form of a result whose text is in rows of its own.
const EXCERPT: &str = "excerpt";
/// The kind of items that hold a shared state.
const STATE_KIND: &str = "state";
/// Characters of the text that it is of.
const CHARS: &str = "chars";
/// Facts of a newer version, as JSON.
const EXTRA: &str = "extra";
/// Every attribute of an item's row that this version knows.
const ITEM_ATTRIBUTES: [&str; 21] = [
    WAS,
    WAS_PARTS,
    keys::PK,
    keys::SK,
    RAW,
    BODY,
    PARTS,
    KIND,
    DEDUP,
    CAUSE,
    TURN,
    TURN_ID,
    OPENS_TURN,
    USER,
    CREATED_AT,
    EST,
    LEFT_OUT,
    EXCERPT,
    CHARS,
    EXTRA,
    EXPIRES_AT,
];
const KEY: &str = "key";
/// The call of a subscription or a choice.
pub(super) const CALL: &str = "call";
/// Whether a subscription takes events.
pub(super) const ACTIVE: &str = "active";
const VIEW_TYPE: &str = "view_type";
const SERVER: &str = "server";
const STORED_AT: &str = "stored_at";
const THREAD: &str = "thread";
const REASON: &str = "reason";
/// The body that a row had before it was rewritten: to be deleted.
const WAS: &str = "was";
/// Of how many parts.
const WAS_PARTS: &str = "was_parts";
/// What is known of a generation beside its text.
const FACTS: &str = "facts";
const SPANS: &str = "spans";
/// The id of a cancel request.
const REQUEST: &str = "request";
/// Milliseconds in the unit of `expires_at`.
pub(super) const MS_PER_SECOND: i64 = 1_000;

/// A text attribute.
pub(super) fn s(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

/// A number attribute.
pub(super) fn n(number: impl ToString) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// A row's text attribute.
pub(super) fn text<'a>(row: &'a Row, name: &str) -> Option<&'a str> {
    row.get(name)?.as_s().ok().map(String::as_str)
}

/// A row's number attribute.
pub(super) fn number<T: std::str::FromStr>(row: &Row, name: &str) -> Option<T> {
    row.get(name)?.as_n().ok()?.parse().ok()
}

/// A row's flag.
pub(super) fn flag(row: &Row, name: &str) -> bool {
    row.get(name).and_then(|value| value.as_bool().ok()).copied().unwrap_or_default()
}

/// `expires_at` of a moment: rounded up, so that nothing expires early.
pub(super) fn seconds(ms: i64) -> i64 {
    ms.div_euclid(MS_PER_SECOND) + i64::from(ms.rem_euclid(MS_PER_SECOND) > 0)
}

/// Whether a row still counts at `now_ms`; the TTL sweep may be two days late.
pub(super) fn is_live(row: &Row, now_ms: i64) -> bool {
    number::<i64>(row, EXPIRES_AT).is_none_or(|expires_at| expires_at >= now_ms.div_euclid(MS_PER_SECOND))
}

fn new_row(key: &Key) -> Row {
    key.attributes()
}

/// Puts `content` into the row, or its reference if it is large.
fn put_text(row: &mut Row, content: &str) {
    if content.len() <= INLINE_BYTES {
        row.insert(RAW.to_owned(), s(content));
    } else {
        let name = body_name(text(row, keys::PK).unwrap_or_default(), content);
        row.insert(BODY.to_owned(), s(name));
        row.insert(PARTS.to_owned(), n(part_count(content)));
    }
}

/// The name of a large text of the partition `pk`: its own and of nobody else, so that whoever erases the partition can
/// erase the text.
pub(super) fn body_name(pk: &str, content: &str) -> String {
    body_digest(&format!("{pk}\n{content}"))
}

/// A body in the list of its partition.
pub(super) fn listed_body_row(pk: &str, digest: &str, parts: usize) -> Row {
    let mut row = new_row(&keys::listed_body(pk, digest));
    row.insert(PARTS.to_owned(), n(parts));
    row
}

/// A row of that list as a body.
pub(super) fn read_listed_body(row: &Row) -> Option<BodyRef> {
    Some(BodyRef { digest: text(row, keys::SK)?.to_owned(), parts: number(row, PARTS)? })
}

/// A rewritten row that still names the body that it had: whoever finds it knows what is to be deleted.
pub(super) fn with_old_body(row: &Row, old: &BodyRef) -> Row {
    let mut row = row.clone();
    row.insert(WAS.to_owned(), s(&old.digest));
    row.insert(WAS_PARTS.to_owned(), n(old.parts));
    row
}

/// The body that a row had.
pub(super) fn old_body(row: &Row) -> Option<BodyRef> {
    Some(BodyRef { digest: text(row, WAS)?.to_owned(), parts: number(row, WAS_PARTS)? })
}

/// The row without that.
pub(super) fn without_old_body(row: &Row) -> Row {
    let mut row = row.clone();
    row.remove(WAS);
    row.remove(WAS_PARTS);
    row
}

/// A row with another text. Whatever else it holds stays.
pub(super) fn with_text(row: &Row, content: &str) -> Row {
    let mut row = row.clone();
    for name in [RAW, BODY, PARTS, EXCERPT, CHARS] {
        row.remove(name);
    }
    put_text(&mut row, content);
    if row.contains_key(KIND) {
        put_excerpt(&mut row, &ItemBody::parse(content), content.len());
    }
    row
}

fn put_excerpt(row: &mut Row, body: &ItemBody, bytes: usize) {
    if bytes > INLINE_BYTES
        && let Some((short, chars)) = excerpt_of(body)
    {
        row.insert(EXCERPT.to_owned(), s(short.to_raw()));
        row.insert(CHARS.to_owned(), n(chars));
    }
}

/// What a log that was left inherits, as a row.
pub(super) fn base_row(thread: &ThreadId, epoch: Epoch, base: &[Span]) -> Row {
    let mut row = new_row(&keys::base(thread, epoch));
    // Our own types: string keys and numbers.
    row.insert(SPANS.to_owned(), s(serde_json::to_string(base).expect("bug: spans serialise")));
    row
}

/// A row as what a log inherits.
pub(super) fn read_base(row: &Row) -> Option<Vec<Span>> {
    serde_json::from_str(text(row, SPANS)?).ok()
}

/// That a thread inherits of another one's logs, as a row.
pub(super) fn heir_row(thread: &ThreadId, heir: &ThreadId) -> Row {
    let mut row = new_row(&keys::heir(thread, heir));
    row.insert(THREAD.to_owned(), s(heir.as_str()));
    row
}

/// That a thread has made a child, as a row.
pub(super) fn child_row(thread: &ThreadId, child: &ThreadId) -> Row {
    let mut row = new_row(&keys::child(thread, child));
    row.insert(THREAD.to_owned(), s(child.as_str()));
    row
}

/// That nobody may inherit of a thread's logs any more, as a row.
pub(super) fn erased_row(thread: &ThreadId) -> Row {
    new_row(&keys::erased(thread))
}

/// A row as a thread that inherits, or as a child.
pub(super) fn read_heir(row: &Row) -> Option<ThreadId> {
    text(row, THREAD).map(ThreadId::new)
}

/// The body that a row's text is in, if it is not in the row.
pub(super) fn body_ref(row: &Row) -> Option<BodyRef> {
    Some(BodyRef { digest: text(row, BODY)?.to_owned(), parts: number(row, PARTS)? })
}

/// A row's text, from the row or from `bodies`; none if neither has it.
pub(super) fn content<'a>(row: &'a Row, bodies: &'a Bodies) -> Option<&'a str> {
    text(row, RAW).or_else(|| bodies.get(text(row, BODY)?))
}

fn put_some(row: &mut Row, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        row.insert(name.to_owned(), s(value));
    }
}

/// An item as a row.
pub(super) fn item_row(thread: &ThreadId, epoch: Epoch, item: &Item) -> Row {
    let mut row = new_row(&keys::item(thread, epoch, item.seq));
    let facts = &item.facts;
    row.insert(KIND.to_owned(), s(item.body.kind()));
    put_text(&mut row, &item.raw);
    put_excerpt(&mut row, &item.body, item.raw.len());
    put_some(&mut row, DEDUP, facts.dedup.as_ref().map(DedupId::as_str));
    put_some(&mut row, CAUSE, facts.cause.as_ref().map(MessageId::as_str));
    put_some(&mut row, TURN_ID, facts.turn_id.as_ref().map(ItemId::as_str));
    put_some(&mut row, USER, facts.user.as_deref());
    row.insert(TURN.to_owned(), n(facts.turn));
    row.insert(OPENS_TURN.to_owned(), AttributeValue::Bool(facts.opens_turn));
    row.insert(CREATED_AT.to_owned(), n(facts.created_at_ms));
    row.insert(EST.to_owned(), n(facts.est_tokens));
    put_some(&mut row, LEFT_OUT, facts.left_out.map(LeftOut::tag));
    if !facts.extra.is_empty() {
        // A map that was parsed.
        row.insert(
            EXTRA.to_owned(),
            s(serde_json::to_string(&facts.extra).expect("bug: a JSON map serialises")),
        );
    }
    row
}

/// The facts of an item's row that only a newer version knows: attributes of its own, and what a snapshot brought.
pub(super) fn extra_facts(row: &Row) -> Extra {
    let mut extra: Extra =
        text(row, EXTRA).and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
    for (name, value) in row.iter().filter(|(name, _)| !ITEM_ATTRIBUTES.contains(&name.as_str())) {
        let value = match value {
            AttributeValue::S(text) => Some(text.as_str().into()),
            AttributeValue::Bool(flag) => Some((*flag).into()),
            AttributeValue::N(number) => serde_json::from_str(number).ok(),
            _ => None,
        };
        extra.extend(value.map(|value| (name.clone(), value)));
    }
    extra
}

/// A row as an item; of unknown kind if its text is nowhere.
pub(super) fn read_item(seq: Seq, row: &Row, bodies: &Bodies) -> Item {
    let owned = |name| text(row, name).map(str::to_owned);
    let facts = ItemFacts {
        dedup: owned(DEDUP).map(DedupId::new),
        cause: owned(CAUSE).map(MessageId::new),
        turn: number(row, TURN).unwrap_or_default(),
        turn_id: owned(TURN_ID).map(ItemId::new),
        opens_turn: flag(row, OPENS_TURN),
        user: owned(USER),
        created_at_ms: number(row, CREATED_AT).unwrap_or_default(),
        est_tokens: number(row, EST).unwrap_or_default(),
        left_out: text(row, LEFT_OUT).map(LeftOut::from_tag),
        excerpt_of: None,
        extra: Extra::new(),
    };
    let whole = content(row, bodies);
    if let (None, Some((excerpt, chars))) = (whole, read_excerpt(row)) {
        return Item::stored(seq, excerpt, ItemFacts { excerpt_of: Some(chars), ..facts });
    }
    match whole {
        Some(raw) => Item::stored(seq, raw, facts),
        None => {
            let kind = match text(row, BODY) {
                Some(digest) => format!("unreadable: body {digest} is missing"),
                None => "unreadable: the row has no text".to_owned(),
            };
            Item { seq, body: ItemBody::Unknown { kind }, raw: "".into(), facts }
        }
    }
}

/// The short form of an item whose text is in rows of its own, and the characters of that.
fn read_excerpt(row: &Row) -> Option<(&str, usize)> {
    Some((text(row, EXCERPT)?, number(row, CHARS)?))
}

/// A generation as a row.
pub(super) fn generation_row(generation: &Generation) -> Row {
    let mut row = new_row(&keys::generation(&generation.at.id));
    // Our own type: string keys and finite numbers.
    row.insert(FACTS.to_owned(), s(serde_json::to_string(generation).expect("bug: a generation serialises")));
    put_text(&mut row, &generation.said());
    row
}

/// A row as a generation; none if it cannot be read any more: then the items count, which are all there.
pub(super) fn read_generation(row: &Row, bodies: &Bodies) -> Option<Generation> {
    let generation: Generation = serde_json::from_str(text(row, FACTS)?).ok()?;
    generation.saying(content(row, bodies)?)
}

/// Whether requests under `prune` hold less of the item than its excerpt does: its text need not be read.
pub(super) fn is_excerpted(row: &Row, prune: Prune) -> bool {
    let turn: u32 = number(row, TURN).unwrap_or_default();
    turn < prune.soft_before && read_excerpt(row).is_some()
}

/// Whether the item is a shared state: requests need the newest one alone.
pub(super) fn is_state(row: &Row) -> bool {
    text(row, KIND) == Some(STATE_KIND)
}

/// Whether the item can be read without its text.
pub(super) fn has_excerpt(row: &Row) -> bool {
    read_excerpt(row).is_some()
}

/// A dedup row.
pub(super) fn dedup_row(thread: &ThreadId, id: &DedupId, expiry_ms: Option<i64>) -> Row {
    let mut row = new_row(&keys::dedup(thread, id));
    row.insert(DEDUP.to_owned(), s(id.as_str()));
    if let Some(expiry) = expiry_ms {
        row.insert(EXPIRES_AT.to_owned(), n(seconds(expiry)));
    }
    row
}

/// A parked input as a row.
pub(super) fn parked_row(thread: &ThreadId, parked: &ParkedInput) -> Row {
    let mut row = new_row(&keys::parked(thread, &parked.key));
    row.insert(KEY.to_owned(), s(&parked.key));
    row.insert(DEDUP.to_owned(), s(parked.dedup.as_str()));
    row.insert(CAUSE.to_owned(), s(parked.cause.as_str()));
    put_text(&mut row, &parked.body);
    row
}

/// A row as a parked input. A damaged one has empty fields where its own are gone, so that it can still be
/// released.
pub(super) fn read_parked(row: &Row, bodies: &Bodies) -> ParkedInput {
    let own = |name| text(row, name).unwrap_or_default();
    let key = text(row, KEY).or_else(|| text(row, keys::SK)?.strip_prefix(keys::PARKED)).unwrap_or_default();
    ParkedInput {
        key: key.to_owned(),
        dedup: DedupId::new(own(DEDUP)),
        cause: MessageId::new(own(CAUSE)),
        body: content(row, bodies).unwrap_or_default().to_owned(),
    }
}

/// A choice as a row.
pub(super) fn choice_row(thread: &ThreadId, choice: &ChoiceRow) -> Row {
    let mut row = new_row(&keys::choice(thread, &choice.id));
    row.insert(CALL.to_owned(), s(choice.id.as_str()));
    put_text(&mut row, &choice.body);
    row
}

/// A row as a choice; none if its text is gone, for then nobody can answer it.
pub(super) fn read_choice(row: &Row, bodies: &Bodies) -> Option<ChoiceRow> {
    Some(ChoiceRow { id: CallId::new(text(row, CALL)?), body: content(row, bodies)?.to_owned() })
}

/// A cancel request as a row.
pub(super) fn stop_row(thread: &ThreadId, stop: &Stop) -> Row {
    let mut row = new_row(&keys::stop(thread));
    row.insert(LOG.to_owned(), n(stop.epoch));
    row.insert(HEAD.to_owned(), n(stop.head));
    row.insert(REQUEST.to_owned(), s(&stop.id));
    row
}

/// A row as a cancel request.
pub(super) fn read_stop(row: &Row) -> Option<Stop> {
    let (epoch, head) = (Epoch(number(row, LOG)?), Seq(number(row, HEAD)?));
    Some(Stop { epoch, head, id: text(row, REQUEST)?.to_owned() })
}

/// A row as a subscription.
pub(super) fn read_subscription(row: &Row) -> Option<Subscription> {
    Some(Subscription { call: CallId::new(text(row, CALL)?), active: flag(row, ACTIVE) })
}

/// A view as a row.
pub(super) fn view_row(thread: &ThreadId, view_type: &str, view: &str) -> Row {
    let mut row = new_row(&keys::view(thread, view_type));
    row.insert(VIEW_TYPE.to_owned(), s(view_type));
    put_text(&mut row, view);
    row
}

/// What a client brought to a run, as a row.
pub(super) fn run_row(thread: &ThreadId, run: &str, config: &str) -> Row {
    let mut row = new_row(&keys::run(thread, run));
    put_text(&mut row, config);
    row
}

/// What a slice shows of a run, as a row.
pub(super) fn run_events_row(thread: &ThreadId, run: &str, events: &RunEvents) -> Row {
    let mut row = new_row(&keys::run_events(thread, run, events.attempt, events.n));
    put_text(&mut row, &events.text);
    row
}

/// The type of a view's row.
pub(super) fn view_type(row: &Row) -> Option<&str> {
    text(row, VIEW_TYPE)
}

/// A manifest as a row.
pub(super) fn manifest_row(server: &str, manifest: &str, now_ms: i64) -> Row {
    let mut row = new_row(&keys::manifest(server));
    row.insert(SERVER.to_owned(), s(server));
    row.insert(STORED_AT.to_owned(), n(now_ms));
    put_text(&mut row, manifest);
    row
}

/// When a manifest or a dead letter was stored.
pub(super) fn stored_at(row: &Row) -> Option<i64> {
    number(row, STORED_AT)
}

/// A dead letter as a row.
pub(super) fn dead_letter_row(letter: &DeadLetter) -> Row {
    let DeadLetter { thread, message_id, reason, body, kept_at_ms } = letter;
    let mut row = new_row(&keys::dead_letter(thread, message_id));
    let (lpk, lsk) = keys::list_entry(List::DeadLetters, message_id.as_str(), *kept_at_ms);
    row.insert(LPK.to_owned(), s(lpk));
    row.insert(LSK.to_owned(), s(lsk));
    row.insert(THREAD.to_owned(), s(thread.as_str()));
    row.insert(CAUSE.to_owned(), s(message_id.as_str()));
    row.insert(REASON.to_owned(), s(reason));
    row.insert(STORED_AT.to_owned(), n(kept_at_ms));
    put_text(&mut row, body);
    row
}

/// A dead letter's row; one whose body is gone has an empty one.
pub(super) fn read_dead_letter(row: &Row, bodies: &Bodies) -> Option<DeadLetter> {
    Some(DeadLetter {
        thread: ThreadId::new(text(row, THREAD)?),
        message_id: MessageId::new(text(row, CAUSE)?),
        reason: text(row, REASON).unwrap_or_default().to_owned(),
        body: content(row, bodies).unwrap_or_default().to_owned(),
        kept_at_ms: stored_at(row).unwrap_or_default(),
    })
}

/// A part of a body as a row.
pub(super) fn body_row(digest: &str, part: usize, of: usize, piece: &str) -> Row {
    let mut row = new_row(&keys::body_part(digest, part));
    row.insert(RAW.to_owned(), s(piece));
    row.insert(PARTS.to_owned(), n(of));
    row
}

/// A part of a claim check as a row.
pub(super) fn claim_row(digest: &str, part: usize, of: usize, piece: &str, expiry_ms: i64) -> Row {
    let mut row = new_row(&keys::claim_part(digest, part));
    row.insert(RAW.to_owned(), s(piece));
    row.insert(PARTS.to_owned(), n(of));
    row.insert(EXPIRES_AT.to_owned(), n(seconds(expiry_ms)));
    row
}

/// The piece that a part's row holds, and of how many.
pub(super) fn piece(row: &Row) -> Option<(&str, usize)> {
    Some((text(row, RAW)?, number(row, PARTS)?))
}
