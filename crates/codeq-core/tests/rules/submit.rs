use bytes::Bytes;
use codeq_core::command::{Artifact, Command, Outcome, Submit};
use codeq_core::effect::Effect;
use codeq_core::limits::*;
use codeq_core::place::{Place, Status};
use codeq_core::reply::{Rejection, Reply};

use crate::harness::*;

fn completed(result: &'static [u8]) -> Outcome {
    Outcome::Completed(Bytes::from_static(result))
}

fn failed(error: &str) -> Outcome {
    Outcome::Failed(text(error))
}

#[test]
fn completed_is_terminal_with_one_result() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.pass(5);
    let reply = h.submit(run.id, completed(b"{\"n\":9007199254740993}"));
    let record = h.result(run.id).expect("a result");
    assert_eq!(reply, Reply::Submitted(Box::new(record.clone())));
    assert_eq!((record.status, record.completed_at), (Status::Completed, h.now));
    assert_eq!(record.result.as_deref(), Some(&b"{\"n\":9007199254740993}"[..]));
    let done = h.get(run.id);
    assert_eq!((done.place, done.worker, done.lease_until), (Place::Completed, None, None));
    assert_eq!(done.place.location(), "NONE");
    assert_eq!(h.stats("a").map(|s| (s.counts.completed, s.counts.in_progress)), Some((1, 0)));
    h.finish();
}

#[test]
fn failed_is_terminal_too() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    assert!(matches!(h.submit(run.id, failed("broken")), Reply::Submitted(_)));
    let (task, record) = (h.get(run.id), h.result(run.id).expect("a result"));
    assert_eq!(
        (task.place, task.error.as_deref(), task.attempts),
        (Place::Failed, Some("broken"), 0)
    );
    assert_eq!((record.status, record.error.as_deref()), (Status::Failed, Some("broken")));
    assert_eq!(h.cancel(run.id), refused(Rejection::Finished));
    h.finish();
}

#[test]
fn a_result_and_an_error_are_both_kept() {
    for (completed, place) in [(true, Place::Completed), (false, Place::Failed)] {
        let mut h = Harness::new();
        let run = h.running(hooked("a"));
        let result = Bytes::from_static(b"{\"half\":1}");
        let outcome = Outcome::Both { completed, result: result.clone(), error: text("half") };
        assert!(matches!(h.submit(run.id, outcome), Reply::Submitted(_)));
        let record = h.result(run.id).expect("a result");
        assert_eq!((record.result, record.error), (Some(result), Some(text("half"))));
        assert_eq!((h.get(run.id).place, record.status), (place, place.status()));
        h.finish();
    }
    let mut h = Harness::new();
    let run = h.running(task("a"));
    let both = |result: Vec<u8>, error: &str| {
        let result = Bytes::from(result);
        Outcome::Both { completed: true, result, error: text(error) }
    };
    assert_eq!(h.submit(run.id, both(b"{}".to_vec(), "")), refused(Rejection::ErrorRequired));
    let max = RESULT_BYTES_MAX;
    let large = both(vec![b' '; max + 1], "e");
    assert_eq!(h.submit(run.id, large), refused(Rejection::InvalidResult { max }));
}

#[test]
fn a_missing_result_counts_as_an_empty_object() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.submit(run.id, completed(b""));
    assert_eq!(h.result(run.id).and_then(|r| r.result).as_deref(), Some(&b"{}"[..]));
    assert!(matches!(h.submit(run.id, completed(b"{}")), Reply::Submitted(_)), "the same outcome");
}

#[test]
fn a_repeat_is_answered_and_changes_nothing() {
    let mut h = Harness::new();
    let both = |completed| Outcome::Both {
        completed,
        result: Bytes::from_static(b"{\"a\":1}"),
        error: text("no"),
    };
    for outcome in [completed(b"{\"a\":1}"), failed("no"), both(true), both(false)] {
        let run = h.running(task("a"));
        let first = h.submit(run.id, outcome.clone());
        h.pass(1_000);
        let before = h.digest();
        assert_eq!(h.submit(run.id, outcome), first);
        assert_eq!(h.digest(), before);
        for other in [completed(b"{\"a\":2}"), failed("other")] {
            assert_eq!(h.submit(run.id, other), refused(Rejection::NotInProgress));
        }
        let same = completed(b"{\"a\":1}");
        assert_eq!(h.submit_as(T, "x", run.id, same), refused(Rejection::NotInProgress));
        assert_eq!(h.digest(), before);
    }
    h.finish();
}

