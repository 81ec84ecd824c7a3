//! The timeline as a picture: SVG within the page, without a script. Pure.
//!
//! Items last from milliseconds (a signal, a plugin) to weeks (a tenure), so no linear scale shows all of them. The width of a
//! gap between events is the logarithm of its length, and the axis says how long each gap was.

use jiff::Timestamp;
use unicode_width::UnicodeWidthStr as _;

use super::build::date;
use super::html::escaped;
use crate::cli::text;
use crate::contract::report::{Item, ItemKind, Lane, Report};

/// Width of the picture in pixels. A narrower page shows it smaller.
const WIDTH: f64 = 1000.0;
/// Where the lanes begin and end, in pixels.
const LEFT: f64 = 224.0;
const RIGHT: f64 = 984.0;
const AXIS: f64 = 44.0;
const ROW: f64 = 22.0;
const BAR: f64 = 15.0;
const PAD: f64 = 7.0;
/// Width of a character of a label, and of a lane's name.
const LETTER: f64 = 5.9;
/// Space between items in one row.
const GAP: f64 = 8.0;
/// Minimum width of a gap between two events.
const NARROWEST: f64 = 4.0;
/// Maximum length of a label, in characters.
const LONGEST: usize = 72;

/// The picture; empty if nothing has a date.
pub(super) fn svg(report: &Report) -> String {
    let lanes = &report.timeline.lanes;
    let Some(scale) = Scale::of(lanes, &report.taken_at) else { return String::new() };
    let (mut back, mut front) = (String::new(), String::new());
    let mut y = AXIS;
    let mut last = None;
    for lane in lanes {
        if last.is_some_and(|kind| kind != lane.kind) {
            y += PAD;
        }
        last = Some(lane.kind);
        y += draw_lane(lane, y, &scale, &report.taken_at, &mut back, &mut front);
    }
    let height = y + PAD;
    let axis = scale.axis(height, &report.taken_at);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"timeline-title\">\n\
         <title id=\"timeline-title\">What happened when: the table below says the same</title>\n\
         {back}{axis}{front}</svg>\n"
    )
}

