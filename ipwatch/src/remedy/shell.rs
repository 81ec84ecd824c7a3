//! For tests: what a real `sh` makes of commands. Nothing of them is run: each program is a function that says its
//! words.

use std::collections::BTreeSet;
use std::process::Command as Process;

use super::command::{Command, Run};

/// Says its name and its words on fd 3, each ended by a zero byte, in one write.
const SAYS: &str = "{ command printf '%s\\0' run NAME \"$@\" >&3; }";

/// What a shell runs for each of these commands, in the order in which it comes to it: the parts of a pipe run at
/// once, so they are sorted.
pub(crate) fn parsed(commands: &[&Command]) -> Vec<Vec<Vec<String>>> {
    let runs = commands.iter().flat_map(|command| command.runs());
    // A redirection is a word here: nothing is written.
    let lines: Vec<String> = commands.iter().map(|command| command.written(" to: ")).collect();
    parsed_lines(&runs.map(|run| &*run.argv[0]).collect(), &lines)
}

/// The same of command lines that run these programs alone.
pub(crate) fn parsed_lines(programs: &BTreeSet<&str>, lines: &[String]) -> Vec<Vec<Vec<String>>> {
    let mut script = String::from("PATH=/nonexistent\n");
    for program in programs {
        assert!(program.bytes().all(|byte| byte.is_ascii_lowercase()), "{program}");
        script.push_str(&format!("{program}() {}\n", SAYS.replace("NAME", program)));
    }
    for line in lines {
        script.push_str(line);
        script.push_str("\ncommand printf 'end\\0' >&3\n");
    }
    let file = tempfile(&script);
    let said = tempfile("");
    let shell = format!("exec 3>>'{said}'; . '{file}'");
    let status = Process::new("sh").args(["-c", &shell]).status().unwrap();
    let out = crate::bounded::read_text(said.as_ref(), 64 << 20).unwrap();
    let _ = (std::fs::remove_file(&said), std::fs::remove_file(&file));
    assert!(status.success(), "{status}");
    let mut all = vec![Vec::new()];
    for word in out.split_terminator('\0') {
        let last: &mut Vec<Vec<String>> = all.last_mut().unwrap();
        match word {
            "end" => all.push(Vec::new()),
            "run" => last.push(Vec::new()),
            word => last.last_mut().unwrap().push(word.to_owned()),
        }
    }
    all.pop();
    all.iter_mut().for_each(|runs| runs.sort());
    all
}

/// What it is meant to run, in the same form.
pub(crate) fn meant(command: &Command) -> Vec<Vec<String>> {
    let words = |run: &Run| {
        let to = run.to.iter().flat_map(|to| ["to:".to_owned(), to.clone()]);
        run.argv.iter().cloned().chain(to).collect()
    };
    let mut runs: Vec<Vec<String>> = command.runs().iter().map(words).collect();
    runs.sort();
    runs
}

/// A shell runs what is meant, word for word.
#[track_caller]
pub(crate) fn check(commands: &[&Command]) {
    let parsed = parsed(commands);
    assert_eq!(parsed.len(), commands.len());
    for (command, parsed) in commands.iter().zip(parsed) {
        assert_eq!(parsed, meant(command), "{}", command.sh());
    }
}

fn tempfile(text: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("ipwatch-sh-{}-{n}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}
