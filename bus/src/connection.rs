//! One connection: frames in and out.

use anyhow::{Result, bail};
use timevisor_protocols::bus::Frames;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tracing::debug;

use crate::carrier::Seat;
use crate::outbox::{Memory, Outbox, counted};

/// Serves a connection until it ends.
pub async fn serve<S>(stream: S, seat: &Seat)
where
    S: AsyncRead + AsyncWrite + 'static,
{
    let (reads, writes) = tokio::io::split(stream);
    // Whichever ends first ends the connection.
    tokio::select! {
        read = read(reads, seat) => {
            if let Err(error) = read {
                debug!("connection {}: {error:#}", seat.number);
            }
        }
        _ = write(writes, &seat.outbox) => {}
    }
}

async fn read<R: AsyncRead + Unpin>(mut from: R, seat: &Seat) -> Result<()> {
    let (mut frames, mut buffer) = (Frames::default(), vec![0; 1 << 14]);
    let mut held = Held { memory: seat.outbox.memory().clone(), bytes: 0 };
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        frames.push(&buffer[..count]);
        held.hold(frames.len())?;
        while let Some(content) = frames.take()? {
            seat.carrier.frame(seat.number, content)?;
            // Others have their turn after each frame: one may be a message to thousands.
            tokio::task::yield_now().await;
        }
        held.hold(frames.len())?;
    }
}

/// Memory for what has come and is no whole frame yet.
struct Held {
    memory: Memory,
    bytes: usize,
}

impl Held {
    fn hold(&mut self, bytes: usize) -> Result<()> {
        self.memory.give(self.bytes);
        self.bytes = 0;
        let bytes = counted(bytes);
        if !self.memory.take(bytes) {
            bail!("the connections of its user, or of its address, take too much memory");
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.give(self.bytes);
    }
}

async fn write<W: AsyncWrite + Unpin>(mut to: W, outbox: &Outbox) -> Result<()> {
    while let Some(bytes) = outbox.next().await {
        to.write_all(&bytes).await?;
    }
    to.shutdown().await?;
    bail!("the hub ends it")
}
