//! What to add to a virtual machine so that it reads a page: QEMU arguments, or a libvirt domain's
//! elements.
//!
//! Pure text. It does not make the page or the table ([`crate::delivery`], [`crate::acpi`]), and
//! does not start anything.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::command_line::CHANNEL;

/// A chipset, which decides where memory ends and the nvdimm may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Chipset {
    /// `-machine q35`.
    #[default]
    Q35,
    /// `-machine pc`.
    Pc,
}

/// How the page reaches the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// QEMU's vmclock device (QEMU 10 and newer).
    Vmclock,
    /// A read-only nvdimm and an SSDT (QEMU 7 and newer).
    Nvdimm {
        /// The page file, 2 MiB.
        page: PathBuf,
        /// The table for [`nvdimm_address`].
        ssdt: PathBuf,
    },
    /// A read-only ivshmem device, for guest kernels without ptp_vmclock (QEMU 7 and newer).
    Ivshmem {
        /// The page file.
        page: PathBuf,
    },
}

/// The memory that may be plugged into a virtual machine, besides our nvdimm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hotplug {
    /// `-m slots=`.
    pub slots: u64,
    /// By how much `-m maxmem=` exceeds main memory, MiB.
    pub room_mib: u64,
}

impl Hotplug {
    /// Room for a few DIMMs where nothing is known. With a GiB of alignment for each slot it still
    /// fits processors with 36 address bits.
    pub const USUAL: Self = Self { slots: 8, room_mib: 16 * GIB };
}

/// A virtual machine that is to get a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// How the page reaches it.
    pub delivery: Delivery,
    /// Its memory in MiB.
    pub memory_mib: u64,
    /// Its chipset.
    pub chipset: Chipset,
    /// The memory that may be plugged into it.
    pub hotplug: Hotplug,
    /// Make main memory an explicit backend; otherwise QEMU 10 under TCG aborts when it migrates a
    /// VM with an nvdimm (assertion in tlb_reset_dirty_range_all).
    pub explicit_memory: bool,
    /// Where to put our own QMP socket; it exists in addition to libvirt's.
    pub qmp: PathBuf,
}

/// A memory size for which the nvdimm's address is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0} MiB of memory: use 1 MiB to {LARGEST_MIB} MiB with the nvdimm delivery, or the vmclock or ivshmem device"
)]
pub struct MemoryError(u64);

/// Near 1 TiB, QEMU moves memory around a hole that some processors need, and [`nvdimm_address`]
/// would return a wrong address.
const LARGEST_MIB: u64 = 900 * 1024;
const GIB: u64 = 1024;

/// The guest-physical address at which QEMU begins to plug memory: the first GiB boundary after main
/// memory, at least 4 GiB (hw/i386/pc.c, pc_get_device_memory_range; hw/i386/pc_q35.c and pc_piix.c
/// split memory below 4 GiB).
///
/// # Errors
/// When the VM has no memory, or too much of it for the address to be certain.
pub fn nvdimm_address(memory_mib: u64, chipset: Chipset) -> Result<u64, MemoryError> {
    if memory_mib == 0 || memory_mib > LARGEST_MIB {
        return Err(MemoryError(memory_mib));
    }
    let (most_below, below_when_split) = match chipset {
        Chipset::Q35 => (2816, 2048),
        Chipset::Pc => (3584, 3072),
    };
    let above = if memory_mib >= most_below { memory_mib - below_when_split } else { 0 };
    Ok((4 * GIB + above.next_multiple_of(GIB)) << 20)
}

impl Request {
    /// The arguments for QEMU, in groups that belong together: option and value.
    ///
    /// # Errors
    /// As [`nvdimm_address`].
    pub fn arguments(&self) -> Result<Vec<[String; 2]>, MemoryError> {
        let mut arguments = self.page_arguments()?;
        arguments.extend(self.port());
        Ok(arguments)
    }

    /// Where the nvdimm goes: beyond what can be plugged. QEMU puts DIMMs at the first free address,
    /// so they find the place that they would have without the page.
    ///
    /// # Errors
    /// As [`nvdimm_address`].
    pub fn page_address(&self) -> Result<u64, MemoryError> {
        let room = self.hotplug.room_mib.next_multiple_of(GIB);
        if self.memory_mib.saturating_add(room) > LARGEST_MIB {
            return Err(MemoryError(self.memory_mib.saturating_add(room)));
        }
        Ok(nvdimm_address(self.memory_mib, self.chipset)? + (room << 20))
    }

