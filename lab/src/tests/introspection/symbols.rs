//! Compares what is found in a guest's memory with what the guest itself reports.

use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};
use timevisor_introspection::memory::GuestMemory;
use timevisor_introspection::memory::ram::{Machine, Ram, RamLayout};
use timevisor_introspection::os::linux::Linux;
use timevisor_introspection::symbols::btf::Btf;
use timevisor_introspection::symbols::kallsyms;

use crate::guest::Guest;
use crate::introspection;
use crate::scenario::Context;

const MIB: u32 = 256;
/// Suite and kernel arguments.
const GUESTS: [(&str, &str); 4] = [
    ("bookworm", "kaslr"),
    ("bookworm-backports", "kaslr"),
    ("trixie-backports", "kaslr"),
    ("trixie-backports", "nokaslr"),
];

pub(crate) fn symbols(ctx: &Context) -> anyhow::Result<String> {
    let qemu = ctx.qemu_10()?;
    let mut guests = Vec::new();
    for (n, (suite, kaslr)) in GUESTS.iter().enumerate() {
        let kernel = ctx.kernel(suite)?;
        let file = ctx.path(&format!("ram-{n}"));
        let guest = ctx
            .guest(&qemu, &kernel, &ctx.image(&kernel)?)?
            .name(&format!("{suite}-{kaslr}"))
            .memory_mib(MIB)
            .memory_file(&file)
            .append(kaslr)
            .start()?;
        guests.push((guest, file, kaslr));
    }
    let mut told = Vec::new();
    for (mut guest, file, kaslr) in guests {
        guest.wait_ready()?;
        let layout = RamLayout::new(Machine::Q35, u64::from(MIB) << 20, None)?;
        let ram = Ram::new(layout, std::fs::File::open(&file)?);
        let said = compare(&mut guest, &ram).with_context(|| format!("{}", file.display()))?;
        let loaded = guest.sh("grep -m 1 ' T _text$' /proc/kallsyms")?;
        let linked = loaded.starts_with("ffffffff81000000");
        ensure!(linked == (*kaslr == "nokaslr"), "{kaslr}: the kernel is at {loaded}");
        told.push(format!("{said} {kaslr}"));
        guest.kill();
        std::fs::remove_file(&file)?;
    }
    Ok(told.join(", "))
}

fn compare(guest: &mut Guest, ram: &dyn GuestMemory) -> anyhow::Result<String> {
    let kernel = kallsyms::find(ram)?;
    let release = guest.sh("uname -r")?;
    ensure!(kernel.release == release.trim(), "{} is {release}", kernel.release);

    // Module symbols follow the kernel's and have a bracket.
    let mut listed = Sha256::new();
    for (address, kind, name) in kernel.symbols.iter() {
        listed.update(format!("{address:016x} {kind} {name}\n"));
    }
    let own = guest.sh("grep -v '\\[' /proc/kallsyms | sha256sum")?;
    same("/proc/kallsyms", &own, &hex(listed))?;

    let btf = Btf::of_kernel(ram, &kernel)?;
    let own = guest.sh("sha256sum </sys/kernel/btf/vmlinux")?;
    same("/sys/kernel/btf/vmlinux", &own, &hex(Sha256::new_with_prefix(btf.bytes())))?;

    // The same through QEMU's own memory, as for a guest whose memory is not backed by a file.
    let base = introspection::memory_base(guest)?;
    let process = introspection::memory(guest.pid(), base, u64::from(MIB))?;
    let again = Linux::new(&process, &kernel).map_err(anyhow::Error::msg)?;
    let points = Linux::new(ram, &kernel).map_err(anyhow::Error::msg)?;
    ensure!(format!("{again:?}") == format!("{points:?}"), "{again:?} is not {points:?}");
    Ok(format!("{}: {} symbols", kernel.release, kernel.symbols.len()))
}

fn hex(sum: Sha256) -> String {
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn same(what: &str, said: &str, found: &str) -> anyhow::Result<()> {
    ensure!(said.starts_with(found), "{what} has the sum {said}, what was found {found}");
    Ok(())
}
