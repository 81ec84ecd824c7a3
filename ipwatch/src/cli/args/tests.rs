use clap::CommandFactory;

use super::*;
use crate::config::DEFAULT_SOCKET;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn global_options_stand_anywhere() {
    let cli = parse("ipwatch query ip 10.0.3.17 -o json -w --socket /tmp/s").unwrap();
    assert_eq!(cli.global.format(), Format::Json);
    assert_eq!(cli.global.socket(), PathBuf::from("/tmp/s"));
    let Command::Query(Query { watch: true, what: Observation::Ip { within, .. } }) = cli.command
    else {
        panic!("not a watched query")
    };
    assert_eq!(within.prefix, Some("10.0.3.17".parse().unwrap()));
    assert_eq!(parse("ipwatch watch").unwrap().global.socket(), PathBuf::from(DEFAULT_SOCKET));
}

#[test]
fn a_tree_is_drawn_of_addresses_only() {
    let checked = |line: &str| parse(line).unwrap().checked();
    for line in ["query ip", "query netns x", "query pod", "query pid 1"] {
        assert!(checked(&format!("ipwatch {line} -o tree")).is_ok(), "{line}");
    }
    for line in ["scan", "query findings", "query neigh", "watch", "doctor", "explain x"] {
        let error = checked(&format!("ipwatch -o tree {line}")).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("`query netns`"), "{line}: {error}");
    }
    assert!(checked("ipwatch scan -o wide").is_ok());
}

#[test]
fn an_error_may_be_pasted_without_quotes() {
    let cli = parse("ipwatch explain no IP addresses --evidence").unwrap();
    let Command::Explain(explain) = cli.command else { panic!("not explain") };
    assert_eq!(explain.what, ["no", "IP", "addresses"]);
    assert!(explain.evidence);
    assert!(parse("ipwatch explain").is_err());
}

#[test]
fn bad_values_come_with_an_example() {
    for (line, example) in [
        ("ipwatch query ip 10.0.3", "10.0.3.17"),
        ("ipwatch query neigh 10.0.3.0/33", "10.0.0.0/24"),
        ("ipwatch scan --grace soon", "30s"),
        ("ipwatch scan --grace 5ms", "100ms"),
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(example), "{error}");
    }
}

#[test]
fn every_command_shows_examples_that_it_takes() {
    fn check(command: &clap::Command) -> usize {
        let subcommands = command.get_subcommands();
        let shown: usize = subcommands.filter(|one| !one.is_hide_set()).map(check).sum();
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.lines().filter_map(|line| line.strip_prefix("  ipwatch "));
        for line in lines.clone() {
            // What a shell would take, and what the example says of it.
            let words = line.split("  ").next().unwrap().split(" > ").next().unwrap();
            let words = words.split(" | ").next().unwrap().split(" && ").next().unwrap();
            let words = words.replace('\'', "");
            let words = format!("ipwatch {words}");
            // A note of several words.
            let words = words.split(" --note").next().unwrap();
            assert!(parse(words).is_ok(), "{line}");
        }
        shown + lines.count()
    }
    let mut command = Cli::command();
    command.build();
    assert!(check(&command) > 30);
}

#[test]
fn a_file_is_for_a_report_alone() {
    let output = |line: &str| parse(line).unwrap().global.output;
    let file = Output::File("incident.html".into());
    assert_eq!(output("ipwatch report k3f9 -o incident.html"), file);
    assert_eq!(output("ipwatch report k3f9 --html --output incident.html --redact"), file);
    assert_eq!(output("ipwatch report k3f9 -o json"), Output::Format(Format::Json));
    assert_eq!(output("ipwatch report k3f9"), Output::Format(Format::Table));
    for line in
        ["query ip -o incident.html", "-o incident.html report k3f9", "report k3f9 --md --html"]
    {
        let error = parse(&format!("ipwatch {line}")).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
    }
    let error = parse("ipwatch scan -o jsn").unwrap_err().to_string();
    assert!(error.contains("possible values: table, wide") && error.contains("json"), "{error}");
}
