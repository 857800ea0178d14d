//! Timestamps in the format clients see.

use codeq_core::command::Millis;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::Serialize;

/// A date and time in RFC 3339.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline, extend("format" = "date-time"))]
pub struct Timestamp(String);

/// Formats timestamps in the configured time zone.
#[derive(Debug, Clone)]
pub struct Times(TimeZone);

impl Times {
    /// Creates a formatter for an IANA time zone; `None` if the zone is unknown.
    pub fn new(zone: &str) -> Option<Times> {
        if zone == "UTC" {
            return Some(Times(TimeZone::UTC));
        }
        TimeZone::get(zone).ok().map(Times)
    }

    /// Formats a timestamp for a response.
    pub fn timestamp(&self, at: Millis) -> Timestamp {
        Timestamp(self.text(at))
    }

    /// Formats a timestamp as RFC 3339 with milliseconds.
    pub fn text(&self, at: Millis) -> String {
        let moment =
            i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
        let moment = moment.unwrap_or(jiff::Timestamp::MAX);
        if self.0 == TimeZone::UTC {
            return format!("{moment:.3}");
        }
        moment.to_zoned(self.0.clone()).strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_have_milliseconds_and_the_zones_offset() {
        let utc = Times::new("UTC").unwrap();
        assert_eq!(utc.text(1_700_000_000_007), "2023-11-14T22:13:20.007Z");
        assert_eq!(utc.text(0), "1970-01-01T00:00:00.000Z");
        let sao_paulo = Times::new("America/Sao_Paulo").unwrap();
        assert_eq!(sao_paulo.text(1_700_000_000_007), "2023-11-14T19:13:20.007-03:00");
        assert!(Times::new("Nowhere/Else").is_none());
        assert!(!utc.text(u64::MAX).is_empty());
    }
}
