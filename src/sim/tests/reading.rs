//! Reading requests, cut at every byte, and what is refused.

use super::*;
use tokio::net::TcpListener;

/// Both ends of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(TcpStream::connect(addr), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

/// Reads one request that is sent in these pieces, with a turn for the reader after each.
async fn read(pieces: &[&[u8]]) -> Result<(Head, Body), Broken> {
    let (mut client, mut server) = pair().await;
    let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
    let sending = async move {
        for piece in pieces {
            client.write_all(&piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        client
    };
    let reading = async {
        let mut buf = BytesMut::new();
        let head = read_head(&mut server, &mut buf)
            .await?
            .ok_or(Broken::Gone)?;
        let memory = Memory::default();
        let (body, _) = read_body(&mut server, &mut buf, &head, None, &memory).await?;
        assert!(buf.is_empty(), "nothing of the next request is taken");
        Ok((head, body))
    };
    let (read, _client) = tokio::join!(reading, sending);
    read
}

async fn status(request: &str) -> u16 {
    match read(&[request.as_bytes()]).await {
        Err(Broken::Told(status, _)) => status,
        Err(Broken::Gone) => 0,
        Ok(_) => 200,
    }
}

#[tokio::test]
async fn a_request_reads_the_same_wherever_it_is_cut() {
    let requests: [&[u8]; 3] = [
        b"POST /v1/a?b=c HTTP/1.1\r\nContent-Length: 5\r\nX: y\r\n\r\nhello",
        b"POST /v1/a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        b"POST /v1/a HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nt: 1\r\n\r\n",
    ];
    let mut cuts = 0;
    for request in requests {
        for at in 0..=request.len() {
            let (head, body) = read(&[&request[..at], &request[at..]]).await.unwrap();
            assert_eq!(
                (head.method.as_str(), head.path.as_str()),
                ("POST", "/v1/a"),
                "cut at {at}"
            );
            assert_eq!(body.bytes, b"hello", "cut at {at}");
            assert!(body.whole, "cut at {at}");
            assert_eq!(body.sha256, <[u8; 32]>::from(Sha256::digest(b"hello")));
            cuts += 1;
        }
    }
    assert_eq!(
        cuts,
        requests
            .iter()
            .map(|request| request.len() + 1)
            .sum::<usize>()
    );
    let bytes: Vec<&[u8]> = requests[1].chunks(1).collect();
    assert_eq!(read(&bytes).await.unwrap().1.bytes, b"hello");
}

#[tokio::test]
async fn what_is_no_sound_request_is_told_so() {
    let with = |headers: &str| format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n");
    let bad = [
        ("\x16\x03\x01 tls".to_owned(), 400),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), 505),
        (with("content-length: 1\r\ncontent-length: 2"), 400),
        (with("content-length: +1"), 400),
        (with("content-length: 99999999999999999999999"), 400),
        (with("content-length: 134217729"), 413),
        (with("content-length: 1\r\ntransfer-encoding: chunked"), 400),
        (with("transfer-encoding: gzip"), 501),
        (with("transfer-encoding: chunked") + "zz\r\n", 400),
        (with("transfer-encoding: chunked") + "1\r\nabc", 400),
        (with("transfer-encoding: chunked") + "8000001\r\n", 413),
        (with(&format!("x: {}", "y".repeat(70_000))), 431),
        (with(&"a: b\r\n".repeat(200)), 431),
    ];
    for (request, expected) in &bad {
        let asked: String = request.chars().take(80).collect();
        assert_eq!(status(request).await, *expected, "{asked}");
    }
    assert_eq!(bad.len(), 13);
}

#[tokio::test]
async fn an_absolute_target_is_a_path() {
    let (head, _) = read(&[b"GET http://sim:80/v1/models?x#y HTTP/1.1\r\n\r\n"])
        .await
        .unwrap();
    assert_eq!(head.path, "/v1/models");
}

#[tokio::test]
async fn the_key_is_found_where_each_sdk_puts_it() {
    for header in [
        "Authorization: Bearer k1",
        "authorization: bearer k1",
        "X-Api-Key: k1",
        "api-key: k1",
    ] {
        let request = format!("GET / HTTP/1.1\r\n{header}\r\n\r\n");
        let (head, _) = read(&[request.as_bytes()]).await.unwrap();
        assert_eq!(head.key(), Some("k1"), "{header}");
    }
}

#[test]
fn memory_is_given_back() {
    let memory = Memory::default();
    let mut held = Held {
        memory: memory.clone(),
        bytes: 0,
    };
    assert!(held.grow(MAX_BODIES).is_ok());
    let mut more = Held {
        memory: memory.clone(),
        bytes: 0,
    };
    assert!(matches!(more.grow(1), Err(Broken::Told(503, _))));
    drop(more);
    drop(held);
    assert_eq!(memory.0.load(Ordering::Relaxed), 0);
}
