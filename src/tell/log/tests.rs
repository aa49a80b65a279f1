use super::*;

fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

fn lines(content: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let _ = each_line(file(content).path(), |line| {
        all.push(line.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

#[test]
fn every_line_comes_whole_wherever_a_block_ends() {
    assert_eq!(lines(b"\na\n\nbc\nd"), [&b""[..], b"a", b"", b"bc", b"d"]);
    assert_eq!(lines(b"a\n"), [b"a"]);
    assert!(lines(b"").is_empty());
    for length in [1, 7, 1000, LONGEST - 1] {
        let count = 3 * BLOCK / length.max(100) + 3;
        let line = vec![b'x'; length];
        let content = [&line[..], b"\n"].concat().repeat(count);
        let read = lines(&content);
        assert_eq!(read.len(), count, "{length}");
        assert!(read.iter().all(|it| it.len() == length), "{length}");
    }
}

#[test]
fn a_line_without_end_is_given_once_and_cut() {
    let content = [&b"a\n"[..], &vec![b'x'; 5 * BLOCK], b"\nb\n"].concat();
    let read = lines(&content);
    assert_eq!(read.len(), 3);
    assert!(read[1].len() <= BLOCK);
    assert_eq!(read[2], b"b");
}

#[test]
fn reading_ends_when_enough_was_read() {
    let mut count = 0;
    let done = each_line(file(b"a\nb\nc\n").path(), |_| {
        count += 1;
        ControlFlow::Break(())
    });
    assert_eq!((done.unwrap(), count), (ControlFlow::Break(()), 1));
}

#[test]
fn a_needle_is_found_across_every_place_of_a_block_s_end() {
    let needle = b"needle";
    for before in (0..2 * needle.len()).map(|n| BLOCK - n) {
        let after = vec![b'.'; before];
        let content = [b"first\n<needle>\n", &after[..]].concat();
        let file = file(&content);
        match find(file.path(), needle, |_| true, text).unwrap() {
            Search::Found(line) => assert_eq!(line, b"<needle>", "{before}"),
            Search::Nothing(_) => panic!("not found with {before} bytes after it"),
        }
    }
}

/// What a line is called here.
fn text(line: &[u8]) -> Option<String> {
    (!line.is_empty()).then(|| String::from_utf8_lossy(line).into_owned())
}

fn packed(content: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(content).unwrap();
    to.finish().unwrap()
}

#[test]
fn what_is_not_there_is_said_with_the_number_of_lines() {
    let content = b"a needle that is not meant\nb\n".repeat(100_000);
    for file in [file(&content), file(&packed(&content))] {
        let Search::Nothing(looked) = find(file.path(), b"needle", |_| false, text).unwrap() else {
            panic!("found");
        };
        assert_eq!(looked.lines, 200_000);
        assert_eq!(looked.cut.unwrap(), b"a needle that is not meant");
        let (first, last) = looked.ends.unwrap();
        assert_eq!(
            (first.as_str(), last.as_str()),
            ("a needle that is not meant", "b")
        );
    }
}

#[test]
fn a_packed_file_is_read_as_what_it_unpacks_to() {
    let content = b"first\n<needle>\nlast".repeat(3);
    let twice = [packed(&content), packed(b"\nmore\n")].concat();
    let read = lines(&twice);
    assert_eq!((read.len(), &read[7][..]), (8, &b"more"[..]));
    let file = file(&twice);
    let found = find(file.path(), b"needle", |_| true, text).unwrap();
    assert!(matches!(found, Search::Found(line) if line == b"<needle>"));
    assert_eq!(first(file.path(), text).unwrap().unwrap(), "first");
    let cut = &twice[..twice.len() - 9];
    assert!(each_line(self::file(cut).path(), |_| ControlFlow::Continue(())).is_err());
}

#[test]
fn what_unpacks_to_a_line_without_end_is_cut_too() {
    let read = lines(&packed(
        &[&b"a\n"[..], &vec![b'x'; 64 << 20], b"\nb\n"].concat(),
    ));
    assert_eq!(read.len(), 3);
    assert!(read[1].len() <= BLOCK);
}

#[test]
fn a_line_is_looked_at_once_however_often_it_holds_the_needle() {
    use std::cell::Cell;
    let hostile = b"needle,".repeat(400_000);
    let file = file(&[&b"<needle>\n"[..], &hostile, b"\n"].concat());
    let looked = Cell::new(0);
    let is_it = |line: &[u8]| {
        looked.set(looked.get() + 1);
        line == b"<needle>"
    };
    let found = find(file.path(), b"needle", is_it, text).unwrap();
    assert!(matches!(found, Search::Found(_)));
    assert!(looked.get() < 20, "{}", looked.get());
}
