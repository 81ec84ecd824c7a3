//! One case through every form: what is said, that it is well-formed, that no word of a stranger is markup, and that no
//! name is left where none is wanted.

mod file;
mod lanes;
mod markup;

use serde_json::Value;

use self::markup::tags;
use super::case::Case;
use super::{Written, build, html, markdown, redact, rows, text};
use crate::cli::hostile;
use crate::cli::show::sample;
use crate::contract::report::{Item, ItemKind, LaneKind, Report, When};
use crate::contract::{Body, Document, SCHEMA};
use crate::finding::Status;
use crate::testing::words::words;

/// The contract's examples, which tell of one node, as the answers of its daemon.
fn case_of(document: impl Fn(&str) -> Document) -> Case {
    let told = document("scan.json");
    let (node, taken_at, sources) = (told.node, told.taken_at, told.sources);
    let Body::Findings(around) = told.body else { panic!("findings") };
    let history = document("query-history.json");
    let runs = history.runs;
    let Body::History(history) = history.body else { panic!("history") };
    let Body::Addresses(addresses) = document("query-ip.json").body else { panic!("addresses") };
    let reservations = document("query-ipam.json").reservations;
    let doctor = document("doctor.json");
    let Body::Probes(probes) = doctor.body else { panic!("probes") };
    Case {
        about: "k3f9".to_owned(),
        node,
        taken_at,
        sources,
        findings: around[..1].to_vec(),
        around,
        addresses,
        history,
        runs,
        reservations,
        probes,
        blind: doctor.blind,
        daemon: doctor.daemon,
        unanswered: vec!["where 10.0.3.17 is reserved: it takes too long".to_owned()],
    }
}

fn case() -> Case {
    case_of(sample)
}

fn hostile_case(word: &str) -> Case {
    case_of(|name| hostile::document(name, word))
}

/// What is written about a case with this word in every field that a stranger fills, in each form.
pub(in crate::cli) fn written(word: &str) -> Vec<(String, String)> {
    let report = build::report(&hostile_case(word));
    let written =
        |(name, form): (&str, Written)| (format!("{name} report"), text(&report, form).unwrap());
    [("html", Written::Html), ("markdown", Written::Markdown), ("json", Written::Json)]
        .map(written)
        .into()
}

fn redacted(case: &Case) -> Report {
    redact::redact(&build::report(case), case).unwrap()
}

#[test]
fn the_words_are_those_of_explain_and_the_order_is_that_of_the_events() {
    let report = build::report(&case());
    assert_eq!(report.title, "10.0.3.17 of shop/api-0, held by pid 812 java");
    let ids: Vec<&str> = report.stories.iter().map(|story| &story.id[..4]).collect();
    assert_eq!(ids, ["k3f9", "p81c", "r7d2"], "what it is about, and what came of it");
    let whens: Vec<When> = report.stories[0].steps.iter().map(|step| step.when).collect();
    assert_eq!(whens, [When::Now, When::Fix, When::Fix, When::Never, When::Never]);
    let lanes: Vec<(LaneKind, &str)> =
        report.timeline.lanes.iter().map(|lane| (lane.kind, lane.name.as_str())).collect();
    assert!(lanes.contains(&(LaneKind::Pod, "shop/api-0")), "{lanes:?}");
    assert!(lanes.contains(&(LaneKind::Pod, "shop/api-1")), "who had it before: {lanes:?}");
    assert!(lanes.is_sorted_by_key(|(kind, _)| *kind), "{lanes:?}");
    let java = report.timeline.lanes.iter().find(|lane| lane.name == "pid 812 java").unwrap();
    let kinds: Vec<ItemKind> = java.items.iter().map(|item| item.kind).collect();
    assert_eq!(kinds, [ItemKind::Signal, ItemKind::Exiting, ItemKind::Seen]);
    let pause = report.timeline.lanes.iter().find(|lane| lane.name == "pid 640 pause").unwrap();
    assert_eq!(pause.items.len(), 1, "what the runtime said is not about it: {pause:#?}");
    let api = report.timeline.lanes.iter().find(|lane| lane.name == "shop/api-0").unwrap();
    let failed = api.items.iter().find(|item| item.kind == ItemKind::FailedRun).unwrap();
    assert_eq!(
        (failed.text.as_str(), failed.ended.as_str()),
        ("DEL bridge", "failed with exit status 1")
    );
}

#[test]
fn what_is_over_is_told_as_over() {
    let mut case = case();
    case.findings[0].status = Status::Resolved;
    case.findings[0].resolved_at = Some("2026-01-02T03:09:00.000Z".to_owned());
    let report = build::report(&case);
    assert!(report.stories[0].steps.is_empty(), "nothing is left to do");
    let text = markdown::document(&report);
    assert!(text.contains("**warning, resolved**") && text.contains("(lasted 4m)"), "{text}");
    assert!(text.contains("| resolved after 4m |"), "{text}");
    let page = html::page(&report);
    assert!(page.contains("finding resolved") && page.contains("verdict over"), "{page}");
}

