//! VMs: found or added, attached, published to, retired.
//!
//! | file | owns |
//! | --- | --- |
//! | `served.rs` | one VM that is served, and its lost monitor |
//! | `monitor.rs` | one QMP connection: what is asked, and what survives it |
//! | `qmp/` | the processes that speak QMP |
//! | `moves.rs` | reservations of VMs that come or have left |
//! | `channels.rs` | the facts that timelines and reservations use |
//! | `attachment.rs` | how a VM comes to be served |
//! | `discovery.rs` | finding QEMU processes |
//! | `helpers.rs` | the processes that read what other users control |
//! | `questions.rs` | what they are asked, and what follows |
//! | `owners.rs` | whose processes are served as which VM, and how many |
//! | `host_cpu_time.rs` | the processor time of each vCPU |
//! | `prepared.rs` | page files of VMs that have not started yet |
//! | `requests.rs` | answers to the CLI |
//! | `registry.rs` | the VMs on disk, for a restarted daemon |
//! | `retirement.rs` | VMs that have ended or lost their page |

mod attachment;
mod channels;
mod discovery;
mod helpers;
mod host_cpu_time;
mod monitor;
mod moves;
mod owners;
mod prepared;
mod qmp;
mod questions;
mod registry;
mod requests;
mod retirement;
mod served;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use timevisor_clock_page::Counter;
use timevisor_guests::Vm;
use timevisor_guests::delivery::PageFiles;
use timevisor_guests::host::{HostIdentity, HostUpdate, ScaleUpdate};
use timevisor_guests::owner::{Discover, Rules};
use timevisor_guests::transit::{Step, Transit};
use timevisor_host_clock::Publication;
use timevisor_host_clock::publication::PageUpdate;
use timevisor_linux::clock::monotonic;
use timevisor_protocols::control::TimeType;
use timevisor_protocols::qmp::{News as Said, VmEvent};
use timevisor_time::{Duration, TimescaleId};

use self::discovery::Discovery;
use self::helpers::Helpers;
pub use self::helpers::be_helper;
use self::host_cpu_time::Sampler;
use self::monitor::{Connected, Monitor, News};
use self::prepared::Prepared;
use self::qmp::QmpHelpers;
pub use self::qmp::be_qmp_helper;
use self::questions::About;
use self::registry::{Entry, Registry};
use self::retirement::Removed;
use self::served::{Reconnect, Served};
use crate::announce::PerUser;
use crate::clock::{HostClock, epoch};
use crate::config::Config;

/// Under TCG without QMP, a stop is detected only by polling; see the limitation in
/// `timevisor_guests::vm`. Under KVM, a change of the counter's offset that no event reports.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Settled VMs under KVM that are looked at at once: 20 of them are each looked at every 50 ms, 200 every
/// 500 ms.
const AT_A_LOOK: usize = 20;
/// How often a VM is polled eagerly. A VM that is about to run is polled because QEMU's event
/// arrives up to 50 ms after the guest's first instruction, when its main loop waits for the vCPU
/// threads. A stopped VM is polled because QEMU could load a snapshot's page over ours; the vCPUs
/// run some milliseconds after that (3 to 9 measured).
const EAGER_INTERVAL: Duration = Duration::from_millis(1);
/// How long a VM is polled eagerly.
const EAGER: Duration = Duration::from_secs(1);
/// Descriptors that VMs must leave free, for the daemon's own files and for its administrator. A VM
/// takes about six.
const RESERVED_DESCRIPTORS: usize = 16;
/// Time between two attempts to connect to a lost QMP socket.
const RECONNECT: Duration = Duration::from_secs(2);
/// How often a VM that is leaving is asked whether it still is.
const ASK: Duration = Duration::from_secs(1);
/// How long nobody may have heard whether a migration has begun.
const UNHEARD: Duration = Duration::from_secs(30);

/// A file descriptor that belongs to the VM with this pid, or to a helper.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Ended(u32),
    /// The helper of this user that examines.
    Helper(u32),
    /// The helper of this user that speaks QMP.
    QmpHelper(u32),
}

