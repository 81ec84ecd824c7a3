//! Visits everything in a bolt file, safely whatever its pages contain: no recursion, every page once, and no more
//! bytes than the file has.

use std::rc::Rc;

use super::page::{Item, Malformed, Meta, Page, u64_at};

/// Maximum depth of nested buckets. The stores that are read have at most three levels.
const DEEPEST: usize = 8;

/// Size of a bucket's header: its root and its sequence number. An inline page follows it.
const BUCKET: usize = 16;

/// A value or a bucket.
pub(crate) struct Entry<'p, 'a> {
    /// The buckets that it is in, from the root.
    pub(crate) path: &'p [&'a [u8]],
    pub(crate) key: &'a [u8],
    /// Its value; `None` for a bucket.
    pub(crate) value: Option<&'a [u8]>,
}

pub(super) fn walk<'a, E: From<Malformed>>(
    bytes: &'a [u8],
    meta: &Meta,
    mut each: impl FnMut(&Entry<'_, 'a>) -> Result<(), E>,
) -> Result<(), E> {
    let mut walk = Walk {
        bytes,
        meta,
        seen: vec![false; bytes.len() / meta.page_size],
        // Keys and values do not overlap, except that those of an inline bucket are within a value.
        left: bytes.len().saturating_mul(2),
        todo: Vec::new(),
    };
    walk.add(&Rc::from([]), meta.root)?;
    while let Some((path, page)) = walk.todo.pop() {
        if page.leaf {
            walk.leaf(&path, page, &mut each)?;
        } else {
            page.children().try_for_each(|child| walk.add(&path, child?))?;
        }
    }
    Ok(())
}

/// The buckets that a page is in.
type Path<'a> = Rc<[&'a [u8]]>;

struct Walk<'a, 'm> {
    bytes: &'a [u8],
    meta: &'m Meta,
    /// Pages that were visited.
    seen: Vec<bool>,
    /// Number of bytes of keys and values that may still follow.
    left: usize,
    todo: Vec<(Path<'a>, Page<'a>)>,
}

impl<'a> Walk<'a, '_> {
    fn add(&mut self, path: &Path<'a>, id: u64) -> Result<(), Malformed> {
        let page = Page::numbered(self.bytes, self.meta, id)?;
        for id in (id..).take(page.pages) {
            let seen = usize::try_from(id).ok().and_then(|id| self.seen.get_mut(id));
            if std::mem::replace(seen.ok_or(Malformed::Beyond(id))?, true) {
                return Err(Malformed::Twice(id));
            }
        }
        self.todo.push((Rc::clone(path), page));
        Ok(())
    }

    fn leaf<E: From<Malformed>>(
        &mut self,
        path: &Path<'a>,
        page: Page<'a>,
        each: &mut impl FnMut(&Entry<'_, 'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        for item in page.items() {
            let item = item?;
            let size = BUCKET + item.key.len() + item.value.len();
            self.left = self.left.checked_sub(size).ok_or(Malformed::TooMuch)?;
            let value = (!item.bucket).then_some(item.value);
            each(&Entry { path, key: item.key, value })?;
            if item.bucket {
                self.bucket(path, &item)?;
            }
        }
        Ok(())
    }

    fn bucket(&mut self, path: &Path<'a>, bucket: &Item<'a>) -> Result<(), Malformed> {
        if path.len() >= DEEPEST {
            return Err(Malformed::TooMuch);
        }
        let path: Path<'a> = path.iter().copied().chain([bucket.key]).collect();
        match u64_at(bucket.value, 0).ok_or(Malformed::Element)? {
            0 => {
                let inline = bucket.value.get(BUCKET..).ok_or(Malformed::Element)?;
                self.todo.push((path, Page::inline(inline)?));
                Ok(())
            }
            root => self.add(&path, root),
        }
    }
}
