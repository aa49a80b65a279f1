//! `admission.rules`: an operator's own rules, to the table that `admission` asks.
//!
//! A rule is written at night, so what would do nothing is refused rather than ignored: one without a
//! condition or a term, a `hold` where the verdict excludes nothing. A term that is over is only a
//! warning: a rule that ends must not keep berth from starting.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::{Schema, json_schema};

use super::field::{Fault, Leaf, List, Node, Part, Placed, Slot};
use super::leaf::{Choice, Text};
use super::problem::{Place, Problem, Report, suggestion};
use super::raw;
use super::upstream::Upstreams;
use crate::admission::day::Day;
use crate::admission::rules::{BUILT_IN, Origin, Rule, Term, Then, When, folded};
use crate::admission::{HoldOut, Verdict};

/// Most rules (chosen: each is looked at for every failure, and is a series of a metric).
const MAX_RULES: usize = 64;
/// Most alternatives of one condition (chosen).
const MAX_ALTERNATIVES: usize = 64;
/// Longest code or type, characters; chosen, the longest known has 40.
const MAX_WORD: usize = 128;
/// Longest beginning of a message and longest reason, characters; chosen, a line or two.
const MAX_LINE: usize = 256;

impl Choice for Verdict {
    /// Those that a rule may state: the others are berth's own findings.
    const WORDS: &'static [(&'static str, Verdict)] = &[
        ("capacity", Verdict::Capacity),
        ("rate_limit", Verdict::RateLimit),
        ("quota", Verdict::Quota),
        ("auth", Verdict::Auth),
        ("deactivated", Verdict::Deactivated),
        ("model_unsupported", Verdict::ModelUnsupported),
        ("client_error", Verdict::ClientError),
        ("policy", Verdict::Policy),
        ("state", Verdict::State),
        ("forbidden", Verdict::Forbidden),
        ("challenge", Verdict::Challenge),
        ("transient", Verdict::Transient),
    ];
}

impl Choice for Then {
    const WORDS: &'static [(&'static str, Then)] = &[
        ("fail_over", Then::FailOver),
        ("pass_through", Then::PassThrough),
    ];
}

/// The rules, and what is to be said of each from the day after its last on.
#[derive(Default)]
pub struct Rules {
    pub usable: Vec<Rule>,
    pub expiries: Vec<Expiry>,
}

/// The end of a rule or of a client.
#[derive(Clone, Debug)]
pub struct Expiry {
    /// Its last day.
    pub last: Day,
    /// What is then to be said.
    pub warning: Problem,
}

pub fn rules(raw: List<Part<raw::Rule>>, upstreams: &Upstreams, report: &mut Report) -> Rules {
    let mut all = Rules::default();
    let mut named = BTreeSet::new();
    let Some(Placed { at, value: parts }) = raw.0 else {
        return all;
    };
    if parts.len() > MAX_RULES {
        report.problem(at, format!("there are at most {MAX_RULES} rules; remove those that `berth rules` shows without a hit"));
    }
    for part in parts {
        let Placed { at, value } = part.or_empty();
        let ends = value.expires.peek().map(|(place, _)| place);
        let Some(rule) = rule(at, value, (upstreams, &mut named), report) else {
            continue;
        };
        if let (Some(place), Some(last)) = (ends, rule.expires()) {
            let text = format!(
                "the rule `{}` has expired: its last day was {last}, and it matches nothing any \
                 more; remove it or give it a later day",
                rule.name
            );
            let warning = report.make(place, text);
            all.expiries.push(Expiry { last, warning });
        }
        all.usable.push(rule);
    }
    all
}

fn rule(
    section: Place,
    raw: raw::Rule,
    (upstreams, named): (&Upstreams, &mut BTreeSet<String>),
    report: &mut Report,
) -> Option<Rule> {
    let name = raw.name.must("name", section, report);
    if let Some(Placed { at, value }) = &name {
        check_name(*at, &value.0, named, report);
    }
    let when = raw.when.0.map(|placed| when(placed, upstreams, report));
    if when.is_none() {
        report.problem(section, format!("`when` is missing; {ONE_CONDITION}"));
    }
    let verdict = raw.verdict.must("verdict", section, report);
    let hold = raw.hold.take(report);
    let then = raw.then.take(report);
    let says = then.as_ref().map(|placed| placed.value);
    if let (Some(verdict), Some(hold)) = (&verdict, &hold) {
        check_hold(verdict.value, says, hold, report);
    }
    if let (Some(verdict), Some(then)) = (&verdict, &then)
        && (verdict.value, then.value) == (Verdict::Policy, Then::FailOver)
    {
        let text = "what a content policy forbids is never asked of another credential; remove \
                    `then`, or use another verdict";
        report.problem(then.at, text);
    }
    let term = term(section, (raw.expires, raw.permanent, raw.reason), report);
    Some(Rule {
        name: name?.value.0.into(),
        when: when?,
        verdict: verdict?.value,
        hold: hold.map(|placed| placed.value),
        then: says,
        origin: Origin::Configured(term?),
    })
}

