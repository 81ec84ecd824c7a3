//! The parts of a bolt file: its two meta pages, and pages with elements (`bbolt`, `internal/common/{meta,page}.go`).
//! In the byte order of its machine, which is little-endian here.

/// The two kinds of pages with elements.
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

/// id, flags, count, overflow.
const HEADER: usize = 16;
/// Size of an element, the same for both kinds.
const ELEMENT: usize = 16;
/// Number of bytes of a meta page that its checksum covers.
const SUMMED: usize = 56;

const SMALLEST_PAGE: usize = 512;
/// On machines with large pages.
pub(super) const LARGEST_PAGE: usize = 65536;

/// Why a file is damaged, or not a bolt file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Neither meta page is valid.
    #[error("not a bolt file: no meta page has the right magic number, version and checksum")]
    NoMeta,
    /// It exceeds the size limit.
    #[error("larger than 64 MiB")]
    TooLarge,
    /// A page is beyond the end of the file.
    #[error("damaged: page {0} is beyond its end")]
    Beyond(u64),
    /// A page has another number or kind than expected.
    #[error("damaged: page {0} is not of the expected type")]
    Page(u64),
    /// An element extends beyond its page.
    #[error("damaged: an offset on a page points outside it")]
    Element,
    /// A page is reached twice: a cycle.
    #[error("damaged: page {0} is used twice")]
    Twice(u64),
    /// Buckets are nested too deep, or one value is used under many keys.
    #[error("damaged: a count is larger than its page can hold")]
    TooMuch,
}

/// A meta page, which a transaction writes last: it points to the root bucket. There are two, written in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) page_size: usize,
    /// The root bucket's page.
    pub(super) root: u64,
    /// The first page that is not in use.
    pub(super) pages: u64,
    /// Grows with every transaction.
    txid: u64,
}

impl Meta {
    /// The newest valid meta page in a file, or in its beginning.
    pub(super) fn newest(bytes: &[u8]) -> Result<Self, Malformed> {
        let first = Self::at(bytes, 0);
        let second = match first {
            Some(first) => Self::at(bytes, first.page_size),
            // The offset of the second meta page is the page size, which only a meta page contains.
            None => std::iter::successors(Some(SMALLEST_PAGE), |size| Some(size * 2))
                .take_while(|size| *size <= LARGEST_PAGE)
                .find_map(|size| Self::at(bytes, size).filter(|meta| meta.page_size == size)),
        };
        let newest = first.into_iter().chain(second).max_by_key(|meta| meta.txid);
        newest.ok_or(Malformed::NoMeta)
    }

    fn at(bytes: &[u8], offset: usize) -> Option<Self> {
        let meta = bytes.get(offset..)?.get(HEADER..)?;
        let page_size = usize::try_from(u32_at(meta, 8)?).ok()?;
        let known = u32_at(meta, 0)? == MAGIC && u32_at(meta, 4)? == VERSION;
        let sized =
            (SMALLEST_PAGE..=LARGEST_PAGE).contains(&page_size) && page_size.is_power_of_two();
        let whole = u64_at(meta, SUMMED)? == fnv1a(meta.get(..SUMMED)?);
        (known && sized && whole).then_some(Self {
            page_size,
            root: u64_at(meta, 16)?,
            pages: u64_at(meta, 40)?,
            txid: u64_at(meta, 48)?,
        })
    }
}

/// One page, with its overflow pages.
#[derive(Clone, Copy)]
pub(super) struct Page<'a> {
    bytes: &'a [u8],
    count: usize,
    pub(super) leaf: bool,
    /// Number of pages of the file that it occupies.
    pub(super) pages: usize,
}

impl<'a> Page<'a> {
    /// Page `id` of the file.
    pub(super) fn numbered(bytes: &'a [u8], meta: &Meta, id: u64) -> Result<Self, Malformed> {
        let beyond = Malformed::Beyond(id);
        if id >= meta.pages {
            return Err(beyond);
        }
        let offset = usize::try_from(id).ok().and_then(|id| id.checked_mul(meta.page_size));
        let from = offset.and_then(|offset| bytes.get(offset..)).ok_or(beyond)?;
        let overflow = u32_at(from, 12).ok_or(beyond)? as usize;
        let pages = overflow.checked_add(1).ok_or(beyond)?;
        let size = pages.checked_mul(meta.page_size);
        let page = size.and_then(|size| from.get(..size)).ok_or(beyond)?;
        if u64_at(page, 0) != Some(id) {
            return Err(Malformed::Page(id));
        }
        Self::new(page, pages).ok_or(Malformed::Page(id))
    }

    /// The page within the value of a small bucket, which has no page of its own.
    pub(super) fn inline(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::new(bytes, 0).filter(|page| page.leaf).ok_or(Malformed::Element)
    }

    fn new(bytes: &'a [u8], pages: usize) -> Option<Self> {
        let leaf = match u16_at(bytes, 8)? {
            BRANCH => false,
            LEAF => true,
            _ => return None,
        };
        Some(Self { bytes, count: usize::from(u16_at(bytes, 10)?), leaf, pages })
    }

    /// The numbers of the pages below a branch page.
    pub(super) fn children(self) -> impl Iterator<Item = Result<u64, Malformed>> {
        self.elements().map(|element| u64_at(element?, 8).ok_or(Malformed::Element))
    }

    /// The items on a leaf page.
    pub(super) fn items(self) -> impl Iterator<Item = Result<Item<'a>, Malformed>> {
        self.elements().map(|element| Item::of(element?).ok_or(Malformed::Element))
    }

    /// For each element, the bytes from its start to the end of the page, because offsets count from the element.
    fn elements(self) -> impl Iterator<Item = Result<&'a [u8], Malformed>> {
        (0..self.count)
            .map(move |n| self.bytes.get(HEADER + n * ELEMENT..).ok_or(Malformed::Element))
    }
}

/// A key with its value.
pub(super) struct Item<'a> {
    pub(super) bucket: bool,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> Item<'a> {
    fn of(element: &'a [u8]) -> Option<Self> {
        let number = |at| u32_at(element, at).map(|number| number as usize);
        let rest = element.get(number(4)?..)?;
        let (key, rest) = rest.split_at_checked(number(8)?)?;
        Some(Self { bucket: number(0)? & 1 != 0, key, value: rest.get(..number(12)?)? })
    }
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes))
}

/// FNV-1a of 64 bits.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
