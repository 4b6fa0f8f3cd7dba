//! How much each operation allocates, as JSON on standard output: one object a line.
//!
//! A binary of its own, because counting slows every allocation down. What is counted is what the operation's own
//! thread allocates, a reallocation as an allocation of the new size; `peak` is the most that it holds at once beyond
//! what was there before.

mod support;

use allocation_counter::{AllocationInfo, measure};
use support::{Asking, Backend, COMPACTED, LENGTHS, Slice, Source};
use tokio::runtime::Runtime;

fn main() {
    let runtime = support::runtime();
    for length in LENGTHS {
        for backend in Backend::ALL {
            let source = runtime.block_on(Source::new(backend, length));
            report("load", Some(backend), length, || load(&runtime, &source));
            report("slice", Some(backend), length, || slice(&runtime, &source, |slice| slice.check(length)));
        }
        let asking =
            runtime.block_on(async { Asking::new(&Source::new(Backend::Memory, length).await).await });
        report("render", None, length, || counted(|| asking.render()).0);
    }
    for length in COMPACTED {
        let source = runtime.block_on(Source::compacted(length));
        report("load-compacted", None, length, || load(&runtime, &source));
        report("slice-compacted", None, length, || slice(&runtime, &source, Slice::check_compacted));
    }
}

/// Counts twice and keeps the second: what a process allocates once belongs to the first.
fn report(operation: &str, backend: Option<Backend>, length: usize, count: impl Fn() -> AllocationInfo) {
    count();
    let info = count();
    let name = [Some(operation), backend.map(Backend::name)];
    let name: Vec<&str> = name.into_iter().flatten().collect();
    let line = serde_json::json!({
        "name": name.join("-"),
        "length": length,
        "allocations": info.count_total,
        "bytes": info.bytes_total,
        "peak": info.bytes_max,
    });
    println!("{line}");
}

/// What `operation` allocates, its drop left out, and its result.
fn counted<T>(operation: impl FnOnce() -> T) -> (AllocationInfo, T) {
    let mut result = None;
    let info = measure(|| result = Some(operation()));
    (info, result.expect("bug: what is measured runs"))
}

fn load(runtime: &Runtime, source: &Source) -> AllocationInfo {
    let store = runtime.block_on(source.store());
    counted(|| runtime.block_on(support::load(&store))).0
}

fn slice(runtime: &Runtime, source: &Source, check: impl Fn(&Slice)) -> AllocationInfo {
    let slice = runtime.block_on(Slice::new(source));
    let (info, slice) = counted(|| runtime.block_on(slice.run()));
    check(&slice);
    info
}
