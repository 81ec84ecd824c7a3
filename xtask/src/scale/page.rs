//! The scrapes of a fleet, made from a recorded scrape of one node: each node has its own names, and its values move.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

/// One node of this many has the findings of the recorded one.
const SICK: usize = 20;

/// Gauges that do not move on a real node either.
const FIXED: [&str; 3] =
    ["ipwatch_ipam_range_usable", "process_start_time_seconds", "process_max_fds"];

/// How the value of a sample moves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Motion {
    /// As if the recorded value had taken an hour; with or without a fraction.
    Grows { whole: bool },
    /// A few percent up and down.
    Swings { whole: bool },
    /// Never.
    Rests,
}

/// A line of the page.
#[derive(Debug)]
enum Line {
    Comment(String),
    Sample { name: String, labels: String, value: f64, motion: Motion },
}

/// A recorded scrape, as OpenMetrics.
#[derive(Debug)]
pub(super) struct Template {
    lines: Vec<Line>,
    /// Name of the recorded node.
    node: String,
    with_addresses: bool,
}

impl Template {
    /// `with_addresses`: with the series of `ipwatch_address_info`, which is off by default.
    pub(super) fn parse(text: &str, with_addresses: bool) -> Result<Self> {
        let mut grows = false;
        let mut lines = Vec::new();
        for line in text.lines() {
            if line.starts_with('#') {
                if line.starts_with("# TYPE ") {
                    grows = line.ends_with(" counter") || line.ends_with(" histogram");
                }
                lines.push(Line::Comment(line.to_owned()));
            } else {
                lines.push(sample(line, grows).with_context(|| line.to_owned())?);
            }
        }
        ensure!(text.ends_with("# EOF\n"), "the recorded scrape is not OpenMetrics");
        let node = lines.iter().find_map(|line| match line {
            Line::Sample { name, labels, .. } if name == "ipwatch_build_info" => {
                Some(label(labels, "node")?.to_owned())
            }
            _ => None,
        });
        let node = node.context("the recorded scrape does not name its node")?;
        Ok(Self { lines, node, with_addresses })
    }

    /// The scrape of the nth node, this many seconds after the start.
    pub(super) fn page(&self, n: usize, seconds: f64) -> String {
        let mut out = String::with_capacity(64 * 1024);
        let mut addresses = 0;
        for line in &self.lines {
            match line {
                Line::Comment(text) => out.push_str(text),
                Line::Sample { name, labels, value, motion } => {
                    let is_finding = matches!(
                        name.as_str(),
                        "ipwatch_findings" | "ipwatch_critical_finding_info"
                    );
                    let is_address = name == "ipwatch_address_info";
                    if (is_finding && !n.is_multiple_of(SICK))
                        || (is_address && !self.with_addresses)
                    {
                        continue;
                    }
                    let labels = self.labels(labels, n, is_address.then_some(addresses));
                    addresses += usize::from(is_address);
                    // Writing to a String cannot fail.
                    let _ = write!(out, "{name}{labels} {}", moved(*value, *motion, n, seconds));
                }
            }
            out.push('\n');
        }
        out
    }

    /// The labels of the nth node; `address`: the number of the address that they describe.
    fn labels(&self, labels: &str, n: usize, address: Option<usize>) -> String {
        let name = super::node(n);
        let mut labels =
            labels.replace(&format!("node=\"{}\"", self.node), &format!("node=\"{name}\""));
        if let Some(id) = label(&labels, "id").map(str::to_owned) {
            labels = labels.replace(&format!("id=\"{id}\""), &format!("id=\"{id}{n:05}\""));
        }
        if let Some(k) = address {
            let number = n * 256 + k;
            let ip = format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255);
            for (what, new) in
                [("ip", ip), ("namespace", "shop".to_owned()), ("pod", format!("{name}-{k}"))]
            {
                let old = label(&labels, what).unwrap_or_default().to_owned();
                labels = labels.replace(&format!("{what}=\"{old}\""), &format!("{what}=\"{new}\""));
            }
        }
        labels
    }
}

