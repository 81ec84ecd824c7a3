//! A text without what is different each time: pids, ids, times, MACs, addresses. What the test knows by name becomes
//! the same name always; of the rest only the kind is left.

/// Begins the characters that stand for what was put in: no program prints them.
const PRIVATE: u32 = 0xE000;

/// What becomes of what is known.
#[derive(Debug, Default)]
pub(super) struct Plain {
    /// Text, what it becomes, and whether it must stand alone, as a number.
    known: Vec<(String, String, bool)>,
}

/// What becomes of a word.
enum Word {
    Same,
    Kind(&'static str),
    /// The same word is the same number each time: `veth1`.
    Numbered(&'static str),
}

impl Plain {
    /// This text becomes that one, wherever it stands.
    pub(super) fn put(&mut self, text: &str, shown: &str) {
        self.add(text, shown, false);
    }

    /// The same of a number.
    pub(super) fn number(&mut self, number: impl ToString, shown: u32) {
        self.add(&number.to_string(), &shown.to_string(), true);
    }

    /// The same of an id, which is also shown cut to one of these lengths.
    pub(super) fn id(&mut self, id: &str, shown: &str, lengths: &[usize]) {
        self.add(id, shown, false);
        lengths.iter().for_each(|length| self.add(&id[..*length], shown, true));
    }

    fn add(&mut self, text: &str, shown: &str, alone: bool) {
        assert!(!text.is_empty(), "{shown}");
        self.known.push((text.to_owned(), shown.to_owned(), alone));
        // A text before its parts.
        self.known.sort_by_key(|(text, _, _)| std::cmp::Reverse(text.len()));
    }

    /// The plain text.
    pub(super) fn of(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (at, (known, _, alone)) in (PRIVATE..).zip(&self.known) {
            let mark = char::from_u32(at).expect("a character").to_string();
            text = replaced(&text, known, &mark, *alone);
        }
        let mut seen = Vec::new();
        let lines = text.lines().filter(|line| !is_of_this_machine(line)).map(|line| {
            let line = of_this_machine(line);
            let line = spans(&line);
            words(&dates(&line), &mut seen)
        });
        let lines: Vec<String> = lines.map(|line| line.trim_end().to_owned() + "\n").collect();
        let mut text = in_order(&lines).concat();
        for (at, (_, shown, _)) in (PRIVATE..).zip(&self.known) {
            text = text.replace(char::from_u32(at).expect("a character"), shown);
        }
        text
    }
}

/// What a runtime says has the time of its last list: in a story it may come anywhere. Here it comes last.
fn in_order(lines: &[String]) -> Vec<String> {
    const LABEL: usize = "WHY  ".len();
    let is_proof = |line: &String| line.starts_with("WHY  ") || line.starts_with("       TIME  ");
    let mut out = Vec::new();
    for part in lines.chunk_by(|one, other| is_proof(one) == is_proof(other)) {
        if !is_proof(&part[0]) {
            out.extend_from_slice(part);
            continue;
        }
        let texts = part.iter().map(|line| line[LABEL..].trim_start());
        let (last, first): (Vec<&str>, Vec<&str>) =
            texts.partition(|line| line.ends_with("[containerd]\n"));
        let all = first.into_iter().chain(last).enumerate();
        let label = |at| if at == 0 { "WHY  " } else { "       " };
        out.extend(all.map(|(at, text)| format!("{}{text}", label(at))));
    }
    out
}

/// Every `known` in a text as `shown`; `alone`: only where no letter and no digit is beside it.
fn replaced(text: &str, known: &str, shown: &str, alone: bool) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(known) {
        let (before, after) = (&rest[..at], &rest[at + known.len()..]);
        let last = before.chars().next_back().or_else(|| out.chars().next_back());
        let beside = [last, after.chars().next()];
        let fits = !alone || !beside.into_iter().flatten().any(char::is_alphanumeric);
        out.push_str(before);
        out.push_str(if fits { shown } else { known });
        rest = after;
    }
    out + rest
}

/// A line about what may be seen here, and about who else has a copy of a mount.
fn is_of_this_machine(line: &str) -> bool {
    let begins = |with: &str| line.starts_with(with);
    begins("BUT ") || begins("ipwatch: no address ") || begins("holder   mount ")
}

/// A line without what depends on the kernel and on what may be seen here.
fn of_this_machine(line: &str) -> String {
    // An address that came with its netns may have been read in one go.
    let mut line = line.replace("was up already when it was first read", "came up");
    line = line.replace('≥', "");
    while let Some(at) = line.find(", Str(mount ") {
        let end = line[at + 1..].find(')').map_or(line.len(), |end| at + 1 + end + 1);
        line.replace_range(at..end, "");
    }
    for (before, after) in [(" +", ""), (" and ", " more")] {
        line = counted(&line, before, after);
    }
    if let Some(at) = line.find("    sources ") {
        line.truncate(at);
    }
    // Of a kernel stack what the task waits in.
    if let (Some(_), Some(at)) = (line.find("kernel stack of "), line.find(" < ")) {
        let end = line.rfind("  [").filter(|end| *end > at).map(|end| line[end..].to_owned());
        line.truncate(at);
        line.push_str(" < …");
        line.extend(end);
    }
    line
}

/// How many more holders there are: some are copies of a mount.
fn counted(line: &str, before: &str, after: &str) -> String {
    let starts = line.match_indices(before).map(|(at, _)| at + before.len());
    let number = |at: usize| {
        let len = line[at..].bytes().take_while(u8::is_ascii_digit).count();
        (len > 0 && line[at + len..].starts_with(after)).then_some(at..at + len)
    };
    match starts.filter_map(number).next() {
        Some(range) => format!("{}N{}", &line[..range.start], &line[range.end..]),
        None => line.to_owned(),
    }
}

/// Columns are as wide as what stands in them: two spaces between them always.
fn spans(line: &str) -> String {
    let indent = line.len() - line.trim_start().len();
    let mut out = line[..indent].to_owned();
    let mut spaces = 0;
    for c in line[indent..].chars() {
        spaces = if c == ' ' { spaces + 1 } else { 0 };
        if spaces <= 2 {
            out.push(c);
        }
    }
    out
}

/// Dates, times of day, UUIDs and MACs.
fn dates(line: &str) -> String {
    const PATTERNS: [(&str, &str); 5] = [
        ("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "UUID"),
        ("dddd-dd-ddTdd:dd:dd", "TIME"),
        ("dddd-dd-dd dd:dd:dd", "TIME"),
        ("dd:dd:ddZ", "TIME"),
        ("xx:xx:xx:xx:xx:xx", "MAC"),
    ];
    let bytes = line.as_bytes();
    let is_like = |at: usize, pattern: &str| {
        let found = bytes.get(at..at + pattern.len());
        found.is_some_and(|found| {
            found.iter().zip(pattern.bytes()).all(|(byte, wanted)| match wanted {
                b'd' => byte.is_ascii_digit(),
                b'x' => byte.is_ascii_hexdigit(),
                _ => *byte == wanted,
            })
        })
    };
    let (mut out, mut at) = (String::new(), 0);
    while let Some(c) = line[at..].chars().next() {
        let Some((pattern, kind)) = PATTERNS.iter().find(|(pattern, _)| is_like(at, pattern))
        else {
            out.push(c);
            at += c.len_utf8();
            continue;
        };
        out.push_str(kind);
        at += pattern.len();
        // Its fraction and its zone.
        let more = line[at..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let more = more.strip_prefix(" +0000").unwrap_or(more);
        let more = more.strip_prefix(" UTC").or(more.strip_prefix('Z')).unwrap_or(more);
        at = line.len() - more.len();
    }
    out
}

/// Every word that is a number, an id or a duration.
fn words(line: &str, seen: &mut Vec<String>) -> String {
    let (mut out, mut rest) = (String::new(), line);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end.max(rest.chars().next().map_or(0, char::len_utf8)));
        match kind(&out, word) {
            Word::Same => out.push_str(word),
            Word::Kind(kind) => out.push_str(kind),
            Word::Numbered(kind) => {
                let at = seen.iter().position(|known| known == word).unwrap_or_else(|| {
                    seen.push(word.to_owned());
                    seen.len() - 1
                });
                out.push_str(&format!("{kind}{}", at + 1));
            }
        }
        rest = after;
    }
    out
}

fn kind(before: &str, word: &str) -> Word {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    let hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
    match word {
        "" => Word::Same,
        _ if word.starts_with("veth") && word.len() == 12 => Word::Numbered("veth"),
        _ if word.starts_with("0x") => Word::Kind("FLAGS"),
        _ if word.len() > unit.len() && ["ms", "s", "m", "h", "d"].contains(&unit) => {
            Word::Kind("AGE")
        }
        _ if digits && before.ends_with("pid ") => Word::Kind("PID"),
        _ if digits && (before.ends_with("onnection ") || before.ends_with("onnections/")) => {
            Word::Kind("N")
        }
        _ if digits && word.len() >= 4 && word.len() < 16 => Word::Kind("N"),
        _ if hex && word.len() >= 12 && word.trim_matches('0').len() > 3 => Word::Kind("HEX"),
        _ => Word::Same,
    }
}
