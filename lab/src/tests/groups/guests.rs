//! A group of three, each in its own language and on its own clock page: this program (Rust) on the host, a C program
//! in one guest, a Python program in another. Guests reach the bus over their network, by TLS. Again and again all
//! three fire at a proposed time, and each says what its page said then.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bus::Bus;
use crate::client::{Client, Launch, Way};
use crate::host::Host;
use crate::lan::Lan;
use crate::members::{self, Proposer};
use crate::programs;
use crate::python::Python;
use crate::scenario::{Context, number};

const PORT: u16 = 47_120;
const NAMES: [&str; 2] = ["c", "python"];
/// Emulated guests are slow.
const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) fn guests(ctx: &Context) -> anyhow::Result<String> {
    // Fires of all members together; 10,000 for evidence.
    let wanted = usize::try_from(number("FIRES", 300)?)?;
    let server = ctx.chronyd("server")?;
    let lan = Lan::before(ctx, server.namespace())?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(1_000)?;
    let key = host.make_key("cell7.key")?;
    let bus = Bus::start(ctx, &lan, PORT, (members::GROUP, &key), &[])?;

    let mut guests = boot(ctx, &host, &lan, &bus.authority)?;
    let proposer = Proposer::join(&host, &bus)?;
    let lines =
        ["/bin/member-c".to_owned(), format!("{} /bin/member.py", guests.interpreter.display())];
    for ((guest, name), line) in guests.all.iter_mut().zip(NAMES).zip(&lines) {
        members::start(&mut guest.guest, line, name, &bus)?;
    }
    proposer.wait_for(3)?;
    let run = proposer.propose(wanted.div_ceil(3))?;
    proposer.leave();

    let mut told = vec![run.fires.clone()];
    for (guest, name) in guests.all.iter_mut().zip(NAMES) {
        told.push(members::fires(&mut guest.guest, name, &ctx.path(&format!("{name}.txt")))?);
    }
    let judged = members::judge(&told, &run)?.sound()?;
    Ok(format!(
        "Rust on the host, C and Python in guests: {judged}; decided after {:.1} ms in the median, {} of {} proposals \
         fired everywhere",
        run.decided_ms, run.everywhere, run.proposals
    ))
}

struct Guests {
    all: Vec<Client>,
    interpreter: PathBuf,
}

fn boot(ctx: &Context, host: &Host, lan: &Lan, authority: &Path) -> anyhow::Result<Guests> {
    let folder = programs::workspace()?.join("lab/src/tests/groups");
    let c = members::build(ctx.log_dir())?;
    let script = ctx.path("member.py");
    fs::copy(folder.join("member.py"), &script)?;
    let python = Python::archive(ctx.log_dir())?;
    let qemu = ctx.qemu_10()?;
    let files =
        [vec![c, authority.to_owned()], vec![script, python.archive.clone(), authority.to_owned()]];
    let mut all = Vec::new();
    for ((number, name), files) in (0..).zip(NAMES).zip(files) {
        let arguments = lan.arguments(number, false)?;
        let launch = Launch::new(ctx, host, &qemu, Way::Vmclock, name)
            .image(move |image| {
                let image = image.module("virtio_net");
                Ok(files.iter().fold(image, |image, file| image.program(file)))
            })
            .builder(move |builder| builder.args(arguments.clone()));
        all.push(launch.start()?);
    }
    for ((number, name), guest) in (0..).zip(NAMES).zip(&mut all) {
        guest.guest.wait_ready()?;
        host.wait_vm(name, "synchronized")?;
        guest.guest.sh(&lan.guest_setup(number))?;
    }
    all[1]
        .guest
        .sh_within("tar -xzf /bin/python.tar.gz -C / && rm /bin/python.tar.gz", PATIENCE)?;
    Ok(Guests { all, interpreter: python.interpreter })
}
