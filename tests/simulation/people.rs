//! Who sends: people, producers that send again or send rubbish, and the tools' answers that are due.

use dormouse::message::{Compact, DedupId, ImageData, InputContent, InputMessage, RawJson, ThreadId};

use crate::driver::Loop;
use crate::plan::Schedule;
use crate::queue::Window;
use crate::sent::Kind;
use crate::sim::Later;

/// Repeats of a phrase in the longest text.
const LONGEST: usize = 500;

impl Loop<'_> {
    /// A person writes, or somebody sends what is none of a person's text.
    pub fn person(&mut self, thread: &ThreadId) {
        let people = &mut self.people;
        let resends = self.world.with(|sim| people.chance(sim.plan.resend));
        if resends && let Some(n) = self.world.with(|sim| sim.sent.len().checked_sub(1)) {
            let n = people.below(n + 1);
            return self.world.with(|sim| {
                let Some((group, dedup, body)) = sim.sent.nth(n) else { return };
                let (group, dedup, body) = (group.clone(), dedup.clone(), body.to_owned());
                sim.stats.duplicates += 1;
                let Some(kind) = sim.sent.get(&group, &dedup).cloned() else { return };
                sim.send_body(&group, &dedup, body, kind, Window::Passed);
            });
        }
        if self.world.with(|sim| people.chance(sim.plan.junk)) {
            self.texts += 1;
            let dedup = DedupId::new(format!("junk-{}", self.texts));
            let elsewhere = InputMessage::user_text(ThreadId::from("elsewhere"), "hi").to_body().unwrap();
            let body = ["no json", "{}", &elsewhere, r#"{"content":{"type":"new"},"group_id":"t0"}"#];
            let body = body[people.below(body.len())].to_owned();
            return self.world.with(|sim| sim.send_body(thread, &dedup, body, Kind::Junk, Window::Kept));
        }
        let asks = self.world.with(|sim| sim.plan.window.is_some() && people.chance(sim.plan.compact));
        if asks {
            self.texts += 1;
            let content = InputContent::Compact(Compact { manual: people.chance(700), focus: None });
            let message = InputMessage::plain(thread.clone(), content);
            let dedup = DedupId::new(format!("compact-{}", self.texts));
            return self.world.with(|sim| sim.send(&message, &dedup, Kind::of(&message), Window::Kept));
        }
        let kind = people.below(100);
        self.text(thread, ["hello", "go on", "what now"][kind % 3]);
    }

    pub fn text(&mut self, thread: &ThreadId, text: &str) {
        self.texts += 1;
        let order = self.texts;
        let token = format!("text-{order}.");
        let odd = self.people.below(100);
        let content = match odd {
            0 | 1 if self.texts_left > 0 => InputContent::Text(" \n".to_owned()),
            2 | 3 => InputContent::Image {
                data: ImageData::Url(format!("https://image.example/{token}")),
                media_type: Some("png".to_owned()),
            },
            _ => match self.world.with(|sim| sim.plan.window) {
                // Long enough for a few of them to fill a window.
                Some(_) => {
                    let rest = "and so it goes on. ".repeat(self.people.below(LONGEST));
                    InputContent::Text(format!("{text} {token} {rest}"))
                }
                None => InputContent::Text(format!("{text} {token}")),
            },
        };
        let image = matches!(content, InputContent::Image { .. });
        let mut refusable = matches!(&content, InputContent::Text(text) if text.trim().is_empty());
        let mut message = InputMessage::plain(thread.clone(), content);
        if odd == 4 && self.texts_left > 0 {
            refusable = true;
            message.metadata = RawJson::parse(r#"{"agent":"nobody"}"#).ok();
        } else if odd.is_multiple_of(3) {
            message.metadata = RawJson::parse(r#"{"user_id":"u-1"}"#).ok();
        }
        let dedup = DedupId::new(format!("d-{order}"));
        let token = if image { String::new() } else { token };
        let kind = Kind::Text { order, token, refusable };
        self.world.with(|sim| sim.send(&message, &dedup, kind, Window::Kept));
    }

    pub fn later(&mut self) {
        let people = &mut self.people;
        self.world.with(|sim| {
            let n = match sim.plan.schedule {
                Schedule::Orderly => people.below(sim.later.len()),
                Schedule::Free => sim.rng.below(sim.later.len()),
            };
            let Later { message, dedup, window } = sim.later.remove(n);
            sim.send(&message, &dedup, Kind::of(&message), window);
        });
    }
}
