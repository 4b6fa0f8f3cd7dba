//! The `dormouse` command as a person and a script use it: the real binary, real HTTP, no key.

#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "support/command.rs"]
mod command;

use std::process::Stdio;

use command::Home;
use dormouse::config::{
    AgentConfig, Config, McpServerConfig, ModelConfig, ToolServerConfig, WebhookSecretConfig,
};
use serde_json::Value;

#[test]
fn one_answer_through_a_real_tool_call_and_its_callback_without_any_key() {
    let home = Home::new();
    let ran = home.run(&["chat", r#"call srv_echo {"a":1}"#]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "result: {\"a\":1}\n"), "{ran:?}");
    assert!(
        ran.stderr.contains("→ srv_echo {\"a\":1}") && ran.stderr.contains("← srv_echo {\"a\":1}"),
        "{ran:?}"
    );
    assert_eq!(home.ok(&["chat", "say", "hello"]), "hello");
    assert_eq!(
        home.ok(&["chat", r#"both srv_echo {"a":1} srv_slow {"ms":300}"#]),
        r#"result: {"a":1}, {"ms":300}"#
    );

    let page = home.ok(&["show", "main"]);
    for line in [
        "call srv_echo {\"a\":1}",
        "calls   srv_echo {\"a\":1}",
        "            {\"a\":1}",
        "agent   result: {\"a\":1}",
    ] {
        assert!(page.contains(line), "{line:?} in\n{page}");
    }
    let table = home.ok(&["threads"]);
    let cells: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((cells[0], cells[1], &cells[4..]), ("main", "default", &["12", "0", "asleep"][..]), "{table}");
}

#[test]
fn only_the_text_behind_the_last_tool_is_the_answer() {
    let home = Home::new();
    let ran = home.run(&["chat", r#"look srv_echo {"sun":1}"#, "--thread", "t1"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "it is {\"sun\":1}\n"), "{ran:?}");
    assert!(ran.stderr.contains("let me look"), "{ran:?}");
}

#[test]
fn lines_of_a_pipe_are_answered_one_by_one_without_prompts() {
    let home = Home::new();
    let script = home.path("lines");
    std::fs::write(&script, "say one\n\nfail broken\ncall srv_echo [1]\nseen").unwrap();
    let mut command = home.command(&["chat"]);
    command.stdin(std::fs::File::open(script).unwrap());
    let ran = home.run_command(command);
    let answers: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(answers.len(), 3, "{ran:?}");
    assert_eq!(answers[0], "one");
    assert!(answers[2].starts_with("seen: say one|"), "{ran:?}");
    assert_eq!(ran.code, Some(1), "one line failed");
    assert!(ran.stderr.contains("broken") && !ran.stderr.contains("> "), "{ran:?}");
}

#[test]
fn a_failed_answer_is_said_and_the_thread_goes_on() {
    let home = Home::new();
    assert_eq!(home.ok(&["chat", "say first"]), "first");
    let ran = home.run(&["chat", "fail all is broken"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert_eq!(ran.stderr.trim_end(), "dormouse: The model's provider refused the request: all is broken");
    assert!(home.ok(&["chat", "seen"]).starts_with("seen: say first|"));
}

#[test]
fn a_model_that_cannot_be_used_is_said_before_anything_is_stored_and_another_one_goes_on() {
    let home = Home::new();
    assert_eq!(home.ok(&["chat", "say first"]), "first");
    for (model, says) in [
        ("gpt", "there is no model \"gpt\"; write scripted, provider::model"),
        ("nobody::x", "\"nobody\" is not known; known: scripted, openai"),
        ("openai::gpt-x", "set OPENAI_API_KEY"),
        ("anthropic::claude-x", "set ANTHROPIC_API_KEY"),
    ] {
        let ran = home.run(&["--model", model, "chat", "say second"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.starts_with("dormouse: ") && ran.stderr.contains(says), "{ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    }
    assert_eq!(home.ok(&["--model", "scripted", "chat", "seen"]), "seen: say first");
}

#[test]
fn a_provider_that_refuses_the_key_ends_the_answer_and_not_the_thread() {
    let home = Home::new();
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/", refusing.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in refusing.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 65_536]);
            let body =
                r#"{"error":{"message":"bad key","type":"invalid_request_error","code":"invalid_api_key"}}"#;
            let _ = write!(
                stream,
                "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    let mut command = home.command(&["chat", "say hello"]);
    command
        .env("DORMOUSE_MODEL", "openai::gpt-x")
        .env("DORMOUSE_MODEL_BASE_URL", url)
        .env("OPENAI_API_KEY", "k");
    let ran = home.run_command(command);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("The model cannot be used"), "{ran:?}");
    assert_eq!(home.ok(&["chat", "seen"]), "seen: say hello");
}

#[test]
fn what_is_wrong_on_the_command_line_is_one_clear_line() {
    let home = Home::new();
    std::fs::write(home.path("bad.toml"), "[agents.a]\nmodle = 'x'").unwrap();
    for (args, says) in [
        (&["chat", "  \n "][..], "the text is empty"),
        (&["send", ""], "the text is empty"),
        (&["chat", "hi", "--thread", "a b"], "the thread \"a b\" is not of 1 to 128"),
        (&["--config", "none.toml", "chat", "hi"], "there is no configuration file none.toml"),
        (&["--config", "bad.toml", "chat", "hi"], "modle"),
    ] {
        let ran = home.run(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(says) && ran.stderr.lines().count() == 1, "{args:?} {ran:?}");
    }
    assert!(!home.path(".dormouse").exists(), "nothing was made for a command that did not run");
    let ran = home.run(&["show", "nobody"]);
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (Some(1), "dormouse: there is no thread nobody in .dormouse\n")
    );
    let ran = home.run(&["threads"]);
    assert!(ran.code == Some(0) && ran.stdout.is_empty() && ran.stderr.contains("no threads"), "{ran:?}");
}

#[test]
fn an_answer_that_is_late_is_a_failure_that_loses_nothing() {
    let home = Home::new();
    let ran = home.run(&["chat", r#"call srv_slow {"ms":600000}"#, "--timeout", "2s"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("no answer within 2 s; the thread waits for srv_slow"), "{ran:?}");
    let page = home.ok(&["show"]);
    assert!(page.contains("… no result yet") && page.contains("Waits for srv_slow."), "{page}");
    assert_eq!(home.ok(&["chat", "say onwards"]), "onwards", "a new text interrupts the call");
    assert!(home.ok(&["show"]).contains("interrupted by the user"));
}

#[test]
fn a_second_process_is_told_whose_directory_it_is_and_show_threads_and_send_use_the_first() {
    let home = Home::new();
    let serving = home.serve(&[]);
    for name in ["http", "sqs", "dynamodb", "input_queue", "output_queue", "dead_letter_queue", "table"] {
        assert!(serving.endpoints[name].is_string(), "{name} in {}", serving.endpoints);
    }
    let ran = home.run(&["chat", "say no"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(".dormouse is in use by another dormouse"), "{ran:?}");

    let sent = home.run(&["send", "say hi", "--thread", "t1"]);
    assert!(
        sent.stdout.starts_with("t1 cli-") && sent.stderr.contains("the running dormouse answers"),
        "{sent:?}"
    );
    let items = home.items_when("t1", |items| items.len() == 2);
    assert_eq!(items, ["user: say hi", "assistant: hi"]);
    assert!(home.ok(&["threads"]).contains("t1"));
    assert!(serving.terminate().success(), "SIGTERM is no failure");
    assert_eq!(home.ok(&["chat", "seen", "--thread", "t1"]), "seen: say hi");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let home = Home::new();
    home.ok(&["chat", &format!("say {}", "long ".repeat(20_000))]);
    let mut child = home.command(&["show"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn the_example_configuration_is_valid_and_shows_every_field() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/dormouse.example.toml");
    let text = std::fs::read_to_string(example).unwrap();
    Config::load(Some(example.as_ref())).unwrap();

    // With every optional line taken in it is valid as well.
    let is_optional = |line: &str| {
        line.strip_prefix('#').is_some_and(|rest| {
            rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(name, _)| !name.contains(' '))
        })
    };
    let all: Vec<&str> = text.lines().map(|line| if is_optional(line) { &line[1..] } else { line }).collect();
    let home = Home::new();
    std::fs::write(home.path("all.toml"), all.join("\n")).unwrap();
    let config = Config::load(Some(&home.path("all.toml"))).unwrap();
    assert!(config.models.contains_key("claude") && config.tool_servers.contains_key("weather"));
    assert!(config.webhook_secrets.contains_key("github"));
    assert!(config.mcp_servers.contains_key("docs") && config.mcp_servers.contains_key("files"));

    let mut every = Config::default();
    every.agents.insert("default".into(), AgentConfig::default());
    every.models.insert("claude".into(), ModelConfig::default());
    every.tool_servers.insert("weather".into(), ToolServerConfig::default());
    every.mcp_servers.insert("docs".into(), McpServerConfig::default());
    every.webhook_secrets.insert("github".into(), WebhookSecretConfig::default());
    every.aws.scheduler = config.aws.scheduler;
    let every = serde_json::to_value(every).unwrap();
    let mut missing = Vec::new();
    let mut look_for = |fields: &Value| {
        for (name, value) in fields.as_object().unwrap() {
            if !value.is_object() && !all.iter().any(|line| line.starts_with(&format!("{name} = "))) {
                missing.push(name.clone());
            }
        }
    };
    look_for(&every);
    for table in [
        &every["agents"]["default"],
        &every["agents"]["default"]["compaction"],
        &every["models"]["claude"],
        &every["tool_servers"]["weather"],
        &every["mcp_servers"]["docs"],
        &every["webhook_secrets"]["github"],
        &every["aws"],
        &every["aws"]["scheduler"],
    ] {
        look_for(table);
    }
    assert_eq!(missing, Vec::<String>::new(), "fields that the example does not show");
}

#[test]
fn a_call_that_waits_is_listed_and_settled_by_hand() {
    let home = Home::new();
    let _serving = home.serve(&[]);
    home.ok(&["send", r#"call srv_slow {"ms":50000}"#, "-t", "t1"]);
    home.items_when("t1", |items| items.len() == 2);
    assert_eq!(home.ok(&["pending"]), "", "nothing has waited for an hour");
    let table = home.ok(&["pending", "--older", "0s"]);
    let cells: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(&cells[1..3], ["t1", "srv_slow"], "{table}");
    for wrong in [&["pending", "-t", "t1", "--settle", "c-none"][..], &["pending", "resend", "t1", "c-none"]]
    {
        let ran = home.run(wrong);
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
    let resent = home.ok(&["pending", "resend", "t1", cells[0]]);
    assert_eq!(resent, format!("{} t1 is sent again", cells[0]));
    let settled = home.ok(&["pending", "-t", "t1", "--settle", cells[0], "--reason", "it is gone"]);
    assert_eq!(settled, format!("{} t1 settled", cells[0]));
    let items = home.items_when("t1", |items| items.len() == 4);
    assert_eq!(items[2..], ["tool_result: Error: it is gone", "assistant: result: Error: it is gone"]);
    assert_eq!(home.ok(&["pending", "--older", "0s"]), "");
}

#[test]
fn a_conversation_is_rewound_after_it_was_shown_forked_and_closed() {
    let home = Home::new();
    let _serving = home.serve(&[]);
    for (items_then, text) in [(2, "say one"), (4, "say two")] {
        home.ok(&["send", text, "-t", "t1"]);
        home.items_when("t1", |items| items.len() == items_then);
    }
    let asked = home.run(&["rewind", "t1"]);
    assert_eq!(asked.code, Some(2), "without --yes a script changes nothing: {asked:?}");
    assert!(asked.stderr.contains("turn 1: say two"), "{asked:?}");
    home.ok(&["fork", "t1", "t2"]);
    home.items_when("t2", |items| items.len() == 4);
    home.ok(&["rewind", "t1", "--say", "say deux", "--yes"]);
    let items = home.items_when("t1", |items| items.last().is_some_and(|last| last.contains("deux")));
    assert_eq!(items, ["user: say one", "assistant: one", "user: say deux", "assistant: deux"]);
    home.ok(&["send", "seen", "-t", "t2"]);
    let items = home.items_when("t2", |items| items.len() == 6);
    assert_eq!(items[5], "assistant: seen: say one|say two", "the fork goes its own way");
    for wrong in
        [&["rewind", "t1", "--turn", "9"][..], &["rewind", "t9"], &["fork", "t1", "t2"], &["close", "t9"]]
    {
        assert_eq!(home.run(wrong).code, Some(2), "{wrong:?}");
    }
    home.ok(&["close", "t1"]);
    for _ in 0..100 {
        if home.ok(&["threads"]).contains("closed") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("the thread is not closed");
}

#[test]
fn a_conversation_is_exported_imported_redacted_and_deleted() {
    let home = Home::new();
    let serving = home.serve(&[]);
    home.ok(&["send", "say hunter2", "-t", "t1"]);
    home.items_when("t1", |items| items.len() == 2);
    let document = home.ok(&["export", "t1"]);
    let file = home.path("t1.json");
    std::fs::write(&file, &document).unwrap();
    home.ok(&["import", file.to_str().unwrap(), "t2"]);
    home.items_when("t2", |items| items.len() == 2);
    home.ok(&["send", "seen", "-t", "t2"]);
    let items = home.items_when("t2", |items| items.len() == 4);
    assert_eq!(items[3], "assistant: seen: say hunter2");

    let asked = home.run(&["redact", "t1", "--text", "hunter2"]);
    assert_eq!(asked.code, Some(2), "without --yes a script changes nothing: {asked:?}");
    assert_eq!(home.ok(&["redact", "t1", "--text", "hunter2", "--yes"]), "2 stored text(s) changed");
    assert!(!home.ok(&["export", "t1"]).contains("hunter2"));
    for wrong in [
        &["export", "t9"][..],
        &["export", "t1", "--epoch", "4"],
        &["import", file.to_str().unwrap(), "t1"],
        &["import", "/nowhere.json", "t3"],
        &["import", "Cargo.toml", "t3"],
        &["redact", "t1"],
        &["redact", "t1", "--text", "x", "--yes"],
        &["redact", "t1", "--item", "i7-7", "--yes"],
        &["delete"],
        &["delete", "t1", "--yes"],
    ] {
        assert_eq!(home.run(wrong).code, Some(2), "{wrong:?}");
    }
    home.ok(&["close", "t1"]);
    for _ in 0..100 {
        if home.ok(&["threads"]).contains("closed") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(home.ok(&["delete", "--idle", "1d", "--yes"]), "", "it was used just now");
    assert_eq!(home.ok(&["delete", "t1", "--yes"]), "t1 deleted");
    drop(serving);
    assert!(!home.ok(&["threads"]).contains("t1"));
    assert!(home.ok(&["show", "t2"]).contains("hunter2"), "an import has items of its own");
}

#[test]
fn compact_summarises_what_is_older_and_show_tells_the_summaries_and_what_failed() {
    let home = Home::new();
    let config = r#"
        [models.default]
        provider = "scripted"
        context_window = 20000
        [models.writer]
        provider = "scripted"
        script = "writer.jsonl"
        context_window = 100000
        [agents.default.compaction]
        model = "writer"
    "#;
    std::fs::write(home.path("dormouse.toml"), config).unwrap();
    let summary = format!("Goal: to see it work. {}", "It went on. ".repeat(60));
    let script = [
        serde_json::json!([{ "error": { "class": "refused", "message": "no" } }]),
        // The model that it falls back to is the agent's own, which only echoes.
        serde_json::json!([{ "text": summary }]),
    ];
    std::fs::write(home.path("writer.jsonl"), script.map(|line| line.to_string()).join("\n")).unwrap();
    let _serving = home.serve(&[]);
    assert_eq!(home.run(&["compact", "t1"]).code, Some(2), "there is no such thread");
    assert_eq!(home.run(&["show", "t1", "--generations"]).code, Some(1));
    for n in 0..8 {
        home.ok(&["send", &format!("say {n} {}", "on and ".repeat(250)), "-t", "t1"]);
        home.items_when("t1", |items| items.len() == 2 * (n + 1));
    }
    assert!(
        home.ok(&["show", "t1", "--generations"]).contains("Nothing of this conversation is summarised.")
    );

    let told = |enough: &dyn Fn(&Value) -> bool| {
        let started = std::time::Instant::now();
        loop {
            let told: Value =
                serde_json::from_str(&home.ok(&["show", "t1", "--generations", "--json"])).unwrap();
            if enough(&told) {
                return told;
            }
            assert!(started.elapsed() < command::LIMIT, "{told:#}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    };
    home.ok(&["compact", "t1"]);
    let failed = told(&|told| told["attempts"]["attempts"] == 1);
    assert_eq!(failed["generations"], serde_json::json!([]));
    let page = home.ok(&["show", "t1", "--generations"]);
    assert!(page.contains("The last 1 attempt(s) at a summary failed"), "{page}");

    home.ok(&["compact", "t1", "--focus", "the numbers"]);
    let made = told(&|told| told["generations"].as_array().is_some_and(|made| made.len() == 1));
    assert_eq!(made["attempts"]["attempts"], 0);
    assert_eq!(made["generations"][0]["text"], summary.trim());
    let page = home.ok(&["show", "t1", "--generations"]);
    assert!(
        page.starts_with("generation 1 of log 0, up to item ") && page.contains("Goal: to see it work."),
        "{page}"
    );
    // Everything is still there, and the thread goes on behind the summary.
    assert_eq!(home.items_when("t1", |items| items.len() == 16).len(), 16);
    home.ok(&["send", "seen", "-t", "t1"]);
    let items = home.items_when("t1", |items| items.len() == 18);
    assert!(items[17].contains("Goal: to see it work.") && !items[17].contains("say 0 "), "{}", items[17]);
}
