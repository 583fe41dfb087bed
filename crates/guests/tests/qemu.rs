//! Against real QEMUs, without a guest: the TCG mapping, discovery, and every delivery.
//!
//! Uses `qemu-system-x86_64` of the PATH, or every command in TIMEVISOR_TEST_QEMU (separated by
//! `;`, arguments allowed), and passes with a note where there is none. The lab checks the same
//! things from inside guests.

#![expect(clippy::unwrap_used, reason = "every line here is a test")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use timevisor_guests::acpi;
use timevisor_guests::arguments::{Chipset, Delivery, Hotplug, Request};
use timevisor_guests::counter_mapping::{MappingError, MappingSource, TcgMapping, source};
use timevisor_guests::delivery::{
    DeliveryError, IvshmemPage, NvdimmPage, PageDelivery, PageFiles, VmclockDevice,
};
use timevisor_guests::qemu::{self, Accelerator, Qemu, QemuError};
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page_file::PageFileError;
use timevisor_linux::process::Process;

/// A QEMU without a guest, at -S.
struct Machine {
    child: Child,
    monitor: BufReader<UnixStream>,
    folder: tempfile::TempDir,
}

fn emulators() -> Vec<Vec<String>> {
    let list =
        std::env::var("TIMEVISOR_TEST_QEMU").unwrap_or_else(|_| "qemu-system-x86_64".to_owned());
    let commands: Vec<Vec<String>> = list
        .split(';')
        .map(|command| command.split_whitespace().map(str::to_owned).collect())
        .collect();
    let there = |command: &Vec<String>| Command::new(&command[0]).arg("--version").output().is_ok();
    let found: Vec<_> = commands.into_iter().filter(there).collect();
    if found.is_empty() {
        eprintln!("no QEMU here: nothing tested");
    }
    found
}

fn has_vmclock(command: &[String]) -> bool {
    let help = Command::new(&command[0]).args(["-device", "help"]).output().unwrap();
    String::from_utf8_lossy(&help.stdout).contains("\"vmclock\"")
}

