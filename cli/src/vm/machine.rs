//! A VM's memory, slots and chipset: as stated, or read from the command or the domain that starts
//! it. The nvdimm delivery replaces the VM's `-m`, so what is not told is lost.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use timevisor_guests::arguments::{Chipset, Hotplug, Request};
use timevisor_guests::command_line::CommandLine;

use super::{Arguments, Machine};

const MIB: u64 = 1 << 20;

/// What the VM has without us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    pub memory_mib: u64,
    pub hotplug: Hotplug,
    pub chipset: Chipset,
}

/// What the options say about the VM. Only an nvdimm depends on it; for the other deliveries
/// anything will do.
pub fn own(options: &Arguments, needed: bool) -> Result<Own> {
    if let Some(command) = &options.from {
        return of_command(command);
    }
    if let Some(file) = &options.from_xml {
        let text = read(file).with_context(|| format!("cannot read {}", file.display()))?;
        return of_domain(&text);
    }
    let memory_mib = match options.memory {
        Some(memory) => memory,
        None if needed => bail!(
            "an nvdimm replaces the VM's -m: give --memory MIB (and --slots, --maxmem if memory is plugged into this \
             VM), or --from 'qemu-system-x86_64 ...', or --from-xml FILE"
        ),
        None => 1024,
    };
    let hotplug = match (options.slots, options.maxmem) {
        (Some(slots), Some(most)) => Hotplug { slots, room_mib: room(memory_mib, most)? },
        _ => Hotplug::USUAL,
    };
    let chipset = match options.machine {
        Machine::Q35 => Chipset::Q35,
        Machine::Pc => Chipset::Pc,
    };
    Ok(Own { memory_mib, hotplug, chipset })
}

/// Says on stderr what the printed `-m` stands for.
pub fn tell_what_is_replaced(equipment: &Request) {
    let Request { memory_mib, hotplug, .. } = equipment;
    eprintln!(
        "timevisor: the -m below replaces the VM's own: {memory_mib} MiB, and {} slots for {} MiB more; if that is not \
         what the VM has, give --memory, --slots and --maxmem, or --from",
        hotplug.slots, hotplug.room_mib
    );
}

