//! `berth client`: the file of clients, changed from the command line.
//!
//! A key is made here, printed once and kept nowhere: the file has its SHA-256. What a person wrote into
//! the file stays as it is, comments too, because only the lines of one client are added or taken out. The
//! result is read before it takes the old file's place: a change that would say anything else than was
//! asked for is not made. Two commands at once wait for each other (the folder is locked), and whoever
//! reads meanwhile reads the old file or the new one.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};

use crate::admission::day::Day;
use crate::clients::{ClientId, ClientSpec, KeyDigest};
use crate::config::{self, Clients, FileClient, parse_clients};

/// What is done with the file.
#[derive(Subcommand)]
pub enum Command {
    /// Make a key for a new client, and print it: once, on the standard output.
    Add(Add),
    /// The clients and what they may.
    List {
        #[command(flatten)]
        of: Of,
    },
    /// Take a client off the list: its key works no more, what runs goes on to its end.
    Revoke {
        /// Its name.
        id: String,
        #[command(flatten)]
        of: Of,
    },
}

/// Whose file.
#[derive(Args)]
pub struct Of {
    /// The configuration; its `clients_file` is read and changed.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

/// A new client.
#[derive(Args)]
pub struct Add {
    /// Its name: a-z, 0-9 and `-`.
    id: String,
    #[command(flatten)]
    of: Of,
    /// Requests in any sixty seconds; 0 is no limit. Default: 600.
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<u32>,
    /// Requests in flight at once; 0 is no limit. Default: 32.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    /// Globs of the models it may ask for, `!` excludes. Default: all.
    #[arg(long, value_name = "GLOB,...", value_delimiter = ',')]
    models: Vec<String>,
    /// Tokens of a day in UTC. Default: no limit.
    #[arg(long, value_name = "N")]
    tokens_per_day: Option<u64>,
    /// Its last day, in UTC. Default: it has none.
    #[arg(long, value_name = "YYYY-MM-DD")]
    expires: Option<String>,
}

/// Why it was not done.
#[derive(Debug)]
pub enum Fault {
    /// The configuration or the file of clients is bad; its problems with their places.
    Configuration(String),
    /// Anything else, in a sentence.
    Failed(String),
}

/// Does it, and gives what is to be printed.
///
/// # Errors
///
/// Why it was not done; then the file is as it was.
pub fn run(command: &Command) -> Result<String, Fault> {
    match command {
        Command::Add(add) => {
            let book = Book::open(&add.of.config)?;
            let key = new_key();
            let (key_digest, id) = (KeyDigest::of(key.as_bytes()), name(&add.id)?);
            if book.all().any(|it| it.id == id) {
                return failed(format!(
                    "there is a client `{id}` already; revoke it first, or take another name"
                ));
            }
            let entry = entry(add, key_digest);
            // What is wrong with it is told by itself: the file has no part in that.
            let alone = parse_clients("the new client", &entry, &[]);
            alone.map_err(|why| Fault::Failed(format!("nothing was changed; {why}")))?;
            book.replace(
                &appended(&book.text, &entry, book.read.is_empty()),
                |before, after| {
                    let (last, others) = after.split_last()?;
                    (last.id == id && last.key == key_digest && same(before, others)).then_some(())
                },
            )?;
            Ok(format!("{key}\n"))
        }
        Command::List { of } => Ok(table(&Book::open(&of.config)?)),
        Command::Revoke { id, of } => {
            let book = Book::open(&of.config)?;
            let id = name(id)?;
            if book.clients.listed.iter().any(|it| it.id == id) {
                return failed(format!(
                    "`{id}` is a client of {} itself; take it out there and reload",
                    of.config.display()
                ));
            }
            let Some(at) = book.read.iter().position(|it| it.spec.id == id) else {
                return failed(format!(
                    "there is no client `{id}` in {}",
                    book.path.display()
                ));
            };
            let rest = without(&book, at);
            book.replace(&rest, |before, after| {
                let others = before.iter().filter(|it| it.id != id).cloned();
                same(&others.collect::<Vec<_>>(), after).then_some(())
            })?;
            Ok(format!("{id} is revoked\n"))
        }
    }
}

/// The file of clients as it is, locked.
struct Book {
    path: PathBuf,
    /// Whose owner and mode a new file has.
    config: PathBuf,
    clients: Clients,
    text: String,
    read: Vec<FileClient>,
    /// Held until the end.
    _lock: File,
}

impl Book {
    fn open(config: &Path) -> Result<Book, Fault> {
        let bad = |problems: config::Problems| Fault::Configuration(problems.to_string());
        let loaded = config::load(config).map_err(bad)?;
        let none = || {
            let text = "has no `clients_file`; add `clients_file: /etc/berth/clients.yaml`, or another path";
            Fault::Failed(format!("{} {text}", config.display()))
        };
        let clients = loaded.clients.ok_or_else(none)?;
        let named = clients.file.clone().ok_or_else(none)?;
        // A link goes on leading to the one file.
        let path = fs::canonicalize(&named).unwrap_or(named);
        if fs::metadata(&path).is_ok_and(|it| !it.is_file()) {
            return failed(format!("{} is no regular file", path.display()));
        }
        let folder = path.parent().unwrap_or(Path::new("/"));
        let opened = File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
        let lock = opened.map_err(|e| Fault::Failed(format!("{}: {e}", folder.display())))?;
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(Fault::Failed(format!("{}: {e}", path.display()))),
        };
        let read = parse_clients(&path.to_string_lossy(), &text, &clients.listed).map_err(bad)?;
        Ok(Book {
            path,
            config: config.to_owned(),
            clients,
            text,
            read,
            _lock: lock,
        })
    }

