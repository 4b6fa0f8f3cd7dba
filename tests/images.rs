//! A provider that refuses an image, through whole slices: the request is tried once more without, and the thread never
//! gets stuck on it (I7).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/world.rs"]
mod world;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dormouse::history::request::ModelRequest;
use dormouse::message::{ContentPart, ImageData, InputContent, InputMessage};
use dormouse::model::ModelInfo;
use dormouse::model::scripted::{ScriptedErrorClass, ScriptedEvent, ScriptedModel};
use world::{Delivery, THREAD, World};

fn picture(shade: u8) -> ContentPart {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0".to_vec();
    png.push(shade);
    ContentPart::Image { data: ImageData::Base64(STANDARD.encode(png)), media_type: Some("png".into()) }
}

fn fails(class: ScriptedErrorClass) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::error(class, "no")]
}

fn text(text: &str) -> Vec<ScriptedEvent> {
    vec![ScriptedEvent::Text(text.into())]
}

fn world(responses: Vec<Vec<ScriptedEvent>>) -> World {
    seeing(responses, ModelInfo { image_input: true, ..ModelInfo::default() })
}

fn seeing(responses: Vec<Vec<ScriptedEvent>>, info: ModelInfo) -> World {
    World::new(ScriptedModel::script(responses).with_info(info))
}

fn says(world: &World, parts: Vec<ContentPart>) -> Delivery {
    world.message(&InputMessage::plain(THREAD.into(), InputContent::Parts(parts)))
}

fn images(requests: &[ModelRequest]) -> Vec<usize> {
    requests.iter().map(ModelRequest::images).collect()
}

#[tokio::test]
async fn refused_image_one_candidate_is_stored_and_stays_out() {
    let world =
        world(vec![text("seen"), fails(ScriptedErrorClass::Refused), text("without it"), text("and so on")]);
    world.done(&says(&world, vec![ContentPart::text("one"), picture(1)])).await;
    world.done(&says(&world, vec![ContentPart::text("two"), picture(2)])).await;
    assert_eq!(world.meta().await.images_out.refused.len(), 1);
    let told = world.output.texts();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told.iter().any(|text| text.contains("refuses an image")), "{told:?}");
    world.done(&world.user("three")).await;
    // The other image is seen all along, the refused one by nobody again.
    assert_eq!(images(&world.model.requests()), [1, 2, 1, 1]);
    assert_eq!(
        world.story().await[2..],
        ["user: two", "assistant: without it", "user: three", "assistant: and so on"]
    );
    let stored = &world.items().await[2].body;
    assert_eq!(stored.parts()[1], picture(2), "I8");
}

#[tokio::test]
async fn refused_image_two_candidates_are_not_stored_and_the_error_is_shown() {
    let world = world(vec![
        fails(ScriptedErrorClass::Refused),
        vec![ScriptedEvent::call("p", "add", "{}")],
        text("without them"),
        fails(ScriptedErrorClass::Refused),
        text("without them again"),
    ]);
    world.done(&says(&world, vec![ContentPart::text("one"), picture(1), picture(2)])).await;
    assert!(world.meta().await.images_out.refused.is_empty());
    assert!(world.meta().await.usage.is_none(), "what was counted is another view");
    let told = world.output.texts();
    assert_eq!(told.iter().filter(|text| text.contains("refuses an image")).count(), 1, "{told:?}");
    world.done(&world.user("two")).await;
    assert_eq!(
        images(&world.model.requests()),
        [2, 0, 0, 2, 0],
        "a slice goes on without, the next one tries"
    );
    assert_eq!(world.story().await.last().unwrap(), "assistant: without them again");
}

#[tokio::test]
async fn refused_image_a_failed_retry_stores_nothing_and_the_message_is_left_out() {
    let world =
        world(vec![fails(ScriptedErrorClass::Refused), fails(ScriptedErrorClass::Refused), text("fine")]);
    world.done(&says(&world, vec![ContentPart::text("bad words"), picture(1)])).await;
    assert_eq!(world.meta().await.images_out, dormouse::store::ImagesOut::default());
    assert!(world.output.texts()[0].contains("refused the request"), "{:?}", world.output.texts());
    world.done(&world.user("good words")).await;
    let requests = world.model.requests();
    assert_eq!(images(&requests), [1, 0, 0]);
    assert!(!format!("{:?}", requests[2]).contains("bad words"));
}

#[tokio::test]
async fn refused_image_other_errors_strip_nothing_and_a_request_without_images_is_not_repeated() {
    for class in [ScriptedErrorClass::Transient, ScriptedErrorClass::Overflow, ScriptedErrorClass::Fatal] {
        let world = world(vec![fails(class), text("seen"), text("seen")]);
        world.deliver(&[says(&world, vec![ContentPart::text("one"), picture(1)])]).await;
        world.done(&world.user("two")).await;
        assert_eq!(world.meta().await.images_out, dormouse::store::ImagesOut::default(), "{class:?}");
    }
    // A model that takes none has been sent none.
    let blind = seeing(vec![fails(ScriptedErrorClass::Refused), text("fine")], ModelInfo::default());
    blind.done(&says(&blind, vec![ContentPart::text("one"), picture(1)])).await;
    assert_eq!(blind.model.requests().len(), 1);
}

#[tokio::test]
async fn images_beyond_a_models_number_give_way_and_stay_away() {
    let info = ModelInfo { image_input: true, max_images: Some(2), ..ModelInfo::default() };
    let world = seeing((0..4).map(|_| text("seen")).collect(), info);
    for shade in 0..4 {
        world.done(&says(&world, vec![ContentPart::text("look"), picture(shade)])).await;
    }
    let requests = world.model.requests();
    assert_eq!(images(&requests), [1, 2, 2, 2]);
    let out = world.meta().await.images_out;
    assert_eq!((out.before, out.nth), (2, 1), "up to the first image of the third item");
    assert_eq!(requests[3].messages[..2], requests[2].messages[..2], "what gave way does not come back");
}
