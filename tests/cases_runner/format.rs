//! The format of a case, as types.
//!
//! `deny_unknown_fields` everywhere: a field that the runner does not know fails the load, so that
//! no expectation can be lost. A variant is merged into its base as JSON first and read as a case
//! afterwards; there is one type for both.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

/// One case, or one variant with its base merged in.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub id: String,
    #[serde(default)]
    pub variant: Option<String>,
    pub group: String,
    pub setup: Setup,
    pub client: Value,
    #[serde(default)]
    pub upstream: Vec<Attempt>,
    pub expect: Expect,
}

impl Case {
    /// `CAP-01` or `CAP-11/empty_message`.
    pub fn name(&self) -> String {
        match &self.variant {
            Some(variant) => format!("{}/{variant}", self.id),
            None => self.id.clone(),
        }
    }

    /// The requests of the client, in order.
    pub fn requests(&self) -> Result<Plan, String> {
        let read = |value: &Value| {
            serde_json::from_value::<Request>(value.clone()).map_err(|e| format!("client: {e}"))
        };
        let count = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0) as usize;
        if let Some(list) = self.client.as_array() {
            let requests = list.iter().map(read).collect::<Result<_, _>>()?;
            return Ok(Plan {
                before: Vec::new(),
                requests,
                gap_ms: 0,
                parallel: false,
            });
        }
        let repeated = count(&self.client, "repeat").max(count(&self.client, "parallel"));
        if repeated > 0 {
            let before = self.client["before"].as_array().into_iter().flatten();
            return Ok(Plan {
                before: before.map(read).collect::<Result<_, _>>()?,
                requests: vec![read(&self.client["request"])?; repeated],
                gap_ms: self.client["gap_ms"].as_u64().unwrap_or(0),
                parallel: self.client.get("parallel").is_some(),
            });
        }
        Ok(Plan {
            before: Vec::new(),
            requests: vec![read(&self.client)?],
            gap_ms: 0,
            parallel: false,
        })
    }

    /// Whether a client or an upstream of it speaks WebSocket.
    pub fn websocket(&self) -> bool {
        let socket = |request: &Request| !request.ws_send.is_empty() || request.pipelined.is_some();
        self.group == "websocket"
            || self
                .upstream
                .iter()
                .any(|attempt| attempt.response.ws_frames.is_some())
            || self
                .requests()
                .is_ok_and(|plan| plan.requests.iter().any(socket))
    }
}

/// What the client does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sent one by one before the others start.
    pub before: Vec<Request>,
    pub requests: Vec<Request>,
    pub gap_ms: u64,
    pub parallel: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    #[serde(default)]
    pub credentials: Vec<Credential>,
    #[serde(default)]
    pub pick_order: Vec<String>,
    #[serde(default)]
    pub config: Semantic,
    #[serde(default)]
    pub cooldowns: Vec<HeldOut>,
    #[serde(default)]
    pub response_owner: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub turn_state_owner: Option<BTreeMap<String, String>>,
    /// For people: the times of the case are already scaled.
    #[serde(default, rename = "time_scale")]
    pub _time_scale: Option<String>,
    #[serde(default)]
    pub realms: BTreeMap<String, String>,
    #[serde(default)]
    pub route: Map<String, Value>,
    #[serde(default)]
    pub admission: Map<String, Value>,
    #[serde(default)]
    pub top: Map<String, Value>,
    #[serde(default)]
    pub after_ready: Vec<AdminStep>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    pub name: String,
    pub upstream_auth: String,
}

