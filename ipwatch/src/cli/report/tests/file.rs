//! Where a report is written.
#![allow(clippy::disallowed_methods, reason = "files that the test made")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::super::write;

#[test]
fn a_file_is_replaced_as_a_whole_and_is_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("incident.html");
    fs::write(&path, "earlier").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    // Somebody who has it open does not write into the new one.
    let earlier = fs::metadata(&path).unwrap().ino();
    write(&path, "a report").unwrap();
    let now = fs::metadata(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "a report");
    assert_eq!(now.permissions().mode() & 0o777, 0o600);
    assert_ne!(now.ino(), earlier, "another file");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn what_is_no_file_stays_and_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let aim = dir.path().join("aim");
    fs::write(&aim, "somebody's").unwrap();
    let link = dir.path().join("link.html");
    symlink(&aim, &link).unwrap();
    let pipe = dir.path().join("pipe.html");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for path in [&link, &pipe, &dir.path().to_owned()] {
        assert!(write(path, "a report").is_err(), "{}", path.display());
    }
    assert_eq!(fs::read_to_string(&aim).unwrap(), "somebody's");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is left beside them");
}

#[test]
fn an_earlier_report_stays_where_a_new_one_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("incident.md");
    fs::write(&path, "earlier").unwrap();
    // All names for a new file are taken, as by somebody who knows the pid.
    for nth in 0..=64 {
        let name = format!(".ipwatch-report-{}-{nth}", std::process::id());
        fs::write(dir.path().join(name), "").unwrap();
    }
    assert!(write(&path, "a report").is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
}
