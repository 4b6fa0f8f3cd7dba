//! Images: which are stored, which give way when a request has no room for them, and which a provider refuses.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dormouse::history::image_room::{MAX_REQUEST_BYTES, RefusedImages};
use dormouse::history::request::ModelRequest;
use dormouse::history::rewind::RewindKind;
use dormouse::message::{ImageData, InputContent, InputMessage, RewindTarget};
use support::say::thread as name;

use super::*;

/// Images give way above this.
const TRIGGER: usize = MAX_REQUEST_BYTES - 3 * 1024 * 1024;

/// A picture of so many characters of base64, like no other of another shade.
fn picture(shade: u8, chars: usize) -> ContentPart {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0".to_vec();
    png.resize(chars / 4 * 3, shade);
    let data = ImageData::Base64(STANDARD.encode(png));
    ContentPart::Image { data, media_type: Some("png".into()) }
}

fn says_parts(parts: Vec<ContentPart>) -> InputMessage {
    InputMessage::plain(name(), InputContent::Parts(parts))
}

fn result_parts(call: &CallId, parts: Vec<ContentPart>) -> InputMessage {
    InputMessage::tool_result(name(), call.clone(), parts)
}

impl Thread {
    /// The next request, which the judge is not asked of: megabytes take it long.
    fn large_request(&self) -> ModelRequest {
        self.history.render_history(&options()).unwrap().request
    }

    /// Images give way where they must; says whether they did.
    fn makes_room(&mut self, most: Option<usize>) -> bool {
        let request = self.large_request();
        self.history.make_room_for_images(&request, most)
    }

    /// What the next request holds: `.` for an image, else the text.
    fn shows(&self) -> Vec<String> {
        let each = |part: &ContentPart| match part {
            ContentPart::Text(text) => text.clone(),
            ContentPart::Image { .. } => ".".to_owned(),
            ContentPart::Unknown(_) => "?".to_owned(),
        };
        let messages = self.large_request().messages;
        let parts = messages.iter().flat_map(|message| match message {
            RequestMessage::User(parts) => parts.clone(),
            RequestMessage::Assistant(_) => Vec::new(),
            RequestMessage::ToolResults(results) => results.iter().flat_map(|r| r.parts.clone()).collect(),
        });
        parts.map(|part| each(&part)).collect()
    }
}

/// A user's message with two images, a result with three, and a last message with one.
fn six_images() -> Thread {
    let mut thread = Thread::new();
    thread.arrives(&says_parts(vec![ContentPart::text("look"), picture(1, 400), picture(2, 400)]));
    let made = thread.model(&[calls("p", "f", "{}")]);
    let shown = vec![picture(3, 400), ContentPart::text("seen"), picture(4, 400), picture(5, 400)];
    thread.arrives(&result_parts(&made[0], shown));
    thread.model(&[says("ok")]);
    thread.arrives(&says_parts(vec![picture(6, 400)]));
    thread
}

const USER: &str = wording::IMAGE_EVICTED;
const RESULT: &str = wording::RESULT_IMAGES_EVICTED;

#[test]
fn images_ingress_a_broken_image_is_stored_as_a_note_whichever_way_it_comes() {
    let odd = || ContentPart::Image { data: ImageData::Base64("iVBORw0KGgo=".into()), media_type: None };
    let mut thread = Thread::new();
    thread.arrives(&says_parts(vec![odd(), picture(1, 400)]));
    let made = thread.model(&[calls("p", "f", "{}"), calls("q", "g", "{}")]);
    thread.arrives(&result_parts(&made[0], vec![odd()]));
    thread.sync();
    thread.crashes();
    thread.arrives(&result_parts(&made[1], vec![ContentPart::text("fine")]));
    thread.model(&[says("ok")]);
    let notes = thread.rows.items.iter().flat_map(|item| item.body.parts());
    let notes = notes.filter(|part| **part == ContentPart::text(wording::IMAGE_UNUSABLE)).count();
    assert_eq!(notes, 2, "one of the text, one of the result that was parked");
    assert!(thread.rows.items.iter().all(|item| !item.raw.contains("iVBORw0KGgo=\"")));
    // A row of an older time keeps what it holds; the request does not.
    let thread = Thread::with_rows(vec![ItemBody::User(UserItem {
        parts: vec![ContentPart::text("old"), odd()],
        ..UserItem::default()
    })]);
    assert_eq!(thread.shows(), ["old", wording::IMAGE_UNUSABLE]);
    assert_eq!(thread.rows.items[0].body.parts()[1], odd());
}

