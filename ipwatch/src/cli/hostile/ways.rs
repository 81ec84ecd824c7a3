//! What is written on each way out if every name that a stranger can choose is the same word.

use clap::ValueEnum as _;

use super::Texts;
use super::documents::{DOCUMENTS, document, events};
use crate::api::client::ClientError;
use crate::cli::args::{Cli, Format};
use crate::cli::kubectl::fleet;
use crate::cli::output::Out;
use crate::cli::show::{card, ip, story};
use crate::cli::view::View;
use crate::cli::{Failure, complaint, watch};
use crate::contract::{Body, Document, Fix, FixState, Fleet, FleetNode, SCHEMA};
use crate::finding::{Change, ChangeKind, Code, Finding};
use crate::sinks::tests::hostile as sinks;
use crate::{cli, cluster, fix, metrics};

/// How a command prints in each format, with the format's name.
fn formats() -> Vec<(String, Out)> {
    let out = |format: &Format| {
        let name = format.to_possible_value().unwrap().get_name().to_owned();
        let line = ["ipwatch", "-o", &name, "query", "ip"];
        let out = Out::new(&Cli::read(line.map(Into::into).into()).unwrap().global);
        (name, out)
    };
    Format::value_variants().iter().map(out).collect()
}

/// The document in each format.
fn printed(of: &str, document: &Document) -> Texts {
    let print = |(format, out): (String, Out)| {
        let view = View { all: true, ..out.view(document) };
        (format!("{format} of {of}"), out.render(document, view).unwrap())
    };
    formats().into_iter().map(print).collect()
}

fn table(document: &Document, wide: bool) -> View {
    let (_, out) = formats().into_iter().find(|(name, _)| name == "table").unwrap();
    View { all: true, wide, ..out.view(document) }
}

/// The findings of the example.
fn findings(word: &str) -> Vec<Finding> {
    let Body::Findings(findings) = document("scan.json", word).body else { panic!("findings") };
    findings
}

pub(super) fn documents(word: &str) -> Texts {
    DOCUMENTS.iter().flat_map(|name| printed(name, &document(name, word))).collect()
}

pub(super) fn stories(word: &str) -> Texts {
    let document = document("scan.json", word);
    let Body::Findings(all) = &document.body else { panic!("findings") };
    let told = |wide| {
        let text = story::render(&document, all, all, true, table(&document, wide));
        (format!("wide {wide}"), text)
    };
    [false, true].map(told).into()
}

pub(super) fn cards(word: &str) -> Texts {
    let document = |name| document(name, word);
    let mut texts = Vec::new();
    for name in ["query-ip.json", "query-netns.json", "query-ip-reach.json"] {
        let shown = document(name);
        let Body::Addresses(addresses) = &shown.body else { panic!("addresses") };
        let Body::Verdict(verdict) = document("check.json").body else { panic!("a verdict") };
        let Body::Neighbours(neighbours) = document("query-neigh.json").body else {
            panic!("neighbours")
        };
        let around = ip::Around {
            neighbours,
            findings: findings(word),
            reservations: document("query-ipam.json").reservations,
            verdict: Some(verdict),
        };
        let view = table(&shown, true);
        let of = "10.0.3.17".parse().unwrap();
        texts.push((format!("of the IP in {name}"), ip::render(of, addresses, &around, view)));
        let cards = addresses.iter().map(|address| card::render(address, view));
        texts.extend(cards.map(|card| (format!("of {name}"), card)));
    }
    texts
}

pub(super) fn watch(word: &str) -> Texts {
    let mut texts = Vec::new();
    for event in events(word) {
        // What the daemon writes, and a client prints.
        let line = serde_json::to_string(&event).unwrap();
        assert!(!line.contains('\n'), "an event is one line of the socket");
        texts.extend(formats().into_iter().map(|(format, out)| {
            let text = watch::printed(line.clone(), &out).unwrap();
            (format!("{format} event"), text)
        }));
    }
    texts
}

