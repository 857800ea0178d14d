//! Who is called next, and who waits.

use super::*;

fn due(seq: u64) -> Due {
    Due { shard: 0, at: seq, seq }
}

/// Each receiver is a tenant's of its own.
fn filled(slots: usize, each: usize, receivers: u64, callbacks: u64) -> Schedule {
    let mut schedule = Schedule::new(slots, each);
    for seq in 0..callbacks {
        schedule.add((seq % receivers, seq % receivers), due(seq));
    }
    schedule
}

fn all(schedule: &mut Schedule) -> Vec<Call> {
    std::iter::from_fn(|| schedule.next_call()).collect()
}

fn seqs(calls: &[Call]) -> Vec<u64> {
    calls.iter().map(|call| call.due.seq).collect()
}

#[test]
fn receivers_take_turns_within_their_slots() {
    let mut schedule = filled(100, 2, 3, 30);
    let calls = all(&mut schedule);
    assert_eq!(seqs(&calls), [0, 1, 2, 3, 4, 5]);
    schedule.done(calls[1], Went::Well, Instant::now());
    assert_eq!(seqs(&all(&mut schedule)), [7], "the slot that is free is that receiver's");
    schedule.add((7, 7), due(100));
    schedule.add((1, 1), due(1));
    assert_eq!(seqs(&all(&mut schedule)), [100], "nobody waits for another's slots");
}

#[test]
fn all_slots_together_are_bounded() {
    let mut schedule = filled(4, 2, 10, 100);
    let calls = all(&mut schedule);
    assert_eq!(calls.len(), 4);
    schedule.done(calls[0], Went::Nowhere, Instant::now());
    assert_eq!(all(&mut schedule).len(), 1);
}

#[test]
fn what_is_known_is_not_sent_twice_and_what_is_done_is_forgotten() {
    let mut schedule = Schedule::new(10, 10);
    schedule.add((1, 1), due(5));
    schedule.add((1, 1), due(5));
    let calls = all(&mut schedule);
    schedule.add((1, 1), due(5));
    assert_eq!((seqs(&calls), all(&mut schedule).len()), (vec![5], 0));
    schedule.done(calls[0], Went::Badly, Instant::now());
    schedule.add((1, 1), due(5));
    assert_eq!(seqs(&all(&mut schedule)), [5]);
}

/// Runs a receiver that never answers well for a while; how many calls were made.
fn calls_to_the_dead(schedule: &mut Schedule, seconds: u64) -> usize {
    let start = Instant::now();
    let mut calls = 0;
    let mut now = start;
    while now < start + Duration::from_secs(seconds) {
        schedule.wake(now);
        for call in all(schedule) {
            calls += 1;
            schedule.done(call, Went::Badly, now);
        }
        now = schedule.next_wake().unwrap_or(now + Duration::from_millis(1));
    }
    calls
}

#[test]
fn one_that_is_down_is_called_rarely_until_it_is_up() {
    let mut schedule = filled(64, 8, 1, 1_000);
    let calls = calls_to_the_dead(&mut schedule, 60);
    assert!((400..=560).contains(&calls), "{calls}");
    let later = Instant::now() + Duration::from_secs(120);
    schedule.wake(later);
    let call = schedule.next_call().unwrap();
    schedule.done(call, Went::Well, later);
    let calls = all(&mut schedule);
    assert_eq!(calls.len(), 8, "one good answer and all is as before");
    calls.iter().for_each(|call| schedule.done(*call, Went::Badly, later));
    assert_eq!(all(&mut schedule).len(), 8 - 6, "slots rest from the third failure on");
}

#[test]
fn those_that_fail_leave_half_of_the_slots_to_the_others() {
    let mut schedule = filled(8, 8, 4, 400);
    let now = Instant::now();
    for _ in 0..20 {
        for call in all(&mut schedule) {
            schedule.done(call, Went::Badly, now);
        }
        schedule.wake(now + Duration::from_secs(9));
    }
    let hanging = all(&mut schedule);
    assert_eq!(hanging.len(), 4, "half, however many of them there are");
    for seq in 1_000..1_010 {
        schedule.add((9, 99), due(seq));
    }
    assert_eq!(all(&mut schedule).len(), 4);
}

