//! Room for images: a request may have only so many bytes and, at some providers, so many images. Beyond that the oldest
//! ones give way, and an image that the provider refuses is left out. Nothing stored changes (I8): what is out is an
//! overlay on META, a boundary that only moves forward, in batches that free much at once, so that between two of them
//! every request begins with the same bytes.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::request::ModelRequest;
use super::{History, image, wording};
use crate::message::{ContentPart, ImageData, ItemBody};
use crate::store::ImagesOut;

/// The most that a request's body may have: 20 MiB are what Gemini and Bedrock take, the others take more.
pub const MAX_REQUEST_BYTES: usize = 20 * 1024 * 1024;
/// What is left free of it: for what adapters add, and for an answer to a long result.
const HEADROOM: usize = 3 * 1024 * 1024;
/// Images give way above this,
const HIGH: usize = MAX_REQUEST_BYTES - HEADROOM;
/// and down to this.
const LOW: usize = MAX_REQUEST_BYTES / 2;
/// Refused images that META remembers. One that is forgotten is refused, and remembered, once more.
const MAX_REFUSED: usize = 32;

const _: () = assert!(LOW < HIGH);

/// What a refusal led to, once the request without images was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedImages {
    /// It was this one: it stays out.
    One,
    /// It was one of several, so all of them stay.
    Several,
}

impl History {
    /// The overlay, as the next commit writes it.
    pub fn images_out(&self) -> &ImagesOut {
        &self.images_out
    }

    /// How many items stand before the first uncommitted one, from the beginning of the thread's oldest span.
    fn committed_end(&self) -> u64 {
        let own = self.head.0.saturating_sub(1);
        // Stored numbers: they may say anything.
        self.base.iter().fold(own, |sum, span| sum.saturating_add(span.to.0.saturating_sub(span.from.0)))
    }

    /// After a rewind nothing is out that is no longer there.
    pub(super) fn clamp_images(&mut self) {
        let end = (self.committed_end(), 0);
        let out = &mut self.images_out;
        if (out.before, out.nth) > end {
            (out.before, out.nth) = end;
        }
    }

    /// The position of an item, by its index among the committed ones and the drafts behind them. Positions are counted from the
    /// end: what is loaded may begin later than the spans do.
    pub(super) fn position(&self, at: usize) -> u64 {
        let first = self.committed_end().saturating_sub(self.committed.len() as u64);
        first.saturating_add(at as u64)
    }

