//! A NIC of the node in the netns of a dead sandbox.

support::tests! {}
