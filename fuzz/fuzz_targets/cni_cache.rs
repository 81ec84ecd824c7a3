//! The bytes as a file of the CNI result cache.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::cni_cache(bytes));
