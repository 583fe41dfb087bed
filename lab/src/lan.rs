//! The guests' network: a bridge at the host's end of the server's veth pair, a tap for each guest,
//! and rate limits set with tc.
//!
//! QEMU creates and removes the taps. The bridge is removed on drop (and by `netns::remove_stale`
//! after a killed run).

use std::cell::RefCell;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::command;
use crate::netns::Namespace;
use crate::scenario::Context;

/// QEMU's -netdev id.
const NETDEV: &str = "lan";

/// The bridge.
#[derive(Debug)]
pub struct Lan {
    dir: PathBuf,
    veth: String,
    bridge: String,
    network: Ipv4Addr,
    /// Interfaces to be removed.
    links: RefCell<Vec<String>>,
}

impl Lan {
    /// Puts a bridge in front of `namespace`: the host's address moves from the pair to the bridge.
    ///
    /// # Errors
    /// When not root, or when the kernel does not support bridges.
    pub fn before(ctx: &Context, namespace: &Namespace) -> anyhow::Result<Self> {
        let lan = Self {
            dir: ctx.log_dir().to_owned(),
            veth: namespace.interface(),
            bridge: namespace.bridge(),
            network: namespace.host(),
            links: RefCell::default(),
        };
        lan.make_bridge(&lan.bridge)
            .context("cannot make a bridge; load the kernel module bridge and run as root")?;
        let address = format!("{}/24", lan.network);
        ip(&format!("address delete {address} dev {}", lan.veth))?;
        ip(&format!("link set {} master {}", lan.veth, lan.bridge))?;
        ip(&format!("address add {address} dev {}", lan.bridge))?;
        Ok(lan)
    }

    fn make_bridge(&self, name: &str) -> anyhow::Result<()> {
        ip(&format!("link add {name} type bridge"))?;
        self.links.borrow_mut().push(name.to_owned());
        // A bridge takes the lowest address of its ports, unless it has been given one. When that changes, who knew the
        // old one is not heard for half a minute: Linux takes its frames for another host's.
        let told = command::run("ip", &["-brief", "link", "show", "dev", name])?;
        let address = told.split_whitespace().nth(2).context("ip tells no address")?;
        ip(&format!("link set {name} address {address} up"))
    }

    /// The address of guest `number`, counted from 0.
    pub fn address(&self, number: u8) -> Ipv4Addr {
        let [a, b, c, _] = self.network.octets();
        Ipv4Addr::new(a, b, c, 10 + number)
    }

    /// The host's own address.
    pub fn host(&self) -> Ipv4Addr {
        self.network
    }

    /// Puts a namespace on the bridge, at the address of guest `number`, which nobody else has then.
    ///
    /// # Errors
    /// When its pair cannot be moved.
    pub fn join(&self, namespace: &Namespace, number: u8) -> anyhow::Result<()> {
        let (outer, inner) = (namespace.interface(), format!("{}n", namespace.interface()));
        ip(&format!("address flush dev {outer}"))?;
        ip(&format!("link set {outer} master {}", self.bridge))?;
        let address = format!("{}/24", self.address(number));
        namespace.run("ip", &["address", "flush", "dev", &inner])?;
        namespace.run("ip", &["address", "add", &address, "dev", &inner]).map(drop)
    }

    /// Cuts these namespaces, by their interfaces on the host, off from the others: they reach each other only.
    ///
    /// # Errors
    /// When their pairs cannot be moved to a bridge of their own.
    pub fn cut_off(&self, interfaces: &[String]) -> anyhow::Result<()> {
        let apart = format!("{}s", self.veth);
        if !self.links.borrow().contains(&apart) {
            self.make_bridge(&apart)?;
        }
        interfaces.iter().try_for_each(|at| ip(&format!("link set {at} master {apart}")))
    }

    /// Joins them again.
    ///
    /// # Errors
    /// As [`Self::cut_off`].
    pub fn reunite(&self, interfaces: &[String]) -> anyhow::Result<()> {
        interfaces.iter().try_for_each(|at| ip(&format!("link set {at} master {}", self.bridge)))
    }

    /// The name of the guest's tap on the host.
    pub fn tap(&self, number: u8) -> String {
        format!("{}t{number}", self.veth)
    }

