//! A connection to the API server from another netns, as the daemon's: forwards a port of this netns's loopback
//! device to the server's. TLS passes through unchanged. It can be shut, like a network.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::sys;

/// The port of the server, on its loopback device.
const PORT: u16 = 6443;

/// Exists until the process ends.
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

    /// The URL of the API server through this door.
    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Its port on the loopback device.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Number of connections so far, including those while it was shut.
    #[must_use]
    pub fn came(&self) -> usize {
        self.state.came.load(Ordering::SeqCst)
    }

    /// Cuts every connection, and accepts no new one.
    pub fn shut(&self) {
        self.state.shut.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Accepts connections again.
    pub fn reopen(&self) {
        self.state.shut.store(false, Ordering::SeqCst);
    }

    /// Cuts every open connection.
    pub fn cut(&self) {
        let mut open = self.state.open.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    /// Forwards in both directions until either end closes.
    fn pass(&self, near: &TcpStream, netns: PathBuf) {
        let connect = || {
            sys::enter_netns(&netns)?;
            TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))
        };
        if self.shut.load(Ordering::SeqCst) {
            return;
        }
        // If the server is down, its client sees a connection that ends.
        let Ok(far) = sys::on_own_thread(connect) else { return };
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            // The door may have been shut meanwhile.
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
    // Also after an error: the other half is then useless.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