fn read(file: &Path) -> std::io::Result<String> {
    if file.as_os_str() != "-" {
        return fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// From a QEMU command line as a shell would read it.
fn of_command(command: &str) -> Result<Own> {
    let words = shlex::split(command).context("--from: a quote or a backslash has no end")?;
    ensure!(words.len() > 1, "--from: give the whole command line of QEMU in quotes");
    let line = CommandLine::parse(&words);
    let memory_mib = whole_mib(line.memory_bytes())?;
    let hotplug = match (line.slots, line.max_memory) {
        (Some(slots), Some(most)) => {
            Hotplug { slots, room_mib: room(memory_mib, whole_mib(most)?)? }
        }
        _ => Hotplug { slots: 0, room_mib: 0 },
    };
    let chipset = chipset(line.machine_type.as_deref().unwrap_or("pc"))?;
    Ok(Own { memory_mib, hotplug, chipset })
}

/// From a domain of libvirt (formatdomain, "Memory Allocation").
fn of_domain(text: &str) -> Result<Own> {
    let document = roxmltree::Document::parse(text).context("--from-xml: not XML")?;
    let domain = document.root_element();
    ensure!(
        domain.has_tag_name("domain"),
        "--from-xml: no <domain>; give what `virsh dumpxml` prints"
    );
    let child = |name| domain.children().find(|node| node.has_tag_name(name));
    let memory = child("memory").context("--from-xml: the domain has no <memory>")?;
    let memory_mib = whole_mib(size(memory)?)?;
    let hotplug = match child("maxMemory") {
        Some(most) => Hotplug {
            slots: most.attribute("slots").and_then(|n| n.parse().ok()).unwrap_or(0),
            room_mib: room(memory_mib, whole_mib(size(most)?)?)?,
        },
        None => Hotplug { slots: 0, room_mib: 0 },
    };
    let machine = child("os")
        .and_then(|os| os.children().find(|node| node.has_tag_name("type")))
        .and_then(|kind| kind.attribute("machine"));
    Ok(Own { memory_mib, hotplug, chipset: chipset(machine.unwrap_or("pc"))? })
}

/// A size in bytes: the unit is KiB unless another one is given.
fn size(node: roxmltree::Node<'_, '_>) -> Result<u64> {
    let unit = match node.attribute("unit").unwrap_or("KiB") {
        "b" | "bytes" => 1,
        "KB" => 1_000,
        "k" | "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "M" | "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "G" | "GiB" => 1 << 30,
        "TB" => 1_000_000_000_000,
        "T" | "TiB" => 1 << 40,
        other => bail!("--from-xml: unknown unit {other:?}"),
    };
    let number = node.text().unwrap_or_default().trim();
    let number: u64 = number.parse().with_context(|| format!("--from-xml: no size: {number:?}"))?;
    number.checked_mul(unit).context("--from-xml: a size that is too large")
}

fn whole_mib(bytes: u64) -> Result<u64> {
    ensure!(bytes.is_multiple_of(MIB), "{bytes} bytes of memory are not whole MiB; round them");
    Ok(bytes / MIB)
}

fn room(memory_mib: u64, most_mib: u64) -> Result<u64> {
    most_mib.checked_sub(memory_mib).with_context(|| {
        format!("at most {most_mib} MiB (maxmem) is less than the memory, {memory_mib} MiB")
    })
}

/// The chipset of a machine type. Others have memory elsewhere.
fn chipset(machine: &str) -> Result<Chipset> {
    match machine {
        _ if machine.contains("q35") => Ok(Chipset::Q35),
        _ if machine == "pc" || machine.starts_with("pc-i440fx") => Ok(Chipset::Pc),
        _ => bail!(
            "the machine {machine:?} is neither q35 nor pc; use --delivery vmclock or ivshmem"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_keeps_its_memory_and_slots() {
        let own = of_command(
            "qemu-system-x86_64 -name 'Windows 10' -machine type=q35+pve0 -m size=1.5G,slots=8,maxmem=64G -S",
        );
        let hotplug = Hotplug { slots: 8, room_mib: 64 * 1024 - 1536 };
        assert_eq!(own.unwrap(), Own { memory_mib: 1536, hotplug, chipset: Chipset::Q35 });
        let plain = of_command("kvm -m 512").unwrap();
        let none = Hotplug { slots: 0, room_mib: 0 };
        assert_eq!(plain, Own { memory_mib: 512, hotplug: none, chipset: Chipset::Pc });
        for (odd, why) in [
            ("qemu -name 'a", "no end"),
            ("qemu", "whole command line"),
            ("qemu -M microvm -m 1G", "neither q35 nor pc"),
            ("qemu -m 2G,slots=1,maxmem=1G", "less than the memory"),
            ("qemu -m 1500k", "not whole MiB"),
        ] {
            let error = format!("{:#}", of_command(odd).unwrap_err());
            assert!(error.contains(why), "{odd}: {error}");
        }
    }

    #[test]
    fn a_domain_keeps_them_too() {
        let domain = |inside: &str| format!("<domain type='kvm'><name>a</name>{inside}</domain>");
        let own = of_domain(&domain(
            "<maxMemory slots='16' unit='GiB'>64</maxMemory><memory unit='KiB'>2097152</memory>\
             <os><type arch='x86_64' machine='pc-q35-9.2'>hvm</type></os>",
        ));
        let hotplug = Hotplug { slots: 16, room_mib: 62 * 1024 };
        assert_eq!(own.unwrap(), Own { memory_mib: 2048, hotplug, chipset: Chipset::Q35 });
        let plain = of_domain(&domain("<memory>524288</memory>")).unwrap();
        assert_eq!((plain.memory_mib, plain.hotplug.slots), (512, 0));
        for (odd, why) in [
            ("<a", "not XML"),
            ("<network/>", "virsh dumpxml"),
            (&domain(""), "no <memory>"),
            (&domain("<memory unit='x'>1</memory>"), "unknown unit"),
            (&domain("<memory>lots</memory>"), "no size"),
        ] {
            let error = format!("{:#}", of_domain(odd).unwrap_err());
            assert!(error.contains(why), "{odd}: {error}");
        }
    }
}
