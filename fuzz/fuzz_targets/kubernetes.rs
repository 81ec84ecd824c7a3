//! The bytes as answers of the API server, a list and a line of a watch, of every kind that the daemon follows.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::kubernetes(bytes));
