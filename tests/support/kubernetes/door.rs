//! A way to the API server for who is in another netns than it, as the daemon is: what comes to a port of this one's
//! loopback device goes on to the server's. TLS goes through it as it is.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use crate::sys;

/// The port of the server, on its own loopback device.
const PORT: u16 = 6443;

/// Opens it, and says which port it is. It is open until the process ends.
pub(super) fn open(netns: &Path) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
    let port = listener.local_addr().expect("a port").port();
    let netns = netns.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let netns = netns.clone();
            std::thread::spawn(move || pass(&stream, netns));
        }
    });
    port
}

/// Passes on both ways, until either end closes.
fn pass(near: &TcpStream, netns: PathBuf) {
    let connect = || {
        sys::enter_netns(&netns)?;
        TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))
    };
    // A server that is down: its client sees a connection that ends.
    let Ok(far) = sys::on_own_thread(connect) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| copy(near, &far));
        copy(&far, near);
    });
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    // Also where it broke: nobody waits for the other half of it.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
