//! Who is called next, and who waits.

use super::*;
use crate::availability::LIMITS as AVAILABILITY;

impl<T> Dispatcher<T> {
    /// How many receivers are in memory.
    pub(crate) fn receivers(&self) -> usize {
        self.receivers.len()
    }

    /// Whether nothing waits, runs or is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
            && self.receivers.is_empty()
            && self.tenants.is_empty()
            && self.ready.is_empty()
            && self.hosts.is_empty()
            && self.running == 0
    }
}

const FAR: usize = 1_000_000;

fn to(tenant: u64, host: u64) -> Receiver {
    Receiver { tenant, host }
}

/// A tenant gets half of the calls.
fn dispatcher(calls: usize, calls_per_host: usize) -> Dispatcher<u64> {
    Dispatcher::new(Limits {
        calls,
        calls_per_tenant: (calls / 2).max(1),
        calls_per_host,
        waiting: FAR,
        waiting_per_tenant: FAR,
        waiting_per_receiver: FAR,
        receivers: FAR,
        receivers_per_tenant: FAR,
    })
}

/// Each receiver belongs to a tenant of its own.
fn filled(calls: usize, per_host: usize, receivers: u64, items: u64) -> Dispatcher<u64> {
    let mut dispatcher = dispatcher(calls, per_host);
    for item in 0..items {
        dispatcher.add(to(item % receivers, item % receivers), item).unwrap();
    }
    dispatcher
}

fn all<T: Clone + Eq + Hash>(dispatcher: &mut Dispatcher<T>) -> Vec<Call<T>> {
    std::iter::from_fn(|| dispatcher.next_call()).collect()
}

fn items(calls: &[Call<u64>]) -> Vec<u64> {
    calls.iter().map(|call| call.item).collect()
}

#[test]
fn receivers_take_turns_within_their_limit() {
    let mut dispatcher = filled(100, 2, 3, 30);
    let calls = all(&mut dispatcher);
    assert_eq!(items(&calls), [0, 1, 2, 3, 4, 5]);
    dispatcher.done(calls[1], Outcome::Delivered, Instant::now());
    assert_eq!(items(&all(&mut dispatcher)), [7], "the freed call is that receiver's");
    dispatcher.add(to(7, 7), 100).unwrap();
    dispatcher.add(to(1, 1), 1).unwrap();
    assert_eq!(items(&all(&mut dispatcher)), [100], "nobody waits for another's calls");
}

#[test]
fn all_calls_together_are_limited() {
    let mut dispatcher = filled(4, 2, 10, 100);
    let calls = all(&mut dispatcher);
    assert_eq!(calls.len(), 4);
    dispatcher.done(calls[0], Outcome::Skipped, Instant::now());
    assert_eq!(all(&mut dispatcher).len(), 1);
}

/// Runs a receiver that always fails for a while; returns how many calls were made.
fn calls_to_the_dead(dispatcher: &mut Dispatcher<u64>, seconds: u64) -> usize {
    let start = Instant::now();
    let mut calls = 0;
    let mut now = start;
    while now < start + Duration::from_secs(seconds) {
        dispatcher.wake(now);
        for call in all(dispatcher) {
            calls += 1;
            dispatcher.done(call, Outcome::Failed, now);
        }
        now = dispatcher.next_wake().unwrap_or(now + Duration::from_millis(1));
    }
    calls
}

#[test]
fn a_receiver_that_is_down_is_called_rarely_until_it_is_up() {
    let mut dispatcher = filled(64, 8, 1, 1_000);
    let calls = calls_to_the_dead(&mut dispatcher, 60);
    assert!((400..=560).contains(&calls), "{calls}");
    let later = Instant::now() + Duration::from_secs(120);
    dispatcher.wake(later);
    let call = dispatcher.next_call().unwrap();
    dispatcher.done(call, Outcome::Delivered, later);
    let calls = all(&mut dispatcher);
    assert_eq!(calls.len(), 8, "after one success, all is as before");
    calls.iter().for_each(|call| dispatcher.done(*call, Outcome::Failed, later));
    assert_eq!(all(&mut dispatcher).len(), 8 - 6, "it is paused from the third failure on");
}

#[test]
fn failing_receivers_leave_half_of_the_calls_to_the_others() {
    let mut dispatcher = filled(8, 8, 4, 400);
    let now = Instant::now();
    for _ in 0..20 {
        for call in all(&mut dispatcher) {
            dispatcher.done(call, Outcome::Failed, now);
        }
        dispatcher.wake(now + Duration::from_secs(9));
    }
    let hanging = all(&mut dispatcher);
    assert_eq!(hanging.len(), 4, "half, however many of them there are");
    for item in 1_000..1_010 {
        dispatcher.add(to(9, 99), item).unwrap();
    }
    assert_eq!(all(&mut dispatcher).len(), 4);
}