pub struct Vms {
    config: Config,
    served: Vec<Served>,
    prepared: Prepared,
    /// Why prepared VMs have no files after a reboot, as it was said.
    told_missing: BTreeSet<String>,
    /// Who may be served as which VM.
    rules: Rules,
    /// VMs that are running but must not be served.
    removed: Vec<Removed>,
    /// How many lines about VMs may still be logged.
    told: PerUser,
    registry: Registry,
    discovery: Discovery,
    helpers: Helpers,
    qmp: QmpHelpers,
    /// What helpers were asked, by number.
    asked: HashMap<u64, About>,
    next_discovery: Duration,
    next_look: Duration,
    /// How many VMs were attached.
    lives: u64,
    /// When settled VMs under KVM are looked at, and how often that was.
    next_turn: Duration,
    turn: usize,
    sampler: Sampler,
    publication: Option<Publication>,
    /// Whether a page was written because of an event of its VM.
    rewritten: bool,
}

impl Vms {
    /// Other settings are configured: they count for VMs that are found from now on, and whose a VM is
    /// for those that run.
    pub fn configure(&mut self, config: &Config) {
        let trusts_another = self.config.guests.discover != config.guests.discover;
        if config.guests != self.config.guests {
            // Not only after the former interval.
            self.next_discovery = Duration::ZERO;
        }
        self.config = config.clone();
        self.renew_rules();
        self.retire_misowned();
        if trusts_another {
            self.tell_whom_discovery_trusts();
        }
    }

    /// The running VMs that keep their page's timescale, although `new` gives them another one.
    pub fn retyped_by(&self, new: &Config) -> Vec<String> {
        let retyped = |s: &&Served| self.config.retypes(new, &s.vm.name, time_type(&s.vm));
        self.served.iter().filter(retyped).map(|served| served.vm.name.clone()).collect()
    }

    pub fn new(config: &Config) -> Self {
        let state = config.state();
        let prepared = Prepared::in_directory(&config.run_directory.join("vms"), state.as_deref());
        let vms = Self {
            config: config.clone(),
            served: Vec::new(),
            rules: owners::rules(config, &prepared),
            prepared,
            told_missing: BTreeSet::new(),
            removed: Vec::new(),
            told: PerUser::default(),
            registry: Registry::in_directory(&config.run_directory),
            discovery: Discovery::default(),
            helpers: Helpers::default(),
            qmp: QmpHelpers::default(),
            asked: HashMap::new(),
            next_discovery: Duration::ZERO,
            next_look: Duration::ZERO,
            lives: 0,
            next_turn: Duration::ZERO,
            turn: 0,
            sampler: Sampler::default(),
            publication: None,
            rewritten: false,
        };
        vms.tell_whom_discovery_trusts();
        vms
    }

    /// Makes the files of VMs that were prepared before a reboot, as far as that is possible now.
    fn restore(&mut self, clock: &HostClock) {
        let (made, failed) = self.prepared.restore(host_identity(clock));
        if !made.is_empty() {
            tracing::info!("prepared again after a reboot: VM {}", made.join(", "));
        }
        for problem in failed {
            if self.told_missing.insert(problem.clone()) {
                tracing::warn!("{problem}");
            }
        }
    }

    /// Stores the VMs that are served.
    fn note(&mut self) {
        let entry = |served: &Served| {
            let process = served.vm.qemu.process;
            let (qmp, wanted) = served.speaks_through().unzip();
            Some(Entry {
                name: served.vm.name.clone(),
                pid: process.pid(),
                start_time: process.started()?,
                time_type: time_type(&served.vm),
                qmp: qmp.map(Path::to_owned),
                resume: wanted.is_some_and(|wanted| wanted.resume),
                awaited: served.vm.awaits(),
                elapsed_since: served.elapsed_since.and_then(requests::elapsed_since),
                added: served.added,
            })
        };
        self.registry.write(self.served.iter().filter_map(entry).collect());
    }

    pub fn len(&self) -> usize {
        self.served.len()
    }

