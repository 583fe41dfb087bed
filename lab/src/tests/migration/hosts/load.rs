//! Moves while the guest dirties its memory and while both hosts' processors and the network paths
//! to their servers are busy.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::client::Way;
use crate::migration::journey::{Course, text};
use crate::migration::pair::Hosts;
use crate::scenario::Context;

const MOVES: usize = 6;
/// A load that never ends and needs no disk.
const DIRTY: &str = "(while :; do dd if=/dev/zero of=/tmp/load bs=64k count=512 2>/dev/null; done) >/dev/null 2>&1 &";

/// One thread that computes and one per server that sends to it, until the value is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(servers: &[IpAddr]) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let mut spawn = |mut work: Box<dyn FnMut() + Send>| {
            let stop = Arc::clone(&stop);
            threads.push(std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    work();
                }
            }));
        };
        spawn(Box::new(|| {
            std::hint::black_box((0..100_000u64).fold(1, |a, b| a ^ b.wrapping_mul(a)));
        }));
        for server in servers {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            // Nobody listens at the port "discard"; the kernel sends the answers.
            socket.connect((*server, 9))?;
            spawn(Box::new(move || {
                let _ = socket.send(&[0; 1400]);
            }));
        }
        Ok(Self { stop, threads })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

pub(crate) fn loaded(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::new(ctx)?;
    let servers: Vec<IpAddr> = hosts.servers.iter().map(|s| s.address().ip()).collect();
    let qemu = ctx.qemu_10()?;
    let course =
        Course { ctx, hosts: &hosts, way: Way::Vmclock, qemu: &qemu, number: 0, moves: MOVES };
    let mut load = None;
    let moves = course.travel(&|_, launch| Ok(launch), &mut |stay, _, guest| {
        if stay == 0 {
            guest.guest.sh(DIRTY)?;
            load = Some(Load::start(&servers)?);
        }
        Ok(())
    })?;
    drop(load);
    Ok(text(&moves))
}
