//! WebSocket frames as a server sends them: cut out of the bytes, looked into, and made (RFC 6455 §5.2).

/// A text message in one frame.
pub(super) const TEXT: u8 = 0x81;

/// Cuts a server's bytes into frames.
#[derive(Default)]
pub(super) struct Frames {
    waiting: Vec<u8>,
}

/// One frame, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    payload: usize,
}

impl Frame {
    /// A text message that is whole in this frame.
    pub(super) fn text(&self) -> Option<&str> {
        (self.bytes.first() == Some(&TEXT)).then(|| std::str::from_utf8(self.bytes.get(self.payload..).unwrap_or_default()).ok())?
    }

    /// The bytes up to the middle of its first character of several bytes, if it has one.
    pub(super) fn up_to_a_character(&self) -> Option<&[u8]> {
        let payload = self.bytes.get(self.payload..)?;
        let at = payload.iter().position(|byte| *byte >= 0xc0)?;
        self.bytes.get(..self.payload + at + 1)
    }
}

impl Frames {
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.waiting.extend_from_slice(bytes);
        let (mut frames, mut from) = (Vec::new(), 0);
        while let Some((payload, end)) = measure(self.waiting.get(from..).unwrap_or_default()) {
            frames.push(Frame { bytes: self.waiting.get(from..from + end).unwrap_or_default().to_vec(), payload });
            from += end;
        }
        self.waiting.drain(..from);
        frames
    }
}

/// Where the payload of the first frame begins and ends, once all of it is there.
fn measure(bytes: &[u8]) -> Option<(usize, usize)> {
    let second = *bytes.get(1)?;
    let (from, length): (usize, usize) = match second & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)).ok()?),
        length => (2, usize::from(length)),
    };
    // Only clients mask.
    let end = from.checked_add(length)?;
    (bytes.len() >= end).then_some((from, end))
}

/// A text message.
pub(super) fn text(payload: &str) -> Vec<u8> {
    let mut frame = vec![TEXT];
    match payload.len() {
        length @ 0..=125 => frame.push(u8::try_from(length).unwrap_or_default()),
        length @ 126..=0xffff => {
            frame.push(126);
            frame.extend(u16::try_from(length).unwrap_or_default().to_be_bytes());
        }
        length => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(payload.as_bytes());
    frame
}

/// A close with this code.
pub(super) fn close(code: u16) -> Vec<u8> {
    let [high, low] = code.to_be_bytes();
    vec![0x88, 2, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_cut_out_wherever_the_bytes_break() {
        let texts = ["a".to_owned(), String::new(), "é漢🎉".repeat(40), "x".repeat(70_000)];
        let mut bytes: Vec<u8> = texts.iter().flat_map(|one| text(one)).collect();
        bytes.extend(close(1011));
        for step in [1, 7, 4096, bytes.len()] {
            let mut frames = Frames::default();
            let seen: Vec<Frame> = bytes.chunks(step).flat_map(|chunk| frames.feed(chunk)).collect();
            let (last, seen) = seen.split_last().unwrap();
            assert_eq!(last.bytes, close(1011));
            assert_eq!(last.text(), None);
            assert_eq!(seen.iter().map(|frame| frame.text().unwrap()).collect::<Vec<_>>(), texts);
        }
    }

    #[test]
    fn a_character_is_cut_behind_its_first_byte() {
        let mut frames = Frames::default();
        let frame = frames.feed(&text("ab漢c")).remove(0);
        assert_eq!(frame.up_to_a_character().unwrap(), [TEXT, 6, b'a', b'b', 0xe6]);
        assert_eq!(frames.feed(&text("abc")).remove(0).up_to_a_character(), None);
    }
}
