//! URLs of upstreams and of proxies on the way out.
//!
//! A URL may hide a password (`http://user:pw@host`), so nothing of it is ever repeated, and user
//! names and passwords are taken in the forms of a secret only.

use http::Uri;
use schemars::{Schema, json_schema};

use super::field::{Entry, Fault, Leaf, Node};
use crate::edge::spec::{BaseUrl, ProxySpec};
use crate::pool::SecretSource;

impl Leaf for BaseUrl {
    fn read(node: Node) -> Result<BaseUrl, Fault> {
        let bad = "a URL such as `https://api.openai.com/v1` is expected here";
        let Node::Text(text) = node else {
            return Err(bad.into());
        };
        let (tls, host, port, path) = take_apart(&text, bad)?;
        let path = path.trim_end_matches('/');
        if path.contains("//") || path.contains('%') || path.split('/').any(is_dots) {
            return Err("the URL's path has `//`, `%`, `.` or `..`; write the plain path".into());
        }
        Ok(BaseUrl {
            tls,
            host,
            port,
            path: path.to_owned(),
        })
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^https?://[^/?#@]+(/[^?#]*)?$" })
    }
}

fn is_dots(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

impl Leaf for ProxySpec {
    fn read(node: Node) -> Result<ProxySpec, Fault> {
        match node {
            Node::Text(url) => proxy(&url, None, None),
            Node::Keys(entries) => proxy_of_keys(entries),
            _ => Err(BAD_PROXY.into()),
        }
    }

    fn schema() -> Schema {
        let url = json_schema!({ "type": "string", "pattern": "^http://[^/?#@]+/?$" });
        json_schema!({ "oneOf": [url, {
            "type": "object",
            "properties": {
                "url": url,
                "user": SecretSource::schema(),
                "password": SecretSource::schema()
            },
            "required": ["url"],
            "additionalProperties": false
        }] })
    }
}

const BAD_PROXY: &str = "a proxy is `http://HOST:PORT` or \
                         `{ url: http://HOST:PORT, user: { env: NAME }, password: { env: NAME } }`";

fn proxy_of_keys(entries: Vec<Entry>) -> Result<ProxySpec, Fault> {
    let (mut url, mut user, mut password) = (None, None, None);
    for entry in entries {
        let at = entry.at;
        let here = |fault: Fault| Fault {
            at: fault.at.or(Some(at)),
            ..fault
        };
        match (entry.key.as_str(), entry.node) {
            ("url", Node::Text(text)) => url = Some(text),
            ("user", node) => user = Some(SecretSource::read(node).map_err(here)?),
            ("password", node) => password = Some(SecretSource::read(node).map_err(here)?),
            _ => return Err(here(BAD_PROXY.into())),
        }
    }
    if user.is_some() != password.is_some() {
        return Err("a proxy takes `user` and `password` together; write both or neither".into());
    }
    proxy(&url.ok_or(BAD_PROXY)?, user, password)
}

fn proxy(
    url: &str,
    user: Option<SecretSource>,
    password: Option<SecretSource>,
) -> Result<ProxySpec, Fault> {
    let (tls, host, port, path) = take_apart(url, BAD_PROXY)?;
    if tls || !matches!(path.as_str(), "" | "/") {
        return Err(BAD_PROXY.into());
    }
    Ok(ProxySpec {
        host,
        port,
        user,
        password,
    })
}

fn take_apart(text: &str, bad: &str) -> Result<(bool, String, u16, String), Fault> {
    // `Uri` drops a fragment silently.
    if text.contains('#') {
        return Err("a URL here has no fragment (`#`); remove it".into());
    }
    let uri: Uri = text.parse().map_err(|_| bad)?;
    let tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err("the URL begins with `https://` or `http://`".into()),
    };
    let authority = uri.authority().ok_or(bad)?;
    if authority.as_str().contains('@') {
        return Err(
            "a URL here has no user or password; give them in the forms of a secret".into(),
        );
    }
    if uri.query().is_some() {
        return Err("a URL here has no query (`?`); remove it".into());
    }
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    let port = match (authority.port_u16(), authority.port().is_some()) {
        (Some(port @ 1..), _) => port,
        (None, false) if authority.as_str().ends_with(':') => return Err(bad.into()),
        (None, false) => {
            if tls {
                443
            } else {
                80
            }
        }
        _ => return Err("the URL's port is 1 to 65535".into()),
    };
    match host.is_empty() {
        true => Err(bad.into()),
        false => Ok((tls, host.to_owned(), port, uri.path().to_owned())),
    }
}
