use std::collections::BTreeMap;

use super::*;
use crate::availability::fixture::receiver;

const SECOND: Duration = Duration::from_secs(1);

fn fanout(url: u32, seconds: u32) -> Arc<Receiver> {
    receiver("t", |wish| {
        wish.callback_url = format!("http://h.test/{url}").into();
        wish.min_interval_seconds = seconds;
    })
}

fn member(url: u32, seconds: u32) -> Arc<Receiver> {
    receiver("t", |wish| {
        wish.callback_url = format!("http://h.test/{url}").into();
        wish.min_interval_seconds = seconds;
        wish.mode = Mode::Group;
        wish.group = Some("g".into());
    })
}

fn hashed(url: u32) -> Arc<Receiver> {
    receiver("t", |wish| {
        wish.callback_url = format!("http://h.test/{url}").into();
        wish.min_interval_seconds = 0;
        wish.mode = Mode::Hash;
    })
}

fn ids(told: &[Arc<Receiver>]) -> Vec<Arc<str>> {
    told.iter().map(|one| Arc::clone(&one.subscription.id)).collect()
}

fn c(name: &str) -> Arc<str> {
    name.into()
}

#[tokio::test]
async fn everybody_hears_in_fanout_and_nobody_too_often() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    let all = [fanout(1, 5), fanout(2, 0)];
    assert_eq!(turns.ready(now, &c("a"), &all).len(), 2);
    assert_eq!(turns.next(), None);
    // The first one has to wait, and hears of each queue once when its time has come.
    for _ in 0..3 {
        for command in ["a", "b"] {
            assert_eq!(ids(&turns.ready(now + SECOND, &c(command), &all)), ids(&all[1..]));
        }
    }
    assert_eq!(turns.next(), Some(now + 5 * SECOND));
    assert_eq!(turns.due(now + 4 * SECOND), []);
    let due = turns.due(now + 5 * SECOND);
    assert_eq!(due.iter().map(|due| &*due.command).collect::<Vec<_>>(), ["a"]);
    assert_eq!(due[0].id, all[0].subscription.id);
    assert_eq!(turns.due(now + 5 * SECOND), []);
    assert_eq!(turns.due(now + 10 * SECOND)[0].command, c("b"));
    assert_eq!(turns.next(), None);
}

#[tokio::test]
async fn what_was_not_sent_does_not_count() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    let one = [fanout(1, 5)];
    let id = &one[0].subscription.id;
    turns.ready(now, &c("a"), &one);
    turns.ready(now, &c("b"), &one);
    turns.unsent(id, now);
    assert_eq!(turns.next(), Some(now));
    assert_eq!(turns.due(now)[0].command, c("b"));
    turns.ready(now, &c("a"), &one);
    turns.forget(id);
    assert_eq!((turns.next(), turns.slots.len()), (None, 0));
}

#[tokio::test]
async fn a_group_takes_turns() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    let all = [member(1, 0), member(2, 0), member(3, 0)];
    let mut heard: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    let mut last = None;
    for _ in 0..9 {
        let told = ids(&turns.ready(now, &c("a"), &all));
        assert_eq!(told.len(), 1);
        assert_ne!(Some(&told[0]), last.as_ref());
        *heard.entry(Arc::clone(&told[0])).or_default() += 1;
        last = told.into_iter().next();
    }
    assert_eq!(heard.into_values().collect::<Vec<_>>(), [3, 3, 3]);
}

#[tokio::test]
async fn a_group_prefers_who_may_hear_now() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    let all = [member(1, 5), member(2, 60)];
    let first = ids(&turns.ready(now, &c("a"), &all));
    let second = ids(&turns.ready(now, &c("a"), &all));
    assert_ne!(first, second);
    // All have to wait: it is owed to the one that waits least, once.
    for _ in 0..3 {
        assert!(turns.ready(now + SECOND, &c("a"), &all).is_empty());
    }
    assert_eq!(turns.next(), Some(now + 5 * SECOND));
    assert_eq!(turns.agenda.len(), 1);
    // Somebody new can hear at once, and then nothing is owed any more.
    let more = [all[0].clone(), all[1].clone(), member(3, 5)];
    assert_eq!(ids(&turns.ready(now + SECOND, &c("a"), &more)), ids(&more[2..]));
    assert_eq!(turns.next(), None);
}

#[tokio::test]
async fn a_hash_is_stable_and_moves_little() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    let all: Vec<_> = (0..10).map(hashed).collect();
    let chosen = |turns: &mut Turns, set: &[Arc<Receiver>]| -> Vec<Arc<str>> {
        let told = (0..500).map(|n| turns.ready(now, &c(&format!("c{n}")), set));
        told.map(|told| {
            assert_eq!(told.len(), 1);
            Arc::clone(&told[0].subscription.id)
        })
        .collect()
    };
    let before = chosen(&mut turns, &all);
    let mut shuffled = all.clone();
    shuffled.reverse();
    assert_eq!(chosen(&mut turns, &shuffled), before);
    let mut share: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    before.iter().for_each(|id| *share.entry(id).or_default() += 1);
    assert!(share.len() == 10 && share.values().all(|n| (15..=110).contains(n)), "{share:?}");
    // Without one of them, only its commands move.
    let gone = &all[3].subscription.id;
    let rest: Vec<_> = all.iter().filter(|one| one.subscription.id != *gone).cloned().collect();
    let after = chosen(&mut turns, &rest);
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after || before == gone);
        assert_ne!(after, gone);
    }
}

#[tokio::test]
async fn modes_do_not_mix() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    let all = [fanout(1, 0), fanout(2, 0), member(3, 0), member(4, 0), hashed(5), hashed(6)];
    let told = ids(&turns.ready(now, &c("a"), &all));
    assert_eq!(told.len(), 4);
    let of = |all: &[Arc<Receiver>]| ids(all).iter().filter(|id| told.contains(id)).count();
    assert_eq!([of(&all[..2]), of(&all[2..4]), of(&all[4..])], [2, 1, 1]);
}

#[tokio::test]
async fn what_is_owed_is_bounded() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    let one = [fanout(1, 60)];
    for number in 0..1_000 {
        turns.ready(now, &c(&format!("c{number}")), &one);
    }
    let slot = &turns.slots[&one[0].subscription.id];
    assert_eq!((slot.owed.len(), turns.agenda.len()), (OWED_MAX, 1));
}
