//! `ipwatch cluster scan`: checks of the whole cluster, from a laptop or as a pod.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use super::args::{ClusterCommand, ClusterScan, ClusterWhat};
use super::output::Out;
use super::{Failure, Outcome};
use crate::cluster::{self, Options};
use crate::contract::{Body, Document};
use crate::escape::escape;
use crate::fact::SourceStatus;

pub(super) async fn cluster(out: &Out, command: ClusterCommand) -> Result<Outcome, Failure> {
    let ClusterWhat::Scan(scan) = command.what;
    let options = options(scan, |name| std::env::var_os(name))?;
    let document = cluster::scan(&options, &progress).await.map_err(anyhow::Error::msg)?;
    out.document(&document, true)?;
    outcome(&document)
}

/// Prints progress if stderr is a terminal.
fn progress(text: &str) {
    use std::io::Write as _;
    if io::stderr().is_terminal() {
        // A closed stderr is ignored: there is nowhere to report it.
        let _ = writeln!(io::stderr(), "ipwatch: {}", escape(text));
    }
}

fn options(
    scan: ClusterScan,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Options, Failure> {
    let mut flags = Vec::new();
    if let Some(path) = &scan.kubeconfig {
        flags.extend(["--kubeconfig".to_owned(), path.to_string_lossy().into_owned()]);
    }
    if let Some(context) = &scan.context {
        flags.extend(["--context".to_owned(), context.clone()]);
    }
    let kubeconfig = kubeconfig(scan.kubeconfig, variable)?;
    Ok(Options { kubeconfig, context: scan.context, flags, settle: scan.settle })
}

/// Finds the kubeconfig as kubectl does: `--kubeconfig`, `KUBECONFIG`, `~/.kube/config`, else the pod's credentials.
pub(super) fn kubeconfig(
    named: Option<PathBuf>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<PathBuf>, Failure> {
    let of_environment = variable("KUBECONFIG").filter(|named| !named.is_empty());
    Ok(match (named, of_environment) {
        (Some(path), _) => Some(path),
        (None, Some(named)) => {
            let mut there = std::env::split_paths(&named).filter(|path| path.exists());
            match (there.next(), there.next()) {
                (Some(one), None) => Some(one),
                (None, _) => {
                    return Err(anyhow::anyhow!(
                        "KUBECONFIG names no file that exists: correct it, or use --kubeconfig"
                    )
                    .into());
                }
                (Some(_), Some(_)) => {
                    let what =
                        "KUBECONFIG names more than one file: name the one with --kubeconfig";
                    return Err(anyhow::anyhow!(what).into());
                }
            }
        }
        (None, None) => {
            let home = variable("HOME").map(PathBuf::from);
            home.map(|home| home.join(".kube/config")).filter(|path| path.exists())
        }
    })
}

/// Whether anything is wrong. Finding nothing is a success only if every list was complete.
fn outcome(document: &Document) -> Result<Outcome, Failure> {
    let Body::Cluster(cluster) = &document.body else { return Ok(Outcome::Fine) };
    if !cluster.findings.is_empty() {
        return Ok(Outcome::Findings);
    }
    // If a list is incomplete, an element that it lacks proves nothing and was not reported.
    let half = |source: &&crate::contract::SourceState| {
        matches!(source.status, SourceStatus::Down | SourceStatus::Degraded)
    };
    let unknown: Vec<String> = (document.sources.iter().filter(half))
        .map(|source| format!("{} ({})", source.name, source.detail))
        .collect();
    if unknown.is_empty() {
        return Ok(Outcome::Fine);
    }
    Err(anyhow::anyhow!("nothing was found, but the check is not complete: {}", unknown.join("; "))
        .into())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::cli::show::sample;
    use crate::contract::Cluster;

    fn scan() -> ClusterScan {
        ClusterScan { kubeconfig: None, context: None, settle: std::time::Duration::from_secs(5) }
    }

    fn found(scan: ClusterScan, variables: &[(&str, &str)]) -> Result<Option<PathBuf>, String> {
        let all: HashMap<&str, &str> = variables.iter().copied().collect();
        let options = options(scan, |name| all.get(name).map(OsString::from));
        options.map(|options| options.kubeconfig).map_err(|error| error.to_string())
    }

    #[test]
    fn a_kubeconfig_is_looked_for_where_kubectl_does() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        let one = dir.path().join("one");
        let path = one.to_str().unwrap();
        assert_eq!(found(scan(), &[("HOME", home)]), Ok(None), "as a pod");
        std::fs::create_dir(dir.path().join(".kube")).unwrap();
        std::fs::write(dir.path().join(".kube/config"), "").unwrap();
        std::fs::write(&one, "").unwrap();
        assert_eq!(found(scan(), &[("HOME", home)]), Ok(Some(dir.path().join(".kube/config"))));
        assert_eq!(found(scan(), &[("HOME", home), ("KUBECONFIG", path)]), Ok(Some(one.clone())));
        let absent = format!("{home}/absent:{path}");
        assert_eq!(found(scan(), &[("KUBECONFIG", &absent)]), Ok(Some(one.clone())));
        let both = format!("{path}:{home}/.kube/config");
        let error = found(scan(), &[("KUBECONFIG", &both)]).unwrap_err();
        assert!(error.contains("--kubeconfig"), "{error}");
        assert!(found(scan(), &[("KUBECONFIG", "/absent")]).is_err());
        let named = ClusterScan { kubeconfig: Some("named".into()), ..scan() };
        assert_eq!(found(named, &[("KUBECONFIG", path)]), Ok(Some("named".into())));
    }

    #[test]
    fn what_is_told_to_run_asks_the_same_cluster() {
        let scan =
            ClusterScan { kubeconfig: Some("k".into()), context: Some("c d".into()), ..scan() };
        let options = options(scan, |_| None).unwrap();
        assert_eq!(options.flags, ["--kubeconfig", "k", "--context", "c d"]);
    }

    #[test]
    fn nothing_found_is_fine_only_where_everything_is_known() {
        let mut document = sample("cluster-scan.json");
        assert_eq!(outcome(&document).unwrap(), Outcome::Findings);
        document.body = Body::Cluster(Cluster::default());
        for source in &mut document.sources {
            source.status = SourceStatus::Active;
        }
        assert_eq!(outcome(&document).unwrap(), Outcome::Fine);
        document.sources[0].status = SourceStatus::Disabled;
        assert_eq!(outcome(&document).unwrap(), Outcome::Fine);
        for status in [SourceStatus::Down, SourceStatus::Degraded] {
            document.sources[0].status = status;
            let error = outcome(&document).unwrap_err().to_string();
            assert!(error.contains(&document.sources[0].name), "{error}");
        }
    }
}
