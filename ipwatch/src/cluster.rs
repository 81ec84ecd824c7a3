//! Checks that need a view of the whole cluster: allocations of deleted pods and nodes, the same IP on two nodes,
//! Whereabouts and Calico against all pods. Reports what to do, and changes nothing.
//!
//! - `objects`: the fields that are read.
//! - `read`: one look, kind by kind.
//! - `snapshot`: the result of a look, as data.
//! - `checks`: finds what is wrong, from two looks. Pure.
//! - `remedy`: the commands that free what has leaked. Pure.

mod checks;
#[cfg(test)]
mod example;
#[cfg(test)]
mod fixtures;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
#[cfg(test)]
pub(crate) mod hostile;
mod objects;
mod read;
mod remedy;
mod snapshot;

use std::path::PathBuf;
use std::time::Duration;

use self::remedy::Kubectl;
use self::snapshot::{Snapshot, State};
use crate::clock;
use crate::contract::{Body, Document, SCHEMA, SourceState};
use crate::fact::SourceStatus;
use crate::sources::kubernetes::list::{Age, Server};

/// How to reach the API server, and how to scan.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// A kubeconfig; `None`: the credentials of the pod.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; `None`: the current one.
    pub(crate) context: Option<String>,
    /// The flags of `kubectl` for the same cluster, for the commands of remedies.
    pub(crate) flags: Vec<String>,
    /// Pause between the two looks.
    pub(crate) settle: Duration,
}

/// Looks twice, and reports what both looks show. `say` is called with the progress, for a person who waits.
///
/// # Errors
/// The API server cannot be reached, or nothing can be listed. The text is for people.
pub(crate) async fn scan(
    options: &Options,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Document, String> {
    let server = Server::open(options.kubeconfig.clone(), options.context.clone()).await?;
    let url = server.url();
    let about = |look: &'static str| move |kind: &str| say(&format!("{look}: {kind}"));
    let first = read::look(&server, Age::Remembered, &about("first look")).await;
    if let Some(why) = silence(&first) {
        return Err(format!("{url} tells nothing: {why}"));
    }
    say(&format!("second look in {:?}", options.settle));
    tokio::time::sleep(options.settle).await;
    let second = read::look(&server, Age::Now, &about("second look")).await;
    let kubectl = Kubectl { flags: options.flags.clone() };
    Ok(document(&url, &first, &second, &kubectl))
}

/// The reason if nothing could be listed.
fn silence(look: &Snapshot) -> Option<&str> {
    let mut why = None;
    for state in look.states() {
        match state {
            State::Unknown(text) => why = why.or(Some(text.as_str())),
            State::All | State::Part(_) => return None,
            State::Absent => {}
        }
    }
    why
}

fn document(url: &str, first: &Snapshot, second: &Snapshot, kubectl: &Kubectl) -> Document {
    let cluster = checks::judge(url, first, second, kubectl);
    let states = first.states().into_iter().zip(second.states());
    let sources = read::names()
        .into_iter()
        .zip(states)
        .map(|(name, (first, second))| source(name, first.worse(second)));
    Document {
        schema: SCHEMA.to_owned(),
        // A cluster has no node of its own.
        node: String::new(),
        taken_at: clock::Calendar { wall_offset: clock::wall_offset() }.date(clock::now()),
        sources: sources.collect(),
        body: Body::Cluster(cluster),
        reservations: Vec::new(),
        networks: Vec::new(),
        refused: Vec::new(),
        blind: Vec::new(),
        daemon: None,
        runs: Vec::new(),
    }
}

fn source(name: &str, state: &State) -> SourceState {
    let (status, detail) = match state {
        State::All => (SourceStatus::Active, String::new()),
        State::Part(n) => (SourceStatus::Degraded, format!("{n} entries are not understood")),
        State::Absent => (SourceStatus::Disabled, "this cluster has no such objects".to_owned()),
        State::Unknown(why) => (SourceStatus::Down, why.clone()),
    };
    SourceState { name: name.to_owned(), status, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_known_as_well_as_the_worse_of_both_looks_knows_it() {
        let (mut half, whole) = (Snapshot::default(), Snapshot::default());
        half.pods.state = State::Part(2);
        for (first, second) in [(&half, &whole), (&whole, &half)] {
            let told = document("", first, second, &Kubectl::default());
            let pods = told.sources.iter().find(|source| source.name == "pods").unwrap();
            assert_eq!(pods.status, SourceStatus::Degraded);
        }
        let unknown = State::Unknown(String::new());
        assert_eq!(State::Part(1).worse(&unknown), &unknown);
        assert_eq!(unknown.worse(&State::All), &unknown);
    }
}
