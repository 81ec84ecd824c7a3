//! The bytes as the end of a runtime's log, searched for the failure of a call.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::cni_log(bytes));
