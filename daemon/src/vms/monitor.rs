//! One QMP connection: bytes in, events out. The codec and its state machine are crates/protocols'.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;
use timevisor_linux::peer::peer_pid;
use timevisor_protocols::qmp::{QmpItem, QueryStatus, Session, VmEvent};

/// What came of reading.
pub enum News {
    /// Something happened to the VM.
    Event(VmEvent),
    /// The answer to the query at the start: do the vCPUs run?
    Running(bool),
    /// The connection is of no use any more.
    Lost(String),
}

pub struct Monitor {
    path: PathBuf,
    stream: UnixStream,
    session: Session,
    status_query: Option<u64>,
    /// `cont` is to be sent when the page is ready.
    resume: bool,
}

impl Monitor {
    /// Connects; QEMU's greeting is awaited by [`Self::read`].
    pub fn connect(path: &Path, resume: bool) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| {
            format!("cannot connect to the QMP socket {}; is the VM running?", path.display())
        })?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            path: path.to_owned(),
            stream,
            session: Session::default(),
            status_query: None,
            resume,
        })
    }

    /// Whose monitor this is.
    pub fn pid(&self) -> Result<u32> {
        peer_pid(&self.stream).with_context(|| {
            format!("{} does not tell whose it is; give --pid", self.path.display())
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Everything that has arrived.
    pub fn read(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        let mut buffer = [0u8; 16 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    news.push(News::Lost("QEMU closed its QMP socket".to_owned()));
                    return news;
                }
                Ok(count) => {
                    for item in self.session.on_bytes(&buffer[..count]) {
                        if let Some(found) = self.take(item) {
                            let lost = matches!(found, News::Lost(_));
                            news.push(found);
                            if lost {
                                return news;
                            }
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return news,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    news.push(News::Lost(format!("the QMP socket failed: {error}")));
                    return news;
                }
            }
        }
    }

    fn take(&mut self, item: QmpItem) -> Option<News> {
        match item {
            QmpItem::Send(bytes) => self.send(&bytes),
            QmpItem::Ready { version } => {
                tracing::debug!("{}: QEMU {version}", self.path.display());
                // MIGRATION events come only when asked for.
                let events = json!({"capabilities": [{"capability": "events", "state": true}]});
                let (_, bytes) = self.session.command("migrate-set-capabilities", Some(events));
                let sent = self.send(&bytes);
                let (id, bytes) = self.session.command("query-status", None);
                self.status_query = Some(id);
                sent.or_else(|| self.send(&bytes))
            }
            QmpItem::Event(event) => Some(News::Event(VmEvent::from(&event))),
            QmpItem::Reply { id, result } => self.reply(id, result),
            QmpItem::Fault(fault) => Some(News::Lost(format!("QMP: {fault}"))),
        }
    }

    fn reply(
        &mut self,
        id: u64,
        result: Result<serde_json::Value, timevisor_protocols::qmp::QmpError>,
    ) -> Option<News> {
        let is_status = self.status_query == Some(id);
        match result {
            Ok(value) if is_status => {
                self.status_query = None;
                match QueryStatus::from_reply(&value) {
                    Ok(status) => Some(News::Running(status.running)),
                    Err(error) => Some(News::Lost(error.to_string())),
                }
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!("{}: QEMU refused a command: {error}", self.path.display());
                None
            }
        }
    }

    /// Lets the VM run, if that was asked for; once.
    pub fn resume_if_asked(&mut self) {
        if std::mem::take(&mut self.resume) {
            let (_, bytes) = self.session.command("cont", None);
            if let Some(News::Lost(reason)) = self.send(&bytes) {
                tracing::warn!("{}: {reason}", self.path.display());
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Option<News> {
        match self.stream.write_all(bytes) {
            Ok(()) => None,
            Err(error) => Some(News::Lost(format!("the QMP socket failed: {error}"))),
        }
    }
}