fn check_name(at: Place, name: &str, named: &mut BTreeSet<String>, report: &mut Report) {
    if BUILT_IN.iter().any(|rule| &*rule.name == name) {
        let text = format!("`{name}` is a built-in rule; give this one another name");
        report.problem(at, text);
    }
    if !named.insert(name.to_owned()) {
        let text = format!("the name `{name}` is already taken above; names of rules are unique");
        report.problem(at, text);
    }
}

fn check_hold(verdict: Verdict, then: Option<Then>, hold: &Placed<Duration>, report: &mut Report) {
    let (at, name) = (hold.at, verdict.as_str());
    let useless = match (verdict.hold_out(), verdict, then) {
        (HoldOut::Stated { .. }, _, _) => None,
        (HoldOut::Nothing, Verdict::Capacity, Some(Then::PassThrough)) => {
            Some("with `pass_through` nothing is learned about seats".to_owned())
        }
        (HoldOut::Nothing, Verdict::Capacity, _) => None,
        (HoldOut::Nothing, _, _) => Some(format!("`{name}` excludes nothing")),
        (HoldOut::Doubling { .. }, _, _) => Some(format!(
            "what `{name}` excludes is out until a probe brings it back"
        )),
    };
    if let Some(why) = useless {
        report.problem(at, format!("{why}, so `hold` would do nothing; remove it"));
    }
    if hold.value < Duration::from_secs(1) {
        report.problem(at, "`hold` is at least `1s`");
    }
}

const ONE_CONDITION: &str =
    "a rule has at least one condition, such as `when: { status: 400, code: busy }`";

fn when(raw: Placed<raw::When>, upstreams: &Upstreams, report: &mut Report) -> When {
    let Placed { at, value: raw } = raw;
    let before = report.count();
    let mut known = Vec::new();
    for Placed { at, value: name } in alternatives("upstream", raw.upstream, report) {
        if !upstreams.named.contains(&name.0) {
            let near = suggestion(&name.0, upstreams.named.iter().map(String::as_str));
            let text = format!("no upstream under `upstreams` has this name{near}");
            report.problem(at, text);
        }
        known.push(name.0);
    }
    let status = values("status", raw.status, report);
    let when = When {
        status: status
            .into_iter()
            .map(|status: Status| status.0..=status.0)
            .collect(),
        dialect: values("dialect", raw.dialect, report),
        upstream: known,
        code: texts(values("code", raw.code, report)),
        kind: texts(values("type", raw.kind, report)),
        message_prefix: values("message_prefix", raw.message_prefix, report)
            .into_iter()
            .map(|beginning: Beginning| beginning.0)
            .collect(),
        ..When::default()
    };
    // A condition that is wrong has been complained about already.
    if when == When::default() && report.count() == before {
        report.problem(at, ONE_CONDITION);
    }
    when
}

fn texts(words: Vec<Word>) -> Vec<String> {
    words.into_iter().map(|word| word.0).collect()
}

fn values<T>(key: &str, slot: Slot<Alternatives<T>>, report: &mut Report) -> Vec<T>
where
    Alternatives<T>: Leaf,
{
    let placed = alternatives(key, slot, report);
    placed.into_iter().map(|placed| placed.value).collect()
}

fn alternatives<T>(key: &str, slot: Slot<Alternatives<T>>, report: &mut Report) -> Vec<Placed<T>>
where
    Alternatives<T>: Leaf,
{
    let Some(Placed { at, value }) = slot.take(report) else {
        return Vec::new();
    };
    if value.0.len() > MAX_ALTERNATIVES {
        let text = format!("`{key}` has at most {MAX_ALTERNATIVES} alternatives; write two rules");
        report.problem(at, text);
    }
    let placed = |(place, value): (Option<Place>, T)| Placed {
        at: place.unwrap_or(at),
        value,
    };
    value.0.into_iter().map(placed).collect()
}

