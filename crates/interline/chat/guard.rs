//! A guard before the SSE decoder, which panics on a byte-order mark and takes quadratic time for long events in large chunks.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

/// The largest piece handed on at once.
const CHUNK: usize = 16 * 1024;
/// The largest event taken. Servers of this family keep theirs under 1 MiB, apart from framing.
const MAX_EVENT: usize = 2 << 20;
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// Why a stream of events cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuardError<E> {
    #[error("an event is longer than {MAX_EVENT} bytes")]
    TooLong,
    #[error(transparent)]
    Stream(E),
}

/// Bytes of an SSE body, made safe to decode.
pub(crate) struct Guard<S> {
    stream: S,
    /// What came and was not handed on yet.
    waiting: Bytes,
    /// How much of a byte-order mark the beginning still is; `None` once it is known whether there is one.
    mark: Option<Vec<u8>>,
    event: usize,
    blank: bool,
}

impl<S> Guard<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, waiting: Bytes::new(), mark: Some(Vec::new()), event: 0, blank: false }
    }

    /// Counts the bytes since the last blank line.
    fn fits(&mut self, chunk: &[u8]) -> bool {
        for byte in chunk {
            self.event += 1;
            match byte {
                b'\n' | b'\r' if self.blank => self.event = 0,
                b'\n' => self.blank = true,
                b'\r' => {}
                _ => self.blank = false,
            }
            if self.event > MAX_EVENT {
                return false;
            }
        }
        true
    }
}

impl<S, E> Stream for Guard<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    type Item = Result<Bytes, GuardError<E>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if !self.waiting.is_empty() {
                let length = self.waiting.len().min(CHUNK);
                let chunk = self.waiting.split_to(length);
                return Poll::Ready(Some(if self.fits(&chunk) { Ok(chunk) } else { Err(GuardError::TooLong) }));
            }
            match ready!(Pin::new(&mut self.stream).poll_next(cx)) {
                Some(Ok(bytes)) => match self.mark.take() {
                    None => self.waiting = bytes,
                    Some(mut begun) => {
                        begun.extend_from_slice(&bytes);
                        if begun.len() < MARK.len() && MARK.starts_with(&begun) {
                            self.mark = Some(begun);
                        } else {
                            let rest = begun.strip_prefix(MARK).map(<[u8]>::to_vec);
                            self.waiting = Bytes::from(rest.unwrap_or(begun));
                        }
                    }
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(GuardError::Stream(error)))),
                None => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eventsource_stream::Eventsource;
    use futures_util::StreamExt;

    async fn data(pieces: Vec<Vec<u8>>) -> Vec<Result<String, String>> {
        let stream = futures_util::stream::iter(pieces.into_iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))));
        let events = Guard::new(stream).eventsource();
        events.map(|event| event.map(|event| event.data).map_err(|error| error.to_string())).collect().await
    }

    #[tokio::test]
    async fn a_byte_order_mark_in_any_pieces_is_taken_off() {
        let body = b"\xEF\xBB\xBFdata: {}\n\ndata: \xE2\x82\xAC\n\n";
        for cut in 0..body.len() {
            let (a, b) = body.split_at(cut);
            assert_eq!(data(vec![a.to_vec(), b.to_vec()]).await, [Ok("{}".to_owned()), Ok("€".to_owned())], "{cut}");
        }
    }

    #[tokio::test]
    async fn an_event_may_be_long_but_not_endless() {
        let event = |length: usize| format!("data: {}\n\n", "x".repeat(length)).into_bytes();
        // Together longer than one may be.
        let many = data(vec![event(1 << 17); 20]).await;
        assert!(many.len() == 20 && many.iter().all(Result::is_ok));
        let too_long = data(vec![event(MAX_EVENT)]).await;
        assert!(too_long.iter().any(Result::is_err));
    }
}
