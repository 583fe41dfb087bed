//! The helper processes that examine QEMUs: one for each user, so that nobody waits because of
//! somebody else. Who is asked, and who is to blame, is decided in `timevisor_guests::examine`.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use timevisor_guests::counter_mapping::CounterMapping;
use timevisor_guests::examine::message::Answered;
use timevisor_guests::examine::{Answer, Examiner, NotServed, Question, Watch};
use timevisor_guests::qemu::Qemu;
use timevisor_linux::clock::monotonic;
use timevisor_linux::confine;
use timevisor_linux::helper::{Dying, Helper, Parent};
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::process::Process;
use timevisor_time::Duration;

/// The argument that makes timevisord a helper.
pub const ARGUMENT: &str = "--helper";

/// A helper needs some megabytes; an executable that is made for it would need any number.
const ADDRESS_SPACE: u64 = 512 << 20;
/// Users with a helper of their own. The others share one.
const MOST_HELPERS: usize = 32;
/// Who share one.
const OTHERS: u32 = u32::MAX;
/// Helpers of one user that were killed and hang in the kernel. With so many, none is started any
/// more for that user.
const MOST_DYING: usize = 4;
/// A helper without questions ends after this time.
const IDLE: Duration = Duration::from_secs(60);
/// Answers that are taken at once.
const AT_ONCE: usize = 64;

/// An answer, or why there is none.
pub struct Arrived {
    /// The number that [`Helpers::ask`] returned.
    pub number: u64,
    pub answer: Result<Answer, String>,
}

#[derive(Default)]
struct OfUser {
    helper: Option<Helper>,
    watch: Watch,
    /// How many of the questions were sent.
    sent: usize,
    /// It has answered something since it was started.
    works: bool,
    /// How often it ended at once in a row, and when it may be started again.
    failures: u32,
    not_before: Duration,
    last_asked: Duration,
}

/// All helpers.
#[derive(Default)]
pub struct Helpers {
    users: BTreeMap<u32, OfUser>,
    dying: Vec<(u32, Dying)>,
    arrived: Vec<Arrived>,
    next: u64,
}

impl Helpers {
    /// Asks about a process of this user's. The answer comes by [`Self::take_arrived`].
    ///
    /// # Errors
    /// Why it cannot be asked now.
    pub fn ask(
        &mut self,
        user: u32,
        process: Process,
        question: Question,
        now: Duration,
    ) -> Result<u64, String> {
        let full = self.users.len() >= MOST_HELPERS && !self.users.contains_key(&user);
        let user = if full { OTHERS } else { user };
        if self.hanging(user) >= MOST_DYING {
            return Err(format!(
                "{MOST_DYING} helpers hang in the kernel because of this user's processes; end those processes, or unmount \
                 their file systems"
            ));
        }
        self.next += 1;
        let number = self.next;
        let of = self.users.entry(user).or_default();
        if of.helper.is_none() {
            of.start(now)?;
        }
        of.last_asked = now;
        of.watch.ask(number, process, question, now).map_err(|refused| refused.to_string())?;
        of.flush();
        Ok(number)
    }

    /// As [`Self::ask`], and waits for the answer this long. Only where root waits for it, or nobody
    /// does yet.
    pub fn ask_now(
        &mut self,
        user: u32,
        process: Process,
        question: Question,
        within: Duration,
    ) -> Result<Answer, String> {
        let until = monotonic() + within;
        if let Some(of) = self.users.get_mut(&user) {
            of.watch.forgive(process);
        }
        let number = self.ask(user, process, question, monotonic())?;
        loop {
            if let Some(at) = self.arrived.iter().position(|arrived| arrived.number == number) {
                return self.arrived.remove(at).answer;
            }
            if !self.wait_until(until) {
                let pid = process.pid();
                return Err(format!("process {pid} could not be examined within {within}"));
            }
        }
    }

    /// Waits for an answer. Returns false when it is too late.
    pub fn wait_until(&mut self, until: Duration) -> bool {
        let left = until - monotonic();
        if left <= Duration::ZERO {
            return false;
        }
        let mut fds: Vec<_> = self.fds().map(|(_, fd)| PollFd::readable(fd)).collect();
        let timeout = u64::try_from(left.ceil_nanos()).unwrap_or(0);
        if wait(&mut fds, Some(std::time::Duration::from_nanos(timeout))).is_err() {
            return false;
        }
        drop(fds);
        for user in self.users.keys().copied().collect::<Vec<_>>() {
            self.on_ready(user);
        }
        true
    }

    /// What the QEMU of this process is, as [`Self::ask_now`].
    pub fn examine_now(
        &mut self,
        user: u32,
        process: Process,
        within: Duration,
    ) -> Result<Qemu, String> {
        match self.ask_now(user, process, Question::Examine, within)? {
            // Whatever the helper says: it was asked about this process.
            Answer::Examined(Ok(qemu)) => Ok(Qemu { process, ..*qemu }),
            Answer::Examined(Err(NotServed::Problem(problem))) => Err(problem),
            _ => Err(format!("process {} is not a QEMU", process.pid())),
        }
    }

    /// The counter mapping of this QEMU, as [`Self::ask_now`].
    pub fn mapping_now(
        &mut self,
        user: u32,
        qemu: &Qemu,
        within: Duration,
    ) -> Option<CounterMapping> {
        match self.ask_now(user, qemu.process, Question::mapping(qemu), within) {
            Ok(Answer::Mapping(Ok(mapping))) => mapping.get(),
            _ => None,
        }
    }

