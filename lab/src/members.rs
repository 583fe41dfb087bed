//! A group on a host and in its guests: this program is a member on the host and proposes again and again, members in
//! guests fire whatever is proposed and say so. Whoever fires says what its page said then.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor::group::{
    Accept, BusAddress, Group, GroupError, Inbox, JoinOptions, Proposed, Secret,
};
use timevisor::{ChannelAddress, Options, Requirement, Timeline};

use crate::bus::Bus;
use crate::guest::Guest;
use crate::host::Host;
use crate::interrupt;
use crate::programs;

/// The group of the members in guests.
pub const GROUP: &str = "cell7";
/// Emulated guests are slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// How late a member may be that fires.
const LATE_AT_MOST: Duration = Duration::from_millis(400);
/// What the host's member needs. Hosts of the lab know their time better.
const WITHIN: Duration = Duration::from_millis(100);
/// What two emulated guests on two processors manage.
pub const TWO_GUESTS: Pace =
    Pace { at_once: 8, lead: Duration::from_millis(800), apart: Duration::from_millis(120) };

/// How fast is proposed.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// So many proposals are under way at once.
    pub at_once: usize,
    /// From a proposal to its time. Half of that is for the votes.
    pub lead: Duration,
    /// From one to the next at least. Without that, proposals that a busy guest refuses would be followed
    /// by others at once, and keep it busy.
    pub apart: Duration,
}

/// What a member said of one fire, ns.
#[derive(Clone, Copy, Debug)]
pub struct Fire {
    /// When it should have been: the proposal's time.
    pub at: i64,
    /// What its page said then.
    pub earliest: i64,
    /// As `earliest`.
    pub latest: i64,
    /// How late it said it was.
    pub late: i64,
}

/// Builds the member in C (lab/src/tests/groups/member.c), which runs in a guest by itself.
///
/// # Errors
/// When the C library or the program does not build.
pub fn build(folder: &Path) -> anyhow::Result<PathBuf> {
    let to = folder.join("member-c");
    let source = programs::workspace()?.join("lab/src/tests/groups/member.c");
    programs::build_c(&source, &folder.join("prefix"), &to)?;
    Ok(to)
}

/// Starts a member in a guest that has the bus's authority in /bin, and waits until it has joined.
///
/// # Errors
/// When it does not join.
pub fn start(guest: &mut Guest, program: &str, name: &str, bus: &Bus) -> anyhow::Result<()> {
    let key = fs::read_to_string(&bus.key)?;
    let (at, key) = (&bus.remote, key.trim());
    guest.sh(&format!("{program} {name} {at} /bin/authority.pem {key} >/run/{name}.log 2>&1 &"))?;
    let mut said = String::new();
    let joins = interrupt::poll_until(PATIENCE, || {
        said = guest.sh(&format!("cat /run/{name}.log"))?;
        Ok(said.starts_with("joined").then_some(()))
    })?;
    joins.with_context(|| format!("{name} does not join: {said:?}"))
}

/// What a member in a guest has said of its fires; its words go to `log`.
///
/// # Errors
/// When the guest does not answer.
pub fn fires(guest: &mut Guest, name: &str, log: &Path) -> anyhow::Result<Vec<Fire>> {
    let said = guest.sh_within(&format!("cat /run/{name}.log"), PATIENCE)?;
    fs::write(log, &said)?;
    Ok(said.lines().filter_map(parse).collect())
}

/// The member on the host.
#[derive(Debug)]
pub struct Proposer {
    group: Group,
    timeline: Timeline,
}

/// What came of some proposals.
#[derive(Debug)]
pub struct Run {
    /// How many there were.
    pub proposals: usize,
    /// How many fired with all members.
    pub everywhere: usize,
    /// From a proposal to its decision, ms, in the median.
    pub decided_ms: f64,
    /// What the host's member did.
    pub fires: Vec<Fire>,
    /// The first proposal's time, ns.
    pub first_at: i64,
}

impl Proposer {
    /// Joins under the name host.
    ///
    /// # Errors
    /// When it is not let in.
    pub fn join(host: &Host, bus: &Bus) -> anyhow::Result<Self> {
        Self::join_at(host, "tai", bus.socket.clone(), &bus.key)
    }

