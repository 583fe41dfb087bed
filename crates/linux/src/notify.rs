//! Reports the daemon's state to systemd (sd_notify(3), without libsystemd).
//!
//! Does nothing outside a unit of `Type=notify`. It passes no descriptors.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager's socket.
#[derive(Debug)]
pub struct Notifier {
    target: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Configured from NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; silent when they are not set.
    ///
    /// # Errors
    /// When NOTIFY_SOCKET is neither a path nor an abstract name.
    pub fn from_environment() -> io::Result<Self> {
        let pid = std::env::var("WATCHDOG_PID").ok();
        let ours = pid.is_none_or(|pid| pid == std::process::id().to_string());
        let usec = std::env::var("WATCHDOG_USEC").ok().filter(|_| ours);
        Self::new(std::env::var_os("NOTIFY_SOCKET"), usec.as_deref())
    }

    /// Configured from the values of NOTIFY_SOCKET and WATCHDOG_USEC.
    ///
    /// # Errors
    /// As [`Self::from_environment`].
    pub fn new(socket: Option<OsString>, watchdog_usec: Option<&str>) -> io::Result<Self> {
        let target = match socket {
            None => None,
            Some(name) => Some((UnixDatagram::unbound()?, address(&name)?)),
        };
        // Half the time, as sd_watchdog_enabled(3) advises.
        let watchdog = watchdog_usec.and_then(|usec| usec.parse().ok()).filter(|usec| *usec > 0);
        Ok(Self { target, watchdog: watchdog.map(|usec: u64| Duration::from_micros(usec) / 2) })
    }

    /// How often [`Self::watchdog`] is due, if at all.
    #[must_use]
    pub const fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports that the daemon has published its first page.
    ///
    /// # Errors
    /// Socket errors; callers may ignore them.
    pub fn ready(&self) -> io::Result<()> {
        self.send("READY=1")
    }

    /// Sets the one-line text of `systemctl status`.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub fn status(&self, text: &str) -> io::Result<()> {
        self.send(&format!("STATUS={}", text.replace('\n', " ")))
    }

    /// Reports that the daemon is stopping.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub fn stopping(&self) -> io::Result<()> {
        self.send("STOPPING=1")
    }

    /// Reports that the daemon is alive.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub fn watchdog(&self) -> io::Result<()> {
        self.send("WATCHDOG=1")
    }

    fn send(&self, message: &str) -> io::Result<()> {
        match &self.target {
            None => Ok(()),
            Some((socket, address)) => socket.send_to_addr(message.as_bytes(), address).map(drop),
        }
    }
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "NOTIFY_SOCKET is neither a path nor @name",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    #[test]
    fn messages_reach_a_path_and_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(Some(path.into_os_string()), Some("3000000")).unwrap();
        assert_eq!(notifier.watchdog_interval(), Some(Duration::from_millis(1500)));
        notifier.ready().unwrap();
        notifier.status("synchronized\nto 2").unwrap();
        assert_eq!(received(&by_path), "READY=1");
        assert_eq!(received(&by_path), "STATUS=synchronized to 2");

        let name = format!("timevisor-test-{}", std::process::id());
        let by_name =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let notifier = Notifier::new(Some(format!("@{name}").into()), None).unwrap();
        notifier.watchdog().unwrap();
        notifier.stopping().unwrap();
        assert_eq!(received(&by_name), "WATCHDOG=1");
        assert_eq!(received(&by_name), "STOPPING=1");
    }

    #[test]
    fn without_a_socket_it_is_silent() {
        let notifier = Notifier::new(None, Some("0")).unwrap();
        notifier.ready().unwrap();
        assert_eq!(notifier.watchdog_interval(), None);
        assert!(Notifier::new(Some("vsock:2:1".into()), None).is_err());
    }
}
