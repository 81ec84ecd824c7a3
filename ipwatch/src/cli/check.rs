//! `ipwatch check`: whether an IP can be given to a new container. For scripts and wrappers of CNI plugins.

use super::args::{Check, Global};
use super::output::Out;
use super::{Failure, Outcome};
use crate::api::Ask;
use crate::api::client::Client;
use crate::contract::Body;

pub(super) async fn check(global: &Global, out: &Out, check: Check) -> Result<Outcome, Failure> {
    let Check { ip, container, strict } = check;
    let document = Client::new(global.socket()).ask(&Ask::Check { ip, container }).await?;
    let Body::Verdict(verdict) = &document.body else {
        return Err(anyhow::anyhow!(
            "the daemon does not know this question: is it of another version? Restart it"
        )
        .into());
    };
    let outcome = match verdict.in_pool {
        _ if !verdict.free => Outcome::Taken,
        Some(false) if strict => Outcome::InNoPool,
        _ => Outcome::Fine,
    };
    out.document(&document, true)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fake;
    use crate::cli::args::Cli;
    use crate::cli::show::sample;
    use clap::Parser as _;

    #[tokio::test]
    async fn no_is_an_outcome_of_its_own_and_unknown_is_an_error() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Check { ip, container: None } => {
                let mut document = sample("check.json");
                if let Body::Verdict(verdict) = &mut document.body {
                    verdict.free = ip.is_ipv6();
                }
                Ok(document)
            }
            _ => Ok(sample("doctor.json")),
        });
        let socket = fake.client.path().display().to_string();
        let asked = async |ip: &str, container: Option<&str>| {
            let line = ["ipwatch", "--socket", &socket, "-o", "name", "watch"];
            let global = Cli::try_parse_from(line).unwrap().global;
            let container = container.map(str::to_owned);
            let strict = false;
            let ip = ip.parse().unwrap();
            check(&global, &Out::new(&global), Check { ip, container, strict }).await
        };
        assert_eq!(asked("10.0.3.17", None).await.unwrap(), Outcome::Taken);
        assert_eq!(asked("fd00::1", None).await.unwrap(), Outcome::Fine);
        assert!(matches!(asked("fd00::1", Some("id")).await, Err(Failure::Other(_))));
    }

    #[tokio::test]
    async fn in_no_pool_is_an_outcome_only_when_it_is_asked_for() {
        let fake = fake::daemon(|ask| match ask {
            Ask::Check { ip, .. } => {
                let mut document = sample("check.json");
                if let Body::Verdict(verdict) = &mut document.body {
                    verdict.free = true;
                    verdict.in_pool = if ip.is_ipv6() { Some(false) } else { None };
                }
                Ok(document)
            }
            _ => Ok(sample("doctor.json")),
        });
        let socket = fake.client.path().display().to_string();
        let asked = async |ip: &str, strict: bool| {
            let line = ["ipwatch", "--socket", &socket, "-o", "name", "watch"];
            let global = Cli::try_parse_from(line).unwrap().global;
            let ip = ip.parse().unwrap();
            check(&global, &Out::new(&global), Check { ip, container: None, strict }).await.unwrap()
        };
        assert_eq!(asked("fd00::1", true).await, Outcome::InNoPool);
        assert_eq!(asked("fd00::1", false).await, Outcome::Fine);
        assert_eq!(asked("10.0.3.17", true).await, Outcome::Fine, "an older daemon does not tell");
    }
}
