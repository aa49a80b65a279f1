//! Which route a request is for, and whether its path is open there.
//!
//! A shared key opens everything that its account may do: files, stored answers, administration. So a
//! route opens the inference endpoints and the model list, and nothing else unless the operator wrote
//! it down. The comparison is of bytes, and every trick that would make an upstream read another path
//! than berth did (`..`, `//`, encoded slashes and dots, backslashes) is refused before it.

use crate::admission::Endpoint;

use super::spec::{OpenPaths, RouteSpec};

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// A path that berth and an upstream might read differently.
    Tricky,
    /// Outside every route.
    Outside,
    /// In a route that does not open it.
    Shut {
        /// The route's place in the configuration.
        route: usize,
    },
    /// In a route that opens it.
    Open {
        /// The route's place in the configuration.
        route: usize,
        /// What it is for.
        endpoint: Endpoint,
        /// The path below the route's prefix, with its leading slash.
        below: &'a str,
    },
}

/// Finds the place of a path (without its query).
pub fn place<'a>(routes: &[RouteSpec], method: &str, path: &'a str) -> Place<'a> {
    if is_tricky(path) {
        return Place::Tricky;
    }
    let mut found: Option<(usize, &'a str)> = None;
    for (route, spec) in routes.iter().enumerate() {
        if let Some(below) = below(&spec.path_prefix, path) {
            // The longest prefix wins.
            if found.is_none_or(|(_, shortest)| below.len() < shortest.len()) {
                found = Some((route, below));
            }
        }
    }
    let Some((route, below)) = found else {
        return Place::Outside;
    };
    let sub = below.strip_prefix('/').unwrap_or(below);
    let endpoint = Endpoint::of(method, sub);
    let open = match routes.get(route).map(|spec| &spec.paths) {
        Some(OpenPaths::Defaults) => endpoint.open_by_default(),
        Some(OpenPaths::Globs(globs)) => globs.is_match(sub),
        None => false,
    };
    if open {
        Place::Open {
            route,
            endpoint,
            below,
        }
    } else {
        Place::Shut { route }
    }
}

/// Whether a client asks to turn a WebSocket's path into one: `GET .../responses`.
pub fn is_websocket_path(routes: &[RouteSpec], path: &str) -> Option<usize> {
    match place(routes, "POST", path) {
        Place::Open {
            route,
            endpoint: Endpoint::Responses,
            below: "/responses",
        } => Some(route),
        _ => None,
    }
}

fn below<'a>(prefix: &str, path: &'a str) -> Option<&'a str> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn is_tricky(path: &str) -> bool {
    let encoded = |pair: &[u8]| {
        matches!(
            pair,
            [b'%', b'2', b'f' | b'F' | b'e' | b'E'] | [b'%', b'5', b'c' | b'C'] | [b'%', b'0', _]
        )
    };
    let double = |pair: &[u8]| pair == b"%25";
    !path.starts_with('/')
        || path.contains("//")
        || path.contains('\\')
        || path.split('/').any(|part| part == "." || part == "..")
        || path.bytes().any(|b| b.is_ascii_control() || b == b' ')
        || path.as_bytes().windows(3).any(|w| encoded(w) || double(w))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::spec::WebSocket;
    use crate::pool::Balance;

    fn route(prefix: &str, globs: Option<&[&str]>) -> RouteSpec {
        let paths = match globs {
            None => OpenPaths::Defaults,
            Some(globs) => {
                let mut set = globset::GlobSetBuilder::new();
                for glob in globs {
                    set.add(globset::Glob::new(glob).unwrap());
                }
                OpenPaths::Globs(set.build().unwrap())
            }
        };
        RouteSpec {
            path_prefix: prefix.into(),
            paths,
            websocket: WebSocket::Refuse,
            credentials: vec![],
            balance: Balance::FillFirst,
            affinity: None,
            fallback_models: Default::default(),
        }
    }

    #[test]
    fn only_the_inference_endpoints_are_open_by_default() {
        let routes = [route("/v1", None)];
        for (method, path, open) in [
            ("POST", "/v1/responses", true),
            ("POST", "/v1/responses/compact", true),
            ("POST", "/v1/chat/completions", true),
            ("POST", "/v1/messages/count_tokens", true),
            ("GET", "/v1/models", true),
            ("GET", "/v1/models/gpt-a", true),
            ("GET", "/v1/models/", false),
            ("GET", "/v1/responses/resp_1", false),
            ("DELETE", "/v1/responses/resp_1", false),
            ("DELETE", "/v1/models/gpt-a", false),
            ("GET", "/v1/files", false),
            ("POST", "/v1/files", false),
            ("POST", "/v1/Responses", false),
            ("POST", "/v1/responses/", false),
            ("POST", "/v1/%72esponses", false),
            ("POST", "/v1", false),
        ] {
            let found = place(&routes, method, path);
            let is_open = matches!(found, Place::Open { .. });
            assert_eq!(is_open, open, "{method} {path}: {found:?}");
        }
    }

    #[test]
    fn tricks_are_refused_before_anything_is_compared() {
        let routes = [route("/v1", Some(&["*"]))];
        for path in [
            "/v1/../admin",
            "/v1/./files",
            "/v1//files",
            "/v1/%2e%2e/files",
            "/v1/a%2Fb",
            "/v1/a%5cb",
            "/v1/a\\b",
            "/v1/%252e",
            "/v1/a%00",
            "v1/files",
            "*",
        ] {
            assert_eq!(place(&routes, "GET", path), Place::Tricky, "{path}");
        }
    }

    #[test]
    fn the_longest_prefix_wins_and_ends_at_a_slash() {
        let routes = [
            route("/v1", None),
            route("/v1/eu", None),
            route("", Some(&["x"])),
        ];
        let of = |path| match place(&routes, "POST", path) {
            Place::Open { route, .. } | Place::Shut { route } => Some(route),
            _ => None,
        };
        assert_eq!(of("/v1/responses"), Some(0));
        assert_eq!(of("/v1/eu/responses"), Some(1));
        assert_eq!(of("/v1x/responses"), Some(2));
        assert_eq!(place(&routes[..1], "GET", "/v1x/models"), Place::Outside);
    }

    #[test]
    fn the_operator_opens_what_he_wrote_down() {
        let routes = [route("/v1", Some(&["files", "files/*"]))];
        assert!(matches!(
            place(&routes, "GET", "/v1/files/a"),
            Place::Open { .. }
        ));
        assert_eq!(
            place(&routes, "POST", "/v1/responses"),
            Place::Shut { route: 0 }
        );
    }
}
