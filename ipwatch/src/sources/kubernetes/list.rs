//! Lists all objects of one kind once, for a command that examines the whole cluster.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::client::Api;
use super::credentials::Credentials;
use super::documents::{self, Page};
use super::error::ApiError;
use super::read::{LIST_LIMIT, page_within};
use crate::sources::errors::within;
use crate::sources::url::encoded;

/// Maximum number of entries of one page.
const PAGE: usize = 500;
/// Maximum number of entries of one kind.
const MOST: usize = 200_000;
/// Until the start of an answer.
const ANSWER: Duration = Duration::from_secs(30);
/// For one page. If the server answers from its cache, it returns everything at once.
const WHOLE: Duration = Duration::from_secs(120);
/// How often a page is requested again after 429.
const TRIES: u32 = 4;
/// Maximum pause that the server can request.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Why a kind could not be listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The cluster has no such objects (404).
    Absent,
    /// Access is denied (403).
    Forbidden,
    /// Any other error, in one line.
    Failed(String),
}

/// How recent a list must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// From the server's cache, which may be some seconds old and costs etcd nothing. The server returns everything at
    /// once, whatever the limit (apiserver 1.20, storage/cacher). If that exceeds the limits of one answer, it is
    /// requested page by page, from etcd.
    Remembered,
    /// The current state in etcd.
    Now,
}

/// The client of an API server.
pub(crate) struct Server {
    api: Api,
    /// Maximum size of an answer, in bytes.
    longest: usize,
}

impl Server {
    /// Opens the client: with a kubeconfig and one of its contexts, or as a pod if none is named.
    ///
    /// # Errors
    /// Why it cannot be opened, for people.
    pub(crate) async fn open(
        kubeconfig: Option<PathBuf>,
        context: Option<String>,
    ) -> Result<Self, String> {
        let door = match kubeconfig {
            Some(path) => Some(Credentials::Person { path, context }),
            None => Credentials::of_a_pod(None),
        };
        let none = "there is no kubeconfig, and this is no pod with a service account: name one with --kubeconfig";
        let door = door.ok_or(none)?;
        let opened = tokio::task::spawn_blocking(move || door.open()).await;
        let opened = opened.map_err(|_| "the credentials cannot be read".to_owned())?;
        Ok(Self { api: opened.map_err(|error| error.to_string())?, longest: LIST_LIMIT })
    }

    /// Its client, for other requests.
    pub(crate) fn into_api(self) -> Api {
        self.api
    }

    /// The server's URL, for people.
    pub(crate) fn url(&self) -> String {
        self.api.url()
    }

