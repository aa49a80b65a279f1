//! What a berth under test says on its admin port, and what it is told there.

use std::time::Instant;

use serde_json::Value;

use super::wire::{Answer, Client};
use super::{AGAIN, Berth, DEADLINE, TOKEN};

impl Berth {
    /// The value of a metric, named as it is written, labels included.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").await.text();
        let line = text.lines().find(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(' '))
        })?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// All series of a metric.
    pub async fn series(&self, name: &str) -> Vec<(String, f64)> {
        let text = self.get("/metrics").await.text();
        let of_it = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        text.lines()
            .filter(of_it)
            .map(|line| {
                let (series, value) = line.rsplit_once(' ').unwrap();
                (series.to_owned(), value.parse().unwrap())
            })
            .collect()
    }

    /// The credentials that are busy.
    pub async fn in_flight(&self) -> Vec<String> {
        let all = self.series("berth_in_flight").await;
        let busy = all.into_iter().filter(|(_, value)| *value != 0.0);
        busy.map(|(series, value)| format!("{series} {value}"))
            .collect()
    }

    /// Waits until a metric has a value.
    pub async fn metric_becomes(&self, name: &str, value: f64) {
        let since = Instant::now();
        loop {
            let now = self.metric(name).await;
            if now == Some(value) {
                return;
            }
            let late = since.elapsed() > DEADLINE;
            assert!(
                !late,
                "{name} is {now:?} instead of {value}\n{}",
                self.log()
            );
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// `/status`.
    pub async fn status(&self) -> Value {
        self.get("/status").await.json()
    }

    /// The states in `/status` that are not `ready`.
    pub async fn exclusions(&self) -> Vec<Value> {
        let status = self.status().await;
        let lists = ["pairs", "credentials"].map(|name| status[name].as_array().unwrap().clone());
        let all = lists.concat();
        assert!(!all.is_empty(), "{status:#}");
        let ready = |entry: &Value| entry["state"] == "ready";
        all.into_iter().filter(|entry| !ready(entry)).collect()
    }

    /// Forgets what was held against a credential.
    pub async fn reset(&self, id: &str) {
        let path = format!("/credentials/{id}/reset");
        let answer = self.operate("POST", &path).await;
        assert!(answer.status < 300, "{answer:?}");
    }

    /// Holds a credential out for a time.
    pub async fn hold_out(&self, id: &str, time: &str) {
        let path = format!("/credentials/{id}/hold-out?for={time}");
        let answer = self.operate("POST", &path).await;
        assert!(answer.status < 300, "{answer:?}");
    }

    /// Drains or enables a credential.
    pub async fn order_credential(&self, id: &str, order: &str) {
        let answer = self
            .operate("POST", &format!("/credentials/{id}/{order}"))
            .await;
        assert!(answer.status < 300, "{answer:?}");
    }

    /// A request to the admin port.
    pub async fn get(&self, path: &str) -> Answer {
        self.operate("GET", path).await
    }

    /// Any request to the admin port.
    pub async fn operate(&self, method: &str, path: &str) -> Answer {
        let mut client = Client::connect(self.admin).await;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n",
            self.admin
        );
        client.send(request).await;
        client.answer().await
    }
}
