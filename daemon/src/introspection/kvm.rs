//! The link to a guest under KVM: its code in QEMU's memory, and BPF programs on this host.
//!
//! x86-64 only. AMD's KVM is tested in emulation; Intel's path was written from the kernel's source
//! and is NOT VERIFIED ON HARDWARE.

use std::sync::Arc;
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, bail, ensure};
use timevisor_guests::counter_mapping::{KvmMapping, kvm::DEBUGFS};
use timevisor_introspection::backend::Site;
use timevisor_introspection::backend::kvm::layout::{KvmLayout, Vendor};
use timevisor_introspection::backend::kvm::orders::{self, Orders, Points, Vm};
use timevisor_introspection::backend::kvm::patches::{Patch, in_place, put};
use timevisor_introspection::backend::kvm::sites;
use timevisor_introspection::backend::kvm::trap::Trap;
use timevisor_introspection::backend::{Action, Backend, Input};
use timevisor_introspection::memory::ram::{InProcess, Ram, RamLayout};
use timevisor_introspection::os::guest_os::GuestOs;
use timevisor_introspection::symbols::btf::Btf;
use timevisor_linux::bpf::guest_traps::{GuestTraps, Watch};
use timevisor_linux::clock::monotonic;
use timevisor_linux::process::{Process, ProcessMemory, in_initial_pid_namespace, while_stopped};
use timevisor_time::{CounterRatio, Duration};

use super::in_place::Prefixes;
use super::link::Link;

/// Maximum delay of events, and before a detachment is noticed.
const TURN: StdDuration = StdDuration::from_millis(10);
/// Maximum number of events per turn: a guest may cause them faster than they can be handled.
const AT_ONCE: usize = 1024;
/// How often to check that the traps are still in the guest's code (a reset replaces it), and how
/// many events the programs have dropped.
const LOOK: Duration = Duration::from_nanos(500_000_000);

pub struct Kvm {
    process: Process,
    code: ProcessMemory,
    layout: RamLayout,
    base: u64,
    orders: Orders,
    trap: Trap,
    prefixes: Arc<Prefixes>,
    traps: Option<GuestTraps>,
    patches: Vec<Patch>,
    look_at: Duration,
    /// `None` where the kernel does not count what it skips.
    left_out: Option<u64>,
}

/// A VM, and the location of its memory.
pub struct Where {
    pub process: Process,
    pub layout: RamLayout,
    pub base: u64,
}

impl Kvm {
    /// Prepares a link without changing the guest: finds and checks the sites of all points and the
    /// rate of the guest's counter, and reads the offsets in KVM's structures unless `layout`
    /// already has them.
    pub fn new(
        vm: Where,
        memory: &Ram<InProcess>,
        guest_os: &dyn GuestOs,
        layout: &mut Option<KvmLayout>,
        trap: Trap,
        prefixes: Arc<Prefixes>,
    ) -> Result<(Self, Vec<Site>, CounterRatio)> {
        ensure!(
            in_initial_pid_namespace(),
            "timevisord runs in its own pid namespace, where the kernel's programs would not know QEMU's process id; run it outside of the container"
        );
        let tables = guest_os.address_space();
        let tables = tables.with_context(|| {
            format!("{} has no page tables: it cannot be trapped under KVM", guest_os.name())
        })?;
        let sites = sites::find(memory, &tables, guest_os.points(), trap)?;
        let vendor = vendor()?;
        let layout = match layout {
            Some(layout) => *layout,
            None => {
                let new = KvmLayout::new(&host_types(vendor)?, vendor);
                *layout.insert(new.context("this host's KVM")?)
            }
        };
        // KVM stamps events in ticks of the guest's counter.
        let ratio = KvmMapping::new(DEBUGFS, vm.process.pid()).and_then(|mapping| mapping.ratio());
        let ratio = ratio.context("the rate of the guest's counter, which events' times need")?;
        let seen = Vm {
            pid: vm.process.pid(),
            ram: &vm.layout,
            base: vm.base,
            tables,
            processor_bases: guest_os.processor_bases(),
            linear: guest_os.linear(),
        };
        let orders = Orders::new(&seen, guest_os.points(), &layout, vendor, trap)?;
        let this = Self {
            process: vm.process,
            code: ProcessMemory::writable(vm.process)?,
            layout: vm.layout,
            base: vm.base,
            orders,
            trap,
            prefixes,
            traps: None,
            patches: Vec::new(),
            look_at: Duration::ZERO,
            left_out: Some(0),
        };
        Ok((this, sites, ratio))
    }

