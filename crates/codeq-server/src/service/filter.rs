//! The `filter` of lists: terms separated by spaces, all of which must hold.
//!
//! ```text
//! worker=w-1  created>2026-01-31T00:00:00Z  created<=2026-02-01T00:00:00Z  error~"connection refused"
//! ```
//!
//! A value with spaces stands in double quotes; inside, `\` takes the next character as it is.

use codeq_core::command::Millis;
use codeq_core::read::ListQuery;

use super::ServiceError;

/// Longest filter in bytes.
pub const FILTER_BYTES_MAX: usize = 2_048;

/// Adds the terms of a filter to a query.
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
                    .ok_or_else(|| invalid("has a 'created' that is not RFC 3339"))?;
                let from = |at: Millis| query.created_from.map_or(at, |known| known.max(at));
                let before = |at: Millis| query.created_before.map_or(at, |known| known.min(at));
                match operator {
                    ">" => query.created_from = Some(from(at.saturating_add(1))),
                    ">=" => query.created_from = Some(from(at)),
                    "<" => query.created_before = Some(before(at)),
                    "<=" => query.created_before = Some(before(at.saturating_add(1))),
                    _ => return Err(invalid("compares 'created' with <, <=, > or >= only")),
                }
            }
            _ => return Err(invalid("knows worker=…, created>…, created<…, error~… only")),
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
    Err(invalid("has a quote that does not end"))
}

/// A moment in RFC 3339, in milliseconds since the epoch; moments before it count as zero.
pub fn moment(text: &str) -> Option<Millis> {
    const LONGEST: usize = 40;
    // The parser also reads extensions of RFC 3339 that nobody here means.
    if text.len() > LONGEST || text.contains('[') {
        return None;
    }
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(u64::try_from(at.as_millisecond()).unwrap_or(0))
}

fn invalid(why: &'static str) -> ServiceError {
    ServiceError::invalid("invalid_filter", format!("invalid filter: it {why}")).field("filter")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(filter: &str) -> Result<ListQuery, ServiceError> {
        let mut query = ListQuery::default();
        apply(filter, &mut query).map(|()| query)
    }

    #[test]
    fn terms() {
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
    fn nonsense_is_refused() {
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
            assert_eq!(error.code, "invalid_filter", "{bad}");
        }
    }
}
