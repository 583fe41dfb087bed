//! A guest as a client of timevisord: started the way the documentation tells a user to, with
//! lab-reader inside.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use crate::builder::GuestBuilder;
use crate::comparison::{Worst, compare};
use crate::guest::Guest;
use crate::host::Host;
use crate::image::Image;
use crate::qemu::{Delivery, NVDIMM_ADDRESS, Qemu};
use crate::reader::{self, GuestReader, HostPage};
use crate::scenario::Context;

/// How a guest gets its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// QEMU 10's own device.
    Vmclock,
    /// A read-only nvdimm.
    Nvdimm,
    /// A read-only ivshmem device.
    Ivshmem,
}

/// A guest with a page that timevisord serves, and its reader.
#[derive(Debug)]
pub struct Client {
    /// Its name at timevisord.
    pub name: String,
    /// How it gets its page.
    pub way: Way,
    /// The guest.
    pub guest: Guest,
    /// Its lab-reader.
    pub reader: GuestReader,
}

/// Boots a guest the way the documentation tells a user to.
///
/// # Errors
/// When anything on the way fails.
pub fn boot(
    ctx: &Context,
    host: &Host,
    kernel: &str,
    qemu: &Qemu,
    way: Way,
    name: &str,
    time_type: &str,
) -> anyhow::Result<Client> {
    let mut client = launch(ctx, host, kernel, qemu, way, name, time_type)?;
    client.guest.wait_ready()?;
    client.reader.ask("read")?;
    Ok(client)
}

/// Starts a guest and has it served, without waiting for its boot: several can boot at once.
///
/// # Errors
/// When anything on the way fails.
pub fn launch(
    ctx: &Context,
    host: &Host,
    kernel: &str,
    qemu: &Qemu,
    way: Way,
    name: &str,
    time_type: &str,
) -> anyhow::Result<Client> {
    Launch::new(ctx, host, qemu, way, name).kernel(kernel).time_type(time_type).start()
}

type Change<T> = Box<dyn Fn(T) -> anyhow::Result<T>>;

/// What is special about a guest.
pub struct Launch<'a> {
    ctx: &'a Context,
    host: &'a Host,
    qemu: &'a Qemu,
    way: Way,
    name: &'a str,
    kernel: &'a str,
    time_type: &'a str,
    prepared_as: Option<&'a str>,
    ports: &'a [&'a str],
    incoming: Option<&'a str>,
    held: bool,
    served: bool,
    image: Change<Image>,
    builder: Change<GuestBuilder>,
}

impl<'a> Launch<'a> {
    /// A guest on TAI with the newest stock kernel and nothing but lab-reader.
    pub fn new(ctx: &'a Context, host: &'a Host, qemu: &'a Qemu, way: Way, name: &'a str) -> Self {
        Self {
            ctx,
            host,
            qemu,
            way,
            name,
            kernel: "trixie-backports",
            time_type: "tai",
            prepared_as: None,
            ports: &[],
            incoming: None,
            held: true,
            served: true,
            image: Box::new(Ok),
            builder: Box::new(Ok),
        }
    }

    /// Another kernel, as [`Context::kernel`] takes it.
    #[must_use]
    pub fn kernel(mut self, kernel: &'a str) -> Self {
        self.kernel = kernel;
        self
    }

    /// Another `--time-type`.
    #[must_use]
    pub fn time_type(mut self, time_type: &'a str) -> Self {
        self.time_type = time_type;
        self
    }

    /// Another `--time-type` for the files that `vm args` prepares than for `vm add`.
    #[must_use]
    pub fn prepared_as(mut self, time_type: &'a str) -> Self {
        self.prepared_as = Some(time_type);
        self
    }

    /// Further programs in its /bin.
    #[must_use]
    pub fn programs(self, programs: &[PathBuf]) -> Self {
        let programs = programs.to_vec();
        self.image(move |image| Ok(programs.iter().fold(image, |image, p| image.program(p))))
    }

    /// Further changes to its image; the last call counts.
    #[must_use]
    pub fn image(mut self, change: impl Fn(Image) -> anyhow::Result<Image> + 'static) -> Self {
        self.image = Box::new(change);
        self
    }

    /// Changes to what QEMU is told; the last call counts.
    #[must_use]
    pub fn builder(mut self, change: impl Fn(GuestBuilder) -> GuestBuilder + 'static) -> Self {
        self.builder = Box::new(move |builder| Ok(change(builder)));
        self
    }