    /// An item at its position, without the images that are out.
    pub(super) fn without_images<'a>(&self, position: u64, body: Cow<'a, ItemBody>) -> Cow<'a, ItemBody> {
        let (before, nth) = (self.images_out.before, self.images_out.nth);
        let evicted = |at: u32| (position, at) < (before, nth);
        if !images(&body).any(|(at, data)| evicted(at) || self.is_refused(data)) {
            return body;
        }
        let mut at = 0;
        let mut noted = false;
        let mut parts = Vec::with_capacity(body.parts().len());
        for part in body.parts() {
            let ContentPart::Image { data, .. } = part else {
                parts.push(part.clone());
                continue;
            };
            match (evicted(at), &*body) {
                (true, ItemBody::User(_)) => parts.push(ContentPart::text(wording::IMAGE_EVICTED)),
                (true, _) if noted => {}
                (true, _) => {
                    noted = true;
                    parts.push(ContentPart::text(wording::RESULT_IMAGES_EVICTED));
                }
                (false, _) if self.is_refused(data) => parts.push(ContentPart::text(wording::IMAGE_REFUSED)),
                (false, _) => parts.push(part.clone()),
            }
            at += 1;
        }
        Cow::Owned(body.into_owned().with_parts(parts))
    }

    fn is_refused(&self, data: &ImageData) -> bool {
        if self.images_out.refused.is_empty() && self.images_aside.is_empty() {
            return false;
        }
        let digest = image::digest(data);
        self.images_aside.contains(&digest) || self.images_out.refused.contains(&digest)
    }

    /// The images that a request holds, oldest first.
    fn shown_images(&self) -> Vec<Shown<'_>> {
        let committed = self.committed.iter().map(|item| {
            // A shortened result has notes for its images already.
            let pruned =
                matches!(item.body, ItemBody::ToolResult(_)) && item.facts.turn < self.prune.soft_before;
            (&item.body, item.facts.left_out.is_none() && !pruned)
        });
        let drafts = self.safe.iter().chain(&self.unvalidated);
        let drafts = drafts.map(|draft| (&draft.body, draft.left_out.is_none()));
        let mut shown = Vec::new();
        for (at, (body, visible)) in committed.chain(drafts).enumerate() {
            let position = self.position(at);
            let images = images(body).map(|(nth, data)| Shown { position, nth, data });
            shown.extend(images.filter(|image| visible && self.is_shown(image)));
        }
        shown
    }

    fn is_shown(&self, image: &Shown<'_>) -> bool {
        let room = (image.position, image.nth) >= (self.images_out.before, self.images_out.nth);
        room && !self.is_refused(image.data) && image::is_acceptable(image.data)
    }

    /// Lets the oldest images give way if `request`, which was rendered of this history, is too large or holds more
    /// than `most` of them; says whether it did. The request is to be rendered again then.
    pub fn make_room_for_images(&mut self, request: &ModelRequest, most: Option<usize>) -> bool {
        let mut count = request.images();
        // Without images nothing can give way: what is too large is for the provider to say.
        if count == 0 {
            return false;
        }
        let mut bytes = request.bytes();
        let most = most.unwrap_or(usize::MAX);
        if bytes <= HIGH && count <= most {
            return false;
        }
        let goal_bytes = if bytes > HIGH { LOW } else { usize::MAX };
        let goal_count = if count > most { most - most / 4 } else { usize::MAX };
        let mut reached: Option<(u64, u32)> = None;
        for image in self.shown_images() {
            if bytes <= goal_bytes && count <= goal_count {
                break;
            }
            bytes = bytes.saturating_sub(image.data.as_str().len());
            count = count.saturating_sub(1);
            reached = reached.max(Some((image.position, image.nth.saturating_add(1))));
        }
        let Some(reached) = reached else { return false };
        (self.images_out.before, self.images_out.nth) = reached;
        // Reasoning is bound to what it followed (C33).
        self.prune.since_turn = self.prune.since_turn.max(self.current_turn());
        true
    }

    /// The provider has refused a request: leaves out the images that it may have been for, and says whether there are
    /// any. Those of new inputs, which no answer has proven; without such ones all.
    pub fn set_images_aside(&mut self) -> bool {
        let images = self.shown_images();
        let new = self.committed_end().saturating_add(self.safe.len() as u64);
        let of_new = images.iter().filter(|image| image.position >= new);
        let suspects: BTreeSet<String> = of_new.map(|image| image::digest(image.data)).collect();
        self.images_aside = match suspects.is_empty() {
            true => images.iter().map(|image| image::digest(image.data)).collect(),
            false => suspects,
        };
        !self.images_aside.is_empty()
    }

    /// The request without images was refused as well, so it was not for them: they are back. Says whether they were out.
    pub fn take_images_back(&mut self) -> bool {
        !std::mem::take(&mut self.images_aside).is_empty()
    }

    /// The request without images was answered: if it was one image, it stays out. None if no images were set aside.
    pub fn settle_images_aside(&mut self) -> Option<RefusedImages> {
        match self.images_aside.len() {
            0 => None,
            1 => {
                let refused = &mut self.images_out.refused;
                refused.extend(std::mem::take(&mut self.images_aside));
                refused.drain(..refused.len().saturating_sub(MAX_REFUSED));
                Some(RefusedImages::One)
            }
            _ => Some(RefusedImages::Several),
        }
    }
}

/// The images of an item, numbered.
fn images(body: &ItemBody) -> impl Iterator<Item = (u32, &ImageData)> {
    let images = body.parts().iter().filter_map(|part| match part {
        ContentPart::Image { data, .. } => Some(data),
        ContentPart::Text(_) | ContentPart::Unknown(_) => None,
    });
    (0..).zip(images)
}

/// An image that a request holds.
struct Shown<'a> {
    position: u64,
    /// Which image of its item.
    nth: u32,
    data: &'a ImageData,
}
