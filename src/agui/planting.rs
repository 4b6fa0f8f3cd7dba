//! A conversation that a client kept, as the items of one log, and its branches as pieces of that log. What two branches share
//! is in it once.

use super::convert::said;
use super::records::{Call, CallResult, Part, Record};
use super::repository::{ImportError, Kept, Repository};
use crate::history::MAX_CALLS;
use crate::message::{
    AssistantItem, CallId, ContentPart, Epoch, InterruptItem, Item, ItemBody, ItemFacts, ItemId, Outcome,
    Piece, RawJson, ReasoningItem, Seq, SettledBy, StateItem, ThreadId, ToolCallItem, ToolResultItem,
    UserItem,
};

/// Items of one import: as many as are read to find a client's branch again.
pub const MAX_ITEMS: usize = 20_000;
/// What imported answers name as their model. No model is called so: reasoning, which only its own model takes back and only
/// with its signature, is shown and never sent.
const IMPORTED: &str = "imported";
/// The log of a snapshot has one epoch.
const LOG_EPOCH: Epoch = Epoch(0);

/// A conversation, ready to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Planted {
    /// The items of the log, in order.
    pub items: Vec<Item>,
    /// Of each branch the pieces of the log that it is made of; the one to go on in last.
    pub branches: Vec<Vec<Piece>>,
    /// The epoch of the first of them.
    pub first: Epoch,
    /// The index of the next turn in the last one.
    pub next_turn: u32,
}

/// Where a message stands in the log, and in its turn.
#[derive(Clone, Debug)]
struct Place {
    piece: Piece,
    next_turn: u32,
    turn_id: Option<ItemId>,
}

impl Planted {
    /// What there is to it, beside when it was said: the same conversation has the same, however often it is planted.
    pub fn content(&self) -> String {
        let items: Vec<_> = self
            .items
            .iter()
            .map(|item| {
                (
                    &*item.raw,
                    item.facts.dedup.as_ref().map(|id| id.as_str()),
                    item.facts.turn,
                    &item.facts.user,
                )
            })
            .collect();
        serde_json::to_string(&(items, &self.branches, self.first)).expect("bug: texts and numbers serialise")
    }
}

impl Repository {
    /// The conversation as items of `log`, which gives its calls their ids; said on behalf of `user`.
    ///
    /// # Errors
    /// It has more than [`MAX_ITEMS`].
    pub fn plant(&self, log: &ThreadId, user: Option<&str>, now_ms: i64) -> Result<Planted, ImportError> {
        let mut bed = Bed { log, user, now_ms, items: Vec::new() };
        let mut places: Vec<Option<Place>> = vec![None; self.messages.len()];
        let mut branches = Vec::with_capacity(self.branches.len());
        let (mut next_turn, mut turn_id) = (0, None);
        for last in &self.branches {
            let path: Vec<usize> =
                std::iter::successors(Some(*last), |at| self.messages[*at].parent).collect();
            let mut before: Option<Place> = None;
            let mut pieces: Vec<Piece> = Vec::new();
            for at in path.into_iter().rev() {
                let place = match places[at].take() {
                    Some(place) => place,
                    None => bed.plant(&self.messages[at], before.as_ref()),
                };
                match pieces.last_mut().filter(|piece| piece.to == place.piece.from) {
                    Some(piece) => piece.to = place.piece.to,
                    None => pieces.push(place.piece),
                }
                if bed.items.len() > MAX_ITEMS {
                    return Err(ImportError::TooMany("items", MAX_ITEMS));
                }
                places[at] = Some(place.clone());
                before = Some(place);
            }
            (next_turn, turn_id) = before.map_or((0, None), |place| (place.next_turn, place.turn_id));
            branches.push(pieces);
        }
        if let (Some(state), Some(pieces)) = (&self.state, branches.last_mut()) {
            pieces.push(bed.share(state, next_turn, turn_id));
        }
        Ok(Planted { items: bed.items, branches, first: self.first, next_turn })
    }
}

/// The log as far as it is written.
struct Bed<'a> {
    log: &'a ThreadId,
    user: Option<&'a str>,
    now_ms: i64,
    items: Vec<Item>,
}