/// The plan that `fix` makes of findings of every code, that of the example, and both with each result.
pub(super) fn plan(word: &str) -> Texts {
    let coded = |code: &Code| {
        let code = *code;
        findings(word).into_iter().map(move |finding| Finding { code, ..finding })
    };
    let findings: Vec<Finding> = Code::ALL.iter().flat_map(coded).collect();
    let mut all = document("fix.json", word);
    let entries = document("query-ipam.json", word).reservations;
    let mut texts = Vec::new();
    let planned = fix::plan::plan(&findings.iter().collect::<Vec<_>>(), &entries, &[]);
    let example = match &all.body {
        Body::Fix(fix) => fix.clone(),
        _ => panic!("a plan"),
    };
    for plan in [planned, example] {
        for state in [FixState::Planned, FixState::Skipped, FixState::Done, FixState::Stranded] {
            let mut plan = Fix { record: Some(word.to_owned()), ..plan.clone() };
            plan.items.iter_mut().for_each(|item| item.state = state);
            all.body = Body::Fix(plan);
            texts.extend(printed(&format!("{state:?}"), &all));
        }
    }
    let unclear = fix::plan::meant(&[], word, false).unwrap_err().to_string();
    texts.push(("unclear".to_owned(), complaint(&unclear)));
    texts
}

pub(super) fn cluster(word: &str) -> Texts {
    cluster::hostile::said(word)
}

/// Two nodes that answer and one that does not. A node chooses the ids of its findings as well.
pub(super) fn fleet(word: &str) -> Texts {
    let names = ["scan.json", "query-ip.json", "query-history.json", "query-ipam.json"];
    let node = |n: usize| {
        let mut documents: Vec<Document> = names.iter().map(|name| document(name, word)).collect();
        if let Some(Document { body: Body::Findings(findings), .. }) = documents.first_mut() {
            for finding in findings {
                finding.id = format!("{word}{}", finding.id);
            }
        }
        let name = format!("{word}{n}");
        FleetNode { node: name.clone(), pod: name, error: None, documents }
    };
    let silent = FleetNode {
        node: word.to_owned(),
        pod: String::new(),
        error: Some(word.to_owned()),
        documents: Vec::new(),
    };
    let fleet = Fleet {
        schema: SCHEMA.to_owned(),
        taken_at: "2026-01-02T03:10:11.000Z".to_owned(),
        nodes: vec![node(1), node(2), silent],
        nodes_unlisted: Some(word.to_owned()),
    };
    let lines = ["findings -A", "findings -A --all", "findings -n shop", "ip 10.0.3.17"];
    let answered = |line: String| (line.clone(), fleet::tests::answered(&line, &fleet));
    let lines = lines.iter().flat_map(|line| [(*line).to_owned(), format!("{line} -o json")]);
    lines.map(answered).collect()
}

/// A line of any subcommand of `cni`.
pub(super) fn cni(word: &str) -> Texts {
    let mut text = String::new();
    cli::cni::say(&mut text, word);
    vec![("a line".to_owned(), text)]
}

pub(super) fn complaints(word: &str) -> Texts {
    let refused = |status| ClientError::Refused { status, error: word.into(), hint: word.into() };
    [
        Failure::from(refused(404)),
        Failure::from(refused(503)),
        Failure::NotFound(word.to_owned()),
        anyhow::anyhow!("{word}").context(word.to_owned()).into(),
    ]
    .map(|failure| ("a failure".to_owned(), complaint(&failure.to_string())))
    .into()
}

/// Every change of every finding.
fn changes(word: &str) -> Vec<Change> {
    let kinds = [ChangeKind::Opened, ChangeKind::Updated, ChangeKind::Resolved];
    let of = |finding: Finding| kinds.map(|kind| Change::new(kind, finding.clone()));
    findings(word).into_iter().flat_map(of).collect()
}

pub(super) fn log(word: &str) -> Texts {
    changes(word).iter().flat_map(sinks::in_the_log).collect()
}

pub(super) fn log_of_fix(word: &str) -> Texts {
    let Body::Fix(fix) = document("fix.json", word).body else { panic!("a plan") };
    let entries = fix.items.iter().flat_map(|item| fix::log::tests::entry(item, word));
    entries.map(|(field, text)| (field.to_owned(), text)).collect()
}

pub(super) fn otlp(word: &str) -> Texts {
    changes(word).iter().flat_map(sinks::in_otlp).collect()
}

pub(super) fn telemetry(word: &str) -> Texts {
    let Body::History(tenures) = document("query-history.json", word).body else {
        panic!("a history")
    };
    let holders = findings(word).swap_remove(0).holders;
    let of = |tenure| sinks::of_tenure(tenure, holders.clone());
    let tenures = tenures.into_iter().flat_map(of);
    tenures.chain(sinks::of_the_node(word)).collect()
}

pub(super) fn kubernetes(word: &str) -> Texts {
    changes(word).iter().flat_map(sinks::in_the_cluster).collect()
}

pub(super) fn metrics(word: &str) -> Texts {
    vec![("page".to_owned(), metrics::page_of(word))]
}
