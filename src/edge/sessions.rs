//! By which names a request's session is known.
//!
//! Clients name a session in several ways, and a subagent has a session of its own in some and its
//! root's in others. Here the names are found and hashed, alike on every node and after every restart;
//! what follows from them is the pool's. The client is part of each hash, so that nobody can name
//! another's session once clients are told apart. Nothing of a name is kept or shown.

use http::HeaderMap;

use super::hash::stable;
use crate::admission::ask::Ask;
use crate::admission::turn_metadata::TurnMetadata;
use crate::pool::Names;

/// The names in a request of `client`.
pub fn names(client: Option<&str>, headers: &HeaderMap, ask: &Ask) -> Names {
    let named = |name: &&str| !name.is_empty();
    let header = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.filter(named)
    };
    let metadata = headers.get("x-codex-turn-metadata");
    let metadata = metadata.map(|value| TurnMetadata::of(value.as_bytes()));
    let metadata = metadata.unwrap_or_default();
    let parent =
        header("x-codex-parent-thread-id").or(metadata.parent_thread_id.as_deref().filter(named));
    let thread = header("thread-id").or(metadata.thread_id.as_deref().filter(named));
    let session = header("session-id")
        .or_else(|| header("session_id"))
        .or_else(|| header("conversation_id"))
        .or(ask.prompt_cache_key.as_deref().filter(named))
        .or(thread);
    let hashed = |name: Option<&str>| name.map(|name| hash(client, name));
    Names {
        parent: hashed(parent),
        session: hashed(session),
        thread: hashed(thread),
    }
}

/// A name of a client, as a number.
pub fn hash(client: Option<&str>, name: &str) -> u64 {
    // The byte between them is in no client's id: two pairs never make the same text.
    let client = client.unwrap_or_default();
    stable(&[client.as_bytes(), &[0], name.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    const METADATA: (&str, &str) = (
        "x-codex-turn-metadata",
        r#"{"thread_id":"m","parent_thread_id":"p"}"#,
    );

    fn of(client: Option<&str>, headers: &[(&str, &str)], cache_key: Option<&str>) -> Names {
        let pair = |(name, value): &(&str, &str)| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        };
        let ask = Ask {
            prompt_cache_key: cache_key.map(str::to_owned),
            ..Ask::default()
        };
        names(client, &headers.iter().map(pair).collect(), &ask)
    }

    fn session(headers: &[(&str, &str)], cache_key: Option<&str>) -> Option<u64> {
        of(None, headers, cache_key).session
    }

    #[test]
    fn the_first_name_of_a_session_in_the_stated_order_counts() {
        let mut all = vec![
            ("session-id", "a"),
            ("session_id", "b"),
            ("conversation_id", "c"),
            ("thread-id", "e"),
            METADATA,
        ];
        for name in ["a", "b", "c"] {
            assert_eq!(session(&all, Some("d")), Some(hash(None, name)));
            all.remove(0);
        }
        assert_eq!(session(&all, Some("d")), Some(hash(None, "d")));
        assert_eq!(session(&all, None), Some(hash(None, "e")));
        assert_eq!(session(&[METADATA], None), Some(hash(None, "m")));
        assert_eq!(of(None, &[], None), Names::default());
        assert_eq!(session(&[("session-id", "")], Some("")), None);
    }

    #[test]
    fn the_parent_is_named_by_its_header_or_in_the_metadata() {
        let header = ("x-codex-parent-thread-id", "h");
        let parent = |headers: &[(&str, &str)]| of(None, headers, None).parent;
        assert_eq!(parent(&[header, METADATA]), Some(hash(None, "h")));
        assert_eq!(parent(&[METADATA]), Some(hash(None, "p")));
        assert_eq!(parent(&[("x-codex-turn-metadata", "{")]), None);
    }

    #[test]
    fn no_client_can_name_another_clients_session() {
        let name = |client| of(client, &[("session-id", "s"), METADATA], None);
        let (one, other) = (name(Some("one")), name(Some("other")));
        assert_ne!(one.session, other.session);
        assert_ne!(one.parent, other.parent);
        assert_ne!(one.thread, other.thread);
        assert_ne!(hash(Some("a"), "bc"), hash(Some("ab"), "c"));
    }

    #[test]
    fn a_name_is_hashed_alike_in_every_build() {
        // The first eight bytes of the SHA-256 of a zero byte and the name.
        assert_eq!(hash(None, "session"), 0xa20b_1fc2_3bd8_0353);
    }
}