    /// Further virtio-serial ports, for [`connect_port`].
    #[must_use]
    pub fn ports(mut self, ports: &'a [&'a str]) -> Self {
        self.ports = ports;
        self
    }

    /// Awaits the migration of such a guest at `uri`, with the page of this host, instead of
    /// booting.
    #[must_use]
    pub fn incoming(mut self, uri: &'a str) -> Self {
        self.incoming = Some(uri);
        self
    }

    /// Lets it run as soon as QEMU can, before it has its page.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        self.held = false;
        self
    }

    /// The same, and tells timevisord nothing of it.
    #[must_use]
    pub fn unserved(mut self) -> Self {
        self.served = false;
        self.at_once()
    }

    /// Does hold it back after all.
    #[must_use]
    pub fn held(mut self) -> Self {
        self.held = true;
        self
    }

    /// Starts it and has it served.
    ///
    /// # Errors
    /// When anything on the way fails.
    pub fn start(self) -> anyhow::Result<Client> {
        let (ctx, host, name, way) = (self.ctx, self.host, self.name, self.way);
        let kernel = ctx.kernel(self.kernel)?;
        let program = ctx.program("timevisor-lab-guest", "lab-reader")?;
        let mut image = ctx.image(&kernel)?.program(&program).snippet(reader::SNIPPET);
        if way == Way::Ivshmem {
            let forge = ctx.program("timevisor-lab-guest", "lab-forge")?;
            image = image.program(&forge).program(host.cli_program());
        }
        let image = (self.image)(image)?;
        let socket = host.directory().join(format!("{name}.reader"));
        let delivery = match way {
            Way::Vmclock => Delivery::VmclockDevice,
            Way::Nvdimm => prepared(host, name, self.prepared_as.unwrap_or(self.time_type))?,
            Way::Ivshmem => Delivery::None,
        };
        let printed = if way == Way::Ivshmem { printed(host, name)? } else { Vec::new() };
        let channel = host.directory().join(format!("{name}.channel"));
        let mut builder = ctx
            .guest(self.qemu, &kernel, &image)?
            .name(name)
            .delivery(delivery)
            .port(reader::PORT, &socket);
        // The printed arguments bring a port of that name along.
        if printed.is_empty() {
            builder = builder.port(timevisor_protocols::channel::PORT_NAME, &channel);
        }
        for port in self.ports {
            builder = builder.port(port, &port_socket(host, name, port));
        }
        if self.incoming.is_some() {
            builder = builder.incoming();
        }
        if let Some(oscillator) = host.oscillator() {
            builder = builder.oscillator(oscillator);
        }
        if self.held {
            // Waiting for its page before the first instruction is what makes the driver's probe
            // certain.
            builder = builder.paused();
        }
        // The second QMP socket is timevisord's; the lab keeps its own.
        let qmp = host.directory().join(format!("{name}.qmp"));
        let builder = builder
            // The kernel's check of its timer panics when QEMU's threads are starved.
            .append("no_timer_check")
            .args(printed)
            .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())]);
        let guest = (self.builder)(builder)?.start()?;
        if self.served {
            let qmp = qmp.display().to_string();
            let add = ["vm", "add", "--qmp", &qmp, "--name", name, "--resume"];
            let incoming = self.incoming.map_or_else(Vec::new, |uri| vec!["--incoming", uri]);
            host.cli(&[&add[..], &["--time-type", self.time_type], &incoming].concat())?;
        }
        Ok(Client { name: name.to_owned(), way, guest, reader: GuestReader::connect(&socket)? })
    }
}

fn port_socket(host: &Host, name: &str, port: &str) -> PathBuf {
    host.directory().join(format!("{name}.{port}"))
}

/// Connects to the program that answers lines on a guest's further port.
///
/// # Errors
/// When QEMU does not listen there.
pub fn connect_port(host: &Host, name: &str, port: &str) -> anyhow::Result<GuestReader> {
    GuestReader::connect(&port_socket(host, name, port))
}

/// What `timevisor vm args` says, as the lab's delivery.
fn prepared(host: &Host, name: &str, time_type: &str) -> anyhow::Result<Delivery> {
    let answer =
        host.json(&["vm", "args", "--name", name, "--memory", "256", "--time-type", time_type])?;
    let text = answer.to_string();
    ensure!(
        text.contains(&format!("addr={NVDIMM_ADDRESS:#x}")),
        "another address than the lab's: {text}"
    );
    let folder: PathBuf = host.directory().join("vms").join(name);
    Ok(Delivery::Nvdimm {
        page: folder.join("page"),
        ssdt: folder.join("vmclock.aml"),
        address: NVDIMM_ADDRESS,
    })
}

/// The very arguments that `timevisor vm args` prints for an ivshmem device.
fn printed(host: &Host, name: &str) -> anyhow::Result<Vec<String>> {
    let answer = host.json(&["vm", "args", "--name", name, "--delivery", "ivshmem"])?;
    let words = answer["arguments"].as_array().into_iter().flatten();
    Ok(words.filter_map(|word| word.as_str().map(str::to_owned)).collect())
}

/// The offset that `vm list` shows: guest counter = host counter + offset.
///
/// # Errors
/// When anything on the way fails.
pub fn offset(host: &Host, name: &str) -> anyhow::Result<i64> {
    let row = host.vm(name)?;
    let mapping = row["mapping"].as_str().context("no mapping")?;
    mapping
        .strip_prefix("host ")
        .and_then(|o| o.parse().ok())
        .with_context(|| format!("mapping {mapping:?} of {row}"))
}

/// Two guests of each delivery.
///
/// # Errors
/// When one does not boot.
pub fn launch_four(ctx: &Context, host: &Host) -> anyhow::Result<Vec<Client>> {
    let (old, new) = (ctx.qemu()?, ctx.qemu_10()?);
    let wanted = [
        ("a", &new, Way::Vmclock),
        ("b", &new, Way::Vmclock),
        ("c", &old, Way::Nvdimm),
        ("d", &old, Way::Nvdimm),
    ];
    let mut clients = Vec::new();
    for (name, qemu, way) in wanted {
        clients.push(launch(ctx, host, "trixie-backports", qemu, way, name, "tai")?);
    }
    for client in &mut clients {
        client.guest.wait_ready()?;
        client.reader.ask("read")?;
    }
    Ok(clients)
}

/// Compares `times` times.
///
/// # Errors
/// As [`compare`] and [`Worst::add`].
pub fn compare_many(host: &Host, client: &mut Client, times: u32) -> anyhow::Result<Worst> {
    let page = HostPage::open(host.directory())?;
    let offset = offset(host, &client.name)?;
    let mut worst = Worst::default();
    for _ in 0..times {
        let comparison = compare(&page, &mut client.reader, offset)?;
        // An ivshmem device is for kernels without the driver, which makes no /dev/ptp0.
        let (found, has_driver) = (comparison.ptp.is_some(), client.way != Way::Ivshmem);
        ensure!(found == has_driver, "/dev/ptp0 in the guest: {found}");
        worst.add(&comparison)?;
    }
    Ok(worst)
}