    /// Lists every object at `path`, page by page. Returns how many could not be parsed.
    ///
    /// # Errors
    /// The list is unknown; `each` was called with a part of it.
    pub(crate) async fn list<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        path: &str,
        mut age: Age,
        mut each: impl FnMut(T),
    ) -> Result<usize, Refusal> {
        let (mut more, mut read, mut dropped) = (String::new(), 0_usize, 0);
        loop {
            let query = match (&*more, age) {
                ("", Age::Remembered) => format!("{path}?limit={PAGE}&resourceVersion=0"),
                ("", Age::Now) => format!("{path}?limit={PAGE}"),
                (more, _) => format!("{path}?limit={PAGE}&continue={}", encoded(more)),
            };
            let answer = self.patiently::<T>(what, &query).await;
            // `each` has not been called yet.
            if more.is_empty() && age == Age::Remembered && is_too_much(&answer) {
                age = Age::Now;
                continue;
            }
            let page = answer.map_err(refusal)?;
            read += page.items.read.len();
            dropped += page.items.dropped;
            page.items.read.into_iter().for_each(&mut each);
            if read > MOST {
                return Err(Refusal::Failed(format!("there are more than {MOST}")));
            }
            // The same token again would never end.
            if page.metadata.more.0 == more && !more.is_empty() {
                return Err(Refusal::Failed("a list without an end".to_owned()));
            }
            more = page.metadata.more.0;
            if more.is_empty() {
                return Ok(dropped);
            }
        }
    }

    /// Requests one page, and retries after 429.
    async fn patiently<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        query: &str,
    ) -> Result<Page<T>, ApiError> {
        let mut tries = 1;
        loop {
            let answer = async {
                let body = self.api.get(what, query, ANSWER).await?;
                within(what, WHOLE, page_within(body, self.longest, documents::MOST)).await
            };
            match answer.await {
                Err(ApiError::Busy { after, .. }) if tries < TRIES => {
                    let wait = after.unwrap_or(Duration::from_secs(1)) * tries;
                    tokio::time::sleep(wait.min(LONGEST_WAIT)).await;
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }
}

/// Whether an answer exceeds the limits: in bytes, or in entries.
fn is_too_much<T>(answer: &Result<Page<T>, ApiError>) -> bool {
    match answer {
        Ok(page) => page.items.read.len() >= documents::MOST && page.items.dropped > 0,
        Err(error) => matches!(error, ApiError::TooLarge { .. }),
    }
}

fn refusal(error: ApiError) -> Refusal {
    match error {
        ApiError::Refused { code: 404, .. } => Refusal::Absent,
        ApiError::Refused { code: 403, .. } => Refusal::Forbidden,
        error => Refusal::Failed(error.to_string()),
    }
}

/// A server with fixed answers, for tests here and of callers.
#[cfg(test)]
pub(crate) mod testing {
    use serde_json::{Value, json};

    use super::super::fake::{Fake, Reply};
    use super::*;

    pub(crate) enum Answer {
        /// Objects, and the token that continues the list.
        Items(Vec<Value>, &'static str),
        Status(u16),
        Raw(&'static str),
    }

    /// The client of such a server, and the paths requested so far.
    pub(crate) async fn answering(answers: Vec<Answer>) -> (Server, impl Fn() -> Vec<String>) {
        let reply = |answer| match answer {
            Answer::Items(items, more) => {
                let meta = json!({"resourceVersion": "7", "continue": more});
                Reply::Json(json!({"kind": "List", "metadata": meta, "items": items}))
            }
            Answer::Status(code) => Reply::Status(code, Some(0)),
            Answer::Raw(text) => Reply::Raw(text),
        };
        let (fake, url) = Fake::start(answers.into_iter().map(reply).collect(), Vec::new()).await;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let config = json!({
            "current-context": "none", "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "hunter2"}}],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        let server = Server::open(Some(path), Some("it".into())).await.unwrap();
        (server, move || fake.paths())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::testing::{Answer, answering};
    use super::*;

    #[derive(Deserialize)]
    struct Thing {
        n: u64,
    }

    async fn things(server: &Server, age: Age) -> (Result<usize, Refusal>, Vec<u64>) {
        let mut all = Vec::new();
        let listed = server.list("things", "/things", age, |thing: Thing| all.push(thing.n)).await;
        (listed, all)
    }

    #[tokio::test]
    async fn a_list_is_read_page_by_page() {
        let page = |n: u64, more| Answer::Items(vec![json!({"n": n}), json!({"n": "?"})], more);
        let answers = vec![page(1, "a/b"), page(2, "c"), Answer::Status(429), page(3, "")];
        let (server, asked) = answering(answers).await;
        assert_eq!(things(&server, Age::Remembered).await, (Ok(3), vec![1, 2, 3]));
        assert_eq!(
            asked(),
            [
                "/things?limit=500&resourceVersion=0",
                "/things?limit=500&continue=a%2Fb",
                "/things?limit=500&continue=c",
                "/things?limit=500&continue=c",
            ]
        );
        assert_eq!(things(&server, Age::Now).await.1, [3]);
        assert_eq!(asked().last().unwrap(), "/things?limit=500");
    }

    #[tokio::test]
    async fn what_is_too_large_at_once_is_read_page_by_page() {
        let all = |n: std::ops::Range<u64>, more| {
            Answer::Items(n.map(|n| json!({"n": n})).collect(), more)
        };
        let answers = || vec![all(0..400, ""), all(0..200, "rest"), all(200..400, "")];
        let paged = [
            "/things?limit=500&resourceVersion=0",
            "/things?limit=500",
            "/things?limit=500&continue=rest",
        ];
        let (mut server, asked) = answering(answers()).await;
        server.longest = 3 << 10;
        assert_eq!(things(&server, Age::Remembered).await, (Ok(0), (0..400).collect()));
        assert_eq!(asked(), paged);
        // An answer within the limit is used as it is.
        let (server, asked) = answering(answers()).await;
        assert_eq!(things(&server, Age::Remembered).await, (Ok(0), (0..400).collect()));
        assert_eq!(asked(), paged[..1]);
        // A page that exceeds the limit is an error: it would be no smaller the next time.
        let (mut server, asked) = answering(answers()).await;
        server.longest = 1 << 10;
        let (listed, told) = things(&server, Age::Remembered).await;
        assert!(matches!(listed, Err(Refusal::Failed(_))) && told.is_empty(), "{listed:?}");
        assert_eq!(asked(), paged[..2]);
        // More entries than are kept of one answer.
        let many = Answer::Items(vec![json!({"n": 1}); documents::MOST + 1], "");
        let (server, asked) = answering(vec![many, all(0..200, "rest"), all(200..400, "")]).await;
        assert_eq!(things(&server, Age::Remembered).await, (Ok(0), (0..400).collect()));
        assert_eq!(asked(), paged);
    }

    #[tokio::test]
    async fn what_is_refused_is_told_apart() {
        for (answer, refusal) in [
            (Answer::Status(404), Some(Refusal::Absent)),
            (Answer::Status(403), Some(Refusal::Forbidden)),
            (Answer::Status(500), None),
            (Answer::Raw("{\"items\": ["), None),
        ] {
            let (server, _) = answering(vec![answer]).await;
            let (listed, _) = things(&server, Age::Now).await;
            match refusal {
                Some(refusal) => assert_eq!(listed, Err(refusal)),
                None => assert!(matches!(listed, Err(Refusal::Failed(_))), "{listed:?}"),
            }
        }
        // The second page is the first again.
        let same = || Answer::Items(vec![json!({"n": 1})], "again");
        let (server, _) = answering(vec![same(), same()]).await;
        let (listed, _) = things(&server, Age::Now).await;
        assert_eq!(listed, Err(Refusal::Failed("a list without an end".into())));
        // A server that always returns 429.
        let (server, asked) = answering(vec![Answer::Status(429)]).await;
        assert!(matches!(things(&server, Age::Now).await.0, Err(Refusal::Failed(_))));
        assert_eq!(asked().len(), 4);
    }

    #[tokio::test]
    async fn a_context_that_is_not_there_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, "{\"current-context\": \"it\"}").unwrap();
        let error = Server::open(Some(path), Some("other".into())).await.err().unwrap();
        assert!(error.contains("no such context"), "{error}");
    }
}
