//! The offset of a member in a kernel struct, from the kernel's own type information (BTF).
//!
//! A full parse of BTF costs a hundred milliseconds and tens of megabytes, but only about fifty members are needed.
//! This parser reads the type section once to find where each type begins and which structs have a wanted name, and
//! follows only those. The format: `Documentation/bpf/btf.rst`.
//!
//! The input comes from the kernel, but is parsed as if it were hostile: every access is checked.

use std::collections::HashMap;

/// Why BTF cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BtfError {
    /// It has no BTF header, or the other byte order.
    #[error("not BTF of this machine")]
    Header,
    /// A section or a type extends beyond the end.
    #[error("truncated")]
    Truncated,
    /// A kind of type whose size is unknown.
    #[error("type kind {0} is unknown")]
    Kind(u32),
}

const MAGIC: u16 = 0xeb9f;
const KIND_INT: u32 = 1;
const KIND_POINTER: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

/// Maximum depth of nested anonymous structs and qualifiers.
const DEPTH: u32 = 16;

/// Offset and size of a member in its struct, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) offset: u32,
    pub(super) size: u32,
}

/// The wanted structs of a BTF blob.
#[derive(Debug)]
pub(super) struct Structs<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Start of each type in `types`; the first is type 1.
    starts: Vec<u32>,
    /// Every definition of each wanted struct.
    named: HashMap<&'static str, Vec<u32>>,
}

impl<'a> Structs<'a> {
    /// Finds the structs named in `wanted`.
    ///
    /// # Errors
    /// [`BtfError`].
    pub(super) fn find(
        btf: &'a [u8],
        wanted: impl IntoIterator<Item = &'static str>,
    ) -> Result<Self, BtfError> {
        let (types, strings) = sections(btf)?;
        let mut named: HashMap<_, _> = wanted.into_iter().map(|name| (name, Vec::new())).collect();
        // The kernel's types take about 20 bytes each.
        let mut starts = Vec::with_capacity(types.len() / 20);
        let mut at = 0;
        while at < types.len() {
            let head = Head::read(types, at).ok_or(BtfError::Truncated)?;
            let start = u32::try_from(at).map_err(|_| BtfError::Truncated)?;
            starts.push(start);
            if matches!(head.kind, KIND_STRUCT | KIND_UNION)
                && let Some(name) = text(strings, head.name)
                && let Some(found) = named.get_mut(name)
            {
                found.push(start);
            }
            at += 12 + head.extra()?;
        }
        Ok(Self { types, strings, starts, named })
    }

    /// The offset and size of a member; `path` is member names joined by dots. Members of anonymous structs count as
    /// those of the outer struct, as in C. `None` if this kernel has no such member, if it is a bit field, or if
    /// several definitions of the struct disagree about it, because the right one is then unknown.
    pub(super) fn member(&self, name: &str, path: &str) -> Option<Field> {
        let path: Vec<&str> = path.split('.').collect();
        let mut places =
            self.named.get(name)?.iter().filter_map(|&at| self.place(at, &path, DEPTH));
        let first = places.next()?;
        places.all(|place| place == first).then_some(first)
    }

