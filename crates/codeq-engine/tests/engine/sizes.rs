//! The size of a command, which room in the log is set aside by, held against what is logged.

use codeq_core::codec;
use codeq_core::command::{Claim, Command, Deed, EnqueueByValue, Selector, UnderLease};
use codeq_core::id::split_mix64;
use codeq_core::moment::Moment;
use codeq_engine::request::Request;

/// Tries of each kind of command.
const TRIES: usize = 5_000;
/// A kind that has so many commands was tried enough.
const ENOUGH: usize = 100;
/// More kinds than there will be.
const KINDS: u8 = 40;

/// The command that some bytes mean, if they mean one. So there is nothing to be done here for a new kind of command, or
/// for a new field.
fn meant(bytes: &[u8]) -> Option<Command> {
    let mut group = Vec::new();
    codec::begin_group(Moment::agreed(1), &mut group);
    group.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    group.extend_from_slice(bytes);
    codec::read_group(&group).ok()?.1.pop()
}

/// What a command takes in the log.
fn logged(command: &Command) -> usize {
    let mut bytes = Vec::new();
    codec::push_command(command, &mut bytes);
    bytes.len()
}

/// Bytes that often mean something: choices and absent values, letters, and at first now and then the length of a long
/// text.
fn draw(kind: u8, random: &mut impl FnMut(u64) -> u64, letters: &[u8], bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.push(kind);
    for _ in 0..random(120) {
        match random(100) {
            // 128 to 2047 bytes.
            0..8 => bytes.extend([0x80 | random(128) as u8, 1 + random(15) as u8]),
            other => bytes.push(letter(other, random)),
        }
    }
    let from = random(letters.len() as u64 / 2) as usize;
    bytes.extend_from_slice(&letters[from..]);
}

fn letter(choice: u64, random: &mut impl FnMut(u64) -> u64) -> u8 {
    random(if choice < 60 { 2 } else { 128 }) as u8
}

/// The parts of a command that have a size of their own.
fn parts(command: &Command) -> usize {
    match command {
        Command::Enqueue(enqueue) => enqueue.tasks.len(),
        Command::EnqueueByValue(EnqueueByValue { enqueue, fingerprints }) => {
            enqueue.tasks.len() + fingerprints.len()
        }
        Command::Claim(Claim { from: Selector::Commands(names), .. }) => names.len(),
        Command::Submit(submit) => submit.artifacts.len(),
        Command::UnderLease(UnderLease { deed, .. }) => match &**deed {
            Deed::Submit(submit) => submit.artifacts.len(),
            _ => 0,
        },
        _ => 0,
    }
}

#[test]
fn no_command_takes_more_in_the_log_than_is_set_aside_for_it() {
    let mut state = 7;
    let mut random = |below: u64| {
        state = split_mix64(state);
        state % below
    };
    let letters: Vec<u8> = (0..12_000)
        .map(|_| {
            let choice = random(100);
            letter(choice, &mut random)
        })
        .collect();
    let (mut known, mut longest, mut bytes) = (Vec::new(), 0, Vec::new());
    for kind in 0..KINDS {
        let mut found = 0;
        for _ in 0..TRIES {
            draw(kind, &mut random, &letters, &mut bytes);
            let Some(command) = meant(&bytes) else { continue };
            let size = Request::detached(command.clone()).bytes();
            let logged = logged(&command);
            assert!(size >= logged, "{size} bytes are set aside for {logged}: {command:?}");
            let most = logged + 256 * (1 + parts(&command));
            assert!(size <= most, "{size} bytes are set aside for {logged}: {command:?}");
            longest = longest.max(logged);
            found += 1;
            if found == ENOUGH {
                break;
            }
        }
        if found > 0 {
            known.push((kind, found));
        }
    }
    assert!(known.len() >= 19 && (0..).zip(&known).all(|(at, (kind, _))| at == *kind), "{known:?}");
    assert!(known.iter().all(|(_, found)| *found >= 5) && longest > 2_000, "{known:?} {longest}");
}
