//! `ipwatch report` about a stuck pod, as Markdown, HTML and JSON, with and without names.

#[path = "../../ipwatch/src/cli/report/tests/markup.rs"]
mod markup;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::fuse::Hung;
use support::pod::{CNI_CACHE, Containerd, Pod};
use support::{Config, Daemon, Lab, chromium, eventually};

support::tests! {
    one_file_tells_a_stuck_pods_case needs [Pods, Fuse],
    a_browser_shows_it_light_dark_and_on_paper needs [Pods, Fuse, Chromium],
}

/// The namespace of every pod here.
const NAMESPACE: &str = "shop";

/// A pod of a real containerd, of which a process was killed and hangs.
struct Case {
    daemon: Daemon,
    finding: Value,
    pod: Pod,
    // Dropped last: this ends the hang.
    _hung: Hung,
}

impl Case {
    /// With a pod of this name: other tests have pods on the same node.
    fn make(lab: &Lab, name: &str) -> Self {
        let mut hung = Hung::mount(lab);
        let config = Config::default().grace(2).cache_dir(Path::new(CNI_CACHE));
        let daemon = Daemon::start(lab, &config);
        let containerd = Containerd::shared(lab);
        let pod = containerd.run(name, hung.dir(), &["/bin/cat", "/host/hang"]);
        pod.hang(&mut hung);
        let finding = eventually("the finding fires", 15, || {
            let found = daemon.findings_in(pod.netns);
            found.into_iter().find(|finding| finding["status"] == "firing")
        });
        Self { daemon, finding, pod, _hung: hung }
    }

    fn id(&self) -> &str {
        self.finding["id"].as_str().expect("an id")
    }

    fn said(&self, words: &[&str]) -> String {
        let out = self.daemon.ask(&[&["report"], words].concat());
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    }
}

fn one_file_tells_a_stuck_pods_case(lab: &Lab) {
    let case = Case::make(lab, "ledger-0");
    let ip = case.pod.ip.to_string();
    let pod = format!("{NAMESPACE}/{}", case.pod.name);

    let file = lab.dir().join("incident.html");
    let path = file.to_str().expect("text");
    assert_eq!(case.said(&[case.id(), "-o", path]), "", "it goes into the file");
    let page = fs::read_to_string(&file).expect("the file");
    is_a_whole_page(&page);
    for part in [&ip, &pod, "(cat)", "ip-held-by-stuck-process", "request_wait_answer", case.id()] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    let explained = case.daemon.ask(&["explain", case.id()]);
    let title =
        String::from_utf8_lossy(&explained.stdout).lines().next().unwrap_or_default().to_owned();
    assert!(page.contains(&title), "the same words: {title}");

    for what in [&ip, &pod] {
        let text = case.said(&[what, "--md"]);
        assert!(text.starts_with(&format!("# {title}")), "{text}");
        assert!(text.contains("## Timeline") && text.contains("## What keeps it up"), "{text}");
    }
    let document: Value = serde_json::from_str(&case.said(&[case.id(), "--json"])).expect("JSON");
    let lanes = document["timeline"]["lanes"].as_array().expect("lanes");
    let has = |kind: &str, item: &str| {
        lanes.iter().filter(|lane| lane["kind"] == kind).any(|lane| {
            lane["items"]
                .as_array()
                .is_some_and(|items| items.iter().any(|one| one["kind"] == item))
        })
    };
    for (kind, item) in [
        ("pod", "tenure"),
        ("pod", "run"),
        ("holder", "hold"),
        ("holder", "signal"),
        ("finding", "firing"),
    ] {
        assert!(has(kind, item), "no {item} of a {kind}: {lanes:#?}");
    }
    assert_eq!(document["daemon"]["version"], env!("CARGO_PKG_VERSION"));
    no_name_is_left(&case, &ip, lab.dir());

    let unknown = case.daemon.ask(&["report", "shop/nobody-7", "--md"]);
    assert_eq!(unknown.status.code(), Some(3), "{}", String::from_utf8_lossy(&unknown.stderr));
}

/// The page must be well-formed, have a picture, and contain nothing that is executed or loaded.
fn is_a_whole_page(page: &str) {
    let tags = markup::tags(page).unwrap_or_else(|why| panic!("{why}\n{page}"));
    for wanted in ["svg", "table", "pre", "style"] {
        assert!(tags.iter().any(|tag| tag == wanted), "no {wanted}");
    }
    for unwanted in ["<script", "http://", "https://", "url(", "@import", "src=", "href="] {
        assert!(!page.contains(unwanted), "{unwanted} in {page}");
    }
}

fn no_name_is_left(case: &Case, ip: &str, dir: &Path) {
    let file = dir.join("redacted.html");
    let path = file.to_str().expect("text");
    case.said(&[case.id(), "--redact", "-o", path]);
    let page = fs::read_to_string(&file).expect("the file");
    is_a_whole_page(&page);
    // For the picture in the documentation: `cargo xtask pictures`.
    if let Some(dir) = std::env::var_os("IPWATCH_TEST_PICTURES") {
        fs::copy(&file, Path::new(&dir).join("redacted.html")).expect("keep the page");
    }
    let node = case.daemon.document(&["query", "findings"]).expect("findings");
    let node = node["node"].as_str().expect("a node").to_owned();
    let short = |id: &str| id[..12].to_owned();
    let names = [
        ip.to_owned(),
        NAMESPACE.to_owned(),
        case.pod.name.clone(),
        case.pod.uid.clone(),
        short(&case.pod.container),
        short(&case.pod.sandbox),
        "cat".to_owned(),
        case.id().to_owned(),
        node,
    ];
    for text in
        [page, case.said(&[case.id(), "--redact", "--md"]), case.said(&[ip, "--redact", "--json"])]
    {
        // ipwatch's own texts contain no names, but may contain the same letters.
        let told = text.split("</style>").last().unwrap_or_default();
        for name in &names {
            assert!(!tells(told, name), "{name} in {told}");
        }
        assert!(told.contains("192.0.2.") && told.contains("pod-1"), "{told}");
    }
}

/// Whether a text contains a name as a whole word.
fn tells(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !inside(text[..at].chars().next_back()) && !inside(text[at + name.len()..].chars().next())
    })
}

fn a_browser_shows_it_light_dark_and_on_paper(lab: &Lab) {
    let case = Case::make(lab, "ledger-1");
    let file = lab.dir().join("incident.html");
    case.said(&[case.id(), "--html", "-o", file.to_str().expect("text")]);
    let shown = chromium::dom(&file);
    assert!(shown.contains(case.id()) && shown.contains("</svg>"), "{shown}");
    let pictures = [false, true].map(|dark| chromium::picture(lab, &file, dark));
    assert_ne!(pictures[0], pictures[1], "dark is another picture");
    let paper = chromium::paper(lab, &file);
    assert!(paper.starts_with(b"%PDF-"), "no PDF");
}
