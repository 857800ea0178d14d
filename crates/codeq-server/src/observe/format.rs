//! The two metrics formats: Prometheus text, and OpenMetrics on request.

use std::fmt::Write;

/// A text format for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4, which every tool reads.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Chooses the format for the `Accept` values: OpenMetrics if it is listed and nothing else is
    /// preferred.
    pub fn accepted<'a>(accept: impl Iterator<Item = &'a str>) -> Format {
        let (mut open, mut plain) = (0, 0);
        for range in accept.flat_map(|value| value.split(',')) {
            let (media, weight) = parse(range);
            match media {
                Some(Format::OpenMetrics) => open = open.max(weight),
                Some(Format::Prometheus) => plain = plain.max(weight),
                None => {}
            }
        }
        if open > 0 && open >= plain { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// The format's `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Converts OpenMetrics text to this format.
    pub fn of(self, open: String) -> String {
        match self {
            Format::Prometheus => prometheus(&open),
            Format::OpenMetrics => open,
        }
    }
}

/// Parses a media range: its format, if supported, and its weight in thousandths.
fn parse(range: &str) -> (Option<Format>, u32) {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let (mut version, mut weight) = (None, 1_000);
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        let value = value.trim().trim_matches('"');
        match name.trim() {
            name if name.eq_ignore_ascii_case("version") => version = Some(value),
            name if name.eq_ignore_ascii_case("q") => {
                let q: f64 = value.parse().unwrap_or(0.0);
                weight = (q.clamp(0.0, 1.0) * 1_000.0) as u32;
            }
            _ => {}
        }
    }
    let is = |name: &str| media.eq_ignore_ascii_case(name);
    let format = if is("application/openmetrics-text") {
        version.is_none_or(|version| version == "1.0.0").then_some(Format::OpenMetrics)
    } else {
        let plain = is("text/plain") || is("text/*") || is("*/*");
        plain.then_some(Format::Prometheus)
    };
    (format, weight)
}

/// Converts our OpenMetrics text to Prometheus text. There, a counter's family has the same name as
/// its samples, an info is a gauge, and there are no lines for units or the end.
fn prometheus(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            // Writing to a `String` cannot fail.
            if let Some((_, help)) = help.take().filter(|(helped, _)| *helped == name) {
                let _ = writeln!(text, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_selects_the_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for accept in [
            &["application/openmetrics-text"][..],
            &["application/openmetrics-text; version=1.0.0; charset=utf-8"],
            &["Application/OpenMetrics-Text;Version=\"1.0.0\", */*"],
            &["text/plain;q=0.5", "application/openmetrics-text;q=0.5"],
            &[prometheus],
        ] {
            assert_eq!(Format::accepted(accept.iter().copied()), Format::OpenMetrics, "{accept:?}");
        }
        for accept in [
            &[][..],
            &[""],
            &["*/*"],
            &["text/plain;version=0.0.4"],
            &["text/html, application/xhtml+xml, */*;q=0.8"],
            &["application/openmetrics-text;version=0.0.1, text/plain;q=0.1"],
            &["application/openmetrics-text;version=2.0.0"],
            &["application/openmetrics-text;q=0"],
            &["application/openmetrics-text;q=0.4, text/plain;q=0.9"],
            &["application/openmetrics-text;q=much, text/*"],
            &["application/json"],
        ] {
            assert_eq!(Format::accepted(accept.iter().copied()), Format::Prometheus, "{accept:?}");
        }
    }

    #[test]
    fn converts_to_prometheus_text() {
        let open = "# HELP a_b Bytes.\n# TYPE a_b counter\n# UNIT a_b bytes\na_b_total{x=\"# {\"} 1\n\
            # HELP v Which.\n# TYPE v info\nv_info{version=\"1\"} 1\n\
            # HELP g Now.\n# TYPE g gauge\ng 2.5\n# EOF\n";
        let want = "# HELP a_b_total Bytes.\n# TYPE a_b_total counter\na_b_total{x=\"# {\"} 1\n\
            # HELP v_info Which.\n# TYPE v_info gauge\nv_info{version=\"1\"} 1\n\
            # HELP g Now.\n# TYPE g gauge\ng 2.5\n";
        assert_eq!(prometheus(open), want);
    }
}
