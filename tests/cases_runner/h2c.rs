//! The client over HTTP/2 with prior knowledge: the only place where a library speaks for us, since
//! no case breaks HTTP/2 itself.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use tokio::net::TcpStream;

use super::client::{PATIENCE, due};
use super::exchange::{Answer, Ending};
use super::format::Request;

/// Sends one request and reads its answer.
pub async fn send(address: SocketAddr, request: &Request, body: &[u8]) -> Result<Answer, String> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|e| format!("connect: {e}"))?;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let (client, connection) = h2::client::handshake(stream)
        .await
        .map_err(|e| e.to_string())?;
    let driver = tokio::spawn(async move {
        // Its error is seen on the stream as well.
        let _ = connection.await;
    });
    let mut answer = Answer::awaited(Instant::now());
    answer.http2 = true;
    let run = exchange(client, request, body, &mut answer);
    let ending = tokio::time::timeout(PATIENCE, run)
        .await
        .unwrap_or(Ok(Ending::Hung))?;
    let answer = answer.finish(ending);
    driver.abort();
    Ok(answer)
}

async fn exchange(
    client: h2::client::SendRequest<Bytes>,
    request: &Request,
    body: &[u8],
    answer: &mut Answer,
) -> Result<Ending, String> {
    let mut client = client.ready().await.map_err(|e| e.to_string())?;
    let lines = request
        .headers
        .iter()
        .filter_map(|line| line.split_once(": "));
    let host = lines
        .clone()
        .find(|(name, _)| *name == "host")
        .map_or("lb.test", |(_, v)| v);
    let mut head = http::Request::builder()
        .method(request.method.as_str())
        .uri(format!("http://{host}{}", request.path))
        .version(http::Version::HTTP_2);
    for (name, value) in lines.filter(|(name, _)| *name != "host") {
        head = head.header(name, value);
    }
    if request.method == "CONNECT" {
        if client.is_extended_connect_protocol_enabled() {
            return Err("SETTINGS_ENABLE_CONNECT_PROTOCOL is advertised".into());
        }
        head = head.extension(h2::ext::Protocol::from_static("websocket"));
    }
    let head = head.body(()).map_err(|e| e.to_string())?;
    let (coming, mut sending) = client
        .send_request(head, body.is_empty())
        .map_err(|e| e.to_string())?;
    if !body.is_empty() {
        // Small bodies only: they fit into the first window.
        let data = Bytes::copy_from_slice(body);
        sending.send_data(data, true).map_err(|e| e.to_string())?;
    }
    answer.sent = Instant::now();
    let response = match coming.await {
        Ok(response) => response,
        // A stream that is reset before any head is a clean refusal of a CONNECT.
        Err(e) if request.method == "CONNECT" && e.is_reset() => return Ok(Ending::Clean),
        Err(e) => return Ok(Ending::Broken(e.to_string())),
    };
    answer.status = response.status().as_u16();
    answer.head = format!("HTTP/2 {}\n", answer.status);
    for (name, value) in response.headers() {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        answer.head.push_str(&format!("{name}: {value}\n"));
        answer.headers.push((name.to_string(), value));
    }
    let mut incoming = response.into_body();
    while let Some(piece) = incoming.data().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(e) => return Ok(Ending::Broken(e.to_string())),
        };
        // The window is given back at once; the error would be the stream's own.
        let _ = incoming.flow_control().release_capacity(piece.len());
        answer.push(&piece);
        if request
            .actions
            .iter()
            .any(|action| due(action, &answer.body).is_some())
        {
            sending.send_reset(h2::Reason::CANCEL);
            // One turn of the driver, so that the frame is written.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            return Ok(Ending::Left);
        }
    }
    Ok(Ending::Clean)
}
