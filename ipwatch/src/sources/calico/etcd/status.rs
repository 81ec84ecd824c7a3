//! Interprets errors of the v3 API.

use tonic::{Code, Status};

use super::error::EtcdError;
use crate::sources::errors::{chain, cut};

/// Maximum size in bytes of a message. If a page is larger, smaller pages are requested.
pub(super) const MESSAGE_LIMIT: usize = 16 << 20;

/// etcd's own messages (`etcdserver/api/v3rpc/rpctypes/error.go`), which are more precise than its codes.
const NO_LEADER: &str = "no leader";
const COMPACTED: &str = "required revision has been compacted";
const FUTURE: &str = "required revision is a future revision";

pub(super) fn why(what: &'static str, status: &Status) -> EtcdError {
    // An error of the connection has a source; one that etcd returned has none.
    if let Some(source) = std::error::Error::source(status) {
        return EtcdError::Broken { what, why: chain(source) };
    }
    said(what, status.code(), status.message())
}

/// The same from code and message, which a watch has too.
pub(super) fn said(what: &'static str, code: Code, text: &str) -> EtcdError {
    let why = cut(text);
    match code {
        _ if text.contains(NO_LEADER) => EtcdError::NoLeader { what },
        _ if text.contains(COMPACTED) || text.contains(FUTURE) => {
            EtcdError::Expired { what, why: "what was told last is too long ago (compacted)" }
        }
        Code::Unauthenticated => EtcdError::Credentials { what, why },
        // For a wrong password, and for none.
        Code::InvalidArgument if text.contains("authentication failed") => {
            EtcdError::Credentials { what, why }
        }
        Code::InvalidArgument if text.contains("user name is empty") => {
            EtcdError::Credentials { what, why }
        }
        Code::PermissionDenied => EtcdError::Denied { what, why },
        _ if text.contains("permission denied") => EtcdError::Denied { what, why },
        // From tonic's decoder.
        Code::OutOfRange | Code::ResourceExhausted if text.contains("message length too large") => {
            EtcdError::TooLarge { what, limit: MESSAGE_LIMIT >> 20 }
        }
        _ => EtcdError::Broken { what, why },
    }
}
