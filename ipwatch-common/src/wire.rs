//! Parses records without `unsafe`.

/// A value that a record contains as plain bytes.
pub trait Wire: Sized {
    /// Its size in bytes.
    const SIZE: usize;

    /// Takes the value from the front of `bytes`; `None` if there are too few bytes.
    fn take(bytes: &mut &[u8]) -> Option<Self>;
}

macro_rules! number {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            const SIZE: usize = size_of::<$number>();

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (head, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_ne_bytes(*head))
            }
        }
    )*};
}

number!(u8, u16, u32, u64);

impl<const N: usize> Wire for [u8; N] {
    const SIZE: usize = N;

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(*head)
    }
}

/// Defines a struct of the shared layout, checks that it has no padding, and implements [`Wire`].
macro_rules! record {
    (
        $(#[$doc:meta])*
        pub struct $name:ident {
            $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::Wire for $name {
            const SIZE: usize = size_of::<Self>();

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                // In the order of the struct: fields are evaluated as written.
                Some(Self { $($field: <$type as $crate::Wire>::take(bytes)?,)* })
            }
        }

        const _: () = {
            let fields = 0 $(+ <$type as $crate::Wire>::SIZE)*;
            assert!(size_of::<$name>() == fields, "a record must have no padding");
            assert!(align_of::<$name>() <= 8, "the ring buffer aligns to 8 bytes");
        };
    };
}

pub(crate) use record;

#[cfg(test)]
mod tests {
    use crate::{Header, Netns, NetnsRecord, Wire, kind};

    #[test]
    fn a_record_reads_back_as_it_lies_in_memory() {
        let mut bytes = [0; NetnsRecord::SIZE];
        bytes[0..2].copy_from_slice(&kind::NETNS_GONE.to_ne_bytes());
        bytes[2..4].copy_from_slice(&32u16.to_ne_bytes());
        bytes[8..16].copy_from_slice(&7u64.to_ne_bytes());
        bytes[16..24].copy_from_slice(&0x1234_5678_9abc_def0u64.to_ne_bytes());
        bytes[24..28].copy_from_slice(&4_026_531_840u32.to_ne_bytes());
        let mut rest = &bytes[..];
        let record = NetnsRecord::take(&mut rest);
        let header = Header { kind: kind::NETNS_GONE, size: 32, reserved: 0, time: 7 };
        let netns = Netns { cookie: 0x1234_5678_9abc_def0, inode: 4_026_531_840, refs: 0 };
        assert_eq!(record, Some(NetnsRecord { header, netns }));
        assert!(rest.is_empty());
    }

    #[test]
    fn a_short_record_is_none() {
        let bytes = [0; NetnsRecord::SIZE - 1];
        assert_eq!(NetnsRecord::take(&mut &bytes[..]), None);
    }
}
