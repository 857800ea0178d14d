//! The `filter` of lists: terms separated by spaces, all of which must match.
//!
//! ```text
//! worker=w-1  created>2026-01-31T00:00:00Z  created<=2026-02-01T00:00:00Z  error~"connection refused"
//! ```
//!
//! Values with spaces go in double quotes, where `\` escapes the next character.

use codeq_core::command::Millis;
use codeq_core::read::ListQuery;
use jiff::fmt::temporal::Pieces;
use jiff::tz::TimeZone;

use super::{Code, ServiceError};

/// Longest filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 2_048;

/// Syntax summary for error messages.
const EXPECTED: &str = "expected terms separated by spaces: worker=NAME, created>TIME (also >=, <, <=; \
                        RFC 3339 such as 2026-01-31T08:00:00Z), error~TEXT; a value with spaces goes \
                        in double quotes";

/// Parses a filter and adds its terms to a query.
pub fn apply(filter: &str, query: &mut ListQuery) -> Result<(), ServiceError> {
    if filter.len() > FILTER_BYTES_MAX {
        return Err(invalid("is too long"));
    }
    let mut rest = filter.trim_start();
    while !rest.is_empty() {
        let (term, after) = Term::parse(rest)?;
        term.apply(query)?;
        rest = after.trim_start();
    }
    Ok(())
}

struct Term<'a> {
    name: &'a str,
    operator: &'a str,
    value: String,
}

impl Term<'_> {
    fn parse(text: &str) -> Result<(Term<'_>, &str), ServiceError> {
        let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let operators = [">=", "<=", ">", "<", "=", "~"];
        let operator = operators.into_iter().find(|operator| rest.starts_with(operator));
        let Some(operator) = operator else {
            return Err(invalid("has a term without an operator (=, ~, <, <=, >, >=)"));
        };
        let (operator, rest) = rest.split_at(operator.len());
        let (value, rest) = value(rest)?;
        Ok((Term { name, operator, value }, rest))
    }

    fn apply(self, query: &mut ListQuery) -> Result<(), ServiceError> {
        match (self.name, self.operator) {
            ("worker", "=") => query.worker = Some(self.value.into()),
            ("error", "~") => query.error_contains = Some(self.value.into()),
            ("created", operator) => {
                let at = moment(&self.value)
                    .ok_or_else(|| invalid("has a 'created' date that is not RFC 3339"))?;
                let from = |at: Millis| query.created_from.map_or(at, |known| known.max(at));
                let before = |at: Millis| query.created_before.map_or(at, |known| known.min(at));
                match operator {
                    ">" => query.created_from = Some(from(at.saturating_add(1))),
                    ">=" => query.created_from = Some(from(at)),
                    "<" => query.created_before = Some(before(at)),
                    "<=" => query.created_before = Some(before(at.saturating_add(1))),
                    _ => return Err(invalid("needs <, <=, > or >= after 'created'")),
                }
            }
            _ => {
                return Err(invalid(
                    "has an unknown term (use worker=…, created>…, created<… or error~…)",
                ));
            }
        }
        Ok(())
    }
}

fn value(text: &str) -> Result<(String, &str), ServiceError> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return if value.is_empty() {
            Err(invalid("has a term without a value"))
        } else {
            Ok((value.to_owned(), rest))
        };
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, quoted.get(at + 1..).unwrap_or_default())),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    Err(invalid("has an unclosed quote"))
}

/// Parses an RFC 3339 timestamp into milliseconds since the epoch; earlier times become zero.
pub fn moment(text: &str) -> Option<Millis> {
    const LONGEST: usize = 40;
    if text.len() > LONGEST || !is_rfc3339(text.as_bytes()) {
        return None;
    }
    let at = text.parse().ok().or_else(|| last_days(text))?;
    Some(u64::try_from(at.as_millisecond()).unwrap_or(0))
}

/// The latest timestamp that the parser supports, for a later date that RFC 3339 allows: many people write 9999-12-31 for
/// "never".
fn last_days(text: &str) -> Option<jiff::Timestamp> {
    let pieces = Pieces::parse(text).ok()?;
    let late = pieces.date() >= jiff::Timestamp::MAX.to_zoned(TimeZone::UTC).date();
    late.then_some(jiff::Timestamp::MAX)
}

