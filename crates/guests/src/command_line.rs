//! The command line of a QEMU process: the few options that matter here.
//!
//! Pure. Understands `key=value,...` with doubled commas and the JSON form that libvirt uses. It
//! does not read `-readconfig` files, so the state of the running process (open files, memory)
//! takes precedence over these options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The name of the virtio-serial port through which a guest speaks to timevisord.
pub const CHANNEL: &str = timevisor_protocols::channel::PORT_NAME;

/// File name of our QEMU plugin.
pub const PLUGIN: &str = "libtimevisor-introspect.so";

/// The options that matter.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CommandLine {
    /// `-name NAME` or `-name guest=NAME`.
    pub name: Option<String>,
    /// Accelerators in the order of preference: `-accel`, `-machine accel=`, `-enable-kvm`.
    pub accelerators: Vec<String>,
    /// `-icount` is given: guest time is a count of instructions.
    pub icount: bool,
    /// `-S` is given: the vCPUs do not run before somebody says so.
    pub held: bool,
    /// `-incoming` or `-loadvm` is given: the guest's state comes from elsewhere.
    pub loads_state: bool,
    /// `-incoming` is given: it waits for a migration at first.
    pub incoming: bool,
    /// `-machine aux-ram-share=on`.
    pub aux_ram_share: bool,
    /// QMP sockets with a path: `-qmp unix:PATH`, or `-mon mode=control` with a chardev of type
    /// socket.
    pub qmp_sockets: Vec<PathBuf>,
    /// The socket behind the virtio-serial port [`CHANNEL`], where its path is given.
    pub channel: Option<PathBuf>,
    /// The machine's type, if it is given.
    pub machine_type: Option<String>,
    /// `-machine max-ram-below-4g=`, in bytes.
    pub ram_below_4g: Option<u64>,
    /// `-m`, in bytes.
    pub memory: Option<u64>,
    /// `-m slots=`.
    pub slots: Option<u64>,
    /// `-m maxmem=`, in bytes.
    pub max_memory: Option<u64>,
    /// The gdb stub's socket: `-gdb unix:PATH`.
    pub gdb: Option<PathBuf>,
    /// Every `-plugin`; the file is stored as its kind.
    pub plugins: Vec<Properties>,
    /// `guest-cid` of a vhost-vsock device.
    pub vsock_cid: Option<u32>,
    /// Every `-object`.
    pub objects: Vec<Properties>,
    /// Every `-device`.
    pub devices: Vec<Properties>,
}

/// One `-object` or `-device`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Properties {
    /// The object's type or the device's driver.
    pub kind: String,
    /// Everything else.
    pub values: BTreeMap<String, String>,
}

impl Properties {
    /// The value of this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Parses `kind,key=value,...` or `{"KIND_KEY": "kind", "key": value, ...}`.
    fn parse(text: &str, kind_key: &str) -> Self {
        let mut values = if text.starts_with('{') { json(text) } else { pairs(text, kind_key) };
        Self { kind: values.remove(kind_key).unwrap_or_default(), values }
    }
}

