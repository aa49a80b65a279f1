//! The bytes of an answer that is held, as they came.
//!
//! An upstream decides how large its pieces are, and each that is kept by itself costs some hundred bytes
//! beside its own: a stream that comes byte by byte would take eighty times of what is counted. So small
//! pieces are put together; large ones are kept without a copy.

use bytes::{Bytes, BytesMut};

/// Pieces below this are put together. Chosen: a copy of so much costs less than another allocation saves.
const SMALL: usize = 1024;

/// What came, in order.
#[derive(Debug, Default)]
pub struct Held {
    pieces: Vec<Bytes>,
    /// Small pieces, behind all of `pieces`.
    small: BytesMut,
    bytes: usize,
}

impl Held {
    /// One piece more.
    pub fn keep(&mut self, piece: &Bytes) {
        self.bytes += piece.len();
        if piece.len() < SMALL {
            self.small.extend_from_slice(piece);
            return;
        }
        self.join_small();
        self.pieces.push(piece.clone());
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it, in one.
    pub fn whole(&self) -> Vec<u8> {
        let pieces = self.pieces.iter().map(|piece| &**piece);
        pieces.chain([&*self.small]).collect::<Vec<_>>().concat()
    }

    /// All of it, in the order it came.
    pub fn into_pieces(mut self) -> Vec<Bytes> {
        self.join_small();
        self.pieces
    }

    fn join_small(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push(self.small.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_byte_by_byte_is_kept_as_one_piece_and_in_order() {
        let (mut held, mut expected) = (Held::default(), Vec::new());
        for n in 0..5_000_u32 {
            let length = if n % 1_000 == 999 { 2 * SMALL } else { 1 };
            let piece = Bytes::from(vec![n as u8; length]);
            expected.extend_from_slice(&piece);
            held.keep(&piece);
        }
        assert_eq!(held.bytes(), expected.len());
        assert_eq!(held.whole(), expected);
        let pieces = held.into_pieces();
        assert_eq!(pieces.len(), 10);
        assert_eq!(pieces.concat(), expected);
    }
}
