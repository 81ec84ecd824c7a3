//! The messages of etcd's v3 API that are used here, with only the fields that are used. The field numbers are those of
//! etcd 3.6 (`api/etcdserverpb/rpc.proto`, `api/mvccpb/kv.proto`); all of them exist since 3.0, except for the
//! fragments of a watch and the reason why one ends, which were added in 3.4.
//!
//! Written by hand: the generated client needs protoc, and has an API a hundred times as large.

use std::fmt;

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $key:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct $name { $($(#[$field])* pub(super) $key: $kind,)* }
    };
}

/// `RangeRequest.SortOrder`
pub(super) const ASCEND: i32 = 1;

message! {
    /// `etcdserverpb.ResponseHeader`
    ResponseHeader {
        #[prost(uint64, tag = "1")]
        cluster_id: u64,
        #[prost(int64, tag = "3")]
        revision: i64,
    }
}

message! {
    /// `etcdserverpb.RangeRequest`. The result is sorted by `SortTarget.KEY`, which is 0.
    RangeRequest {
        #[prost(bytes = "vec", tag = "1")]
        key: Vec<u8>,
        /// The first key after the range. Empty: only `key`.
        #[prost(bytes = "vec", tag = "2")]
        range_end: Vec<u8>,
        #[prost(int64, tag = "3")]
        limit: i64,
        /// 0: the newest.
        #[prost(int64, tag = "4")]
        revision: i64,
        #[prost(int32, tag = "5")]
        sort_order: i32,
        #[prost(bool, tag = "8")]
        keys_only: bool,
    }
}

message! {
    /// `etcdserverpb.RangeResponse`
    RangeResponse {
        #[prost(message, optional, tag = "1")]
        header: Option<ResponseHeader>,
        #[prost(message, repeated, tag = "2")]
        kvs: Vec<KeyValue>,
        #[prost(bool, tag = "3")]
        more: bool,
        /// The number of keys in the range, whatever the limit.
        #[prost(int64, tag = "4")]
        count: i64,
    }
}

message! {
    /// `mvccpb.KeyValue`
    KeyValue {
        #[prost(bytes = "vec", tag = "1")]
        key: Vec<u8>,
        #[prost(int64, tag = "3")]
        mod_revision: i64,
        /// 0 for a deleted key.
        #[prost(int64, tag = "4")]
        version: i64,
        #[prost(bytes = "vec", tag = "5")]
        value: Vec<u8>,
    }
}

message! {
    /// `mvccpb.Event`. Its type is not read, because the version of the key implies it.
    Event {
        #[prost(message, optional, tag = "2")]
        kv: Option<KeyValue>,
    }
}

message! {
    /// `etcdserverpb.WatchRequest`, of whose `request_union` only the first member is used.
    WatchRequest {
        #[prost(message, optional, tag = "1")]
        create_request: Option<WatchCreateRequest>,
    }
}

message! {
    /// `etcdserverpb.WatchCreateRequest`
    WatchCreateRequest {
        #[prost(bytes = "vec", tag = "1")]
        key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        range_end: Vec<u8>,
        #[prost(int64, tag = "3")]
        start_revision: i64,
        #[prost(bool, tag = "4")]
        progress_notify: bool,
        #[prost(bool, tag = "8")]
        fragment: bool,
    }
}

message! {
    /// `etcdserverpb.WatchResponse`
    WatchResponse {
        #[prost(message, optional, tag = "1")]
        header: Option<ResponseHeader>,
        #[prost(int64, tag = "2")]
        watch_id: i64,
        #[prost(bool, tag = "3")]
        created: bool,
        #[prost(bool, tag = "4")]
        canceled: bool,
        #[prost(int64, tag = "5")]
        compact_revision: i64,
        #[prost(string, tag = "6")]
        cancel_reason: String,
        #[prost(message, repeated, tag = "11")]
        events: Vec<Event>,
    }
}

/// `etcdserverpb.AuthenticateRequest`. Never shown.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

/// `etcdserverpb.AuthenticateResponse`. Never shown.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthenticateRequest(hidden)")
    }
}

impl fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthenticateResponse(hidden)")
    }
}