fn millis(date: &str) -> Option<i64> {
    date.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

/// Where each moment is.
struct Scale {
    times: Vec<i64>,
    places: Vec<f64>,
}

impl Scale {
    fn of(lanes: &[Lane], now: &str) -> Option<Self> {
        let items = lanes.iter().flat_map(|lane| &lane.items);
        let dates = items.flat_map(|item| [Some(item.from.as_str()), item.to.as_deref()]).flatten();
        let mut times: Vec<i64> = dates.filter_map(millis).collect();
        if times.is_empty() {
            return None;
        }
        times.extend(millis(now));
        times.sort_unstable();
        times.dedup();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        #[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
        let weights: Vec<f64> = gaps.map(|gap| (1.0 + gap as f64 / 250.0).ln()).collect();
        let total: f64 = weights.iter().sum();
        let room = RIGHT - LEFT;
        #[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
        let count = weights.len() as f64;
        // The minimum widths of all gaps take at most half of the width.
        let least = NARROWEST.min(room / 2.0 / count.max(1.0));
        let rest = room - least * count;
        let mut place = LEFT;
        let mut places = vec![place];
        for weight in weights {
            place += least + rest * weight / total.max(f64::MIN_POSITIVE);
            places.push(place);
        }
        Some(Self { times, places })
    }

    fn at(&self, date: &str) -> Option<f64> {
        let at = self.times.binary_search(&millis(date)?).ok()?;
        self.places.get(at).copied()
    }

    /// The axis: some times, and the durations between them.
    fn axis(&self, height: f64, now: &str) -> String {
        // What labels need that are beside each other: a day is wider than a time. The first begins where its time is, and
        // the last, which is longer, ends there.
        const LABEL: f64 = 68.0;
        const AFTER_FIRST: f64 = 98.0;
        const BEFORE_LAST: f64 = 126.0;
        let last = self.times.len() - 1;
        let mut shown: Vec<usize> = vec![0];
        for at in 1..last {
            let after = self.places[at] - self.places[shown[shown.len() - 1]];
            let least = if shown.len() == 1 { AFTER_FIRST } else { LABEL };
            if after >= least && self.places[last] - self.places[at] >= BEFORE_LAST {
                shown.push(at);
            }
        }
        if last > 0 {
            shown.push(last);
        }
        let mut out = String::new();
        let mut day = String::new();
        for (nth, at) in shown.iter().enumerate() {
            let x = self.places[*at];
            let stamp = Timestamp::from_millisecond(self.times[*at]).unwrap_or_default();
            let is_now = millis(now) == Some(self.times[*at]);
            let anchor = if nth == 0 {
                "start"
            } else if *at == last {
                "end"
            } else {
                "middle"
            };
            // Read days later, it is no longer now.
            let as_of = if is_now { "as of " } else { "" };
            let clock = format!("{as_of}{}", stamp.strftime("%T"));
            let today = stamp.strftime("%F").to_string();
            out.push_str(&format!(
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{height:.1}\"/>\n\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"24\" text-anchor=\"{anchor}\">{clock}</text>\n",
                AXIS - 8.0
            ));
            if today != day {
                out.push_str(&format!(
                    "<text class=\"day\" x=\"{x:.1}\" y=\"11\" text-anchor=\"{anchor}\">{today}</text>\n"
                ));
                day = today;
            }
            let Some(before) = nth.checked_sub(1).map(|before| shown[before]) else { continue };
            let gap = match self.times[*at] - self.times[before] {
                millis @ ..1000 => format!("{millis} ms"),
                millis => text::span(millis / 1000),
            };
            let (from, middle) = (self.places[before], (self.places[before] + x) / 2.0);
            out.push_str(&format!(
                "<line class=\"gap\" x1=\"{:.1}\" y1=\"33\" x2=\"{:.1}\" y2=\"33\"/>\n\
                 <text class=\"day\" x=\"{middle:.1}\" y=\"36.5\" text-anchor=\"middle\">{}</text>\n",
                from + 3.0,
                x - 3.0,
                gap
            ));
        }
        out
    }
}

/// An item with its place.
struct Placed<'a> {
    item: &'a Item,
    from: f64,
    to: f64,
    label: Option<(f64, &'static str)>,
    text: String,
}

impl Placed<'_> {
    /// The horizontal space that it takes in its row.
    fn extent(&self) -> (f64, f64) {
        let width = self.width();
        match self.label {
            Some((x, "end")) => (x - width, self.to),
            Some((x, _)) => (self.from, self.to.max(x + width)),
            None => (self.from, self.to),
        }
    }

    fn width(&self) -> f64 {
        letters(&self.text)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a width in a picture")]
fn letters(text: &str) -> f64 {
    text.width() as f64 * LETTER
}

fn place<'a>(item: &'a Item, scale: &Scale, now: &str) -> Option<Placed<'a>> {
    let from = scale.at(&item.from)?;
    let is_moment = item.to.is_none() && !item.lasts;
    let to = match (&item.to, is_moment) {
        (_, true) => from + 6.0,
        (Some(to), _) => scale.at(to)?,
        (None, _) => scale.at(now)?,
    };
    let to = to.max(from + 4.0);
    let text = match item.kind {
        // Its shape shows the kind; a text for each dot would be too much.
        ItemKind::Seen => cut(&item.text, 44),
        ItemKind::FailedRun => format!("{}, {}", item.text, item.ended),
        _ => cut(&item.text, LONGEST),
    };
    let width = letters(&text);
    let label = if !is_moment && width + 10.0 <= to - from {
        Some((from + 6.0, "start"))
    } else if to + 5.0 + width <= RIGHT {
        Some((to + 5.0, "start"))
    } else if from - 6.0 - width >= LEFT {
        Some((from - 6.0, "end"))
    } else {
        None
    };
    Some(Placed { item, from, to, label, text })
}

fn cut(text: &str, length: usize) -> String {
    match text::cut(text, length) {
        whole if whole.len() == text.len() => text.to_owned(),
        short => format!("{short}…"),
    }
}

/// Draws a lane, with its background behind the lines of the times. Returns its height.
fn draw_lane(
    lane: &Lane,
    y: f64,
    scale: &Scale,
    now: &str,
    back: &mut String,
    out: &mut String,
) -> f64 {
    let placed: Vec<Placed<'_>> =
        lane.items.iter().filter_map(|item| place(item, scale, now)).collect();
    // Each item goes into the first row in which it overlaps no other.
    let mut rows: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut drawn = String::new();
    for one in &placed {
        let (from, to) = one.extent();
        let free =
            |row: &Vec<(f64, f64)>| row.iter().all(|(a, b)| from >= b + GAP || to + GAP <= *a);
        let row = rows.iter().position(free).unwrap_or_else(|| {
            rows.push(Vec::new());
            rows.len() - 1
        });
        rows[row].push((from, to));
        #[allow(clippy::cast_precision_loss, reason = "a row in a picture")]
        draw_item(one, y + PAD + row as f64 * ROW, now, &mut drawn);
    }
    #[allow(clippy::cast_precision_loss, reason = "rows in a picture")]
    let height =
        (rows.len() as f64 * ROW + 2.0 * PAD).max(if lane.detail.is_empty() { 32.0 } else { 42.0 });
    back.push_str(&format!(
        "<rect class=\"lane\" x=\"0\" y=\"{y:.1}\" width=\"{WIDTH}\" height=\"{:.1}\" rx=\"4\"/>\n",
        height - 2.0
    ));
    let name_y = y + PAD + 12.0;
    out.push_str(&format!(
        "<text class=\"name\" x=\"10\" y=\"{name_y:.1}\">{}<title>{}</title></text>\n",
        escaped(&cut(&lane.name, 28)),
        escaped(&lane.name)
    ));
    if !lane.detail.is_empty() {
        out.push_str(&format!(
            "<text class=\"detail\" x=\"10\" y=\"{:.1}\">{}<title>{}</title></text>\n",
            name_y + 15.0,
            escaped(&cut(&lane.detail, 36)),
            escaped(&lane.detail)
        ));
    }
    out.push_str(&drawn);
    height
}