    /// The arguments without the virtio-serial port.
    fn page_arguments(&self) -> Result<Vec<[String; 2]>, MemoryError> {
        let mut out = Vec::new();
        let mut add = |option: &str, value: String| out.push([option.to_owned(), value]);
        match &self.delivery {
            Delivery::Vmclock => {
                add("-machine", "aux-ram-share=on".to_owned());
                add("-device", "vmclock".to_owned());
            }
            Delivery::Nvdimm { page, ssdt } => {
                let address = self.page_address()?;
                let (memory, Hotplug { slots, room_mib }) = (self.memory_mib, self.hotplug);
                // One slot and a GiB more than the VM's own, for the page.
                let most = memory + room_mib.next_multiple_of(GIB) + GIB;
                add("-m", format!("{memory}M,slots={},maxmem={most}M", slots + 1));
                add("-machine", "nvdimm=on".to_owned());
                if self.explicit_memory {
                    add(
                        "-object",
                        format!("memory-backend-ram,id=timevisor-ram,size={}M", self.memory_mib),
                    );
                    add("-machine", "memory-backend=timevisor-ram".to_owned());
                }
                add("-object", backend(page, "2M"));
                add(
                    "-device",
                    format!("nvdimm,memdev=timevisor-page,unarmed=on,addr={address:#x}"),
                );
                add("-acpitable", format!("file={}", commas(&ssdt.to_string_lossy())));
            }
            Delivery::Ivshmem { page } => {
                // The BAR is as large as the backend. The backend may be smaller than its file, so
                // it covers just the page.
                add("-object", backend(page, "4K"));
                // QEMU creates devices given in JSON after all others, so this device takes no slot
                // that another one asks for.
                let device = r#"{"driver":"ivshmem-plain","memdev":"timevisor-page"}"#;
                add("-device", device.to_owned());
            }
        }
        add("-qmp", format!("unix:{},server=on,wait=off", commas(&self.qmp.to_string_lossy())));
        Ok(out)
    }

    /// The port through which the guest states its requirements: a virtio-serial port whose socket
    /// lies beside the QMP socket. libvirt creates the port itself ([`Self::libvirt_xml`]).
    fn port(&self) -> Vec<[String; 2]> {
        let channel = commas(&self.channel().to_string_lossy());
        let arguments = [
            ["-device", "virtio-serial-pci,id=timevisor-serial"],
            ["-chardev", &format!("socket,id=timevisor,path={channel},server=on,wait=off")],
            [
                "-device",
                &format!("virtserialport,bus=timevisor-serial.0,chardev=timevisor,name={CHANNEL}"),
            ],
        ];
        arguments.map(|pair| pair.map(str::to_owned)).into()
    }

    /// The socket behind the guest's port.
    #[must_use]
    pub fn channel(&self) -> PathBuf {
        self.qmp.with_file_name("channel")
    }

    /// The arguments for a shell: one option per line, quoted. Append them to the virtual machine's
    /// own options.
    ///
    /// # Errors
    /// As [`nvdimm_address`].
    pub fn shell(&self) -> Result<String, MemoryError> {
        let lines: Vec<String> = self
            .arguments()?
            .iter()
            .map(|[option, value]| format!("{option} {}", quote(value)))
            .collect();
        Ok(lines.join(" \\\n") + "\n")
    }

    /// The elements to add to the domain with `virsh edit`, with comments on what else is needed.
    ///
    /// # Errors
    /// As [`nvdimm_address`].
    pub fn libvirt_xml(&self) -> Result<String, MemoryError> {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<!-- {}: inside <domain>, which needs the namespace: -->",
            comment(&self.name)
        );
        out += "<!-- <domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'> -->\n";
        out += match self.delivery {
            Delivery::Vmclock => {
                "<!-- Start paused, and resume when timevisord has filled the page; live migration with \
                 suspend, save and restore work. -->\n"
            }
            Delivery::Ivshmem { .. } => {
                "<!-- The guest reads the device's resource2 in sysfs. QEMU refuses live migration, save, restore and \
                 managedsave of a domain with this device. -->\n"
            }
            Delivery::Nvdimm { .. } => {
                "<!-- Live migration needs the capability x-ignore-shared on both sides (timevisord sets it). save, \
                 restore and managedsave do not work with this delivery. -->\n"
            }
        };
        out += &self.apparmor();
        let _ = writeln!(
            out,
            "<!-- inside <devices>, so that programs in the guest can state requirements: -->\n\
             <channel type='unix'><source mode='bind' path='{}'/><target type='virtio' name='{CHANNEL}'/></channel>",
            escape(&self.channel().to_string_lossy())
        );
        out += "<qemu:commandline>\n";
        for [option, value] in self.page_arguments()? {
            // libvirt passes -m and the main memory itself, so we add only what it cannot express.
            let value = if option == "-m" {
                value.split_once(',').map_or("", |(_, rest)| rest)
            } else {
                &value
            };
            let _ = writeln!(
                out,
                "  <qemu:arg value='{option}'/><qemu:arg value='{}'/>",
                escape(value)
            );
        }
        out += "</qemu:commandline>\n";
        Ok(out)
    }

    fn apparmor(&self) -> String {
        let mut rules = Vec::new();
        match &self.delivery {
            Delivery::Vmclock => {}
            Delivery::Nvdimm { page, ssdt } => {
                rules.extend([page, ssdt].map(|file| format!("{} r,", file.display())));
            }
            Delivery::Ivshmem { page } => rules.push(format!("{} r,", page.display())),
        }
        rules.push(format!("{} rw,", self.qmp.display()));
        let rules = comment(&rules.join(" "));
        format!(
            "<!-- On hosts with AppArmor, add to /etc/apparmor.d/local/abstractions/libvirt-qemu: {rules} -->\n"
        )
    }
}

/// The page file, which QEMU opens for reading only.
fn backend(page: &Path, size: &str) -> String {
    let page = commas(&page.to_string_lossy());
    format!(
        "memory-backend-file,id=timevisor-page,share=on,mem-path={page},size={size},readonly=on"
    )
}

/// Doubles commas, as QEMU requires in an option's value.
fn commas(value: &str) -> String {
    value.replace(',', ",,")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&apos;")
        .replace('"', "&quot;")
}

/// An XML comment cannot contain `--`.
fn comment(text: &str) -> String {
    text.replace("--", "- -")
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
