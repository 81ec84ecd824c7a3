//! Which lanes a timeline tells where there are too many.

use super::{build, case, html, markdown};
use crate::contract::report::LaneKind;

#[test]
fn what_the_report_is_about_is_told_however_many_came_after_it() {
    let mut case = case();
    for nth in 0..30 {
        let mut short = case.history[1].clone();
        short.pod.as_mut().unwrap().name = Some(format!("late-{nth:02}"));
        short.netns.inode = Some(4_026_540_000 + nth);
        short.from = format!("2026-01-02T02:{nth:02}:00.000Z");
        short.to = Some(format!("2026-01-02T02:{nth:02}:20.000Z"));
        case.history.push(short);
    }
    let report = build::report(&case);
    let lanes = &report.timeline.lanes;
    let pods: Vec<&str> = lanes
        .iter()
        .filter(|lane| lane.kind == LaneKind::Pod)
        .map(|lane| lane.name.as_str())
        .collect();
    assert!(pods.contains(&"shop/api-0"), "the pod that is stuck: {pods:?}");
    assert!(pods.contains(&"shop/late-00") && !pods.contains(&"shop/late-29"), "{pods:?}");
    assert_eq!(pods.len(), 10, "{pods:?}");
    assert_eq!(report.timeline.omitted, 0, "no item of a lane that is told");
    let all = super::build::report(&super::case()).timeline.lanes.len() + 30;
    assert_eq!(report.timeline.lanes_omitted, all - lanes.len());
    let said = format!("{} unrelated lanes left out.", all - lanes.len());
    assert!(markdown::document(&report).contains(&said), "{said}");
    assert!(html::page(&report).contains(&said), "{said}");
}

#[test]
fn its_holders_are_told_though_others_lasted_longer() {
    let mut case = case();
    let mut other = case.around[2].clone();
    other.id = "z".repeat(16);
    other.caused_by = Some(case.findings[0].id.clone());
    let holder = case.findings[0].holders[0].clone();
    other.holders = (0..20)
        .map(|nth| {
            let mut holder = holder.clone();
            holder.pid = Some(5_000 + nth);
            holder.tid = holder.pid;
            holder.since = Some("2025-12-01T00:00:00.000Z".to_owned());
            holder
        })
        .collect();
    case.around.push(other);
    let report = build::report(&case);
    let holders: Vec<&str> = report
        .timeline
        .lanes
        .iter()
        .filter(|lane| lane.kind == LaneKind::Holder)
        .map(|lane| lane.name.as_str())
        .collect();
    assert!(holders.contains(&"pid 812 java"), "{holders:?}");
    assert!(report.timeline.lanes_omitted > 0);
}