#[test]
fn what_could_not_be_tried_is_tried_again_before_the_others() {
    let mut schedule = filled(10, 1, 1, 3);
    let now = Instant::now();
    for _ in 0..5 {
        let call = schedule.next_call().unwrap();
        assert_eq!(call.due.seq, 0);
        schedule.done(call, Went::Busy, now);
        schedule.add((0, 0), due(0));
        assert_eq!(schedule.next_call(), None, "the slot rests");
        schedule.wake(schedule.next_wake().unwrap());
    }
    let mut sent = Vec::new();
    while let Some(call) = schedule.next_call() {
        sent.push(call.due.seq);
        schedule.done(call, Went::Well, now);
    }
    assert_eq!(sent, [0, 1, 2]);
    assert!(schedule.receivers.is_empty() && schedule.known.is_empty());
    assert!(schedule.tenants.is_empty() && schedule.running == 0);
}

#[test]
fn what_does_not_fit_is_found_again_in_order() {
    let many = WAITING_MAX as u64 + 500;
    let mut schedule = filled(1, 1, 1, many);
    assert_eq!(schedule.known.len(), WAITING_MAX);
    assert_eq!(schedule.take_again(), BTreeMap::new());
    let mut sent = Vec::new();
    while let Some(call) = schedule.next_call() {
        sent.push(call.due.seq);
        schedule.done(call, Went::Well, Instant::now());
        for (shard, (at, _)) in schedule.take_again() {
            assert_eq!((shard, at), (0, WAITING_MAX as u64), "the first that did not fit");
            (at..many).for_each(|seq| schedule.add((0, 0), due(seq)));
        }
    }
    assert_eq!(sent, (0..many).collect::<Vec<_>>());
    assert!(schedule.receivers.is_empty() && schedule.known.is_empty());
}

#[test]
fn later_ones_do_not_overtake_those_that_did_not_fit() {
    let mut schedule = filled(1, 1, 1, WAITING_MAX as u64 + 1);
    let call = schedule.next_call().unwrap();
    schedule.done(call, Went::Well, Instant::now());
    schedule.add((0, 0), due(9_999));
    assert_eq!(schedule.known.len(), WAITING_MAX - 1);
}

#[test]
fn too_many_receivers_wait_their_turn() {
    let many = RECEIVERS_MAX as u64 + 10;
    let mut schedule = filled(1, 1, many, many);
    assert_eq!(schedule.receivers.len(), RECEIVERS_MAX);
    let call = schedule.next_call().unwrap();
    schedule.done(call, Went::Well, Instant::now());
    let first = RECEIVERS_MAX as u64;
    assert_eq!(schedule.take_again(), BTreeMap::from([(0, (first, first))]));
    schedule.add((first, first), due(first));
    assert_eq!(schedule.receivers.len(), RECEIVERS_MAX);
}

#[test]
fn a_tenant_has_at_most_half_of_the_slots_and_others_their_turn() {
    let mut schedule = Schedule::new(8, 4);
    for seq in 0..5_000 {
        schedule.add((1, seq), due(seq));
    }
    assert_eq!(schedule.receivers.len(), TENANT_RECEIVERS_MAX);
    let hanging = all(&mut schedule);
    assert_eq!(hanging.len(), 4);
    for seq in 9_000..9_010 {
        schedule.add((2, 99_999), due(seq));
    }
    let theirs = all(&mut schedule);
    assert_eq!(seqs(&theirs), [9_000, 9_001, 9_002, 9_003]);
    schedule.done(hanging[0], Went::Well, Instant::now());
    schedule.done(theirs[0], Went::Well, Instant::now());
    let next = all(&mut schedule);
    assert_eq!(next.len(), 2);
    assert!(next[0].to.0 != next[1].to.0, "one of each");
    // What did not fit of the first tenant is found when it has room.
    let first = TENANT_RECEIVERS_MAX as u64;
    assert_eq!(schedule.take_again(), BTreeMap::from([(0, (first, first))]));
}

#[test]
fn a_host_has_its_slots_whosoever_calls_it() {
    let mut schedule = Schedule::new(100, 3);
    for seq in 0..40 {
        schedule.add((seq % 4, 7), due(seq));
    }
    let calls = all(&mut schedule);
    assert_eq!(calls.len(), 3);
    schedule.done(calls[0], Went::Well, Instant::now());
    let next = all(&mut schedule);
    assert_eq!((next.len(), next[0].to.0), (1, 3), "the tenant that had none yet");
}

#[test]
fn one_tenants_queue_at_a_host_does_not_hold_up_anothers() {
    let mut schedule = Schedule::new(100, 2);
    for seq in 0..WAITING_MAX as u64 {
        schedule.add((1, 7), due(seq));
    }
    schedule.add((2, 7), due(9_999));
    let calls = all(&mut schedule);
    assert_eq!(seqs(&calls), [0, 9_999]);
}