impl CommandLine {
    /// Parses the arguments of a process; unknown options are skipped.
    #[must_use]
    pub fn parse(arguments: &[String]) -> Self {
        let mut line = Self::default();
        let mut chardevs: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut monitors: Vec<String> = Vec::new();
        let mut words = arguments.iter().skip(1);
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                continue;
            };
            match option {
                "enable-kvm" => {
                    line.accelerators.push("kvm".to_owned());
                    continue;
                }
                "S" => {
                    line.held = true;
                    continue;
                }
                _ => {}
            }
            if !KNOWN.contains(&option) {
                continue;
            }
            let Some(value) = words.next() else { break };
            match option {
                "name" => line.name = pairs(value, "guest").remove("guest").or(line.name),
                "accel" => line.accelerators.extend(pairs(value, "accel").remove("accel")),
                "machine" | "M" => line.machine(value),
                "icount" => line.icount = true,
                "incoming" => (line.loads_state, line.incoming) = (true, true),
                "loadvm" => line.loads_state = true,
                "qmp" | "qmp-pretty" => {
                    let target = pairs(value, "target").remove("target").unwrap_or_default();
                    line.qmp_sockets.extend(target.strip_prefix("unix:").map(PathBuf::from));
                }
                "gdb" => {
                    let target = pairs(value, "target").remove("target").unwrap_or_default();
                    line.gdb = target.strip_prefix("unix:").map(PathBuf::from);
                }
                "chardev" => {
                    let mut chardev = pairs(value, "backend");
                    if let (Some(id), Some(path)) = (chardev.remove("id"), chardev.remove("path")) {
                        chardevs.insert(id, PathBuf::from(path));
                    }
                }
                "mon" => {
                    let mut monitor = pairs(value, "chardev");
                    if monitor.get("mode").map(String::as_str) == Some("control") {
                        monitors.extend(monitor.remove("chardev"));
                    }
                }
                "m" => {
                    let given = pairs(value, "size");
                    let bytes = |key| given.get(key).and_then(|size| bytes(size, MIB));
                    line.memory = bytes("size").or(line.memory);
                    line.max_memory = bytes("maxmem").or(line.max_memory);
                    line.slots = given.get("slots").and_then(|n| n.parse().ok()).or(line.slots);
                }
                "plugin" => line.plugins.push(Properties::parse(value, "file")),
                "object" => line.objects.push(Properties::parse(value, "qom-type")),
                _ => line.devices.push(Properties::parse(value, "driver")),
            }
        }
        line.qmp_sockets.extend(monitors.iter().filter_map(|id| chardevs.remove(id)));
        line.channel = line.channel_chardev().and_then(|id| chardevs.remove(&id));
        let vsock = line.devices.iter().find(|device| device.kind.starts_with("vhost-vsock-"));
        line.vsock_cid = vsock.and_then(|device| device.get("guest-cid")?.parse().ok());
        line
    }

    fn channel_chardev(&self) -> Option<String> {
        let mut ports = self.devices_of("virtserialport");
        let port = ports.find(|port| port.get("name") == Some(CHANNEL))?;
        port.get("chardev").map(str::to_owned)
    }

    /// Its main memory; QEMU's default is 128 MiB.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.unwrap_or(128 * MIB)
    }

    /// The socket of our plugin, if QEMU was told to load it.
    #[must_use]
    pub fn introspection_socket(&self) -> Option<PathBuf> {
        let is_ours = |plugin: &&Properties| {
            Path::new(&plugin.kind).file_name().is_some_and(|name| name == PLUGIN)
        };
        self.plugins.iter().find(is_ours)?.get("socket").map(PathBuf::from)
    }

    fn machine(&mut self, value: &str) {
        let machine = pairs(value, "type");
        self.machine_type = machine.get("type").cloned().or(self.machine_type.take());
        let below = machine.get("max-ram-below-4g").and_then(|size| bytes(size, 1));
        self.ram_below_4g = below.or(self.ram_below_4g);
        if let Some(list) = machine.get("accel") {
            self.accelerators.extend(list.split(':').map(str::to_owned));
        }
        if let Some(share) = machine.get("aux-ram-share") {
            self.aux_ram_share = share == "on";
        }
    }

    /// Devices of one driver.
    pub fn devices_of<'a>(&'a self, driver: &'a str) -> impl Iterator<Item = &'a Properties> {
        self.devices.iter().filter(move |device| device.kind == driver)
    }

    /// The object with this id.
    #[must_use]
    pub fn object(&self, id: &str) -> Option<&Properties> {
        self.objects.iter().find(|object| object.get("id") == Some(id))
    }
}

/// The options whose value we need.
const KNOWN: [&str; 16] = [
    "incoming",
    "loadvm",
    "gdb",
    "m",
    "plugin",
    "name",
    "accel",
    "machine",
    "M",
    "icount",
    "qmp",
    "qmp-pretty",
    "chardev",
    "mon",
    "object",
    "device",
];

const MIB: u64 = 1 << 20;

