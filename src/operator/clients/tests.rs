use super::*;

const CONFIG: &str = "upstreams: { up: { base_url: https://api.example.net/v1 } }\n\
                      credentials: [{ id: main, upstream: up, secret: { systemd: main } }]\n";

struct Office {
    folder: tempfile::TempDir,
}

impl Office {
    fn new(more: &str) -> Office {
        let folder = tempfile::tempdir().unwrap();
        let office = Office { folder };
        let text = format!("{CONFIG}clients_file: {}\n{more}", office.file().display());
        fs::write(office.config(), text).unwrap();
        office
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("berth.yaml")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("clients.yaml")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn of(&self) -> Of {
        Of {
            config: self.config(),
        }
    }

    fn add(&self, id: &str) -> Add {
        Add {
            id: id.to_owned(),
            of: self.of(),
            requests_per_minute: None,
            max_in_flight: None,
            models: Vec::new(),
            tokens_per_day: None,
            expires: None,
        }
    }

    fn added(&self, id: &str) -> String {
        run(&Command::Add(self.add(id)))
            .unwrap()
            .trim_end()
            .to_owned()
    }

    fn revoke(&self, id: &str) -> Result<String, Fault> {
        let (id, of) = (id.to_owned(), self.of());
        run(&Command::Revoke { id, of })
    }

    fn names(&self) -> Vec<String> {
        let read = config::load_clients(&self.file(), &[]).unwrap();
        read.iter().map(|it| it.spec.id.to_string()).collect()
    }
}

fn why<T: std::fmt::Debug>(done: Result<T, Fault>) -> String {
    match done.unwrap_err() {
        Fault::Configuration(why) | Fault::Failed(why) => why,
    }
}

#[test]
fn a_key_is_printed_once_and_kept_nowhere() {
    let office = Office::new("");
    let key = office.added("lab-7");
    assert!(key.starts_with("berth-") && key.len() == 70, "{key}");
    assert!(!office.text().contains(&key[6..]));
    let read = config::load_clients(&office.file(), &[]).unwrap();
    assert_eq!(read[0].spec.key, KeyDigest::of(key.as_bytes()));
    let list = run(&Command::List { of: office.of() }).unwrap();
    let digest = KeyDigest::of(key.as_bytes());
    assert!(
        list.contains("lab-7") && list.contains(&digest.fingerprint()),
        "{list}"
    );
    assert!(!list.contains(&digest.to_hex()), "{list}");
    assert_ne!(office.added("lab-8"), key);
}

#[test]
fn what_is_asked_for_is_what_the_file_says() {
    let office = Office::new("");
    let add = Add {
        requests_per_minute: Some(0),
        max_in_flight: Some(4),
        models: vec!["gpt-*".to_owned(), "!gpt-\"x".to_owned()],
        tokens_per_day: Some(5_000_000),
        expires: Some("2027-09-30".to_owned()),
        ..office.add("lab-7")
    };
    run(&Command::Add(add)).unwrap();
    let spec = &config::load_clients(&office.file(), &[]).unwrap()[0].spec;
    assert_eq!(spec.requests_per_minute, None);
    assert_eq!(spec.max_in_flight.unwrap().get(), 4);
    assert_eq!(spec.tokens_per_day.unwrap().get(), 5_000_000);
    assert_eq!(spec.expires, Day::parse("2027-09-30"));
    assert_eq!(spec.models.as_ref().unwrap().to_string(), "gpt-*,!gpt-\"x");
    // An id that looks like a number, and values that mean nothing.
    office.added("0");
    let bad = Add {
        expires: Some("soon\n- id: x".to_owned()),
        ..office.add("b")
    };
    let said = why(run(&Command::Add(bad)));
    assert!(
        said.starts_with("nothing was changed; the new client:"),
        "{said}"
    );
    assert!(said.contains("a day is expected"), "{said}");
    assert!(why(run(&Command::Add(office.add("A b")))).contains("a-z, 0-9"));
    assert!(why(run(&Command::Add(office.add("0")))).contains("already"));
    assert_eq!(office.names(), ["lab-7", "0"]);
}

#[test]
fn a_link_to_the_file_stays_one() {
    let office = Office::new("");
    let real = office.file().with_file_name("real.yaml");
    fs::write(&real, "").unwrap();
    let _ = fs::remove_file(office.file());
    std::os::unix::fs::symlink(&real, office.file()).unwrap();
    office.added("lab-7");
    assert!(office.file().is_symlink());
    assert!(fs::read_to_string(&real).unwrap().contains("lab-7"));
}

#[test]
fn what_a_person_wrote_stays() {
    let office = Office::new("");
    let digest = |key: &str| KeyDigest::of(key.as_bytes()).to_hex();
    let (a, b, c) = (digest("a"), digest("b"), digest("c"));
    let text = format!(
        "# Ours.\n- id: a\n  # of the lab\n  key_sha256: \"{a}\"\n\n# A guest.\n- {{ id: b, key_sha256: \"{b}\" }}\n- key_sha256: \"{c}\"\n  id: c"
    );
    fs::write(office.file(), &text).unwrap();
    office.revoke("a").unwrap();
    let kept = format!(
        "# Ours.\n\n# A guest.\n- {{ id: b, key_sha256: \"{b}\" }}\n- key_sha256: \"{c}\"\n  id: c\n"
    );
    assert_eq!(office.text(), kept);
    office.added("d");
    office.revoke("c").unwrap();
    assert_eq!(office.names(), ["b", "d"]);
    office.revoke("b").unwrap();
    office.revoke("d").unwrap();
    assert_eq!(office.names(), [""; 0]);
    office.added("e");
    assert_eq!(office.names(), ["e"]);
    assert!(
        office.text().starts_with("# Ours.\n# A guest.\n- id"),
        "{}",
        office.text()
    );
}

#[test]
fn a_form_that_cannot_be_changed_by_lines_is_left_alone() {
    let office = Office::new("");
    let digest = |key: &str| KeyDigest::of(key.as_bytes()).to_hex();
    let text = format!(
        "[{{ id: a, key_sha256: \"{}\" }}, {{ id: b, key_sha256: \"{}\" }}]\n",
        digest("a"),
        digest("b")
    );
    fs::write(office.file(), &text).unwrap();
    assert!(why(office.revoke("a")).contains("change it by hand"));
    assert!(why(run(&Command::Add(office.add("c")))).contains("change it by hand"));
    assert_eq!(office.text(), text);
}

#[test]
fn the_files_mode_is_kept_and_a_new_file_has_the_configurations() {
    let office = Office::new("");
    let mode = || fs::metadata(office.file()).unwrap().mode() & 0o777;
    fs::set_permissions(office.config(), Permissions::from_mode(0o640)).unwrap();
    office.added("a");
    assert_eq!(mode(), 0o640);
    fs::set_permissions(office.file(), Permissions::from_mode(0o600)).unwrap();
    office.added("b");
    office.revoke("a").unwrap();
    assert_eq!(mode(), 0o600);
}

#[test]
fn commands_at_once_lose_nobody() {
    let office = Office::new("");
    std::thread::scope(|scope| {
        for n in 0..8 {
            let office = &office;
            scope.spawn(move || office.added(&format!("c{n}")));
        }
    });
    let mut names = office.names();
    names.sort();
    assert_eq!(names, ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"]);
}

#[test]
fn clients_of_the_configuration_are_changed_there() {
    let key = KeyDigest::of(b"k").to_hex();
    let office = Office::new(&format!("clients: [{{ id: a, key_sha256: \"{key}\" }}]\n"));
    assert!(why(office.revoke("a")).contains("berth.yaml itself"));
    assert!(why(run(&Command::Add(office.add("a")))).contains("already"));
    assert!(why(office.revoke("b")).contains("no client `b`"));
    office.added("b");
    let list = run(&Command::List { of: office.of() }).unwrap();
    assert_eq!(list.lines().count(), 3, "{list}");
    fs::write(office.config(), CONFIG).unwrap();
    assert!(why(run(&Command::Add(office.add("c")))).contains("clients_file"));
    fs::write(office.config(), "x").unwrap();
    assert!(matches!(
        run(&Command::List { of: office.of() }),
        Err(Fault::Configuration(_))
    ));
}
