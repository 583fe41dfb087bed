//! What helpers are asked about VMs, and what follows from their answers.

use timevisor_guests::examine::{Answer, Question};
use timevisor_linux::clock::monotonic;
use timevisor_linux::process::Process;
use timevisor_time::Duration;

use super::Vms;
use super::helpers::Arrived;
use super::monitor::Monitor;
use crate::clock::HostClock;
use crate::config::span;

/// What a question is about.
pub(super) enum About {
    /// Whether this process is a VM.
    Discovery(Process),
    /// The counter mapping of the VM with this process, at a moment of [`timevisor_guests::Vm`].
    Vm(Process, u64),
}

impl Vms {
    /// Has the processes examined that may be VMs.
    pub(super) fn discover(&mut self, now: Duration) {
        self.next_discovery = now + span(self.config.guests.discover_interval);
        for (process, user) in self.discovery.look(now, &self.rules) {
            match self.helpers.ask(user, process, Question::Examine, now) {
                Ok(number) => {
                    self.asked.insert(number, About::Discovery(process));
                }
                Err(problem) => {
                    let text = format!("process {} is not examined: {problem}", process.pid());
                    self.discovery.examined(&process, Err(text));
                }
            }
        }
    }

    /// Asks for the counter mappings that VMs want to know, one at a time of each VM.
    pub(super) fn ask_mappings(&mut self) {
        let now = monotonic();
        for index in 0..self.served.len() {
            let served = &mut self.served[index];
            if served.asking {
                continue;
            }
            if let Some(moment) = served.vm.question() {
                let qemu = &served.vm.qemu;
                let (process, question) = (qemu.process, Question::mapping(qemu));
                match self.helpers.ask(served.user, process, question, now) {
                    Ok(number) => {
                        served.asking = true;
                        self.asked.insert(number, About::Vm(process, moment));
                    }
                    Err(problem) => {
                        served.vm.learn(moment, Err(problem));
                    }
                }
            }
            self.resume_if_ready(index);
        }
    }

    /// Takes in what the helpers have found, and writes the pages that change by it.
    pub(super) fn take_answers(&mut self, clock: &HostClock) {
        for Arrived { number, answer } in self.helpers.take_arrived() {
            match (self.asked.remove(&number), answer) {
                (Some(About::Discovery(process)), answer) => {
                    let found = answer.map(|answer| match answer {
                        Answer::Examined(found) => found.map(|qemu| *qemu),
                        Answer::Mapping(_) => Err(timevisor_guests::examine::NotServed::NotQemu),
                    });
                    if let Some(qemu) = self.discovery.examined(&process, found) {
                        self.discovered(qemu, clock);
                    }
                }
                (Some(About::Vm(process, moment)), answer) => {
                    let same = |s: &super::Served| s.vm.qemu.process == process;
                    let Some(index) = self.served.iter().position(same) else { continue };
                    let found = match answer {
                        Ok(Answer::Mapping(found)) => found.and_then(|mapping| {
                            mapping
                                .get()
                                .ok_or_else(|| "the counter's ratio is nonsense".to_owned())
                        }),
                        Ok(Answer::Examined(_)) => Err("the helper gave another answer".to_owned()),
                        Err(problem) => {
                            let served = &self.served[index];
                            if self.told.take(served.user, monotonic()) {
                                tracing::warn!("VM {}: {problem}", served.vm.name);
                            }
                            Err(problem)
                        }
                    };
                    let served = &mut self.served[index];
                    served.asking = false;
                    let changed = served.vm.learn(moment, found);
                    served.tell_of_replacements(&mut self.told);
                    if changed {
                        self.publish_one(index, clock);
                    }
                }
                (None, _) => {}
            }
        }
        self.ask_mappings();
    }

    /// Waits until the counter mapping of the VM with this process is known, or why it is not.
    pub(super) fn settle(&mut self, pid: u32, within: Duration, clock: &HostClock) {
        let until = monotonic() + within;
        let asking = |s: &super::Served| s.asking && s.vm.qemu.process.pid() == pid;
        while self.served.iter().any(asking) && self.helpers.wait_until(until) {
            self.take_answers(clock);
        }
    }

    /// Resumes a VM that waits for its page, once the page says what is known and its reservation is in
    /// force.
    pub(super) fn resume_if_ready(&mut self, index: usize) {
        let served = &mut self.served[index];
        if served.may_resume && !served.asking && !served.waits_for_reservation(monotonic()) {
            served.may_resume = false;
            served.monitor.as_mut().map(Monitor::resume_if_asked);
        }
    }
}
