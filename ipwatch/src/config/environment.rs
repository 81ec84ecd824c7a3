//! Keys of `ipwatch.toml` that the environment sets. Every key of the table has one variable, named by one rule:
//! `IPWATCH_` and the key in capitals, with `__` for the dot. `IPWATCH_STUCK__GRACE` is `stuck.grace`. Pure.

use std::ffi::{OsStr, OsString};
use std::fmt;

use toml::{Table, Value};

use super::Config;
use super::keys::{KEYS, Key};
use crate::escape::escape;
use crate::nearest::nearest;

/// How the name of every variable begins.
const PREFIX: &str = "IPWATCH_";

/// Variables that are no key. The last is of the tests.
const OTHERS: &[&str] =
    &["IPWATCH_HOST_ROOT", "IPWATCH_LOG", "IPWATCH_COMPLETE", "IPWATCH_BLESS", "IPWATCH_BIN"];
/// Further variables of the tests.
const OF_TESTS: &str = "IPWATCH_TEST_";

/// A variable that sets a key. Its value may be a secret.
#[derive(Clone)]
pub struct Variable {
    /// The key.
    pub key: &'static Key,
    /// Its value, with the type of the key.
    value: Value,
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable").field("key", &self.key.name).finish_non_exhaustive()
    }
}

/// Why the value of a variable cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The variable's name.
    pub variable: String,
    /// The key that it sets.
    pub key: &'static str,
    /// What is wrong. Contains nothing of a secret.
    pub message: String,
}

impl Variable {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        name(self.key)
    }

    /// Sets its key in a configuration.
    pub(super) fn set(&self, whole: &mut Table) {
        let (table, name) = self.key.parts();
        if table.is_empty() {
            whole.insert(name.to_owned(), self.value.clone());
            return;
        }
        let place = whole.entry(table).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(place) = place {
            place.insert(name.to_owned(), self.value.clone());
        }
    }

    /// The configuration in which only this key is set; the error says what is wrong with it.
    pub(super) fn alone(&self) -> Result<Config, String> {
        let mut table = Table::new();
        self.set(&mut table);
        table.try_into().map_err(|error: toml::de::Error| error.message().replace('\n', " "))
    }

    /// `message` is about this variable.
    pub(super) fn wrong(&self, message: String) -> Wrong {
        wrong(self.key, message)
    }
}

/// The variable of a key.
#[must_use]
pub fn name(key: &Key) -> String {
    format!("{PREFIX}{}", key.name.replace('.', "__").to_uppercase())
}

/// The variables that set a key, in the order of the table. A variable without a value is not set.
///
/// # Errors
/// The first value that the key does not take.
pub(super) fn read(environment: &[(OsString, OsString)]) -> Result<Vec<Variable>, Wrong> {
    let mut found = Vec::new();
    for key in KEYS {
        let name = name(key);
        let written = environment.iter().find(|(other, _)| other == OsStr::new(&name));
        let Some((_, text)) = written.filter(|(_, text)| !text.is_empty()) else { continue };
        let text = text.to_str().ok_or_else(|| wrong(key, "it is not UTF-8".to_owned()))?;
        let value = value(key, text.trim()).map_err(|message| wrong(key, message))?;
        let variable = Variable { key, value };
        variable.alone().map_err(|message| wrong(key, message))?;
        found.push(variable);
    }
    Ok(found)
}

/// One line for each variable that looks like one of ours and is none.
#[must_use]
pub fn unknown(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<String> {
    let known: Vec<String> = KEYS.iter().map(name).collect();
    let names = environment.into_iter().map(|(name, _)| name.to_string_lossy().into_owned());
    let ours = names.filter(|name| name.starts_with(PREFIX) && !name.starts_with(OF_TESTS));
    let others = ours.filter(|name| !known.contains(name) && !OTHERS.contains(&name.as_str()));
    let line = |name: String| {
        let all = known.iter().map(String::as_str).chain(OTHERS.iter().copied());
        let help = match nearest(&name, all) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "docs/config.md has the rule for the names".to_owned(),
        };
        format!("the environment variable {} is unknown and ignored: {help}", escape(&name))
    };
    others.map(line).collect()
}