    /// QEMU's arguments for the guest's interface. It has its own bridge if it is to be
    /// [limited](Self::limit).
    ///
    /// A queue limits what leaves an interface. For traffic from a guest to leave one, the guest's
    /// tap gets its own bridge, which a veth pair connects to the common one. (Policing at the tap
    /// would need packet classifiers in the kernel.)
    ///
    /// # Errors
    /// When a bridge or a file cannot be created.
    pub fn arguments(&self, number: u8, own_bridge: bool) -> anyhow::Result<[String; 4]> {
        let tap = self.tap(number);
        let mut bridge = self.bridge.clone();
        if own_bridge {
            bridge = format!("{}c{number}", self.veth);
            let (here, there) = (self.uplink(number), format!("{}q{number}", self.veth));
            self.make_bridge(&bridge)?;
            ip(&format!("link add {here} type veth peer name {there}"))?;
            self.links.borrow_mut().push(here.clone());
            ip(&format!("link set {here} master {bridge} up"))?;
            ip(&format!("link set {there} master {} up", self.bridge))?;
        }
        // QEMU calls it with the name of the tap that it has created.
        let script = self.dir.join(format!("ifup-{number}.sh"));
        fs::write(&script, format!("#!/bin/sh\nexec ip link set \"$1\" master {bridge} up\n"))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        // No boot ROM: Debian packages those separately.
        Ok([
            "-netdev".into(),
            format!("tap,id={NETDEV},ifname={tap},script={},downscript=no", script.display()),
            "-device".into(),
            device(number),
        ])
    }

    /// Like [`Self::arguments`], for guest `number` at another guest's tap: the destination of a
    /// migration, while the source QEMU still has its own tap.
    ///
    /// The tap is created here, because a QEMU with another oscillator cannot start a script.
    ///
    /// # Errors
    /// When the tap cannot be created.
    pub fn arguments_at(&self, tap: u8, number: u8) -> anyhow::Result<[String; 4]> {
        let name = self.tap(tap);
        if !self.links.borrow().contains(&name) {
            ip(&format!("tuntap add dev {name} mode tap"))?;
            self.links.borrow_mut().push(name.clone());
            ip(&format!("link set {name} master {} up", self.bridge))?;
        }
        Ok([
            "-netdev".into(),
            format!("tap,id={NETDEV},ifname={name},script=no,downscript=no"),
            "-device".into(),
            device(number),
        ])
    }

    /// What the guest's shell must run. The image needs the module `virtio_net`.
    pub fn guest_setup(&self, number: u8) -> String {
        let address = self.address(number);
        format!("ip link set lo up; ip address add {address}/24 dev eth0; ip link set eth0 up")
    }

    /// The interface through which the guest's traffic leaves its own bridge.
    fn uplink(&self, number: u8) -> String {
        format!("{}p{number}", self.veth)
    }

    /// Limits what a running guest with its own bridge receives and sends to `mbit_s` in each
    /// direction.
    ///
    /// # Errors
    /// When the kernel module `sch_tbf` is missing.
    pub fn limit(&self, number: u8, mbit_s: u32) -> anyhow::Result<()> {
        shape(&self.tap(number), mbit_s)?;
        shape(&self.uplink(number), mbit_s)
    }

    /// Bytes that the guest has received and sent so far.
    ///
    /// # Errors
    /// When the tap does not exist.
    pub fn bytes(&self, number: u8) -> anyhow::Result<(u64, u64)> {
        let read = |name: &str| {
            let file = format!("/sys/class/net/{}/statistics/{name}_bytes", self.tap(number));
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
            anyhow::Ok(text.trim().parse::<u64>()?)
        };
        Ok((read("tx")?, read("rx")?))
    }
}

fn device(number: u8) -> String {
    format!("virtio-net-pci,netdev={NETDEV},romfile=,mac=52:54:00:54:56:{number:02x}")
}

impl Drop for Lan {
    fn drop(&mut self) {
        for link in self.links.borrow().iter().rev() {
            let _ = ip(&format!("link delete {link}"));
        }
    }
}

fn ip(words: &str) -> anyhow::Result<()> {
    command::run("ip", &words.split_whitespace().collect::<Vec<_>>()).map(drop)
}

/// Puts a token bucket filter on the traffic that leaves the interface.
fn shape(interface: &str, mbit_s: u32) -> anyhow::Result<()> {
    let words =
        format!("qdisc add dev {interface} root tbf rate {mbit_s}mbit burst 32kb latency 50ms");
    command::run("tc", &words.split_whitespace().collect::<Vec<_>>())
        .context("cannot limit a guest's network; load the kernel module sch_tbf")
        .map(drop)
}
