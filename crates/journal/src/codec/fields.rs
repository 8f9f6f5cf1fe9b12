//! The smallest parts of the form: numbers, texts, and what may be absent.

use interline_model::{Json, Text};

use crate::Damage;

/// Writing fields to the end of a buffer.
pub(crate) trait Writing {
    fn number(&mut self, number: u64);
    fn byte(&mut self, byte: u8);
    fn bits(&mut self, bits: u128);
    fn text(&mut self, text: &str);

    fn flag(&mut self, flag: bool) {
        self.byte(u8::from(flag));
    }

    fn length(&mut self, length: usize) {
        self.number(u64::try_from(length).unwrap_or(u64::MAX));
    }

    fn text_if(&mut self, text: Option<&str>) {
        self.flag(text.is_some());
        if let Some(text) = text {
            self.text(text);
        }
    }

    fn number_if(&mut self, number: Option<u64>) {
        self.flag(number.is_some());
        if let Some(number) = number {
            self.number(number);
        }
    }
}

impl Writing for Vec<u8> {
    fn number(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                self.push(low & 0x7f);
                return;
            }
            self.push(low | 0x80);
        }
    }

    fn byte(&mut self, byte: u8) {
        self.push(byte);
    }

    fn bits(&mut self, bits: u128) {
        self.extend_from_slice(&bits.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.extend_from_slice(text.as_bytes());
    }
}

/// Reading fields from the front of some bytes. The checksum held before; whatever does not fit all the same is said and not guessed.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Damage> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Damage::Changed)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Damage> {
        let (byte, rest) = self.rest.split_first().ok_or(Damage::Changed)?;
        self.rest = rest;
        Ok(*byte)
    }

    pub(crate) fn word(&mut self) -> Result<u32, Damage> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(Damage::Changed)?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*word))
    }

    pub(crate) fn bits(&mut self) -> Result<u128, Damage> {
        let (bits, rest) = self.rest.split_first_chunk().ok_or(Damage::Changed)?;
        self.rest = rest;
        Ok(u128::from_le_bytes(*bits))
    }

    pub(crate) fn number(&mut self) -> Result<u64, Damage> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(Damage::Changed);
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Damage::Changed)
    }

    pub(crate) fn length(&mut self) -> Result<usize, Damage> {
        usize::try_from(self.number()?).map_err(|_| Damage::Changed)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Damage> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damage::Unknown("a flag")),
        }
    }

    pub(crate) fn text(&mut self) -> Result<Text, Damage> {
        let length = self.length()?;
        std::str::from_utf8(self.take(length)?).map(Text::from).map_err(|_| Damage::Changed)
    }

    pub(crate) fn json(&mut self) -> Result<Json, Damage> {
        Json::parse(self.text()?).map_err(|_| Damage::Changed)
    }

    pub(crate) fn maybe<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Damage>) -> Result<Option<T>, Damage> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    /// As many as are said to be there. Room is made for those that can be there and not for those that are claimed.
    pub(crate) fn several<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, Damage>) -> Result<Vec<T>, Damage> {
        let count = self.length()?;
        let mut all = Vec::with_capacity(count.min(self.rest.len()));
        for _ in 0..count {
            all.push(read(self)?);
        }
        Ok(all)
    }
}
