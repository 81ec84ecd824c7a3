//! Answers in the types of the JSON contract. Nothing here changes the map.
//!
//! - `netns`: netns, their interfaces and what is in them. `neighbours`: neighbour entries and who claims an IP.
//!   `ipam`: ranges and reservations. `runs`: runs of CNI plugins.
//! - `verdict`: whether an IP can be given to a new container on this node, and why not.

mod ipam;
mod neighbours;
mod netns;
mod runs;
mod verdict;

pub(super) use netns::interface_view;
pub use netns::{scope_name, state_name};
