//! The part of the past that `query history` selects.

use jiff::Timestamp;

use super::{Prefix, Tenure};

/// A selection of the past: everything, or what matches all of these.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Past {
    /// IPs within this prefix.
    pub ip: Option<Prefix>,
    /// Tenures of pods with this name, as NAME or NAMESPACE/NAME, or with this uid.
    pub pod: Option<String>,
    /// Tenures that existed at this moment: milliseconds since the Unix epoch.
    pub at: Option<i64>,
}

impl Past {
    /// Whether it selects a tenure, whose IP must already match.
    #[must_use]
    pub fn has(&self, tenure: &Tenure) -> bool {
        let is_of = |what: &str| tenure.pod.as_ref().is_some_and(|pod| pod.is_called(what));
        self.pod.as_deref().is_none_or(is_of) && self.at.is_none_or(|at| lasts(tenure, at))
    }
}

/// Whether a tenure existed at a moment. A tenure without a readable date is kept, because its time is unknown.
fn lasts(tenure: &Tenure, at: i64) -> bool {
    let millis = |date: &str| date.parse::<Timestamp>().ok().map(Timestamp::as_millisecond);
    let began = millis(&tenure.from).is_none_or(|from| from <= at);
    let ended = tenure.to.as_deref().and_then(millis).is_some_and(|to| to <= at);
    began && !ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Netns, Pod};

    fn tenure(from: &str, to: Option<&str>) -> Tenure {
        let text = |text: &str| Some(text.to_owned());
        let pod = Pod { namespace: text("shop"), name: text("api-0"), ..Pod::default() };
        Tenure {
            ip: "10.0.3.17".parse().unwrap(),
            netns: Netns::default(),
            container: None,
            pod: Some(pod),
            from: from.to_owned(),
            preexisting: false,
            to: to.map(str::to_owned),
            ended_by: None,
            times: None,
        }
    }

    #[test]
    fn a_moment_is_within_a_tenure_from_its_beginning_to_before_its_end() {
        let at = |date: &str| Some(date.parse::<Timestamp>().unwrap().as_millisecond());
        let one = tenure("2026-01-01T03:00:00.000Z", Some("2026-01-01T04:00:00.000Z"));
        for (date, held) in [
            ("2026-01-01T02:59:59.999Z", false),
            ("2026-01-01T03:00:00Z", true),
            ("2026-01-01T03:59:59Z", true),
            ("2026-01-01T04:00:00Z", false),
        ] {
            assert_eq!(Past { at: at(date), ..Past::default() }.has(&one), held, "{date}");
        }
        let lasting = tenure("2026-01-01T03:00:00.000Z", None);
        assert!(Past { at: at("2027-01-01T00:00:00Z"), ..Past::default() }.has(&lasting));
    }

    #[test]
    fn a_pod_is_called_by_its_name_with_and_without_its_namespace() {
        let one = tenure("2026-01-01T03:00:00.000Z", None);
        for (pod, is) in
            [("api-0", true), ("shop/api-0", true), ("bank/api-0", false), ("api", false)]
        {
            assert_eq!(
                Past { pod: Some(pod.to_owned()), ..Past::default() }.has(&one),
                is,
                "{pod}"
            );
        }
        let nameless = Tenure { pod: None, ..one };
        assert!(!Past { pod: Some("api-0".to_owned()), ..Past::default() }.has(&nameless));
        assert!(Past::default().has(&nameless));
    }
}
