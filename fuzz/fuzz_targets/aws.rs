//! The bytes as the AWS VPC CNI's checkpoint.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipwatch::fuzzing::aws(bytes));
