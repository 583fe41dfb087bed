//! Finds QEMU processes without a full read of /proc every time.
//!
//! Of a process whose user owns no VM here, nothing is read that the process controls: it could keep
//! that from ever being read. Of the others, what they could keep from being read is read with
//! patience that ends ([`Process::patiently`]).

use std::collections::HashMap;

use timevisor_guests::examine::NotServed;
use timevisor_guests::owner::{Owner, Reason, Rules};
use timevisor_guests::qemu::{Qemu, is_qemu, looks_like_qemu};
use timevisor_linux::process::{Process, ProcessError, Sighting};
use timevisor_time::Duration;

use crate::announce::PerUser;

/// How long a new process is re-examined: it may still call exec and become QEMU, and QEMU creates
/// its page some time after its start.
const SETTLING: Duration = Duration::from_secs(5);
/// How long a QEMU that cannot be served is re-examined at every look. Later that happens ever more
/// rarely: it may wait for somebody to connect to a socket of its.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest interval between two examinations.
const RAREST: Duration = Duration::from_secs(300);
/// How many processes that are not served are listed, and how many of one user's.
const MOST_LISTED: usize = 32;
const MOST_LISTED_OF_A_USER: usize = 4;

struct Seen {
    first: Duration,
    /// The process as it was seen. With another name it has called exec.
    sighting: Sighting,
    /// The same with its start time, once that was wanted.
    process: Option<Process>,
    /// When it was last examined.
    examined: Duration,
    user: u32,
    /// Why it cannot be served. Reported only after [`SETTLING`], because QEMU may still be
    /// starting.
    problem: Option<String>,
    /// The last problem that was reported.
    said: Option<String>,
    /// A helper examines it.
    examining: bool,
    /// It is not examined again.
    settled: bool,
    /// It waits for something that is not its own doing: another owner of its name, or the end of
    /// the VM that has it.
    waits: bool,
}

impl Seen {
    fn new(first: Duration, sighting: Sighting) -> Self {
        let (process, problem, said) = (None, None, None);
        let (user, examined) = (u32::MAX, first);
        let (examining, settled, waits) = (false, false, false);
        Self { first, sighting, process, examined, user, problem, said, examining, settled, waits }
    }

    /// Whether it is to be examined now.
    fn is_due(&self, now: Duration) -> bool {
        let age = now - self.first;
        if self.settled || self.examining || (self.problem.is_none() && age > SETTLING) {
            return false;
        }
        let interval = Duration::min((age - PATIENCE).half().half().half(), RAREST);
        now - self.examined >= interval
    }
}

/// The processes seen so far.
#[derive(Default)]
pub struct Discovery {
    /// By pid.
    seen: HashMap<u32, Seen>,
    told: PerUser,
    /// Those that wait are examined again.
    again: bool,
}

impl Discovery {
    /// Processes that are to be examined, each with its user: those that are new, or young enough to
    /// have changed, of users who may own VMs. Each is to be followed by [`Self::examined`].
    pub fn look(&mut self, now: Duration, rules: &Rules) -> Vec<(Process, u32)> {
        let Ok(sightings) = Process::all() else { return Vec::new() };
        let again = std::mem::take(&mut self.again);
        let mut seen = HashMap::with_capacity(sightings.len());
        let mut found = Vec::new();
        for sighting in sightings {
            let pid = sighting.pid;
            let known = self.seen.remove(&pid).filter(|entry| entry.sighting == sighting);
            let mut entry = known.unwrap_or_else(|| Seen::new(now, sighting));
            if again && entry.waits && !entry.settled {
                (entry.first, entry.examined) = (now, now);
            }
            self.report(now, &mut entry);
            if entry.is_due(now) {
                entry.examined = now;
                match may_be_theirs(rules, &mut entry) {
                    // Until the answer is there, what was found before is still true.
                    Ok(Some(process)) => {
                        entry.examining = true;
                        found.push((process, entry.user));
                    }
                    Ok(None) => (entry.problem, entry.waits) = (None, false),
                    Err(problem) => {
                        entry.problem = Some(problem);
                        entry.waits = true;
                    }
                }
            }
            seen.insert(pid, entry);
        }
        self.seen = seen;
        found
    }

    fn entry(&mut self, process: &Process) -> Option<&mut Seen> {
        self.seen.get_mut(&process.pid()).filter(|entry| entry.process == Some(*process))
    }

    /// Takes in what a helper has found, or why it has found nothing.
    pub fn examined(
        &mut self,
        process: &Process,
        found: Result<Result<Qemu, NotServed>, String>,
    ) -> Option<Qemu> {
        let mut name = String::new();
        if let Some(entry) = self.entry(process) {
            entry.examining = false;
            (entry.problem, entry.waits) = (None, false);
            name.clone_from(&entry.sighting.name);
        }
        match found {
            // Whatever the helper says: it was asked about this process.
            Ok(Ok(qemu)) => return Some(Qemu { process: *process, ..qemu }),
            Ok(Err(NotServed::Problem(problem))) => self.failed(process, problem),
            // Nobody knows what it is; most processes are no VMs.
            Err(problem) if looks_like_qemu(*process, &name) => self.failed(process, problem),
            Ok(Err(NotServed::NotQemu)) | Err(_) => {}
        }
        None
    }

    fn report(&mut self, now: Duration, entry: &mut Seen) {
        let Some(problem) = &entry.problem else { return };
        let due = now - entry.first > SETTLING || entry.settled;
        if !due || entry.said.as_ref() == Some(problem) {
            return;
        }
        // Anybody can start processes that look like a QEMU.
        if self.told.take(entry.user, now) {
            tracing::warn!("{problem}");
        } else {
            tracing::debug!("again: {problem}");
        }
        entry.said = Some(problem.clone());
    }