    pub fn poll_at(&self) -> Duration {
        let leaves = |s: &&Served| matches!(s.vm.transit(), Transit::Leaving(_));
        let ask = self.served.iter().filter(leaves).map(|s| s.ask_at).min();
        let looks = |s: &Served| s.is_unsettled() || s.is_kvm();
        let look = self.served.iter().any(looks).then_some(self.next_look);
        let discovery = self.discovers().then_some(self.next_discovery);
        let reconnect = self.served.iter().filter_map(|s| s.reconnect.as_ref().map(|r| r.at)).min();
        let sample = (!self.served.is_empty()).then_some(self.sampler.next);
        let helpers = Some(self.helpers.poll_at().min(self.qmp.poll_at()));
        [look, discovery, reconnect, sample, helpers, ask, self.moves_at()]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Duration::MAX)
    }

    pub fn fds(&self) -> impl Iterator<Item = (Token, BorrowedFd<'_>)> {
        let helpers = self.helpers.fds().map(|(user, fd)| (Token::Helper(user), fd));
        let of_qmp = self.qmp.fds().map(|(user, fd)| (Token::QmpHelper(user), fd));
        let of_vms = self.served.iter().filter_map(|served| {
            let pid = served.vm.qemu.process.pid();
            served.vm.ended().fd().map(|fd| (Token::Ended(pid), fd))
        });
        // Events of VMs first.
        of_qmp.chain(of_vms).chain(helpers)
    }

    pub fn on_ready(&mut self, token: Token, clock: &HostClock) {
        match token {
            Token::Ended(_) => self.retire_ended(),
            Token::Helper(user) => {
                self.helpers.on_ready(user);
                self.take_answers(clock);
            }
            Token::QmpHelper(user) => {
                self.qmp.on_ready(user);
                self.take_news();
            }
        }
    }

    /// Takes in what QEMUs have said.
    fn take_news(&mut self) {
        let said = self.qmp.take_news();
        if said.is_empty() {
            return;
        }
        for (connection, said) in said {
            let is_its = |s: &Served| s.monitor.as_ref().is_some_and(|m| m.number() == connection);
            let Some(index) = self.served.iter().position(is_its) else { continue };
            let pending = self.served[index].pending();
            let is_forbidden = matches!(said, Said::Immovable(_));
            let news = self.served[index].monitor.as_mut().map(|monitor| monitor.take(said));
            self.log_remarks(index);
            if is_forbidden {
                // It may have begun before.
                self.served[index].forbid_unsafe_move(&mut self.told);
            }
            for item in news.unwrap_or_default() {
                self.take(index, item);
            }
            if self.served[index].pending() != pending {
                // A later daemon must not resume what was stopped on purpose.
                self.note();
            }
        }
        self.ask_mappings();
    }

    fn log_remarks(&mut self, index: usize) {
        let served = &mut self.served[index];
        let remarks = served.monitor.as_mut().map(Monitor::take_remarks).unwrap_or_default();
        for remark in remarks {
            if self.told.take(served.user, monotonic()) {
                tracing::warn!("{remark}");
            }
        }
    }

    fn take(&mut self, index: usize, news: News) {
        let served = &mut self.served[index];
        let mut may_run = false;
        let step = match news {
            News::Status(status) => {
                let taken = served.vm.on_status(&status);
                // It has arrived while no daemon ran.
                if *served.vm.transit() == Transit::Here
                    && served.vm.came_without_page()
                    && let Some(birth) = served.elapsed_since.take()
                {
                    served.vm.set_birth(birth);
                }
                // QEMU would resume an incoming VM as soon as it arrives, and would run a VM that
                // has already left a second time.
                if *served.vm.transit() == Transit::Here {
                    may_run = !status.running;
                    if let Some(monitor) = served.monitor.as_mut().filter(|_| status.running) {
                        monitor.runs_already();
                    }
                }
                taken
            }
            News::Event(event) => {
                tracing::debug!("VM {}: {event:?}", served.vm.name);
                served.resets += u64::from(matches!(event, VmEvent::Reset { .. }));
                let taken = served.vm.on_event(&event);
                served.forbid_unsafe_move(&mut self.told);
                if event == VmEvent::Resume && taken != Step::Arrive {
                    served.moves.runs(monotonic());
                }
                taken
            }
            News::Migration(status, why) => {
                let step = served.vm.on_migration(&status, why.as_deref());
                served.forbid_unsafe_move(&mut self.told);
                step
            }
            News::NotMigrated(why) => {
                if self.told.take(served.user, monotonic()) {
                    tracing::warn!("VM {}: not migrated: {why}", served.vm.name);
                }
                served.vm.transit_mut().fail(why);
                Step::Nothing
            }
            News::Lost(reason) => {
                // A monitor that another program holds hangs up at every attempt.
                if served.told_lost.take(monotonic()) {
                    let name = &served.vm.name;
                    tracing::info!("VM {name}: {reason}; looking at its counter instead");
                }
                let lost = served.monitor.take().map(Monitor::into_wanted);
                let since = monotonic();
                let at = since + RECONNECT;
                served.reconnect = lost.map(|(path, wanted)| Reconnect { path, since, at, wanted });
                served.vm.look();
                Step::Nothing
            }
        };
        self.follow(index, step, may_run);
    }

    /// Does what a step of a VM's migration asks for.
    fn follow(&mut self, index: usize, step: Step, may_run: bool) {
        let served = &mut self.served[index];
        match step {
            Step::Arrive => {
                if self.told.take(served.user, monotonic()) {
                    tracing::info!("VM {} has arrived", served.vm.name);
                }
                if let Some(birth) = served.elapsed_since.take() {
                    served.vm.set_birth(birth);
                }
                served.arrives(monotonic());
            }
            Step::Leave => {
                if self.told.take(served.user, monotonic()) {
                    tracing::info!("VM {} has migrated away", served.vm.name);
                }
                served.moves.leaves(monotonic());
            }
            Step::AskWhy => {
                served.monitor.as_mut().map(Monitor::ask_why);
            }
            Step::AskStatus => {
                served.monitor.as_mut().map(Monitor::ask_status);
            }
            Step::Nothing => {}
        }
        served.tell_of_replacements(&mut self.told);
        served.may_resume |= may_run || step == Step::Arrive;
        // More may follow immediately: a stopped VM loads a snapshot, or a resumed one settles its
        // counter.
        self.next_look = monotonic();
        served.eager_until = self.next_look + EAGER;
    }

    pub fn on_timer(&mut self, now: Duration, clock: &HostClock) {
        self.retire_ended();
        self.retire_lost();
        self.helpers.on_timer(now);
        self.qmp.on_timer(now);
        self.take_news();
        if self.discovers() && now >= self.next_discovery {
            self.discover(now);
        }
        self.take_answers(clock);
        if now >= self.next_look {
            let eager = |s: &Served| s.vm.is_exposed() || (now < s.eager_until && s.is_unsettled());
            let hurry = self.served.iter().any(eager);
            self.next_look = now + if hurry { EAGER_INTERVAL } else { LOOK_INTERVAL };
            let regular = now >= self.next_turn;
            if regular {
                (self.next_turn, self.turn) = (now + LOOK_INTERVAL, self.turn.wrapping_add(1));
            }
            let (kvm, mut at) = (self.served.iter().filter(|s| s.is_kvm()).count(), 0);
            let mut has_come = false;
            for index in 0..self.served.len() {
                if self.served[index].vm.arrive_late() == Step::Arrive {
                    self.follow(index, Step::Arrive, false);
                    has_come = true;
                }
                let served = &self.served[index];
                let in_turn = served.is_kvm() && regular && is_its_turn(self.turn, at, kvm);
                at += usize::from(served.is_kvm());
                if in_turn || served.is_unsettled() {
                    self.served[index].vm.look();
                    self.served[index].tell_of_replacements(&mut self.told);
                }
            }
            self.ask_mappings();
            if has_come {
                self.note();
            }
        }
        self.sample_host_cpu_time(now, clock);
        for served in &mut self.served {
            if let Some(lost) = served.reconnect.take_if(|lost| now >= lost.at) {
                let pid = served.vm.qemu.process.pid();
                match Connected::connect_to(&lost.path, pid, lost.wanted.clone()) {
                    Ok(connected) => served.speak(connected, &mut self.qmp),
                    Err(_) => {
                        if now > lost.since + UNHEARD {
                            served.vm.transit_mut().unheard();
                        }
                        served.reconnect = Some(Reconnect { at: now + RECONNECT, ..lost });
                    }
                }
            }
            // Events may be missed: QEMU refuses to report them while a migration is under way.
            if now >= served.ask_at
                && let Transit::Leaving(_) = served.vm.transit()
                && let Some(monitor) = served.monitor.as_mut().filter(|m| m.is_ready())
            {
                served.ask_at = now + ASK;
                monitor.ask_migration();
            }
            let complaint = served.monitor.as_mut().and_then(|m| m.complaint(now));
            if let Some(complaint) = complaint.filter(|_| self.told.take(served.user, now)) {
                tracing::warn!("VM {}: {complaint}", served.vm.name);
            }
        }
    }

    /// Writes every page from the host's current clock lines.
    pub fn publish(&mut self, publication: Publication, clock: &HostClock) {
        self.publication = Some(publication);
        if self.prepared.is_missing_some() {
            self.restore(clock);
        }
        for index in 0..self.served.len() {
            self.served[index].vm.look();
            self.served[index].tell_of_replacements(&mut self.told);
            self.publish_one(index, clock);
        }
        self.ask_mappings();
        self.rewritten = false;
        self.retire_lost();
    }

    fn discovers(&self) -> bool {
        self.config.guests.discover != Discover::Nothing
    }

    fn page_directory(&self) -> PathBuf {
        self.config.run_directory.join("vms")
    }

    fn pages(&self) -> PageFiles {
        PageFiles::new(self.page_directory())
    }

    /// Whether this page was rewritten on its own since the last publication: its other entries
    /// then have to follow.
    pub fn take_rewritten(&mut self) -> Option<&Publication> {
        self.publication.as_ref().filter(|_| std::mem::take(&mut self.rewritten))
    }

    fn publish_one(&mut self, index: usize, clock: &HostClock) {
        let Some(publication) = &self.publication else { return };
        self.rewritten = true;
        let update = host_update(publication);
        self.served[index].vm.publish(&update, &clock.counter);
    }
}

