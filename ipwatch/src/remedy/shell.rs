//! For tests: what a real `sh` makes of commands, without running anything: each program is a function that prints
//! its arguments. Also checks that pasting a sentence runs none of the values in it.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::process::{Command as Process, Stdio};

use super::command::{Command, Run, quoted};
use crate::testing::program;

/// Prints its name and its arguments to fd 3, each terminated by a zero byte, in one write.
const SAYS: &str = "{ command printf '%s\\0' run NAME \"$@\" >&3; }";

/// What a shell runs for each of these commands. The parts of a pipe run at the same time, so the runs are sorted.
pub(crate) fn parsed(commands: &[&Command]) -> Vec<Vec<Vec<String>>> {
    let runs = commands.iter().flat_map(|command| command.runs());
    // Redirections are written as words: nothing is written.
    let lines: Vec<String> = commands.iter().map(|command| command.written(" to: ")).collect();
    parsed_lines(&runs.map(|run| &*run.argv[0]).collect(), &lines)
}

/// Like `parsed`, for command lines that use only these programs.
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

/// What a command is meant to run, in the same form.
pub(crate) fn meant(command: &Command) -> Vec<Vec<String>> {
    let words = |run: &Run| {
        let to = run.to.iter().flat_map(|to| ["to:".to_owned(), to.clone()]);
        run.argv.iter().cloned().chain(to).collect()
    };
    let mut runs: Vec<Vec<String>> = command.runs().iter().map(words).collect();
    runs.sort();
    runs
}

/// Checks that a shell runs what is meant, word for word.
#[track_caller]
pub(crate) fn check(commands: &[&Command]) {
    let parsed = parsed(commands);
    assert_eq!(parsed.len(), commands.len());
    for (command, parsed) in commands.iter().zip(parsed) {
        assert_eq!(parsed, meant(command), "{}", command.sh());
    }
}

/// The only program that a shell finds when sentences are pasted. Hostile values try to run it in every way.
const PROGRAM: &str = "id";

/// Uid and gid of `nobody`.
const NOBODY: u32 = 65_534;

/// Pastes each of these lines into a shell of its own: none may run [`PROGRAM`] or write a file.
#[track_caller]
pub(crate) fn check_prose(lines: impl IntoIterator<Item = String>) {
    let lines: Vec<String> = lines.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    for line in &lines {
        assert!(!line.chars().any(char::is_control), "one line: {line:?}");
    }
    if traces(&lines).is_empty() {
        return;
    }
    // Only now find the lines that did it.
    let mut guilty = Vec::new();
    search(&lines, &mut guilty);
    panic!("a shell runs what strangers chose: {guilty:#?}");
}

/// Searches for lines that leave a trace, and adds them to `guilty`.
fn search<'a>(lines: &'a [String], guilty: &mut Vec<&'a String>) {
    if let [line] = lines {
        guilty.push(line);
        return;
    }
    let (one, other) = lines.split_at(lines.len() / 2);
    for half in [one, other] {
        if guilty.len() < 10 && !traces(half).is_empty() {
            search(half, guilty);
        }
    }
}

/// The files that exist after a shell has been given these lines.
fn traces(lines: &[String]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let [bin, cwd] = ["bin", "cwd"].map(|name| dir.path().join(name));
    for path in [&bin, &cwd] {
        std::fs::create_dir(path).unwrap();
    }
    for path in [dir.path(), &cwd] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let program = bin.join(PROGRAM);
    program::script(&program, "#!/bin/sh\n: > ran\n");
    // A subshell for each line: a syntax error ends it. Builtins that act on others are disabled.
    let mut script = String::from("kill() { :; }\n");
    for line in lines {
        script.push_str(&format!("(eval {}) >/dev/null 2>&1\n", quoted(line)));
    }
    script.push_str("wait\n: > end\n");
    let file = dir.path().join("script");
    std::fs::write(&file, script).unwrap();
    let mut shell = Process::new("/bin/sh");
    shell.arg(&file).current_dir(&cwd).env_clear().env("PATH", &bin);
    shell.stdin(Stdio::null()).stderr(Stdio::null());
    // Files with absolute paths must not be writable.
    if rustix::process::geteuid().is_root() {
        shell.uid(NOBODY).gid(NOBODY);
    }
    let status = shell.status().unwrap();
    assert!(status.success(), "{status}");
    let files = std::fs::read_dir(&cwd).unwrap();
    let mut names: Vec<String> =
        files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert!(names.iter().any(|name| name == "end"), "the shell has come to its end");
    names.retain(|name| name != "end");
    names
}

fn tempfile(text: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("ipwatch-sh-{}-{n}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}
