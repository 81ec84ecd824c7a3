//! Clusters whose objects have hostile names: a shell must parse each remedy as it was written, each value as one
//! word or a part of one, and none as an option.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::fixtures::{Objects, calico, crashed, node, pod};
use crate::contract::{Cluster, Step};
use crate::remedy::hostile::{Shape, WAYS, any_text, is_shaped, replaced, worse};
use crate::remedy::shell::{check_prose, parsed_lines};

/// Clusters in which every remedy is used.
fn scenes() -> Vec<Objects> {
    let mut gone = crashed();
    gone.nodes.remove(0);
    let mut making = crashed();
    making.pods.push(json!({
        "metadata": {"namespace": "shop", "name": "new-0", "uid": "uid-new-0"},
        "spec": {"nodeName": "node-2"}, "status": {"phase": "Pending"},
    }));
    let mut twice = crashed();
    twice.nodes.push(node("node-3"));
    twice.pods.push(pod("web-9", "node-3", "10.0.1.2", &["192.168.7.12"]));
    let mut astray = crashed();
    astray.pools.clear();
    vec![crashed(), gone, making, twice, astray, calico()]
}

/// Fields whose values others choose.
const FOREIGN: &[&str] = &[
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "id",
    "podref",
    "nodeName",
    "affinity",
    "handle_id",
    "handleID",
    "pod",
    "node",
];

/// Calls `then` with each text in a field that others choose, in an affinity only with the node's name.
fn each(value: &mut Value, field: &str, then: &mut dyn FnMut(&mut String)) {
    match value {
        Value::Object(object) => {
            object.iter_mut().for_each(|(field, value)| each(value, field, then));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| each(value, field, then)),
        Value::String(text) if FOREIGN.contains(&field) => match text.strip_prefix("host:") {
            Some(node) => {
                let mut node = node.to_owned();
                then(&mut node);
                *text = format!("host:{node}");
            }
            None => then(text),
        },
        _ => {}
    }
}

fn each_of(told: &mut Objects, mut then: impl FnMut(&mut String)) {
    let Objects { pools, overlapping, networks, blocks, handles, calico_pools, nodes, pods } = told;
    let all = [pools, overlapping, networks, blocks, handles, calico_pools, nodes, pods];
    for object in all.into_iter().flatten() {
        each(object, "", &mut then);
    }
}

fn names(told: &Objects) -> Vec<String> {
    let mut found = BTreeSet::new();
    each_of(&mut told.clone(), |text| {
        let parts = text.split('/').filter(|part| part.parse::<std::net::IpAddr>().is_err());
        found.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
    });
    found.into_iter().collect()
}

fn steps(cluster: &Cluster) -> impl Iterator<Item = &Step> {
    cluster.findings.iter().flat_map(|one| &one.remediation)
}

fn words_of(step: &Step) -> Shape {
    assert!(step.runs.iter().all(|run| run.to.is_none()), "nothing is written: {step:?}");
    step.runs.iter().map(|run| run.argv.clone()).collect()
}

/// The words of its command with all IPs replaced: which IP the command is about is not compared here.
fn shape(step: &Step) -> Shape {
    let words = |words: &Vec<String>| words.iter().map(|word| any_ip(word)).collect();
    words_of(step).iter().map(words).collect()
}

fn any_ip(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let ips: BTreeSet<&str> = text.split(|c| !is_part(c)).collect();
    let ips = ips.into_iter().rev().filter(|part| part.parse::<std::net::Ipv4Addr>().is_ok());
    let text = ips.fold(text.to_owned(), |text, ip| text.replace(ip, "IP"));
    // The offset of an IP in its pool is replaced as well.
    let Some((before, after)) = text.split_once("/allocations/") else { return text };
    let after = after.split("/allocations/").map(|part| part.trim_start_matches(char::is_numeric));
    format!("{before}/allocations/{}", after.collect::<Vec<_>>().join("/allocations/"))
}

/// What turns a harmless name into another one.
const OTHER: [&str; 2] = ["-other", "other-"];

/// The commands with the original names, and with some of them replaced, so that objects no longer match.
fn templates(scenes: &[Objects]) -> BTreeSet<Shape> {
    let mut all = BTreeSet::new();
    for scene in scenes {
        let [after, before] = OTHER;
        let other = |name: &String| (name.clone(), format!("{name}{after}"));
        let another = |name: &String| (name.clone(), format!("{before}{name}"));
        let names = names(scene);
        let every = names.iter().map(other).collect();
        let one = names.iter().map(other).chain(names.iter().map(another));
        let one = one.map(|pair| BTreeMap::from([pair]));
        for words in one.chain([every, BTreeMap::new()]) {
            for step in steps(&reworded(scene, &words).judged()) {
                let mut shape = shape(step);
                for word in shape.iter_mut().flatten() {
                    *word = word.replace(after, "").replace(before, "");
                }
                all.insert(shape);
            }
        }
    }
    all
}

fn reworded(scene: &Objects, words: &BTreeMap<String, String>) -> Objects {
    let mut told = scene.clone();
    each_of(&mut told, |text| *text = replaced(text, words));
    told
}

