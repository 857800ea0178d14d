use std::collections::BTreeMap;

use super::*;
use crate::availability::fixture::subscriber;

const SECOND: Duration = Duration::from_secs(1);

fn fanout(url: u32, seconds: u32) -> Arc<Subscriber> {
    subscriber("t", |spec| {
        spec.callback_url = format!("http://h.test/{url}").into();
        spec.min_interval_seconds = seconds;
    })
}

fn member(url: u32, seconds: u32) -> Arc<Subscriber> {
    subscriber("t", |spec| {
        spec.callback_url = format!("http://h.test/{url}").into();
        spec.min_interval_seconds = seconds;
        spec.mode = Mode::Group;
        spec.group = Some("g".into());
    })
}

fn hashed(url: u32) -> Arc<Subscriber> {
    subscriber("t", |spec| {
        spec.callback_url = format!("http://h.test/{url}").into();
        spec.min_interval_seconds = 0;
        spec.mode = Mode::Hash;
    })
}

fn ids(chosen: &[Arc<Subscriber>]) -> Vec<Arc<str>> {
    chosen.iter().map(|one| Arc::clone(&one.subscription.id)).collect()
}

fn c(name: &str) -> Arc<str> {
    name.into()
}

#[tokio::test]
async fn fanout_notifies_everybody_and_nobody_too_often() {
    let (mut recipients, now) = (Recipients::default(), Instant::now());
    let all = [fanout(1, 5), fanout(2, 0)];
    assert_eq!(recipients.choose(now, &c("a"), &all).len(), 2);
    assert_eq!(recipients.next_deferred(), None);
    // The first one has to wait, and is then notified of each queue once.
    for _ in 0..3 {
        for command in ["a", "b"] {
            assert_eq!(ids(&recipients.choose(now + SECOND, &c(command), &all)), ids(&all[1..]));
        }
    }
    assert_eq!(recipients.next_deferred(), Some(now + 5 * SECOND));
    assert_eq!(recipients.take_due(now + 4 * SECOND), []);
    let due = recipients.take_due(now + 5 * SECOND);
    assert_eq!(due.iter().map(|due| &*due.command).collect::<Vec<_>>(), ["a"]);
    assert_eq!(due[0].id, all[0].subscription.id);
    assert_eq!(recipients.take_due(now + 5 * SECOND), []);
    assert_eq!(recipients.take_due(now + 10 * SECOND)[0].command, c("b"));
    assert_eq!(recipients.next_deferred(), None);
}

#[tokio::test]
async fn a_notification_that_was_not_sent_does_not_start_the_interval() {
    let (mut recipients, now) = (Recipients::default(), Instant::now());
    let one = [fanout(1, 5)];
    let id = &one[0].subscription.id;
    recipients.choose(now, &c("a"), &one);
    recipients.choose(now, &c("b"), &one);
    recipients.not_sent(id, now);
    assert_eq!(recipients.next_deferred(), Some(now));
    assert_eq!(recipients.take_due(now)[0].command, c("b"));
    recipients.choose(now, &c("a"), &one);
    recipients.forget(id);
    assert_eq!((recipients.next_deferred(), recipients.by_id.len()), (None, 0));
}

#[tokio::test]
async fn a_group_takes_turns() {
    let (mut recipients, now) = (Recipients::default(), Instant::now());
    let all = [member(1, 0), member(2, 0), member(3, 0)];
    let mut counts: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    let mut last = None;
    for _ in 0..9 {
        let chosen = ids(&recipients.choose(now, &c("a"), &all));
        assert_eq!(chosen.len(), 1);
        assert_ne!(Some(&chosen[0]), last.as_ref());
        *counts.entry(Arc::clone(&chosen[0])).or_default() += 1;
        last = chosen.into_iter().next();
    }
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [3, 3, 3]);
}

#[tokio::test]
async fn a_group_prefers_a_member_that_need_not_wait() {
    let (mut recipients, now) = (Recipients::default(), Instant::now());
    let all = [member(1, 5), member(2, 60)];
    let first = ids(&recipients.choose(now, &c("a"), &all));
    let second = ids(&recipients.choose(now, &c("a"), &all));
    assert_ne!(first, second);
    // All members have to wait: the notification is deferred once, for the one with the shortest wait.
    for _ in 0..3 {
        assert!(recipients.choose(now + SECOND, &c("a"), &all).is_empty());
    }
    assert_eq!(recipients.next_deferred(), Some(now + 5 * SECOND));
    assert_eq!(recipients.schedule.len(), 1);
    // A new member can be notified at once, and then nothing is deferred any more.
    let more = [all[0].clone(), all[1].clone(), member(3, 5)];
    assert_eq!(ids(&recipients.choose(now + SECOND, &c("a"), &more)), ids(&more[2..]));
    assert_eq!(recipients.next_deferred(), None);
}

#[tokio::test]
async fn a_hash_is_stable_and_moves_little() {
    let (mut recipients, now) = (Recipients::default(), Instant::now());
    let all: Vec<_> = (0..10).map(hashed).collect();
    let chosen = |recipients: &mut Recipients, set: &[Arc<Subscriber>]| -> Vec<Arc<str>> {
        let chosen = (0..500).map(|n| recipients.choose(now, &c(&format!("c{n}")), set));
        chosen
            .map(|chosen| {
                assert_eq!(chosen.len(), 1);
                Arc::clone(&chosen[0].subscription.id)
            })
            .collect()
    };
    let before = chosen(&mut recipients, &all);
    let mut shuffled = all.clone();
    shuffled.reverse();
    assert_eq!(chosen(&mut recipients, &shuffled), before);
    let mut share: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    before.iter().for_each(|id| *share.entry(id).or_default() += 1);
    assert!(share.len() == 10 && share.values().all(|n| (15..=110).contains(n)), "{share:?}");
    // Without one of them, only its commands move.
    let gone = &all[3].subscription.id;
    let rest: Vec<_> = all.iter().filter(|one| one.subscription.id != *gone).cloned().collect();
    let after = chosen(&mut recipients, &rest);
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after || before == gone);
        assert_ne!(after, gone);
    }
}

#[tokio::test]
async fn each_mode_chooses_among_its_own_subscriptions() {
    let (mut recipients, now) = (Recipients::default(), Instant::now());
    let all = [fanout(1, 0), fanout(2, 0), member(3, 0), member(4, 0), hashed(5), hashed(6)];
    let chosen = ids(&recipients.choose(now, &c("a"), &all));
    assert_eq!(chosen.len(), 4);
    let of = |all: &[Arc<Subscriber>]| ids(all).iter().filter(|id| chosen.contains(id)).count();
    assert_eq!([of(&all[..2]), of(&all[2..4]), of(&all[4..])], [2, 1, 1]);
}

#[tokio::test]
async fn deferred_notifications_are_bounded() {
    let (mut recipients, now) = (Recipients::default(), Instant::now());
    let one = [fanout(1, 60)];
    for number in 0..1_000 {
        recipients.choose(now, &c(&format!("c{number}")), &one);
    }
    let recipient = &recipients.by_id[&one[0].subscription.id];
    assert_eq!((recipient.deferred.len(), recipients.schedule.len()), (DEFERRED_MAX, 1));
}
