//! Secrets, read from where they are kept.
//!
//! A secret is needed as a header value, so it is checked to be one when it is read: a key with a
//! line break in the middle is found at start and not by the first client. One trailing line break
//! is dropped, since nearly every way of writing a file leaves one. An error names the place and
//! says what to do; no message here can hold any part of a secret, since none is built from one.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use http::HeaderValue;
use secrecy::{ExposeSecret, SecretString};

use super::spec::SecretSource;

/// Reads the secret kept at `source`. It is not empty and a valid header value.
pub fn read_secret(source: &SecretSource) -> Result<SecretString, SecretError> {
    read_with(source, &|name| std::env::var_os(name))
}

/// A secret could not be had.
#[derive(Debug)]
pub struct SecretError {
    place: SecretSource,
    problem: Problem,
}

/// `prefix` and the secret from `source`, as a header value that is marked sensitive.
pub(super) fn header_value(
    prefix: &str,
    secret: &SecretString,
    source: &SecretSource,
) -> Result<HeaderValue, SecretError> {
    let text = format!("{prefix}{}", secret.expose_secret());
    let mut value = HeaderValue::try_from(text).map_err(|_| SecretError {
        place: source.clone(),
        problem: Problem::NotAHeaderValue,
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// When the file of a secret was written, as far as its metadata tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
}

/// The stamp of the file behind `source`; `None` where there is no file.
pub(super) fn stamp(source: &SecretSource) -> Result<Option<Stamp>, SecretError> {
    let fail = |problem| SecretError {
        place: source.clone(),
        problem,
    };
    let env = |name: &str| std::env::var_os(name);
    let Some(path) = path(source, &env).map_err(fail)? else {
        return Ok(None);
    };
    let found = fs::metadata(&path).map_err(|error| fail(Problem::Unreadable(error)))?;
    Ok(Some(Stamp {
        modified: found.modified().ok(),
        length: found.len(),
    }))
}

/// Longest secret, bytes (chosen: beyond any token, below what a mistaken path would cost).
const MAX_LENGTH: u64 = 64 * 1024;

/// Where systemd puts the credentials of a service.
const SYSTEMD_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

#[derive(Debug)]
enum Problem {
    NotSet,
    NoSystemdDirectory,
    NotAName,
    Unreadable(io::Error),
    NotAFile,
    TooLong,
    Empty,
    NotAHeaderValue,
}

fn read_with(source: &SecretSource, env: Environment) -> Result<SecretString, SecretError> {
    let read = || {
        let bytes = match source {
            SecretSource::Env(name) => env(name).ok_or(Problem::NotSet)?.into_encoded_bytes(),
            SecretSource::File(_) | SecretSource::Systemd(_) => {
                let path = path(source, env)?.ok_or(Problem::NotSet)?;
                read_file(&path)?
            }
        };
        check(bytes)
    };
    read().map_err(|problem| SecretError {
        place: source.clone(),
        problem,
    })
}

fn path(source: &SecretSource, env: Environment) -> Result<Option<PathBuf>, Problem> {
    match source {
        SecretSource::Env(_) => Ok(None),
        SecretSource::File(path) => Ok(Some(path.clone())),
        SecretSource::Systemd(name) => {
            if name.is_empty() || name == "." || name == ".." || name.contains('/') {
                return Err(Problem::NotAName);
            }
            let folder = env(SYSTEMD_DIRECTORY).ok_or(Problem::NoSystemdDirectory)?;
            Ok(Some(Path::new(&folder).join(name)))
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, Problem> {
    // Asked before opening: to open a named pipe would wait for its writer.
    if !fs::metadata(path).map_err(Problem::Unreadable)?.is_file() {
        return Err(Problem::NotAFile);
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_LENGTH + 1).read_to_end(&mut bytes))
        .map_err(Problem::Unreadable)?;
    Ok(bytes)
}

fn check(mut bytes: Vec<u8>) -> Result<SecretString, Problem> {
    if bytes.len() as u64 > MAX_LENGTH {
        return Err(Problem::TooLong);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    if bytes.is_empty() {
        return Err(Problem::Empty);
    }
    // The conversion error of a String carries its bytes, so it is dropped here.
    let text = String::from_utf8(bytes).map_err(|_| Problem::NotAHeaderValue)?;
    HeaderValue::from_str(&text).map_err(|_| Problem::NotAHeaderValue)?;
    Ok(SecretString::from(text))
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            SecretSource::Env(name) => write!(f, "environment variable {name} ")?,
            SecretSource::File(path) => write!(f, "file {} ", path.display())?,
            SecretSource::Systemd(name) => write!(f, "systemd credential {name} ")?,
        }
        match &self.problem {
            Problem::NotSet => f.write_str("is not set: set it where berth is started"),
            Problem::NoSystemdDirectory => write!(
                f,
                "has no folder, {SYSTEMD_DIRECTORY} is not set: add LoadCredential= to the unit"
            ),
            Problem::NotAName => {
                f.write_str("is not a plain name: write it as in LoadCredential=, without a path")
            }
            Problem::Unreadable(error) => write!(
                f,
                "cannot be read ({error}): check that it is there and that berth's user may read it"
            ),
            Problem::NotAFile => f.write_str("is not a regular file: name the file itself"),
            Problem::TooLong => write!(
                f,
                "is longer than {MAX_LENGTH} bytes: check that it holds the secret and nothing else"
            ),
            Problem::Empty => f.write_str("is empty: put the secret there"),
            Problem::NotAHeaderValue => f.write_str(
                "holds characters that no header may carry: keep the secret alone, on one line, \
                 as plain text",
            ),
        }
    }
}

impl std::error::Error for SecretError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> (tempfile::TempDir, SecretSource) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, content).unwrap();
        (folder, SecretSource::File(path))
    }

    fn message(source: &SecretSource) -> String {
        read_secret(source).unwrap_err().to_string()
    }

    #[test]
    fn one_trailing_line_break_is_dropped() {
        let mut seen = 0;
        for content in ["sk-1", "sk-1\n", "sk-1\r\n"] {
            let (_folder, source) = file(content.as_bytes());
            assert_eq!(read_secret(&source).unwrap().expose_secret(), "sk-1");
            seen += 1;
        }
        assert_eq!(seen, 3);
        let (_folder, source) = file(b"sk-1\n\n");
        assert!(message(&source).contains("no header may carry"));
    }

    #[test]
    fn what_no_header_may_carry_is_refused_and_never_printed() {
        let long = vec![b'k'; 64 * 1024 + 1];
        let cases: [(&[u8], &str); 6] = [
            (b"sk-hush\nsk-other", "on one line"),
            (b"sk-hush\0", "on one line"),
            (b"sk-hush\x7f", "on one line"),
            (b"sk-hush\xff", "as plain text"),
            (b"\n", "is empty"),
            (&long, "longer than 65536 bytes"),
        ];
        for (content, part) in cases {
            let (_folder, source) = file(content);
            let error = read_secret(&source).unwrap_err();
            let told = format!("{error} {error:?}");
            assert!(told.contains(part), "{told}");
            assert!(!told.contains("hush") && !told.contains("kkkk"), "{told}");
        }
    }

    #[test]
    fn the_longest_secret_is_taken() {
        let (_folder, source) = file(&vec![b'k'; 64 * 1024]);
        assert!(read_secret(&source).is_ok());
    }

    #[test]
    fn a_file_that_is_missing_or_a_folder_says_so() {
        let (folder, source) = file(b"sk-1");
        let SecretSource::File(path) = &source else {
            panic!()
        };
        fs::remove_file(path).unwrap();
        assert!(message(&source).contains("cannot be read"));
        assert!(stamp(&source).is_err());
        let here = SecretSource::File(folder.path().to_owned());
        assert!(message(&here).contains("not a regular file"));
    }

    #[test]
    fn the_environment_is_asked_by_name() {
        let env = |name: &str| (name == "KEY").then(|| OsString::from("sk-1"));
        let secret = read_with(&SecretSource::Env("KEY".into()), &env).unwrap();
        assert_eq!(secret.expose_secret(), "sk-1");
        let error = read_with(&SecretSource::Env("NO_KEY".into()), &env).unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment variable NO_KEY is not set: set it where berth is started"
        );
    }

    #[test]
    fn systemd_credentials_are_plain_names_in_their_folder() {
        let (folder, _) = file(b"sk-1\n");
        let here = folder.path().as_os_str().to_owned();
        let env = move |name: &str| (name == SYSTEMD_DIRECTORY).then(|| here.clone());
        let named = |name: &str| SecretSource::Systemd(name.into());
        let secret = read_with(&named("key"), &env).unwrap();
        assert_eq!(secret.expose_secret(), "sk-1");
        for name in ["../key", "..", "", "a/b"] {
            let error = read_with(&named(name), &env).unwrap_err();
            assert!(error.to_string().contains("not a plain name"), "{error}");
        }
        let error = read_with(&named("key"), &|_| None).unwrap_err();
        assert!(error.to_string().contains("LoadCredential="), "{error}");
    }
}