#[test]
fn artifacts_are_part_of_the_outcome() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    let artifact = |name: &str, url: &str| Artifact { name: text(name), url: text(url) };
    let mut submit = |artifacts: Vec<Artifact>| {
        h.apply(Command::Submit(Submit {
            tenant: text(T),
            id: run.id,
            worker: text(W),
            outcome: completed(b"{}"),
            artifacts,
        }))
    };
    let long = "x".repeat(ARTIFACT_FIELD_BYTES_MAX + 1);
    for bad in [artifact("", "u"), artifact("n", ""), artifact(&long, "u"), artifact("n", &long)] {
        assert_eq!(submit(vec![bad]), refused(Rejection::InvalidArtifacts));
    }
    let many = vec![artifact("n", "u"); ARTIFACTS_MAX + 1];
    assert_eq!(submit(many), refused(Rejection::InvalidArtifacts));
    let fine = vec![artifact("n", "u"); ARTIFACTS_MAX];
    assert!(matches!(submit(fine.clone()), Reply::Submitted(r) if r.artifacts == fine));
    assert!(matches!(submit(fine), Reply::Submitted(_)));
    assert_eq!(submit(vec![]), refused(Rejection::NotInProgress), "another outcome");
}

#[test]
fn whoever_removes_a_task_says_which_artifacts_are_left_over() {
    let mut h = Harness::new();
    let artifacts = vec![Artifact { name: text("n"), url: text("u") }];
    let gone = |h: &Harness| {
        let of = |effect: &Effect| match effect {
            Effect::ArtifactsGone { id, artifacts } => Some((*id, artifacts.clone())),
            _ => None,
        };
        h.effects.iter().filter_map(of).collect::<Vec<_>>()
    };
    for by_retention in [true, false] {
        let plain = h.done(task("a"));
        let run = h.running(task("a"));
        let (tenant, worker) = (text(T), text(W));
        let (outcome, artifacts) = (completed(b"{}"), artifacts.clone());
        let submit = Submit { tenant, id: run.id, worker, outcome, artifacts: artifacts.clone() };
        h.apply(Command::Submit(submit));
        assert_eq!(gone(&h), []);
        h.pass(2 * DAY);
        if by_retention {
            h.sweep(10);
        } else {
            assert_eq!(h.cleanup(T, h.now, 10), 2);
        }
        assert_eq!(gone(&h), [(run.id, artifacts)], "nothing for {}", plain.id);
    }
    h.finish();
}

#[test]
fn checks_in_order() {
    let mut h = Harness::new();
    let waiting = h.add(task("b"));
    let run = h.running(task("a"));
    let empty = || failed("");
    assert_eq!(h.submit_as("x", W, run.id, empty()), refused(Rejection::NotFound));
    assert_eq!(h.submit_as(T, "x", waiting.id, empty()), refused(Rejection::NotInProgress));
    assert_eq!(h.submit_as(T, "x", run.id, empty()), refused(Rejection::NotOwner));
    assert_eq!(h.submit(run.id, empty()), refused(Rejection::ErrorRequired));
    let max = RESULT_BYTES_MAX;
    let large = Outcome::Completed(Bytes::from(vec![b' '; max + 1]));
    assert_eq!(h.submit(run.id, large), refused(Rejection::InvalidResult { max }));
    let full = Outcome::Completed(Bytes::from(vec![b' '; max]));
    assert!(matches!(h.submit(run.id, full), Reply::Submitted(_)));
}

#[test]
fn the_lease_decides_to_the_millisecond() {
    let mut h = Harness::new();
    let (one, two) = (h.running(task("a")), h.running(task("b")));
    h.pass(LEASE);
    assert!(matches!(h.submit(one.id, completed(b"{}")), Reply::Submitted(_)));
    h.pass(1);
    assert_eq!(h.submit(two.id, completed(b"{}")), refused(Rejection::NotInProgress));
    assert_eq!((h.get(two.id).attempts, h.result(two.id)), (1, None));
    h.finish();
}

#[test]
fn a_long_error_is_cut() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    let outcome = failed(&"é".repeat(ERROR_BYTES_MAX));
    let first = h.submit(run.id, outcome.clone());
    let error = h.get(run.id).error.expect("an error");
    assert!(error.len() <= ERROR_BYTES_MAX && error.chars().all(|c| c == 'é'));
    assert_eq!(h.submit(run.id, outcome), first, "and is still the same outcome");
}

#[test]
fn a_stale_worker_cannot_finish_a_task_that_moved_on() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    h.pass(LEASE + 1);
    h.sweep(10);
    h.pass(HOUR);
    let again = h.claim_as(T, "other", codeq_core::command::Selector::Any, 1);
    assert!(
        matches!(again, Reply::Claimed(tasks) if tasks[0].id == run.id && tasks[0].fence == Fence(2))
    );
    assert_eq!(h.submit(run.id, completed(b"{}")), refused(Rejection::NotOwner));
    h.finish();
}
