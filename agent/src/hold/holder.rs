//! The agent's part of `--hold`: looks, freezes and thaws.
//!
//! Every look reads the page's flags, its clock and CLOCK_REALTIME: some microseconds, a hundred
//! times a second. Groups are found by name again when they are gone, because a unit that restarts
//! has another group, and what starts while the workload is held is frozen, too.

use std::path::PathBuf;

use anyhow::{Context, Result};
use timevisor_clock_page::Notice;
use timevisor_linux::freezer::{FreezerError, Group, Hierarchies};
use timevisor_time::Duration;

use super::guard::Guard;
use super::law::{Law, Limits, Order, Seen, Why};
use super::{Options, held, sight};
use crate::set_clock::view::View;
use crate::span::of_std;

/// How often the page is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How long to wait before looking again for a group or a page that is not there.
const RETRY: Duration = Duration::from_secs(1);

/// One workload.
struct Workload {
    name: String,
    group: Option<Group>,
    /// When to look for its group again.
    find_at: Duration,
    /// The last problem, so that it is not logged again and again.
    told: String,
}

/// Freezes and thaws the workloads.
pub struct Holder {
    workloads: Vec<Workload>,
    hierarchies: Hierarchies,
    law: Law,
    view: Option<View>,
    open_at: Duration,
    wake: Duration,
    guard: Guard,
    /// What we have frozen, as in the file.
    frozen: Vec<PathBuf>,
    /// The last problem with the page, so that it is not logged again and again.
    told: String,
}

impl Holder {
    /// Returns `None` unless requested. Fails if a workload could never be held.
    pub fn start(options: &Options, now: Duration) -> Result<Option<Self>> {
        if options.hold.is_empty() {
            held::clean_up(&[]);
            return Ok(None);
        }
        let hierarchies = Hierarchies::find().context("--hold")?;
        let mut workloads = Vec::new();
        for name in &options.hold {
            let group = match hierarchies.group(name) {
                Ok(group) => Some(group),
                Err(error @ FreezerError::NotFound(_)) => {
                    tracing::info!("--hold: {error}; it is held when it comes");
                    None
                }
                Err(error) => return Err(error).context("--hold"),
            };
            let told = String::new();
            workloads.push(Workload { name: name.clone(), group, find_at: now, told });
        }
        let ours: Vec<_> =
            workloads.iter().filter_map(|w| Some(w.group.as_ref()?.path().to_owned())).collect();
        held::clean_up(&ours);
        let is_frozen = |path: &PathBuf| {
            Group::at(path).is_some_and(|group| group.is_frozen().unwrap_or(false))
        };
        let frozen: Vec<_> = held::read().into_iter().filter(is_frozen).collect();
        let limits = Limits {
            within: of_std(options.hold_within),
            notice_at_most: of_std(options.hold_notice),
        };
        let mut guard = Guard::start()?;
        let law = if frozen.is_empty() {
            Law::new(limits)
        } else {
            tracing::info!("held: {}", Why::Earlier);
            Law::holding(limits, now)
        };
        frozen.iter().for_each(|path| _ = guard.frozen(path));
        let (view, open_at, wake) = (None, now, now);
        Ok(Some(Self {
            workloads,
            hierarchies,
            law,
            view,
            open_at,
            wake,
            guard,
            frozen,
            told: String::new(),
        }))
    }

    /// When [`Self::on_timer`] next has something to do.
    pub fn poll_at(&self) -> Duration {
        self.wake
    }

    /// Looks, if it is time to.
    pub fn on_timer(&mut self, now: Duration) {
        if now >= self.wake {
            self.wake = now + LOOK;
            self.look(now);
        }
    }

    /// Looks once more if the workload is held: CLOCK_REALTIME may just have been set.
    pub fn clock_was_kept(&mut self, now: Duration) {
        if self.law.holds() {
            self.look(now);
        }
    }

    fn look(&mut self, now: Duration) {
        let seen = self.see(now);
        match self.law.update(&seen, now) {
            Some(Order::Freeze(why)) => {
                self.freeze(now);
                tracing::info!("held: {why}");
            }
            Some(Order::Thaw(after)) => {
                self.thaw();
                tracing::info!("no longer held, after {after}");
            }
            // A group that has come meanwhile.
            None if self.law.holds() => self.freeze(now),
            None => {}
        }
    }

    fn see(&mut self, now: Duration) -> Seen {
        let nothing = Seen { off: None, notice: Notice::None };
        if self.view.is_none() && now >= self.open_at {
            self.open_at = now + RETRY;
            match View::open("timevisor-guest hold") {
                Ok(view) => self.view = Some(view),
                Err(error) => {
                    let text = format!("--hold: there is no page: {error:#}");
                    if self.told != text {
                        tracing::warn!("{text}");
                        self.told = text;
                    }
                }
            }
        }
        let Some(view) = &mut self.view else { return nothing };
        sight::see(view)
    }

    fn freeze(&mut self, now: Duration) {
        for index in 0..self.workloads.len() {
            let workload = &mut self.workloads[index];
            if workload.group.as_ref().is_some_and(|group| !group.exists()) {
                workload.group = None;
                workload.find_at = now;
            }
            if workload.group.is_none() && now >= workload.find_at {
                workload.find_at = now + RETRY;
                match self.hierarchies.group(&workload.name) {
                    Ok(group) => workload.group = Some(group),
                    Err(FreezerError::NotFound(_)) => {}
                    Err(error) => workload.tell(format!("--hold: {error}")),
                }
            }
            let Some(group) = workload.group.clone() else { continue };
            match group.is_frozen() {
                // Ours, or somebody else's, which stays as it is.
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    workload.tell(format!("--hold: {error}"));
                    continue;
                }
            }
            // One that we have frozen may have been made again, under the same name.
            if !self.frozen.iter().any(|path| path == group.path()) {
                // First the note: who finds it later thaws, even what was never frozen.
                self.frozen.push(group.path().to_owned());
                if let Err(error) = held::write(&self.frozen) {
                    self.workloads[index].tell(format!("cannot note what is frozen: {error}"));
                }
                if !self.guard.frozen(group.path()) {
                    self.replace_guard();
                }
            }
            match group.freeze() {
                Ok(()) => self.workloads[index].told.clear(),
                Err(error) => {
                    self.workloads[index].tell(format!("cannot freeze: {error}; run as root"));
                }
            }
        }
    }

    /// The guard is dead: the next one hears of everything.
    fn replace_guard(&mut self) {
        match Guard::start() {
            Ok(guard) => self.guard = guard,
            Err(error) => tracing::error!("{error:#}"),
        }
        for path in &self.frozen {
            self.guard.frozen(path);
        }
    }

    fn thaw(&mut self) {
        self.frozen.retain(|path| {
            let stays = match Group::at(path).map(|group| group.thaw()) {
                None | Some(Ok(())) => false,
                Some(Err(error)) => {
                    tracing::error!("{} stays frozen: {error}", path.display());
                    true
                }
            };
            if !stays {
                self.guard.thawed(path);
            }
            stays
        });
        if let Err(error) = held::write(&self.frozen) {
            tracing::warn!("what is frozen cannot be noted: {error}");
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.thaw();
    }
}

impl Workload {
    fn tell(&mut self, text: String) {
        if self.told != text {
            tracing::warn!("{text}");
            self.told = text;
        }
    }
}
