//! One request over the control socket; a question over the read-only one where that is all that this
//! user may use.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use timevisor_protocols::control::{
    ClientCodec, ErrorBody, OBSERVE_NAME, OBSERVERS, Request, Response, SOCKET_NAME,
};

use crate::exit::NobodyThere;

/// The daemon answers in well under a millisecond; one that does not answer in this is stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where it changes the scheduling of threads, the kernel and the VM keep it waiting; on a busy host for seconds.
const PATIENCE_OF_CHANGES: Duration = Duration::from_secs(30);

/// The daemon's answer when it refuses a request.
#[derive(Debug)]
pub struct Refused(pub ErrorBody);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.message, self.0.next_step)
    }
}

impl std::error::Error for Refused {}

/// Asks the daemon; its error answers become errors here.
pub fn ask(run_directory: &Path, request: &Request) -> Result<Response> {
    let mut stream = connect(run_directory, request)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream
        .write_all(&ClientCodec::encode(request)?)
        .context("the daemon closed the control socket")?;
    let mut codec = ClientCodec::default();
    let mut buffer = [0u8; 8192];
    let (began, patience) = (Instant::now(), patience(request));
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(count) => count,
            // That is how a timeout of a socket ends.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let waited = began.elapsed();
                if waited >= patience {
                    return Err(silent(waited));
                }
                eprintln!("still waiting for timevisord ({} s)", waited.as_secs());
                continue;
            }
            Err(error) => return Err(error).context("the control socket cannot be read"),
        };
        if count == 0 {
            bail!(
                "the daemon closed the control socket without an answer; see `journalctl -u timevisord`"
            );
        }
        if let Some(response) = codec.on_bytes(&buffer[..count]).into_iter().next() {
            return match response? {
                Response::Error(error) => Err(Refused(error).into()),
                response => Ok(response),
            };
        }
    }
}

/// How long to wait for the answer.
const fn patience(request: &Request) -> Duration {
    match request {
        Request::ReserveApply(_) | Request::ReserveMove(_) | Request::ReserveRelease(_) => {
            PATIENCE_OF_CHANGES
        }
        _ => PATIENCE,
    }
}

fn silent(waited: Duration) -> anyhow::Error {
    let text = format!(
        "timevisord has not answered for {} s; see `journalctl -u timevisord`",
        waited.as_secs()
    );
    anyhow!(NobodyThere(text))
}

fn connect(run_directory: &Path, request: &Request) -> Result<UnixStream> {
    let control = run_directory.join(SOCKET_NAME);
    let error = match UnixStream::connect(&control) {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    let is_roots = error.kind() == ErrorKind::PermissionDenied;
    if !is_roots || request.question().is_none() {
        return Err(explain(&control, error));
    }
    let observe = run_directory.join(OBSERVE_NAME);
    UnixStream::connect(&observe).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => anyhow!(
            "{} is for root and the group {OBSERVERS}; run this as root, or let root add you with `usermod -aG {OBSERVERS} USER` \
             and log in again (`timevisor now` needs neither)",
            observe.display()
        ),
        // A daemon that is older than this socket.
        ErrorKind::NotFound => explain(&control, ErrorKind::PermissionDenied.into()),
        _ => explain(&observe, error),
    })
}

fn explain(path: &Path, error: std::io::Error) -> anyhow::Error {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            let here = if is_guest() {
                "; in a guest, ask on its host: here `timevisor now` reads the host's clock"
            } else {
                ""
            };
            anyhow!(NobodyThere(format!(
                "timevisord is not running (nobody listens at {path}); start it with `systemctl start timevisord`{here}"
            )))
        }
        ErrorKind::PermissionDenied => {
            anyhow!("{path} is root's; run this as root (`timevisor now` needs no root)")
        }
        _ => anyhow::Error::new(error).context(format!("cannot connect to {path}")),
    }
}

/// Whether a host serves this machine as its guest. A host of VMs may be somebody's guest, too.
pub fn is_guest() -> bool {
    Path::new("/dev/vmclock0").exists()
        || matches!(timevisor_linux::pci::ivshmem_page(), Ok(Some(_)))
}

/// The answer is not of the kind that was asked for.
pub fn unexpected(response: &Response) -> anyhow::Error {
    anyhow!(
        "the daemon answered something else ({response:?}); install the same version of timevisor and timevisord"
    )
}
