//! A tool server's manifest, and the arguments of a call behind a zero byte: what is accepted is a set of tools that
//! every provider takes, and no schema makes the check of arguments fail otherwise than with a reason.
#![no_main]

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use dormouse::config::{Config, ToolServerConfig};
use dormouse::history::request::{ModelRequest, RequestMessage};
use dormouse::message::ContentPart;
use dormouse::model::genai::fuzzing::{bodies, wire_name};
use dormouse::rap::discovery::{MAX_TOOLS, check};
use dormouse::tools::{Execution, Invocation, Registry, Tool, ToolDefinition, ToolError, Waiting};
use libfuzzer_sys::fuzz_target;

/// What a model may call a tool with, beside what the input says.
const ARGUMENTS: [&str; 4] = ["", "{}", r#"{"a":1.5,"b":[{},null,"x"],"c":{"a":{"a":{}}}}"#, "[]"];

fuzz_target!(|data: &[u8]| {
    let (manifest, arguments) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &b"{}"[..]),
    };
    let config = Config { allow_http_hosts: vec!["tool.example".to_owned()], ..Config::default() };
    let settings = ToolServerConfig::default();
    let Ok(set) = check(&config, "srv", &settings, &String::from_utf8_lossy(manifest)) else { return };
    assert!(set.endpoint.scheme() == "https" || set.endpoint.host_str() == Some("tool.example"));
    assert!((1..=MAX_TOOLS).contains(&set.tools.len()));
    let (mut names, mut wire_names) = (BTreeSet::new(), BTreeSet::new());
    for tool in &set.tools {
        assert!(is_name(&tool.name, 128), "{:?}", tool.name);
        let wire = wire_name(&tool.name);
        assert!(
            is_name(&wire, 64) && !wire.starts_with(|c: char| c.is_ascii_digit() || c == '-'),
            "{wire:?}"
        );
        assert!(names.insert(&tool.name) && wire_names.insert(wire), "{:?} is there twice", tool.name);
        assert!(tool.description.chars().count() <= 4_096);
        assert_eq!(tool.input_schema["type"], "object", "providers want it spelled out");
    }
    let registry =
        Registry::new(set.tools.iter().map(|tool| Arc::new(Offered(tool.clone())) as Arc<dyn Tool>));
    assert_eq!(registry.definitions().len(), set.tools.len());
    let arguments = String::from_utf8_lossy(arguments);
    for tool in &set.tools {
        for arguments in ARGUMENTS.into_iter().chain([&*arguments]) {
            if let Err(why) = registry.check_arguments(&tool.name, arguments) {
                assert!(why.to_string().chars().count() <= 1_000);
            }
        }
    }
    let messages = vec![RequestMessage::User(vec![ContentPart::text("hi")])];
    bodies(&ModelRequest { messages, tools: set.tools, ..ModelRequest::default() }, false);
});

/// Letters, digits, `_` and `-`, as OpenAI, Anthropic and Bedrock have it.
fn is_name(name: &str, longest: usize) -> bool {
    (1..=longest).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

struct Offered(ToolDefinition);

#[async_trait]
impl Tool for Offered {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }

    fn execution(&self) -> Execution {
        Execution::Asynchronous(Waiting::Active)
    }

    async fn execute(&self, _call: &Invocation) -> Result<(), ToolError> {
        Ok(())
    }
}
