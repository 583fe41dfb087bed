//! lab-introspect: introspection of guests under KVM, from a single program on their host: where
//! starting a process is expensive, starting a thousand commands would cost more than the work they
//! request.
//!
//! `lab-introspect cycles RUN_DIRECTORY VM TIMES` attaches, waits for an event of a guest that
//! produces them continuously, and detaches, TIMES times; after each step, the switch, the list on
//! disk and timevisord's answer have to agree. `lab-introspect verify` prints how many instructions
//! the kernel's verifier processed for the BPF programs.
#![forbid(unsafe_code)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use timevisor_linux::bpf::guest_traps::GuestTraps;
use timevisor_linux::kvm::prefix::forced_emulation;
use timevisor_protocols::control::{
    ClientCodec, IntrospectAttach, IntrospectBackend, IntrospectRow, IntrospectState, IntrospectVm,
    Request, Response,
};

/// Timeout for one step; the first step has to find the guest's kernel.
const PATIENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(2);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cycles", directory, vm, times] => {
            println!("{}", cycles(Path::new(directory), vm, times.parse()?)?);
        }
        ["verify"] => println!("{}", json!(GuestTraps::verified()?)),
        _ => bail!("usage: lab-introspect cycles RUN_DIRECTORY VM TIMES | verify"),
    }
    Ok(())
}

fn cycles(directory: &Path, vm: &str, times: u32) -> Result<Value> {
    let mut daemon = Daemon::connect(directory)?;
    let kept = directory.join("introspection.json");
    let (mut events, mut attach_ns, mut detach_ns) = (0, Vec::new(), Vec::new());
    for cycle in 0..times {
        let began = Instant::now();
        daemon.ask(&Request::IntrospectAttach(IntrospectAttach {
            vm: vm.to_owned(),
            backend: Some(IntrospectBackend::Kvm),
            image: None,
            every_system_call: false,
            reserve: None,
        }))?;
        let mut row = || {
            let row = daemon.ask(&Request::IntrospectList)?;
            let row = row.into_iter().next().context("nothing is introspected")?;
            ensure!(row.problem.is_none() && row.senseless == 0, "cycle {cycle}: {row:?}");
            Ok(row)
        };
        let is_attached = |row: &IntrospectRow| row.state == IntrospectState::Attached;
        let attached = until("attached", || Ok(Some(row()?).filter(is_attached)))?;
        attach_ns.push(began.elapsed().as_nanos());
        ensure!(attached.points > 0, "cycle {cycle}: {attached:?}");
        ensure!(forced_emulation()?, "cycle {cycle}: the switch is off while attached");
        ensure!(in_place(&kept)? == 1, "cycle {cycle}: what is in place is not on disk");
        events += until("an event", || Ok(Some(row()?.events).filter(|events| *events > 0)))?;
        let began = Instant::now();
        let left = daemon.ask(&Request::IntrospectDetach(IntrospectVm { vm: vm.to_owned() }))?;
        ensure!(left.is_empty(), "cycle {cycle}: {left:?}");
        until("detached", || Ok((!forced_emulation()? && in_place(&kept)? == 0).then_some(())))?;
        detach_ns.push(began.elapsed().as_nanos());
    }
    Ok(json!({
        "cycles": times, "events": events,
        "attach_median_ns": median(&mut attach_ns), "detach_median_ns": median(&mut detach_ns),
    }))
}

fn median(all: &mut [u128]) -> Option<u128> {
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

/// How many VMs have trap points in place, according to the file on disk.
fn in_place(kept: &Path) -> Result<usize> {
    let kept: Value = serde_json::from_slice(&std::fs::read(kept)?)?;
    Ok(kept["vms"].as_array().context("no list")?.len())
}

fn until<T>(what: &str, mut done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let late = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = done()? {
            return Ok(done);
        }
        ensure!(Instant::now() < late, "not {what} within {PATIENCE:?}");
        std::thread::sleep(INTERVAL);
    }
}

/// One connection to timevisord.
struct Daemon {
    stream: UnixStream,
    codec: ClientCodec,
}

impl Daemon {
    fn connect(directory: &Path) -> Result<Self> {
        let stream = UnixStream::connect(directory.join("control")).context("no timevisord")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, codec: ClientCodec::default() })
    }

    /// Sends a request and returns all introspected VMs afterwards.
    fn ask(&mut self, request: &Request) -> Result<Vec<IntrospectRow>> {
        self.stream.write_all(&ClientCodec::encode(request)?)?;
        let mut buffer = [0; 65536];
        loop {
            let count = self.stream.read(&mut buffer)?;
            ensure!(count > 0, "timevisord closed the control socket");
            if let Some(response) = self.codec.on_bytes(&buffer[..count]).into_iter().next() {
                return match response? {
                    Response::Introspections(all) => Ok(all.vms),
                    other => bail!("{other:?}"),
                };
            }
        }
    }
}
