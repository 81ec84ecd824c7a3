use super::*;

#[test]
fn the_driver_is_the_last_part_of_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("pci/devices/0000:00:05.0");
    std::fs::create_dir_all(&device).unwrap();
    std::os::unix::fs::symlink("../../../bus/pci/drivers/ena", device.join("driver")).unwrap();
    let parent = |bus: &str, address: &str| Parent {
        bus: bus.to_owned(),
        address: address.to_owned(),
        driver: None,
    };
    let named = |bus, address| of(dir.path(), &parent(bus, address));
    assert_eq!(named("pci", "0000:00:05.0").as_deref(), Some("ena"));
    assert_eq!(named("pci", "0000:00:06.0"), None, "none bound, or no such device");
    assert_eq!(named("pci", "../devices/0000:00:05.0"), None);
    assert_eq!(named("", "0000:00:05.0"), None);
    assert_eq!(named("pci/../pci", "0000:00:05.0"), None);
}
