//! A man in the middle between an NTP client and its server: passes requests on, and answers after
//! the test has altered them.
//!
//! It handles one client and one request at a time. Requests are passed on unchanged.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_millis(80);

/// Maps the true answer to what is sent instead.
type Attack = Box<dyn FnMut(&[u8]) -> Vec<u8> + Send>;

#[derive(Default)]
struct Shared {
    attack: Mutex<Option<Attack>>,
    answers: AtomicU64,
    ended: AtomicBool,
}

/// A running relay; dropping it stops it.
pub struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Serves on `near` the answers of the server at `far`.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub fn start(near: UdpSocket, far: SocketAddr) -> anyhow::Result<Self> {
        let server = UdpSocket::bind("0.0.0.0:0")?;
        server.connect(far)?;
        server.set_read_timeout(Some(PATIENCE))?;
        near.set_read_timeout(Some(PATIENCE))?;
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || relay(&near, &server, &served));
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Alters every answer with `attack` from now on.
    pub fn attack(&self, attack: impl FnMut(&[u8]) -> Vec<u8> + Send + 'static) {
        *self.shared.attack.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(attack));
    }

    /// Passes answers unchanged from now on.
    pub fn relent(&self) {
        *self.shared.attack.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Number of answers passed on, altered or not.
    pub fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn relay(near: &UdpSocket, server: &UdpSocket, shared: &Shared) {
    let mut buffer = [0; 2048];
    while !shared.ended.load(Ordering::Relaxed) {
        let Ok((len, client)) = near.recv_from(&mut buffer) else { continue };
        if server.send(&buffer[..len]).is_err() {
            continue;
        }
        let Ok(len) = server.recv(&mut buffer) else { continue };
        let mut attack = shared.attack.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match attack.as_mut() {
            Some(attack) => attack(&buffer[..len]),
            None => buffer[..len].to_vec(),
        };
        let _ = near.send_to(&answer, client);
        shared.answers.fetch_add(1, Ordering::Relaxed);
    }
}
