//! Keys of the design that this version does not have.
//!
//! They are refused rather than ignored: whoever writes one means something by it. To deliver one, delete
//! its line here and give it a raw type.

use super::field::{Later, Part, Placed, Slot};
use super::problem::Report;
use super::raw::File;
use crate::edge::spec::WebSocket;

/// Complains about every key that is written and says something.
pub fn refuse(file: &File, report: &mut Report) {
    refuse_key("shared", &file.shared, report);
    each(&file.routes.0, |it| refuse_proxy(&it.websocket, report));
}

fn refuse_key(key: &str, later: &Later, report: &mut Report) {
    if let Some(Placed { at, value: true }) = later.0 {
        report.problem(at, format!("`{key}` is not yet in this version; remove it"));
    }
}

fn refuse_proxy(websocket: &Slot<WebSocket>, report: &mut Report) {
    if let Some((at, WebSocket::Proxy)) = websocket.peek() {
        report.problem(
            at,
            "`websocket: proxy` is not yet in this version; use `refuse`",
        );
    }
}

fn each<T>(list: &Option<Placed<Vec<Part<T>>>>, mut then: impl FnMut(&T)) {
    let parts = list.iter().flat_map(|placed| &placed.value);
    for placed in parts.filter_map(|part| part.0.as_ref()) {
        then(&placed.value);
    }
}