/// KVM's mappings are looked at in turns: nobody reports a plugged vCPU, a guest that writes its TSC, or
/// what KVM does after a suspend of the host. `turn` counts the looks, `at` the VMs under KVM.
fn is_its_turn(turn: usize, at: usize, all: usize) -> bool {
    let turns = all.div_ceil(AT_A_LOOK).max(1);
    at % turns == turn % turns
}

fn host_update(publication: &Publication) -> HostUpdate {
    let scale =
        |page: PageUpdate| ScaleUpdate { update: page.update, disruptions: page.disruptions };
    HostUpdate {
        tai: scale(publication.tai()),
        utc: scale(publication.utc()),
        tai_offset: publication.leap.tai_offset,
        leap: publication.leap.indicator,
    }
}

fn host_identity(clock: &HostClock) -> HostIdentity {
    let (id, counter, tai_offset) = (clock.host_id, clock.counter.id(), clock.tai_offset());
    HostIdentity { id, counter, epoch: epoch(), tai_offset }
}

/// The time type of a VM's page, which is what its guest's driver has probed.
fn time_type(vm: &Vm) -> TimeType {
    if vm.timescale() == TimescaleId::Utc { TimeType::Utc } else { TimeType::Tai }
}

fn timescale(time_type: TimeType) -> TimescaleId {
    match time_type {
        TimeType::Tai => TimescaleId::Tai,
        TimeType::Utc => TimescaleId::Utc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vm_has_its_turn() {
        for all in [1, 20, 21, 200, 1000] {
            let turns = all / AT_A_LOOK + 1;
            for at in 0..all {
                let looks = (7..7 + 2 * turns).filter(|turn| is_its_turn(*turn, at, all)).count();
                assert!(looks >= 2, "{at} of {all}: {looks} in {} turns", 2 * turns);
            }
            let most =
                (0..turns).map(|turn| (0..all).filter(|at| is_its_turn(turn, *at, all)).count());
            assert!(most.max() <= Some(AT_A_LOOK), "{all}");
        }
    }

    #[test]
    fn a_shorter_interval_counts_at_once_and_nothing_else_hastens_the_next_look() {
        let every = |interval: &str, rest: &str| {
            let text = format!("[guests]\ndiscover_interval = \"{interval}\"\n{rest}");
            Config::parse(&text).unwrap()
        };
        let mut vms = Vms::new(&every("1h", ""));
        let hour = Duration::from_secs(3600);
        vms.next_discovery = hour;
        vms.configure(&every("1h", "[clock]\nstale_after = \"95s\""));
        assert_eq!(vms.poll_at(), hour);
        vms.configure(&every("1s", ""));
        assert_eq!(vms.poll_at(), Duration::ZERO);
    }
}
