//! Snapshots of what operators paste.

use super::*;

fn nvdimm() -> Request {
    Request {
        name: "web".into(),
        delivery: Delivery::Nvdimm {
            page: "/run/timevisor/vms/web/page".into(),
            ssdt: "/run/timevisor/vms/web/ssdt.aml".into(),
        },
        memory_mib: 512,
        chipset: Chipset::Q35,
        hotplug: Hotplug::USUAL,
        explicit_memory: false,
        qmp: "/run/timevisor/vms/web/monitor/qmp".into(),
    }
}

#[test]
fn an_nvdimm_for_the_shell() {
    let expected = "\
-m 512M,slots=9,maxmem=17920M \\
-machine nvdimm=on \\
-object memory-backend-file,id=timevisor-page,share=on,mem-path=/run/timevisor/vms/web/page,size=2M,readonly=on \\
-device nvdimm,memdev=timevisor-page,unarmed=on,addr=0x500000000 \\
-acpitable file=/run/timevisor/vms/web/ssdt.aml \\
-qmp unix:/run/timevisor/vms/web/monitor/qmp,server=on,wait=off \\
-device virtio-serial-pci,id=timevisor-serial \\
-chardev socket,id=timevisor,path=/run/timevisor/vms/web/monitor/channel,server=on,wait=off \\
-device virtserialport,bus=timevisor-serial.0,chardev=timevisor,name=org.timevisor.0
";
    assert_eq!(nvdimm().shell().unwrap(), expected);
    let explicit = Request { explicit_memory: true, ..nvdimm() }.shell().unwrap();
    let added = "-object memory-backend-ram,id=timevisor-ram,size=512M \\\n-machine memory-backend=timevisor-ram \\\n";
    assert!(explicit.contains(added), "{explicit}");
}

#[test]
fn an_nvdimm_for_libvirt() {
    let expected = "\
<!-- web: inside <domain>, which needs the namespace: -->
<!-- <domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'> -->
<!-- Live migration needs the capability x-ignore-shared on both sides (timevisord sets it). save, restore and \
managedsave do not work with this delivery. -->
<!-- On hosts with AppArmor, add to /etc/apparmor.d/local/abstractions/libvirt-qemu: /run/timevisor/vms/web/page r, \
/run/timevisor/vms/web/ssdt.aml r, /run/timevisor/vms/web/monitor/qmp rw, -->
<!-- inside <devices>, so that programs in the guest can state requirements: -->
<channel type='unix'><source mode='bind' path='/run/timevisor/vms/web/monitor/channel'/>\
<target type='virtio' name='org.timevisor.0'/></channel>
<qemu:commandline>
  <qemu:arg value='-m'/><qemu:arg value='slots=9,maxmem=17920M'/>
  <qemu:arg value='-machine'/><qemu:arg value='nvdimm=on'/>
  <qemu:arg value='-object'/><qemu:arg value='memory-backend-file,id=timevisor-page,share=on,\
mem-path=/run/timevisor/vms/web/page,size=2M,readonly=on'/>
  <qemu:arg value='-device'/><qemu:arg value='nvdimm,memdev=timevisor-page,unarmed=on,addr=0x500000000'/>
  <qemu:arg value='-acpitable'/><qemu:arg value='file=/run/timevisor/vms/web/ssdt.aml'/>
  <qemu:arg value='-qmp'/><qemu:arg value='unix:/run/timevisor/vms/web/monitor/qmp,server=on,wait=off'/>
</qemu:commandline>
";
    assert_eq!(nvdimm().libvirt_xml().unwrap(), expected);
}

#[test]
fn the_vmclock_device_for_both() {
    let request = Request { delivery: Delivery::Vmclock, ..nvdimm() };
    let expected = "\
-machine aux-ram-share=on \\
-device vmclock \\
-qmp unix:/run/timevisor/vms/web/monitor/qmp,server=on,wait=off \\
-device virtio-serial-pci,id=timevisor-serial \\
-chardev socket,id=timevisor,path=/run/timevisor/vms/web/monitor/channel,server=on,wait=off \\
-device virtserialport,bus=timevisor-serial.0,chardev=timevisor,name=org.timevisor.0
";
    assert_eq!(request.shell().unwrap(), expected);
    let xml = request.libvirt_xml().unwrap();
    assert!(xml.contains("<qemu:arg value='-device'/><qemu:arg value='vmclock'/>"), "{xml}");
    assert!(xml.contains("resume when timevisord has filled the page"), "{xml}");
}

