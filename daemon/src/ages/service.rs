//! The thread `ages`: starts the programs, answers clients, and compares the ages with
//! CLOCK_MONOTONIC_RAW once a second.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use timevisor_linux::counter::HostCounter;
use timevisor_linux::elapsed_source::{ElapsedSource, elapsed_source_beside};
use timevisor_linux::event_fd::EventFd;
use timevisor_linux::process::in_initial_pid_namespace;
use timevisor_protocols::control::ThreadAges;

use super::Told;

/// What the thread begins with.
pub struct Service {
    pub directory: PathBuf,
    pub counter: HostCounter,
    /// Why this counter was chosen.
    pub why: String,
    pub told: Told,
    pub stop: Arc<EventFd>,
}

impl Service {
    /// Runs until it is stopped.
    pub fn run(self) {
        let against = self.why.split_once("because ").map_or(&*self.why, |(_, reason)| reason);
        let against = against.to_owned();
        let source = match problem() {
            None => elapsed_source_beside(self.counter, &self.why),
            Some(problem) => {
                let raw = ElapsedSource::MonotonicRaw(
                    timevisor_linux::counter::HostMonotonicRaw::INITIAL,
                );
                (raw, format!("monotonic-raw, because {against}; and not bpf, because {problem}"))
            }
        };
        let (source, reason) = source;
        #[cfg(target_arch = "x86_64")]
        if let ElapsedSource::Bpf(programs) = source {
            return serving::run(&self, programs, &reason);
        }
        drop(source);
        // The shipped unit does not let timevisord load programs.
        let hint = if reason.contains("CAP_BPF") {
            "; under the shipped unit, add packaging/ages.conf"
        } else {
            ""
        };
        let reason = format!("{reason}{hint}");
        tracing::warn!("no ages of threads: {reason}");
        self.tell(|told| {
            told.state = "unavailable".to_owned();
            told.reason.clone_from(&reason);
        });
        #[cfg(target_arch = "x86_64")]
        serving::refuse(&self, &reason);
    }

