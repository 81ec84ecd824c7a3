//! Writes metrics: OpenMetrics by `prometheus-client`, and Prometheus' older text format, derived from it, which
//! differs in the names of counters.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::escape::escape;

/// Maximum length of a label value, in characters: values that a container chooses must not fill the database.
const LABEL: usize = 128;
/// Suffix of a counter's name.
const TOTAL: &str = "_total";

/// The text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Plain,
}

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric, with the name that its samples have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

/// Names and values; values from outside must pass through [`label`].
pub(super) type Labels = Vec<(&'static str, String)>;

/// Value of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Value::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Value::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::Real(value)
    }
}

/// Makes a label value from text of another origin: escaped for terminals, and truncated.
pub(super) fn label(text: &str) -> String {
    let text = escape(text);
    match text.char_indices().nth(LABEL) {
        None => text.into_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// A page to which metrics are written, one after the other.
pub(super) struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    /// Writes a metric and its samples. Prometheus rejects the whole page if a label set occurs twice: the first
    /// sample is kept, and the number of those left out is returned.
    pub(super) fn family<V: Into<Value>>(
        &mut self,
        family: &Family,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) -> Result<u64, fmt::Error> {
        let mut sorted: BTreeMap<Labels, Value> = BTreeMap::new();
        let mut doubled = 0;
        for (labels, value) in samples {
            match sorted.entry(labels) {
                Entry::Occupied(_) => doubled += 1,
                Entry::Vacant(place) => {
                    place.insert(value.into());
                }
            }
        }
        let mut metric = self.begin(family)?;
        for (labels, value) in &sorted {
            if labels.is_empty() {
                sample(&mut metric, family.kind, *value)?;
            } else {
                sample(&mut metric.encode_family(labels)?, family.kind, *value)?;
            }
        }
        Ok(doubled)
    }

    /// Writes a metric with one sample and without labels.
    pub(super) fn single(&mut self, family: &Family, value: impl Into<Value>) -> fmt::Result {
        self.family(family, [(Labels::new(), value)]).map(|_| ())
    }

    /// Writes a histogram and adds its last bucket, `+Inf`.
    pub(super) fn histogram(
        &mut self,
        family: &Family,
        buckets: &[(f64, u64)],
        sum: f64,
        count: u64,
    ) -> fmt::Result {
        let within: u64 = buckets.iter().map(|(_, count)| count).sum();
        let mut buckets = buckets.to_vec();
        buckets.push((f64::INFINITY, count.saturating_sub(within)));
        self.begin(family)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn begin<'s>(&'s mut self, family: &'s Family) -> Result<MetricEncoder<'s>, fmt::Error> {
        let (name, kind) = match family.kind {
            // The encoder adds the suffix.
            Kind::Counter => {
                (family.name.strip_suffix(TOTAL).unwrap_or(family.name), MetricType::Counter)
            }
            Kind::Gauge => (family.name, MetricType::Gauge),
            Kind::Histogram => (family.name, MetricType::Histogram),
        };
        self.0.encode_descriptor(name, family.help, None, kind)
    }
}

fn sample(metric: &mut MetricEncoder<'_>, kind: Kind, value: Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(value)) => {
            metric.encode_counter::<NoLabelSet, u64, f64>(&value, None)
        }
        (Kind::Counter, Value::Real(value)) => {
            metric.encode_counter::<NoLabelSet, f64, f64>(&value, None)
        }
        (_, Value::Whole(value)) => metric.encode_gauge(&value),
        (_, Value::Real(value)) => metric.encode_gauge(&value),
    }
}

/// Writes its metrics to a page.
pub(super) trait Fill: fmt::Debug + Send + Sync + 'static {
    fn fill(&self, page: &mut Page<'_>) -> fmt::Result;
}

#[derive(Debug)]
struct Filled<T>(T);

impl<T: Fill> Collector for Filled<T> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.fill(&mut Page(encoder))
    }
}

/// Writes the whole page.
pub(super) fn write(filler: impl Fill, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Filled(filler)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(match format {
        Format::OpenMetrics => page,
        Format::Plain => plain(&page),
    })
}

