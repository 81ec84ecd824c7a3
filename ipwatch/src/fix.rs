//! `ipwatch fix`: does what a finding's FIX says, if that is certain.
//!
//! The daemon changes nothing. This command makes changes with the permissions of the person who runs it. It makes three
//! kinds of changes: it moves leaked reservations of host-local out of their store (`host_local`), unmounts a leaked netns
//! that nothing else holds (`node`), and deletes a pair of devices that connects no pod (`node/pair`). It never touches a
//! process, a FUSE connection or a container's mount.
//!
//! - `plan`, pure: what is to be changed and why, or why not, from the daemon's documents.
//! - `act`: checks everything again at the moment of each change. The daemon is asked again, and its answers must give the
//!   same plan; files, mounts and netns are read again by this process. An item that does not pass a check is skipped.
//! - `record`: the directory with the files that were moved, and who ran the command. `undo` restores files from it.

pub(crate) mod act;
mod host_local;
mod log;
mod node;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod undo;
mod who;
