//! What the configuration promises, by example and by chance.

mod golden;
mod parse;
mod random;
mod reference;

use std::path::{Path, PathBuf};

/// The good examples, for every test over them.
fn examples() -> Vec<(PathBuf, String)> {
    texts("conf", "yaml")
}

/// The files with this extension in a folder of the repository.
fn texts(folder: &str, extension: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path, text)
    };
    paths.into_iter().map(read).collect()
}
