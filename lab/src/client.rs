//! A guest as a client of timevisord, started as the documentation tells users to, with lab-reader
//! inside.

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

/// How a guest receives its page.
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
    /// Its name in timevisord.
    pub name: String,
    /// How it receives its page.
    pub way: Way,
    /// The guest.
    pub guest: Guest,
    /// Its lab-reader.
    pub reader: GuestReader,
}

/// Boots a guest as the documentation tells users to.
///
/// # Errors
/// When any step fails.
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

/// Starts a guest and registers it with timevisord, without waiting for its boot, so that several
/// can boot at once.
///
/// # Errors
/// When any step fails.
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

/// The options of a guest.
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
    /// A guest on TAI with the newest stock kernel and only lab-reader.
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

    /// Uses another kernel; for `kernel`, see [`Context::kernel`].
    #[must_use]
    pub fn kernel(mut self, kernel: &'a str) -> Self {
        self.kernel = kernel;
        self
    }

    /// Uses another `--time-type`.
    #[must_use]
    pub fn time_type(mut self, time_type: &'a str) -> Self {
        self.time_type = time_type;
        self
    }

    /// Prepares the files of `vm args` with a different `--time-type` than `vm add` uses.
    #[must_use]
    pub fn prepared_as(mut self, time_type: &'a str) -> Self {
        self.prepared_as = Some(time_type);
        self
    }

    /// Adds programs to its /bin.
    #[must_use]
    pub fn programs(self, programs: &[PathBuf]) -> Self {
        let programs = programs.to_vec();
        self.image(move |image| Ok(programs.iter().fold(image, |image, p| image.program(p))))
    }

    /// Sets further changes to its image; the last call counts.
    #[must_use]
    pub fn image(mut self, change: impl Fn(Image) -> anyhow::Result<Image> + 'static) -> Self {
        self.image = Box::new(change);
        self
    }

    /// Sets changes to QEMU's options; the last call counts.
    #[must_use]
    pub fn builder(mut self, change: impl Fn(GuestBuilder) -> GuestBuilder + 'static) -> Self {
        self.builder = Box::new(move |builder| Ok(change(builder)));
        self
    }

    /// Adds virtio-serial ports, for [`connect_port`].
    #[must_use]
    pub fn ports(mut self, ports: &'a [&'a str]) -> Self {
        self.ports = ports;
        self
    }

    /// Waits at `uri` for the migration of such a guest instead of booting, with this host's page.
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

    /// Like [`Self::at_once`], and does not register it with timevisord.
    #[must_use]
    pub fn unserved(mut self) -> Self {
        self.served = false;
        self.at_once()
    }

    /// Holds it back until it has its page, which is the default.
    #[must_use]
    pub fn held(mut self) -> Self {
        self.held = true;
        self
    }

    /// Starts it and registers it with timevisord.
    ///
    /// # Errors
    /// When any step fails.
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
        // The printed arguments include a port of that name.
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
            // The driver's probe is certain to succeed only if the page is there before the guest's
            // first instruction.
            builder = builder.paused();
        }
        // The second QMP socket is for timevisord; the lab keeps its own.
        let qmp = host.directory().join(format!("{name}.qmp"));
        let builder = builder
            // The kernel's timer check panics when QEMU's threads are starved.
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

/// The host's end of an additional port of the guest.
pub(crate) fn port_socket(host: &Host, name: &str, port: &str) -> PathBuf {
    host.directory().join(format!("{name}.{port}"))
}

/// Connects to the program that answers requests on an additional port of the guest.
///
/// # Errors
/// When QEMU does not listen there.
pub fn connect_port(host: &Host, name: &str, port: &str) -> anyhow::Result<GuestReader> {
    GuestReader::connect(&port_socket(host, name, port))
}

/// The output of `timevisor vm args` as the lab's delivery.
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

/// The exact arguments that `timevisor vm args` prints for an ivshmem device.
fn printed(host: &Host, name: &str) -> anyhow::Result<Vec<String>> {
    let answer = host.json(&["vm", "args", "--name", name, "--delivery", "ivshmem"])?;
    let words = answer["arguments"].as_array().into_iter().flatten();
    Ok(words.filter_map(|word| word.as_str().map(str::to_owned)).collect())
}

/// The offset shown by `vm list`: guest counter = host counter + offset.
///
/// # Errors
/// When any step fails.
pub fn offset(host: &Host, name: &str) -> anyhow::Result<i64> {
    let row = host.vm(name)?;
    let mapping = row["mapping"].as_str().context("no mapping")?;
    mapping
        .strip_prefix("host ")
        .and_then(|o| o.parse().ok())
        .with_context(|| format!("mapping {mapping:?} of {row}"))
}

/// Starts two guests of each delivery.
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

/// Runs `times` comparisons.
///
/// # Errors
/// As [`compare`] and [`Worst::add`].
pub fn compare_many(host: &Host, client: &mut Client, times: u32) -> anyhow::Result<Worst> {
    let page = HostPage::open(host.directory())?;
    let offset = offset(host, &client.name)?;
    let mut worst = Worst::default();
    for _ in 0..times {
        let comparison = compare(&page, &mut client.reader, offset)?;
        // ivshmem is for kernels without the driver, so there is no /dev/ptp0.
        let (found, has_driver) = (comparison.ptp.is_some(), client.way != Way::Ivshmem);
        ensure!(found == has_driver, "/dev/ptp0 in the guest: {found}");
        worst.add(&comparison)?;
    }
    Ok(worst)
}