/// The semantic names of `setup.config`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Semantic {
    pub bootstrap_max_ms: Option<u64>,
    pub bootstrap_max_bytes: Option<u64>,
    pub header_timeout_ms: Option<u64>,
    pub non_stream_timeout_ms: Option<u64>,
    pub max_attempts: Option<u64>,
    pub replay_max_bytes: Option<u64>,
    /// The only behaviour that berth has: a subagent lands where its root is.
    #[serde(rename = "subagent_affinity")]
    pub _subagent_affinity: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldOut {
    pub credential: String,
    pub model: String,
    pub remaining_ms: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminStep {
    pub post: String,
    pub credential: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    #[serde(default)]
    pub http: String,
    #[serde(default)]
    pub method: String,
    #[serde(default)]
    pub path: String,
    #[serde(default)]
    pub headers: Vec<String>,
    pub body: Option<String>,
    pub body_b64: Option<String>,
    pub body_gen: Option<BodyGen>,
    pub wait_for_100_ms: Option<u64>,
    #[serde(default)]
    pub actions: Vec<Action>,
    pub at_ms: Option<u64>,
    #[serde(default)]
    pub reuse_connection: bool,
    /// The whole request as bytes, in place of everything above.
    pub raw: Option<String>,
    #[serde(default)]
    pub ws_send: Vec<Value>,
    pub pipelined: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BodyGen {
    pub kind: String,
    pub model: String,
    pub stream: bool,
    pub total_bytes: usize,
    pub seed: u64,
    #[serde(default)]
    pub model_last: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    pub at_ms: Option<u64>,
    pub after_event: Option<String>,
    pub after_body_bytes: Option<usize>,
    #[serde(rename = "do")]
    pub act: Act,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    Close,
    Reset,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    pub attempt: usize,
    pub credential: String,
    pub response: Response,
    #[serde(default)]
    pub expect_request: BTreeMap<String, String>,
    pub for_request: Option<usize>,
    pub connection: Option<String>,
    pub nth_on_credential: Option<String>,
    #[serde(default)]
    pub every_credential: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    pub connect: Option<String>,
    pub head: Option<String>,
    #[serde(default)]
    pub head_at_ms: u64,
    pub framing: Option<String>,
    #[serde(default)]
    pub writes: Vec<Write>,
    /// WebSocket: the messages after the 101.
    pub ws_frames: Option<Vec<Value>>,
    pub end: End,
    /// The head announces a body that is not sent (an answer to HEAD): nothing to be done here, the
    /// head's bytes are exact anyway.
    #[serde(default, rename = "keep_content_length")]
    pub _keep_content_length: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    pub how: String,
    pub at_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    #[serde(default)]
    pub at_ms: u64,
    pub bytes: Option<String>,
    pub b64: Option<String>,
    pub r#gen: Option<String>,
    pub prefix: Option<String>,
    pub unit: Option<String>,
    pub total_bytes: Option<usize>,
    pub write_size: Option<usize>,
    pub gap_ms: Option<u64>,
    pub from_ms: Option<u64>,
    pub every_ms: Option<u64>,
    pub until_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    #[serde(default)]
    pub attempts: Value,
    #[serde(default)]
    pub client: Value,
    /// `None`: not judged. Empty: nothing is excluded.
    pub cooldown: Option<Vec<Exclusion>>,
    #[serde(default)]
    pub cooldown_may: Vec<Exclusion>,
    #[serde(default)]
    pub cooldown_must_not_apply_to: Vec<Exclusion>,
    #[serde(default)]
    pub admin: Vec<AdminCall>,
    #[serde(default)]
    pub metrics: Vec<String>,
    pub audit: Option<AuditExpect>,
    pub upstream_seen: Option<Vec<Seen>>,
    #[serde(default)]
    pub affinity: BTreeMap<String, String>,
    pub logs: Option<Logs>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exclusion {
    pub credential: String,
    pub model: String,
    pub reason: Option<String>,
    pub basis: Option<String>,
    pub min_ms: Option<i64>,
    pub max_ms: Option<i64>,
    #[serde(default)]
    pub accept_ms: Vec<[i64; 2]>,
    #[serde(default)]
    pub clearable_without_restart: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminCall {
    #[serde(default = "get")]
    pub method: String,
    pub path: String,
    pub credential: Option<String>,
    pub token: String,
    pub status: Value,
}

fn get() -> String {
    "GET".into()
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditExpect {
    pub must: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    pub attempt: Option<usize>,
    pub closed_by_balancer: Option<String>,
    pub never: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    pub never_anywhere: Vec<String>,
    /// For people: the runner looks at everything that the process wrote, at its most talkative.
    #[serde(rename = "levels")]
    pub _levels: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientExpect {
    /// Which request of a list; read where the list is walked.
    #[serde(rename = "request")]
    pub _request: Option<usize>,
    #[serde(default)]
    pub status: Value,
    pub content_type: Option<String>,
    pub body: Option<BodyExpect>,
    pub headers: Option<HeadersExpect>,
    #[serde(default)]
    pub never: Vec<String>,
    #[serde(default)]
    pub timing: Value,
    pub end: Option<String>,
    pub connection: Option<String>,
    pub interim: Option<String>,
    #[serde(default)]
    pub one_of: Vec<ClientExpect>,
    pub second_response: Option<String>,
    pub ws: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BodyExpect {
    pub same_as_attempt: Option<usize>,
    pub frames_equal: Option<String>,
    #[serde(default)]
    pub json: BTreeMap<String, Value>,
    #[serde(default)]
    pub must_contain: Vec<String>,
    #[serde(default)]
    pub must_not_contain: Vec<String>,
    #[serde(default)]
    pub count: BTreeMap<String, Value>,
    pub order: Option<String>,
    #[serde(default)]
    pub synthesised_failed: BTreeMap<String, Value>,
    pub exact: Option<String>,
    /// For people: coding is always undone.
    #[serde(rename = "note")]
    pub _note: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadersExpect {
    #[serde(default)]
    pub must: Vec<String>,
    #[serde(default)]
    pub must_not: Vec<String>,
    /// A choice left open by the case.
    #[serde(rename = "policy")]
    pub _policy: Option<String>,
}

/// Every case and variant below `folder`, and the number of files.
pub fn load(folder: &Path) -> Result<(Vec<Case>, usize), String> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for file in &files {
        let told = |e: String| format!("{}: {e}", file.display());
        let text = std::fs::read_to_string(file).map_err(|e| told(e.to_string()))?;
        let whole: Value = serde_saphyr::from_str(&text).map_err(|e| told(e.to_string()))?;
        cases.extend(super::variants::expand(whole).map_err(told)?);
    }
    Ok((cases, files.len()))
}