/// A size as QEMU reads it (util/cutils.c, `qemu_strtosz`): a number, perhaps with a decimal
/// fraction, with a suffix, or without one in `unit`; or hexadecimal bytes of that unit.
fn bytes(text: &str, unit: u64) -> Option<u64> {
    if let Some(hexadecimal) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hexadecimal, 16).ok()?.checked_mul(unit);
    }
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[number.len()..].to_ascii_lowercase().as_str() {
        "" => unit,
        "b" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        "p" => 1 << 50,
        "e" => 1 << 60,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    whole.checked_add(share(fraction, unit)?)
}

/// `0.FRACTION` of `unit` bytes, rounded to the nearest; a byte has no fraction.
fn share(fraction: &str, unit: u64) -> Option<u64> {
    if fraction.is_empty() {
        return Some(0);
    }
    // More digits than this change no byte of 2^60.
    let digits = fraction.get(..fraction.len().min(18))?;
    let parts = u128::from(digits.parse::<u64>().ok()?);
    let of = 10u128.pow(u32::try_from(digits.len()).ok()?);
    let (unit, half) = (u128::from(unit), of / 2);
    (unit > 1).then_some(())?;
    u64::try_from((parts * unit + half) / of).ok()
}

/// QEMU's option syntax (util/qemu-option.c): the first word may omit its key; `,,` stands for a
/// comma; a word without `=` has the value `on`.
fn pairs(text: &str, first_key: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let parts = text.replace(",,", "\0");
    for (index, part) in parts.split(',').enumerate() {
        let part = part.replace('\0', ",");
        match part.split_once('=') {
            Some((key, value)) => found.insert(key.to_owned(), value.to_owned()),
            None if index == 0 => found.insert(first_key.to_owned(), part),
            None => found.insert(part, "on".to_owned()),
        };
    }
    found
}

