use codeq_core::State;
use codeq_core::backoff::{Backoff, Growth};
use codeq_core::codec::{begin_group, push_command, read_group};
use codeq_core::command::*;
use codeq_core::digest::digest;
use codeq_core::id::ShardId;
use codeq_core::moment::Moment;
use codeq_core::settings::Settings;
use proptest::prelude::*;

use crate::differential::{Pair, acts, runner};
use crate::harness::*;
use crate::mem::Mem;

/// The same commands at the same moments: the same rows, the same replies, the same effects.
#[test]
fn two_shards_that_read_the_same_log_are_equal() {
    let run = |log: &[(Moment, Command)], through_bytes: bool| {
        let mut kv = Mem::default();
        let mut state = State::load(&kv, ShardId(0), 1).expect("loads");
        let mut seen = Vec::new();
        for (at, command) in log {
            let mut command = command.clone();
            if through_bytes {
                let mut group = Vec::new();
                begin_group(*at, &mut group);
                push_command(&command, &mut group);
                command = read_group(&group).expect("decodes").1.remove(0);
            }
            let mut effects = Vec::new();
            let applied = state.apply(&mut kv, *at, &command, &mut effects).expect("applies");
            seen.push((format!("{:?}", applied.reply), effects, applied.changed));
        }
        (digest(&state, &kv).expect("digest"), seen)
    };
    let result = runner(20, 7).run(&acts(60), |acts| {
        let mut pair = Pair::new(Growth::Linear);
        acts.iter().for_each(|act| pair.act(act));
        prop_assert_eq!(run(&pair.log, false), run(&pair.log, true));
        Ok(())
    });
    result.expect("equal");
}

#[test]
fn settings_lie_in_the_log() {
    let mut h = Harness::with(Settings { max_attempts: 2, ..Settings::default() });
    h.add(task("a"));
    h.apply(Command::Configure(Settings::default()));
    assert_eq!(h.add(task("a")).max_attempts, 5);
    h.reload();
    assert_eq!(h.state.settings(), &Settings::default());
    let before = h.digest();
    h.apply(Command::Configure(Settings::default()));
    assert_eq!(h.digest(), before);
    h.finish();
}

#[test]
fn bad_settings_are_refused() {
    use codeq_core::reply::Rejection;
    let good = Settings::default();
    let backoff = |base, max| Backoff { growth: Growth::Fixed, base, max };
    let bad = [
        ("max_attempts", Settings { max_attempts: 0, ..good.clone() }),
        ("max_attempts", Settings { max_attempts: 1_001, ..good.clone() }),
        ("retention", Settings { retention: u64::MAX, ..good.clone() }),
        ("dead_letter_retention", Settings { dead_letter_retention: u64::MAX, ..good.clone() }),
        ("callback_attempts", Settings { callback_attempts: 0, ..good.clone() }),
        ("callback_base", Settings { callback_base: 60_001, ..good.clone() }),
        ("callback_max", Settings { callback_max: u64::MAX, ..good.clone() }),
        ("backoff.base", Settings { backoff: backoff(2, 1), ..good.clone() }),
        ("backoff.max", Settings { backoff: backoff(2, u64::MAX), ..good }),
    ];
    let mut h = Harness::new();
    for (field, settings) in bad {
        let reply = h.apply(Command::Configure(settings));
        assert_eq!(reply, refused(Rejection::InvalidSetting { field: field.into() }));
    }
    h.finish();
}
