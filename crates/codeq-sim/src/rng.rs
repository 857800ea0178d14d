//! The simulator's random numbers: small, seeded, and the same on every machine.

use codeq_core::id::split_mix64;

/// Random numbers from one seed.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(split_mix64(seed))
    }

    /// A separate generator for one purpose, so that an additional draw in one place changes nothing elsewhere.
    pub fn fork(&self, purpose: &str) -> Rng {
        Rng(mix(&[self.0, text_hash(purpose)]))
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        split_mix64(self.0)
    }

    /// A number in `0..bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True with a probability of `percent` %.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the items; `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let at = self.below(items.len() as u64) as usize;
        items.get(at)
    }
}

/// Combines several numbers into one in which every bit counts.
pub fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x51_6d_70_1e, |sum, part| split_mix64(sum ^ part.rotate_left(17)))
}

/// Hashes a text.
pub fn text_hash(text: &str) -> u64 {
    codeq_core::id::fnv1a64(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_draws() {
        let draws = |seed| {
            let mut rng = Rng::new(seed);
            (0..100).map(|_| rng.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
    }

    #[test]
    fn draws_stay_in_their_bounds() {
        let mut rng = Rng::new(3);
        assert!((0..1_000).all(|_| (2..=4).contains(&rng.between(2, 4))));
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.pick::<u8>(&[]), None);
    }
}
