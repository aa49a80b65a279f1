//! What is promised of any bytes whatever.
//!
//! An input is eight bytes of choices (endpoint, status, where the network cuts) and the bytes that an
//! upstream or an operator would send; configuration is text alone. Each target compares the code with
//! a slow model where there is one, and with the promise in the code's own head where there is not.

pub mod classifier;
pub mod config;
pub mod gate;
pub mod retry_after;
pub mod splitter;

/// The choices at the head of an input.
#[derive(Clone, Copy)]
pub struct Choices([u8; 8]);

impl Choices {
    /// `bytes` taken apart; `None` where there is not even room for the choices.
    pub fn split(bytes: &[u8]) -> Option<(Choices, &[u8])> {
        let (choices, rest) = bytes.split_first_chunk()?;
        Some((Choices(*choices), rest))
    }

    /// One of `from` by the choice at `index`.
    pub fn pick<T: Copy>(&self, index: usize, from: &[T]) -> T {
        from[self.0[index] as usize % from.len()]
    }

    /// The bits of the choice at `index`.
    pub fn bits(&self, index: usize) -> u8 {
        self.0[index]
    }

    /// `body` as the network might cut it: by the last two choices in pieces of up to 1, 4, 16, 64
    /// bytes, or not at all.
    pub fn cut<'a>(&self, body: &'a [u8]) -> Vec<&'a [u8]> {
        let most = self.pick(6, &[1, 4, 16, 64, usize::MAX]);
        let mut dice = u32::from(self.0[7]);
        let (mut pieces, mut rest) = (Vec::new(), body);
        while !rest.is_empty() {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let length = 1 + (dice >> 16) as usize % most;
            let (piece, after) = rest.split_at(length.min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        pieces
    }
}
