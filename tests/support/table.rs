//! Prints tables of text.

/// Prints a table with these headings, its rows sorted by their first cells; nothing if there are none.
pub(crate) fn print<const N: usize>(heads: [&str; N], mut rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    rows.sort();
    rows.insert(0, heads.map(str::to_owned).to_vec());
    let width = |cell: usize| rows.iter().filter_map(|row| row.get(cell)).map(|c| c.len()).max();
    let widths: Vec<usize> = (0..N).map(|cell| width(cell).unwrap_or(0)).collect();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        println!("{}", cells.join("  ").trim_end());
    }
}
