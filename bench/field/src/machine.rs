//! What machine this is, and which versions were measured.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::contenders::{Place, Who, found};

/// The part of the document that says so.
pub fn described(place: &Place, root: &Path) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "| | |\n| --- | --- |");
    let mut line = |what: &str, value: Option<String>| {
        let _ = writeln!(
            text,
            "| {what} | {} |",
            value.as_deref().unwrap_or("?").trim()
        );
    };
    line("processor", processor());
    line("memory", memory());
    line(
        "kernel",
        fs::read_to_string("/proc/sys/kernel/osrelease").ok(),
    );
    line("day", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]));
    let commit = said(
        "git",
        &[
            "-C",
            &root.to_string_lossy(),
            "describe",
            "--always",
            "--dirty",
        ],
    );
    let version = said(place.programs.join("berth"), &["--version"]);
    line(
        "berth",
        version
            .zip(commit)
            .map(|(version, commit)| format!("{version}, {commit}")),
    );
    line("Pingora", locked(root, "pingora"));
    line("Rust", said("rustc", &["--version"]));
    line(
        Who::Nginx.name(),
        found("nginx").ok().and_then(|it| said(it, &["-v"])),
    );
    line(
        Who::Haproxy.name(),
        found("haproxy").ok().and_then(|it| said(it, &["-v"])),
    );
    let python = place.folder.join("litellm/bin/python");
    let version = "import importlib.metadata as m, sys; print(m.version('litellm') + ', Python ' + sys.version.split()[0])";
    line(Who::LiteLlm.name(), said(python, &["-c", version]));
    line(Who::Portkey.name(), portkey(place));
    text
}

fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"))?;
    let cores = std::thread::available_parallelism().ok()?;
    Some(format!(
        "{}, {cores} cores",
        name.trim_start_matches([' ', '\t', ':'])
    ))
}

fn memory() -> Option<String> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: f64 = total.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(format!("{:.0} GiB", kib / 1024.0 / 1024.0))
}

fn portkey(place: &Place) -> Option<String> {
    let package = place
        .folder
        .join("portkey/node_modules/@portkey-ai/gateway/package.json");
    let text = fs::read_to_string(package).ok()?;
    let package: serde_json::Value = serde_json::from_str(&text).ok()?;
    let node = said("node", &["--version"])?;
    Some(format!("{}, Node {node}", package["version"].as_str()?))
}

fn locked(root: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(root.join("Cargo.lock")).ok()?;
    let entry = text
        .split_once(&format!("name = \"{name}\"\nversion = \""))?
        .1;
    entry.split('"').next().map(str::to_owned)
}

/// The first line that a program says, to whomever it says it.
fn said(program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let line = String::from_utf8_lossy(&text)
        .lines()
        .next()?
        .trim()
        .to_owned();
    output.status.success().then_some(line)
}
