//! Fixed pieces of work of berth's parts that need no network, for two measures of the same thing:
//! `benches/pure.rs` takes their time, and `instructions` counts their instructions, which do not
//! depend on who else uses the machine.

mod choice;
mod reading;

/// Does the work once.
pub type Work = Box<dyn FnMut()>;

/// One piece of work.
pub struct Piece {
    /// `group/name`.
    pub name: &'static str,
    /// Bytes of a stream that it takes, where it takes one.
    pub bytes: Option<u64>,
    /// How often it is done where instructions are counted; 0 where that takes too long under
    /// valgrind.
    pub times: u32,
    /// Makes it ready.
    pub prepare: fn() -> Work,
}

/// All of them.
pub const ALL: [Piece; 12] = [
    piece("choice/10", 300, || choice::among(10)),
    piece("choice/100", 100, || choice::among(100)),
    piece("choice/1000", 0, || choice::among(1000)),
    stream("split/plain", 20, reading::split),
    piece("gate/opening", 300, reading::opening),
    piece("gate/refusal", 300, reading::refusal),
    stream("gate/held", 20, reading::held),
    stream("stream/plain", 20, || reading::passed(16 * 1024)),
    stream("stream/cut", 20, || reading::passed(reading::EVENT)),
    piece("classify/built_in", 300, || reading::classify(0)),
    piece("classify/own", 300, || reading::classify(64)),
    piece("ask/responses", 300, reading::ask),
];

const fn piece(name: &'static str, times: u32, prepare: fn() -> Work) -> Piece {
    Piece {
        name,
        bytes: None,
        times,
        prepare,
    }
}

const fn stream(name: &'static str, times: u32, prepare: fn() -> Work) -> Piece {
    Piece {
        bytes: Some(reading::BYTES as u64),
        ..piece(name, times, prepare)
    }
}
