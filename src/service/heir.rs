//! What a draining process and its successor still have to do with each other: the one tells, the other
//! hears, on the channel of the handover, until the drain is over.
//!
//! Promises: neither waits for the other. News that the successor does not take are kept up to a bound
//! and then dropped; a successor that dies ends the telling, a predecessor that dies the hearing.

use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Interval, interval, timeout};

use super::channel::{Channel, ChannelError};
use super::handover::Word;
use crate::edge::news::{News, Newsreel};
use crate::edge::state::Edge;
use crate::observe::totals::Since;

/// The successor, from here.
pub struct Heir {
    stream: Option<UnixStream>,
    news: Newsreel,
    since: Since,
    figures: Interval,
    /// What it has not taken yet.
    waiting: BytesMut,
}

/// Bytes that may wait to be taken (chosen: a busy second of news).
const MOST_WAITING: usize = 4 << 20;

/// How often it is told what is in flight and what was counted.
const FIGURES: Duration = Duration::from_secs(1);

/// For the last news of a process that ends.
const LAST: Duration = Duration::from_secs(1);

impl Heir {
    /// The process at the other end of `channel`.
    pub fn new(channel: Channel, news: Newsreel) -> Heir {
        let stream = channel.into_stream();
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| UnixStream::from_std(stream));
        if let Err(e) = &stream {
            log::warn!(error:% = e; "the process that took over hears nothing more");
        }
        Heir {
            stream: stream.ok(),
            news,
            since: Since::default(),
            figures: interval(FIGURES),
            waiting: BytesMut::new(),
        }
    }

    /// Tells what happens, and returns when the other end is gone. May be dropped and called again.
    pub async fn tell(&mut self, edge: &Edge) {
        let Some(stream) = &mut self.stream else {
            return std::future::pending().await;
        };
        let (mut reading, mut writing) = stream.split();
        let mut nothing = [0; 64];
        loop {
            let has_room = self.waiting.len() < MOST_WAITING;
            tokio::select! {
                written = writing.write_buf(&mut self.waiting), if !self.waiting.is_empty() => {
                    if written.is_err() {
                        return;
                    }
                }
                Some(news) = self.news.recv(), if has_room => push(&mut self.waiting, news),
                _ = self.figures.tick(), if has_room => {
                    for news in edge.figures(&mut self.since, Instant::now()) {
                        push(&mut self.waiting, news);
                    }
                }
                read = reading.read(&mut nothing) => if matches!(read, Ok(0) | Err(_)) {
                    return;
                }
            }
        }
    }

    /// Tells the rest, within a time.
    pub async fn finish(mut self, edge: &Edge) {
        while let Ok(news) = self.news.try_recv() {
            push(&mut self.waiting, news);
        }
        for news in edge.figures(&mut self.since, Instant::now()) {
            push(&mut self.waiting, news);
        }
        if let Some(stream) = &mut self.stream {
            // Whoever does not take it now has other worries.
            let _ = timeout(LAST, stream.write_all_buf(&mut self.waiting)).await;
        }
    }
}

/// Hears what the process before this one tells, until it ends.
pub fn hear(mut channel: Channel, edge: Arc<Edge>) {
    /// Chosen: any; the telling process says something each second.
    const PATIENCE: Duration = Duration::from_secs(3600);
    let hearing = move || {
        loop {
            match channel.receive(Instant::now() + PATIENCE) {
                Ok((Some(Word::News { news }), _)) => edge.hear(*news, Instant::now()),
                Ok(_) | Err(ChannelError::Late) => {}
                Err(ChannelError::Ended) => break,
                Err(error) => {
                    log::warn!(error:%; "the process before this one cannot be understood");
                    break;
                }
            }
        }
        edge.hears_no_more();
        log::info!("the process before this one has ended");
    };
    let thread = std::thread::Builder::new().name("predecessor".to_owned());
    if let Err(e) = thread.spawn(hearing) {
        log::warn!(error:% = e; "what the process before this one still meets is not heard");
    }
}

fn push(waiting: &mut BytesMut, news: News) {
    let word = Word::News {
        news: Box::new(news),
    };
    if let Ok(body) = serde_json::to_vec(&word)
        && let Ok(length) = u32::try_from(body.len())
    {
        waiting.put_u32(length);
        waiting.put_slice(&body);
    }
}
