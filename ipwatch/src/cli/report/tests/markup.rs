//! Whether a page is well-formed, for the unit tests and for the end-to-end tests.

/// The tags of a page, in order, if it is well-formed XML: each is closed, each attribute is quoted, and each `&` begins
/// an entity that XML has.
pub(crate) fn tags(text: &str) -> Result<Vec<String>, String> {
    let mut rest = text.strip_prefix("<!DOCTYPE html>").ok_or("no doctype")?;
    let (mut open, mut seen) = (Vec::new(), Vec::new());
    while let Some(at) = rest.find(['<', '&']) {
        let (before, from) = rest.split_at(at);
        if before.contains('>') {
            return Err(format!("a stray > in {before:?}"));
        }
        if let Some(entity) = from.strip_prefix('&') {
            let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
            let known = known.iter().find(|known| entity.starts_with(**known));
            rest =
                &entity[known.ok_or_else(|| format!("an unknown entity: &{entity:.20}"))?.len()..];
            continue;
        }
        let end = from.find('>').ok_or("a tag without an end")?;
        let tag = &from[1..end];
        rest = &from[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            match open.pop() {
                Some(opened) if opened == name => continue,
                opened => return Err(format!("</{name}> closes {opened:?}")),
            }
        }
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        if tag.matches('"').count() % 2 == 1 || name.is_empty() {
            return Err(format!("<{tag}>"));
        }
        seen.push(name.to_owned());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    if open.is_empty() { Ok(seen) } else { Err(format!("not closed: {open:?}")) }
}