#[test]
fn images_budget_body_size_is_exact_with_escapes_and_the_limit_itself_is_still_within() {
    let mut thread = Thread::new();
    let big = 4 * 1024 * 1024;
    thread.arrives(&says_parts((1..=4).map(|shade| picture(shade, big)).collect()));
    answer(&mut thread.history, &[says("ok")]);
    thread.ends();
    // A character that is six bytes in JSON, and filler up to the limit.
    thread.arrives(&user(&format!("\u{1}{}", "x".repeat(1_000))));
    let bytes = thread.large_request().bytes();
    let filler = TRIGGER - bytes;
    let with = |filler: usize| {
        let mut thread = Thread { rows: thread.rows.clone(), history: thread.rows.load(), sent: 9 };
        thread.arrives(&user(&format!("\u{1}{}{}", "x".repeat(1_000), "y".repeat(filler))));
        thread
    };
    let mut full = with(filler);
    assert_eq!(full.large_request().bytes(), TRIGGER);
    assert!(!full.makes_room(None), "the limit is within");
    let mut over = with(filler + 1);
    assert!(over.makes_room(None));
    let after = over.large_request().bytes();
    assert!(after <= MAX_REQUEST_BYTES / 2, "{after}");
    assert_eq!(over.shows()[..4], [USER, USER, ".", "."], "the oldest, and no more than needed");
    assert!(!over.makes_room(None), "once");
}

#[test]
fn images_budget_counts_tools_and_evicts_on_the_request_copy_only() {
    let mut thread = Thread::new();
    thread.arrives(&says_parts((1..=4).map(|shade| picture(shade, 4 * 1024 * 1024)).collect()));
    let mut request = thread.large_request();
    assert!(!thread.history.make_room_for_images(&request, None));
    request.tools.push(dormouse::history::request::ToolDefinition {
        name: "f".into(),
        description: "x".repeat(2 * 1024 * 1024),
        input_schema: serde_json::json!({}),
    });
    assert!(thread.history.make_room_for_images(&request, None));
    answer(&mut thread.history, &[says("ok")]);
    thread.ends();
    let stored = thread.rows.items[0].body.parts();
    assert!(stored.iter().all(|part| matches!(part, ContentPart::Image { .. })), "I8");
}

#[test]
fn images_eviction_is_oldest_first_of_users_and_results_alike_with_one_note_for_a_result() {
    let mut thread = six_images();
    assert_eq!(thread.shows(), ["look", ".", ".", ".", "seen", ".", ".", "."]);
    assert!(!thread.makes_room(Some(6)), "the limit is within");
    // Down to three quarters: four of five.
    assert!(thread.makes_room(Some(5)));
    assert_eq!(thread.shows(), ["look", USER, USER, ".", "seen", ".", ".", "."]);
    assert!(thread.makes_room(Some(3)));
    assert_eq!(thread.shows(), ["look", USER, USER, RESULT, "seen", ".", ".", "."]);
    assert!(thread.makes_room(Some(2)));
    assert_eq!(thread.shows(), ["look", USER, USER, RESULT, "seen", ".", "."]);
    assert!(thread.makes_room(Some(1)), "the last image of a result");
    assert_eq!(thread.shows(), ["look", USER, USER, RESULT, "seen", "."]);
}