    fn all(&self) -> impl Iterator<Item = &ClientSpec> {
        let of_file = self.read.iter().map(|it| &it.spec);
        self.clients.listed.iter().chain(of_file)
    }

    /// Puts `text` in the file's place, if it says what it is to say.
    fn replace(
        &self,
        text: &str,
        is_right: impl Fn(&[ClientSpec], &[ClientSpec]) -> Option<()>,
    ) -> Result<(), Fault> {
        let specs = |read: &[FileClient]| read.iter().map(|it| it.spec.clone()).collect::<Vec<_>>();
        let after = parse_clients(&self.path.to_string_lossy(), text, &self.clients.listed);
        let right = after
            .as_ref()
            .ok()
            .and_then(|after| is_right(&specs(&self.read), &specs(after)));
        if right.is_none() {
            let why = match after {
                Err(problems) => format!(" ({problems})"),
                Ok(_) => String::new(),
            };
            return failed(format!(
                "{} is not written as berth writes it, one client after the other from the beginning of a \
                 line; change it by hand{why}",
                self.path.display()
            ));
        }
        self.write(text)
            .map_err(|e| Fault::Failed(format!("{}: {e}", self.path.display())))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        // Whoever could read the old file can read the new one; at first, whoever reads the configuration,
        // which berth's user does.
        let like = fs::metadata(&self.path).or_else(|_| fs::metadata(&self.config))?;
        let mine = file.as_file().metadata()?;
        if (mine.uid(), mine.gid()) != (like.uid(), like.gid()) {
            std::os::unix::fs::chown(file.path(), Some(like.uid()), Some(like.gid()))?;
        }
        file.as_file()
            .set_permissions(Permissions::from_mode(like.mode() & 0o666))?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

/// 256 random bits, with a beginning by which a scanner for leaked keys knows it.
fn new_key() -> String {
    let bits: [u8; 32] = rand::random();
    let hex: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("berth-{hex}")
}

fn name(id: &str) -> Result<ClientId, Fault> {
    let form =
        "a client's name is 1 to 64 of the characters a-z, 0-9 and `-`, and not `none` or `other`";
    ClientId::new(id).ok_or_else(|| Fault::Failed(form.to_owned()))
}

fn entry(add: &Add, key: KeyDigest) -> String {
    let mut lines = vec![
        format!("- id: \"{}\"", add.id),
        format!("key_sha256: \"{}\"", key.to_hex()),
    ];
    let numbers = [
        (
            "requests_per_minute",
            add.requests_per_minute.map(u64::from),
        ),
        ("max_in_flight", add.max_in_flight.map(u64::from)),
        ("tokens_per_day", add.tokens_per_day),
    ];
    for (key, number) in numbers {
        lines.extend(number.map(|number| format!("{key}: {number}")));
    }
    if !add.models.is_empty() {
        // Whatever is typed is one value in JSON's quotes, which YAML reads too.
        let models = add
            .models
            .iter()
            .map(|it| serde_json::Value::from(it.as_str()).to_string());
        lines.push(format!(
            "models: [{}]",
            models.collect::<Vec<_>>().join(", ")
        ));
    }
    lines.extend(add.expires.as_ref().map(|day| {
        let day = serde_json::Value::from(day.as_str());
        format!("expires: {day}")
    }));
    lines.join("\n  ") + "\n"
}

fn appended(text: &str, entry: &str, is_empty: bool) -> String {
    if is_empty {
        // What is there are comments, or an empty list.
        let comments = text.lines().filter(|line| line.starts_with('#'));
        let kept: String = comments.map(|line| format!("{line}\n")).collect();
        let head = if kept.is_empty() { HEAD } else { &kept };
        return format!("{head}{entry}");
    }
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}{entry}")
}

/// The text without the lines of one client. What stands between it and the next one, a comment or an
/// empty line, stays.
fn without(book: &Book, at: usize) -> String {
    let begins = |at: usize| book.read.get(at).map(|it| it.place.line);
    let lines: Vec<&str> = book.text.lines().collect();
    let first = usize::try_from(begins(at).unwrap_or(1)).unwrap_or(1) - 1;
    let next = begins(at + 1).and_then(|line| usize::try_from(line - 1).ok());
    let next = next.unwrap_or(lines.len()).min(lines.len());
    let own = lines.get(first..next).unwrap_or_default();
    let says = |line: &&&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let after = own.iter().rev().take_while(|line| !says(line)).count();
    let kept = lines
        .iter()
        .enumerate()
        .filter(|(n, _)| *n < first || *n >= next - after);
    let mut text: String = kept.map(|(_, line)| format!("{line}\n")).collect();
    if book.read.len() == 1 {
        text.push_str("[]\n");
    }
    text
}

fn same(these: &[ClientSpec], those: &[ClientSpec]) -> bool {
    // Everything of a spec is in its debug text but the key, which says nothing there.
    let text = |spec: &ClientSpec| (spec.key, format!("{spec:?}"));
    these.iter().map(text).eq(those.iter().map(text))
}

fn table(book: &Book) -> String {
    let today = Day::of(SystemTime::now());
    let mut rows = vec![HEADS.map(str::to_owned)];
    for spec in book.all() {
        let number = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        let expires = spec.expires.map(|day| match spec.is_expired(today) {
            true => format!("{day} (over)"),
            false => day.to_string(),
        });
        rows.push([
            spec.id.to_string(),
            spec.key.fingerprint(),
            number(spec.requests_per_minute.map(|it| it.to_string())),
            number(spec.max_in_flight.map(|it| it.to_string())),
            number(spec.tokens_per_day.map(|it| it.to_string())),
            number(expires),
            spec.models
                .as_ref()
                .map_or_else(|| "*".to_owned(), ToString::to_string),
        ]);
    }
    let mut widths = [0; HEADS.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; HEADS.len()]| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}  "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

fn failed<T>(why: String) -> Result<T, Fault> {
    Err(Fault::Failed(why))
}

const HEADS: [&str; 7] = [
    "CLIENT",
    "KEY",
    "PER MINUTE",
    "IN FLIGHT",
    "TOKENS/DAY",
    "EXPIRES",
    "MODELS",
];

const HEAD: &str = "# Clients of berth, as under `clients:` in its configuration. `berth client add|list|revoke` changes\n\
                    # this file; berth reads it again within a second or two.\n";

#[cfg(test)]
mod tests;
