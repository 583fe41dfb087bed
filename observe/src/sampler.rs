//! Takes a sample each second, and passes it on.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use timevisor_protocols::control::{Question, ReserveRow};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::daemon::Daemon;
use crate::history::{Columns, History};
use crate::page::Page;
use crate::sample::{Answers, Clock, Presence, Sample, now_ms};
use crate::view::View;

/// How often.
const INTERVAL: Duration = Duration::from_secs(1);
/// The use of a reservation is measured over so many samples.
const USE_OVER: usize = 10;

/// What the web server sees: the last sample, the history, and news for browsers.
#[derive(Clone)]
pub struct Observed {
    shared: Arc<Mutex<Shared>>,
    news: watch::Receiver<View>,
}

struct Shared {
    page: Page,
    last: Arc<Sample>,
    history: History,
    counts: Counts,
}

/// Nothing is left half done under this lock, so a panic elsewhere does not matter.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Questions since the start, and how many of them had no answer.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub asked: u64,
    pub unanswered: [u64; Question::OBSERVED.len()],
}

impl Counts {
    fn add(&mut self, answers: &Answers, silent: bool) {
        self.asked += 1;
        for question in Question::OBSERVED {
            let refused = answers.refused.iter().any(|(it, _)| *it == question);
            self.unanswered[question as usize] += u64::from(silent || refused);
        }
    }
}

impl Observed {
    pub fn sample(&self) -> Arc<Sample> {
        Arc::clone(&lock(&self.shared).last)
    }

    /// The page, now.
    pub fn clock(&self) -> Result<Clock, String> {
        lock(&self.shared).page.read().map(|reading| Clock::from(&reading))
    }

    pub fn history(&self, seconds: u64) -> Columns {
        lock(&self.shared).history.last(seconds, now_ms())
    }

    pub fn counts(&self) -> Counts {
        lock(&self.shared).counts.clone()
    }

    /// The dashboard's view, and each newer one.
    pub fn news(&self) -> watch::Receiver<View> {
        self.news.clone()
    }
}

/// Takes the samples.
pub struct Sampler {
    daemon: Daemon,
    shared: Arc<Mutex<Shared>>,
    news: watch::Sender<View>,
    /// Processor time of the reservations, the oldest sample first.
    ran: VecDeque<(Instant, Vec<Ran>)>,
}

/// A reservation's processor time.
struct Ran {
    vm: String,
    vcpu: u32,
    ran_ns: Option<u64>,
}

impl Sampler {
    pub fn start(run_directory: &Path) -> Self {
        let nothing = Sample {
            taken: Instant::now(),
            taken_ms: now_ms(),
            clock: Err("the page has not been read yet".to_owned()),
            presence: Presence {
                problem: Some("timevisord has not been asked yet".to_owned()),
                since_ms: now_ms(),
            },
            answers: Answers::default(),
            used: Vec::new(),
        };
        let (news, _) = watch::channel(View::of(&nothing));
        let shared = Shared {
            page: Page::in_directory(run_directory),
            last: Arc::new(nothing),
            history: History::default(),
            counts: Counts::default(),
        };
        Self {
            daemon: Daemon::in_directory(run_directory),
            shared: Arc::new(Mutex::new(shared)),
            news,
            ran: VecDeque::new(),
        }
    }

    pub fn observed(&self) -> Observed {
        Observed { shared: Arc::clone(&self.shared), news: self.news.subscribe() }
    }

    /// Takes samples for ever.
    pub async fn run(mut self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sample().await;
        }
    }

    async fn sample(&mut self) {
        let (answers, problem) = match self.daemon.ask().await {
            Ok(responses) => (Answers::from_responses(responses), None),
            Err(silence) => (Answers::default(), Some(silence.to_string())),
        };
        let (taken, taken_ms) = (Instant::now(), now_ms());
        let used = self.used(taken, answers.reservations.as_deref().unwrap_or_default());
        let mut shared = lock(&self.shared);
        shared.counts.add(&answers, problem.is_some());
        let before = &shared.last.presence;
        let presence = if before.problem.is_some() == problem.is_some() {
            Presence { problem, since_ms: before.since_ms }
        } else {
            match &problem {
                Some(problem) => warn!("{problem}"),
                None => info!("timevisord answers"),
            }
            // Its page may be another file.
            shared.page.reopen();
            Presence { problem, since_ms: taken_ms }
        };
        let clock = shared.page.read().map(|reading| Clock::from(&reading));
        shared.history.add(taken_ms, clock.as_ref().ok());
        let sample = Sample { taken, taken_ms, clock, presence, answers, used };
        self.news.send_replace(View::of(&sample));
        shared.last = Arc::new(sample);
    }

    /// What share of a processor each reservation has used in the last seconds.
    fn used(&mut self, now: Instant, rows: &[ReserveRow]) -> Vec<Option<f64>> {
        let ran = &mut self.ran;
        let used = rows.iter().map(|row| {
            // The oldest sample with this reservation, unless it was made again since.
            let mut known = ran.iter().filter_map(|(at, rows)| {
                let same = rows.iter().find(|it| it.vm == row.vm && it.vcpu == row.vcpu)?;
                Some((*at, same.ran_ns?))
            });
            let (at, before) = known.next()?;
            let ran_ns = row.ran_ns?.checked_sub(before)?;
            let span = now.duration_since(at).as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "for display")]
            let share = ran_ns as f64 / 1e9 / span;
            (span > 0.0).then_some(share)
        });
        let used: Vec<_> = used.collect();
        let of = |row: &ReserveRow| Ran { vm: row.vm.clone(), vcpu: row.vcpu, ran_ns: row.ran_ns };
        if ran.len() == USE_OVER {
            ran.pop_front();
        }
        ran.push_back((now, rows.iter().map(of).collect()));
        used
    }
}
