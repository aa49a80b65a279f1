use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::observe::record::tests::failed_over;

const SOON: Duration = Duration::from_secs(10);

fn spec(path: impl Into<PathBuf>) -> AuditSpec {
    AuditSpec { path: path.into() }
}

fn numbered(number: u64) -> Record {
    Record {
        bytes_out: number,
        ..failed_over()
    }
}

/// The numbers in the file, in order; panics on a line that is no record.
fn numbers(path: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    let number = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        value["bytes_out"].as_u64().unwrap()
    };
    text.lines().map(number).collect()
}

#[test]
fn every_record_becomes_one_line_in_order_and_the_drop_writes_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let audit = Audit::to_file(&spec(&path)).unwrap();
    (0..2_000).for_each(|number| audit.write(numbered(number)));
    drop(audit);
    assert_eq!(numbers(&path), (0..2_000).collect::<Vec<_>>());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_restart_appends_and_mends_half_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    std::fs::write(&path, "{\"half\":").unwrap();
    let audit = Audit::to_file(&spec(&path)).unwrap();
    audit.write(numbered(1));
    assert!(audit.flush(SOON));
    audit.write(numbered(2));
    drop(audit);
    let text = std::fs::read_to_string(&path).unwrap();
    let (half, rest) = text.split_once('\n').unwrap();
    assert_eq!(half, "{\"half\":");
    assert_eq!(rest.lines().count(), 2);
    assert!(rest.lines().all(|line| line.starts_with("{\"ts\"")));
}

#[test]
fn a_full_disk_costs_counted_lines_and_nothing_else() {
    let audit = Audit::to_file(&spec("/dev/full")).unwrap();
    (0..100).for_each(|number| audit.write(numbered(number)));
    assert!(audit.flush(SOON));
    assert_eq!(audit.lost(), 100);
}

#[test]
fn when_space_returns_so_do_the_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let audit = Audit::to_file(&spec(&path)).unwrap();
    audit.write(numbered(1));
    assert!(audit.flush(SOON));
    std::fs::remove_file(&path).unwrap();
    audit.reopen();
    audit.write(numbered(2));
    assert!(audit.flush(SOON));
    assert_eq!((numbers(&path), audit.lost()), (vec![2], 1));
}

#[test]
fn reopen_goes_on_in_a_new_file_after_a_rotation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let moved = folder.path().join("audit.jsonl.1");
    let audit = Audit::to_file(&spec(&path)).unwrap();
    audit.write(numbered(1));
    assert!(audit.flush(SOON));
    std::fs::rename(&path, &moved).unwrap();
    audit.write(numbered(2));
    assert!(audit.flush(SOON));
    audit.reopen();
    audit.write(numbered(3));
    drop(audit);
    assert_eq!((numbers(&moved), numbers(&path)), (vec![1, 2], vec![3]));
}

#[test]
fn a_reopen_that_fails_keeps_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("log");
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join("audit.jsonl");
    let audit = Audit::to_file(&spec(&path)).unwrap();
    let moved = folder.path().join("moved");
    std::fs::rename(&inner, &moved).unwrap();
    audit.reopen();
    audit.write(numbered(1));
    drop(audit);
    assert_eq!(numbers(&moved.join("audit.jsonl")), vec![1]);
}

#[test]
fn a_folder_that_does_not_exist_is_said_at_the_start() {
    let error = Audit::to_file(&spec("/nowhere/at/all.jsonl"))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("audit.path: cannot append to /nowhere/at/all.jsonl: No such file"));
    assert!(
        error.ends_with("its folder must exist and be writable for berth"),
        "{error}"
    );
}

#[test]
fn a_full_queue_drops_and_counts_instead_of_waiting() {
    // No writer: the queue can only fill.
    let audit = Audit {
        shared: Arc::new(Shared::default()),
    };
    (0..QUEUE as u64 + 7).for_each(|number| audit.write(numbered(number)));
    assert_eq!(audit.lost(), 7);
    // Its drop would wait for a writer that is not there.
    audit.shared.lock().records.clear();
}

#[test]
fn a_write_cut_at_any_byte_loses_only_the_lines_it_cut() {
    struct Disk {
        room: usize,
        bytes: Vec<u8>,
    }
    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fits = bytes.len().min(self.room);
            if fits == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= fits;
            self.bytes.extend_from_slice(&bytes[..fits]);
            Ok(fits)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let lines: Vec<String> = ["aaa", "bb", "c"].map(str::to_owned).to_vec();
    let later = ["dd".to_owned()];
    let mut seen = 0;
    for room in 0..9 {
        let mut end = Tail { torn: false };
        let mut disk = Disk {
            room,
            bytes: Vec::new(),
        };
        let lost = end
            .append(&mut disk, &lines)
            .err()
            .map_or(0, |failed| failed.lost);
        disk.room = 100;
        assert!(end.append(&mut disk, &later).is_ok());
        let text = String::from_utf8(disk.bytes).unwrap();
        let whole = text
            .lines()
            .filter(|line| lines.iter().any(|l| l == line))
            .count();
        // A line cut just before its line feed is whole on the disk, and counted as lost.
        assert!(
            whole == 3 - lost || whole == 4 - lost,
            "room {room}: {text:?}, lost {lost}"
        );
        assert_eq!(text.lines().last(), Some("dd"), "room {room}: {text:?}");
        seen += 1;
    }
    assert_eq!(seen, 9);
}