impl Bed<'_> {
    fn next(&self) -> Seq {
        Seq::FIRST.plus(self.items.len())
    }

    /// Writes one message behind the one before it.
    fn plant(&mut self, message: &Kept, before: Option<&Place>) -> Place {
        let from = Seq(self.items.len() as u64);
        let (mut next_turn, mut turn_id) =
            before.map_or((0, None), |place| (place.next_turn, place.turn_id.clone()));
        let is_user = matches!(message.record, Record::User(_));
        if is_user {
            turn_id = Some(ItemId::at(LOG_EPOCH, self.next()));
            next_turn += 1;
        }
        let bodies = match &message.record {
            Record::User(parts) => {
                let parts = parts.iter().filter(|part| !part.is_blank()).cloned().collect();
                vec![ItemBody::User(UserItem { parts, ..UserItem::default() })]
            }
            Record::Assistant(parts) => self.answer(parts),
            Record::Tool(_) | Record::Nothing => Vec::new(),
        };
        for (at, body) in bodies.into_iter().enumerate() {
            let facts = ItemFacts {
                // What it is known under to the client that kept it: the first item stands for the message.
                dedup: (at == 0 && !message.id.is_empty()).then(|| said(LOG_EPOCH, &message.id)),
                turn: next_turn.saturating_sub(1),
                turn_id: turn_id.clone(),
                opens_turn: is_user,
                user: self.user.map(str::to_owned),
                created_at_ms: message.created_at_ms.unwrap_or(self.now_ms),
                ..ItemFacts::default()
            };
            self.items.push(Item::fresh(self.next(), body, facts));
        }
        Place { piece: Piece { from, to: Seq(self.items.len() as u64) }, next_turn, turn_id }
    }

    /// Writes what is shared behind everything else.
    fn share(&mut self, state: &RawJson, next_turn: u32, turn_id: Option<ItemId>) -> Piece {
        let from = Seq(self.items.len() as u64);
        let facts = ItemFacts {
            turn: next_turn.saturating_sub(1),
            turn_id,
            user: self.user.map(str::to_owned),
            created_at_ms: self.now_ms,
            ..ItemFacts::default()
        };
        let body = ItemBody::State(StateItem { state: state.clone() });
        self.items.push(Item::fresh(self.next(), body, facts));
        Piece { from, to: from.plus(1) }
    }

    /// What a model said. Calls that follow each other are one step, and their results stand behind it.
    fn answer(&self, parts: &[Part]) -> Vec<ItemBody> {
        let mut bodies = Vec::with_capacity(parts.len());
        let mut step: Vec<(CallId, &Call)> = Vec::new();
        for part in parts {
            let is_call = matches!(part, Part::Call(_));
            if !is_call || step.len() == MAX_CALLS {
                settle(&mut bodies, &mut step);
            }
            bodies.push(match part {
                Part::Reasoning(text) => ItemBody::Reasoning(ReasoningItem {
                    model: IMPORTED.to_owned(),
                    text: text.clone(),
                    signature: None,
                    provider: None,
                }),
                Part::Text(text) => ItemBody::Assistant(AssistantItem {
                    text: text.clone(),
                    model: IMPORTED.to_owned(),
                    stop_reason: None,
                }),
                Part::Call(call) => {
                    let call_id = CallId::mint(self.log, LOG_EPOCH, self.next().plus(bodies.len()));
                    step.push((call_id.clone(), call));
                    ItemBody::ToolCall(ToolCallItem {
                        call_id,
                        provider_id: call.id.clone(),
                        name: call.name.clone(),
                        arguments: call.arguments.clone(),
                        signature: None,
                        model: IMPORTED.to_owned(),
                    })
                }
            });
        }
        settle(&mut bodies, &mut step);
        bodies
    }
}

/// The results of a step. Nobody works on a call that has none: it is cut short, as by a user who goes on.
fn settle(bodies: &mut Vec<ItemBody>, step: &mut Vec<(CallId, &Call)>) {
    bodies.extend(step.drain(..).map(|(call_id, call)| match &call.result {
        None => ItemBody::Interrupt(InterruptItem { call_id }),
        Some(CallResult { text, failed }) => ItemBody::ToolResult(ToolResultItem {
            call_id,
            outcome: if *failed { Outcome::Error } else { Outcome::Ok },
            parts: vec![ContentPart::text(text)],
            settled_by: SettledBy::Tool,
            display_as: None,
        }),
    }));
}