#[test]
fn an_ivshmem_device_for_both() {
    let page = "/run/timevisor/vms/web/page".into();
    let request = Request { delivery: Delivery::Ivshmem { page }, memory_mib: 1 << 20, ..nvdimm() };
    let expected = "\
-object memory-backend-file,id=timevisor-page,share=on,mem-path=/run/timevisor/vms/web/page,size=4K,readonly=on \\
-device '{\"driver\":\"ivshmem-plain\",\"memdev\":\"timevisor-page\"}' \\
-qmp unix:/run/timevisor/vms/web/monitor/qmp,server=on,wait=off \\
-device virtio-serial-pci,id=timevisor-serial \\
-chardev socket,id=timevisor,path=/run/timevisor/vms/web/monitor/channel,server=on,wait=off \\
-device virtserialport,bus=timevisor-serial.0,chardev=timevisor,name=org.timevisor.0
";
    // Main memory may have any size, because the device has a fixed address.
    assert_eq!(request.shell().unwrap(), expected);
    let xml = request.libvirt_xml().unwrap();
    for part in [
        "QEMU refuses live migration, save,",
        "libvirt-qemu: /run/timevisor/vms/web/page r, /run/timevisor/vms/web/monitor/qmp rw, -->",
        "<qemu:arg value='-device'/><qemu:arg value='{&quot;driver&quot;:&quot;ivshmem-plain&quot;,",
    ] {
        assert!(xml.contains(part), "{part} in {xml}");
    }
}

#[test]
fn strange_paths_are_quoted_for_every_reader() {
    let request = Request { qmp: "/run/a b,c'd&e".into(), delivery: Delivery::Vmclock, ..nvdimm() };
    assert!(
        request.shell().unwrap().contains("-qmp 'unix:/run/a b,,c'\\''d&e,server=on,wait=off' ")
    );
    assert!(request.libvirt_xml().unwrap().contains("unix:/run/a b,,c&apos;d&amp;e,server=on"));
}

#[test]
fn the_nvdimm_begins_after_main_memory() {
    let at = |mib, chipset| nvdimm_address(mib, chipset).unwrap() >> 20;
    // Both chipsets keep small memories below 4 GiB.
    assert_eq!(at(512, Chipset::Q35), 4096);
    assert_eq!(at(2815, Chipset::Q35), 4096);
    // q35 splits at 2 GiB from 2.75 GiB on, pc at 3 GiB from 3.5 GiB on.
    assert_eq!(at(2816, Chipset::Q35), 4096 + 1024);
    assert_eq!(at(4096, Chipset::Q35), 4096 + 2048);
    assert_eq!(at(4096, Chipset::Pc), 4096 + 1024);
    assert_eq!(at(3583, Chipset::Pc), 4096);
    assert!(
        nvdimm_address(0, Chipset::Q35).is_err() && nvdimm_address(1 << 20, Chipset::Q35).is_err()
    );
}

/// A VM whose own line has `-m 64G,slots=16,maxmem=256G` keeps it, and the page lies beyond.
#[test]
fn the_page_is_beyond_what_can_be_plugged() {
    let hotplug = Hotplug { slots: 16, room_mib: 192 * GIB };
    let request = Request { hotplug, memory_mib: 64 * GIB, ..nvdimm() };
    let arguments = request.arguments().unwrap();
    assert_eq!(arguments[0][1], format!("{}M,slots=17,maxmem={}M", 64 * GIB, 257 * GIB));
    // 2 GiB are below 4 GiB, 62 above, then 192 for DIMMs.
    assert_eq!(request.page_address().unwrap(), (4 + 62 + 192) << 30);
    let none = Request { hotplug: Hotplug { slots: 0, room_mib: 0 }, ..nvdimm() };
    assert_eq!(none.page_address().unwrap(), 4 << 30);
    assert_eq!(none.arguments().unwrap()[0][1], "512M,slots=1,maxmem=1536M");
    let much = Hotplug { slots: 1, room_mib: 1 << 20 };
    assert!(Request { hotplug: much, ..nvdimm() }.shell().is_err());
}
