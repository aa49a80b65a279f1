//! The parameters of an order. Anything that is not understood is an error: an order that does
//! less than it says is worse than none.

use std::time::Duration;

use super::Order;
use crate::observe::groups::Kind;

/// The order that `verb` and its query ask for, or what is wrong with them.
pub(super) fn order(verb: &str, query: &str) -> Result<Order, String> {
    let (mut model, mut time) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match (verb, name) {
            ("hold-out", "model") => &mut model,
            ("hold-out", "for") => &mut time,
            ("hold-out", _) => return Err("hold-out takes `model` and `for` only".to_owned()),
            _ => return Err(format!("{verb} takes no parameters")),
        };
        let value = decoded(value).ok_or_else(|| format!("`{name}` is not well encoded"))?;
        if place.replace(value).is_some() {
            return Err(format!("`{name}` is there twice"));
        }
    }
    match verb {
        "drain" => Ok(Order::Drain),
        "enable" => Ok(Order::Enable),
        "reset" => Ok(Order::Reset),
        _ => Ok(Order::HoldOut {
            model: model
                .filter(|model| model != "*")
                .map(checked_model)
                .transpose()?,
            time: checked_time(&time.ok_or(WHAT_FOR)?)?,
        }),
    }
}

/// By what credentials are to be grouped, or what is wrong with that. Reading does no harm, so what else
/// there is in the query is left alone.
pub(super) fn by(query: &str) -> Result<Option<Kind>, String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("by="));
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let word = decoded(value).ok_or("`by` is not well encoded")?;
    Kind::argument(&word).map(Some)
}

fn checked_model(model: String) -> Result<String, String> {
    let plain = model.bytes().all(|b| b.is_ascii_graphic());
    match (1..=MAX_MODEL).contains(&model.len()) && plain {
        true => Ok(model),
        false => Err(format!(
            "`model` is 1 to {MAX_MODEL} printable characters; leave it out for every model"
        )),
    }
}

fn checked_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|_| WHAT_FOR)?;
    match !time.is_zero() && time <= MAX_TIME {
        true => Ok(time),
        false => Err("`for` is more than 0 and at most 30 days; drain has no end".to_owned()),
    }
}

/// `%XX` and `+`; `None` where a `%` is followed by something else, or the bytes are no text.
fn decoded(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Bytes; as in the audit.
const MAX_MODEL: usize = 128;
/// The longest quota window of any vendor is a month.
const MAX_TIME: Duration = Duration::from_secs(30 * 24 * 3_600);
const WHAT_FOR: &str = "`for` says how long, such as 30s, 5m or 2h";

#[cfg(test)]
mod tests {
    use super::*;

    fn hold_out(model: Option<&str>, secs: u64) -> Result<Order, String> {
        let time = Duration::from_secs(secs);
        Ok(Order::HoldOut {
            model: model.map(str::to_owned),
            time,
        })
    }

    #[test]
    fn a_hold_out_says_how_long_and_perhaps_for_which_model() {
        assert_eq!(
            order("hold-out", "model=gpt-5&for=30s"),
            hold_out(Some("gpt-5"), 30)
        );
        assert_eq!(
            order("hold-out", "for=5m&model=a%2fb%3A1"),
            hold_out(Some("a/b:1"), 300)
        );
        assert_eq!(order("hold-out", "for=600s"), hold_out(None, 600));
        assert_eq!(
            order("hold-out", "for=30days&model=*"),
            hold_out(None, 2_592_000)
        );
    }

    #[test]
    fn groups_are_asked_for_as_a_kind_is_written() {
        let kind = Kind::Label("cohort & more".to_owned());
        assert_eq!(by(&kind.query()), Ok(Some(kind)));
        assert_eq!(by("x=1&by=route"), Ok(Some(Kind::Route)));
        assert_eq!((by(""), by("by=")), (Ok(None), Ok(None)));
        for odd in ["by=label:", "by=account", "by=%zz"] {
            assert!(by(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        let odd = [
            "",
            "for=",
            "for=5",
            "for=0s",
            "for=31d",
            "for=-1s",
            "for=soon",
            "for=1s&for=2s",
            "for=1s&mode=x",
            "for=1s&model=",
            "for=1s&model=a%20b",
            "for=1s&model=%0a",
            "for=1s&model=%zz",
            "for=1s&model=%f",
            "for=1s&model=%ff",
            "for=99999999999999999999s",
        ];
        for query in odd {
            assert!(order("hold-out", query).is_err(), "{query}");
        }
        assert!(order("hold-out", &format!("for=1s&model={}", "m".repeat(129))).is_err());
        assert_eq!(order("drain", ""), Ok(Order::Drain));
        assert_eq!(
            order("drain", "for=1s"),
            Err("drain takes no parameters".to_owned())
        );
    }
}
