use std::collections::HashMap;

use super::*;
use crate::sinks::otlp::route::Endpoint;

fn resolve(file: &str, variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
    let otlp: Otlp = toml::from_str(file).map_err(|error| error.to_string())?;
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    let environment = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    otlp.settings(&environment).map_err(|error| error.to_string())
}

fn one(file: &str, variables: &[(&str, &str)]) -> Route {
    resolve(file, variables).unwrap().unwrap().routes.remove(0)
}

const URL: &str = "http://127.0.0.1:4317";

#[test]
fn nothing_is_exported_unless_somebody_says_where() {
    assert!(resolve("", &[]).unwrap().is_none());
    assert!(resolve("", &[("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", URL)]).unwrap().is_none());
    assert!(resolve("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", URL)]).unwrap().is_some());
}

#[test]
fn the_file_wins_then_the_signals_variable_then_the_one_of_all() {
    let all = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:1"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:2/here"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "700"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "800"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20all,x-a = 1"),
    ];
    let route = one("", &all);
    assert_eq!(route.target.endpoint, Endpoint::Tcp("traces".into(), 2));
    assert_eq!(route.target.path, "/here", "a signal's own URL is whole");
    assert_eq!((route.protocol, route.timeout), (Protocol::Http, Duration::from_millis(800)));
    assert_eq!(route.headers["authorization"], "Bearer all");
    assert_eq!(route.headers["x-a"], "1");

    let route = one("", &[all[0], all[2], all[3]]);
    assert_eq!((&*route.target.path, route.timeout), ("/v1/traces", Duration::from_millis(700)));

    let file = r#"
        endpoint = "https://file:3/base/"
        protocol = "grpc"
        timeout = "3s"
        headers = { authorization = "Bearer file" }
    "#;
    let route = one(file, &all);
    assert_eq!(route.target.endpoint, Endpoint::Tcp("file".into(), 3));
    assert!(route.target.secure && route.tls.is_some());
    assert_eq!(route.target.path, "/base/v1/traces");
    assert_eq!((route.protocol, route.timeout), (Protocol::Grpc, Duration::from_secs(3)));
    assert_eq!(route.headers["authorization"], "Bearer file");
    assert!(!route.headers.contains_key("x-a"), "headers are one setting");
}

#[test]
fn each_signal_has_its_own_path() {
    let file = r#"
        endpoint = "http://[::1]:4318"
        protocol = "http/protobuf"
        signals = ["metrics", "traces", "logs"]
    "#;
    let settings = resolve(file, &[]).unwrap().unwrap();
    let paths: Vec<&str> = settings.routes.iter().map(|route| &*route.target.path).collect();
    assert_eq!(paths, ["/v1/traces", "/v1/logs", "/v1/metrics"]);
    assert_eq!(settings.routes[0].target.endpoint, Endpoint::Tcp("::1".into(), 4318));
    assert!(resolve("signals = [\"profiles\"]", &[]).unwrap_err().contains("profiles"));
}

#[test]
fn the_sdk_disabled_is_the_end_of_it() {
    let file = format!("endpoint = {URL:?}");
    assert!(resolve(&file, &[("OTEL_SDK_DISABLED", "TRUE")]).unwrap().is_none());
    assert!(resolve(&file, &[("OTEL_SDK_DISABLED", "no")]).unwrap().is_some());
}

#[test]
fn a_resource_is_named_and_the_services_own_variable_wins() {
    let variables = [
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,k8s.cluster.name=east%2C1"),
        ("OTEL_SERVICE_NAME", "b"),
    ];
    let settings = resolve(&format!("endpoint = {URL:?}"), &variables).unwrap().unwrap();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(settings.resource, [pair("k8s.cluster.name", "east,1"), pair("service.name", "b")]);
}

#[test]
fn what_cannot_work_is_said_in_one_line_and_shows_no_secret() {
    let at = |name, value| resolve("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", URL), (name, value)]);
    for (name, value, says) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "5s", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector", "no scheme"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://u:hunter2@c", "has a user"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "u:hunter2@c", "no scheme"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://u:hun/hunter2@c", "has a user"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/x?key=hunter2", "has a query"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:99999", "port"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2", "key=value"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=%zzhunter2", "key=value"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=hunter2%00", "\"a\""),
    ] {
        let error = at(name, value).unwrap_err();
        assert!(error.contains(says) && !error.contains('\n'), "{name}={value}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn files_that_hold_no_certificate_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    let file = format!("endpoint = \"https://collector\"\nca_file = {path:?}");
    let says = |what: &str| {
        let error = resolve(&file, &[]).unwrap_err();
        assert!(error.contains("ca.pem") && error.contains(what), "{error}");
    };
    says("No such file");
    std::fs::write(&path, "nothing").unwrap();
    says("no certificate in PEM");
}

#[test]
fn a_header_is_never_shown() {
    let otlp: Otlp = toml::from_str("headers = { authorization = \"hunter2\" }").unwrap();
    assert!(!format!("{otlp:?}").contains("hunter2"));
    assert!(!serde_json::to_string(&otlp.headers).unwrap().contains("hunter2"));
    let file = format!("endpoint = {URL:?}\nheaders = {{ authorization = \"hunter2\" }}");
    let settings = resolve(&file, &[]).unwrap().unwrap();
    let shown = format!("{settings:?}");
    assert!(shown.contains("authorization") && !shown.contains("hunter2"), "{shown}");
}
