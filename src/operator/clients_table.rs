//! The clients in `berth status`: what each does, beside what it may.

use std::fmt::Write as _;

use serde::Deserialize;

use super::status::plain;

/// A client, as `/status` says it.
#[derive(Deserialize)]
pub struct Client {
    id: String,
    in_flight: u32,
    max_in_flight: Option<u32>,
    requests: u32,
    requests_per_minute: Option<u32>,
    tokens_today: u64,
    tokens_per_day: Option<u64>,
    expired: bool,
}

/// Clients that are shown. Chosen: a screen; `--json` has more.
const MOST: usize = 20;

/// The rest of a line beside the name, characters.
const REST: usize = 58;
/// Characters of a name that are always shown.
const SHORTEST: usize = 8;

/// A table of the busiest, at most `width` characters wide where there is room for a name; nothing
/// where there are no clients.
pub fn table(clients: &[Client], left_out: usize, width: Option<usize>) -> String {
    let shown = clients.iter().take(MOST);
    let longest = shown.clone().map(|it| it.id.len()).max().unwrap_or(0);
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(REST).max(SHORTEST));
    let names = longest.max("CLIENT".len()).min(room);
    let mut text = String::new();
    if clients.is_empty() {
        return text;
    }
    let _ = writeln!(
        text,
        "\n{:<names$}  {:<12}  {:<14}  TOKENS TODAY",
        "CLIENT", "IN FLIGHT", "LAST MINUTE"
    );
    for client in shown {
        let id: String = plain(&client.id).chars().take(names).collect();
        let in_flight = of(client.in_flight, client.max_in_flight);
        let requests = of(client.requests, client.requests_per_minute);
        let tokens = of(client.tokens_today, client.tokens_per_day);
        let expired = if client.expired { "  expired" } else { "" };
        let _ = writeln!(
            text,
            "{id:<names$}  {in_flight:<12}  {requests:<14}  {tokens}{expired}"
        );
    }
    let more = clients.len().saturating_sub(MOST).saturating_add(left_out);
    if more > 0 {
        let _ = writeln!(text, "and {more} more");
    }
    text
}

fn of<T: std::fmt::Display>(used: T, limit: Option<T>) -> String {
    match limit {
        Some(limit) => format!("{used}/{limit}"),
        None => used.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(id: &str) -> Client {
        Client {
            id: id.to_owned(),
            in_flight: 3,
            max_in_flight: Some(32),
            requests: 40,
            requests_per_minute: None,
            tokens_today: 1_234_567,
            tokens_per_day: Some(5_000_000),
            expired: false,
        }
    }

    #[test]
    fn a_client_stands_beside_its_limits() {
        let mut of_the_past = client("\u{1b}[2J-of-a-very-long-name");
        of_the_past.expired = true;
        let expected = "
CLIENT    IN FLIGHT     LAST MINUTE     TOKENS TODAY
lab-7     3/32          40              1234567/5000000
?[2J-of-  3/32          40              1234567/5000000  expired
";
        assert_eq!(
            table(&[client("lab-7"), of_the_past], 0, Some(60)),
            expected
        );
        assert_eq!(table(&[], 0, None), "");
    }

    #[test]
    fn a_table_of_clients_has_an_end() {
        let many: Vec<Client> = (0..200).map(|n| client(&format!("c{n}"))).collect();
        let text = table(&many, 7, None);
        assert_eq!(text.lines().count(), 2 + MOST + 1);
        assert!(text.ends_with("and 187 more\n"), "{text}");
    }
}