/// Whether the text has RFC 3339 form. The parser also accepts other ISO 8601 forms and extensions,
/// which this API does not.
fn is_rfc3339(text: &[u8]) -> bool {
    const DATE_TIME: &[u8] = b"0000-00-00T00:00:00";
    let like = |text: &[u8], form: &[u8]| {
        text.len() == form.len()
            && text.iter().zip(form).all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                b'T' => matches!(byte, b'T' | b't' | b' '),
                form => byte == form,
            })
    };
    let Some((date_time, rest)) = text.split_at_checked(DATE_TIME.len()) else {
        return false;
    };
    let (fraction, offset) = match rest.iter().position(|byte| b"Zz+-".contains(byte)) {
        Some(at) => rest.split_at(at),
        None => return false,
    };
    let fraction_fits = match fraction.split_first() {
        None => true,
        Some((b'.', digits)) => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    };
    let zulu = offset.eq_ignore_ascii_case(b"Z");
    let offset_fits = zulu || like(offset, b"+00:00") || like(offset, b"-00:00");
    like(date_time, DATE_TIME) && fraction_fits && offset_fits
}

fn invalid(why: &'static str) -> ServiceError {
    let text = format!("invalid filter: it {why}");
    let detail = format!("{text}; {EXPECTED}; at most {FILTER_BYTES_MAX} bytes");
    ServiceError::new(Code::InvalidFilter, text).field("filter").detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(filter: &str) -> Result<ListQuery, ServiceError> {
        let mut query = ListQuery::default();
        apply(filter, &mut query).map(|()| query)
    }

    #[test]
    fn terms_are_parsed() {
        let got = parse(r#"worker=w-1 error~"a \"b\" c" created>1970-01-01T00:00:01Z"#).unwrap();
        assert_eq!(got.worker.as_deref(), Some("w-1"));
        assert_eq!(got.error_contains.as_deref(), Some("a \"b\" c"));
        assert_eq!((got.created_from, got.created_before), (Some(1_001), None));
        let got =
            parse("created>=1970-01-01T01:00:02+01:00 created<=1970-01-01T00:00:03Z").unwrap();
        assert_eq!((got.created_from, got.created_before), (Some(2_000), Some(3_001)));
        assert!(parse("  ").unwrap().worker.is_none());
    }

    #[test]
    fn only_rfc_3339_times_are_accepted() {
        for (text, at) in [
            ("1970-01-01T00:00:01Z", 1_000),
            ("1970-01-01t00:00:01.5z", 1_500),
            ("1970-01-01 01:00:01+01:00", 1_000),
            ("1969-12-31T23:59:59Z", 0),
            ("9999-12-31T23:59:59Z", 253_402_207_200_999),
            ("9999-12-30T23:59:59.999-01:00", 253_402_207_200_999),
        ] {
            assert_eq!(moment(text), Some(at), "{text}");
        }
        for text in [
            "",
            "1970-01-01",
            "1970-01-01T00:00:01",
            "1970-01-01T00:00Z",
            "1970-01-01T00Z",
            "19700101T000001Z",
            "1970-01-01T00:00:01+0100",
            "1970-01-01T00:00:01,5Z",
            "1970-01-01T00:00:01.Z",
            "1970-01-01T00:00:01Z[UTC]",
            "1970-01-01T00:00:01Zé",
            "+001970-01-01T00:00:01Z",
            "1970-02-30T00:00:01Z",
            "9999-12-32T00:00:00Z",
            "9999-12-31T24:00:01Z",
        ] {
            assert_eq!(moment(text), None, "{text}");
        }
    }

    #[test]
    fn invalid_filters_are_refused() {
        let long = "x".repeat(FILTER_BYTES_MAX + 1);
        for bad in [
            "worker",
            "worker=",
            "worker>1",
            "error=x",
            "created=1970-01-01T00:00:01Z",
            "created>1",
            "nope=1",
            "error~\"open",
            "=x",
            "é=1",
            &long,
            "created>1970-01-01T00:00:00Z[UTC]",
        ] {
            let error = parse(bad).unwrap_err();
            assert_eq!(
                (error.code, error.field.as_deref()),
                (Code::InvalidFilter, Some("filter")),
                "{bad}"
            );
            let detail = error.detail.unwrap();
            assert!(detail.starts_with(&*error.error) && detail.contains(EXPECTED), "{detail}");
        }
    }
}
