//! `ipwatch fix`: does what a finding's FIX says, if that is certain.
//!
//! The daemon changes nothing. This is a command, and changes with the rights of the person who runs it. It changes
//! four things: it moves leaked reservations of host-local out of their store (`host_local`), removes leaked allocations
//! of Whereabouts and Calico from their objects in the API server (`whereabouts`, `calico`, by `api_server`), unmounts a
//! leaked netns that nothing else holds, and deletes a pair of devices that leads to no pod (`node`). It never touches a process, a
//! FUSE connection or a container's mount.
//!
//! - `plan`, pure: what is to be changed and why, or why not, from the daemon's documents.
//! - `act`: checks everything again at the moment of each change. The daemon is asked again, and its answers must give the
//!   same plan; files, mounts and netns are read again by this process. An item that does not pass a check is skipped.
//! - `record`: the directory with the files that were moved, and who ran the command. `undo` restores files from it.

pub(crate) mod act;
pub(crate) mod api_server;
mod calico;
mod cluster_store;
mod host_local;
pub(crate) mod log;
mod node;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod undo;
mod whereabouts;
mod who;
