//! A thread that parses what strangers send: no capability, nobody's rights, and only the system calls
//! of its task. The other threads of the process keep what they have.
//!
//! The kernel knows users, capabilities and filters by thread; only the C library's wrappers change
//! all threads together, so this file makes the calls itself.
//!
//! Only the effective user changes: files and the peers of sockets see nobody. The real and the
//! saved user stay, because whoever runs as nobody could otherwise signal this thread and so end
//! the process. No filter permits a change of user, so there is no way back.
//!
//! What it does not do: protect the process' memory from the thread. All threads share it; code
//! that an attacker runs in one can change what others do. A filter limits what a parser can be
//! talked into, not what arbitrary machine code can write.

use super::{ConfineError, NOBODY, filters, keep_capabilities};

/// What a confined thread may do, apart from memory, locks, time and its own end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permitted {
    /// Nothing else: it is given bytes, and gives back what they say.
    Memory,
    /// To send and receive on the sockets that it has. No new ones, no files.
    ItsSockets,
    /// The same, and to accept connections on them.
    ItsListeners,
    /// To look names up by getaddrinfo(3): opens files for reading, and sockets.
    NameResolution,
}

/// Confines the calling thread to a task, for good.
///
/// Without CAP_SETUID (systemd's CapabilityBoundingSet=) it stays the user that it is.
///
/// # Errors
/// The step that failed. Those before it have taken effect, and the thread must not go on.
pub fn confine_thread(to: Permitted) -> Result<(), ConfineError> {
    let filter = match to {
        Permitted::Memory => filters::memory(),
        Permitted::ItsSockets => filters::sockets(),
        Permitted::ItsListeners => filters::listeners(),
        Permitted::NameResolution => filters::name_resolution(),
    }?;
    // SAFETY: an empty list, and integers.
    unsafe {
        let (nobody, same) = (libc::c_long::from(NOBODY), libc::c_long::from(-1));
        let none = std::ptr::null::<libc::gid_t>();
        let _ = libc::syscall(libc::SYS_setgroups, 0, none);
        let _ = libc::syscall(libc::SYS_setresgid, same, nobody, same);
        let _ = libc::syscall(libc::SYS_setresuid, same, nobody, same);
    }
    keep_capabilities(0)?;
    seccompiler::apply_filter(&filter)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::process::Command;
    use std::sync::mpsc::channel;

    const ALL: [Permitted; 4] = [
        Permitted::Memory,
        Permitted::ItsSockets,
        Permitted::ItsListeners,
        Permitted::NameResolution,
    ];

    fn field(task: &Path, name: &str) -> String {
        let status = fs::read_to_string(task.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    }

    /// Runs `work` in a thread that is confined to `to`, and then `look` while the thread is there,
    /// with the thread's folder in /proc.
    fn confined(to: Permitted, work: impl FnOnce() + Send, look: impl FnOnce(&Path)) {
        std::thread::scope(|scope| {
            let ((ready, is_ready), (end, is_over)) = (channel(), channel::<()>());
            let thread = scope.spawn(move || {
                confine_thread(to).unwrap();
                work();
                // SAFETY: takes nothing.
                ready.send(unsafe { libc::gettid() }).unwrap();
                let _ = is_over.recv();
            });
            if let Ok(id) = is_ready.recv() {
                look(Path::new(&format!("/proc/self/task/{id}")));
            }
            drop(end);
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_confined_thread_has_no_right_and_the_others_keep_theirs() {
        let ours = ["Uid", "CapEff", "CapPrm", "Seccomp", "NoNewPrivs"];
        let own = Path::new("/proc/thread-self");
        let before = ours.map(|name| field(own, name));
        // SAFETY: takes nothing.
        let root = unsafe { libc::geteuid() } == 0;
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, "x").unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        for to in ALL {
            let nothing = || {
                assert!(File::create(folder.path().join("new")).is_err(), "{to:?}");
                // A user who is not root is the file's owner still.
                if root || to != Permitted::NameResolution {
                    assert!(File::open(&secret).is_err(), "{to:?}");
                }
                assert!(Command::new("/bin/true").status().is_err(), "{to:?}");
                assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "{to:?}");
                // SAFETY: integers only.
                let back = unsafe { libc::syscall(libc::SYS_setresuid, -1, 0, -1) };
                assert_eq!(back, -1, "{to:?}");
                if to != Permitted::NameResolution {
                    assert!(UdpSocket::bind("127.0.0.1:0").is_err(), "{to:?}");
                    assert!(File::open("/etc/hosts").is_err(), "{to:?}");
                }
            };
            confined(to, nothing, |task| {
                for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
                    assert_eq!(field(task, set), "0000000000000000", "{to:?} {set}");
                }
                assert_eq!((field(task, "Seccomp"), field(task, "NoNewPrivs")), two_of("2", "1"));
                if root {
                    assert_eq!(field(task, "Uid"), "0\t65534\t0\t65534", "{to:?}");
                    assert_eq!(field(task, "Groups"), "", "{to:?}");
                }
            });
        }
        assert_eq!(ours.map(|name| field(own, name)), before);
        assert!(File::open(&secret).is_ok() && UdpSocket::bind("127.0.0.1:0").is_ok());
        assert!(Command::new("/bin/true").status().unwrap().success());
    }

    fn two_of(one: &str, other: &str) -> (String, String) {
        (one.to_owned(), other.to_owned())
    }

    #[test]
    fn a_thread_that_only_parses_cannot_use_a_socket_that_it_has() {
        let (here, there) = UnixStream::pair().unwrap();
        let work = || assert!((&there).read(&mut [0; 4]).is_err());
        confined(Permitted::Memory, work, |_| ());
        drop(here);
    }

    #[test]
    fn a_thread_has_its_sockets() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(b"word").unwrap();
        let echo = move || {
            let mut word = [0; 4];
            there.read_exact(&mut word).unwrap();
            there.write_all(&word).unwrap();
        };
        confined(Permitted::ItsSockets, echo, |_| ());
        let mut word = [0; 4];
        here.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
    }

    #[test]
    fn a_thread_accepts_on_its_listeners_and_connects_nowhere() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(false).unwrap();
            assert_eq!(stream.local_addr().unwrap(), address);
            stream.write_all(b"word").unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(TcpStream::connect(address).is_err());
        };
        confined(Permitted::ItsListeners, serve, |_| ());
        let mut word = String::new();
        client.read_to_string(&mut word).unwrap();
        assert_eq!(word, "word");
    }

    #[test]
    fn a_thread_looks_names_up() {
        let look_up = || {
            for name in ["localhost:123", "127.0.0.1:123"] {
                assert!(name.to_socket_addrs().unwrap().next().is_some(), "{name}");
            }
            let scoped = ("fe80::1%lo", 123).to_socket_addrs().unwrap().next().unwrap();
            assert!(matches!(scoped, std::net::SocketAddr::V6(at) if at.scope_id() != 0));
            // Asks whatever this machine asks, which may be nobody.
            assert!("name.invalid:123".to_socket_addrs().is_err());
        };
        confined(Permitted::NameResolution, look_up, |_| ());
    }

    #[test]
    fn a_panic_in_a_confined_thread_ends_that_thread_alone() {
        let thread = std::thread::spawn(|| {
            confine_thread(Permitted::Memory).unwrap();
            // Unlike panic!, without a message on the terminal.
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(thread.join().is_err());
    }
}
