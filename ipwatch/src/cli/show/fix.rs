//! The table of `fix`: the planned items with their proof, or the results.

use crate::cli::table::{Cell, Style, Table};
use crate::cli::text;
use crate::cli::view::View;
use crate::contract::{Fix, FixItem, FixState, FixTarget};
use crate::escape::escape;

pub(super) fn table(fix: &Fix, view: View) -> String {
    let ids = text::ShortIds::new(fix.items.iter().map(|item| item.finding.as_str()));
    let mut table = Table::new(&["DO", "WHAT", "OF", "FINDING"]);
    for item in &fix.items {
        let style = match item.state {
            FixState::Planned | FixState::LeftOut => Style::Plain,
            FixState::Skipped => Style::Yellow,
            FixState::Stranded | FixState::Unknown => Style::Red,
            FixState::Done | FixState::Restored => Style::Green,
        };
        let row = vec![
            Cell::styled(word(item, fix.undo), style),
            Cell::new(text::shown(&text::fix_name(item))),
            Cell::new(of(item)),
            Cell::new(ids.get(&item.finding)),
        ];
        table.noted(row, item.why.iter().chain(&item.proof).cloned());
    }
    let mut out = table.within(view).render(view.headers, view.paint);
    if view.headers {
        out.push_str(&summary(fix, &ids));
    }
    out
}

/// The word for what is to be done with an item, or was done.
fn word(item: &FixItem, undo: bool) -> &'static str {
    let [todo, done] = match item.target {
        _ if undo => ["restore", "restored"],
        FixTarget::FreeReservation { .. } | FixTarget::FreeAllocation { .. } => ["free", "freed"],
        FixTarget::UnmountNetns { .. } => ["unmount", "unmounted"],
        FixTarget::DeletePair { .. } => ["delete", "deleted"],
        FixTarget::Nothing { .. } => ["nothing", "nothing"],
    };
    match item.state {
        FixState::Planned => todo,
        FixState::LeftOut => "nothing",
        FixState::Done => done,
        FixState::Skipped => "skipped",
        FixState::Restored => "restored",
        FixState::Stranded => "stranded",
        FixState::Unknown => "unknown",
    }
}

/// What the object belonged to, or what identifies it.
fn of(item: &FixItem) -> String {
    match &item.target {
        FixTarget::FreeReservation { network, container_id, .. }
        | FixTarget::FreeAllocation { network, container_id, .. } => {
            format!("{} in {}", text::cut(container_id, 12), text::shown(network))
        }
        FixTarget::UnmountNetns { netns, .. } => format!("netns {}", text::netns(netns)),
        FixTarget::DeletePair { peer, .. } => match &peer.name {
            Some(name) => format!("pair with {}", text::shown(name)),
            None => format!("pair with ifindex:{}", peer.index),
        },
        FixTarget::Nothing { .. } => String::new(),
    }
}

fn summary(fix: &Fix, ids: &text::ShortIds) -> String {
    let number = |state| fix.items.iter().filter(|item| item.state == state).count();
    let mut parts = Vec::new();
    for (state, word) in [
        (FixState::Planned, "to be done"),
        (FixState::Done, "done"),
        (FixState::Restored, "restored"),
        (FixState::Skipped, "skipped"),
        (FixState::Stranded, "not put back"),
        (FixState::Unknown, "done or not, which is not known"),
        (FixState::LeftOut, "left out"),
    ] {
        if number(state) > 0 {
            parts.push(format!("{} {word}", number(state)));
        }
    }
    let mut out = format!("{}\n", parts.join(", "));
    if fix.omitted > 0 {
        let more = text::count(usize::try_from(fix.omitted).unwrap_or(usize::MAX), "more leak");
        out.push_str(&format!("{more} with the same cause: listed once these are freed\n"));
    }
    if fix.dry_run && number(FixState::Planned) > 0 {
        out.push_str("Nothing has been changed yet. --yes makes these changes without asking; each item is checked again first.\n");
    }
    if let (Some(record), Some(first)) = (&fix.record, fix.items.first()) {
        out.push_str(&format!("Record: {}\n", escape(record)));
        let is_kept = |item: &FixItem| {
            matches!(
                item.target,
                FixTarget::FreeReservation { .. } | FixTarget::FreeAllocation { .. }
            )
        };
        let is_done = |item: &FixItem| matches!(item.state, FixState::Done | FixState::Unknown);
        if fix.items.iter().any(|item| is_done(item) && is_kept(item)) {
            let id = ids.get(&first.finding);
            out.push_str(&format!(
                "Undo: ipwatch fix {} --undo restores what has not been given out since\n",
                escape(id)
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{document, plain, sample};
    use super::*;
    use crate::contract::Body;

    #[test]
    fn a_plan_shows_what_is_done_with_its_proof_and_what_is_not_with_the_reason() {
        let sample = sample("fix.json");
        let text = document(&sample, plain(&sample));
        assert_eq!(
            text,
            "\
DO       WHAT                 OF                      FINDING
free     10.0.3.18            3d1f2a9d7e6f in cbr0    wv4a
         host-local reserves it for container 3d1f2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e00, written 2025-12-20T11:00:00.000Z: /var/lib/cni/networks/cbr0/10.0.3.18
         every runtime was asked, and none has the container; no network namespace of this node has the IP
         ipam-reservation-leaked fires since 2026-01-02T03:04:11.190Z: seen at two moments
nothing  10.0.3.19            -                       wv4a
         net:[4026532177] has the IP up: once freed, the next pod would share it
unmount  /run/netns/cni-aa10  netns 4026532290        r7d2
         no task is left in net:[4026532290]
delete   veth1a2b3c4d         pair with veth5e6f7a8b  p81c
         veth1a2b3c4d (index 41) and its peer veth5e6f7a8b (index 42) are both on the node
3 to be done, 1 left out
2 more leaks with the same cause: listed once these are freed
Nothing has been changed yet. --yes makes these changes without asking; each item is checked again first.
"
        );
    }

    #[test]
    fn a_plan_to_restore_does_not_say_that_it_frees() {
        let mut sample = sample("fix.json");
        let Body::Fix(fix) = &mut sample.body else { panic!("no fix") };
        fix.undo = true;
        fix.items.truncate(1);
        let text = document(&sample, plain(&sample));
        assert!(text.contains("\nrestore  10.0.3.18  "), "{text}");
        assert!(!text.contains("\nfree "), "{text}");
    }

    #[test]
    fn what_became_of_it_names_the_record_and_the_way_back() {
        let mut sample = sample("fix.json");
        let Body::Fix(fix) = &mut sample.body else { panic!("no fix") };
        fix.dry_run = false;
        fix.record = Some("/var/lib/ipwatch/fix/2026".to_owned());
        fix.items.truncate(2);
        for item in &mut fix.items {
            item.proof.clear();
        }
        fix.items[0].state = FixState::Done;
        let text = document(&sample, plain(&sample));
        assert!(text.contains("\nfreed    10.0.3.18  3d1f2a9d7e6f in cbr0  wv4a\n"), "{text}");
        assert!(
            text.contains("Record: /var/lib/ipwatch/fix/2026\nUndo: ipwatch fix wv4a --undo "),
            "{text}"
        );
        assert!(!text.contains("Nothing has been changed"), "{text}");
    }
}
