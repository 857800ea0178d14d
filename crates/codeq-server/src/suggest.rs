//! Suggests the known name a misspelled one was meant to be.

/// Longest name to compare.
const NAME_MAX: usize = 64;

/// The most likely candidate. Each candidate is a pair: the text to compare with the name, and the
/// text to return. Ignores case, `_` and `-`, tolerates one error per three letters, and accepts a
/// truncated name.
pub fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<&'a str> {
    if name.len() > NAME_MAX {
        return None;
    }
    let name = plain(name);
    let scored = candidates.filter_map(|(short, full)| Some((score(&name, &plain(short))?, full)));
    scored.min_by_key(|(score, _)| *score).map(|(_, full)| full)
}

/// Distance between a name and a candidate, smaller being nearer; `None` if too far.
pub(crate) fn distance(name: &str, candidate: &str) -> Option<(usize, usize)> {
    if name.len() > NAME_MAX { None } else { score(&plain(name), &plain(candidate)) }
}

fn plain(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// Edit distance to the candidate's best-matching prefix, then the length of the remainder.
fn score(name: &[char], candidate: &[char]) -> Option<(usize, usize)> {
    let ends = distances(name, candidate);
    let total = candidate.len();
    let best = ends.into_iter().enumerate().map(|(end, distance)| (distance, total - end)).min()?;
    (!name.is_empty() && best.0 <= name.len() / 3).then_some(best)
}

/// Edit distances (insert, delete, replace, transpose) from the name to every prefix of the candidate.
fn distances(name: &[char], candidate: &[char]) -> Vec<usize> {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=candidate.len()).collect();
    let mut previous = None;
    for (row, &letter) in name.iter().enumerate() {
        let mut next = vec![row + 1];
        let mut left = row + 1;
        let mut earlier = None;
        for (column, &other) in candidate.iter().enumerate() {
            let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX);
            let mut cost = at(&last, column) + usize::from(letter != other);
            cost = cost.min(at(&last, column + 1) + 1).min(left + 1);
            if column > 0 && earlier == Some(letter) && previous == Some(other) {
                cost = cost.min(at(&before, column - 1) + 1);
            }
            next.push(cost);
            left = cost;
            earlier = Some(other);
        }
        previous = Some(letter);
        before = std::mem::replace(&mut last, next);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] =
        ["maxAttemptsDefault", "maxBatchSize", "httpAddr", "http", "tls", "shards"];

    #[test]
    fn finds_the_intended_name() {
        let near = |name| nearest(name, NAMES.iter().map(|name| (*name, *name)));
        for (name, meant) in [
            ("maxAtempts", Some("maxAttemptsDefault")),
            ("max_attempts_default", Some("maxAttemptsDefault")),
            ("maxBachSize", Some("maxBatchSize")),
            ("htpAddr", Some("httpAddr")),
            ("HTTP", Some("http")),
            ("tsl", Some("tls")),
            ("shard", Some("shards")),
            ("sharsd", Some("shards")),
            ("q", None),
            ("", None),
            ("redis", None),
        ] {
            assert_eq!(near(name), meant, "{name}");
        }
        assert_eq!(near(&"h".repeat(1000)), None);
    }
}
