//! The bytes as text pasted into `ipwatch explain`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::paste(bytes));
