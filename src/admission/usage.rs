//! The tokens that an answer reports, in the words of each dialect.

use serde_json::value::RawValue;

use super::json::{Object, number};

/// Tokens of one answer; zero where nothing was reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the request, the cached ones included.
    pub input: u64,
    /// Of the request, read from a cache.
    pub cached: u64,
    /// Of the answer, reasoning included.
    pub output: u64,
    /// Of the answer, spent on reasoning.
    pub reasoning: u64,
}

impl Usage {
    /// Takes what a stream's event reports. Later reports of the same answer replace earlier ones,
    /// except that Messages reports its input at the start and its output at the end.
    pub fn add(&mut self, object: &Object<'_>, response: Option<&Object<'_>>) {
        let message = object.message.and_then(|raw| Object::of(Some(raw)));
        let reports = [
            object.usage,
            response.and_then(|r| r.usage),
            message.as_ref().and_then(|m| m.usage),
        ];
        for report in reports.into_iter().flatten() {
            self.add_report(report);
        }
    }

    /// What a whole document reports.
    pub fn of_document(body: &[u8]) -> Usage {
        let mut usage = Usage::default();
        if let Some(object) = Object::parse(body) {
            usage.add(&object, None);
        }
        usage
    }

    /// Whether anything was reported.
    pub fn is_known(&self) -> bool {
        *self != Usage::default()
    }

    fn add_report(&mut self, raw: &RawValue) {
        #[derive(serde::Deserialize, Default)]
        #[serde(default)]
        struct Report<'a> {
            #[serde(borrow)]
            input_tokens: Option<&'a RawValue>,
            #[serde(borrow)]
            prompt_tokens: Option<&'a RawValue>,
            #[serde(borrow)]
            output_tokens: Option<&'a RawValue>,
            #[serde(borrow)]
            completion_tokens: Option<&'a RawValue>,
            #[serde(borrow)]
            cache_read_input_tokens: Option<&'a RawValue>,
            #[serde(borrow)]
            input_tokens_details: Option<&'a RawValue>,
            #[serde(borrow)]
            prompt_tokens_details: Option<&'a RawValue>,
            #[serde(borrow)]
            output_tokens_details: Option<&'a RawValue>,
            #[serde(borrow)]
            completion_tokens_details: Option<&'a RawValue>,
        }
        #[derive(serde::Deserialize, Default)]
        #[serde(default)]
        struct Details<'a> {
            #[serde(borrow)]
            cached_tokens: Option<&'a RawValue>,
            #[serde(borrow)]
            reasoning_tokens: Option<&'a RawValue>,
        }
        let Ok(report) = serde_json::from_str::<Report<'_>>(raw.get()) else {
            return;
        };
        let count = |value: Option<&RawValue>| {
            number(value)
                .filter(|n| (0.0..1e12).contains(n))
                .map(|n| n as u64)
        };
        let details = |raw: Option<&RawValue>| -> (Option<u64>, Option<u64>) {
            let details: Option<Details<'_>> =
                raw.and_then(|raw| serde_json::from_str(raw.get()).ok());
            let details = details.unwrap_or_default();
            (
                count(details.cached_tokens),
                count(details.reasoning_tokens),
            )
        };
        let cached = |raw| details(raw).0;
        let reasoning = |raw| details(raw).1;
        let set = |field: &mut u64, value: Option<u64>| {
            if let Some(value) = value {
                *field = value;
            }
        };
        set(
            &mut self.input,
            count(report.input_tokens).or(count(report.prompt_tokens)),
        );
        set(
            &mut self.output,
            count(report.output_tokens).or(count(report.completion_tokens)),
        );
        set(
            &mut self.cached,
            count(report.cache_read_input_tokens)
                .or(cached(report.input_tokens_details))
                .or(cached(report.prompt_tokens_details)),
        );
        set(
            &mut self.reasoning,
            reasoning(report.output_tokens_details).or(reasoning(report.completion_tokens_details)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_is_read() {
        for (body, expected) in [
            (
                r#"{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":3},"output_tokens":2}}"#,
                (5, 3, 2),
            ),
            (
                r#"{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}"#,
                (5, 1, 2),
            ),
            (
                r#"{"usage":{"output_tokens":2,"output_tokens_details":{"reasoning_tokens":1}}}"#,
                (0, 0, 2),
            ),
            (
                r#"{"usage":{"input_tokens":5,"cache_read_input_tokens":4,"output_tokens":2}}"#,
                (5, 4, 2),
            ),
            (
                r#"{"usage":{"input_tokens":-5,"output_tokens":"x"}}"#,
                (0, 0, 0),
            ),
            (r#"{"usage":null}"#, (0, 0, 0)),
        ] {
            let usage = Usage::of_document(body.as_bytes());
            assert_eq!(
                (usage.input, usage.cached, usage.output),
                expected,
                "{body}"
            );
        }
    }

    #[test]
    fn a_stream_reports_at_its_start_and_at_its_end() {
        let mut usage = Usage::default();
        for data in [
            r#"{"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}"#,
            r#"{"type":"message_delta","usage":{"output_tokens":9}}"#,
        ] {
            usage.add(&Object::parse(data.as_bytes()).unwrap(), None);
        }
        assert_eq!((usage.input, usage.output), (7, 9));
    }
}