    /// Examines those again that wait: names may belong to others now, or be free.
    pub fn reconsider(&mut self) {
        self.again = true;
    }

    /// Records that a process cannot be served.
    pub fn failed(&mut self, process: &Process, problem: String) {
        if let Some(entry) = self.entry(process) {
            entry.problem = Some(problem);
        }
    }

    /// As [`Self::failed`], and the process may be served when its name is somebody else's, or free:
    /// see [`Self::reconsider`].
    pub fn must_wait(&mut self, process: &Process, problem: String) {
        self.failed(process, problem);
        if let Some(entry) = self.entry(process) {
            entry.waits = true;
        }
    }

    /// Forgets why a process was not served: it is now.
    pub fn is_served(&mut self, process: &Process) {
        if let Some(entry) = self.entry(process) {
            (entry.problem, entry.waits) = (None, false);
        }
    }

    /// As [`Self::failed`], and the process is not examined again: that costs too much.
    pub fn gave_up(&mut self, process: &Process, problem: String) {
        self.failed(process, problem);
        if let Some(entry) = self.entry(process) {
            entry.settled = true;
        }
    }

    /// Why processes that look like VMs are not served: all that was reported, but not many of one
    /// user's.
    pub fn not_served(&self) -> Vec<String> {
        let mut all: Vec<(&u32, &Seen, &String)> = self
            .seen
            .iter()
            .filter_map(|(pid, entry)| {
                let problem = entry.problem.as_ref()?;
                (entry.said.as_ref() == Some(problem)).then_some((pid, entry, problem))
            })
            .collect();
        all.sort_by_key(|(pid, entry, _)| (entry.user, **pid));
        let mut listed = Vec::new();
        for of_a_user in all.chunk_by(|a, b| a.1.user == b.1.user) {
            let room = MOST_LISTED - listed.len();
            let some = of_a_user.iter().take(MOST_LISTED_OF_A_USER.min(room));
            listed.extend(some.map(|(_, _, problem)| (*problem).clone()));
        }
        listed
    }
}

/// The process, if it may be a VM of a user who may own one. Of the others nothing is read that they
/// control.
///
/// # Errors
/// It looks like a QEMU, and its user owns no VM, or it keeps us waiting.
fn may_be_theirs(rules: &Rules, entry: &mut Seen) -> Result<Option<Process>, String> {
    let Sighting { pid, ref name, .. } = entry.sighting;
    let Ok(users) = entry.sighting.process().users() else { return Ok(None) };
    entry.user = users.real;
    let reason = match users.only() {
        Some(uid) if rules.may_own(uid) => {
            entry.process = match entry.process.map_or_else(|| Process::open_patiently(pid), Ok) {
                Ok(process) => Some(process),
                Err(ProcessError::Gone(_)) => None,
                Err(error) => return Err(error.to_string()),
            };
            return Ok(entry.process);
        }
        Some(uid) => Reason::Stranger(Owner::user(uid)),
        None => Reason::SeveralUsers,
    };
    if !is_qemu(name) {
        return Ok(None);
    }
    let next = reason.next_step("NAME");
    Err(format!("the QEMU of process {pid} is not served: {reason}; {next}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(pid: u32) -> Sighting {
        Sighting { pid, mark: 1, name: String::new() }
    }

    /// A user with very many processes hides nobody else's.
    #[test]
    fn each_user_has_a_few_lines_of_the_list() {
        let mut discovery = Discovery::default();
        let mut add = |pid: u32, user: u32| {
            let problem = Some(format!("{user}: {pid}"));
            let entry = Seen {
                user,
                said: problem.clone(),
                problem,
                ..Seen::new(Duration::ZERO, sighting(pid))
            };
            discovery.seen.insert(pid, entry);
        };
        (100..1100).for_each(|pid| add(pid, 4001));
        (2000..2002).for_each(|pid| add(pid, 0));
        (3000..3100).for_each(|pid| add(pid, 5000 + pid));
        let listed = discovery.not_served();
        assert_eq!(listed[..3], ["0: 2000", "0: 2001", "4001: 100"]);
        assert_eq!(listed.iter().filter(|line| line.starts_with("4001:")).count(), 4);
        assert_eq!(listed.len(), MOST_LISTED);
    }

    #[test]
    fn what_was_said_is_said_again_only_if_it_changes() {
        let mut discovery = Discovery::default();
        let mut entry = Seen::new(Duration::ZERO, sighting(1));
        let mut told = |seconds: i64, problem: &str, entry: &mut Seen| {
            entry.problem = Some(problem.to_owned());
            let before = entry.said.clone();
            discovery.report(Duration::from_secs(seconds), entry);
            entry.said != before
        };
        assert!(!told(1, "early", &mut entry), "it may still be starting");
        assert!(told(6, "refused", &mut entry) && !told(7, "refused", &mut entry));
        assert!(told(8, "refused by another rule", &mut entry));
    }

    /// A QEMU that waits for a client of its serial port makes its page after minutes, or hours.
    #[test]
    fn a_qemu_that_starts_slowly_is_looked_at_ever_more_rarely_but_always() {
        let mut entry = Seen::new(Duration::ZERO, sighting(1));
        let mut looks = Vec::new();
        for second in 0..7200 {
            let now = Duration::from_secs(second);
            if entry.is_due(now) {
                entry.examined = now;
                entry.problem = Some("no page yet".to_owned());
                looks.push(second);
            }
        }
        assert!((0..60).all(|second| looks.contains(&second)), "at every look at first");
        let longest = looks.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert_eq!(longest, Some(300));
        assert!(looks.len() < 150, "{}", looks.len());
        entry.problem = None;
        assert!(!entry.is_due(Duration::from_secs(10_000)), "it is no QEMU");
    }
}
