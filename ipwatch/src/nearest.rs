//! Finds the known name that was probably meant, for keys of the configuration and names in a query. Pure.

/// The name in `known` that is nearest to `written`, unless none is near.
#[must_use]
pub(crate) fn nearest<'a>(
    written: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let length = written.chars().count();
    let far = (length / 3).max(2);
    // A name that is much longer or shorter is not near; that check is cheap.
    let alike = known.into_iter().filter(|name| name.chars().count().abs_diff(length) <= far);
    let measured = alike.map(|name| (distance(written, name), name));
    measured.filter(|(distance, _)| *distance <= far).min().map(|(_, name)| name)
}

/// Number of edits between two names, where a swap of adjacent characters is one edit (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let kept = last[j] + usize::from(x != y);
            let mut least = kept.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_near() {
        let known = ["grace", "core_dump_grace", "leak_age"];
        for (written, meant) in [
            ("grce", Some("grace")),
            ("garce", Some("grace")),
            ("leakage", Some("leak_age")),
            ("coredump_grace", Some("core_dump_grace")),
            ("endpoint", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, known), meant, "{written}");
        }
    }
}
