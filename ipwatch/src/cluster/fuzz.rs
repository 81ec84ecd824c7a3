//! Entry for the fuzz target.

use super::checks::judge;
use super::objects::{Node, Pod};
use super::read::of_object;
use super::remedy::Kubectl;
use super::snapshot::{Listed, Snapshot};

/// Parses one object of the API server as each kind, and judges the result.
pub fn cluster(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    let mut look = Snapshot::default();
    of_object(&value, &mut look);
    let pod = serde_json::from_value(value.clone()).map(Pod::world);
    look.pods = Listed::all(pod.into_iter().collect());
    let node = serde_json::from_value(value).map(Node::world);
    look.nodes = Listed::all(node.into_iter().collect());
    let cluster = judge("", &look, &look, &Kubectl::default());
    // A command must contain nothing that a terminal acts on.
    for step in cluster.findings.iter().flat_map(|one| &one.remediation) {
        let command = step.command.as_deref().unwrap_or_default();
        assert!(command.chars().all(|c| (' '..='~').contains(&c)), "{command:?}");
        let words = step.runs.iter().flat_map(|run| &run.argv);
        for word in words.filter(|word| word.starts_with('-')) {
            assert!(super::remedy::is_our_option(word), "{command:?}");
        }
    }
}
