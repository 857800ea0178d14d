use bytes::Bytes;
use codeq_core::State;
use codeq_core::codec::{begin_record, push_command, read_record};
use codeq_core::command::*;
use codeq_core::digest::{WriteDigest, digest};
use codeq_core::id::ShardId;
use codeq_core::moment::Moment;
use codeq_core::settings::Settings;
use codeq_core::task_backoff::{Backoff, Growth};
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
                begin_record(*at, &mut group);
                push_command(&command, &mut group);
                command = read_record(&group).expect("decodes").1.remove(0);
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

/// A command applied without an answer does the same as one that is answered.
#[test]
fn quiet_commands_do_the_same() {
    let run = |log: &[(Moment, Command)], quiet: bool| {
        let mut kv = Mem::default();
        let mut state = State::load(&kv, ShardId(0), 1).expect("loads");
        let mut seen = Vec::new();
        let mut writes = WriteDigest::default();
        for (at, command) in log {
            let mut effects = Vec::new();
            let mut kv = writes.over(&mut kv);
            let changed = if quiet {
                state.apply_quietly(&mut kv, *at, command, &mut effects).expect("applies")
            } else {
                state.apply(&mut kv, *at, command, &mut effects).expect("applies").changed
            };
            seen.push((changed, effects));
        }
        (writes, digest(&state, &kv).expect("digest"), seen)
    };
    let result = runner(30, 9).run(&acts(60), |acts| {
        let mut pair = Pair::new(Growth::Linear);
        acts.iter().for_each(|act| pair.act(act));
        prop_assert_eq!(run(&pair.log, false), run(&pair.log, true));
        Ok(())
    });
    result.expect("equal");
    // A claim takes tasks up to a number of payload bytes, which it must count without loading the payloads.
    let payload = Bytes::from(vec![b'1'; 400_000]);
    let big = NewTask { payload, ..task("a") };
    let tenant = text(T);
    let tasks = vec![big; 20];
    let enqueue = Enqueue { tenant: tenant.clone(), tasks, atomic: false, seed: 1 };
    let from = Selector::Any;
    let claim = Claim { tenant, worker: text(W), from, count: 20, lease: LEASE };
    let at = Moment::agreed(1_000);
    let log = [(at, Command::Enqueue(enqueue)), (at, Command::Claim(claim))];
    let (loud, quiet) = (run(&log, false), run(&log, true));
    assert_eq!(loud, quiet);
    let claimed = |seen: &[codeq_core::effect::Effect]| {
        let moved = |effect: &&_| matches!(effect, codeq_core::effect::Effect::Moved(_));
        seen.iter().filter(moved).count()
    };
    assert!((1..20).contains(&claimed(&loud.2[1].1)), "the limit applies");
}

/// The digest of writes follows the commands, whoever applies them and however often the rows are written back.
#[test]
fn equal_logs_give_equal_write_digests() {
    let result = runner(20, 8).run(&acts(60), |acts| {
        let mut pair = Pair::new(Growth::Linear);
        acts.iter().for_each(|act| pair.act(act));
        let run = |write_back: bool| {
            let mut kv = Mem::default();
            let mut state = State::load(&kv, ShardId(0), 1).expect("loads");
            let mut digest = WriteDigest::default();
            let mut seen = Vec::new();
            for (at, command) in &pair.log {
                let before = digest;
                let mut effects = Vec::new();
                let applied = state.apply(&mut digest.over(&mut kv), *at, command, &mut effects);
                // What is not logged must not count: the other copies never see it.
                assert!(applied.expect("applies").changed || digest == before);
                if write_back {
                    state.write_back(&mut kv);
                    state = State::load(&kv, ShardId(0), 1).expect("loads");
                }
                seen.push(digest);
            }
            seen
        };
        prop_assert_eq!(run(false), run(true));
        Ok(())
    });
    result.expect("equal");
}

/// A copy that misses a command, or sees it at another moment, is found out.
#[test]
fn a_diverging_copy_has_another_write_digest() {
    let at = |now| Moment { now, wall: now };
    let run = |moments: &[u64]| {
        let mut kv = Mem::default();
        let mut state = State::load(&kv, ShardId(0), 1).expect("loads");
        let mut digest = WriteDigest::default();
        for now in moments {
            let tasks = vec![task("a")];
            let command = Enqueue { tenant: text(T), seed: 1, tasks, atomic: false };
            let command = Command::Enqueue(command);
            state
                .apply(&mut digest.over(&mut kv), at(*now), &command, &mut Vec::new())
                .expect("applies");
        }
        digest
    };
    assert_eq!(run(&[1, 2, 3]), run(&[1, 2, 3]));
    assert_ne!(run(&[1, 2, 3]), run(&[1, 2]));
    assert_ne!(run(&[1, 2, 3]), run(&[1, 3, 3]));
}

#[test]
fn settings_are_restored_from_the_log() {
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