#[test]
fn of_what_is_healthy_it_says_so() {
    let mut case = case();
    (case.findings, case.around) = (Vec::new(), Vec::new());
    case.about = "10.0.3.17".to_owned();
    let report = build::report(&case);
    assert_eq!(report.title, "10.0.3.17: nothing wrong is known");
    tags(&html::page(&report)).unwrap();
    assert!(markdown::document(&report).contains("10.0.3.17 up"));
}

/// The files beside this one; `IPWATCH_BLESS=1 cargo test -p ipwatch --lib the_markdown_of_a_case` writes them anew.
#[test]
fn the_markdown_of_a_case_is_as_it_was() {
    let case = case();
    for (name, report) in [("stuck.md", build::report(&case)), ("redacted.md", redacted(&case))] {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/report/fixtures/").to_owned() + name;
        let text = markdown::document(&report);
        if std::env::var_os("IPWATCH_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = crate::bounded::read_text(path.as_ref(), 1 << 20).unwrap();
        assert_eq!(text, golden, "{name}");
    }
}

#[test]
fn the_page_is_well_formed_and_fetches_nothing() {
    let page = html::page(&build::report(&case()));
    let tags = tags(&page).unwrap();
    for wanted in ["svg", "table", "style", "h1", "pre"] {
        assert!(tags.iter().any(|tag| tag == wanted), "no {wanted}");
    }
    for unwanted in
        ["script", "link", "img", "iframe", "object", "form", "base", "image", "use", "a"]
    {
        assert!(!tags.iter().any(|tag| tag == unwanted), "{unwanted}");
    }
    for unwanted in ["://", "url(", "@import", " on", "href", "src="] {
        let markup: Vec<&str> = page.split('<').filter_map(|part| part.split('>').next()).collect();
        let in_style = page.split("<style>").nth(1).and_then(|rest| rest.split("</style>").next());
        let in_style = in_style.unwrap();
        assert!(!markup.iter().any(|tag| tag.contains(unwanted)), "{unwanted} in a tag");
        assert!(unwanted == " on" || !in_style.contains(unwanted), "{unwanted} in the style");
    }
}

#[test]
fn one_reason_for_many_events_is_told_once() {
    let mut report = build::report(&case());
    let mut other = report.probes[0].clone();
    other.event = "another-event".to_owned();
    let before = rows::not_seen(&report).len();
    report.probes.push(other);
    let lines = rows::not_seen(&report);
    assert_eq!(lines.len(), before, "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains(", another-event)")), "{lines:#?}");
}

#[test]
fn two_netns_of_one_pods_name_have_a_lane_each() {
    let mut case = case();
    let mut twin = case.history[0].clone();
    twin.netns.inode = Some(4_026_532_999);
    twin.container.as_mut().unwrap().id = Some("f".repeat(64));
    "2026-01-02T03:05:30.000Z".clone_into(&mut twin.from);
    case.history.push(twin);
    let mut run = case.runs[0].clone();
    run.container_id =
        case.history[0].container.as_ref().and_then(|container| container.id.clone());
    case.runs = vec![run];
    let report = build::report(&case);
    let with_run = |items: &[Item]| items.iter().any(|item| item.kind == ItemKind::FailedRun);
    let lanes = report.timeline.lanes.iter().filter(|lane| lane.name == "shop/api-0");
    let lanes: Vec<(&str, bool)> =
        lanes.map(|lane| (lane.detail.as_str(), with_run(&lane.items))).collect();
    assert_eq!(lanes, [("netns 4026532177", true), ("netns 4026532999", false)]);
}

#[test]
fn the_json_means_the_same_after_a_round_trip() {
    let report = build::report(&case());
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    assert_eq!(report.schema, SCHEMA);
}

#[test]
fn no_word_of_a_stranger_is_markup() {
    let plain = build::report(&hostile_case("a word"));
    let plain_tags = tags(&html::page(&plain)).unwrap();
    for word in words() {
        let report = build::report(&hostile_case(&word));
        let page = html::page(&report);
        let short = &word[..word.floor_char_boundary(60)];
        let tags = tags(&page).unwrap_or_else(|why| panic!("{short:?}: {why}"));
        // A label that has no room is left out: what others have is the same.
        let without = |tags: &[String]| -> Vec<String> {
            tags.iter()
                .filter(|tag| !["text", "title", "line"].contains(&tag.as_str()))
                .cloned()
                .collect()
        };
        assert_eq!(without(&tags), without(&plain_tags), "{short:?}");
        let markdown = markdown::document(&report);
        // Outside of code, nothing of it is HTML or a link.
        let prose = markdown.split("```").step_by(2);
        for text in prose {
            let text =
                text.replace("\\<", "").replace("\\[", "").replace("\\@", "").replace(":\\/", "");
            assert!(
                !text.contains("<script") && !text.contains("[x](") && !text.contains("://"),
                "{text}"
            );
        }
    }
}

/// Every string of a document, but those of fields that hold no name.
fn names(value: &Value, found: &mut Vec<String>) {
    const NAMES: [&str; 12] = [
        "node",
        "ip",
        "name",
        "namespace",
        "uid",
        "comm",
        "mount_ns_comm",
        "container_id",
        "mac",
        "id",
        "network",
        "mount_path",
    ];
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                match value {
                    Value::String(text) if NAMES.contains(&field.as_str()) => {
                        found.push(text.clone())
                    }
                    value => names(value, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

/// The names of the case, as its findings and addresses have them.
fn originals(case: &Case) -> Vec<String> {
    let mut found = vec![case.node.clone()];
    // Names of devices stay.
    let mut addresses = case.addresses.clone();
    addresses.iter_mut().for_each(|address| address.interface = None);
    for value in [
        serde_json::to_value(&case.around),
        serde_json::to_value(&addresses),
        serde_json::to_value(&case.history),
        serde_json::to_value(&case.runs),
    ] {
        names(&value.unwrap(), &mut found);
    }
    found
}

/// Whether a name stands in a text, as a word of its own.
fn tells(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !inside(text[..at].chars().next_back()) && !inside(text[at + name.len()..].chars().next())
    })
}

#[test]
fn no_name_and_no_ip_is_left_where_none_is_wanted() {
    let case = case();
    let report = redacted(&case);
    let style = html::page(&report).split("</style>").nth(1).unwrap().to_owned();
    for text in [style, markdown::document(&report), serde_json::to_string(&report).unwrap()] {
        for name in originals(&case) {
            assert!(!tells(&text, &name), "{name} in {text}");
        }
        for other in [
            "s3fs",
            "containerd-shim",
            "7f3a2c1e",
            "7f3a91c26e0b",
            "b1946ac92492",
            "k3f9",
            "cni-7f3a11c2",
        ] {
            assert!(!text.contains(other), "{other} in {text}");
        }
    }
    // The same name, the same word.
    assert_eq!(
        report.title.matches("192.0.2.1 of namespace-1/pod-1, held by pid 812 process-").count(),
        1,
        "{}",
        report.title
    );
    assert!(
        report.stories[0].impact.starts_with("192.0.2.1 stays up"),
        "{}",
        report.stories[0].impact
    );
    assert!(
        report.stories[0].impact.contains("pod \"namespace-1/pod-1\""),
        "{}",
        report.stories[0].impact
    );
    assert!(report.stories[0].impact.contains("\"address already in use\""), "our own words stay");
    let command = report.stories[0].steps.iter().find_map(|step| step.command.as_deref()).unwrap();
    assert!(
        command.contains("/proc/812/task/812/stat")
            && command.contains("/sys/fs/fuse/connections/57/abort"),
        "{command}"
    );
}

#[test]
fn commands_and_words_of_ours_are_left_whole() {
    let mut case = case();
    let step = &mut case.findings[0].steps[0];
    step.command = Some(
        r#"ipwatch --socket=/srv/state/x.sock query findings k3f9q2m7x5wz4a6b | grep -q '"id":"k3f9q2m7x5wz4a6b","subject"' && kubectl cordon node-17"#
            .to_owned(),
    );
    case.around[0] = case.findings[0].clone();
    let report = redacted(&case);
    let command = report.stories[0].steps[0].command.as_deref().unwrap();
    let wanted = r#" query findings finding-1 | grep -q '"id":"finding-1","subject"' && kubectl cordon node-1"#;
    assert!(command.ends_with(wanted), "{command}");
    assert!(!command.contains("state") && !command.contains("srv"), "{command}");
    assert!(
        report.holders[0].stands.iter().any(|text| text.starts_with("state D")),
        "{:?}",
        report.holders[0]
    );
}

#[test]
fn no_hostile_name_is_left_either() {
    // What has neither a letter nor a digit names nobody.
    for word in words().into_iter().filter(|word| word.contains(char::is_alphanumeric)) {
        let case = hostile_case(&word);
        let text = serde_json::to_string(&redacted(&case)).unwrap();
        let spelt = serde_json::to_string(&word).unwrap();
        let spelt = &spelt[1..spelt.len() - 1];
        let short = &spelt[..spelt.floor_char_boundary(60)];
        assert!(!text.contains(short), "{short}");
    }
}
