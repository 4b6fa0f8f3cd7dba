//! Programs that check something from outside and say so in their last line: `N passed, N failed`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a driver to its end, or to its limit; what it says is the failure, and its last line is returned.
pub async fn run(driver: &mut Command, limit: Duration) -> String {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("driver.log");
    let out = std::fs::File::create(&log).unwrap();
    let output = driver.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
    let mut child = output.spawn().unwrap();
    let started = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if started.elapsed() > limit => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{driver:?}:\n{said}");
    let summary = said.lines().last().unwrap_or_default();
    assert!(summary.ends_with(" 0 failed") && !summary.starts_with("0 "), "{driver:?}:\n{said}");
    summary.to_owned()
}