    /// The same on any timeline, with any bus of this machine.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_at(host: &Host, timeline: &str, bus: PathBuf, key: &Path) -> anyhow::Result<Self> {
        let channel = ChannelAddress::Unix(host.directory().join("timelines"));
        let page = host.directory().join("clock");
        let client = Options::new().page(page).channel(channel).name("lab").connect()?;
        let options = JoinOptions {
            timeline: timeline.to_owned(),
            // A cluster's own timeline is on the page while somebody asks for it.
            requirement: Some(Requirement::within(WITHIN)),
            bus: Some(BusAddress::from(bus)),
            key: Some(Secret::parse(&fs::read(key)?)?),
            ..JoinOptions::default()
        };
        let group = client.join_with(GROUP, "host", &options)?;
        group.accept(Accept::All);
        let timeline = client.timeline(timeline)?;
        Ok(Self { group, timeline })
    }

    /// Waits until the group has so many members.
    ///
    /// # Errors
    /// When it does not get them.
    pub fn wait_for(&self, members: usize) -> anyhow::Result<()> {
        Ok(self.group.wait_for(members, PATIENCE)?)
    }

    /// Leaves, upon which members in guests end.
    pub fn leave(self) {
        self.group.leave();
    }

    /// Proposes so many times, as two guests manage it. The payload is the time.
    ///
    /// # Errors
    /// When a proposal is refused or fires are dropped.
    pub fn propose(&self, count: usize) -> anyhow::Result<Run> {
        self.propose_at(count, &TWO_GUESTS)
    }

    /// The same at another pace.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub fn propose_at(&self, count: usize, pace: &Pace) -> anyhow::Result<Run> {
        let lead_ns = i64::try_from(pace.lead.as_nanos())?;
        let (group, timeline) = (&self.group, &self.timeline);
        let inbox = group.proposals();
        let (mut open, mut decided) = (Vec::new(), Vec::new());
        let mut run = Run {
            proposals: 0,
            everywhere: 0,
            decided_ms: 0.0,
            fires: Vec::new(),
            first_at: i64::MAX,
        };
        // A member that has gone leaves some open for ever.
        let each = pace.lead + Duration::from_secs(2);
        let end = Instant::now() + PATIENCE + each * u32::try_from(count)?;
        let mut next = Instant::now();
        while run.proposals < count || !open.is_empty() {
            interrupt::check()?;
            ensure!(Instant::now() < end, "{} proposals have no outcome", open.len());
            if run.proposals < count && open.len() < pace.at_once && Instant::now() >= next {
                next = Instant::now() + pace.apart;
                let at = timeline.now()?.latest_ns() + lead_ns;
                run.first_at = run.first_at.min(at);
                let begun = Instant::now();
                let pending = group.propose_with(at, at.to_string().as_bytes(), None, LATE_AT_MOST);
                // The next reading tells why the clock did not suffice.
                open.push(pending.with_context(|| {
                    format!("proposal {}, then {:?}", run.proposals, timeline.now())
                })?);
                run.proposals += 1;
                if run.proposals.is_multiple_of(2 * pace.at_once)
                    && let Some(pending) = open.last()
                {
                    // Some of them are waited for, which says how long that takes.
                    // A member that answers too late refuses: on a busy machine that happens.
                    if pending.decided(PATIENCE)? {
                        decided.push(begun.elapsed().as_secs_f64() * 1e3);
                    }
                }
            }
            take(&inbox, &mut run)?;
            let mut still = Vec::new();
            for pending in open {
                match pending.wait(Duration::from_millis(5)) {
                    Ok(outcome) if outcome.unknown.is_empty() => {
                        run.everywhere += usize::from(outcome.agreed() == Some(true));
                    }
                    // An outcome with unknown members may be corrected.
                    Ok(_) | Err(GroupError::TimedOut) => still.push(pending),
                    Err(error) => return Err(error.into()),
                }
            }
            open = still;
        }
        interrupt::sleep(Duration::from_secs(1))?;
        take(&inbox, &mut run)?;
        decided.sort_by(f64::total_cmp);
        run.decided_ms = decided.get(decided.len() / 2).copied().unwrap_or(f64::NAN);
        Ok(run)
    }
}

