//! Who a client is, as far as shares of memory, retries and the waiting room go.
//!
//! This is the only place that decides it. As long as clients do not prove who they are, a client is
//! the address that it connects from; an IPv6 host has as many addresses as it likes within its /64, so
//! that counts as one. Nothing that a client writes into its request is believed.

use std::net::IpAddr;

use pingora::proxy::Session;

use super::hash::stable;
use crate::admission::share::Client;

/// The client of this request.
pub fn of(session: &Session) -> Client {
    let address = session
        .client_addr()
        .and_then(|address| address.as_inet())
        .map(|address| host(address.ip()));
    Client::hashed(stable(&[address.unwrap_or_default().as_bytes()]))
}

/// An address, as far as it tells one host from another.
pub(super) fn host(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_client_whatever_form_its_address_has() {
        let host = |text: &str| host(text.parse().unwrap());
        assert_eq!(host("127.0.0.2"), host("::ffff:127.0.0.2"));
        assert_eq!(host("2001:db8:1:2::1"), host("2001:db8:1:2:ffff::9"));
        assert_ne!(host("2001:db8:1:2::1"), host("2001:db8:1:3::1"));
        assert_ne!(host("127.0.0.2"), host("127.0.0.3"));
    }
}
