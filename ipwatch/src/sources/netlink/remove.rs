//! The one change in the host's netns that a person may ask for (`ipwatch fix`): a pair of devices goes. The daemon never
//! does this.

use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;

use super::requests::request_socket;
use super::talk::Talk;

/// A request and its answer are some hundred bytes.
const BUFFER: usize = 8192;

/// Deletes the device with this index in the netns of the calling thread; the other end of a pair goes with it. By its
/// index alone: an index is given to no other device before all others were (`dev_index_reserve`, net/core/dev.c), a name
/// at once.
///
/// # Errors
/// As RTM_DELLINK.
pub(crate) fn remove_link(ifindex: u32) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    let (socket, mut buffer, mut sequence) = (request_socket()?, vec![0; BUFFER], 0);
    let mut talk = Talk { socket: &socket, buffer: &mut buffer, sequence: &mut sequence };
    talk.change(RouteNetlinkMessage::DelLink(link), 0)
}
