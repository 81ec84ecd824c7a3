//! `ipwatch doctor`: the daemon's report, or our own attempt if no daemon answers.

use std::path::Path;

use ipwatch_ipam::config::STATE_DIR;
use ipwatch_ipam::tally;

use super::args::{Doctor, Global};
use super::output::Out;
use super::{Failure, Outcome, complain, daemon, wait_for};
use crate::api::Ask;
use crate::api::client::{Client, ClientError};

pub(super) fn doctor(global: &Global, out: &Out, asked: &Doctor) -> Result<Outcome, Failure> {
    let Doctor { configured, canary } = asked;
    // With `--config`, the daemon is the one that uses this configuration.
    let socket = match configured.config {
        Some(_) => daemon::config(global, configured)?.socket,
        None => global.socket(),
    };
    let client = Client::new(socket);
    let document = match wait_for(client.ask(if *canary { &Ask::Canary } else { &Ask::Doctor }))? {
        Ok(document) => document,
        Err(ClientError::NoDaemon(path)) => {
            complain(&format!(
                "no daemon answers on {}: checking what this command can see",
                path.display()
            ));
            crate::daemon::doctor(&daemon::config(global, configured)?, *canary)?
        }
        Err(error) => return Err(error.into()),
    };
    out.document(&document, true)?;
    if let Some(line) = unanswered(Path::new(STATE_DIR)) {
        complain(&line);
    }
    Ok(Outcome::Fine)
}

/// How many calls of `ipwatch-ipam` got no answer, and why. `None`: none, or the plugin is not used here.
fn unanswered(state_dir: &Path) -> Option<String> {
    let all = tally::all(state_dir)?;
    let is_one = |(name, count): &&(String, u64)| {
        *count > 0 && (name.starts_with("unanswered-") || name == "unknown")
    };
    let parts: Vec<String> =
        all.iter().filter(is_one).map(|(name, count)| format!("{count} {name}")).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "ipwatch-ipam has assigned IPs without an answer of the daemon, since it was installed: {}; see `ipwatch cni \
             status`",
            parts.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use ipwatch_ipam::ask::Unanswered;
    use ipwatch_ipam::tally::{Event, count};

    use super::*;

    #[test]
    fn only_calls_without_an_answer_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        assert_eq!(unanswered(&state), None);
        count(&state, Event::Parked);
        assert_eq!(unanswered(&state), None);
        count(&state, Event::Unanswered(Unanswered::Timeout));
        let line = unanswered(&state).unwrap();
        assert!(line.contains("1 unanswered-timeout") && !line.contains("parked"), "{line}");
    }
}
