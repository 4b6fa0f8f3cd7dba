//! How long it takes to render a loaded conversation as a model request, by its length.

mod support;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use support::{Asking, Backend, LENGTHS, Source, ThreadClock};

fn render(criterion: &mut Criterion<ThreadClock>) {
    let runtime = support::runtime();
    let mut group = criterion.benchmark_group("render");
    for length in LENGTHS {
        let asking =
            runtime.block_on(async { Asking::new(&Source::new(Backend::Memory, length).await).await });
        group.bench_function(length.to_string(), |bencher| {
            // Each result is dropped before the next, as in a slice: none pays for pages that others hold.
            bencher.iter_batched(|| (), |()| asking.render(), BatchSize::PerIteration);
        });
    }
}

criterion_group! { name = benches; config = support::timing(); targets = render }
criterion_main!(benches);
