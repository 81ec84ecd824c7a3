//! `ipwatch fix`: does what a finding's FIX says, where it is certain.
//!
//! The daemon changes nothing. This is a command, and changes with the rights of the person who runs it. It changes
//! three things: it moves leaked reservations of host-local out of their store (`host_local`), unmounts a leaked netns
//! that nothing else holds, and deletes a pair of devices that leads to no pod (`node`). It never touches a process, a
//! FUSE connection or a container's mount.
//!
//! - `plan`, pure: from the daemon's documents, what is to be changed and why; or why not.
//! - `act`: at the moment of each change everything is looked at again. The daemon is asked anew and the same plan is made
//!   of what it says; the files, the mounts and every netns are looked at by ourselves. What does not agree is skipped.
//! - `record`: the directory that keeps what was moved, and who had it done. `undo` brings it back from there.

pub(crate) mod act;
mod host_local;
mod log;
mod node;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod undo;
mod who;