#[test]
fn images_eviction_is_stable_between_batches_and_over_a_restart() {
    let mut thread = six_images();
    assert!(thread.makes_room(Some(5)));
    let shown = thread.shows();
    thread.model(&[says("ok")]);
    assert_eq!(thread.rows.meta.images_out, *thread.history.images_out());
    assert_eq!(thread.shows()[..shown.len()], shown, "from the store");
    // Two more: no batch until there are more than five again, and the same bytes at the front.
    thread.arrives(&says_parts(vec![picture(7, 400)]));
    assert!(!thread.makes_room(Some(5)));
    assert_eq!(thread.shows()[..shown.len()], shown);
    thread.model(&[says("ok")]);
    thread.arrives(&says_parts(vec![picture(8, 400)]));
    assert!(thread.makes_room(Some(5)), "a batch");
    assert_eq!(thread.shows()[..7], ["look", USER, USER, RESULT, "seen", ".", "."]);
    thread.arrives(&says_parts(vec![picture(1, 400)]));
    assert_eq!(thread.shows().last().unwrap(), ".", "an evicted image that is sent again is seen again");
}

#[test]
fn images_refused_one_candidate_is_remembered_and_stays_out_wherever_it_stands() {
    let mut thread = Thread::new();
    thread.arrives(&says_parts(vec![ContentPart::text("look"), picture(1, 400)]));
    thread.model(&[says("ok")]);
    thread.arrives(&says_parts(vec![ContentPart::text("and"), picture(2, 400)]));
    assert!(thread.history.set_images_aside());
    // Only what is new can be the reason; the other one was answered once.
    assert_eq!(thread.shows(), ["look", ".", "and", wording::IMAGE_REFUSED]);
    assert_eq!(thread.history.settle_images_aside(), Some(RefusedImages::One));
    assert_eq!(thread.history.settle_images_aside(), None);
    thread.model(&[says("ok")]);
    thread.arrives(&says_parts(vec![picture(2, 400), picture(3, 400)]));
    assert_eq!(thread.shows()[2..], ["and", wording::IMAGE_REFUSED, wording::IMAGE_REFUSED, "."]);
    let ItemBody::User(stored) = &thread.rows.items[2].body else { panic!() };
    assert_eq!(stored.parts[1], picture(2, 400), "I8");
}

#[test]
fn images_refused_of_two_none_is_remembered_and_of_a_failed_retry_none_either() {
    let mut thread = six_images();
    thread.arrives(&says_parts(vec![picture(7, 400)]));
    assert!(thread.history.set_images_aside());
    assert_eq!(thread.history.settle_images_aside(), Some(RefusedImages::Several));
    assert!(thread.history.images_out().refused.is_empty());
    assert_eq!(thread.shows()[7..], [wording::IMAGE_REFUSED, wording::IMAGE_REFUSED], "for this slice");
    thread.model(&[says("ok")]);
    assert_eq!(thread.shows()[7..9], [".", "."], "all are kept");
    // Nothing is new: each of them may be the reason, for another provider.
    thread.arrives(&user("go on"));
    assert!(thread.history.set_images_aside());
    assert!(!thread.shows().contains(&".".to_owned()));
    assert!(thread.history.take_images_back());
    assert!(!thread.history.take_images_back());
    assert_eq!(thread.history.settle_images_aside(), None);
    assert_eq!(thread.shows().iter().filter(|shown| *shown == ".").count(), 7);
}

#[test]
fn images_eviction_ends_with_the_turns_that_a_rewind_hides() {
    let mut thread = six_images();
    thread.model(&[says("ok")]);
    thread.arrives(&says_parts(vec![picture(7, 400)]));
    assert!(thread.makes_room(Some(1)));
    thread.model(&[says("ok")]);
    let before = thread.history.images_out().clone();
    let plan = thread.history.plan_rewind(&RewindTarget::Turn(1), None, RewindKind::Hide).unwrap();
    thread.history.rewind(&plan, &arrival(90, "rewind"));
    assert!(thread.history.images_out().before < before.before + u64::from(before.nth));
    // What comes in the place of an image that was out is no image that was out.
    thread.arrives(&says_parts(vec![picture(8, 400)]));
    assert_eq!(thread.shows(), ["look", USER, USER, RESULT, "seen", "."]);
}
