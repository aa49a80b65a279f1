//! Content codings: bodies that have to be read although they are compressed.
//!
//! berth asks upstreams for plain bodies, and some compress all the same; the Codex client sends zstd.
//! A decoder here takes pieces and gives what they decode to, within a limit per piece: a few
//! kilobytes can decode to gigabytes, and a bomb costs its sender only.

use std::io::{self, Read, Write};

use bytes::Bytes;

/// A content coding that berth can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Plain.
    Identity,
    /// gzip.
    Gzip,
    /// deflate, in its zlib form.
    Deflate,
    /// brotli.
    Brotli,
    /// zstd.
    Zstd,
}

/// What a piece may decode to, bytes. Chosen: a hundredfold of what one read returns; text packs to a
/// tenth.
const LARGEST_PIECE: usize = 8 * 1024 * 1024;

/// zstd's window, log2 bytes: 8 MiB, which RFC 8878 asks every decoder to support.
const ZSTD_WINDOW: u32 = 23;

impl Coding {
    /// The coding that a `content-encoding` names; `None` for one (or several) berth cannot read.
    pub fn named(value: &[u8]) -> Option<Coding> {
        let name = value.trim_ascii().to_ascii_lowercase();
        match name.as_slice() {
            b"" | b"identity" => Some(Coding::Identity),
            b"gzip" | b"x-gzip" => Some(Coding::Gzip),
            b"deflate" => Some(Coding::Deflate),
            b"br" => Some(Coding::Brotli),
            b"zstd" => Some(Coding::Zstd),
            _ => None,
        }
    }

    /// A reader of the whole body `bytes`; it may fail in the middle of a broken one.
    pub fn reader(self, bytes: &[u8]) -> io::Result<Box<dyn Read + '_>> {
        Ok(match self {
            Coding::Identity => Box::new(bytes),
            Coding::Gzip => Box::new(flate2::read::MultiGzDecoder::new(bytes)),
            Coding::Deflate => Box::new(flate2::read::ZlibDecoder::new(bytes)),
            Coding::Brotli => Box::new(brotli_decompressor::Decompressor::new(bytes, 4096)),
            Coding::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::new(bytes)?;
                decoder.window_log_max(ZSTD_WINDOW)?;
                Box::new(decoder)
            }
        })
    }
}

/// A body that is decoded as it arrives.
pub struct Decoder(Inner);

enum Inner {
    Gzip(flate2::write::MultiGzDecoder<Bounded>),
    Deflate(flate2::write::ZlibDecoder<Bounded>),
    Brotli(Box<brotli_decompressor::DecompressorWriter<Bounded>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Bounded>>),
}

impl Decoder {
    /// A decoder; `None` for [`Coding::Identity`], which needs none.
    pub fn new(coding: Coding) -> Option<Decoder> {
        let out = Bounded(Vec::new());
        Some(Decoder(match coding {
            Coding::Identity => return None,
            Coding::Gzip => Inner::Gzip(flate2::write::MultiGzDecoder::new(out)),
            Coding::Deflate => Inner::Deflate(flate2::write::ZlibDecoder::new(out)),
            Coding::Brotli => Inner::Brotli(Box::new(
                brotli_decompressor::DecompressorWriter::new(out, 4096),
            )),
            Coding::Zstd => {
                let mut decoder = zstd::stream::write::Decoder::new(out).ok()?;
                decoder.window_log_max(ZSTD_WINDOW).ok()?;
                Inner::Zstd(Box::new(decoder))
            }
        }))
    }

    /// Decodes a piece as far as it goes.
    pub fn push(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        self.writer().write_all(piece)?;
        self.writer().flush()?;
        Ok(Bytes::from(std::mem::take(&mut self.out().0)))
    }

    fn writer(&mut self) -> &mut dyn Write {
        match &mut self.0 {
            Inner::Gzip(w) => w,
            Inner::Deflate(w) => w,
            Inner::Brotli(w) => w,
            Inner::Zstd(w) => w,
        }
    }

    fn out(&mut self) -> &mut Bounded {
        match &mut self.0 {
            Inner::Gzip(w) => w.get_mut(),
            Inner::Deflate(w) => w.get_mut(),
            Inner::Brotli(w) => w.get_mut(),
            Inner::Zstd(w) => w.get_mut(),
        }
    }
}

struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LARGEST_PIECE {
            return Err(io::Error::other("a compressed body decodes to too much"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(coding: Coding, text: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Identity => text.to_vec(),
            Coding::Gzip => {
                let mut w = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
                w.write_all(text).unwrap();
                w.finish().unwrap()
            }
            Coding::Deflate => {
                let mut w = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::fast());
                w.write_all(text).unwrap();
                w.finish().unwrap()
            }
            Coding::Brotli => {
                let mut out = Vec::new();
                brotli::CompressorWriter::new(&mut out, 4096, 1, 18)
                    .write_all(text)
                    .unwrap();
                out
            }
            Coding::Zstd => zstd::stream::encode_all(text, 1).unwrap(),
        }
    }

    #[test]
    fn pieces_decode_to_what_was_packed() {
        let text = b"data: {\"type\":\"x\"}\n\n".repeat(3);
        for coding in [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd] {
            let packed = packed(coding, &text);
            for size in [1, 7, packed.len()] {
                let mut decoder = Decoder::new(coding).unwrap();
                let mut got = Vec::new();
                for piece in packed.chunks(size) {
                    got.extend_from_slice(&decoder.push(piece).unwrap());
                }
                assert_eq!(got, text, "{coding:?} in pieces of {size}");
            }
            let mut read = Vec::new();
            coding
                .reader(&packed)
                .unwrap()
                .read_to_end(&mut read)
                .unwrap();
            assert_eq!(read, text, "{coding:?}");
        }
    }

    #[test]
    fn a_bomb_is_an_error() {
        let bomb = packed(Coding::Zstd, &vec![0; LARGEST_PIECE + 1]);
        assert!(bomb.len() < 100_000);
        assert!(Decoder::new(Coding::Zstd).unwrap().push(&bomb).is_err());
        assert!(
            Decoder::new(Coding::Gzip)
                .unwrap()
                .push(b"this is not gzip")
                .is_err()
        );
    }

    #[test]
    fn names_are_read_as_http_writes_them() {
        assert_eq!(Coding::named(b" GZIP "), Some(Coding::Gzip));
        assert_eq!(Coding::named(b"gzip, br"), None);
        assert_eq!(Coding::named(b"x-test"), None);
    }
}
