//! Chance that can be had again: whatever is random in a suite comes from one number, by name, so that a failing run can be repeated
//! whatever else went on beside it.

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct Seed(u64);

impl Seed {
    /// From a number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Another source, which only this one, the word and the number determine: not what was drawn before.
    #[must_use]
    pub fn of(&self, word: &str, number: u64) -> Self {
        let mut hash = self.0 ^ 0xcbf2_9ce4_8422_2325;
        for byte in word.bytes().chain(number.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self(hash)
    }

    /// Any number (SplitMix64).
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `from` to below `to`; `from` if there is none between.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.draw() % to.saturating_sub(from).max(1)
    }

    /// True in so many cases of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 100) < percent
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.between(0, from.len() as u64)).expect("a place in a list")]
    }

    /// In another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            let with = usize::try_from(self.between(0, at as u64 + 1)).expect("a place in a list");
            list.swap(at, with);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_known_by_its_name_alone() {
        let seed = Seed::new(7);
        let mut other = seed.clone();
        other.draw();
        assert_eq!(seed.of("run", 3).draw(), Seed::new(7).of("run", 3).draw());
        assert_ne!(seed.of("run", 3).draw(), seed.of("run", 4).draw());
        assert_ne!(seed.of("run", 3).draw(), other.of("run", 3).draw());
    }

    #[test]
    fn numbers_are_in_their_bounds_and_all_come() {
        let mut seed = Seed::new(1);
        let mut seen = [0_u32; 5];
        for _ in 0..500 {
            seen[usize::try_from(seed.between(2, 7)).unwrap() - 2] += 1;
        }
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
        assert_eq!(seed.between(4, 4), 4);
        let mut list: Vec<u64> = (0..20).collect();
        seed.shuffle(&mut list);
        assert_ne!(list, (0..20).collect::<Vec<u64>>());
        list.sort_unstable();
        assert_eq!(list, (0..20).collect::<Vec<u64>>());
    }
}
