//! What no node alone can know: allocations of pods and nodes that are gone, the same IP on two nodes, Whereabouts
//! and Calico against all pods. Looks, says what to do, and changes nothing.
//!
//! - `objects`: the fields that are read.
//! - `read`: one look, kind by kind.
//! - `snapshot`: what was seen, as data.
//! - `checks`: from two looks to what is wrong. Pure.
//! - `remedy`: the commands that free what has leaked. Pure.

mod checks;
#[cfg(test)]
mod example;
#[cfg(test)]
mod fixtures;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
#[cfg(test)]
mod hostile;
mod objects;
mod read;
mod remedy;
mod snapshot;

use std::path::PathBuf;
use std::time::Duration;

use self::remedy::Kubectl;
use self::snapshot::{Look, State};
use crate::clock;
use crate::contract::{Body, Document, SCHEMA, SourceState};
use crate::fact::SourceStatus;
use crate::sources::kubernetes::list::{Age, Server};

/// Whom to ask, and how.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// A kubeconfig; none: as a pod.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// One of its contexts; none: the current one.
    pub(crate) context: Option<String>,
    /// `kubectl`'s flags that lead to the same cluster, for commands that are told.
    pub(crate) flags: Vec<String>,
    /// Between the two looks.
    pub(crate) settle: Duration,
}

/// Looks twice, and says what both looks tell. `say`: what is going on, for whoever waits.
///
/// # Errors
/// There is no way to the API server, or it tells nothing, for people.
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

/// Why nothing at all is known.
fn silence(look: &Look) -> Option<&str> {
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

fn document(url: &str, first: &Look, second: &Look, kubectl: &Kubectl) -> Document {
    let cluster = checks::judge(url, first, second, kubectl);
    let states = first.states().into_iter().zip(second.states());
    let sources = read::names()
        .into_iter()
        .zip(states)
        .map(|(name, (first, second))| source(name, first.worse(second)));
    Document {
        schema: SCHEMA.to_owned(),
        // None alone.
        node: String::new(),
        taken_at: clock::Calendar { wall_offset: clock::wall_offset() }.date(clock::now()),
        sources: sources.collect(),
        body: Body::Cluster(cluster),
        reservations: Vec::new(),
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
        let (mut half, whole) = (Look::default(), Look::default());
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
