//! How long a whole slice takes without the network and without the model's thinking, by the conversation's length.

mod support;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use support::{Backend, LENGTHS, Slice, Source, ThreadClock};

fn slice(criterion: &mut Criterion<ThreadClock>) {
    let runtime = support::runtime();
    for backend in Backend::ALL {
        let mut group = criterion.benchmark_group(format!("slice-{}", backend.name()));
        for length in LENGTHS {
            let source = runtime.block_on(Source::new(backend, length));
            runtime.block_on(async { Slice::new(&source).await.run().await.check(length) });
            group.bench_function(length.to_string(), |bencher| {
                bencher.iter_batched(
                    || runtime.block_on(Slice::new(&source)),
                    |slice| runtime.block_on(slice.run()),
                    BatchSize::PerIteration,
                );
            });
        }
    }
}

criterion_group! { name = benches; config = support::timing(); targets = slice }
criterion_main!(benches);