#[test]
fn a_call_that_could_not_be_tried_goes_first_next_time() {
    let mut dispatcher = filled(10, 1, 1, 3);
    let now = Instant::now();
    for _ in 0..5 {
        let call = dispatcher.next_call().unwrap();
        assert_eq!(call.item, 0);
        dispatcher.done(call, Outcome::Busy, now);
        dispatcher.add(to(0, 0), 0).unwrap();
        assert_eq!(dispatcher.next_call(), None, "the receiver is paused");
        dispatcher.wake(dispatcher.next_wake().unwrap());
    }
    let mut sent = Vec::new();
    while let Some(call) = dispatcher.next_call() {
        sent.push(call.item);
        dispatcher.done(call, Outcome::Delivered, now);
    }
    assert_eq!(sent, [0, 1, 2]);
    assert!(dispatcher.is_empty());
}

#[test]
fn a_tenant_gets_at_most_half_of_the_calls_and_the_others_their_turn() {
    let mut dispatcher = dispatcher(8, 4);
    for item in 0..5_000 {
        dispatcher.add(to(1, item), item).unwrap();
    }
    let hanging = all(&mut dispatcher);
    assert_eq!(hanging.len(), 4);
    for item in 9_000..9_010 {
        dispatcher.add(to(2, 99_999), item).unwrap();
    }
    let theirs = all(&mut dispatcher);
    assert_eq!(items(&theirs), [9_000, 9_001, 9_002, 9_003]);
    dispatcher.done(hanging[0], Outcome::Delivered, Instant::now());
    dispatcher.done(theirs[0], Outcome::Delivered, Instant::now());
    let next = all(&mut dispatcher);
    assert_eq!(next.len(), 2);
    assert!(next[0].to.tenant != next[1].to.tenant, "one of each");
}

#[test]
fn a_host_has_its_limit_whoever_calls_it() {
    let mut dispatcher = dispatcher(100, 3);
    for item in 0..40 {
        dispatcher.add(to(item % 4, 7), item).unwrap();
    }
    let calls = all(&mut dispatcher);
    assert_eq!(calls.len(), 3);
    dispatcher.done(calls[0], Outcome::Delivered, Instant::now());
    let next = all(&mut dispatcher);
    assert_eq!((next.len(), next[0].to.tenant), (1, 3), "the tenant that had none yet");
}

#[test]
fn one_tenants_queue_at_a_host_does_not_delay_anothers() {
    let mut dispatcher = dispatcher(100, 2);
    for item in 0..1_024 {
        dispatcher.add(to(1, 7), item).unwrap();
    }
    dispatcher.add(to(2, 7), 9_999).unwrap();
    let calls = all(&mut dispatcher);
    assert_eq!(items(&calls), [0, 9_999]);
}

#[test]
fn notifications_few_to_one_host_and_not_all_for_one_tenant() {
    let mut dispatcher = Dispatcher::new(AVAILABILITY);
    let (a, b, slow, quick) = (1, 2, 1, 2);
    for number in 0..10 {
        dispatcher.add(to(a, slow), format!("slow{number}")).unwrap();
    }
    dispatcher.add(to(b, quick), "quick".to_owned()).unwrap();
    let started = all(&mut dispatcher);
    assert_eq!(started.len(), AVAILABILITY.calls_per_host + 1);
    assert!(started.iter().any(|call| call.to.tenant == b));
    for host in 100..200 {
        dispatcher.add(to(a, host), format!("dead{host}")).unwrap();
    }
    let more = AVAILABILITY.calls_per_tenant - AVAILABILITY.calls_per_host;
    assert_eq!(all(&mut dispatcher).len(), more);
    for host in 1_000..1_100 {
        dispatcher.add(to(10 + host % 10, host), format!("h{host}")).unwrap();
    }
    let rest = AVAILABILITY.calls - AVAILABILITY.calls_per_tenant - 1;
    assert_eq!(all(&mut dispatcher).len(), rest);
    // A call that ends makes room for the next one.
    dispatcher.done(started[0].clone(), Outcome::Delivered, Instant::now());
    assert_eq!(all(&mut dispatcher).len(), 1);
}

#[test]
fn notifications_that_wait_are_bounded_and_wait_once() {
    let mut dispatcher = Dispatcher::new(AVAILABILITY);
    assert!((0..5).all(|_| dispatcher.add(to(0, 0), (0, 0)).is_ok()));
    assert_eq!(dispatcher.waiting(), 1);
    let mut fill = |tenant: u64| {
        (0..2_000).filter(|n| dispatcher.add(to(tenant, 0), (tenant, *n)).is_ok()).count()
    };
    // The first of them waits already.
    assert_eq!(fill(0), AVAILABILITY.waiting_per_tenant);
    let rest: usize = (1..5).map(fill).sum();
    assert_eq!(rest, AVAILABILITY.waiting - AVAILABILITY.waiting_per_tenant);
}

#[test]
fn finished_calls_leave_no_state_behind() {
    let mut dispatcher = Dispatcher::new(AVAILABILITY);
    for number in 0..200 {
        dispatcher.add(to(number % 3, number % 7), number).unwrap();
    }
    let mut sent = 0;
    loop {
        let started = all(&mut dispatcher);
        if started.is_empty() {
            break;
        }
        sent += started.len();
        for call in started {
            dispatcher.done(call, Outcome::Delivered, Instant::now());
        }
    }
    assert_eq!(sent, 200);
    assert!(dispatcher.is_empty());
}
