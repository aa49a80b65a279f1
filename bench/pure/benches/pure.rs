//! The time of each piece of work: `cargo bench -p berth-pure`.

use berth_pure::ALL;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn all(criterion: &mut Criterion) {
    for piece in ALL {
        let (group, name) = piece.name.split_once('/').expect("a group and a name");
        let mut group = criterion.benchmark_group(group);
        if let Some(bytes) = piece.bytes {
            group.throughput(Throughput::Bytes(bytes));
        }
        let mut work = (piece.prepare)();
        group.bench_function(name, |bencher| bencher.iter(&mut work));
        group.finish();
    }
}

criterion_group!(pure, all);
criterion_main!(pure);
