//! The one connection to the host: the virtio-serial port, or vsock.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::PathBuf;

use timevisor_linux::poll::PollFd;
use timevisor_linux::virtio_port::VirtioPort;
use timevisor_linux::vsock::{HOST_CID, VsockStream};
use timevisor_protocols::channel::{Relay, RelayAction, VSOCK_PORT};
use timevisor_time::Duration;

/// How long to wait before retrying an unavailable channel.
const RETRY: Duration = Duration::from_secs(1);
/// How often a port that has no peer on the host is checked.
const PORT_RETRY: Duration = Duration::from_millis(100);
const READ_SIZE: usize = 16 << 10;

/// Which channel to use.
pub enum Way {
    /// The port with this name if there is one, otherwise vsock.
    Automatic(&'static str),
    Port(PathBuf),
    Vsock,
}

enum Channel {
    Port(VirtioPort),
    Vsock(VsockStream),
}

/// The connection to the host, if there is one.
pub struct Host {
    way: Way,
    channel: Option<Channel>,
    /// The relay has been told that the host is connected.
    connected: bool,
    again: Duration,
    /// The last message, so that it is not logged again and again.
    told: String,
}

impl Host {
    pub fn new(way: Way) -> Self {
        Self { way, channel: None, connected: false, again: Duration::ZERO, told: String::new() }
    }

    /// The descriptor to poll. A port without a peer is always ready, so it is checked periodically
    /// instead.
    pub fn fd(&self, relay: &Relay) -> Option<PollFd<'_>> {
        let fd = match self.channel.as_ref().filter(|_| self.connected)? {
            Channel::Port(port) => port.as_fd(),
            Channel::Vsock(stream) => stream.as_fd(),
        };
        let writes = !relay.upstream_output().is_empty();
        Some(if writes { PollFd::readable_or_writable(fd) } else { PollFd::readable(fd) })
    }

    /// Connects when it is time to, and reads.
    pub fn serve(&mut self, relay: &mut Relay, now: Duration) -> Vec<RelayAction> {
        let mut actions = Vec::new();
        if !self.connected && now >= self.again {
            self.again = now + self.connect();
            if self.connected {
                actions.extend(relay.upstream_connected(now));
            }
        }
        if !self.connected {
            return actions;
        }
        let mut buffer = [0u8; READ_SIZE];
        let read = match &self.channel {
            Some(Channel::Port(port)) => port.read(&mut buffer),
            Some(Channel::Vsock(stream)) => stream.read(&mut buffer),
            None => Ok(0),
        };
        match read {
            Ok(0) => actions.extend(self.lost(relay, now)),
            Ok(count) => actions.extend(relay.upstream_bytes(now, &buffer[..count])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::debug!("the channel: {error}");
                self.channel = None;
                actions.extend(self.lost(relay, now));
            }
        }
        actions
    }

    /// Writes pending output.
    pub fn flush(&mut self, relay: &mut Relay) {
        while self.connected && !relay.upstream_output().is_empty() {
            let wrote = match &self.channel {
                Some(Channel::Port(port)) => port.write(relay.upstream_output()),
                Some(Channel::Vsock(stream)) => stream.write(relay.upstream_output()),
                None => return,
            };
            match wrote {
                Ok(count) if count > 0 => relay.upstream_sent(count),
                // The next read will detect a broken connection.
                _ => return,
            }
        }
    }

    fn lost(&mut self, relay: &mut Relay, now: Duration) -> Vec<RelayAction> {
        self.connected = false;
        self.again = now + PORT_RETRY;
        if matches!(self.channel, Some(Channel::Vsock(_))) {
            self.channel = None;
        }
        relay.upstream_lost(now)
    }

    /// Tries to connect; on failure, returns when to retry.
    fn connect(&mut self) -> Duration {
        if self.channel.is_none() {
            let opened = match &self.way {
                Way::Port(path) => VirtioPort::at(path).map(Channel::Port),
                Way::Vsock => VsockStream::connect(HOST_CID, VSOCK_PORT).map(Channel::Vsock),
                Way::Automatic(name) => match VirtioPort::open(name) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        VsockStream::connect(HOST_CID, VSOCK_PORT).map(Channel::Vsock).map_err(
                            |vsock| std::io::Error::other(format!("{error}; vsock: {vsock}")),
                        )
                    }
                    opened => opened.map(Channel::Port),
                },
            };
            match opened {
                Ok(channel) => self.channel = Some(channel),
                Err(error) => {
                    self.tell(format!(
                        "no channel to the host: {error}; see docs/reference/channel.md"
                    ));
                    return RETRY;
                }
            }
        }
        self.connected = match &self.channel {
            Some(Channel::Port(port)) => port.is_connected().unwrap_or(false),
            Some(Channel::Vsock(_)) => true,
            None => false,
        };
        if self.connected {
            self.told.clear();
        } else {
            self.tell(
                "nobody on the host has connected to the port; is timevisord running?".to_owned(),
            );
        }
        PORT_RETRY
    }

    fn tell(&mut self, text: String) {
        if self.told != text {
            tracing::warn!("{text}");
            self.told = text;
        }
    }
}
