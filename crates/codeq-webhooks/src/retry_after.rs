//! Reads `Retry-After`.

use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::RETRY_AFTER;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;

/// The longest pause that a receiver gets.
const PAUSE_MAX: Duration = Duration::from_secs(86_400);

/// The pause that `Retry-After` asks for, as seconds or as a date: a day at most, zero for a date in the past. Other
/// values are ignored, and so is a header that occurs twice.
pub(crate) fn read(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let mut values = headers.get_all(RETRY_AFTER).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let text = value.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // A number that does not fit means a very long pause.
        let seconds = text.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(PAUSE_MAX));
    }
    let date = DateTimeParser::new().parse_timestamp(text).ok()?;
    let pause = Duration::try_from(date.duration_since(now)).unwrap_or_default();
    Some(pause.min(PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_read_and_anything_else_is_ignored() {
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let cases: &[(&str, Option<u64>)] = &[
            ("0", Some(0)),
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("86401", Some(86_400)),
            ("99999999999999999999999", Some(86_400)),
            ("Fri, 02 Jan 2026 03:05:05 GMT", Some(60)),
            ("Fri, 02 Jan 2026 03:04:05 GMT", Some(0)),
            ("Thu, 01 Jan 2026 03:04:05 GMT", Some(0)),
            ("Fri, 02 Jan 2099 03:04:05 GMT", Some(86_400)),
            ("Mon, 02 Jan 2026 03:05:05 GMT", None),
            ("Fri, 32 Jan 2026 03:05:05 GMT", None),
            ("-1", None),
            ("+5", None),
            ("1.5", None),
            ("0x10", None),
            ("soon", None),
            ("", None),
            ("5, 6", None),
        ];
        for (text, seconds) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            assert_eq!(read(&headers, now), seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(read(&HeaderMap::new(), now), None);
    }

    #[test]
    fn a_repeated_header_is_ignored() {
        let mut headers = HeaderMap::new();
        headers.append(RETRY_AFTER, "5".parse().unwrap());
        headers.append(RETRY_AFTER, "6".parse().unwrap());
        assert_eq!(read(&headers, Timestamp::UNIX_EPOCH), None);
    }
}
