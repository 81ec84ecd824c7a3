use std::collections::BTreeSet;
use std::path::Path;

use super::super::{Origin, text};
use super::*;

/// The names that serde takes in a table, from what it says of one that it does not take.
fn taken(table: &str) -> BTreeSet<String> {
    let wrong = if table.is_empty() {
        "no_such_key_at_all = 1".to_owned()
    } else {
        format!("[{table}]\nno_such_key_at_all = 1")
    };
    let said = toml::from_str::<Config>(&wrong).unwrap_err().message().to_owned();
    let (_, expected) = said.split_once("expected").unwrap_or_else(|| panic!("{table}: {said}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A key that is forgotten in the table is in no documentation and in no `config show`.
#[test]
fn every_key_that_is_taken_is_in_the_table() {
    let mut here = BTreeSet::new();
    for (table, _) in TABLES {
        for name in taken(table) {
            let full = if table.is_empty() { name } else { format!("{table}.{name}") };
            if !TABLES.iter().any(|(known, _)| *known == full) {
                here.insert(full);
            }
        }
    }
    let listed: BTreeSet<String> = KEYS.iter().map(|key| key.name.to_owned()).collect();
    assert_eq!(listed, here, "KEYS and TABLES (left) beside what Config takes (right)");
    let known = |key: &&Key| !TABLES.iter().any(|(table, _)| *table == key.parts().0);
    assert!(!KEYS.iter().any(|key| known(&key)), "a key of no table");
}

#[test]
fn the_default_file_says_the_defaults() {
    let file = text::defaults();
    let parse = |text: &str| Config::parse(text, Path::new("default.toml"));
    assert_eq!(parse(&file).unwrap(), Config::default());
    // And so it does with every key written out that has a default.
    let unset = |line: &str| {
        KEYS.iter().any(|key| {
            !key.example.is_empty() && line == format!("#{} = {}", key.parts().1, key.example)
        })
    };
    let mut written = 0;
    let lines = file.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') && !key.is_empty() && !unset(line) => {
            written += 1;
            key
        }
        _ => line,
    });
    let whole: String = lines.flat_map(|line| [line, "\n"]).collect();
    assert_eq!(parse(&whole).unwrap(), Config::default(), "{whole}");
    let with_default = KEYS.iter().filter(|key| key.example.is_empty()).count();
    assert_eq!(written, with_default, "{file}");
    assert!(
        file.lines().all(|line| line.starts_with('#') || line.starts_with('[') || line.is_empty())
    );
}

#[test]
fn an_example_is_one_that_is_taken() {
    for key in KEYS.iter().filter(|key| !key.example.is_empty()) {
        let (table, name) = key.parts();
        let table = if table.is_empty() { String::new() } else { format!("[{table}]\n") };
        // The two go together.
        let beside = match key.name {
            "otlp.client_cert_file" => "client_key_file = \"/key.pem\"",
            "otlp.client_key_file" => "client_cert_file = \"/cert.pem\"",
            "calico.etcd_cert_file" => "etcd_key_file = \"/key.pem\"",
            "calico.etcd_key_file" => "etcd_cert_file = \"/cert.pem\"",
            _ => "",
        };
        let text = format!("{table}{name} = {}\n{beside}", key.example);
        let config = Config::parse(&text, Path::new("example.toml")).unwrap();
        let differs = differences(&config, &Config::default());
        assert!(differs.iter().any(|other| other.name == key.name), "{text}");
    }
}

#[test]
fn what_is_in_force_reads_back_to_the_same() {
    let odd = r#"
        socket = "/a \"quoted\"/s"
        observe_only = true
        node = "n"
        [stuck]
        grace = "1m 30s"
        [probes]
        forbid = ["fentry"]
        [addresses]
        shared = ["10.0.0.1", "2001:db8::/64"]
        [neighbours]
        watch = "off"
        [runtime]
        sockets = ["/a.sock", { path = "/b.sock", kind = "docker" }]
        [retention]
        max_mib = 7
    "#;
    let config = Config::parse(odd, Path::new("odd.toml")).unwrap();
    let shown = text::effective(&config, &|_| Origin::Default);
    assert_eq!(Config::parse(&shown, Path::new("shown.toml")).unwrap(), config, "{shown}");
    let names: Vec<_> =
        differences(&config, &Config::default()).iter().map(|key| key.name).collect();
    assert_eq!(
        names,
        [
            "socket",
            "observe_only",
            "node",
            "stuck.grace",
            "probes.forbid",
            "addresses.shared",
            "neighbours.watch",
            "runtime.sockets",
            "retention.max_mib"
        ]
    );
}

#[test]
fn a_password_is_not_shown() {
    let text = "[otlp]\nendpoint = \"http://me:hunter2@127.0.0.1:4317/x\"";
    let said = Config::parse(text, Path::new("x")).unwrap_err().to_string();
    assert!(said.contains("otlp") || said.contains("OTLP"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    // What the environment names is not judged here.
    let mut config = Config::default();
    config.otlp.endpoint = Some("http://me:hunter2@127.0.0.1:4317/x".to_owned());
    config.otlp.headers.0.insert("authorization".to_owned(), "hunter2".to_owned());
    let shown = super::super::text::effective(&config, &|_| Origin::Default);
    assert!(shown.contains("http://(hidden)@127.0.0.1:4317/x"), "{shown}");
    assert!(shown.contains("authorization") && !shown.contains("hunter2"), "{shown}");
    assert_eq!(without_user_info("unix:///run/a@b"), "unix:///run/a@b");
    assert_eq!(without_user_info("http://127.0.0.1:4317"), "http://127.0.0.1:4317");
}

/// Everything after this line of the page is made.
const MADE: &str = "<!-- From here on made from the table of keys: IPWATCH_BLESS=1 cargo test -p ipwatch --lib reference -->\n";

#[test]
fn the_reference_page_says_the_same() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/config.md");
    let page = crate::bounded::read_text(Path::new(path), 1 << 20).unwrap();
    let (head, there) = page.split_once(MADE).unwrap();
    let wanted = text::reference();
    if std::env::var_os("IPWATCH_BLESS").is_some() {
        std::fs::write(path, format!("{head}{MADE}{wanted}")).unwrap();
        return;
    }
    assert!(there == wanted, "docs/config.md is behind the table of keys: see the comment in it");
}