/// Converts a page to Prometheus' text format: there the family of a counter has the name of its samples, and there
/// is no end marker. Only our own lines begin with `#`, because line breaks in labels are escaped.
fn plain(page: &str) -> String {
    let mut out = String::with_capacity(page.len() + 1024);
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            break;
        }
        // HELP comes before TYPE.
        let counter = match line.strip_prefix("# HELP ") {
            Some(_) => lines.peek().is_some_and(|next| next.ends_with(" counter")),
            None => line.starts_with("# TYPE ") && line.ends_with(" counter"),
        };
        let mut words = line.splitn(4, ' ');
        match (counter, words.next(), words.next(), words.next(), words.next()) {
            (true, Some(hash), Some(what), Some(name), Some(rest)) => {
                out.extend([hash, " ", what, " ", name, TOTAL, " ", rest]);
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Sample(&'static str);

    const SEEN: Family = Family {
        name: "ipwatch_seen_total",
        kind: Kind::Counter,
        help: "Seen, and not of a counter",
    };
    const KNOWN: Family = Family { name: "ipwatch_known", kind: Kind::Gauge, help: "Known" };
    const LATENCY: Family =
        Family { name: "ipwatch_latency_seconds", kind: Kind::Histogram, help: "Latency" };

    impl Fill for Sample {
        fn fill(&self, page: &mut Page<'_>) -> fmt::Result {
            let labels = vec![("pod", label(self.0)), ("node", "n".to_owned())];
            let doubled = page.family(&SEEN, [(labels.clone(), 7u64), (labels, 8)])?;
            page.single(&KNOWN, doubled as f64 + 0.5)?;
            page.histogram(&LATENCY, &[(0.001, 2), (0.002, 1)], 0.5, 4)
        }
    }

    const OPEN: &str = "# HELP ipwatch_seen Seen, and not of a counter
# TYPE ipwatch_seen counter
ipwatch_seen_total{pod=\"api\",node=\"n\"} 7
# HELP ipwatch_known Known
# TYPE ipwatch_known gauge
ipwatch_known 1.5
# HELP ipwatch_latency_seconds Latency
# TYPE ipwatch_latency_seconds histogram
ipwatch_latency_seconds_sum 0.5
ipwatch_latency_seconds_count 4
ipwatch_latency_seconds_bucket{le=\"0.001\"} 2
ipwatch_latency_seconds_bucket{le=\"0.002\"} 3
ipwatch_latency_seconds_bucket{le=\"+Inf\"} 4
# EOF
";

    #[test]
    fn one_page_in_two_formats() {
        assert_eq!(write(Sample("api"), Format::OpenMetrics).unwrap(), OPEN);
        let plain = write(Sample("api"), Format::Plain).unwrap();
        let expected = OPEN
            .replace("# HELP ipwatch_seen ", "# HELP ipwatch_seen_total ")
            .replace("# TYPE ipwatch_seen ", "# TYPE ipwatch_seen_total ")
            .replace("# EOF\n", "");
        assert_eq!(plain, expected);
    }

    #[test]
    fn hostile_names_stay_labels() {
        let hostile = "a\"} 1\n# EOF\n# TYPE x counter\\\u{1b}[2J\u{202e}";
        for format in [Format::OpenMetrics, Format::Plain] {
            let page = write(Sample(hostile), format).unwrap();
            assert_eq!(
                page.lines().count(),
                OPEN.lines().count() - usize::from(format == Format::Plain)
            );
            let line = page.lines().find(|line| line.starts_with("ipwatch_seen_total{")).unwrap();
            let expected = "ipwatch_seen_total{pod=\"a\\\"} 1\\\\x0a# EOF\\\\x0a# TYPE x counter\\\\\\\\x1b[2J\\\\u{202e}\",node=\"n\"} 7";
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn a_label_ends_somewhere() {
        let long = label(&"ü".repeat(10_000));
        assert_eq!(long.chars().count(), LABEL + 1);
        assert_eq!(label("short"), "short");
    }
}