    /// The answers since the last call.
    pub fn take_arrived(&mut self) -> Vec<Arrived> {
        std::mem::take(&mut self.arrived)
    }

    pub fn fds(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.users.iter().filter_map(|(user, of)| Some((*user, of.helper.as_ref()?.fd())))
    }

    pub fn poll_at(&self) -> Duration {
        if !self.arrived.is_empty() {
            return Duration::ZERO;
        }
        let due = |of: &OfUser| {
            of.helper.as_ref().map(|_| of.watch.deadline().unwrap_or(of.last_asked + IDLE))
        };
        self.users.values().filter_map(due).min().unwrap_or(Duration::MAX)
    }

    /// Takes what a user's helper has answered.
    pub fn on_ready(&mut self, user: u32) {
        let now = monotonic();
        let Some(of) = self.users.get_mut(&user) else { return };
        let Some(helper) = &of.helper else { return };
        for _ in 0..AT_ONCE {
            let packet = match helper.receive() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(_) => return self.failed(user, now),
            };
            // A helper may have been tricked into anything. One that answers what was not asked is
            // not believed.
            let answered = Answered::from_bytes(&packet).ok();
            let known = answered.filter(|of_it| of.watch.answered(of_it.number, now).is_some());
            let Some(Answered { number, answer }) = known else { return self.failed(user, now) };
            of.sent = of.sent.saturating_sub(1);
            (of.works, of.failures) = (true, 0);
            self.arrived.push(Arrived { number, answer: Ok(answer) });
        }
        of.flush();
    }

    /// Kills helpers that hang, and those without work.
    pub fn on_timer(&mut self, now: Duration) {
        self.dying.retain_mut(|(_, dying)| !dying.has_ended());
        let mut hang = Vec::new();
        for (user, of) in &mut self.users {
            let Some(helper) = &of.helper else { continue };
            if of.watch.deadline().is_none() {
                if now >= of.last_asked + IDLE {
                    self.dying.extend(of.helper.take().map(|helper| (*user, helper.kill())));
                }
            } else if of.watch.hangs(now, false) && of.watch.hangs(now, runs(helper.pid())) {
                hang.push(*user);
            }
        }
        for user in hang {
            self.failed(user, now);
        }
        // Otherwise users who had a VM once would take the places of those who have one.
        self.users
            .retain(|_, of| of.helper.is_some() || now < of.not_before || of.watch.remembers(now));
    }

    fn hanging(&self, user: u32) -> usize {
        self.dying.iter().filter(|(of, _)| *of == user).count()
    }

    /// A helper hangs or has ended. The others' questions are asked again.
    fn failed(&mut self, user: u32, now: Duration) {
        let Some(of) = self.users.get_mut(&user) else { return };
        let Some(helper) = of.helper.take() else { return };
        let mut killed = helper.kill();
        if !killed.has_ended() {
            self.dying.push((user, killed));
        }
        let hung = of.watch.blame(now);
        let blamed = hung.culprit.is_some();
        if let Some((process, number)) = hung.culprit {
            let text = format!(
                "process {} keeps its memory or its files from being read, or they are not those of a QEMU",
                process.pid()
            );
            self.arrived.push(Arrived { number, answer: Err(text) });
        }
        // One that hung because of a process is not to blame itself.
        if !of.works && !blamed {
            of.failures = (of.failures + 1).min(8);
            of.not_before = now + Duration::from_secs(1 << of.failures);
        }
        let again = if hung.again.is_empty() { Ok(()) } else { of.start(now) };
        let too_many = self.hanging(user) >= MOST_DYING;
        let Some(of) = self.users.get_mut(&user) else { return };
        if again.is_ok() && !too_many {
            of.flush();
            return;
        }
        let problem =
            again.err().unwrap_or_else(|| "helpers of this user hang in the kernel".to_owned());
        let lost = of.watch.give_up().into_iter();
        self.arrived.extend(
            lost.map(|asked| Arrived { number: asked.number, answer: Err(problem.clone()) }),
        );
        if too_many {
            self.dying.extend(of.helper.take().map(|helper| (user, helper.kill())));
        }
    }
}

impl OfUser {
    fn start(&mut self, now: Duration) -> Result<(), String> {
        if now < self.not_before {
            return Err("the helper that examines VMs ends at once; see the log".to_owned());
        }
        let helper = Helper::start(ARGUMENT);
        let helper = helper.map_err(|error| format!("no helper to examine VMs: {error}"))?;
        (self.helper, self.sent, self.works) = (Some(helper), 0, false);
        Ok(())
    }

    /// Sends what the helper has room for.
    fn flush(&mut self) {
        let Some(helper) = &self.helper else { return };
        for asked in self.watch.waiting().skip(self.sent) {
            // Without room the rest follows an answer; that it has ended is read from the socket.
            if helper.send(&asked.to_bytes()).is_err() {
                return;
            }
            self.sent += 1;
        }
    }
}

/// Whether a process computes, or waits for a processor.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
}

/// The life of a helper: confined, it answers until its parent ends.
///
/// # Errors
/// When it cannot be confined, or was not started by timevisord.
pub fn be_helper() -> anyhow::Result<()> {
    let parent = Parent::from_standard_input()?;
    confine::confine(ADDRESS_SPACE)?;
    let mut examiner = Examiner::default();
    while let Some(packet) = parent.receive()? {
        if let Some(answer) = examiner.answer(&packet) {
            parent.send(&answer)?;
        }
    }
    Ok(())
}