fn take(inbox: &Inbox<Proposed>, run: &mut Run) -> anyhow::Result<()> {
    while let Some(proposed) = inbox.try_next() {
        if let Proposed::Fire { interval, late_ns, payload, .. } = proposed {
            let at = String::from_utf8(payload)?.parse()?;
            let (earliest, latest) =
                (interval.earliest().floor_nanos(), interval.latest().ceil_nanos());
            run.fires.push(Fire { at, earliest, latest, late: late_ns });
        }
    }
    ensure!(inbox.dropped() == 0, "fires were dropped");
    Ok(())
}

fn parse(line: &str) -> Option<Fire> {
    let mut words = line.strip_prefix("fire ")?.split(' ').map(|word| word.parse().ok());
    let mut next = || words.next().flatten();
    Some(Fire { at: next()?, earliest: next()?, latest: next()?, late: next()? })
}

/// Judges fires: nobody may fire surely before the time, nor later than it says; then no two of them fire farther apart
/// than their bounds and what they say of their lateness.
///
/// # Errors
/// When a member fires twice, or less often than outcomes say.
pub fn judge(told: &[Vec<Fire>], run: &Run) -> anyhow::Result<Judged> {
    let (mut count, mut widest, mut latest_of_all) = (0, 0, Vec::new());
    let mut outside = Vec::new();
    for fires in told {
        for fire in fires {
            let half = (fire.latest - fire.earliest) / 2;
            outside.extend((!fire.is_sound()).then_some(*fire));
            (count, widest) = (count + 1, widest.max(half));
            latest_of_all.push(fire.late);
        }
    }
    // Each fires once for each proposal, if at all.
    for fires in told {
        let mut at: Vec<i64> = fires.iter().map(|fire| fire.at).collect();
        at.sort_unstable();
        ensure!(at.windows(2).all(|pair| pair[0] != pair[1]), "a member fired twice");
        ensure!(
            at.len() >= run.everywhere,
            "outcomes say {} fires, a member {}",
            run.everywhere,
            at.len()
        );
    }
    latest_of_all.sort_unstable();
    let late =
        |share: usize| latest_of_all.get(latest_of_all.len() * share / 100).copied().unwrap_or(0);
    Ok(Judged {
        fires: count,
        outside: outside.len(),
        first_outside: outside.first().copied(),
        proposals: run.proposals,
        everywhere: run.everywhere,
        widest_us: widest / 1000,
        late_us: [late(50) / 1000, late(99) / 1000],
    })
}

impl Fire {
    /// Not surely before its time, and within its bounds and its lateness after it.
    fn is_sound(&self) -> bool {
        let half = (self.latest - self.earliest) / 2;
        let middle = self.earliest + half;
        self.late >= 0
            && self.latest >= self.at
            && self.earliest <= self.at + self.late
            && middle - self.at <= self.late + half + 1
            && self.at - middle <= half + 1
    }
}

/// Fires, against the sum of their bounds and what members reported of their lateness.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// How many.
    pub fires: usize,
    /// How many were outside.
    pub outside: usize,
    /// One of those.
    pub first_outside: Option<Fire>,
    /// How many proposals there were.
    pub proposals: usize,
    /// How many of them fired with all members.
    pub everywhere: usize,
    /// The widest half of an interval, us.
    pub widest_us: i64,
    /// Reported lateness, us: median, p99.
    pub late_us: [i64; 2],
}

impl Judged {
    /// # Errors
    /// When one was outside, or half of the proposals did not fire everywhere.
    pub fn sound(self) -> anyhow::Result<Self> {
        let Self { outside, first_outside, proposals, everywhere, .. } = self;
        ensure!(outside == 0, "{outside} fired outside of bounds and lateness: {first_outside:?}");
        // Who answers too late refuses, so this says how busy the machine is.
        interrupt::in_time(everywhere * 2 > proposals, || {
            format!("only {everywhere} of {proposals} fired")
        })?;
        Ok(self)
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fires, outside, widest_us, late_us: [median, p99], .. } = self;
        write!(
            f,
            "{fires} fires, {outside} outside of the sum of bounds (+-{widest_us} us at most) and reported lateness (median {median} us, p99 {p99} us)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fire_outside_of_its_bounds_and_its_lateness_is_found() {
        let fires = |earliest, latest, late| Fire { at: 1_000, earliest, latest, late }.is_sound();
        assert!(fires(990, 1_010, 0) && fires(1_040, 1_060, 50));
        assert!(!fires(970, 990, 0), "surely too early");
        assert!(!fires(1_040, 1_060, 30), "later than it says");
        assert!(!fires(990, 1_010, -1));
    }
}
