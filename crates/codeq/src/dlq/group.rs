//! Groups of dead letters: those whose errors differ only in numbers.

use std::collections::{BTreeMap, BTreeSet};

use aws_lc_rs::digest::{SHA256, digest};
use codeq_client::{BulkOptions, Error, Search, TaskRecord};
use jiff::Timestamp;

use crate::bulk::{Purge, SLICE, Total, Which};
use crate::cli::{About, Done, Exit, Failure, Progress, Session, talk};

/// A short name for all errors that differ only in numbers.
pub fn id(error: &str) -> String {
    let digest = digest(&SHA256, kind(error).as_bytes());
    digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// The error without what differs from task to task: every number becomes `N`.
fn kind(error: &str) -> String {
    let mut kind = String::new();
    for c in error.chars() {
        match c.is_ascii_digit() {
            true if kind.ends_with('N') => {}
            true => kind.push('N'),
            false => kind.push(c),
        }
    }
    kind
}

/// The longest part of the error without numbers. All errors of the group contain it.
fn common(error: &str) -> Option<String> {
    let kind = kind(error);
    kind.split('N').max_by_key(|part| part.len()).filter(|part| !part.is_empty()).map(str::to_owned)
}

/// Replays the dead letters of a group one by one: the server's filters do not know groups.
pub async fn replay(
    session: &Session,
    queue: &str,
    group: &str,
    which: &Which,
    dry_run: bool,
) -> Done {
    let mut total = Total::new(queue, "replayed", dry_run);
    let mut progress = Progress::new(if dry_run { "matching tasks found" } else { "replayed" });
    let mut search = first_page();
    loop {
        for task in next_page(session, queue, &mut search).await? {
            if id(&task.error) != group {
                continue;
            }
            if total.so_far() >= which.limit() {
                total.remaining += 1;
                continue;
            }
            if dry_run {
                total.remaining += 1;
            } else {
                match session.http.replay_task(&task.id).await {
                    // Somebody else was faster.
                    Err(Error::Api { status: 404 | 409, .. }) => continue,
                    replayed => replayed.about(&format!("task {}", task.id))?,
                };
            }
            total.add(1);
            progress.at(total.so_far(), None);
        }
        if search.cursor.is_none() {
            break;
        }
    }
    drop(progress);
    if total.so_far() == 0 {
        return Err(no_group(queue, group));
    }
    session.out.item(&total)
}

/// Deletes the dead letters of a group, by filters that match no others. See [`Letters`].
pub async fn purge(session: &Session, purge: &Purge, group: &str) -> Done {
    let Purge { queue, which, confirm } = purge;
    let what = format!("delete the dead letters of group {group} of queue {queue} for good");
    confirm.ask(&what, queue)?;
    let letters = Letters::read(session, queue, group).await?;
    let (count, limit) = (letters.count(), which.limit());
    if count == 0 {
        return Err(no_group(queue, group));
    }
    let mut total = Total::new(queue, "purged", confirm.dry_run);
    if confirm.dry_run {
        total.add(count.min(limit));
        total.remaining = count;
        return session.out.item(&total);
    }
    let mut progress = Progress::new("purged");
    for filter in letters.filters() {
        let mut options = filter;
        while total.so_far() < limit {
            let left = limit.saturating_sub(total.so_far()).min(SLICE);
            options.limit = u32::try_from(left).ok();
            let done = session.http.purge_dead_letters(queue, &options).await;
            let done = done.about(&format!("queue {queue}"))?;
            total.add(done.purged);
            progress.at(total.so_far(), Some(count.min(limit)));
            options.cursor = done.progress.next_cursor;
            if options.cursor.is_none() {
                break;
            }
        }
    }
    drop(progress);
    total.remaining = count.saturating_sub(total.so_far());
    if total.remaining > 0 && total.so_far() < limit {
        talk(&format!(
            "{} of the group were not purged: they were replayed meanwhile, have a callback to deliver, or \
             cannot be told from others that died in the same millisecond",
            total.remaining
        ));
    }
    session.out.item(&total)
}

fn no_group(queue: &str, group: &str) -> Failure {
    let hint = format!("see the groups: codeq dlq groups {queue}");
    let what = format!("queue {queue} has no dead letters of group {group}");
    Failure::new(Exit::NotFound, what, hint)
}

fn first_page() -> Search {
    Search { limit: Some(1_000), ..Search::default() }
}

async fn next_page(session: &Session, queue: &str, search: &mut Search) -> Done<Vec<TaskRecord>> {
    let subject = format!("dead letters of queue {queue}");
    let page = session.http.dead_letters(queue, search).await.about(&subject)?;
    search.cursor = page.next_cursor;
    Ok(page.items)
}

/// When dead letters died, to find filters that match those of a group and nothing else. The filters match no later dead
/// letters either, because those die after the ones that were read, unless the server's wall clock steps back, or one dies
/// in the millisecond of the last one read.
#[derive(Default)]
struct Letters {
    /// What every error of the group contains.
    common: Option<String>,
    /// By the millisecond in which they died: the errors of the group, with how many tasks have each.
    own: BTreeMap<i64, BTreeMap<String, u64>>,
    /// The other errors that contain the common text.
    others: BTreeMap<i64, BTreeSet<String>>,
}

impl Letters {
    async fn read(session: &Session, queue: &str, group: &str) -> Done<Letters> {
        let mut letters = Letters::default();
        let mut others = Vec::new();
        let mut progress = Progress::new("dead letters read");
        let (mut search, mut seen) = (first_page(), 0);
        loop {
            for task in next_page(session, queue, &mut search).await? {
                seen += 1;
                let at = died(&task)?;
                match id(&task.error) == group {
                    true => letters.add(at, task.error),
                    false => others.push((at, task.error)),
                }
            }
            progress.at(seen, None);
            if search.cursor.is_none() {
                break;
            }
        }
        for (at, error) in others {
            letters.add_other(at, error);
        }
        Ok(letters)
    }

    fn add(&mut self, at: i64, error: String) {
        if self.own.is_empty() {
            self.common = common(&error);
        }
        *self.own.entry(at).or_default().entry(error).or_default() += 1;
    }

    fn add_other(&mut self, at: i64, error: String) {
        if self.common.as_ref().is_none_or(|common| error.contains(common)) {
            self.others.entry(at).or_default().insert(error);
        }
    }

    fn count(&self) -> u64 {
        self.own.values().flat_map(BTreeMap::values).sum()
    }

    /// One filter for each run of milliseconds without other errors in between. In a millisecond that has other errors,
    /// one filter for each error of the group, unless another error contains it.
    fn filters(&self) -> Vec<BulkOptions> {
        let filter = |from: i64, to: i64, error: Option<&String>| BulkOptions {
            error_contains: error.cloned(),
            after: Some(text(from)),
            before: Some(text(to.saturating_add(1))),
            ..BulkOptions::default()
        };
        let mut filters = Vec::new();
        let mut run: Option<(i64, i64)> = None;
        for (&at, errors) in &self.own {
            if let Some(others) = self.others.get(&at) {
                let alone = |error: &&String| !others.iter().any(|other| other.contains(*error));
                let told_apart = errors.keys().filter(|error| !error.is_empty()).filter(alone);
                filters.extend(told_apart.map(|error| filter(at, at, Some(error))));
                continue;
            }
            run = match run {
                Some((from, to)) if self.others.range(to..at).next().is_none() => Some((from, at)),
                Some((from, to)) => {
                    filters.push(filter(from, to, self.common.as_ref()));
                    Some((at, at))
                }
                None => Some((at, at)),
            };
        }
        filters.extend(run.map(|(from, to)| filter(from, to, self.common.as_ref())));
        filters
    }
}

/// When a dead letter died, in milliseconds.
fn died(task: &TaskRecord) -> Done<i64> {
    let at: Result<Timestamp, _> = task.updated_at.parse();
    at.map(Timestamp::as_millisecond).map_err(|error| {
        let what = format!("task {}: unreadable time '{}': {error}", task.id, task.updated_at);
        Failure::error(what, "check that --url is a codeQ server of this version")
    })
}

fn text(millis: i64) -> String {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_split_a_group() {
        assert_eq!(kind("timeout after 30 s"), "timeout after N s");
        assert_eq!(kind("timeout after 5 s"), kind("timeout after 30 s"));
        assert_eq!(kind(""), "");
        assert_eq!(id("timeout after 5 s"), id("timeout after 30 s"));
        assert_ne!(id("timeout after 5 s"), id("timeout after 5 m"));
    }

    #[test]
    fn all_errors_of_a_group_contain_its_common_text() {
        for (error, part) in
            [("after 30 s", Some("after ")), ("N5", None), ("", None), ("code 5N7", Some("code "))]
        {
            assert_eq!(common(error).as_deref(), part, "{error}");
        }
    }

    /// Whether a server would delete a dead letter.
    fn matches(filters: &[BulkOptions], at: i64, error: &str) -> bool {
        filters.iter().any(|filter| {
            let millis = |text: &Option<String>| {
                text.as_deref().unwrap().parse::<Timestamp>().unwrap().as_millisecond()
            };
            (millis(&filter.after)..millis(&filter.before)).contains(&at)
                && filter.error_contains.as_deref().is_none_or(|part| error.contains(part))
        })
    }

    #[test]
    fn filters_match_the_group_and_nothing_else() {
        let group = id("timeout after 5 s");
        let dead = [
            (10, "timeout after 5 s"),
            (11, "refused"),
            (12, "timeout after 30 s"),
            // In the same millisecond: told apart by the whole error.
            (13, "timeout after 7 s"),
            (13, "timeout after 8 m"),
            (14, "timeout after 9 s"),
            (15, "no timeout after all"),
            (16, "timeout after 1 s"),
            (17, "timeout after 2 s"),
        ];
        let mut letters = Letters::default();
        for (at, error) in dead.iter().filter(|(_, error)| id(error) == group) {
            letters.add(*at, (*error).to_owned());
        }
        for (at, error) in dead.iter().filter(|(_, error)| id(error) != group) {
            letters.add_other(*at, (*error).to_owned());
        }
        let filters = letters.filters();
        assert_eq!((letters.count(), filters.len()), (6, 4), "{filters:?}");
        for (at, error) in dead {
            assert_eq!(matches(&filters, at, error), id(error) == group, "{at} {error}");
        }
    }

    #[test]
    fn letters_that_no_filter_can_tell_apart_are_kept() {
        let mut letters = Letters::default();
        letters.add(10, "timeout".to_owned());
        letters.add(11, "timeout".to_owned());
        letters.add_other(10, "timeout again".to_owned());
        let filters = letters.filters();
        assert!(!matches(&filters, 10, "timeout") && matches(&filters, 11, "timeout"));
    }

    #[test]
    fn an_empty_error_is_a_group_too() {
        let mut letters = Letters::default();
        letters.add(10, String::new());
        letters.add_other(11, "other".to_owned());
        letters.add(12, String::new());
        let filters = letters.filters();
        let found = [10, 11, 12].map(|at| matches(&filters, at, ""));
        assert_eq!((found, filters.len()), ([true, false, true], 2));
    }
}