impl Machine {
    fn start(command: &[String], arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), command, arguments)
    }

    fn start_in(folder: tempfile::TempDir, command: &[String], arguments: &[&str]) -> Self {
        let socket = folder.path().join("first.qmp");
        let child = Command::new(&command[0])
            .args(&command[1..])
            .args([
                "-S",
                "-nodefaults",
                "-display",
                "none",
                "-accel",
                "tcg",
                "-name",
                "guest=probe,debug-threads=on",
            ])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", socket.display())])
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed() > Duration::from_secs(30) => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut machine = Self { child, monitor: BufReader::new(stream), folder };
        machine.line();
        machine.run("qmp_capabilities", "{}");
        machine
    }

    fn line(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.monitor.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn run(&mut self, command: &str, arguments: &str) -> serde_json::Value {
        let request = format!("{{\"execute\": \"{command}\", \"arguments\": {arguments}}}\n");
        self.monitor.get_mut().write_all(request.as_bytes()).unwrap();
        loop {
            let answer = self.line();
            assert!(answer.get("error").is_none(), "{answer}");
            if let Some(value) = answer.get("return") {
                return value.clone();
            }
        }
    }

    fn qemu(&self) -> Qemu {
        Qemu::open(Process::open(self.child.id()).unwrap()).unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(target_arch = "x86_64")]
fn host_counter() -> u64 {
    use timevisor_clock_page::Counter;
    timevisor_linux::counter::Tsc::unchecked().read_ordered()
}

/// Whether one counter value is not earlier than another, on the circle of 2^64: a guest's counter
/// starts at zero, so its value for a moment before its start lies below.
fn not_before(later: u64, earlier: u64) -> bool {
    later.wrapping_sub(earlier) < 1 << 63
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_tcg_mapping_follows_stop_and_cont() {
    for command in emulators() {
        let mut machine = Machine::start(&command, &[]);
        let qemu = machine.qemu();
        assert_eq!((qemu.name.as_str(), qemu.accelerator), ("probe", Accelerator::Tcg));
        assert_eq!(qemu.command_line.qmp_sockets, [machine.folder.path().join("first.qmp")]);
        let mut source = TcgMapping::attach(qemu.process).unwrap();
        let fresh = source.read().unwrap();
        assert_eq!((fresh.running, fresh.offset), (false, 0), "{command:?}");

        let mut frozen = 0;
        for round in 0..20 {
            let before = host_counter();
            machine.run("cont", "{}");
            let running = source.read().unwrap();
            assert!(running.running, "{command:?} round {round}");
            // The guest's counter went on from where it stood.
            assert!(not_before(running.guest_from_host(host_counter()), frozen));
            assert!(
                not_before(frozen, running.guest_from_host(before)),
                "{command:?} round {round}"
            );
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(source.read().unwrap(), running, "the offset stays while the guest runs");

            let before = host_counter();
            machine.run("stop", "{}");
            let after = host_counter();
            let stopped = source.read().unwrap();
            assert!(!stopped.running);
            frozen = stopped.guest_from_host(0);
            // The frozen value is what the running mapping gives for the moment of the stop.
            assert!(
                running.guest_from_host(before) <= frozen
                    && frozen <= running.guest_from_host(after)
            );
        }
        drop(machine);
        assert!(matches!(source.read(), Err(MappingError::Process(_))));
    }
}

#[test]
fn icount_has_no_mapping() {
    for command in emulators() {
        let machine = Machine::start(&command, &["-icount", "1"]);
        let mut qemu = machine.qemu();
        let answer = source(qemu.process, qemu.accelerator, qemu.command_line.icount);
        assert!(matches!(answer.err(), Some(MappingError::Icount)));
        // Also when the command line does not show it.
        qemu.command_line.icount = false;
        assert!(matches!(
            TcgMapping::attach(qemu.process).unwrap().read(),
            Err(MappingError::Icount)
        ));
    }
}

#[test]
fn discovery_finds_it_among_all_processes() {
    for command in emulators() {
        let machine = Machine::start(&command, &[]);
        let found: Vec<Result<Qemu, QemuError>> = qemu::discover().unwrap();
        let ours =
            found.iter().flatten().find(|qemu| qemu.process.pid() == machine.child.id()).unwrap();
        assert_eq!(*ours, machine.qemu());
        assert!(NvdimmPage::default().attach(ours).unwrap().is_none());
        assert!(VmclockDevice.attach(ours).unwrap().is_none());
    }
}

#[test]
fn the_vmclock_device_shares_its_page() {
    for command in emulators().into_iter().filter(|command| has_vmclock(command)) {
        let private = Machine::start(&command, &["-machine", "q35", "-device", "vmclock"]);
        assert!(matches!(VmclockDevice.attach(&private.qemu()), Err(DeliveryError::NotShared(_))));

        let mut machine =
            Machine::start(&command, &["-machine", "q35,aux-ram-share=on", "-device", "vmclock"]);
        let qemu = machine.qemu();
        let page = VmclockDevice.attach(&qemu).unwrap().unwrap();
        std::os::unix::fs::FileExt::write_all_at(
            page.file(),
            &0x1122_3344_5566_7788_u64.to_le_bytes(),
            0x28,
        )
        .unwrap();
        // QEMU knows where it put the page; the guest sees the same bytes there.
        let tree = machine.run("human-monitor-command", r#"{"command-line": "info mtree -f"}"#);
        let tree = tree.as_str().unwrap();
        let line = tree
            .lines()
            .find(|line| line.contains("vmclock_page"))
            .unwrap_or_else(|| panic!("{tree}"));
        let address = u64::from_str_radix(line.trim().split('-').next().unwrap(), 16).unwrap();
        assert_eq!(physical(&mut machine, address + 0x28), 0x1122_3344_5566_7788);
    }
}

/// Eight bytes of guest-physical memory.
fn physical(machine: &mut Machine, address: u64) -> u64 {
    let command = format!("{{\"command-line\": \"xp /1xg {address:#x}\"}}");
    let answer = machine.run("human-monitor-command", &command);
    let text = answer.as_str().unwrap();
    let word = text.trim().rsplit("0x").next().unwrap();
    u64::from_str_radix(word, 16).unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn the_nvdimm_shows_the_page_file_at_the_computed_address() {
    for command in emulators() {
        for (memory_mib, chipset, machine_type) in [
            (256, Chipset::Q35, "q35"),
            (2815, Chipset::Q35, "q35"),
            (2816, Chipset::Q35, "q35"),
            (6000, Chipset::Q35, "q35"),
            (3583, Chipset::Pc, "pc"),
            (3584, Chipset::Pc, "pc"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let (pages, delivery) = (PageFiles::new(folder.path()), NvdimmPage::new(folder.path()));
            let page = pages.prepare("probe").unwrap();
            std::os::unix::fs::FileExt::write_all_at(page.file(), b"VCLKtest", 0).unwrap();
            drop(page);
            let ssdt = folder.path().join("ssdt.aml");
            let request = Request {
                name: "probe".to_owned(),
                delivery: Delivery::Nvdimm {
                    page: pages.path("probe").unwrap(),
                    ssdt: ssdt.clone(),
                },
                memory_mib,
                chipset,
                hotplug: Hotplug::USUAL,
                explicit_memory: memory_mib == 256,
                qmp: folder.path().join("second.qmp"),
            };
            let address = request.page_address().unwrap();
            std::fs::write(&ssdt, acpi::ssdt(address)).unwrap();
            let arguments = request.arguments().unwrap();
            let mut flat = vec!["-machine", machine_type];
            flat.extend(arguments.iter().flatten().map(String::as_str));
            let qmp = request.qmp.clone();
            let mut machine = Machine::start_in(folder, &command, &flat);
            let qemu = machine.qemu();
            assert!(qemu.command_line.qmp_sockets.contains(&qmp));

            let expected = u64::from_le_bytes(*b"VCLKtest");
            assert_eq!(
                physical(&mut machine, address),
                expected,
                "{command:?} {memory_mib} {machine_type}"
            );
            let page = delivery.attach(&qemu).unwrap().unwrap();
            std::os::unix::fs::FileExt::write_all_at(page.file(), &7u64.to_le_bytes(), 0x30)
                .unwrap();
            assert_eq!(physical(&mut machine, address + 0x30), 7);
            // The lock is beside the page, and outlives it.
            drop(page);
            replaced(&pages, &delivery, &qemu);
        }
    }
}

#[test]
fn the_ivshmem_device_shows_just_the_page_and_cannot_write_it() {
    for command in emulators() {
        for machine_type in ["q35", "pc"] {
            let folder = tempfile::tempdir().unwrap();
            let pages = PageFiles::new(folder.path());
            drop(pages.prepare("probe").unwrap());
            let page = pages.path("probe").unwrap();
            let request = Request {
                name: "probe".to_owned(),
                delivery: Delivery::Ivshmem { page: page.clone() },
                memory_mib: 256,
                chipset: Chipset::Q35,
                hotplug: Hotplug::USUAL,
                explicit_memory: false,
                qmp: folder.path().join("second.qmp"),
            };
            let arguments = request.arguments().unwrap();
            let mut flat = vec!["-machine", machine_type];
            flat.extend(arguments.iter().flatten().map(String::as_str));
            let delivery = IvshmemPage::new(folder.path());
            let nvdimm = NvdimmPage::new(folder.path());
            let mut machine = Machine::start_in(folder, &command, &flat);
            let qemu = machine.qemu();

            let buses = machine.run("query-pci", "{}");
            let devices = buses[0]["devices"].as_array().unwrap();
            let ours = devices.iter().find(|d| d["id"]["device"] == 0x1110).unwrap();
            let bar = ours["regions"].as_array().unwrap().iter().find(|r| r["bar"] == 2).unwrap();
            assert_eq!(bar["size"], 4096, "{command:?} {machine_type}");
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", machine.child.id()));
            let maps = maps.unwrap();
            let map = maps.lines().find(|line| line.ends_with(page.to_str().unwrap())).unwrap();
            assert_eq!(map.split_whitespace().nth(1), Some("r--s"), "{map}");

            assert_eq!(pages.name_of(&qemu).as_deref(), Some("probe"));
            assert!(nvdimm.attach(&qemu).unwrap().is_none());
            assert!(delivery.attach(&qemu).unwrap().is_some());
            replaced(&pages, &delivery, &qemu);
        }
    }
}

/// In a container the page has another path, which our own options do not name.
#[test]
fn a_page_at_another_path_is_known_by_its_file() {
    for command in emulators() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        let ours = folder.path().join("ours");
        let pages = PageFiles::new(&ours);
        drop(pages.prepare("probe").unwrap());
        drop(pages.prepare("other").unwrap());
        std::os::unix::fs::symlink(&ours, &elsewhere).unwrap();
        let page = elsewhere.join("probe/page");
        let request = Request {
            name: "probe".to_owned(),
            delivery: Delivery::Ivshmem { page },
            memory_mib: 256,
            chipset: Chipset::Q35,
            hotplug: Hotplug::USUAL,
            explicit_memory: false,
            qmp: folder.path().join("second.qmp"),
        };
        let arguments = request.arguments().unwrap();
        let mut flat = vec!["-machine", "q35"];
        flat.extend(arguments.iter().flatten().map(String::as_str));
        let machine = Machine::start_in(folder, &command, &flat);
        let qemu = machine.qemu();
        assert_eq!(pages.name_of(&qemu).as_deref(), Some("probe"));
        assert!(NvdimmPage::new(&ours).attach(&qemu).unwrap().is_none());
        assert!(IvshmemPage::new(&ours).attach(&qemu).unwrap().is_some());
        assert!(PageFiles::new("/nowhere").name_of(&qemu).is_none());
    }
}

/// A page file that was replaced under a running QEMU is noticed.
fn replaced(pages: &PageFiles, delivery: &dyn PageDelivery, qemu: &Qemu) {
    std::fs::remove_file(pages.path("probe").unwrap()).unwrap();
    assert!(matches!(delivery.attach(qemu), Err(DeliveryError::Replaced { .. })));
    drop(prepared(pages));
    assert!(matches!(delivery.attach(qemu), Err(DeliveryError::Replaced { .. })));
}

/// The page file, whose lock may outlive its owner for a moment: another test of this process that
/// just starts a QEMU has a copy of the descriptor between fork and exec.
fn prepared(pages: &PageFiles) -> SharedMapping {
    for _ in 0..1000 {
        match pages.prepare("probe") {
            Err(DeliveryError::PageFile { source: PageFileError::Locked { .. }, .. }) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other.unwrap(),
        }
    }
    panic!("the page's lock is held for 10 s");
}
