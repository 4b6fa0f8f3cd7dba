//! Whether a conversation that was compacted costs what it shows, or what it holds.

mod support;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use support::{COMPACTED, Slice, Source, ThreadClock};

fn compacted(criterion: &mut Criterion<ThreadClock>) {
    let runtime = support::runtime();
    for length in COMPACTED {
        let source = runtime.block_on(Source::compacted(length));
        let store = runtime.block_on(source.store());
        criterion.benchmark_group("load-compacted").bench_function(length.to_string(), |bencher| {
            bencher.iter_batched(
                || (),
                |()| runtime.block_on(support::load(&store)),
                BatchSize::PerIteration,
            );
        });
        runtime.block_on(async { Slice::new(&source).await.run().await.check_compacted() });
        criterion.benchmark_group("slice-compacted").bench_function(length.to_string(), |bencher| {
            bencher.iter_batched(
                || runtime.block_on(Slice::new(&source)),
                |slice| runtime.block_on(slice.run()),
                BatchSize::PerIteration,
            );
        });
    }
}

criterion_group! { name = benches; config = support::timing(); targets = compacted }
criterion_main!(benches);