/// Every line of text about a cluster.
fn lines(cluster: &Cluster) -> impl Iterator<Item = String> {
    cluster.findings.iter().flat_map(|finding| {
        let title = crate::cli::cluster_name(finding);
        let steps = finding.remediation.iter().map(|step| step.what.clone());
        let said = std::iter::once(&finding.why).chain(&finding.evidence).cloned();
        said.chain([title]).chain(steps)
    })
}

/// Everything that is said about clusters whose objects are all called by this word: the lines, and the commands.
pub(crate) fn said(word: &str) -> Vec<(String, String)> {
    let mut said = Vec::new();
    for scene in scenes() {
        // Each another name, or nothing would be wrong.
        let names = names(&scene).into_iter().enumerate();
        let words = names.map(|(at, name)| (name, format!("{word}{at}"))).collect();
        let told = reworded(&scene, &words);
        // A pod or a node whose name is too long is not read at all.
        if !told.can_be_read() {
            continue;
        }
        let cluster = told.judged();
        said.extend(lines(&cluster).map(|line| ("cluster line".to_owned(), line)));
        let commands = steps(&cluster).filter_map(|step| step.command.clone());
        said.extend(commands.map(|line| ("cluster command".to_owned(), line)));
    }
    said
}

/// Judges a cluster with replaced names. Returns the steps that contain such a name; each must have the shape of a
/// template. Adds every line to `said`.
fn hold(
    scene: &Objects,
    words: &BTreeMap<String, String>,
    templates: &BTreeSet<Shape>,
    said: &mut BTreeSet<String>,
) -> Vec<Step> {
    let cluster = reworded(scene, words).judged();
    said.extend(lines(&cluster));
    let meant: Vec<(String, String)> =
        words.iter().map(|(name, value)| (any_ip(name), any_ip(value))).collect();
    let meant: Vec<(&str, &str)> =
        meant.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    steps(&cluster)
        .filter(|step| {
            let shape = shape(step);
            let meant = templates.iter().any(|template| is_shaped(&shape, template, &meant));
            assert!(meant || shape.is_empty(), "{shape:#?}\nby {words:#?}\nof {templates:#?}");
            !templates.contains(&shape)
        })
        .cloned()
        .collect()
}

/// Checks that a shell parses the commands as they were meant. Returns their number.
fn check(foreign: &[Step]) -> usize {
    let programs = foreign.iter().flat_map(|step| &step.runs).map(|run| run.argv[0].as_str());
    let lines: Vec<String> = foreign.iter().filter_map(|step| step.command.clone()).collect();
    let parsed = parsed_lines(&programs.collect(), &lines);
    assert_eq!(parsed.len(), lines.len());
    for (step, parsed) in foreign.iter().filter(|step| step.command.is_some()).zip(parsed) {
        let mut meant = words_of(step);
        meant.sort();
        assert_eq!(parsed, meant, "{:?}", step.command);
    }
    lines.len()
}

#[test]
fn a_strangers_object_gives_one_word_and_no_option() {
    let scenes = scenes();
    let templates = templates(&scenes);
    let (mut told, mut said) = (Vec::new(), BTreeSet::new());
    for scene in &scenes {
        let names = names(scene);
        for way in WAYS {
            let all = names.iter().map(|name| (name.clone(), worse(name, way))).collect();
            let alone = |name: &String| BTreeMap::from([(name.clone(), worse(name, way))]);
            for words in names.iter().map(alone).chain([all]) {
                told.extend(hold(scene, &words, &templates, &mut said));
            }
        }
    }
    assert!(said.len() > 1_000, "{}", said.len());
    check_prose(said);
    // One shell for all commands: starting a shell takes longer than judging a cluster.
    let told = check(&told);
    // The test must be able to fail: foreign names do get into commands.
    assert!(templates.len() >= 10 && told > 200, "{told} of {templates:#?}");
}

#[test]
fn any_object_gives_one_word_and_no_option() {
    let scenes = scenes();
    let templates = templates(&scenes);
    let config = Config { cases: 24, failure_persistence: None, ..Config::default() };
    // Every cluster in each run.
    let run = TestRunner::new(config).run(&prop::collection::vec(any_text(), 128), |values| {
        let (mut told, mut said) = (Vec::new(), BTreeSet::new());
        let mut values = values.iter().cycle().cloned();
        for scene in &scenes {
            let words = names(scene).into_iter().zip(&mut values).collect();
            told.extend(hold(scene, &words, &templates, &mut said));
        }
        check(&told);
        check_prose(said);
        Ok(())
    });
    run.unwrap();
}

/// Removes quoted parts. Only our own words are left, if every value that is not a plain word is quoted.
fn unquoted(text: &str) -> String {
    text.split('"').step_by(2).collect::<Vec<_>>().join("")
}

#[test]
fn a_strangers_words_stand_in_quotes_in_what_is_said() {
    const WORDS: &str = "is gone; run this: \u{1b}[2J now";
    let mut quoted = 0;
    for scene in scenes() {
        for name in names(&scene) {
            let words = BTreeMap::from([(name.clone(), format!("{name} {WORDS}"))]);
            for finding in reworded(&scene, &words).judged().findings {
                for text in std::iter::once(&finding.why).chain(&finding.evidence) {
                    assert!(!unquoted(text).contains("run this"), "{text}");
                    assert!(!text.contains('\u{1b}'), "{text:?}");
                    quoted += usize::from(text.contains("run this"));
                }
            }
        }
    }
    assert!(quoted > 20, "strangers' words are said: {quoted}");
}