fn sample(line: &str, grows: bool) -> Result<Line> {
    let (series, value) = line.rsplit_once(' ').context("no value")?;
    let (name, labels) = series.split_at(series.find('{').unwrap_or(series.len()));
    let whole = !value.contains(['.', 'e']);
    let value: f64 = value.parse()?;
    let motion = match grows {
        true => Motion::Grows { whole },
        // 0 and 1 are statuses.
        false if value <= 1.0 || FIXED.contains(&name) => Motion::Rests,
        false => Motion::Swings { whole },
    };
    Ok(Line::Sample { name: name.to_owned(), labels: labels.to_owned(), value, motion })
}

/// The value of a label.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let parts = labels.trim_start_matches('{').split("\",");
    parts
        .filter_map(|part| part.split_once("=\""))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.trim_end_matches('}').trim_end_matches('"'))
}

fn moved(value: f64, motion: Motion, n: usize, seconds: f64) -> f64 {
    // Nodes differ by up to a factor of three.
    let share = 0.5 + (n % 100) as f64 / 100.0;
    let (value, whole) = match motion {
        Motion::Rests => return value,
        Motion::Grows { whole } => (value * share * (1.0 + seconds / 3600.0), whole),
        Motion::Swings { whole } => {
            (value * share * (1.0 + 0.03 * (seconds / 60.0 + n as f64).sin()), whole)
        }
    };
    if whole { value.floor() } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE ipwatch_build info\n\
        ipwatch_build_info{version=\"1\",node=\"a\",kernel=\"6\"} 1\n\
        # TYPE ipwatch_critical_finding_info gauge\n\
        ipwatch_critical_finding_info{id=\"k3\",code=\"x\",node=\"a\"} 1\n\
        # TYPE ipwatch_address_info gauge\n\
        ipwatch_address_info{ip=\"10.1.0.1\",netns=\"4\",namespace=\"\",pod=\"\",node=\"a\"} 1\n\
        ipwatch_address_info{ip=\"10.1.0.2\",netns=\"5\",namespace=\"\",pod=\"\",node=\"a\"} 1\n\
        # TYPE ipwatch_facts counter\nipwatch_facts_total 1000\n\
        # TYPE ipwatch_netns gauge\nipwatch_netns 250\n# EOF\n";

    #[test]
    fn each_node_has_its_own_names_and_values_that_move() {
        let template = Template::parse(TEXT, true).unwrap();
        let page = template.page(40, 0.0);
        for line in [
            "ipwatch_build_info{version=\"1\",node=\"node-00040\",kernel=\"6\"} 1",
            "ipwatch_critical_finding_info{id=\"k300040\",code=\"x\",node=\"node-00040\"} 1",
            "ipwatch_address_info{ip=\"10.0.40.0\",netns=\"4\",namespace=\"shop\",pod=\"node-00040-0\",node=\"node-00040\"} 1",
            "ipwatch_address_info{ip=\"10.0.40.1\",netns=\"5\",namespace=\"shop\",pod=\"node-00040-1\",node=\"node-00040\"} 1",
            "ipwatch_facts_total 900",
            "# EOF",
        ] {
            assert!(page.lines().any(|one| one == line), "{line}\n{page}");
        }
        assert!(template.page(40, 1800.0).contains("ipwatch_facts_total 1350\n"));
        let swing =
            |seconds| template.page(0, seconds).split_once("ipwatch_netns ").unwrap().1.to_owned();
        assert_ne!(swing(0.0), swing(60.0));
    }

    #[test]
    fn most_nodes_have_no_finding_and_addresses_are_off() {
        let template = Template::parse(TEXT, false).unwrap();
        let page = template.page(41, 0.0);
        assert!(
            !page.contains("\nipwatch_critical") && !page.contains("\nipwatch_address"),
            "{page}"
        );
        assert!(Template::parse("ipwatch_netns 1\n", false).is_err());
    }
}
