//! Parses OpenMetrics and Prometheus text, and panics if it breaks their rules.

use std::collections::BTreeMap;

/// The series of one scrape, by name and labels as they stand in the text.
#[derive(Debug)]
pub struct Exposition {
    pub series: BTreeMap<String, f64>,
    pub families: BTreeMap<String, String>,
}

impl Exposition {
    /// The series of OpenMetrics text; panics if the text breaks a rule.
    pub fn parse(text: &str) -> Exposition {
        let body = text.strip_suffix("# EOF\n").expect("ends with EOF");
        Exposition::read(body, true)
    }

    /// The same of Prometheus text 0.0.4.
    pub fn parse_prometheus(text: &str) -> Exposition {
        assert!(text.ends_with('\n') && !text.contains("# EOF") && !text.contains("# UNIT"));
        Exposition::read(text, false)
    }

    fn read(body: &str, open: bool) -> Exposition {
        let mut read = Exposition { series: BTreeMap::new(), families: BTreeMap::new() };
        let (mut family, mut helped) = (String::new(), String::new());
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect(line);
                assert!(help.ends_with('.') && !help.ends_with(".."), "{line}");
                helped = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect(line);
                assert_eq!(name, helped, "HELP comes before TYPE");
                assert!(name.starts_with("codeq_"), "{line}");
                // A counter's family ends in `_total` in the Prometheus text, and does not in OpenMetrics.
                let total = kind == "counter" && !open;
                assert_eq!(name.ends_with("_total"), total, "{line}");
                assert!(open || kind != "info", "{line}");
                let before = read.families.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "a family stands in one place: {line}");
                family = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# UNIT ").filter(|_| open) {
                let (name, unit) = rest.split_once(' ').expect(line);
                assert!(name == family && name.ends_with(&format!("_{unit}")), "{line}");
            } else {
                assert!(!line.starts_with('#'), "{line}");
                read.sample(line, &family, open);
            }
        }
        for family in read.families.keys() {
            let own = |key: &&String| name_of(key).starts_with(family.as_str());
            assert!(read.series.keys().any(|key| own(&key)), "no series of {family}");
        }
        read.check_histograms();
        read
    }

    fn sample(&mut self, line: &str, family: &str, open: bool) {
        let (key, value) = line.rsplit_once(' ').expect(line);
        let suffix = name_of(key).strip_prefix(family).expect("a sample of the family above");
        let suffixes: &[&str] = match &*self.families[family] {
            "counter" if open => &["_total"],
            "counter" => &[""],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            other => panic!("{other}"),
        };
        assert!(suffixes.contains(&suffix), "{line}");
        let before = self.series.insert(key.to_owned(), value.parse().expect(line));
        assert_eq!(before, None, "twice: {line}");
    }

    fn check_histograms(&self) {
        for (family, kind) in &self.families {
            if kind != "histogram" {
                continue;
            }
            for (key, count) in &self.series {
                if let Some(labels) = key.strip_prefix(&format!("{family}_count")) {
                    let labels = labels.trim_start_matches('{').trim_end_matches('}');
                    let comma = if labels.is_empty() { "" } else { "," };
                    let inf = format!("{family}_bucket{{le=\"+Inf\"{comma}{labels}}}");
                    assert_eq!(self.series.get(&inf), Some(count), "{inf}");
                }
            }
        }
    }

    /// A series that must be there.
    pub fn get(&self, key: &str) -> f64 {
        *self.series.get(key).unwrap_or_else(|| panic!("no {key} in {:#?}", self.series))
    }

    /// The sum of a family's samples.
    pub fn sum(&self, name: &str) -> f64 {
        self.series.iter().filter(|(key, _)| name_of(key) == name).map(|(_, value)| value).sum()
    }

    /// How many series have this name.
    pub fn count(&self, name: &str) -> usize {
        self.series.keys().filter(|key| name_of(key) == name).count()
    }
}

fn name_of(key: &str) -> &str {
    key.split('{').next().unwrap_or(key)
}
