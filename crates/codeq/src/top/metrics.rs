//! What `codeq top` reads from the server's metrics.

use std::time::Duration;

use crate::cli::span;

/// Sums over all labels.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Metrics {
    worker_streams: f64,
    claims_waiting: f64,
    sync_seconds: f64,
    syncs: f64,
}

impl Metrics {
    pub fn parse(text: &str) -> Metrics {
        let mut metrics = Metrics::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let value: f64 = value.parse().unwrap_or_default();
            match name.split('{').next().unwrap_or_default() {
                "codeq_grpc_streams_open" if name.contains("worker") => {
                    metrics.worker_streams += value;
                }
                "codeq_claims_waiting" => metrics.claims_waiting += value,
                "codeq_log_sync_seconds_sum" => metrics.sync_seconds += value,
                "codeq_log_sync_seconds_count" => metrics.syncs += value,
                _ => {}
            }
        }
        metrics
    }

    /// Streams and claims, and the mean latency of the commits since the last view or, without any, since the server
    /// started.
    pub fn line(self, before: Option<Metrics>) -> String {
        let since = before.filter(|before| before.syncs < self.syncs).unwrap_or_default();
        let syncs = self.syncs - since.syncs;
        let mean = (self.sync_seconds - since.sync_seconds) / syncs;
        let latency = Duration::try_from_secs_f64(mean).ok().map(|mean| match mean.as_millis() {
            0 => format!("{} µs", mean.as_micros()),
            1..=9 => format!("{:.1} ms", mean.as_secs_f64() * 1_000.0),
            _ => span(mean),
        });
        let latency = latency.unwrap_or("-".to_owned());
        format!(
            "streams {}, waiting claims {}, commit latency {latency}",
            self.worker_streams, self.claims_waiting
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_are_summed_and_compared() {
        let first = "# HELP codeq_x\ncodeq_grpc_streams_open{service=\"worker\"} 2\n\
                     codeq_grpc_streams_open{service=\"producer\"} 9\ncodeq_claims_waiting 3\n\
                     codeq_log_sync_seconds_sum 1.5\ncodeq_log_sync_seconds_count 100\n";
        let metrics = Metrics::parse(first);
        let line = metrics.line(None);
        assert_eq!(line, "streams 2, waiting claims 3, commit latency 15ms");
        let later = Metrics { sync_seconds: 1.502, syncs: 101.0, ..metrics };
        assert!(
            later.line(Some(metrics)).ends_with("commit latency 2.0 ms"),
            "{}",
            later.line(None)
        );
        let quiet = Metrics::default().line(None);
        assert!(quiet.ends_with("commit latency -"), "{quiet}");
    }
}