    fn place(&self, at: u32, path: &[&str], depth: u32) -> Option<Field> {
        let (first, rest) = path.split_first()?;
        let depth = depth.checked_sub(1)?;
        let head = Head::read(self.types, at as usize)?;
        if !matches!(head.kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        for index in 0..head.count as usize {
            let member = at as usize + 12 + index * 12;
            let name = text(self.strings, word(self.types, member)?)?;
            let kind = word(self.types, member + 4)?;
            let offset = word(self.types, member + 8)?;
            // With the kind flag, the upper byte is the size of a bit field, 0 for any other member.
            let is_field = head.flag && offset >> 24 != 0;
            let offset = if head.flag { offset & 0x00ff_ffff } else { offset };
            let deeper = if name == *first {
                if rest.is_empty() {
                    let whole = !is_field && offset % 8 == 0;
                    let size = self.size(kind, depth).filter(|_| whole)?;
                    return Some(Field { offset: offset / 8, size });
                }
                rest
            } else if name.is_empty() {
                path
            } else {
                continue;
            };
            if let Some(inner) =
                self.resolve(kind, depth).and_then(|at| self.place(at, deeper, depth))
            {
                let offset = (offset / 8).checked_add(inner.offset)?;
                return Some(Field { offset, ..inner });
            }
        }
        None
    }

    /// The size in bytes of a type.
    fn size(&self, id: u32, depth: u32) -> Option<u32> {
        let depth = depth.checked_sub(1)?;
        let at = self.resolve(id, depth)? as usize;
        let head = Head::read(self.types, at)?;
        match head.kind {
            KIND_POINTER => u32::try_from(size_of::<u64>()).ok(),
            KIND_ARRAY => {
                let (element, count) = (word(self.types, at + 12)?, word(self.types, at + 20)?);
                self.size(element, depth)?.checked_mul(count)
            }
            KIND_INT | KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_ENUM64 => {
                Some(head.size_or_type)
            }
            _ => None,
        }
    }

    /// Start of the type behind qualifiers and typedefs.
    fn resolve(&self, mut id: u32, depth: u32) -> Option<u32> {
        for _ in 0..depth {
            let at = *self.starts.get((id as usize).checked_sub(1)?)?;
            let head = Head::read(self.types, at as usize)?;
            match head.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_TYPE_TAG => id = head.size_or_type,
                _ => return Some(at),
            }
        }
        None
    }
}

/// The first three words of every type (`struct btf_type`).
struct Head {
    name: u32,
    kind: u32,
    count: u32,
    flag: bool,
    size_or_type: u32,
}

impl Head {
    fn read(types: &[u8], at: usize) -> Option<Self> {
        let info = word(types, at + 4)?;
        Some(Self {
            name: word(types, at)?,
            kind: info >> 24 & 0x1f,
            count: info & 0xffff,
            flag: info >> 31 == 1,
            size_or_type: word(types, at + 8)?,
        })
    }

    /// Number of bytes after the head.
    fn extra(&self) -> Result<usize, BtfError> {
        let count = self.count as usize;
        Ok(match self.kind {
            KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
            KIND_ARRAY => 12,
            KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => count * 12,
            KIND_ENUM | KIND_FUNC_PROTO => count * 8,
            // Pointer, forward, typedef, qualifiers, function, float, type tag.
            KIND_POINTER | 7..=12 | 16 | KIND_TYPE_TAG => 0,
            kind => return Err(BtfError::Kind(kind)),
        })
    }
}

