//! The link to QEMU's plugin or to its gdb stub: a socket.

use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use timevisor_introspection::backend::gdb::{LAST_WORDS, QUIET};
use timevisor_introspection::backend::{Action, Backend, Input};
use timevisor_linux::clock::monotonic;
use timevisor_linux::last_words::{Relay, relay};
use timevisor_linux::peer;
use timevisor_linux::process::Process;

use super::link::Link;

/// Maximum delay before a detachment is noticed.
const TURN: Duration = Duration::from_millis(20);

/// The VM has ended, or somebody else has taken its plugin or its stub.
const CLOSED: &str = "QEMU has closed the connection";

pub struct Socket {
    /// Dropped first: the relay ends when this stream closes, and its drop waits for that.
    stream: UnixStream,
    _relay: Option<Relay>,
}

impl Socket {
    /// Connects to the plugin, if this QEMU listens there.
    pub fn connect(path: &Path, process: Process) -> Result<Self> {
        Self::patient(open(path, process)?, None)
    }

    /// Connects to the gdb stub, which stops the VM immediately. A relay tells the stub to resume
    /// the VM, however this process ends.
    pub fn debug(path: &Path, process: Process) -> Result<Self> {
        let (stream, relay) = relay(open(path, process)?, LAST_WORDS, QUIET)?;
        Self::patient(stream, Some(relay))
    }

    fn patient(stream: UnixStream, relay: Option<Relay>) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(TURN))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self { stream, _relay: relay })
    }
}

/// A VM that ends closes the connection in one of these ways.
fn failed(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => anyhow!(CLOSED),
        _ => anyhow!(error).context("QEMU's socket"),
    }
}

fn open(path: &Path, process: Process) -> Result<UnixStream> {
    let shown = path.display();
    let stream = peer::connect(path).with_context(|| format!("cannot connect to {shown}"))?;
    let (owner, pid) = (peer::peer_pid(&stream)?, process.pid());
    ensure!(owner == pid, "{shown} belongs to process {owner}, not to {pid}");
    Ok(stream)
}

impl Link for Socket {
    fn turn(&mut self, backend: &mut dyn Backend) -> Result<Vec<Action>> {
        let mut buffer = [0; 65536];
        let mut actions = Vec::new();
        if backend.may_read(monotonic()) {
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!(CLOSED),
                Ok(len) => actions = backend.handle(Input::Bytes(&buffer[..len]), monotonic()),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(failed(e)),
            }
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
        actions.extend(backend.handle(Input::Timer, monotonic()));
        Ok(actions)
    }

    fn act(&mut self, action: Action, _backend: &mut dyn Backend) -> Result<Vec<Action>> {
        match action {
            Action::Send(bytes) => self.stream.write_all(&bytes).map_err(failed)?,
            other => bail!("QEMU cannot do this: {other:?}"),
        }
        Ok(Vec::new())
    }
}
