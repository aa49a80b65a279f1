//! How durations and sizes are written in a program: `300ms`, `64KiB`.
//!
//! The same words as in berth's own configuration, so that nobody has to learn two. Used with
//! serde's `with`.

/// A duration such as `300ms`, `5s` or `10m`.
pub(super) mod span {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::time::Duration;

    pub(in super::super) fn serialize<S: Serializer>(
        span: &Duration,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*span))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text).map_err(|_| {
            D::Error::custom(format!(
                "`{text}` is no duration: write it as 300ms, 5s or 10m"
            ))
        })
    }
}

/// A duration that may be absent.
pub(super) mod maybe_span {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(in super::super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => super::span::serialize(span, to),
            None => to.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Written(#[serde(with = "super::span")] Duration);
        Ok(Option::<Written>::deserialize(from)?.map(|Written(span)| span))
    }
}

/// A count of bytes such as `64KiB`, or a bare number.
pub(super) mod size {
    use serde::{Deserializer, Serializer, de};
    use std::fmt;

    pub(in super::super) fn serialize<S: Serializer>(
        bytes: &u64,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u64(*bytes)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<u64, D::Error> {
        struct Size;
        impl de::Visitor<'_> for Size {
            type Value = u64;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 64KiB")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<u64, E> {
                Ok(bytes)
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<u64, E> {
                u64::try_from(bytes).map_err(|_| E::custom("a size cannot be negative"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
                text.parse::<bytesize::ByteSize>()
                    .map(|size| size.as_u64())
                    .map_err(|_| {
                        E::custom(format!("`{text}` is no size: write it as 512 or 64KiB"))
                    })
            }
        }
        from.deserialize_any(Size)
    }
}
