//! Generations: summaries that stand for the older part of a thread's view. A generation is a row beside the items, which
//! stay as they are (I8); META points at the newest one. What a compaction changes is written beside the slices' commits,
//! attribute by attribute, so that neither overwrites the other.

use serde::{Deserialize, Serialize};

use super::{Meta, Span};
use crate::message::{Epoch, RawJson, Seq, ThreadId};
use crate::model::{Mechanism, Usage};

/// A place in a log. Everything before a log's first item is fixed by the log, so a place names a whole prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Whose log.
    pub thread: ThreadId,
    /// Which log.
    pub epoch: Epoch,
    /// The item.
    pub seq: Seq,
}

/// The name of a generation: numbered in each log, never twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GenerationId {
    /// The thread in whose log it is kept.
    pub thread: ThreadId,
    /// The log.
    pub epoch: Epoch,
    /// From 1.
    pub number: u32,
}

/// What META says of the newest generation: enough to read the rest of the view at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// Which.
    pub id: GenerationId,
    /// The last item that it stands for.
    pub through: Position,
    /// The opener of the turn in which it ends, which is shown all the same (C21).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opener: Option<Position>,
}

/// A generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// Its name and place.
    pub at: Pointer,
    /// The summary.
    #[serde(skip)]
    pub text: String,
    /// Names the input that it was made of: how a writer knows its own row again.
    pub digest: String,
    /// The one that it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<GenerationId>,
    /// System entries that it stands for: they stay in the system prompt.
    #[serde(skip)]
    pub system: Vec<String>,
    /// Standing instructions that it stands for: they are shown in front of it.
    #[serde(skip)]
    pub instructions: Vec<String>,
    /// Who wrote it.
    pub model: String,
    /// A step was too large to be read whole.
    #[serde(default)]
    pub partial: bool,
    /// Estimated tokens of what it stands for, an earlier summary included.
    pub source_tokens: u64,
    /// Milliseconds since the epoch.
    pub created_at_ms: i64,
    /// What a provider has made of the same items. A version that does not know it reads the summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Native>,
}

/// A provider's own checkpoint of what a generation stands for. It goes back on the route that it came by and no other;
/// everywhere else the summary is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Native {
    /// How it was made.
    pub mechanism: Mechanism,
    /// The identity of the route.
    pub route: String,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Of the summary's text and the items: with others (redaction) it is none any more.
    pub digest: String,
    /// As the provider gave them.
    #[serde(skip)]
    pub items: Vec<RawJson>,
}

impl Native {
    /// A checkpoint of items that `text` tells of as well.
    pub fn new(
        mechanism: Mechanism,
        route: String,
        usage: Option<Usage>,
        text: &str,
        items: Vec<RawJson>,
    ) -> Self {
        let digest = Self::digest_of(text, &items);
        Self { mechanism, route, usage, digest, items }
    }

    fn digest_of(text: &str, items: &[RawJson]) -> String {
        let items: Vec<&str> = items.iter().map(RawJson::get).collect();
        super::body_digest(&format!("{text}\n{}", items.join("\n")))
    }
}

/// What a generation says, as one text: what redaction looks through.
#[derive(Serialize, Deserialize)]
struct Said {
    text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    system: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    instructions: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    native: Vec<RawJson>,
}

impl Generation {
    /// Everything that it says, as it is stored.
    pub fn said(&self) -> String {
        let (text, system) = (self.text.clone(), self.system.clone());
        let native = self.native.as_ref().map(|native| native.items.clone()).unwrap_or_default();
        let said = Said { text, system, instructions: self.instructions.clone(), native };
        serde_json::to_string(&said).expect("bug: strings serialise")
    }

    /// What it says without a checkpoint that nobody but its provider can read; none: there is none.
    pub fn without_sealed(said: &str) -> Option<String> {
        let said: Said = serde_json::from_str(said).ok()?;
        let is_sealed = |item: &RawJson| item.str_field("encrypted_content").is_some();
        let sealed = said.native.iter().any(is_sealed);
        sealed.then(|| serde_json::to_string(&Said { native: Vec::new(), ..said }).ok())?
    }

    /// The same with what it says; none if that is nothing (redaction has taken it): then the items count.
    pub fn saying(self, said: &str) -> Option<Self> {
        let Said { text, system, instructions, native: items } = serde_json::from_str(said).ok()?;
        let native = self
            .native
            .filter(|native| !items.is_empty() && native.digest == Native::digest_of(&text, &items))
            .map(|native| Native { items, ..native });
        (!crate::message::is_blank(&text)).then_some(Self { text, system, instructions, native, ..self })
    }
}

