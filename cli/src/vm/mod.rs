//! `timevisor vm list, add, migrate, notice, remove, args`.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the commands |
//! | `machine.rs` | a VM's memory, slots and chipset, as stated or read from what starts it |

mod machine;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use timevisor_guests::arguments::{Delivery, Request as Equipment};
use timevisor_linux::users::uid_of;
use timevisor_protocols::control::request::check_name;
use timevisor_protocols::control::{
    ElapsedSince, ErrorCode, Notice, Request, Response, TimeType, UserNamespace, VmAdd, VmMigrate,
    VmNotice, VmPrepare, VmPrepared, VmRemove, VmRow,
};

use self::machine::Own;
use crate::connection::{Refused, ask, unexpected};
use crate::exit::{Found, is_vouched};
use crate::reserve::travel::{self, NoPlace};
use crate::spans::mebibytes;

/// Between two attempts.
const RETRY: Duration = Duration::from_millis(100);
/// How long others may take to make room for a reservation.
const MAKING_ROOM: Duration = Duration::from_secs(5);
/// How long QEMU may take to cancel a migration.
const CANCELLING: Duration = Duration::from_secs(10);

#[derive(Subcommand)]
pub enum Command {
    /// List the VMs that are served
    List(Json),
    /// Serve a running VM: write its page, follow its counter
    Add(Add),
    /// Send a VM to another host, where its page is right when it arrives
    Migrate(Migrate),
    /// Tell a VM's guest that it will be disrupted (saved, stopped, moved), or take that back
    Notice(Notify),
    /// Stop serving a VM, or forget one that was prepared
    Remove(Remove),
    /// Print what to add to a VM so that it has a clock page
    Args(Arguments),
}

