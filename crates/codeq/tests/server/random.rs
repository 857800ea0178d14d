//! Seeded randomness: a run is described by its seed, though threads and kills make no two runs equal.

/// SplitMix64.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The seed of this run: from the environment, or a new one. Printed in either case.
    pub fn of_this_run() -> Random {
        let given = std::env::var("CODEQ_HTTP_SEED").ok();
        let seed = match given {
            Some(text) => text.parse().expect("CODEQ_HTTP_SEED is a number"),
            None => {
                let now = std::time::SystemTime::now();
                now.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
            }
        };
        println!("CODEQ_HTTP_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Another stream.
    pub fn fork(&mut self) -> Random {
        Random(self.next())
    }
}