type Terms = (Slot<Day>, Slot<bool>, Slot<Reason>);

fn term(section: Place, (expires, permanent, reason): Terms, report: &mut Report) -> Option<Term> {
    let written = (
        expires.is_written(),
        permanent.is_written(),
        reason.is_written(),
    );
    let (expires, permanent) = (expires.take(report), permanent.take(report));
    let reason = reason.take(report);
    match written {
        (false, false, _) => report.problem(
            section,
            "a rule says when it ends: add `expires: YYYY-MM-DD`, or `permanent: true` and a `reason`",
        ),
        (true, true, _) => report.problem(
            section,
            "`expires` and `permanent` exclude each other; keep one of the two",
        ),
        (true, false, true) => report.problem(
            section,
            "`reason` belongs to `permanent: true`; remove it or write a comment",
        ),
        (false, true, false) => {
            report.problem(section, "`permanent: true` needs a `reason`: why will it never end?");
        }
        (true, false, false) | (false, true, true) => {}
    }
    if let Some(Placed { at, value: false }) = permanent {
        report.problem(at, "write `true` here, or `expires: YYYY-MM-DD` instead");
    }
    match (expires, reason) {
        (Some(day), _) => Some(Term::Until(day.value)),
        (None, Some(reason)) => Some(Term::Permanent(reason.value.0)),
        (None, None) => None,
    }
}

/// One value, or a list of values of which any will do; each with its place in a list.
pub struct Alternatives<T>(Vec<(Option<Place>, T)>);

impl<T: Leaf> Leaf for Alternatives<T> {
    fn read(node: Node) -> Result<Alternatives<T>, Fault> {
        let Node::List(items) = node else {
            return Ok(Alternatives(vec![(None, T::read(node)?)]));
        };
        let read = |item: Placed<Node>| {
            let value = T::read(item.value).map_err(|fault| Fault {
                at: fault.at.or(Some(item.at)),
                ..fault
            });
            Ok((Some(item.at), value?))
        };
        items
            .into_iter()
            .map(read)
            .collect::<Result<_, _>>()
            .map(Alternatives)
    }

    fn schema() -> Schema {
        let one = T::schema();
        json_schema!({ "anyOf": [one, { "type": "array", "maxItems": MAX_ALTERNATIVES, "items": one }] })
    }
}

/// An HTTP status of an answer.
pub struct Status(u16);

impl Leaf for Status {
    fn read(node: Node) -> Result<Status, Fault> {
        match node {
            Node::Whole(status @ 200..=599) => Ok(Status(status as u16)),
            _ => Err("a status is expected here, 200 to 599, without quotes".into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "integer", "minimum": 200, "maximum": 599 })
    }
}

/// An error's code or type.
pub struct Word(String);

impl Leaf for Word {
    fn read(node: Node) -> Result<Word, Fault> {
        line(node, MAX_WORD).map(Word)
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": MAX_WORD })
    }
}

/// The beginning of a message, as messages are compared.
pub struct Beginning(String);

impl Leaf for Beginning {
    fn read(node: Node) -> Result<Beginning, Fault> {
        let text = folded(&line(node, MAX_LINE)?);
        match text.is_empty() {
            true => Err("every message begins with nothing; write its first words".into()),
            false => Ok(Beginning(text)),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": MAX_LINE })
    }
}

/// Why a rule never ends.
pub struct Reason(String);

impl Leaf for Reason {
    fn read(node: Node) -> Result<Reason, Fault> {
        line(node, MAX_LINE).map(Reason)
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": MAX_LINE })
    }
}

impl Leaf for Day {
    fn read(node: Node) -> Result<Day, Fault> {
        let bad = "a day is expected here, such as `2027-03-01`";
        let Node::Text(text) = node else {
            return Err(bad.into());
        };
        Day::parse(&text).ok_or(bad.into())
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$" })
    }
}

fn line(node: Node, most: usize) -> Result<String, Fault> {
    match Text::read(node)?.0 {
        text if text.chars().count() <= most => Ok(text),
        _ => Err(format!("the text is longer than {most} characters; shorten it").into()),
    }
}
