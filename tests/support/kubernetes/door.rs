//! A way to the API server for who is in another netns than it, as the daemon is: what comes to a port of this one's
//! loopback device goes on to the server's. TLS goes through it as it is. It can be shut, as a network can.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::sys;

/// The port of the server, on its own loopback device.
const PORT: u16 = 6443;

/// It is there until the process ends.
#[derive(Debug, Clone)]
pub struct Door {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    shut: AtomicBool,
    came: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

impl Door {
    pub(super) fn open(netns: &Path) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
        let port = listener.local_addr().expect("a port").port();
        let door = Self { port, state: Arc::default() };
        let (netns, state) = (netns.to_owned(), Arc::clone(&door.state));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                state.came.fetch_add(1, Ordering::SeqCst);
                let (netns, state) = (netns.clone(), Arc::clone(&state));
                std::thread::spawn(move || state.pass(&stream, netns));
            }
        });
        door
    }

    /// Where the API server is, through it.
    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// How many connections have come to it, those to a shut one included.
    #[must_use]
    pub fn came(&self) -> usize {
        self.state.came.load(Ordering::SeqCst)
    }

    /// Cuts every connection, and lets none through.
    pub fn shut(&self) {
        self.state.shut.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Lets them through again.
    pub fn reopen(&self) {
        self.state.shut.store(false, Ordering::SeqCst);
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        let mut open = self.state.open.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    /// Passes on both ways, until either end closes.
    fn pass(&self, near: &TcpStream, netns: PathBuf) {
        let connect = || {
            sys::enter_netns(&netns)?;
            TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))
        };
        if self.shut.load(Ordering::SeqCst) {
            return;
        }
        // A server that is down: its client sees a connection that ends.
        let Ok(far) = sys::on_own_thread(connect) else { return };
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            // It may have been shut meanwhile.
            if self.shut.load(Ordering::SeqCst) {
                return;
            }
            open.extend(near.try_clone());
        }
        std::thread::scope(|scope| {
            scope.spawn(|| copy(near, &far));
            copy(&far, near);
        });
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    // Also where it broke: nobody waits for the other half of it.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
