//! Directories of a test's own stand for those of the node.

use std::fs;

use super::*;

fn named(conf: &[&Path], bin: &[&Path], parked: &Path) -> CniPlaces {
    let all = |dirs: &[&Path]| dirs.iter().map(|dir| dir.to_path_buf()).collect();
    CniPlaces {
        conf_dir: all(conf),
        bin_dir: all(bin),
        parked_dir: Some(parked.to_owned()),
        cache_dir: Some(parked.join("results")),
    }
}

fn places(root: &Path, named: CniPlaces) -> Places {
    Places::below(root, root.join("none.sock"), named)
}

/// A network of its own does not say where the node's runtimes look for the program.
#[test]
fn the_program_goes_also_where_the_runtimes_look_after_directories_were_named() {
    let root = tempfile::tempdir().unwrap();
    let parked = root.path().join("parked");
    fs::create_dir_all(root.path().join("etc/containerd")).unwrap();
    fs::write(root.path().join("etc/containerd/config.toml"), "bin_dir = \"/opt/cni/bin\"\n")
        .unwrap();
    let runtimes = vec![PathBuf::from("/opt/cni/bin")];
    let trial = Path::new("/t/bin");
    let looked = |bin: &[&Path]| places(root.path(), named(&[], bin, &parked)).looked;
    assert_eq!(looked(&[]), std::slice::from_ref(&runtimes));
    assert_eq!(looked(&[trial]), [vec![trial.to_owned()]]);
    Named::add(&parked, &[], &[trial.to_owned()]).unwrap();
    assert_eq!(looked(&[]), [runtimes, vec![trial.to_owned()]]);
    assert_eq!(looked(&[Path::new("/b")]), [vec![PathBuf::from("/b")]]);
}

/// The package's script runs `uninstall` in `/`.
#[test]
fn a_relative_directory_is_remembered_as_an_absolute_one() {
    let root = tempfile::tempdir().unwrap();
    let here = std::env::current_dir().unwrap();
    let dirs = [Path::new("net.d/"), Path::new("./bin")];
    let places = places(root.path(), named(&dirs[..1], &dirs[1..], Path::new("parked")));
    assert_eq!(places.named.conf, [here.join("net.d")]);
    assert_eq!(places.named.bin, [here.join("bin")]);
    assert_eq!((places.parked, places.cache), (here.join("parked"), here.join("parked/results")));
}

/// Two directories of configurations, of which the second is known since an installation named it.
#[test]
fn what_was_not_named_goes_on_parking_and_keeps_the_program() {
    let root = tempfile::tempdir().unwrap();
    let [conf, trial, bin, parked] =
        ["net.d", "trial.d", "bin", "parked"].map(|name| root.path().join(name));
    for (dir, name) in [(&conf, "net"), (&trial, "trial")] {
        fs::create_dir(dir).unwrap();
        let list = serde_json::json!({ "name": name, "plugins": [{ "type": "bridge", "ipam": {
            "type": "ipwatch-ipam", "stateDir": parked, "delegate": { "type": "host-local" },
        } }] });
        fs::write(dir.join("10-net.conflist"), list.to_string()).unwrap();
    }
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("ipwatch-ipam"), "").unwrap();
    Named::add(&parked, &[conf.clone(), trial.clone()], &[]).unwrap();
    let mut text = String::new();
    let uninstall = |dir: &Path, text: &mut String| {
        take(&places(root.path(), named(&[dir], &[&bin], &parked)), false, text).unwrap();
    };
    uninstall(&trial, &mut text);
    let wrapped = |dir: &Path| install::networks(&[dir.to_owned()]).iter().any(Network::is_wrapped);
    assert!(!wrapped(&trial) && wrapped(&conf), "{text}");
    assert!(!install::is_unwrapped(&parked, "net"), "it goes on parking: {text}");
    assert!(
        install::is_unwrapped(&parked, "trial"),
        "an ADD that has read it before parks nothing"
    );
    assert!(
        bin.join("ipwatch-ipam").exists() && text.contains("10-net.conflist names it"),
        "{text}"
    );
    // The last one.
    uninstall(&conf, &mut text);
    assert!(install::is_unwrapped(&parked, "net"), "{text}");
}

#[test]
fn nothing_is_parked_after_uninstall_whatever_the_state_directory_is() {
    let root = tempfile::tempdir().unwrap();
    let [conf, parked, other] = ["net.d", "parked", "other"].map(|name| root.path().join(name));
    fs::create_dir(&conf).unwrap();
    let list = serde_json::json!({ "name": "net", "plugins": [{ "type": "bridge", "ipam": {
        "type": "ipwatch-ipam", "stateDir": other, "delegate": { "type": "host-local" },
    } }] });
    let file = conf.join("10-net.conflist");
    fs::write(&file, serde_json::to_string_pretty(&list).unwrap()).unwrap();
    let places = places(root.path(), named(&[&conf], &[&root.path().join("bin")], &parked));
    let mut text = String::new();
    status(&places, &mut text);
    assert!(!text.contains("parks nothing"), "{text}");
    take(&places, false, &mut text).unwrap();
    let is_unwrapped = |dir: &Path| install::is_unwrapped(dir, "net");
    assert!(is_unwrapped(&parked) && is_unwrapped(&other), "{text}");
    // A person puts the wrapped file back.
    fs::write(&file, serde_json::to_string_pretty(&list).unwrap()).unwrap();
    text.clear();
    status(&places, &mut text);
    assert!(text.contains("WARNING: network net parks nothing"), "{text}");
    unmark_all(&install::networks(&places.conf));
    assert!(is_unwrapped(&parked) && !is_unwrapped(&other));
}