fn wrong(key: &'static Key, message: String) -> Wrong {
    let message = if key.is_secret() { "it is not understood".to_owned() } else { message };
    Wrong { variable: name(key), key: key.name, message }
}

/// The value in the type of the key: as in the file, but a text needs no quotes, and a list of texts neither quotes nor
/// brackets.
fn value(key: &Key, text: &str) -> Result<Value, String> {
    let (plain, form) = match example(key) {
        Some(Value::String(_)) => (!text.starts_with(['"', '\'']), "a text"),
        Some(Value::Array(_)) => (!text.starts_with('['), "a list: a,b or [\"a\", \"b\"]"),
        Some(Value::Boolean(_)) => (false, "true or false"),
        Some(Value::Integer(_)) => (false, "a whole number"),
        _ => (false, "a table: { name = \"value\" }"),
    };
    if plain {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let list = || parts.map(|part| Value::String(part.to_owned())).collect();
        let is_list = matches!(example(key), Some(Value::Array(_)));
        return Ok(if is_list { Value::Array(list()) } else { Value::String(text.to_owned()) });
    }
    let read: Result<Value, _> = text.parse();
    read.map_err(|_| format!("{:?} is not {form}", escape(text)))
}

/// A value of the key's type: the default, or that in the documentation.
fn example(key: &Key) -> Option<Value> {
    key.value(&Config::default()).or_else(|| key.example.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Origin;
    use crate::config::tests::built;
    use std::collections::BTreeSet;

    fn set(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn every_key_has_one_variable_of_its_own() {
        let names: BTreeSet<String> = KEYS.iter().map(name).collect();
        assert_eq!(names.len(), KEYS.len());
        let posix = |name: &String| {
            name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        };
        assert!(names.iter().all(posix), "{names:?}");
        assert!(OTHERS.iter().all(|other| !names.contains(*other)));
        assert!(!names.iter().any(|name| name.starts_with(OF_TESTS)));
        assert!(names.contains("IPWATCH_NODE") && names.contains("IPWATCH_STUCK__GRACE"));
    }

    /// The file in which every key has another value than its default, written as variables.
    #[test]
    fn every_key_is_taken_from_its_variable() {
        let file = include_str!("../../../tests/fixtures/every-key.toml");
        let table: Table = file.parse().unwrap();
        for quoted in [false, true] {
            let mut all = Vec::new();
            for key in KEYS {
                let (of, plain) = key.parts();
                let place = if of.is_empty() { &table } else { table[of].as_table().unwrap() };
                let text = match &place[plain] {
                    Value::String(text) if !quoted => text.clone(),
                    Value::Array(list) if !quoted && !list.is_empty() => {
                        let parts: Vec<_> = list.iter().filter_map(Value::as_str).collect();
                        parts.join(", ")
                    }
                    other => other.to_string(),
                };
                all.push((name(key).into(), text.into()));
            }
            let by_variables = built("", &all).unwrap().config;
            assert_eq!(by_variables, built(file, &[]).unwrap().config);
        }
    }

    #[test]
    fn a_variable_goes_before_the_file() {
        let file = "node = \"a\"\n[stuck]\ngrace = \"7s\"\ncore_dump_grace = \"8s\"";
        let all = set(&[("IPWATCH_STUCK__GRACE", "9s"), ("IPWATCH_SOCKET", "/s"), ("PATH", "/")]);
        let loaded = built(file, &all).unwrap();
        let shown = crate::config::text::effective(&loaded.config, &|key| loaded.origin(key));
        for line in [
            "grace = \"9s\"  # IPWATCH_STUCK__GRACE",
            "core_dump_grace = \"8s\"  # file",
            "socket = \"/s\"  # IPWATCH_SOCKET",
            "node = \"a\"  # file",
            "state_dir = \"/var/lib/ipwatch\"",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
        let grace = KEYS.iter().find(|key| key.name == "stuck.grace").unwrap();
        assert_eq!(loaded.origin(grace), Origin::Variable("IPWATCH_STUCK__GRACE".to_owned()));
    }

    #[test]
    fn an_empty_variable_is_not_set_and_an_empty_value_can_be_written() {
        let key = "IPWATCH_KUBERNETES__KUBELET_SOCKET";
        let socket = |text: &str| built("", &set(&[(key, text)])).unwrap().config.kubernetes;
        assert_eq!(socket(""), Config::default().kubernetes);
        assert_eq!(socket("\"\"").kubelet_socket.as_os_str(), "");
        let none = built("", &set(&[("IPWATCH_RUNTIME__SOCKETS", "[]")])).unwrap().config;
        assert_eq!(none.runtime.sockets, Some(Vec::new()));
    }

    #[test]
    fn what_is_wrong_names_the_variable_and_the_key() {
        let said = |name: &str, value: &str, file: &str| {
            let error = built(file, &set(&[(name, value)])).unwrap_err().to_string();
            assert!(error.contains(name) && !error.contains('\n'), "{error}");
            error
        };
        let grace = said("IPWATCH_STUCK__GRACE", "soon", "");
        assert!(grace.contains("(stuck.grace)") && grace.contains("\"soon\" is not a duration"));
        // Out of bounds, and only together with the file.
        let grace = said("IPWATCH_STUCK__GRACE", "0s", "[holders]\ngrace = \"1s\"");
        assert!(grace.contains("stuck.grace must be at least 100ms"), "{grace}");
        let flag = said("IPWATCH_OBSERVE_ONLY", "yes", "");
        assert!(flag.contains("\"yes\" is not true or false"), "{flag}");
        assert!(said("IPWATCH_RETENTION__MAX_MIB", "many", "").contains("a whole number"));
        assert!(said("IPWATCH_PROBES__FORBID", "fentri", "").contains("fentry"));
        assert!(said("IPWATCH_METRICS__POD_CIDRS", "[1, ", "").contains("a,b or"));
        // Another key cannot be set with it.
        said("IPWATCH_RETENTION__MAX_MIB", "7\nmax_age = \"1h\"", "");
    }

    #[test]
    fn a_secret_is_not_quoted() {
        for (name, value) in [
            ("IPWATCH_OTLP__ENDPOINT", "[\"http://me:hunter2@host\""),
            ("IPWATCH_OTLP__ENDPOINT", "http://me:hunter2@host:4317"),
            ("IPWATCH_OTLP__HEADERS", "authorization = hunter2"),
            ("IPWATCH_OTLP__HEADERS", "{ authorization = [\"hunter2\"] }"),
        ] {
            let error = built("", &set(&[(name, value)])).unwrap_err();
            let said = format!("{error} {error:?}");
            assert!(said.contains(name) && !said.contains("hunter2"), "{said}");
        }
        let all = set(&[("IPWATCH_OTLP__HEADERS", "{ authorization = \"hunter2\" }")]);
        let loaded = built("", &all).unwrap();
        assert_eq!(loaded.config.otlp.headers.0["authorization"], "hunter2");
        let shown = crate::config::text::effective(&loaded.config, &|key| loaded.origin(key));
        assert!(!format!("{shown}{loaded:?}").contains("hunter2"), "{shown}");
    }

    #[test]
    fn an_unknown_variable_is_said_with_the_one_that_was_meant() {
        let all = set(&[
            ("IPWATCH_STUCK_GRACE", "7s"),
            ("IPWATCH_PORT_9469_TCP_ADDR", "10.0.0.1"),
            ("IPWATCH_LGO", "debug"),
            ("IPWATCH_X\u{1b}[2J", ""),
            ("IPWATCH_LOG", "debug"),
            ("IPWATCH_HOST_ROOT", "/host"),
            ("IPWATCH_TEST_ONE", "x"),
            ("IPWATCH_NODE", "n"),
            ("HOME", "/"),
        ]);
        let said = unknown(all);
        assert_eq!(said.len(), 4, "{said:?}");
        assert!(said[0].contains("did you mean IPWATCH_STUCK__GRACE?"), "{}", said[0]);
        assert!(said[1].contains("docs/config.md"), "{}", said[1]);
        assert!(said[2].contains("did you mean IPWATCH_LOG?"), "{}", said[2]);
        assert!(!said[3].contains('\u{1b}'), "{}", said[3]);
    }
}
