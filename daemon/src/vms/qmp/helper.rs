//! The life of a helper that speaks QMP: confined, it reads what QEMUs send, writes what they are to
//! do, and reports to its parent, until that ends. What is meant is decided by
//! [`timevisor_protocols::qmp::Dialogue`].

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use timevisor_linux::clock::monotonic;
use timevisor_linux::confine;
use timevisor_linux::helper::Parent;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_protocols::qmp::{Action, Dialogue, News, Order, Report};

/// A helper needs some megabytes, and two for each QEMU that sends the longest line there is.
const ADDRESS_SPACE: u64 = 512 << 20;
/// One for each VM, of which a user may have 256 without names that root prepared.
const MOST_DESCRIPTORS: u64 = 4096;
/// Orders that are taken at once.
const AT_ONCE: usize = 64;
/// Bytes that are read of one QEMU at once, before others have their turn.
const BYTES_AT_ONCE: usize = 64 << 10;

struct Talk {
    stream: UnixStream,
    dialogue: Dialogue,
}

/// Speaks QMP for the timevisord at the other end of standard input.
///
/// # Errors
/// When it cannot be confined, or was not started by timevisord.
pub fn be_qmp_helper() -> anyhow::Result<()> {
    let parent = Parent::from_standard_input()?;
    confine::confine_to_descriptors(ADDRESS_SPACE, MOST_DESCRIPTORS)?;
    let mut talks = BTreeMap::new();
    while serve(&parent, &mut talks)? {}
    Ok(())
}

/// Waits for the parent or a QEMU, and does what follows. Returns false when the parent has ended.
fn serve(parent: &Parent, talks: &mut BTreeMap<u64, Talk>) -> anyhow::Result<bool> {
    let mut fds = vec![PollFd::readable(parent.fd())];
    fds.extend(talks.values().map(|talk| PollFd::readable(talk.stream.as_fd())));
    wait(&mut fds, None)?;
    let is_ready = |fd: &PollFd<'_>| {
        let ready = fd.ready();
        ready.readable || ready.error || ready.hangup
    };
    let ordered = is_ready(&fds[0]);
    let numbers: Vec<u64> = talks.keys().copied().collect();
    let mut ready: Vec<u64> = Vec::new();
    ready.extend(numbers.iter().zip(&fds[1..]).filter(|(_, fd)| is_ready(fd)).map(|(n, _)| *n));
    drop(fds);
    // A RESUME first: the daemon waits for it before it looks at the VM's counter.
    for number in ready {
        if let Some(talk) = talks.get_mut(&number) {
            let actions = talk.read();
            follow(parent, talks, number, actions)?;
        }
    }
    for _ in 0..if ordered { AT_ONCE } else { 0 } {
        match parent.receive_with() {
            Ok(Some((packet, descriptor))) => {
                obey(parent, talks, Order::from_bytes(&packet)?, descriptor)?;
            }
            Ok(None) => break,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn obey(
    parent: &Parent,
    talks: &mut BTreeMap<u64, Talk>,
    order: Order,
    descriptor: Option<OwnedFd>,
) -> anyhow::Result<()> {
    match order {
        Order::Ping(number) => parent.send(&Report::Pong(number).to_bytes())?,
        Order::Open { connection, first_id, shared } => match descriptor {
            Some(descriptor) => {
                let dialogue = Dialogue::new(first_id, shared, monotonic());
                let stream = UnixStream::from(descriptor);
                talks.insert(connection, Talk { stream, dialogue });
            }
            None => {
                let text = "the helper that speaks QMP has too many connections";
                report(parent, connection, News::Lost(text.to_owned()))?;
            }
        },
        Order::Close(connection) => {
            talks.remove(&connection);
            parent.send(&Report::Closed(connection).to_bytes())?;
        }
        Order::Do(connection, command) => {
            if let Some(talk) = talks.get_mut(&connection) {
                let actions = talk.dialogue.on_command(command);
                follow(parent, talks, connection, actions)?;
            }
        }
    }
    Ok(())
}

/// Does what a dialogue asks for, and closes its connection when it is over.
fn follow(
    parent: &Parent,
    talks: &mut BTreeMap<u64, Talk>,
    connection: u64,
    actions: Vec<Action>,
) -> anyhow::Result<()> {
    let Some(talk) = talks.get_mut(&connection) else { return Ok(()) };
    let mut actions = actions;
    while !actions.is_empty() {
        let mut then = Vec::new();
        for action in actions {
            match action {
                Action::Tell(news) => report(parent, connection, news)?,
                // The connection has failed: nothing more is written.
                Action::Send(_) if !then.is_empty() => {}
                Action::Send(bytes) => {
                    // QEMU's queue holds far more than it is ever sent: one that takes nothing hangs.
                    if let Err(error) = talk.stream.write_all(&bytes) {
                        then = talk.dialogue.lose(&format!("the QMP socket failed: {error}"));
                    }
                }
            }
        }
        actions = then;
    }
    if talk.dialogue.is_over() {
        talks.remove(&connection);
    }
    Ok(())
}

fn report(parent: &Parent, connection: u64, news: News) -> anyhow::Result<()> {
    Ok(parent.send(&Report::News(connection, news).to_bytes())?)
}

impl Talk {
    /// Reads what has arrived, up to a limit: the rest makes the descriptor readable again.
    fn read(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut buffer = [0u8; 16 << 10];
        for _ in 0..BYTES_AT_ONCE / buffer.len() {
            if self.dialogue.is_over() {
                break;
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => actions.extend(self.dialogue.lose("QEMU closed its QMP socket")),
                Ok(count) => {
                    actions.extend(self.dialogue.on_bytes(&buffer[..count], monotonic()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let text = format!("the QMP socket failed: {error}");
                    actions.extend(self.dialogue.lose(&text));
                }
            }
        }
        actions
    }
}
