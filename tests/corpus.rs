//! What fuzzing begins with, and what it found, on every `make test`: each input of fuzz/corpus through its
//! target. `make fuzz` goes on from there.

use berth::{admission, config};

#[path = "../fuzz/src/targets/mod.rs"]
mod targets;

type Target = fn(&[u8]);

#[test]
fn every_promise_holds_for_the_corpus() {
    let all: [(&str, Target); 5] = [
        ("classifier", targets::classifier::run),
        ("config", targets::config::run),
        ("gate", targets::gate::run),
        ("retry_after", targets::retry_after::run),
        ("splitter", targets::splitter::run),
    ];
    for (name, run) in all {
        let folder = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
        let mut count = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // Told by the test's output, if the target panics.
            println!("{}", path.display());
            run(&std::fs::read(path).unwrap());
            count += 1;
        }
        assert!(count >= 20, "{folder}: {count}");
    }
}
