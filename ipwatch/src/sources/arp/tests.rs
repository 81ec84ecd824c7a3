mod live;

use super::*;

#[test]
fn the_source_says_how_much_it_hears() {
    let status = |watch, rung, listens| standing(watch, rung, listens).0;
    use SourceStatus::{Active, Degraded, Disabled, Down};
    assert_eq!(status(Watch::Auto, Some(Rung::Fentry), false), Active);
    assert_eq!(status(Watch::Auto, Some(Rung::Socket), true), Degraded);
    assert_eq!(status(Watch::Always, Some(Rung::Kprobe), true), Active);
    assert_eq!(status(Watch::Always, Some(Rung::Kprobe), false), Degraded);
    assert_eq!(status(Watch::Off, Some(Rung::Kprobe), false), Active, "the probe is not the watch");
    assert_eq!(status(Watch::Off, None, false), Disabled);
    assert_eq!(status(Watch::Auto, None, false), Down);
}
