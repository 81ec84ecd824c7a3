//! The bytes as answers of etcd's v2 API: a list, an event, a refusal.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::etcd_v2(bytes));