/// The JSON form: strings unchanged, booleans as `on` and `off`, numbers in decimal; nested values
/// are skipped.
fn json(text: &str) -> BTreeMap<String, String> {
    let Ok(serde_json::Value::Object(object)) = serde_json::from_str(text) else {
        return BTreeMap::new();
    };
    let plain = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Bool(flag) => Some(if flag { "on" } else { "off" }.to_owned()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    object.into_iter().filter_map(|(key, value)| Some((key, plain(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> CommandLine {
        CommandLine::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_line_by_hand() {
        let line = parse(
            "qemu-system-x86_64 -S -name web,,1 -machine q35,accel=kvm:tcg,aux-ram-share=on -device vmclock \
             -qmp unix:/run/a.qmp,server=on,wait=off -icount shift=auto \
             -object memory-backend-file,id=v,share=on,mem-path=/run/p,,q,size=2M,readonly=on --device nvdimm,memdev=v",
        );
        assert_eq!(line.name.as_deref(), Some("web,1"));
        assert_eq!(line.accelerators, ["kvm", "tcg"]);
        assert!(line.icount && line.aux_ram_share);
        assert_eq!(line.qmp_sockets, [PathBuf::from("/run/a.qmp")]);
        assert_eq!(line.devices_of("vmclock").count(), 1);
        assert_eq!((&line.channel, line.vsock_cid), (&None, None));
        let memdev = line.devices_of("nvdimm").next().unwrap().get("memdev").unwrap();
        assert_eq!(line.object(memdev).unwrap().get("mem-path"), Some("/run/p,q"));
    }

    #[test]
    fn the_channel_is_the_port_of_our_name() {
        let line = parse(
            "qemu -chardev socket,id=other,path=/run/other -chardev socket,id=c,path=/run/channel,server=on,wait=off \
             -device virtio-serial-pci -device virtserialport,chardev=other,name=org.qemu.guest_agent.0 \
             -device virtserialport,chardev=c,name=org.timevisor.0 -device vhost-vsock-pci,guest-cid=42",
        );
        assert_eq!(line.channel, Some(PathBuf::from("/run/channel")));
        assert_eq!(line.vsock_cid, Some(42));
        let line = parse(
            "qemu -device vhost-vsock-pci,guest-cid=x -device virtserialport,name=org.timevisor.0",
        );
        assert_eq!((line.channel, line.vsock_cid), (None, None));
    }

    #[test]
    fn a_command_line_by_libvirt() {
        let line = parse(concat!(
            "/usr/bin/qemu-system-x86_64 -name guest=nvd,debug-threads=on -S ",
            r#"-object {"qom-type":"secret","id":"masterKey0","format":"raw"} "#,
            "-machine pc-q35-7.2,usb=off,dump-guest-core=off,memory-backend=pc.ram -accel tcg ",
            "-chardev socket,id=charmonitor,fd=22,server=on,wait=off -mon chardev=charmonitor,id=monitor,mode=control ",
            "-chardev socket,id=c2,path=/run/second.qmp,server=on -mon chardev=c2,mode=control ",
            r#"-device {"driver":"virtio-serial-pci","id":"virtio-serial0","bus":"pci.2","multifunction":true} "#,
            "-enable-kvm"
        ));
        assert_eq!(line.name.as_deref(), Some("nvd"));
        assert_eq!(line.accelerators, ["tcg", "kvm"]);
        assert_eq!(line.qmp_sockets, [PathBuf::from("/run/second.qmp")]);
        let serial = line.devices_of("virtio-serial-pci").next().unwrap();
        assert_eq!((serial.get("bus"), serial.get("multifunction")), (Some("pci.2"), Some("on")));
        assert_eq!(line.object("masterKey0").unwrap().kind, "secret");
        assert!(!line.icount);
    }

    #[test]
    fn what_introspection_needs() {
        let line = parse(
            "qemu -machine q35,max-ram-below-4g=2G -m 1G,slots=2 -plugin /usr/lib/x.so,socket=/run/other \
             -plugin file=/usr/lib/libtimevisor-introspect.so,socket=/run/web.introspect",
        );
        assert_eq!(line.machine_type.as_deref(), Some("q35"));
        assert_eq!((line.ram_below_4g, line.memory_bytes()), (Some(2 << 30), 1 << 30));
        assert_eq!(line.introspection_socket(), Some(PathBuf::from("/run/web.introspect")));
        assert_eq!((line.slots, line.max_memory), (Some(2), None));
        assert_eq!(parse("qemu -m 256").memory_bytes(), 256 << 20);
        let merged = parse("qemu -m 2G,slots=4,maxmem=64G -m size=1G");
        let sizes = (merged.memory, merged.slots, merged.max_memory);
        assert_eq!(sizes, (Some(1 << 30), Some(4), Some(64 << 30)), "QEMU merges its options");
        assert_eq!(parse("qemu -m size=512k").memory_bytes(), 512 << 10);
        assert_eq!(parse("qemu").memory_bytes(), 128 << 20);
        let memory = |size: &str| parse(&format!("qemu -m {size}")).memory;
        assert_eq!(memory("1.5G"), Some(3 << 29), "Proxmox and people write it");
        assert_eq!((memory("2.25"), memory("0x10")), (Some(9 << 18), Some(16 << 20)));
        assert_eq!((memory("0.1G"), memory("1p")), (Some(107_374_182), Some(1 << 50)));
        for odd in ["1.5b", "1.G5", "1.-5G", ".", "x", "9999999999999999T", "16e", "0x", ""] {
            assert_eq!(parse(&format!("qemu -m {odd}")).memory, None, "{odd}");
        }
        assert_eq!(
            parse("qemu -plugin /x/libtimevisor-introspect.so").introspection_socket(),
            None
        );
    }

    #[test]
    fn a_gdb_stub() {
        let line = parse("qemu -gdb unix:/run/web.gdb,server=on,wait=off -m 1G");
        assert_eq!((line.gdb, line.memory), (Some(PathBuf::from("/run/web.gdb")), Some(1 << 30)));
        assert_eq!(parse("qemu -gdb tcp::1234").gdb, None);
    }

    #[test]
    fn broken_lines_do_no_harm() {
        assert_eq!(parse("qemu -name").name, None);
        assert_eq!(parse("qemu -device {broken").devices.len(), 1);
        assert_eq!(CommandLine::parse(&[]), CommandLine::default());
    }
}
