//! The thread that keeps the files of NTS: it reads a renewed certificate and its key, and writes the
//! keys of cookies.
//!
//! It has the daemon's rights, because root alone can read these files, and so it touches nothing
//! that a client sends. The thread that does has no files: it takes the certificate and the keys
//! from here.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};

use timevisor_linux::clock::monotonic;
use timevisor_protocols::nts::server::Identity;

use super::certificate::Certificate;
use super::keys::KeyStore;
use super::{LOOK, Shown};

pub(super) struct Files {
    pub certificate: Certificate,
    pub store: KeyStore,
    /// The certificate that clients are shown from now on.
    pub identity: Arc<Mutex<Identity>>,
    pub shown: Arc<Shown>,
}

impl Files {
    /// Looks after the files until the daemon ends.
    pub(super) fn run(mut self, ended: &Receiver<()>) {
        while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            self.look();
        }
    }

    fn look(&mut self) {
        if self.certificate.look() {
            if let Ok(mut identity) = self.identity.lock() {
                identity.clone_from(self.certificate.identity());
            }
            if let Ok(mut problem) = self.shown.problem.lock() {
                *problem = self.certificate.problem().map(ToOwned::to_owned);
            }
        }
        if let Err(error) = self.store.rotate_if_due(monotonic()) {
            tracing::warn!("NTS cookies keep their key for now: {error:#}");
        }
    }
}
