//! libvirt's hook where timevisord does not answer, and where libvirt's name for a domain is not a
//! VM's.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use crate::command;
use crate::host::{Host, mentions};
use crate::libvirt::{Definition, Libvirt};
use crate::migration::pair::lines;
use crate::programs::workspace;
use crate::scenario::Context;

/// Signs that mean something to a shell, to grep and to awk.
const NAME: &str = "w[e]b .* $x";
const MEMORY_MIB: u32 = 256;
/// The user as whom Debian's libvirt runs QEMU.
const USER: &str = "libvirt-qemu";
/// The hook takes 6 s at most, and libvirt some more.
const PATIENT: u64 = 60;

struct Side {
    libvirt: Libvirt,
    host: Host,
    /// What the hook has said to the log.
    log: PathBuf,
}

/// The namespace of a reservation in a domain's metadata.
const NAMESPACE: &str = "urn:timevisor:reserve";

/// One that sets no core apart: this machine's are not this test's.
fn reservation(vcpu: u32) -> String {
    format!(
        "[[reserve]]\nvcpu = {vcpu}\nbudget = \"20ms\"\nperiod = \"50ms\"\npromise = \"limit\"\n"
    )
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    Some(rest.split_once(end)?.0)
}

pub(crate) fn hook(ctx: &Context) -> anyhow::Result<String> {
    let qemu = ctx.qemu()?;
    let server = ctx.chronyd("server")?;
    let kernel = ctx.kernel("trixie-backports")?;
    let initramfs = ctx.image(&kernel)?.write(&ctx.path("initramfs.cpio"))?;
    let side = |number: u8| -> anyhow::Result<Side> {
        let mut host = Host::further(ctx, &format!("host-{number}"))?;
        // Only the hook makes VMs known.
        host.start(&lines(&server.address().ip().to_string()))?;
        host.wait_synchronized(500)?;
        let tools = ctx.path(&format!("tools-{number}"));
        let log = tools.join("log");
        fs::create_dir_all(&tools)?;
        let logger = tools.join("logger");
        fs::write(&logger, format!("#!/bin/sh\necho \"$*\" >>{}\n", log.display()))?;
        fs::set_permissions(&logger, Permissions::from_mode(0o755))?;
        let hook = format!(
            "#!/bin/sh\nexport PATH={}:$PATH TIMEVISOR={} TIMEVISOR_RUN={}\nexec {} \"$@\"\n",
            tools.display(),
            host.cli_program().display(),
            host.directory().display(),
            workspace()?.join("packaging/libvirt-qemu-hook").display()
        );
        let log_dir = ctx.path(&format!("libvirt-{number}"));
        let libvirt = Libvirt::start_host(&qemu, &log_dir, number, Some(&hook))?;
        Ok(Side { libvirt, host, log })
    };
    let (a, b) = (side(1)?, side(2)?);
    let printed = |side: &Side, vm: &str| {
        let memory = MEMORY_MIB.to_string();
        let of = ["vm", "args", "--name", vm, "--memory", &memory, "--user", USER];
        side.host.cli(&[&of[..], &["--delivery", "nvdimm", "--format", "libvirt"]].concat())
    };
    let (on_a, on_b, alone) = (printed(&a, "web")?, printed(&b, "web")?, printed(&b, "alone")?);
    let definition = |name, printed| Definition {
        name,
        memory_mib: MEMORY_MIB,
        kernel: &kernel.image,
        initramfs: &initramfs,
        printed,
        paused: false,
    };
    let domain = a.libvirt.create(&definition(NAME, &on_a))?;
    a.host.wait_vm("web", "synchronized").context("of the hook with an odd name")?;
    domain.wait_ready()?;

    // timevisord hangs on B.
    let daemon = b.host.pid()?.to_string();
    command::run("kill", &["-STOP", &daemon])?;
    let began = Instant::now();
    let refused = b.libvirt.migrate_here(&domain, &definition(NAME, &on_b));
    let Err(refused) = refused else { bail!("it went to a host whose timevisord hangs") };
    mentions(&format!("{refused:#}"), &["timevisord does not serve the domain"])?;
    let local = b.libvirt.create(&definition("alone", &alone));
    let local = local.context("a domain that starts here needs no timevisord")?;
    let took = began.elapsed().as_secs();
    ensure!(took < PATIENT, "both took {took} s");
    mentions(&fs::read_to_string(&b.log)?, &["timevisord does not serve the domain alone"])?;
    ensure!(b.libvirt.virsh(&["list", "--name"])?.trim() == "alone", "what runs on B");
    a.host.wait_vm("web", "synchronized").context("of a domain that has stayed")?;

    command::run("kill", &["-CONT", &daemon])?;
    drop(local);
    // A reservation goes along in the domain's metadata, as libvirt writes it.
    let on_b_with = |vcpu: u32| -> anyhow::Result<String> {
        let set = format!("<reserve>{}</reserve>", reservation(vcpu));
        let words = ["--uri", NAMESPACE, "--key", "timevisor", "--live", "--set", &set];
        domain.virsh_with("metadata", &words)?;
        let all = domain.virsh("dumpxml")?;
        let metadata = between(&all, "<metadata>", "</metadata>").context("no metadata")?;
        Ok(format!("{on_b}<metadata>{metadata}</metadata>"))
    };
    let impossible = on_b_with(7)?;
    let Err(refused) = b.libvirt.migrate_here(&domain, &definition(NAME, &impossible)) else {
        bail!("it went to a host that cannot keep its reservation");
    };
    mentions(&format!("{refused:#}"), &["web vCPU 7 has no place here", "has no vCPU 7"])?;
    a.host.wait_vm("web", "synchronized").context("of a domain whose reservation was refused")?;
    ensure!(b.libvirt.virsh(&["list", "--name"])?.trim().is_empty(), "it runs on B");
    b.host.wait_until("the refused QEMU to be retired", |host| Ok(host.vm("web").is_err()))?;

    let possible = on_b_with(0)?;
    let moved = b.libvirt.migrate_here(&domain, &definition(NAME, &possible))?;
    b.host.wait_vm("web", "synchronized")?;
    let held = b.host.cli(&["reserve", "list", "--json"])?;
    mentions(&held, &["\"vm\":\"web\"", "\"promise\":\"limit\"", "\"budget_ns\":20000000"])?;
    a.host.wait_until("the source to be retired", |host| Ok(host.vm("web").is_err()))?;
    std::mem::forget(domain);
    drop(moved);
    Ok(format!(
        "a domain named {NAME:?} is served; one that comes to a host whose timevisord hangs is refused, one that starts there runs, \
         and both are told ({took} s for the two); with a reservation that B cannot make it stays, with one that B can make it moves"
    ))
}
