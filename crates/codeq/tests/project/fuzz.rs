//! The fuzz targets with fixed seeds: random bytes, and valid inputs that were changed. `make fuzz` looks further.

use crate::server::random::Random;

#[path = "../../../../fuzz/src/lib.rs"]
mod targets;

use targets::{TARGETS, Target};

/// Inputs for each target.
const ROUNDS: u64 = 2_000;

/// Shows the input that a target did not survive.
struct Input<'a>(&'a str, &'a [u8]);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} does not survive {:?}: {}", self.0, self.1, self.1.escape_ascii());
        }
    }
}

fn run(target: &Target, input: &[u8]) {
    let _shown = Input(target.name, input);
    (target.run)(input);
}

fn bytes(random: &mut Random, most: u64) -> Vec<u8> {
    (0..random.below(most)).map(|_| random.below(256) as u8).collect()
}

/// Changes an input in one place.
fn change(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(input.len() as u64 + 1) as usize;
    let end = (at + random.below(16) as usize).min(input.len());
    match random.below(6) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..end)),
        2 => drop(input.splice(at..at, bytes(random, 9))),
        3 => input.extend_from_within(at..end),
        4 => drop(input.splice(at.., other.iter().skip(at).copied())),
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

#[test]
fn decoders_survive_anything() {
    for target in &TARGETS {
        let mut random = Random::new(1);
        let seeds = (target.seeds)();
        if let Some(corpus) = std::env::var_os("CODEQ_FUZZ_CORPUS") {
            let dir = std::path::Path::new(&corpus).join(target.name);
            std::fs::create_dir_all(&dir).unwrap();
            for (number, seed) in seeds.iter().enumerate() {
                std::fs::write(dir.join(format!("seed-{number}")), seed).unwrap();
            }
        }
        seeds.iter().for_each(|seed| run(target, seed));
        let pick = |random: &mut Random| &seeds[random.below(seeds.len() as u64) as usize];
        for _ in 0..ROUNDS {
            run(target, &bytes(&mut random, 200));
            let (mut input, other) = (pick(&mut random).clone(), pick(&mut random));
            for _ in 0..=random.below(4) {
                change(&mut random, &mut input, other);
            }
            run(target, &input);
        }
    }
}
