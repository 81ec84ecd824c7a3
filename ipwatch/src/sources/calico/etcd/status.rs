//! What an error of the v3 API means.

use tonic::{Code, Status};

use super::error::EtcdError;
use crate::sources::errors::{chain, cut};

/// Longest message that is read. A page that is longer is asked for in smaller ones.
pub(super) const MESSAGE_LIMIT: usize = 16 << 20;

/// etcd's own texts (`etcdserver/api/v3rpc/rpctypes/error.go`), which say more than its codes.
const NO_LEADER: &str = "no leader";
const COMPACTED: &str = "required revision has been compacted";
const FUTURE: &str = "required revision is a future revision";

pub(super) fn why(what: &'static str, status: &Status) -> EtcdError {
    // What broke on the way has a source; what etcd said itself has none.
    if let Some(source) = std::error::Error::source(status) {
        return EtcdError::Broken { what, why: chain(source) };
    }
    said(what, status.code(), status.message())
}

/// The same of its words, as a watch has them too.
pub(super) fn said(what: &'static str, code: Code, text: &str) -> EtcdError {
    let why = cut(text);
    match code {
        _ if text.contains(NO_LEADER) => EtcdError::NoLeader { what },
        _ if text.contains(COMPACTED) || text.contains(FUTURE) => {
            EtcdError::Expired { what, why: "what was told last is too long ago (compacted)" }
        }
        Code::Unauthenticated => EtcdError::Credentials { what, why },
        // Of a wrong password, and of none.
        Code::InvalidArgument if text.contains("authentication failed") => {
            EtcdError::Credentials { what, why }
        }
        Code::InvalidArgument if text.contains("user name is empty") => {
            EtcdError::Credentials { what, why }
        }
        Code::PermissionDenied => EtcdError::Denied { what, why },
        _ if text.contains("permission denied") => EtcdError::Denied { what, why },
        // Of tonic's decoder.
        Code::OutOfRange | Code::ResourceExhausted if text.contains("message length too large") => {
            EtcdError::TooLarge { what, limit: MESSAGE_LIMIT >> 20 }
        }
        _ => EtcdError::Broken { what, why },
    }
}