fn draw_item(one: &Placed<'_>, y: f64, now: &str, out: &mut String) {
    let item = one.item;
    let class = class(item.kind);
    let until = match (&item.to, item.lasts) {
        (Some(to), _) => format!(" to {}", date(to)),
        (None, true) => format!(", still at {}", date(now)),
        (None, false) => String::new(),
    };
    let ended = if item.ended.is_empty() { String::new() } else { format!("; {}", item.ended) };
    let tip = format!("{}{until}: {}{ended}", date(&item.from), item.text);
    out.push_str(&format!("<g class=\"{class}\"><title>{}</title>", escaped(&tip)));
    let (x, middle) = (one.from, y + BAR / 2.0);
    let is_moment = item.to.is_none() && !item.lasts;
    if is_moment {
        let shape = match item.kind {
            ItemKind::Signal => format!("M{x:.1} {:.1}l5 9h-10z", middle - 5.0),
            ItemKind::Acked | ItemKind::Resolved => {
                format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", middle - 5.0)
            }
            _ => format!("M{:.1} {middle:.1}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", x - 3.5),
        };
        out.push_str(&format!("<path d=\"{shape}\"/>"));
    } else {
        out.push_str(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"3\"/>",
            one.to - x
        ));
        if item.lasts {
            let tip = one.to;
            out.push_str(&format!("<path d=\"M{tip:.1} {y:.1}l7 7.5l-7 7.5z\"/>"));
        }
    }
    if let Some((x, anchor)) = one.label {
        out.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            middle + 4.0,
            escaped(&one.text)
        ));
    }
    out.push_str("</g>\n");
}

/// The class by which the style knows it; a legend has the same.
pub(super) fn class(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Tenure => "tenure",
        ItemKind::Reservation => "reservation",
        ItemKind::Run => "run",
        ItemKind::FailedRun => "failed",
        ItemKind::Hold => "hold",
        ItemKind::Exiting => "exiting",
        ItemKind::Signal => "signal",
        ItemKind::Seen => "seen",
        ItemKind::Pending => "pending",
        ItemKind::Firing => "firing",
        ItemKind::Acked => "acked",
        ItemKind::Resolved => "resolved",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The horizontal extents of the labels of a class, from the left.
    fn extents(axis: &str, class: &str, y: &str, letter: f64) -> Vec<(f64, f64)> {
        let value = |line: &str, name: &str| -> Option<String> {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let of = |line: &str| {
            (value(line, "class")? == class && value(line, "y")? == y).then_some(())?;
            let x: f64 = value(line, " x")?.parse().ok()?;
            let text = line.split_once('>')?.1.split_once('<')?.0;
            #[allow(clippy::cast_precision_loss, reason = "a width in a picture")]
            let width = text.chars().count() as f64 * letter;
            Some(match value(line, "text-anchor")?.as_str() {
                "start" => (x, x + width),
                "end" => (x - width, x),
                _ => (x - width / 2.0, x + width / 2.0),
            })
        };
        axis.lines().filter_map(of).collect()
    }

    #[test]
    fn no_label_of_the_axis_covers_another() {
        let taken_at = "2026-11-29T06:00:00Z";
        let end = millis(taken_at).unwrap();
        // A day lies between any two.
        let times: Vec<i64> = (0..5).map(|n| end - (4 - n) * 86_400_000).collect();
        for first in 0..250_i32 {
            for gap in [57.0, 60.0, 69.0, 98.0, 130.0] {
                let second = LEFT + f64::from(first) * 3.0;
                let places = vec![LEFT, second, second + gap, second + 2.0 * gap, RIGHT];
                let scale = Scale { times: times.clone(), places };
                let axis = scale.axis(100.0, taken_at);
                for (class, y, letter) in [("tick", "24", 6.5), ("day", "11", 5.9)] {
                    let extents = extents(&axis, class, y, letter);
                    assert!(extents.len() >= 2, "{axis}");
                    let apart = extents.windows(2).all(|pair| pair[0].1 + 2.0 <= pair[1].0);
                    assert!(apart, "{class} at {second}, {gap}: {extents:?}");
                }
            }
        }
    }

    #[test]
    fn the_end_of_the_axis_says_when_it_was_looked_at() {
        let times = vec![0, 60_000];
        let scale = Scale { times, places: vec![LEFT, RIGHT] };
        let axis = scale.axis(100.0, "1970-01-01T00:01:00Z");
        assert!(axis.contains(">as of 00:01:00</text>") && !axis.contains("now"), "{axis}");
    }
}
