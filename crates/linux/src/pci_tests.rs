//! A folder that looks like /sys/bus/pci/devices.

use super::*;

struct Bus(tempfile::TempDir);

impl Bus {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Adds a device with this memory in its third BAR, enabled or disabled.
    fn plug(&self, address: &str, id: (&str, &str), memory: &[u8], on: bool) -> PathBuf {
        let device = self.0.path().join(address);
        fs::create_dir(&device).unwrap();
        fs::write(device.join("vendor"), format!("{}\n", id.0)).unwrap();
        fs::write(device.join("device"), format!("{}\n", id.1)).unwrap();
        let mut config = [0; 64];
        // The bus mastering and I/O bits must not be mistaken for the memory bit.
        config[4] = if on { 0b111 } else { 0b101 };
        fs::write(device.join("config"), config).unwrap();
        fs::write(device.join("enable"), "0\n").unwrap();
        fs::write(device.join(RESOURCE), memory).unwrap();
        device
    }

    fn resources(&self) -> Vec<PathBuf> {
        resources_in(self.0.path()).unwrap()
    }
}

const OURS: (&str, &str) = ("0x1af4", "0x1110");

fn memory(magic: [u8; 4]) -> Vec<u8> {
    let mut memory = vec![0; 8192];
    memory[..4].copy_from_slice(&magic);
    memory
}

#[test]
fn only_ivshmem_devices_are_found_in_order() {
    let bus = Bus::new();
    bus.plug("0000:00:04.0", OURS, &[0; 4096], true);
    bus.plug("0000:00:03.0", OURS, &[0; 4096], true);
    bus.plug("0000:00:01.0", ("0x1af4", "0x1003"), &[0; 4096], true);
    bus.plug("0000:00:02.0", ("0x8086", "0x1110"), &[0; 4096], true);
    // Without memory, the kernel creates no file.
    let empty = bus.plug("0000:00:05.0", OURS, &[], true);
    fs::remove_file(empty.join(RESOURCE)).unwrap();
    let at = |address: &str| bus.0.path().join(address).join("resource2");
    assert_eq!(bus.resources(), [at("0000:00:03.0"), at("0000:00:04.0")]);
    assert_eq!(resources_in(Path::new("/sys/no/such/bus")).unwrap(), [] as [PathBuf; 0]);
}

#[test]
fn memory_of_others_is_passed_over() {
    let bus = Bus::new();
    bus.plug("0000:00:02.0", OURS, &memory([0; 4]), true);
    assert!(page_in(bus.0.path()).unwrap().is_none());
    bus.plug("0000:00:03.0", OURS, &memory(*b"VCLK"), true);
    let page = page_in(bus.0.path()).unwrap().unwrap();
    // A vmclock page without our header; rejecting it is up to the reader.
    assert_eq!(check(&page), Err(OpenError::NotTimevisor));
}

#[test]
fn memory_is_switched_on_only_when_it_is_off() {
    let bus = Bus::new();
    let enabled = |device: &Path| fs::read_to_string(device.join("enable")).unwrap();
    let on = bus.plug("0000:00:02.0", OURS, &memory(*b"VCLK"), true);
    let page = SharedMapping::of_pci_resource(&on.join(RESOURCE)).unwrap();
    assert_eq!((page.len(), page.access()), (PAGE_BYTES, Access::ReadOnly));
    assert_eq!(enabled(&on), "0\n");

    let off = bus.plug("0000:00:03.0", OURS, &memory(*b"VCLK"), false);
    SharedMapping::of_pci_resource(&off.join(RESOURCE)).unwrap();
    assert_eq!(enabled(&off), "1");

    fs::remove_file(off.join("enable")).unwrap();
    fs::create_dir(off.join("enable")).unwrap();
    let error = SharedMapping::of_pci_resource(&off.join(RESOURCE)).unwrap_err();
    assert!(matches!(error, MapError::PciDisabled { .. }), "{error}");
}

#[test]
fn a_device_that_cannot_be_opened_is_named_unless_another_has_the_page() {
    let bus = Bus::new();
    let broken = bus.plug("0000:00:02.0", OURS, &[], true);
    fs::remove_file(broken.join(RESOURCE)).unwrap();
    // A symbolic link as the last path component gives ELOOP, even to root.
    std::os::unix::fs::symlink("config", broken.join(RESOURCE)).unwrap();
    let error = page_in(bus.0.path()).unwrap_err();
    assert!(matches!(error, MapError::PciOpen { .. }), "{error}");
    assert!(error.to_string().contains("chmod a+r"), "{error}");
    bus.plug("0000:00:03.0", OURS, &memory(*b"VCLK"), true);
    assert!(page_in(bus.0.path()).unwrap().is_some());
    let short = bus.plug("0000:00:04.0", OURS, &[0; 256], true);
    assert!(matches!(
        SharedMapping::of_pci_resource(&short.join(RESOURCE)),
        Err(MapError::TooShort { found: 256, wanted: 4096 })
    ));
}