#[derive(Args)]
pub struct Json {
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Add {
    /// The VM's QMP socket (recommended: stops and resumes are then known at once)
    #[arg(long, value_name = "PATH")]
    qmp: Option<PathBuf>,
    /// The VM's process
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// Name on this host [default: QEMU's -name]
    #[arg(long)]
    name: Option<String>,
    /// Timescale of the page [default: the daemon's configuration]
    #[arg(long)]
    time_type: Option<Scale>,
    /// Let a VM that was started with -S run once its page is right
    #[arg(long)]
    resume: bool,
    /// Await the VM's migration here, in QEMU's notation (tcp:0:4444, unix:PATH); QEMU was started
    /// with -incoming defer
    #[arg(long, value_name = "URI", requires = "qmp")]
    incoming: Option<String>,
    /// Reserve for the VM what `reserve export` has printed on the source host, before its migration is
    /// awaited; `-` reads it from the input. Exit status 4 if there is no place for it here
    #[arg(long, value_name = "FILE")]
    reserve: Option<PathBuf>,
    /// Continue its age from here: `elapsed_since` of `vm list --json` on the source host (needed
    /// with an nvdimm only; its age is unknown until then)
    #[arg(long, value_name = "TAI_NS~WITHIN_NS")]
    elapsed_since: Option<ElapsedSince>,
    /// Try for so long, for instance while QEMU or timevisord starts
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    within: u64,
    /// Return when it is known that the VM awaits its migration, whoever told QEMU to, or has arrived
    /// (at most --within)
    #[arg(long, conflicts_with = "incoming")]
    until_incoming: bool,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Migrate {
    /// Its name on this host
    name: String,
    /// Where the other host awaits it, in QEMU's notation (tcp:HOST:4444)
    #[arg(long, value_name = "URI", required_unless_present = "cancel")]
    to: Option<String>,
    /// End a migration that is under way; the VM stays
    #[arg(long, conflicts_with = "to")]
    cancel: bool,
    /// Cancel it, and fail, when it has not ended by then
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Tell the guest that it will be moved, and wait this long before that begins: databases
    /// drain before the move
    #[arg(long, value_name = "SECONDS", default_value_t = 0, conflicts_with = "cancel")]
    drain: u32,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Notify {
    /// Its name on this host
    name: String,
    /// What its guest finds on the page from now on
    notice: Word,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Word {
    /// It will be disrupted: take no further work on
    Soon,
    /// The disruption begins now
    Imminent,
    /// Nothing is to come
    None,
}

#[derive(Args)]
pub struct Remove {
    /// Its name
    name: String,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Arguments {
    /// The VM's name
    #[arg(long)]
    name: String,
    /// How the page gets into the guest
    #[arg(long, default_value = "nvdimm")]
    delivery: Way,
    /// The VM's memory: 2048 (MiB), 512M, 2G; an nvdimm needs it
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    memory: Option<u64>,
    /// The slots for memory that the VM has of its own (`-m slots=`)
    #[arg(long, value_name = "N", requires = "maxmem")]
    slots: Option<u64>,
    /// The most memory that the VM may have (`-m maxmem=`)
    #[arg(long, value_name = "SIZE", value_parser = mebibytes, requires = "slots")]
    maxmem: Option<u64>,
    /// Take memory, slots and chipset from the VM's own QEMU command line, in quotes
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["memory", "slots", "maxmem"])]
    from: Option<String>,
    /// Take them from a libvirt domain, as `virsh dumpxml` prints it; `-` reads it from the input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["memory", "slots", "maxmem", "from"])]
    from_xml: Option<PathBuf>,
    /// The VM's chipset
    #[arg(long, default_value = "q35")]
    machine: Machine,
    /// tai for guest kernels from 7.0 on, utc for older ones
    #[arg(long, default_value = "tai")]
    time_type: Scale,
    /// For a QEMU command line, or for `virsh edit`
    #[arg(long, default_value = "qemu")]
    format: Format,
    /// Who runs QEMU, by name or number: the VM belongs to this user, who gets a folder for the QMP
    /// socket [default: libvirt-qemu or qemu, whichever exists, for libvirt; else root]
    #[arg(long)]
    user: Option<String>,
    /// Where this user runs QEMU: on this host, or in a user namespace of its own (a container)
    #[arg(long, default_value = "own")]
    user_namespace: Namespace,
    /// Make main memory an explicit backend (QEMU 10 under TCG needs it to migrate with an nvdimm)
    #[arg(long)]
    explicit_memory: bool,
    /// JSON: the QEMU arguments as an array
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scale {
    Tai,
    Utc,
}

#[derive(Clone, Copy, ValueEnum)]
enum Namespace {
    /// In timevisord's user namespace
    Own,
    /// In another one; --user is the user id as this host sees it
    Other,
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// QEMU's own device, QEMU 10 and newer
    Vmclock,
    /// A read-only nvdimm and an ACPI table, QEMU 7 and newer
    Nvdimm,
    /// A read-only PCI device for guest kernels without ptp_vmclock, QEMU 7 and newer; no live
    /// migration
    Ivshmem,
}

#[derive(Clone, Copy, ValueEnum)]
enum Machine {
    Q35,
    Pc,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Qemu,
    Libvirt,
}

impl From<Scale> for TimeType {
    fn from(scale: Scale) -> Self {
        match scale {
            Scale::Tai => Self::Tai,
            Scale::Utc => Self::Utc,
        }
    }
}

/// Exit status of `vm add` where the VM's reservation cannot be made here.
const NO_PLACE: u8 = 4;

pub fn run(directory: &Path, command: &Command) -> Result<ExitCode> {
    let done = match command {
        Command::List(options) => return list(directory, options.json).map(Into::into),
        Command::Add(options) => match add(directory, options) {
            Err(error) if has_no_place(&error) => {
                eprintln!("timevisor: {error:#}");
                return Ok(ExitCode::from(NO_PLACE));
            }
            done => done,
        },
        Command::Migrate(options) => migrate(directory, options),
        Command::Notice(options) => notice(directory, options),
        Command::Remove(options) => remove(directory, options),
        Command::Args(options) => args(directory, options),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn has_no_place(error: &anyhow::Error) -> bool {
    error.is::<NoPlace>()
        || is_refused(error, ErrorCode::NotReserved)
        || is_refused(error, ErrorCode::MakingRoom)
}

fn is_refused(error: &anyhow::Error, code: ErrorCode) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.0.code == code)
}

fn list(directory: &Path, json: bool) -> Result<Found> {
    let response = ask(directory, &Request::VmList)?;
    let Response::VmList(list) = &response else { return Err(unexpected(&response)) };
    let found = Found::when(list.vms.iter().all(|row| is_vouched(&row.status)));
    if json {
        println!("{}", serde_json::to_string(&list.vms)?);
        return Ok(found);
    }
    println!("{HEADER}");
    list.vms.iter().for_each(print_row);
    if !list.not_served.is_empty() {
        println!("\nnot served:");
        list.not_served.iter().for_each(|why| println!("    {why}"));
    }
    Ok(found)
}

const HEADER: &str =
    "name             pid      accel  delivery  time  status        published  mapping";

fn print_row(row: &VmRow) {
    let scale = match row.time_type {
        TimeType::Tai => "tai",
        TimeType::Utc => "utc",
    };
    println!(
        "{:<16} {:<8} {:<6} {:<9} {scale:<5} {:<13} {:>9}  {}",
        row.name,
        row.pid,
        row.accelerator,
        row.delivery,
        row.status,
        row.pages_published,
        row.mapping
    );
    if let Some(name) = &row.qemu_name {
        println!("    QEMU calls it {name:?}");
    }
    if !row.notice.is_none() {
        println!("    its guest is told: disruption {}", word(row.notice));
    }
    if let Some(migration) = &row.migration {
        println!("    migration: {migration}");
    }
    if let Some(reason) = &row.reason {
        println!("    {reason}");
    }
}

fn add(directory: &Path, options: &Add) -> Result<()> {
    let absolute = |path: &PathBuf| std::path::absolute(path).map(|p| p.display().to_string());
    let request = VmAdd {
        qmp: options.qmp.as_ref().map(absolute).transpose()?,
        pid: options.pid,
        name: options.name.clone(),
        time_type: options.time_type.map(Into::into),
        resume: options.resume,
        incoming: options.incoming.clone(),
        elapsed_since: options.elapsed_since,
    };
    let until = Instant::now() + seconds(options.within);
    let room_until = until.max(Instant::now() + MAKING_ROOM);
    let patiently = |request: &Request| loop {
        match ask(directory, request) {
            // The answer will be the same.
            Err(error) if is_refused(&error, ErrorCode::NotReserved) => break Err(error),
            Err(error)
                if is_refused(&error, ErrorCode::MakingRoom) && Instant::now() < room_until =>
            {
                std::thread::sleep(RETRY);
            }
            Err(_) if Instant::now() + RETRY < until => std::thread::sleep(RETRY),
            answer => break answer,
        }
    };
    let add = |request: &Request| match patiently(request)? {
        Response::VmAdded(row) => Ok(row),
        response => Err(unexpected(&response)),
    };
    if let Some(path) = &options.reserve {
        let travelling = travel::read(path)?;
        // Without anything that lets it come or run.
        let known = VmAdd { resume: false, incoming: None, elapsed_since: None, ..request.clone() };
        let row = add(&Request::VmAdd(known))?;
        travelling.admit(directory, &row.name)?;
    }
    let mut row = add(&Request::VmAdd(request))?;
    // What libvirt restores from a file may be there before anybody has looked.
    let is_known = |row: &VmRow| row.migration.as_deref() == Some("incoming") || row.arrived;
    while options.until_incoming && !is_known(&row) {
        if Instant::now() + RETRY >= until {
            let state = row.migration.as_deref().unwrap_or("it does not");
            bail!(
                "VM {} is not seen to await a migration within {} s ({state}); see `timevisor vm list`",
                row.name,
                options.within
            );
        }
        std::thread::sleep(RETRY);
        row = find(directory, &row.name)?;
    }
    if options.json {
        println!("{}", serde_json::to_string(&row)?);
    } else {
        println!("{HEADER}");
        print_row(&row);
    }
    Ok(())
}

/// Asks for the migration and waits for its end; the daemon does the rest.
fn migrate(directory: &Path, options: &Migrate) -> Result<()> {
    let name = &options.name;
    let tell = |to: Option<String>| {
        let migrate = VmMigrate { name: name.clone(), to, drain_seconds: options.drain };
        let response = ask(directory, &Request::VmMigrate(migrate))?;
        let Response::VmAdded(row) = response else { return Err(unexpected(&response)) };
        Ok(row)
    };
    let mut row = tell(options.to.clone())?;
    let mut until = Instant::now() + seconds(options.timeout.saturating_add(options.drain.into()));
    let mut is_late = false;
    while matches!(row.migration.as_deref(), Some("draining" | "leaving")) {
        if Instant::now() > until && is_late {
            bail!(
                "VM {name} has not arrived within {} s, and QEMU does not say that it has cancelled the migration; \
                 see `timevisor vm list`",
                options.timeout
            );
        }
        if Instant::now() > until {
            (is_late, until) = (true, Instant::now() + CANCELLING);
            tell(None)?;
        }
        std::thread::sleep(Duration::from_millis(20));
        row = find(directory, name)?;
    }
    if let Some(said) = row.migration.as_deref().filter(|said| is_late && *said != "left") {
        bail!(
            "VM {name} has not arrived within {} s, and its migration was to be cancelled: the VM stays here ({said})",
            options.timeout
        );
    }
    if options.json {
        println!("{}", serde_json::to_string(&row)?);
    }
    match row.migration.as_deref() {
        Some("left") if !options.json => {
            println!("{name} runs on the other host; end this QEMU when you like");
        }
        Some("left") => {}
        None if options.cancel => eprintln!("timevisor: no migration of {name} was under way"),
        Some(_) if options.cancel => println!("{name} stays here"),
        Some(failed) => bail!("VM {name} stays here: {failed}"),
        None => bail!("VM {name} stays here: somebody runs it here again"),
    }
    Ok(())
}

/// A user's number of seconds: at most a year, which an instant has room for.
fn seconds(given: u64) -> Duration {
    Duration::from_secs(given.min(365 * 86_400))
}

/// The row of a VM.
fn find(directory: &Path, name: &str) -> Result<VmRow> {
    let response = ask(directory, &Request::VmList)?;
    let Response::VmList(list) = response else { return Err(unexpected(&response)) };
    list.vms.into_iter().find(|row| row.name == name).with_context(|| {
        format!(
            "VM {name} has ended; if it was to migrate, see `timevisor vm list` on the other host"
        )
    })
}

const fn word(notice: Notice) -> &'static str {
    match notice {
        Notice::None => "none",
        Notice::Soon => "soon",
        Notice::Imminent => "imminent",
    }
}

fn notice(directory: &Path, options: &Notify) -> Result<()> {
    let notice = match options.notice {
        Word::Soon => Notice::Soon,
        Word::Imminent => Notice::Imminent,
        Word::None => Notice::None,
    };
    let request = Request::VmNotice(VmNotice { name: options.name.clone(), notice });
    let response = ask(directory, &request)?;
    let Response::VmAdded(row) = &response else { return Err(unexpected(&response)) };
    if options.json {
        println!("{}", serde_json::to_string(row)?);
    } else {
        println!("{}: disruption {}", options.name, word(row.notice));
    }
    Ok(())
}

fn remove(directory: &Path, options: &Remove) -> Result<()> {
    let response = ask(directory, &Request::VmRemove(VmRemove { name: options.name.clone() }))?;
    let Response::VmRemoved(removed) = &response else { return Err(unexpected(&response)) };
    if options.json {
        println!("{}", serde_json::to_string(removed)?);
    } else {
        println!("{} is not served any more", removed.name);
    }
    Ok(())
}

fn args(directory: &Path, options: &Arguments) -> Result<()> {
    check_name(&options.name)?;
    let user = qemu_user(options)?;
    let needs_memory = matches!(options.delivery, Way::Nvdimm);
    let Own { memory_mib, hotplug, chipset } = machine::own(options, needs_memory)?;
    let mut equipment = Equipment {
        name: options.name.clone(),
        delivery: Delivery::Vmclock,
        memory_mib,
        chipset,
        hotplug,
        explicit_memory: options.explicit_memory,
        qmp: PathBuf::new(),
    };
    let address = match options.delivery {
        Way::Nvdimm => Some(equipment.page_address()?),
        Way::Vmclock | Way::Ivshmem => None,
    };
    let VmPrepared { page, ssdt, monitor, .. } = prepare(directory, options, user, address)?;
    let page = || page.context("timevisord made no page").map(PathBuf::from);
    equipment.delivery = match options.delivery {
        Way::Vmclock => {
            eprintln!(
                "timevisor: this needs QEMU 10 or newer; for an older one use --delivery nvdimm"
            );
            Delivery::Vmclock
        }
        Way::Nvdimm => {
            machine::tell_what_is_replaced(&equipment);
            let ssdt = ssdt.context("timevisord made no table")?.into();
            Delivery::Nvdimm { page: page()?, ssdt }
        }
        Way::Ivshmem => {
            eprintln!(
                "timevisor: QEMU refuses to migrate a VM with this device; use nvdimm or vmclock for a VM that is to \
                 migrate, if its kernel is 6.13 or newer"
            );
            Delivery::Ivshmem { page: page()? }
        }
    };
    let monitor = monitor.context("timevisord is older than this program; restart it")?;
    equipment.qmp = Path::new(&monitor).join("qmp");
    if options.json {
        let arguments: Vec<_> = equipment.arguments()?.into_iter().flatten().collect();
        println!("{}", json!({"name": options.name, "arguments": arguments}));
        return Ok(());
    }
    match options.format {
        Format::Qemu => print!("{}", equipment.shell()?),
        Format::Libvirt => print!("{}", equipment.libvirt_xml()?),
    }
    Ok(())
}

/// Has the daemon bind the name to its user, and make the page if QEMU does not.
fn prepare(
    directory: &Path,
    options: &Arguments,
    user: u32,
    address: Option<u64>,
) -> Result<VmPrepared> {
    let request = VmPrepare {
        name: options.name.clone(),
        time_type: options.time_type.into(),
        user,
        user_namespace: match options.user_namespace {
            Namespace::Own => UserNamespace::Own,
            Namespace::Other => UserNamespace::Other,
        },
        files: !matches!(options.delivery, Way::Vmclock),
        address,
    };
    let response = ask(directory, &Request::VmPrepare(request))?;
    let Response::VmPrepared(prepared) = response else { bail!(unexpected(&response)) };
    Ok(prepared)
}

/// Who will run QEMU.
fn qemu_user(options: &Arguments) -> Result<u32> {
    match (&options.user, options.format) {
        (Some(user), _) => {
            uid_of(user).with_context(|| format!("there is no user {user} in /etc/passwd; give a number"))
        }
        (None, Format::Qemu) => Ok(0),
        // Debian, Arch; Fedora, RHEL, SUSE.
        (None, Format::Libvirt) => ["libvirt-qemu", "qemu"].iter().find_map(|user| uid_of(user)).context(
            "neither libvirt-qemu nor qemu is a user here; give --user with the user of /etc/libvirt/qemu.conf",
        ),
    }
}
