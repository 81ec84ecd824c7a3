//! Text that fits into cells of the screen: nothing that a terminal acts on, and no wider than its place.

use unicode_width::UnicodeWidthChar as _;

use crate::escape::escape;

/// Which characters the terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Glyphs {
    Unicode,
    /// The locale is not UTF-8.
    Ascii,
}

impl Glyphs {
    /// One of two spellings.
    pub(super) fn pick<T>(self, unicode: T, ascii: T) -> T {
        match self {
            Glyphs::Unicode => unicode,
            Glyphs::Ascii => ascii,
        }
    }

    /// `text` in at most so many columns. What was cut off is marked.
    ///
    /// Characters without a width of their own are spelled out: they would change the width of the character before
    /// them, and a name may consist of thousands of them.
    pub(super) fn fit(self, text: &str, columns: usize) -> String {
        // No character is shown in less than one column, so no more of a long name is ever looked at.
        let most = text.char_indices().nth(columns + 1).map_or(text.len(), |(end, _)| end);
        let known = escape(&text[..most]);
        let (mut shown, mut width) = (String::new(), 0);
        let mut end = 0;
        for c in known.chars() {
            let spelt = self.spelt(c);
            let wide = spelt.as_deref().map_or_else(|| c.width().unwrap_or(0), str::len);
            if width + wide > columns {
                shown.truncate(end);
                shown.push_str(if columns == 0 { "" } else { self.pick("…", "~") });
                return shown;
            }
            width += wide;
            match spelt {
                Some(spelt) => shown.push_str(&spelt),
                None => shown.push(c),
            }
            // The mark takes the last column.
            if width < columns {
                end = shown.len();
            }
        }
        shown
    }

    /// A character that this terminal cannot show by itself, spelled out.
    fn spelt(self, c: char) -> Option<String> {
        match (self, c) {
            (_, ' '..='~') => None,
            (Glyphs::Ascii, '…') => Some("...".to_owned()),
            (Glyphs::Ascii, '→') => Some("->".to_owned()),
            (Glyphs::Ascii, '·') => Some("-".to_owned()),
            (Glyphs::Unicode, c) if c.width().unwrap_or(0) > 0 => None,
            (_, c) => Some(format!("\\u{{{:x}}}", u32::from(c))),
        }
    }
}

/// Columns that a fitted text takes.
pub(super) fn columns(fitted: &str) -> usize {
    fitted.chars().map(|c| c.width().unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::words::words;

    #[test]
    fn what_does_not_fit_is_cut_and_marked() {
        let unicode = Glyphs::Unicode;
        assert_eq!(unicode.fit("shop/api-0", 10), "shop/api-0");
        assert_eq!(unicode.fit("shop/api-0", 9), "shop/api…");
        assert_eq!(Glyphs::Ascii.fit("shop/api-0", 9), "shop/api~");
        assert_eq!(unicode.fit("日本語", 5), "日本…");
        assert_eq!(unicode.fit("日本語", 4), "日…");
        assert_eq!(unicode.fit("ab", 0), "");
        assert_eq!(unicode.fit("", 4), "");
    }

    #[test]
    fn what_takes_no_column_or_cannot_be_shown_is_spelled_out() {
        assert_eq!(Glyphs::Unicode.fit("e\u{301}", 20), "e\\u{301}");
        assert_eq!(Glyphs::Ascii.fit("é → x · y…", 40), "\\u{e9} -> x - y...");
    }

    #[test]
    fn no_word_of_a_stranger_is_wider_than_its_place() {
        for word in words() {
            for glyphs in [Glyphs::Unicode, Glyphs::Ascii] {
                for most in [0, 1, 2, 7, 80] {
                    let shown = glyphs.fit(&word, most);
                    assert!(columns(&shown) <= most, "{shown:?} in {most}");
                    assert_eq!(escape(&shown), shown);
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn a_fitted_text_is_as_wide_as_said(text in ".*", most in 0_usize..40) {
            let shown = Glyphs::Unicode.fit(&text, most);
            proptest::prop_assert!(columns(&shown) <= most);
            proptest::prop_assert!(!shown.chars().any(|c| c.width().unwrap_or(0) == 0));
        }
    }
}