/// How the attempts to compact a thread went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionRun {
    /// Failed jobs since the last one that worked.
    #[serde(default)]
    pub attempts: u32,
    /// Nothing is tried before, milliseconds since the epoch.
    #[serde(default)]
    pub next_try_at_ms: i64,
    /// Why the last one failed; no content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The models and windows that they were made with: with others the count begins anew.
    #[serde(default)]
    pub profile: String,
    /// The generation whose checkpoint its provider has refused: it is not sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead: Option<GenerationId>,
}

/// What META knows of compaction; slices do not write it, but for a rewind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionState {
    /// The newest generation that the thread's spans allow.
    pub newest: Option<Pointer>,
    /// The number of the last generation of the current log.
    pub last: u32,
    /// Attempts.
    pub run: CompactionRun,
}

/// One change of a thread's compaction: a generation with META's pointer to it, or attempts alone. It moves neither the head
/// nor the token: the thread may go on meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionCommit {
    /// The thread; it must exist and be open.
    pub thread: ThreadId,
    /// The log that was read.
    pub epoch: Epoch,
    /// The last number that was read.
    pub last: u32,
    /// The next generation.
    pub generation: Option<Generation>,
    /// Attempts afterwards.
    pub run: CompactionRun,
}

/// How a compaction's commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// It is durable.
    Done,
    /// The thread is another one by now: rewound, closed, gone, or compacted by somebody else.
    Lost,
}

impl Meta {
    /// The pieces of logs of the thread's view, oldest first.
    pub fn spans(&self) -> Vec<Span> {
        let to = Seq(self.head.0.saturating_sub(1));
        let own = Span { thread: self.thread.clone(), epoch: self.epoch, from: Seq(0), to };
        self.base.iter().cloned().chain([own]).collect()
    }
}

/// How many items of `spans` a position covers, and what is left behind it; none if it is in none of them.
pub fn behind(spans: &[Span], through: &Position) -> Option<(usize, Vec<Span>)> {
    let mut covered = 0;
    for (at, span) in spans.iter().enumerate() {
        let is_of = span.thread == through.thread && span.epoch == through.epoch;
        if is_of && through.seq > span.from && through.seq <= span.to {
            let within = through.seq.0.saturating_sub(span.from.0);
            let rest = Span { from: through.seq, ..span.clone() };
            let rest = std::iter::once(rest).chain(spans[at + 1..].iter().cloned());
            return Some((covered + usize::try_from(within).ok()?, rest.collect()));
        }
        covered += usize::try_from(span.to.0.saturating_sub(span.from.0)).ok()?;
    }
    None
}

/// The position of the item at `index` of `spans`.
pub fn position(spans: &[Span], index: usize) -> Option<Position> {
    let mut left = index as u64;
    for span in spans {
        let length = span.to.0.saturating_sub(span.from.0);
        if left < length {
            let seq = Seq(span.from.0.saturating_add(left).saturating_add(1));
            return Some(Position { thread: span.thread.clone(), epoch: span.epoch, seq });
        }
        left -= length;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c14_a_position_counts_only_where_a_span_holds_it() {
        let span = |thread: &str, epoch, to| Span {
            thread: ThreadId::from(thread),
            epoch: Epoch(epoch),
            from: Seq(0),
            to: Seq(to),
        };
        let spans = [span("p", 0, 5), span("c", 0, 3)];
        let at = |thread: &str, epoch, seq| Position {
            thread: ThreadId::from(thread),
            epoch: Epoch(epoch),
            seq: Seq(seq),
        };
        let (covered, rest) = behind(&spans, &at("c", 0, 2)).unwrap();
        assert_eq!((covered, rest), (7, vec![Span { from: Seq(2), ..span("c", 0, 3) }]));
        assert_eq!(behind(&spans, &at("p", 0, 5)).unwrap().0, 5);
        for none in [at("p", 0, 6), at("p", 1, 2), at("x", 0, 1), at("p", 0, 0)] {
            assert_eq!(behind(&spans, &none), None, "{none:?}");
        }
        for index in 0..8 {
            let position = position(&spans, index).unwrap();
            assert_eq!(behind(&spans, &position).unwrap().0, index + 1);
        }
        assert_eq!(position(&spans, 8), None);
    }
}
