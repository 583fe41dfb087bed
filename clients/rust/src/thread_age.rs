//! The age of a thread, on hosts whose counter is not invariant.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use timevisor_linux::seqpacket::PacketStream;
use timevisor_protocols::ages::{ANSWER, Answer, Request, SOCKET};

/// Where timevisord listens unless configured otherwise.
const RUN_DIRECTORY: &str = "/run/timevisor";
/// It answers at once; one that does not within this is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// The age of the thread that began it: how long ago that was, counted by the processor.
///
/// On hosts whose counter is not invariant, timevisord keeps it by BPF programs over moves between
/// cores and changes of their frequencies. Every reading is later than the one before. It takes one
/// reading of the counter, and a system call only if the kernel missed a move.
///
/// The value stays on its thread. A thread has at most one, and a user at most 64 threads with one.
/// After a fork the child has none, and must not read its parent's.
#[derive(Debug)]
pub struct ThreadAge {
    #[cfg(target_arch = "x86_64")]
    reader: timevisor_linux::bpf::AgeReader<timevisor_linux::bpf::Records>,
    #[cfg(not(target_arch = "x86_64"))]
    reader: core::convert::Infallible,
    /// The registration ends with it.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "never made"))]
    connection: PacketStream,
}

/// Why a thread has no age, or why it is not known now.
#[derive(Debug, thiserror::Error)]
pub enum ThreadAgeError {
    /// Nobody listens.
    #[error(
        "no ages of threads are served at {path}; they are where the counter is not invariant (`timevisor elapsed --source`),          by a running timevisord whose directory this container shares"
    )]
    NotServed {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// timevisord did not answer.
    #[error("timevisord did not answer; too many may have asked at once, so try again")]
    NoAnswer(#[source] io::Error),
    /// What it answered is of another version.
    #[error("timevisord answered in another version; use the library of the same version")]
    OddAnswer,
    /// timevisord refused, for this reason.
    #[error("timevisord refused: {0}")]
    Refused(String),
    /// The records cannot be mapped.
    #[error("the kernel does not map the records of ages; may this process map files (seccomp)?")]
    Map(#[source] io::Error),
    /// The kernel's programs do not notice that this thread runs.
    #[error("the kernel's programs do not see this thread run; restart timevisord")]
    NotSeen,
    /// The timevisord that kept this age has ended.
    #[error("the timevisord that kept this age has ended; begin again with the one that runs now")]
    Ended,
    /// The age is not known now, or not any more; the text says which.
    #[error("{0}")]
    Unknown(String),
}

impl ThreadAge {
    /// Begins the age of the calling thread.
    ///
    /// # Errors
    /// When none are served here, or timevisord refuses.
    pub fn begin() -> Result<Self, ThreadAgeError> {
        Self::begin_in(Path::new(RUN_DIRECTORY))
    }

    /// As [`Self::begin`], by the timevisord with this run directory.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn begin_in(run_directory: &Path) -> Result<Self, ThreadAgeError> {
        let own = timevisor_linux::process::own_thread_id();
        let (connection, answer, descriptors) = ask(run_directory, Request::Register(own))?;
        match answer {
            Answer::Given { place, tid } => Self::given(connection, place, tid, descriptors),
            Answer::Refused(reason) => Err(ThreadAgeError::Refused(reason)),
            Answer::Source(_) => Err(ThreadAgeError::OddAnswer),
        }
    }

    /// By what the timevisord with this run directory counts ages of threads, and why.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn source_in(run_directory: &Path) -> Result<String, ThreadAgeError> {
        match ask(run_directory, Request::Source)?.1 {
            Answer::Source(text) => Ok(text),
            Answer::Refused(reason) => Err(ThreadAgeError::Refused(reason)),
            Answer::Given { .. } => Err(ThreadAgeError::OddAnswer),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn given(
        connection: PacketStream,
        place: u32,
        tid: u32,
        descriptors: Vec<std::os::fd::OwnedFd>,
    ) -> Result<Self, ThreadAgeError> {
        use timevisor_linux::bpf::{AgeReader, Records};
        let [cores, tasks] = <[_; 2]>::try_from(descriptors).map_err(|_| {
            ThreadAgeError::NoAnswer(io::Error::other("its descriptors did not arrive"))
        })?;
        let failed = |error| ThreadAgeError::Map(io::Error::other(error));
        let records = Records::read_only(cores, tasks).map_err(failed)?;
        let reader = AgeReader::new(records, place, tid);
        if reader.settle() {
            Ok(Self { reader, connection })
        } else if connection.has_ended() {
            Err(ThreadAgeError::Ended)
        } else {
            Err(ThreadAgeError::NotSeen)
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn given(
        _: PacketStream,
        _: u32,
        _: u32,
        _: Vec<std::os::fd::OwnedFd>,
    ) -> Result<Self, ThreadAgeError> {
        Err(ThreadAgeError::OddAnswer)
    }

    /// The age now, later than all that were read before.
    ///
    /// # Errors
    /// [`ThreadAgeError::Unknown`] while it is not known: after a move that the kernel's programs
    /// missed a later reading is right again. [`ThreadAgeError::Ended`] when it has to be begun
    /// again. When ages and CLOCK_MONOTONIC_RAW have parted, timevisord stops serving.
    pub fn now(&self) -> Result<Duration, ThreadAgeError> {
        self.read()
    }

    /// How often the thread has moved between cores since it began.
    #[must_use]
    pub fn moves(&self) -> Option<u64> {
        self.count()
    }

    #[cfg(target_arch = "x86_64")]
    fn read(&self) -> Result<Duration, ThreadAgeError> {
        use timevisor_linux::bpf::ReadError;
        match self.reader.read() {
            Ok(age) => Ok(Duration::from_nanos(age.nanos())),
            Err(ReadError::Ended) => Err(ThreadAgeError::Ended),
            // timevisord was killed, and could not say so.
            Err(ReadError::Lost | ReadError::Unattended) if self.connection.has_ended() => {
                Err(ThreadAgeError::Ended)
            }
            Err(error) => Err(ThreadAgeError::Unknown(error.to_string())),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn count(&self) -> Option<u64> {
        self.reader.task().map(|task| task.migrations)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn read(&self) -> Result<Duration, ThreadAgeError> {
        match self.reader {}
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn count(&self) -> Option<u64> {
        match self.reader {}
    }
}

/// Asks, and returns the connection, the answer and the descriptors that came with it.
fn ask(
    run_directory: &Path,
    request: Request,
) -> Result<(PacketStream, Answer, Vec<std::os::fd::OwnedFd>), ThreadAgeError> {
    let path = run_directory.join(SOCKET);
    let connection = PacketStream::connect(&path, PATIENCE)
        .map_err(|source| ThreadAgeError::NotServed { path, source })?;
    connection.send(&request.to_bytes(), &[]).map_err(ThreadAgeError::NoAnswer)?;
    let mut buffer = [0; ANSWER + 1];
    let (length, descriptors) =
        connection.receive(&mut buffer).map_err(ThreadAgeError::NoAnswer)?;
    if length == 0 {
        let closed = io::ErrorKind::UnexpectedEof.into();
        return Err(ThreadAgeError::NoAnswer(closed));
    }
    let answer = Answer::from_bytes(&buffer[..length]).ok_or(ThreadAgeError::OddAnswer)?;
    Ok((connection, answer, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_linux::seqpacket::PacketListener;

    /// A timevisord that gives one answer.
    fn answered(answer: Option<&[u8]>) -> ThreadAgeError {
        let folder = tempfile::tempdir().unwrap();
        let listener = PacketListener::bind(&folder.path().join(SOCKET)).unwrap();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| ThreadAge::begin_in(folder.path()).map(drop).unwrap_err());
            let stream = loop {
                match listener.accept() {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            let mut buffer = [0; 64];
            let length = loop {
                match stream.receive_bytes(&mut buffer) {
                    Ok(length) => break length,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            let asked = Request::from_bytes(&buffer[..length]);
            assert!(matches!(asked, Some(Request::Register(tid)) if tid != 0));
            if let Some(answer) = answer {
                stream.send(answer, &[]).unwrap();
            }
            drop(stream);
            client.join().unwrap()
        })
    }

    #[test]
    fn every_refusal_has_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let none = ThreadAge::begin_in(folder.path()).map(drop).unwrap_err();
        assert!(none.to_string().contains("elapsed --source"), "{none}");
        let refused = answered(Some(&Answer::Refused("because; do".to_owned()).to_bytes()));
        assert_eq!(refused.to_string(), "timevisord refused: because; do");
        assert!(matches!(answered(None), ThreadAgeError::NoAnswer(_)));
        assert!(matches!(answered(Some(b"nonsense")), ThreadAgeError::OddAnswer));
        let without = answered(Some(&Answer::Given { place: 0, tid: 1 }.to_bytes()));
        assert!(matches!(without, ThreadAgeError::NoAnswer(_) | ThreadAgeError::OddAnswer));
    }
}
