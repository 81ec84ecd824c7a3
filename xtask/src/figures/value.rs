//! The quantities in a measured value and in its goal, and whether the goal is reached.

/// A number and its unit; times in seconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Quantity {
    pub(super) value: f64,
    unit: String,
}

impl Quantity {
    /// The first quantity in a text.
    pub(super) fn first(text: &str) -> Option<Self> {
        found(text).map(|(quantity, _, _)| quantity)
    }
}

/// The first quantity, and where it begins and ends.
fn found(text: &str) -> Option<(Quantity, usize, usize)> {
    // A digit within a word (`p99`) is no number.
    let begins = |(at, c): &(usize, char)| {
        let before = text[..*at].chars().next_back();
        c.is_ascii_digit() && !before.is_some_and(|c| c.is_alphanumeric() || c == '.')
    };
    let from = text.char_indices().find(begins)?.0;
    let negative = text[..from].ends_with('-');
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',');
    let digits = text[from..].split(|c| !is_part(c)).next()?.trim_end_matches(['.', ',']);
    let value: f64 = digits.replace(',', "").parse().ok()?;
    let after = from + digits.len();
    let rest = text[after..].strip_prefix(' ').unwrap_or(&text[after..]);
    let is_unit = |c: char| c.is_alphabetic() || c == '%';
    let unit = rest.split(|c| !is_unit(c)).next().unwrap_or_default();
    let end = if unit.is_empty() { after } else { text.len() - rest.len() + unit.len() };
    let (scale, unit) = match unit {
        "ns" => (1e-9, "s"),
        "us" | "µs" => (1e-6, "s"),
        "ms" => (1e-3, "s"),
        "x" => (1.0, "times"),
        unit => (1.0, unit),
    };
    let sign = if negative { -1.0 } else { 1.0 };
    Some((Quantity { value: sign * value * scale, unit: unit.to_owned() }, from, end))
}

/// The first quantity as it is written, or the whole text if there is none.
pub(super) fn shown(text: &str) -> String {
    found(text).map_or(text, |(_, from, end)| &text[from..end]).to_owned()
}

/// Whether a value reaches its goal; `None` if that takes a person. A goal is a relation and a quantity, after the name
/// of a quantile if the value has several: `< 2 s`, `p99 < 500 us`, `>= 100x`; or `0`, or begins with `none`.
pub(super) fn is_reached(measured: &str, goal: &str) -> Option<bool> {
    if goal == "0" || goal == "none" || goal == "none lost" {
        return Quantity::first(measured).map(|quantity| quantity.value == 0.0);
    }
    let (named, goal) = match goal.split_once(' ') {
        Some((name @ ("p50" | "p99" | "median" | "worst"), rest)) => (Some(name), rest),
        _ => (None, goal),
    };
    let (relation, goal) = goal.split_once(' ')?;
    let (wanted, from, end) = found(goal)?;
    if from != 0 || end != goal.len() {
        return None;
    }
    let measured = match named {
        Some(name) => measured.split_once(name)?.1,
        None => measured,
    };
    let value = Quantity::first(measured)?;
    if value.unit != wanted.unit {
        return None;
    }
    match relation {
        "<" => Some(value.value < wanted.value),
        "<=" => Some(value.value <= wanted.value),
        ">" => Some(value.value > wanted.value),
        ">=" => Some(value.value >= wanted.value),
        _ => None,
    }
}
