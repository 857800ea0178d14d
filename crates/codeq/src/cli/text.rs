//! Values on the command line: durations, moments, and input from files.

use std::io::Read;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::failure::{Done, Failure};

/// Largest input that is read from a file or stdin: more than any server accepts.
const INPUT_MAX: u64 = 64 << 20;

/// Longest duration that is accepted: a moment so far away can still be computed.
const DURATION_MAX: Duration = Duration::from_secs(36_500 * 86_400);

/// Parses a duration such as `500ms`, `10s`, `5m`, `2h`, `1d` or `1h30m`. A number alone is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = any_duration(text).ok_or("expected a duration such as 10s, 5m or 2h")?;
    match duration > DURATION_MAX {
        true => Err("expected a duration of at most 36500d (100 years)".to_owned()),
        false => Ok(duration),
    }
}

fn any_duration(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let number: u64 = number.parse().ok()?;
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        let part = number.checked_mul(millis).map(Duration::from_millis)?;
        total = total.checked_add(part)?;
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

/// Whole seconds, rounded up, so that nothing happens earlier than asked for.
pub fn seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// Checks a time: RFC 3339.
pub fn time(text: &str) -> Result<String, String> {
    match text.parse::<Timestamp>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("expected a time such as 2026-01-31T08:00:00Z".to_owned()),
    }
}

/// Parses a moment: RFC 3339, or a duration before now, such as `2h`. Returns RFC 3339.
pub fn moment(text: &str) -> Result<String, String> {
    if text.parse::<Timestamp>().is_ok() {
        return Ok(text.to_owned());
    }
    let wrong = || "expected a time such as 2026-01-31T08:00:00Z, or an age such as 2h".to_owned();
    let age = duration(text).map_err(|_| wrong())?;
    let age = SignedDuration::try_from(age).map_err(|_| wrong())?;
    let at = Timestamp::now().checked_sub(age).map_err(|_| wrong())?;
    Ok(at.to_string())
}

/// How long ago a moment was, for people; empty if it cannot be read.
pub fn age(moment: &str) -> String {
    let Ok(at) = moment.parse::<Timestamp>() else { return String::new() };
    let age = Timestamp::now().duration_since(at).max(SignedDuration::ZERO);
    span(Duration::from_secs(age.unsigned_abs().as_secs()))
}

/// A duration for people: the two largest units.
pub fn span(duration: Duration) -> String {
    let (total, millis) = (duration.as_secs(), duration.subsec_millis());
    let (days, hours) = (total / 86_400, total / 3_600 % 24);
    let (minutes, seconds) = (total / 60 % 60, total % 60);
    match (days, hours, minutes, seconds) {
        (0, 0, 0, 0) if millis > 0 => format!("{millis}ms"),
        (0, 0, 0, _) => format!("{seconds}s"),
        (0, 0, _, _) => format!("{minutes}m{seconds:02}s"),
        (0, _, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

/// The bytes of a value: the text itself, the contents of a file (`@path`), or stdin (`-`).
pub fn input(value: &str) -> Done<Vec<u8>> {
    let read = |from: &mut dyn Read, name: &str| {
        let mut bytes = Vec::new();
        let failed = |error: std::io::Error| {
            Failure::usage(
                format!("cannot read {name}: {error}"),
                "check the path and its permissions",
            )
        };
        from.take(INPUT_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > INPUT_MAX {
            let what = format!("{name} has more than {} MiB", INPUT_MAX >> 20);
            return Err(Failure::usage(what, "store it elsewhere and send its address"));
        }
        Ok(bytes)
    };
    match value.strip_prefix('@') {
        None if value == "-" => read(&mut std::io::stdin().lock(), "stdin"),
        None => Ok(value.as_bytes().to_vec()),
        Some(path) => {
            let mut file = std::fs::File::open(path).map_err(|error| {
                Failure::usage(format!("cannot read {path}: {error}"), "check the path")
            })?;
            read(&mut file, path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, millis) in [
            ("10s", 10_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("90", 90_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "10x", "1.5h", "-1s", "10s5", "99999999999999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration("36500d").is_ok());
        for text in ["36500d1ms", "18446744073709551615"] {
            assert!(duration(text).unwrap_err().contains("36500d"), "{text}");
        }
        assert_eq!([seconds(Duration::from_millis(1)), seconds(Duration::from_secs(2))], [1, 2]);
    }

    #[test]
    fn times_are_not_ages() {
        assert_eq!(time("2026-01-31T08:00:00+01:00"), Ok("2026-01-31T08:00:00+01:00".to_owned()));
        for wrong in ["tomorrow", "2h", "", "2026-01-31"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn moments_are_times_or_ages() {
        assert_eq!(moment("2026-01-31T08:00:00Z").as_deref(), Ok("2026-01-31T08:00:00Z"));
        let ago: Timestamp = moment("2h").unwrap().parse().unwrap();
        let age = Timestamp::now().duration_since(ago).as_secs();
        assert!((7_200..7_210).contains(&age), "{age}");
        assert!(moment("yesterday").is_err());
    }

    #[test]
    fn durations_are_shown_in_at_most_two_units() {
        let of = |millis| span(Duration::from_millis(millis));
        assert_eq!([of(7), of(61_000), of(5_400_000)], ["7ms", "1m01s", "1h30m"]);
        assert_eq!(of(90_000_000), "1d01h");
    }
}