/// The type section and the string section.
fn sections(btf: &[u8]) -> Result<(&[u8], &[u8]), BtfError> {
    let magic = btf.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
    if magic != Some(MAGIC) {
        return Err(BtfError::Header);
    }
    let part = |at| -> Option<&[u8]> {
        let begin = word(btf, 4)?.checked_add(word(btf, at)?)? as usize;
        btf.get(begin..begin.checked_add(word(btf, at + 4)? as usize)?)
    };
    part(8).zip(part(16)).ok_or(BtfError::Truncated)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn text(strings: &[u8], at: u32) -> Option<&str> {
    let tail = strings.get(at as usize..)?;
    let end = tail.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&tail[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a BTF blob of a few structs.
    #[derive(Default)]
    struct Blob {
        types: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Blob {
        fn new() -> Self {
            Self { types: Vec::new(), strings: vec![0] }
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend(name.bytes().chain([0]));
            at
        }

        fn words(&mut self, words: &[u32]) {
            self.types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }

        /// Members are (name, type, offset in bits).
        fn structure(&mut self, name: &str, size: u32, flag: bool, members: &[(&str, u32, u32)]) {
            let name = self.name(name);
            let flag = u32::from(flag) << 31;
            self.words(&[name, KIND_STRUCT << 24 | members.len() as u32 | flag, size]);
            for (member, kind, offset) in members {
                let member = self.name(member);
                self.words(&[member, *kind, *offset]);
            }
        }

        fn bytes(&self) -> Vec<u8> {
            let mut bytes = Vec::new();
            bytes.extend(MAGIC.to_ne_bytes());
            bytes.extend([1, 0]);
            let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
            for word in [24, 0, types, types, strings] {
                bytes.extend(u32::to_ne_bytes(word));
            }
            bytes.extend(&self.types);
            bytes.extend(&self.strings);
            bytes
        }
    }

    fn sample() -> Vec<u8> {
        let mut blob = Blob::new();
        // 1: an int
        blob.words(&[0, KIND_INT << 24, 4, 32]);
        // 2: struct ns { int ops; int inum; }
        blob.structure("ns", 8, false, &[("ops", 1, 0), ("inum", 1, 32)]);
        // 3: an anonymous struct { int deep; }
        blob.structure("", 12, false, &[("deep", 1, 64)]);
        // 4: const struct ns
        blob.words(&[0, KIND_CONST << 24, 2]);
        // 5: struct net { bit field of 3 bits at 5; const struct ns ns at 16; anonymous at 32 }
        let members = [("flags", 1, 3 << 24 | 5), ("ns", 4, 128), ("", 3, 256)];
        blob.structure("net", 44, true, &members);
        blob.bytes()
    }

    #[test]
    fn members_are_found_through_qualifiers_and_anonymous_structs() {
        let btf = sample();
        let structs = Structs::find(&btf, ["net", "ns"]).unwrap();
        let place = |offset, size| Some(Field { offset, size });
        assert_eq!(structs.member("ns", "inum"), place(4, 4));
        assert_eq!(structs.member("net", "ns"), place(16, 8));
        assert_eq!(structs.member("net", "ns.inum"), place(20, 4));
        assert_eq!(structs.member("net", "deep"), place(40, 4));
    }

    #[test]
    fn what_is_not_there_is_none() {
        let btf = sample();
        let structs = Structs::find(&btf, ["net", "gone"]).unwrap();
        assert_eq!(structs.member("net", "cookie"), None);
        assert_eq!(structs.member("net", "ns.cookie"), None);
        assert_eq!(structs.member("net", "flags"), None, "it does not begin at a byte");
        assert_eq!(structs.member("gone", "x"), None);
        assert_eq!(structs.member("ns", "ops"), None, "it was not asked for");
    }

    #[test]
    fn the_size_of_a_member_is_that_of_its_type() {
        let mut blob = Blob::new();
        blob.words(&[0, KIND_INT << 24, 1, 8]);
        blob.words(&[0, KIND_POINTER << 24, 0]);
        // Four bytes, and zero bytes.
        blob.words(&[0, KIND_ARRAY << 24, 0, 1, 1, 4]);
        blob.words(&[0, KIND_ARRAY << 24, 0, 1, 1, 0]);
        let members = [("tail", 4, 128), ("byte", 1, 0), ("pointer", 2, 64), ("bytes", 3, 32)];
        blob.structure("all", 16, false, &members);
        let btf = blob.bytes();
        let structs = Structs::find(&btf, ["all"]).unwrap();
        let size = |name| structs.member("all", name).map(|place| place.size);
        assert_eq!(
            ["byte", "pointer", "bytes", "tail"].map(size),
            [Some(1), Some(8), Some(4), Some(0)]
        );
    }

    #[test]
    fn a_member_of_which_definitions_differ_is_refused() {
        let mut blob = Blob::new();
        blob.words(&[0, KIND_INT << 24, 4, 32]);
        blob.words(&[0, KIND_INT << 24, 8, 64]);
        let first = [("same", 1, 0), ("moved", 1, 32), ("wider", 1, 64), ("only", 1, 96)];
        blob.structure("twice", 16, false, &first);
        blob.structure("twice", 24, false, &[("same", 1, 0), ("wider", 2, 64), ("moved", 1, 128)]);
        let btf = blob.bytes();
        let structs = Structs::find(&btf, ["twice"]).unwrap();
        assert_eq!(structs.member("twice", "same"), Some(Field { offset: 0, size: 4 }));
        assert_eq!(structs.member("twice", "only"), Some(Field { offset: 12, size: 4 }));
        assert_eq!(structs.member("twice", "moved"), None);
        assert_eq!(structs.member("twice", "wider"), None);
    }

    #[test]
    fn no_prefix_of_a_blob_panics() {
        let btf = sample();
        for end in 0..btf.len() {
            assert!(Structs::find(&btf[..end], ["net"]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_struct_that_contains_itself_ends() {
        let mut blob = Blob::new();
        blob.structure("loop", 8, false, &[("", 1, 0)]);
        let btf = blob.bytes();
        assert_eq!(Structs::find(&btf, ["loop"]).unwrap().member("loop", "x"), None);
    }
}
