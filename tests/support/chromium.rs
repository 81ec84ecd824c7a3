//! Chromium without a window, where it is installed: what a browser makes of a page. It has a profile of its own and
//! reaches nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Lab, need};

/// Debian's.
const PROGRAM: &str = "/usr/bin/chromium";
/// Pixels of its window: a page that is long is cut there.
const WINDOW: &str = "--window-size=1200,2400";

/// What is missing here to run it.
#[must_use]
pub fn missing() -> Option<String> {
    need::absent(PROGRAM)
}

/// What it has made of a page, as HTML.
#[must_use]
pub fn dom(page: &Path) -> String {
    String::from_utf8_lossy(&run(page, &["--dump-dom"])).into_owned()
}

/// A page as a PNG, in light or in dark.
#[must_use]
pub fn picture(lab: &Lab, page: &Path, dark: bool) -> Vec<u8> {
    let file = lab.dir().join(if dark { "dark.png" } else { "light.png" });
    // Blink's `PreferredColorScheme`: dark, light.
    let scheme = format!("--blink-settings=preferredColorScheme={}", i32::from(!dark));
    run(page, &[&scheme, &format!("--screenshot={}", file.display())]);
    let picture = fs::read(&file).expect("a picture");
    assert!(picture.starts_with(b"\x89PNG"), "no PNG");
    picture
}

/// A page as a PDF, as it is printed.
#[must_use]
pub fn paper(lab: &Lab, page: &Path) -> Vec<u8> {
    let file = lab.dir().join("page.pdf");
    run(page, &["--no-pdf-header-footer", &format!("--print-to-pdf={}", file.display())]);
    fs::read(&file).expect("a PDF")
}

fn run(page: &Path, args: &[&str]) -> Vec<u8> {
    let profile = page.with_extension("profile");
    let mut command = Command::new("timeout");
    // Root's own processes are not sandboxed; the page is ours.
    command.args(["120", PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu"]);
    command.args([
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ]);
    command.args(["--host-resolver-rules=MAP * ~NOTFOUND"]);
    command.arg(format!("--user-data-dir={}", profile.display())).arg(WINDOW).args(args);
    command.arg(format!("file://{}", page.display())).stdin(Stdio::null());
    let out = command.output().expect("run chromium");
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}
