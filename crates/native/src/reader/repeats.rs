//! Which frames have been seen in this run (decision 13).

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};

use crate::frame::Key;

/// The keys seen so far, 16 bytes each: servers replay everything after a break, so a long run has many.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    seen: HashSet<u128, BuildHasherDefault<Hashed>>,
}

impl Repeats {
    /// Whether `key` has been seen before; it has been, from now on.
    pub(super) fn is_repeat(&mut self, key: &Key<'_>) -> bool {
        !self.seen.insert(digest(key))
    }
}

/// Two hashes of 64 bits with fixed keys: the same in every process, and no two ids of one run will ever share both.
fn digest(key: &Key<'_>) -> u128 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u8(match key {
        Key::Uuid(_) => 0,
        Key::Request(_) => 1,
    });
    hasher.write(key.as_str().as_bytes());
    let low = hasher.finish();
    hasher.write_u8(0xff);
    u128::from(hasher.finish()) << 64 | u128::from(low)
}

/// Hashes what is a hash already.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, digest: u128) {
        // The low half is a hash by itself.
        self.0 = digest as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_id_is_a_namespace_of_its_own() {
        let mut repeats = Repeats::default();
        let (uuid, request) = (Key::Uuid("same".into()), Key::Request("same".into()));
        assert!(!repeats.is_repeat(&uuid) && !repeats.is_repeat(&request));
        assert!(repeats.is_repeat(&uuid) && repeats.is_repeat(&request));
        assert!(!repeats.is_repeat(&Key::Uuid("other".into())));
    }
}