    fn put(&mut self, sites: &[Site]) -> Result<()> {
        let patch = |site| Patch::at(site, &self.layout, self.base, self.trap);
        let patches: Option<Vec<_>> = sites.iter().map(patch).collect();
        let patches = patches.context("a trap point outside of memory")?;
        let Points { first, more } = self.orders.points(sites);
        let watch = match self.orders.watch {
            orders::Watch::HandleUd => Watch::HandleUd,
            orders::Watch::FastPio => Watch::FastPio,
            orders::Watch::Emulate => Watch::Emulate,
        };
        // Start the programs first: events before that would be lost without being counted.
        self.traps = Some(GuestTraps::start(self.orders.target, &first, &more, watch)?);
        self.prefixes.begin(self.process, &patches)?;
        self.patches = patches;
        let done = while_stopped(self.process, || put(&self.code, &self.patches));
        done.map_err(anyhow::Error::from).and_then(|done| Ok(done?)).inspect_err(|_| {
            // No trap is in place, but the journal lists them.
            let _ = self.take();
        })
    }

    fn take(&mut self) -> Result<()> {
        if !self.patches.is_empty() {
            self.patches.clear();
            self.prefixes.end(self.process)?;
        }
        self.traps = None;
        Ok(())
    }
}

impl Link for Kvm {
    fn turn(&mut self, backend: &mut dyn Backend) -> Result<Vec<Action>> {
        std::thread::sleep(TURN);
        let mut actions = Vec::new();
        let now = monotonic();
        let looks = now >= self.look_at && !self.patches.is_empty();
        if let Some(traps) = &mut self.traps {
            for _ in 0..AT_ONCE {
                if !backend.may_read(monotonic()) {
                    break;
                }
                let taken = |bytes: &[u8]| backend.handle(Input::Bytes(bytes), monotonic());
                let Some(more) = traps.next_event(taken) else { break };
                actions.extend(more);
            }
            if looks {
                self.left_out = traps.left_out();
            }
            let dropped = traps.dropped().saturating_add(self.left_out.unwrap_or(0));
            actions.extend(backend.handle(Input::Dropped(dropped), monotonic()));
        }
        if looks {
            self.look_at = now + LOOK;
            ensure!(self.process.is_running(), "QEMU has ended");
            if in_place(&self.code, &self.patches)? != self.patches.len() {
                bail!("the guest's code has changed: it was reset, or traces itself");
            }
        }
        Ok(actions)
    }

    fn counts_losses(&self) -> bool {
        self.left_out.is_some()
    }

    fn act(&mut self, action: Action, backend: &mut dyn Backend) -> Result<Vec<Action>> {
        match action {
            Action::Put(sites) => {
                self.put(&sites)?;
                Ok(backend.handle(Input::Put, monotonic()))
            }
            Action::Take => {
                // Deliver pending events first.
                let mut actions = self.turn(backend)?;
                self.take()?;
                actions.extend(backend.handle(Input::Taken, monotonic()));
                Ok(actions)
            }
            other => bail!("KVM cannot do this: {other:?}"),
        }
    }
}

impl Drop for Kvm {
    fn drop(&mut self) {
        if let Err(error) = self.take() {
            tracing::error!("process {}: cannot remove trap points: {error:#}", self.process.pid());
        }
    }
}

/// The vendor of this host's KVM.
fn vendor() -> Result<Vendor> {
    let loaded = |module: &str| std::fs::exists(format!("/sys/module/{module}")).unwrap_or(false);
    if loaded("kvm_amd") {
        Ok(Vendor::Amd)
    } else if loaded("kvm_intel") {
        Ok(Vendor::Intel)
    } else {
        bail!("neither kvm_amd nor kvm_intel is loaded on this host")
    }
}

/// The kernel's types, with those of KVM's module unless KVM is built in.
fn host_types(vendor: Vendor) -> Result<Btf> {
    let folder = "/sys/kernel/btf";
    let kernel = std::fs::read(format!("{folder}/vmlinux"));
    let kernel = Btf::parse(
        kernel.context("this kernel does not describe its types (CONFIG_DEBUG_INFO_BTF)")?,
    )?;
    let module = match vendor {
        Vendor::Amd => "kvm_amd",
        Vendor::Intel => "kvm_intel",
    };
    match std::fs::read(format!("{folder}/{module}")) {
        Ok(bytes) => Ok(kernel.with_module(&bytes)?),
        Err(_) => Ok(kernel),
    }
}
