//! The queries of `deploy/grafana/ipwatch.json`, with its variables filled in as by Grafana when all nodes are shown.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::SCRAPE;
use super::prometheus::encoded;
use crate::place;

/// The time that a person looks at, in seconds.
const RANGE: u64 = 3600;

/// A panel or a variable of the dashboard, or a group of rules.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) queries: Vec<Query>,
}

#[derive(Debug)]
pub(super) struct Query {
    pub(super) expression: String,
    at: At,
}

#[derive(Debug)]
enum At {
    Now,
    Range,
    /// The values of a label.
    Label(String),
}

impl Query {
    /// An expression of a rule.
    pub(super) fn of_rule(expression: &str) -> Self {
        Self { expression: expression.to_owned(), at: At::Now }
    }

    /// The path of Prometheus' API, at this time in seconds since 1970.
    pub(super) fn path(&self, now: u64) -> String {
        let expression = encoded(&self.expression);
        let from = now - RANGE;
        match &self.at {
            At::Now => format!("/api/v1/query?time={now}&query={expression}"),
            At::Range => format!(
                "/api/v1/query_range?start={from}&end={now}&step={SCRAPE}&query={expression}"
            ),
            At::Label(label) => {
                format!("/api/v1/label/{label}/values?start={from}&end={now}&match[]={expression}")
            }
        }
    }
}

/// The variables and panels that ask something.
pub(super) fn panels() -> Result<Vec<Panel>> {
    let file = place::repository().join("deploy/grafana/ipwatch.json");
    of(&serde_json::from_str(&fs::read_to_string(file)?)?)
}

fn of(dashboard: &Value) -> Result<Vec<Panel>> {
    let list =
        |pointer| dashboard.pointer(pointer).and_then(Value::as_array).context("no dashboard");
    let text = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let mut panels = Vec::new();
    for variable in list("/templating/list")? {
        let query = text(variable, "query");
        let words = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        if let Some((expression, label)) = words.and_then(|words| words.rsplit_once(", ")) {
            let query = Query { expression: filled(expression), at: At::Label(label.to_owned()) };
            let title = format!("variable \"{}\"", text(variable, "label"));
            panels.push(Panel { title, queries: vec![query] });
        }
    }
    for panel in list("/panels")? {
        let targets = panel.get("targets").and_then(Value::as_array).into_iter().flatten();
        let query = |target: &Value| {
            let instant = target.get("instant").and_then(Value::as_bool).unwrap_or(false);
            let at = if instant { At::Now } else { At::Range };
            Query { expression: filled(&text(target, "expr")), at }
        };
        let queries: Vec<Query> = targets.map(query).collect();
        if !queries.is_empty() {
            let title = format!("{} ({})", text(panel, "title"), text(panel, "type"));
            panels.push(Panel { title, queries });
        }
    }
    Ok(panels)
}

/// "All" of each variable, and the rate interval of a data source that is told the scrape interval.
fn filled(expression: &str) -> String {
    let all = ["$cluster", "$instance", "$namespace"];
    let text = all.iter().fold(expression.to_owned(), |text, name| text.replace(name, ".*"));
    text.replace("$__rate_interval", &format!("{}s", 4 * SCRAPE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_of_the_dashboard_is_asked_with_its_variables_filled_in() {
        let panels = panels().unwrap();
        let queries: Vec<&Query> = panels.iter().flat_map(|panel| &panel.queries).collect();
        assert!(panels.len() > 20 && queries.len() > 40, "{panels:#?}");
        assert!(queries.iter().all(|query| !query.expression.contains('$')), "{queries:#?}");
        let of = |part: &str| queries.iter().any(|query| query.path(7200).starts_with(part));
        for part in [
            "/api/v1/query?time=7200&query=",
            "/api/v1/query_range?start=3600&end=7200&step=30&query=",
            "/api/v1/label/instance/values?start=3600&end=7200&match[]=",
        ] {
            assert!(of(part), "{part}");
        }
    }
}
