//! An API server whose answers are lost, as where a load balancer cuts the connection: what was changed must be told. The
//! end-to-end tests use a real kube-apiserver.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::super::api_server::Access;
use super::*;

const POOL: &str =
    "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools/10.0.0.0-27";
const OVERLAPPING: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/\
                           overlappingrangeipreservations/10.0.0.11";
const KEY: &str = "ippools/kube-system/10.0.0.0-27/11";
const BLOCK: &str = "/apis/crd.projectcalico.org/v1/ipamblocks/10-0-0-0-26";
const CONTAINER: &str = "c0ffee";

/// What happens to a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Whole,
    /// It is applied, and its answer is lost.
    CutAfter,
    /// It does not arrive.
    CutBefore,
    /// As [`Line::CutAfter`], and no later request is answered.
    CutForGood,
}

#[derive(Debug)]
struct Inner {
    objects: BTreeMap<String, Value>,
    line: Line,
    is_down: bool,
}

/// A server with these objects, in which a change fares as `line` says.
struct Server {
    inner: Arc<Mutex<Inner>>,
    api: ApiServer,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start(objects: &[(&str, Value)], line: Line) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let objects =
            objects.iter().map(|(path, object)| ((*path).to_owned(), object.clone())).collect();
        let inner = Arc::new(Mutex::new(Inner { objects, line, is_down: false }));
        let own = inner.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let inner = own.clone();
                std::thread::spawn(move || serve(stream, &inner));
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("config");
        let config = json!({
            "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "clusters": [{ "name": "c", "cluster": { "server": url } }],
            "users": [{ "name": "u", "user": { "token": "t" } }],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let api = ApiServer::new(Access { kubeconfig: Some(kubeconfig), context: None });
        Self { inner, api, _dir: dir }
    }

    fn set(&self, line: Line) {
        self.inner.lock().unwrap().line = line;
    }

    fn object(&self, path: &str) -> Option<Value> {
        self.inner.lock().unwrap().objects.get(path).cloned()
    }
}

fn serve(stream: std::net::TcpStream, inner: &Mutex<Inner>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if !reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                return;
            }
            if let Some(number) = line.to_lowercase().strip_prefix("content-length:") {
                length = number.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mut words = head.split_ascii_whitespace();
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let mut inner = inner.lock().unwrap();
        let changes = method != "GET";
        if inner.is_down || changes && inner.line == Line::CutBefore {
            return;
        }
        let (code, answer) = inner.answer(method, path, serde_json::from_slice(&body).ok());
        if changes && inner.line != Line::Whole {
            inner.is_down = inner.line == Line::CutForGood;
            return;
        }
        drop(inner);
        let text = answer.to_string();
        let length = text.len();
        let answer = format!("HTTP/1.1 {code} x\r\ncontent-length: {length}\r\n\r\n{text}");
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

impl Inner {
    fn answer(&mut self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let known = self.objects.get(path).cloned();
        match (method, known, body) {
            ("GET", Some(object), _) => (200, object),
            ("DELETE", Some(object), _) => {
                self.objects.remove(path);
                (200, object)
            }
            ("POST", _, Some(object)) => {
                let name = object["metadata"]["name"].as_str().unwrap();
                let path = format!("{path}/{name}");
                if self.objects.contains_key(&path) {
                    return (409, json!({}));
                }
                self.objects.insert(path, with_version(object.clone(), 1));
                (201, object)
            }
            ("PATCH", Some(object), Some(patch)) => match patched(object, &patch) {
                Some(object) => {
                    self.objects.insert(path.to_owned(), object.clone());
                    (200, object)
                }
                None => (422, json!({})),
            },
            _ => (404, json!({})),
        }
    }
}

fn with_version(mut object: Value, version: u64) -> Value {
    object["metadata"]["resourceVersion"] = version.to_string().into();
    object["metadata"]["uid"] = "u".into();
    object
}

/// A JSON patch, as far as `fix` uses it.
fn patched(mut object: Value, patch: &Value) -> Option<Value> {
    for step in patch.as_array()? {
        let (path, value) = (step["path"].as_str()?, &step["value"]);
        let (above, key) = path.rsplit_once('/')?;
        match step["op"].as_str()? {
            "test" => (object.pointer(path) == Some(value)).then_some(())?,
            "remove" => drop(object.pointer_mut(above)?.as_object_mut()?.remove(key)?),
            "replace" => *object.pointer_mut(path)? = value.clone(),
            _ => object.pointer_mut(above)?[key] = value.clone(),
        }
    }
    let version: u64 = object["metadata"]["resourceVersion"].as_str()?.parse().ok()?;
    Some(with_version(object, version + 1))
}

/// A pool of Whereabouts with a leaked allocation, and its overlapping reservation.
fn pool() -> [(&'static str, Value); 2] {
    let allocation = json!({ "id": CONTAINER, "podref": "shop/api-0" });
    let spec = json!({ "range": "10.0.0.0/27", "allocations": { "11": allocation } });
    let pool = with_version(json!({ "spec": spec }), 7);
    let spec = json!({ "containerid": CONTAINER, "podref": "shop/api-0" });
    [(POOL, pool), (OVERLAPPING, with_version(json!({ "spec": spec }), 3))]
}

async fn freed(
    server: &mut Server,
    store: &str,
    key: &str,
) -> (Seen, Result<Option<String>, NotFreed>) {
    let ip = if store == store::CALICO { "10.0.0.1" } else { "10.0.0.11" };
    let which = (ip.parse().unwrap(), key, CONTAINER);
    let seen = look(&mut server.api, store, which).await.unwrap();
    let done = free(&mut server.api, store, which, &seen).await;
    (seen, done)
}

#[tokio::test]
async fn an_allocation_that_went_without_an_answer_is_freed() {
    for line in [Line::Whole, Line::CutAfter] {
        let mut server = Server::start(&pool(), line);
        let (seen, done) = freed(&mut server, store::WHEREABOUTS, KEY).await;
        assert_eq!(done, Ok(None), "{line:?}");
        assert_eq!(server.object(POOL).unwrap()["spec"]["allocations"], json!({}));
        assert_eq!(server.object(OVERLAPPING), None);
        // And back.
        let back = restore(&mut server.api, &seen).await;
        assert_eq!(back, Ok(()), "{line:?}");
        let allocations = &server.object(POOL).unwrap()["spec"]["allocations"];
        assert_eq!(allocations["11"]["id"], CONTAINER, "{line:?}");
        assert!(server.object(OVERLAPPING).is_some(), "{line:?}");
    }
}

#[tokio::test]
async fn what_may_have_gone_is_not_said_to_be_as_it_was() {
    for line in [Line::CutBefore, Line::CutForGood] {
        let mut server = Server::start(&pool(), line);
        let (_, done) = freed(&mut server, store::WHEREABOUTS, KEY).await;
        assert!(matches!(done, Err(NotFreed::Unknown(_))), "{line:?}: {done:?}");
    }
}

#[tokio::test]
async fn an_allocation_that_did_not_come_back_leaves_nothing_behind() {
    let mut server = Server::start(&pool(), Line::Whole);
    let (seen, done) = freed(&mut server, store::WHEREABOUTS, KEY).await;
    assert_eq!(done, Ok(None));
    server.set(Line::CutBefore);
    assert!(restore(&mut server.api, &seen).await.is_err());
    assert_eq!(server.object(POOL).unwrap()["spec"]["allocations"], json!({}));
    assert_eq!(server.object(OVERLAPPING), None);
    // Whether there is a reservation now cannot be found out: none is deleted.
    server.set(Line::CutForGood);
    assert!(restore(&mut server.api, &seen).await.is_err());
    assert!(server.object(OVERLAPPING).is_some());
}

#[tokio::test]
async fn an_assignment_that_went_without_an_answer_is_freed() {
    let attribute = json!({ "handle_id": format!("net.{CONTAINER}") });
    let spec = json!({
        "cidr": "10.0.0.0/26", "allocations": [null, 0], "unallocated": [0],
        "attributes": [attribute], "deleted": false,
    });
    let block = with_version(json!({ "spec": spec }), 7);
    for line in [Line::Whole, Line::CutAfter, Line::CutBefore] {
        let mut server = Server::start(&[(BLOCK, block.clone())], line);
        let (seen, done) = freed(&mut server, store::CALICO, "ipamblocks/10-0-0-0-26/1").await;
        let is_freed = server.object(BLOCK).unwrap()["spec"]["allocations"][1].is_null();
        match line {
            Line::CutBefore => assert!(matches!(done, Err(NotFreed::Unknown(_))), "{done:?}"),
            _ => assert!(done.is_ok() && is_freed, "{line:?}: {done:?}"),
        }
        if is_freed {
            server.set(Line::Whole);
            assert_eq!(restore(&mut server.api, &seen).await, Ok(()));
            server.inner.lock().unwrap().objects.insert(BLOCK.to_owned(), block.clone());
        }
    }
}
