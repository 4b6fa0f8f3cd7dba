//! How long it takes to load a conversation, by its length.

mod support;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use support::{Backend, LENGTHS, Source, ThreadClock};

fn load(criterion: &mut Criterion<ThreadClock>) {
    let runtime = support::runtime();
    for backend in Backend::ALL {
        let mut group = criterion.benchmark_group(format!("load-{}", backend.name()));
        for length in LENGTHS {
            let store = runtime.block_on(async { Source::new(backend, length).await.store().await });
            group.bench_function(length.to_string(), |bencher| {
                // Each result is dropped before the next, as in a slice: none pays for pages that others hold.
                let load = |()| runtime.block_on(support::load(&store));
                bencher.iter_batched(|| (), load, BatchSize::PerIteration);
            });
        }
    }
}

criterion_group! { name = benches; config = support::timing(); targets = load }
criterion_main!(benches);