    fn tell(&self, change: impl FnOnce(&mut ThreadAges)) {
        change(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// What forbids to serve others, whatever the kernel lets this process do.
fn problem() -> Option<String> {
    if !in_initial_pid_namespace() {
        return Some(
            "timevisord runs in a pid namespace of its own, and the programs see the host's; run it in the host's".to_owned(),
        );
    }
    // Programs can write maps that no process can, and everybody could load one.
    let open = std::fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled");
    open.is_ok_and(|open| open.trim() == "0").then(|| {
        "every user may load BPF programs here, which could write other threads' ages; set kernel.unprivileged_bpf_disabled to 1 or 2, and restart timevisord".to_owned()
    })
}

#[cfg(target_arch = "x86_64")]
mod serving {
    //! What needs the programs, which x86-64 alone has.

    use std::os::fd::AsFd as _;

    use timevisor_linux::affinity;
    use timevisor_linux::bpf::record::{FineAge, Service as State};
    use timevisor_linux::bpf::{BpfError, ElapsedBpf, OwnAge};
    use timevisor_linux::clock::{monotonic, monotonic_raw_nanos};
    use timevisor_linux::poll::{PollFd, wait};
    use timevisor_linux::seqpacket::PacketListener;
    use timevisor_protocols::ages::SOCKET;
    use timevisor_time::Duration;

    use super::super::clients::{Answers, Clients};
    use super::super::comparison::{Comparison, Parted, Sample};
    use super::Service;
    use crate::announce::Budget;
    use crate::grid;
    use crate::listening::Listening;

    /// How often ages are compared. Readers wait several times as long before they take the
    /// service for dead.
    const INTERVAL: Duration = Duration::from_secs(1);
    const _: () = assert!(timevisor_linux::bpf::reader::ATTENDED_WITHIN.as_secs() > 4);
    /// A sample is as good as this, or the best of a few.
    const NARROW_NS: u64 = 2_000;
    const SAMPLES: u32 = 8;

    /// Why serving ended.
    enum End {
        Stopped,
        /// The reason, and the next step.
        Failed(String),
    }

    /// Serves with these programs until they fail or it is stopped.
    pub fn run(service: &Service, programs: ElapsedBpf, reason: &str) {
        let Some(mut room) = Room::open(service) else { return };
        let end = serve(service, &mut room, &programs, reason).unwrap_or_else(|error| {
            End::Failed(format!(
                "ages of threads were counted by bpf and failed: {error}; restart timevisord"
            ))
        });
        let state = if matches!(end, End::Stopped) { State::Ended } else { State::Parted };
        if let Err(error) = programs.attend(state) {
            tracing::warn!("readers of ages are not told that it is over: {error}");
        }
        // Readers know before their connections end. The programs are detached.
        room.clients.close_all();
        drop(programs);
        let End::Failed(reason) = end else { return };
        tracing::error!("{reason}");
        service.tell(|told| {
            told.state = "stopped".to_owned();
            told.reason.clone_from(&reason);
            told.threads = 0;
        });
        refuse_in(service, &mut room, &reason);
    }

    /// Answers everybody with this reason until it is stopped.
    pub fn refuse(service: &Service, reason: &str) {
        if let Some(mut room) = Room::open(service) {
            refuse_in(service, &mut room, reason);
        }
    }

    fn refuse_in(service: &Service, room: &mut Room, reason: &str) {
        while !room.turn(service, None, &Answers::Refuse(reason)) {
            room.clients.on_timer(monotonic(), None);
        }
    }

    fn serve(
        service: &Service,
        room: &mut Room,
        programs: &ElapsedBpf,
        reason: &str,
    ) -> Result<End, BpfError> {
        let cores = affinity::allowed().unwrap_or_default();
        let own = programs.register_self(FineAge::default())?;
        let mut rotation = Rotation { own, cores, turn: 0, comparison: Comparison::default() };
        rotation.next();
        programs.attend(State::Serving)?;
        tracing::info!("ages of threads by {reason}");
        service.tell(|told| {
            told.state = "serving".to_owned();
            told.source = "bpf".to_owned();
            told.reason = reason.to_owned();
        });
        let mut due = grid::next(monotonic(), INTERVAL);
        loop {
            if room.turn(service, Some(due), &Answers::Serve(programs, reason)) {
                return Ok(End::Stopped);
            }
            let now = monotonic();
            if now >= due {
                if let Err(parted) = rotation.end() {
                    return Ok(End::Failed(words(parted)));
                }
                rotation.next();
                room.clients.on_timer(now, Some(programs));
                programs.attend(State::Serving)?;
                due = grid::next(monotonic(), INTERVAL);
            }
            told(service, programs, &room.clients, &rotation);
        }
    }

    fn words(Parted { ppm, over_ns }: Parted) -> String {
        format!(
            "ages of threads went {:.0} ppm {} than CLOCK_MONOTONIC_RAW over {:.1} s, more than {:.0}: a frequency changed that the kernel does not report; restart timevisord to count new ages, or read CLOCK_MONOTONIC_RAW",
            ppm.abs(),
            if ppm > 0.0 { "faster" } else { "slower" },
            over_ns as f64 / 1e9,
            super::super::LIMIT_PPM
        )
    }

    fn told(service: &Service, programs: &ElapsedBpf, clients: &Clients, rotation: &Rotation<'_>) {
        let (threads, moves, missed) = clients.count(programs);
        let cores = rotation.cores.iter().filter_map(|core| u32::try_from(*core).ok());
        let (mut changes, mut events) = (0, missed + rotation.own.task().map_or(0, |t| t.missed));
        for core in cores.filter_map(|core| programs.core(core)) {
            changes += core.changes;
            events += core.missed;
        }
        let seen = &rotation.comparison;
        service.tell(|told| {
            told.threads = threads;
            told.moves = moves;
            told.frequency_changes = changes;
            told.events_missed = events;
            told.apart_ppm = seen.since_start_ppm;
            told.last_apart_ppm = seen.last_ppm;
            told.worst_apart_ppm = seen.worst_ppm;
        });
    }

    /// This thread's own age, on one core after the other.
    struct Rotation<'a> {
        own: OwnAge<'a>,
        cores: Vec<usize>,
        turn: usize,
        comparison: Comparison,
    }

    impl Rotation<'_> {
        /// Goes to the next core, and begins a second there.
        fn next(&mut self) {
            self.turn = self.turn.wrapping_add(1);
            if let Some(core) = self.cores.get(self.turn % self.cores.len().max(1)) {
                // A core that is not ours any more is left out.
                let _ = affinity::pin(*core);
            }
            if let Some(sample) = self.sample() {
                self.comparison.begin(sample);
            }
        }

        fn end(&mut self) -> Result<(), Parted> {
            self.sample().map_or(Ok(()), |sample| self.comparison.end(sample))
        }

        /// `None` while this thread's own age is unknown.
        fn sample(&self) -> Option<Sample> {
            let mut best: Option<Sample> = None;
            for _ in 0..SAMPLES {
                let before = monotonic_raw_nanos();
                let age = self.own.read().ok()?;
                let width_ns = monotonic_raw_nanos().saturating_sub(before);
                if best.is_none_or(|best| width_ns < best.width_ns) {
                    let raw_ns = before + width_ns / 2;
                    best = Some(Sample { age_ns: age.nanos(), raw_ns, width_ns });
                }
                if width_ns < NARROW_NS {
                    break;
                }
            }
            best
        }
    }

    /// The socket and who has connected to it.
    struct Room {
        listening: Listening<PacketListener>,
        clients: Clients,
        lines: Budget,
    }

    impl Room {
        /// `None`, and a line in the log, if it cannot listen.
        fn open(service: &Service) -> Option<Self> {
            let path = service.directory.join(SOCKET);
            match Listening::at(&path, 0o666) {
                Ok(listening) => {
                    let (clients, lines) = (Clients::default(), Budget::hourly(4));
                    Some(Self { listening, clients, lines })
                }
                Err(error) => {
                    tracing::error!("ages of threads are not served: {error:#}");
                    service.tell(|told| {
                        told.state = "unavailable".to_owned();
                        told.reason = format!("{error:#}; restart timevisord");
                    });
                    None
                }
            }
        }

        /// Waits until `due`, or a client that is quiet needs to be closed, and serves who is
        /// ready. Returns true when the service is stopped.
        fn turn(
            &mut self,
            service: &Service,
            due: Option<Duration>,
            answers: &Answers<'_>,
        ) -> bool {
            let now = monotonic();
            self.listening.pause.is_over(now);
            let quiet = self.clients.fds().next().map(|_| now + INTERVAL);
            let pause = self.listening.pause.is_on().then(|| self.listening.pause.ends_at());
            let until = due.or(quiet).into_iter().chain(pause).min();
            let timeout = until.map(|until| {
                std::time::Duration::from_nanos(
                    u64::try_from((until - now).ceil_nanos()).unwrap_or(0),
                )
            });
            let mut fds = vec![PollFd::readable(service.stop.as_fd())];
            let listens = self.listening.fd();
            let first = 1 + usize::from(listens.is_some());
            fds.extend(listens.map(PollFd::readable));
            fds.extend(self.clients.fds().map(PollFd::readable));
            if let Err(error) = wait(&mut fds, timeout) {
                // Out of memory: a moment later there may be some.
                tracing::debug!("poll: {error}");
                std::thread::sleep(std::time::Duration::from_millis(100));
                return false;
            }
            let ready: Vec<bool> = fds
                .iter()
                .map(PollFd::ready)
                .map(|ready| ready.readable || ready.error || ready.hangup)
                .collect();
            drop(fds);
            if ready[0] {
                return true;
            }
            let programs = match answers {
                Answers::Serve(programs, _) => Some(*programs),
                Answers::Refuse(_) => None,
            };
            // From the last one on, because those that are closed make room.
            for index in (0..ready.len() - first).rev().filter(|index| ready[first + index]) {
                if !self.clients.serve(index, answers) {
                    self.clients.close(index, programs);
                }
                // The comparison comes first; who is ready now is so at the next turn.
                if due.is_some_and(|due| monotonic() >= due) {
                    return false;
                }
            }
            if first == 2 && ready[1] {
                let now = monotonic();
                if let Some(stream) = self.listening.accept(now)
                    && !self.clients.add(stream, now)
                    && self.lines.take(now)
                {
                    tracing::warn!("refused a client of ages: too many are connected");
                }
            }
            false
        }
    }
}
