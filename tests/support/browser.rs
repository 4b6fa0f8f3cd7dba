//! The inspector in a headless Chromium. Without a browser or drivers a test says loudly that it is skipped.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::runs;

/// No driver may take longer, on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Where Debian's package puts it.
const CHROMIUM: &str = "/usr/bin/chromium";

/// The folder of the drivers; none, said loudly, where there is no browser or nothing to drive it with.
pub fn drivers() -> Option<String> {
    let skip = |why: &str| {
        let text = format!("SKIPPED: {why}, no test of the inspector\n");
        std::io::stderr().write_all(text.as_bytes()).unwrap();
        None
    };
    let Some(drivers) = std::env::var("DORMOUSE_TEST_INSPECTOR").ok().filter(|path| !path.is_empty()) else {
        return skip("DORMOUSE_TEST_INSPECTOR is unset");
    };
    let browser = std::env::var("DORMOUSE_TEST_CHROMIUM").unwrap_or_else(|_| CHROMIUM.to_owned());
    match PathBuf::from(&browser).exists() {
        true => Some(drivers),
        false => skip(&format!("there is no {browser}")),
    }
}

/// Where pictures go: they are looked at by people, and are no part of the source.
fn screenshots() -> PathBuf {
    let named = std::env::var_os("DORMOUSE_TEST_SCREENSHOTS").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("inspector"))
}

/// Runs one driver to its end; what it says is the failure.
pub async fn drive(drivers: &str, driver: &str, url: &str) {
    let mut node = Command::new("node");
    node.current_dir(drivers).args([driver, url]).env("DORMOUSE_TEST_SCREENSHOTS", screenshots());
    let summary = runs::run(&mut node, LIMIT).await;
    eprintln!("{driver}: {summary}; pictures in {}", screenshots().display());
}
