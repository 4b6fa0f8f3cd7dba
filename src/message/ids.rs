//! Ids and positions as newtypes. Every id dormouse mints derives from its cause (I2), so minting it twice
//! gives the same id; nothing here reads a clock or a random source.

use std::fmt;

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Characters of base32 that a derived id keeps: 26 are 130 bits.
const DERIVED_CHARS: usize = 26;
/// Characters of base32 in a call id (60 bits, beside epoch and seq in clear).
const CALL_HASH_CHARS: usize = 12;

/// Ends the id of a question that dormouse itself asks of a call; no call's own id ends so.
const PERMISSION: &str = "-permission";
/// Ends the id of a request for consent at an address, which a call makes of the user.
const AUTHORIZATION: &str = "-oauth";

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps text that already is such an id.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
    };
}

text_id!(
    /// One conversation, root or child: the `group_id` of its messages.
    ThreadId
);
text_id!(
    /// A tool call's identity, minted by dormouse; unique over all threads.
    CallId
);
text_id!(
    /// The id under which an input is processed at most once.
    DedupId
);
text_id!(
    /// The SQS message id of an input: the *cause* of what it brings about.
    MessageId
);
text_id!(
    /// The id of an item for clients: `i{epoch}-{seq}`, unique within its thread.
    ItemId
);

/// An item's position in its log, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Default for Seq {
    fn default() -> Self {
        Self::FIRST
    }
}

impl Seq {
    /// The first position of a log.
    pub const FIRST: Seq = Seq(1);

    /// The position `n` places on; saturates.
    pub fn plus(self, n: usize) -> Self {
        Self(self.0.saturating_add(n as u64))
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A log of a thread: 0 at first, one more for each rewind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u32);

impl Epoch {
    /// Whether it is the one that threads begin with.
    pub fn is_first(&self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Hashes parts unambiguously (each with its length) and returns base32 in lower case.
fn digest(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    BASE32_NOPAD.encode(&hash.finalize()).to_ascii_lowercase()
}

impl CallId {
    /// The id of the call stored at `(thread, epoch, seq)`: `c{epoch}-{seq}-` and 12 base32 characters.
    ///
    /// Fits every provider's alphabet (`[A-Za-z0-9_-]`) and length (at most 64).
    pub fn mint(thread: &ThreadId, epoch: Epoch, seq: Seq) -> Self {
        let hash =
            digest(&[b"call", thread.as_str().as_bytes(), &epoch.0.to_be_bytes(), &seq.0.to_be_bytes()]);
        Self(format!("c{epoch}-{seq}-{}", &hash[..CALL_HASH_CHARS]))
    }
}

impl CallId {
    /// Where the call is stored, as its id says; none for one that dormouse has not minted.
    pub fn place(&self) -> Option<(Epoch, Seq)> {
        let mut parts = self.0.strip_prefix('c')?.splitn(3, '-');
        let epoch = parts.next()?.parse().ok().map(Epoch)?;
        Some((epoch, Seq(parts.next()?.parse().ok()?)))
    }

    /// The id of the question whether the call may run: not its own, under which its tool may ask something else.
    pub fn permission(&self) -> Self {
        Self(format!("{}{PERMISSION}", self.0))
    }

    /// The id of the request for consent at an address: its tool may ask something else besides.
    pub fn authorization(&self) -> Self {
        Self(format!("{}{AUTHORIZATION}", self.0))
    }

    /// The call that a question belongs to.
    pub fn of_choice(choice: &Self) -> Self {
        let ends = [PERMISSION, AUTHORIZATION];
        let call = ends.iter().find_map(|end| choice.0.strip_suffix(end));
        Self(call.unwrap_or(&choice.0).to_owned())
    }
}

impl ThreadId {
    /// The child that `cause` (a call, or an event's dedup id) makes of `parent`: `th-` and 26 base32 characters.
    pub fn child(parent: &Self, cause: &str) -> Self {
        let hash = digest(&[b"child", parent.as_str().as_bytes(), cause.as_bytes()]);
        Self(format!("th-{}", &hash[..DERIVED_CHARS]))
    }
}

impl DedupId {
    /// A dedup id that names its cause: `{kind}-` and 26 base32 characters of the parts' digest.
    ///
    /// Always within SQS's 128 characters and its alphabet, whatever the parts hold (D17).
    pub fn derive(kind: &str, parts: &[&str]) -> Self {
        let mut all: Vec<&[u8]> = vec![kind.as_bytes()];
        all.extend(parts.iter().map(|part| part.as_bytes()));
        Self(format!("{kind}-{}", &digest(&all)[..DERIVED_CHARS]))
    }
}

impl DedupId {
    /// Whether it was derived for `kind`.
    pub fn is_of_kind(&self, kind: &str) -> bool {
        self.0.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-'))
    }
}

impl ItemId {
    /// The client-facing id of the item at `(epoch, seq)`.
    pub fn at(epoch: Epoch, seq: Seq) -> Self {
        Self(format!("i{epoch}-{seq}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_id_depends_on_thread_epoch_and_seq_and_on_nothing_else() {
        let id = |t: &str, e, s| CallId::mint(&ThreadId::from(t), Epoch(e), Seq(s));
        assert_eq!(id("a", 0, 1), id("a", 0, 1));
        let all = [id("a", 0, 1), id("b", 0, 1), id("a", 1, 1), id("a", 0, 2)];
        for (i, x) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|y| y != x));
        }
        assert!(id("a", 0, 1).as_str().starts_with("c0-1-"));
        assert!(CallId::mint(&ThreadId::from("x"), Epoch(u32::MAX), Seq(u64::MAX)).as_str().len() <= 64);
    }

    #[test]
    fn derived_dedup_ids_do_not_meet_across_part_borders() {
        assert_ne!(DedupId::derive("k", &["ab", "c"]), DedupId::derive("k", &["a", "bc"]));
        assert!(DedupId::derive("dispatch-failed", &["x".repeat(5000).as_str()]).as_str().len() <= 128);
    }
}
