//! CLOCK_REALTIME as a reference: read between two counter reads, with the kernel's own maximum
//! error.
//!
//! The bound is as good as the kernel's `maxerror`. The program that disciplines the clock (the
//! keeper) declares it (chronyd: root distance), and the kernel adds 500 us each second. There is
//! no exchange while the error is unknown: while the kernel reports an unsynchronized clock
//! (STA_UNSYNC), and while the keeper declares no error. A keeper that declares none
//! (systemd-timesyncd, phc2sys, openntpd) sets maxerror to 0 now and then, so that it is always a
//! multiple of 500 us. A keeper that declares its error sets other values; with chronyd and
//! ntpd-rs, a multiple of 500 us is coincidence. A maxerror that stands still proves nothing
//! either, because the kernel's count never does: somebody writes a constant all the time, or a
//! sandbox answers in the kernel's place. So there is no exchange before it was seen to move, for a
//! second or two after the start.
//!
//! `assumed_max_error` overrides all of this on the operator's responsibility.

use timevisor_estimate::Exchange;
use timevisor_linux::adjust::rivals;
use timevisor_linux::clock::{Bracket, KernelClock, bracket, kernel_clock, monotonic};
use timevisor_protocols::nts::date::UnixSeconds;
use timevisor_time::Duration;

use super::Surroundings;
use super::sampled::Source;
use super::tally::{PROBING, Refused};
use crate::config::DEFAULT_PATH;

/// adjtimex counts whole microseconds, clock_gettime whole nanoseconds.
const GRANULARITY: Duration = Duration::from_nanos(1001);

/// What the kernel adds to maxerror each second (MAXFREQ, kernel/time/ntp.c).
const GROWTH_US: i64 = 500;
/// Nobody knows a clock that adjtimex can set better than this: the unit of maxerror is 1 us.
const SMALLEST_US: i64 = 2;
/// The kernel's count moves every second; two readings may miss one step.
const STILL: Duration = Duration::from_millis(2500);
/// Until maxerror has moved for the first time, it is read this often.
const WATCHING: Duration = Duration::from_millis(500);
/// CLOCK_REALTIME is not merely ahead of a table's expiry if it is this far from the truth, s.
const FAR_OFF: u64 = 86_400;
/// Keepers that declare their error.
const DECLARING: [&str; 2] = ["chronyd", "ntp-daemon"];
/// How long the name of the keeper is cached: finding it reads all of /proc.
const REMEMBERED: Duration = Duration::from_secs(10);

pub struct System {
    assumed_max_error: Option<Duration>,
    keeper: Keeper,
    movement: Movement,
}

/// Whether maxerror moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Movement {
    /// Not read yet.
    Unknown,
    /// It has had this value since it was first read.
    Watched { value_us: i64, since: Duration },
    /// It has moved, at last at `since` to this value.
    Moved { value_us: i64, since: Duration },
}

impl Movement {
    fn read(self, now: Duration, read_us: i64) -> Self {
        match self {
            Self::Unknown => Self::Watched { value_us: read_us, since: now },
            Self::Watched { value_us, .. } | Self::Moved { value_us, .. }
                if value_us == read_us =>
            {
                self
            }
            Self::Watched { .. } | Self::Moved { .. } => {
                Self::Moved { value_us: read_us, since: now }
            }
        }
    }

    /// Refuses a value that does not move, or has not moved yet.
    fn judge(self, now: Duration) -> Result<(), Refused> {
        match self {
            Self::Watched { value_us, since } | Self::Moved { value_us, since }
                if now - since > STILL =>
            {
                let text = format!(
                    "the kernel's maxerror stands still at {value_us} us, so it says nothing about CLOCK_REALTIME; set \
                     assumed_max_error to what you know of it, or follow another reference"
                );
                Err(Refused::new(UNDECLARED, text))
            }
            Self::Moved { .. } => Ok(()),
            Self::Unknown | Self::Watched { .. } => {
                let text =
                    "watching whether the kernel's maxerror grows, which takes a second or two";
                Err(Refused::new(PROBING, text))
            }
        }
    }
}

/// The program that disciplines CLOCK_REALTIME, as last found.
#[derive(Default)]
struct Keeper(Option<(Duration, Option<String>)>);

impl Keeper {
    /// The cached answer.
    fn known(&self) -> Option<&str> {
        self.0.as_ref()?.1.as_deref()
    }

    fn name(&mut self) -> Option<String> {
        let now = monotonic();
        match &self.0 {
            Some((then, name)) if now - *then < REMEMBERED => name.clone(),
            _ => {
                let name = rivals::running();
                self.0 = Some((now, name.clone()));
                name
            }
        }
    }
}

impl System {
    pub fn new(assumed_max_error: Option<Duration>) -> Self {
        let keeper = Keeper::default();
        Self { assumed_max_error, keeper, movement: Movement::Unknown }
    }

    fn max_error(&mut self) -> Result<Duration, Refused> {
        if let Some(error) = self.assumed_max_error {
            return Ok(error);
        }
        let kernel = kernel_clock().map_err(|e| {
            Refused::new("adjtimex", format!("the kernel's clock state cannot be read: {e}"))
        })?;
        let error = judge(&kernel, || self.keeper.name())?;
        let now = monotonic();
        self.movement = self.movement.read(now, kernel.maxerror_us);
        self.movement.judge(now).map(|()| error)
    }
}

impl Source for System {
    fn kind(&self) -> &'static str {
        "system"
    }

    fn detail(&self) -> String {
        match self.assumed_max_error {
            Some(error) => format!("CLOCK_REALTIME, assumed right to {error}"),
            None => "CLOCK_REALTIME with the kernel's maxerror".to_owned(),
        }
    }

    fn suggestion(&self, problem: &str) -> Option<String> {
        match problem {
            UNSYNCHRONIZED => Some(suggestion(None)),
            UNDECLARED => Some(suggestion(self.keeper.known())),
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        matches!(self.movement, Movement::Watched { .. }).then_some(WATCHING)
    }

    fn sample(&mut self, around: &Surroundings<'_>) -> Result<Exchange, Refused> {
        let before = self.max_error()?;
        let reading = bracket(around.counter, 4);
        let after = self.max_error()?;
        let time = around
            .leap
            .to_tai(reading.realtime)
            .map_err(|e| off_the_table(&reading, around, &e))?;
        let error = before.max(after) + GRANULARITY;
        Ok(Exchange::of_reading(reading.before, time, reading.after, error))
    }
}

/// The leap second table has no answer. It may be good, and CLOCK_REALTIME a century off.
fn off_the_table(reading: &Bracket, around: &Surroundings<'_>, problem: &str) -> Refused {
    let date = |secs: i64| UnixSeconds(u64::try_from(secs).unwrap_or(0));
    let said = date(reading.realtime.secs());
    let known = around.known.map(|known| known.middle().secs());
    match known.filter(|known| known.abs_diff(reading.realtime.secs()) > FAR_OFF) {
        Some(known) => Refused::new(
            "falseticker",
            format!(
                "CLOCK_REALTIME says {said}, and the other references say {}; set CLOCK_REALTIME, or remove this \
                 reference",
                date(known)
            ),
        ),
        None => Refused::new("leap-table", format!("CLOCK_REALTIME says {said}: {problem}")),
    }
}

const UNSYNCHRONIZED: &str = "unsynchronized";
const UNDECLARED: &str = "undeclared";

fn judge(
    kernel: &KernelClock,
    keeper: impl FnOnce() -> Option<String>,
) -> Result<Duration, Refused> {
    if kernel.unsynchronized {
        let who = match keeper() {
            Some(name) => format!("{name} has not synchronized CLOCK_REALTIME"),
            None => "nobody keeps CLOCK_REALTIME".to_owned(),
        };
        let text =
            format!("{who} (the kernel says STA_UNSYNC); run chronyd, or follow NTP servers");
        return Err(Refused::new(UNSYNCHRONIZED, text));
    }
    let error_us = kernel.maxerror_us.max(0);
    if error_us % GROWTH_US < SMALLEST_US {
        let keeper = keeper();
        let declares = keeper.as_deref().is_some_and(|name| DECLARING.contains(&name));
        if error_us < SMALLEST_US || !declares {
            let who = keeper.as_deref().unwrap_or("an unknown program");
            let text = format!(
                "{who} keeps CLOCK_REALTIME and declares no error (the kernel's maxerror counts from 0); set \
                 assumed_max_error to what you know of it, or follow another reference"
            );
            return Err(Refused::new(UNDECLARED, text));
        }
    }
    Ok(Duration::from_micros(error_us))
}

/// A reference to follow instead of CLOCK_REALTIME under this keeper.
fn suggestion(keeper: Option<&str>) -> String {
    let lines = match keeper {
        Some("phc2sys" | "timemaster") => "type = \"ptp\"\ndevice = \"/dev/ptp0\"",
        _ => "type = \"ntp\"\npool = \"pool.ntp.org\"",
    };
    format!(
        "# In {DEFAULT_PATH}, instead of the system reference; then restart timevisord:\n\
         [[reference]]\n{lines}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn kernel(unsynchronized: bool, maxerror_us: i64) -> KernelClock {
        KernelClock {
            status: if unsynchronized { 0x40 } else { 0 },
            maxerror_us,
            esterror_us: 0,
            tai_offset: 0,
            unsynchronized,
            nano: true,
            frequency_scaled_ppm: 0,
        }
    }

    fn judged(kernel: &KernelClock, keeper: Option<&str>) -> Result<Duration, Refused> {
        judge(kernel, || keeper.map(str::to_owned))
    }

    #[test]
    fn an_undisciplined_kernel_clock_is_no_reference() {
        let refused = judged(&kernel(true, 16_000_000), None).unwrap_err();
        assert_eq!(refused.word, "unsynchronized");
        assert!(refused.text.starts_with("nobody keeps CLOCK_REALTIME"), "{}", refused.text);
        let refused = judged(&kernel(true, 16_000_000), Some("chronyd")).unwrap_err();
        assert!(refused.text.starts_with("chronyd has not synchronized"), "{}", refused.text);
        assert_eq!(judged(&kernel(false, 1537), None), Ok(Duration::from_micros(1537)));
    }

    #[test]
    fn a_keeper_that_declares_no_error_is_no_reference() {
        // systemd-timesyncd and phc2sys set maxerror to 0; the kernel adds 500 us each second.
        for maxerror in [0, 500, 1000, 32_000, 1_024_000] {
            for keeper in [Some("systemd-timesyncd"), Some("phc2sys"), Some("ntpd"), None] {
                let refused = judged(&kernel(false, maxerror), keeper).unwrap_err();
                assert_eq!(refused.word, "undeclared", "{keeper:?} {maxerror}");
                assert!(
                    refused.text.starts_with(keeper.unwrap_or("an unknown")),
                    "{}",
                    refused.text
                );
                assert!(refused.text.contains("assumed_max_error"), "{}", refused.text);
            }
        }
        // A declared error may be a multiple of 500 us by coincidence, but not 0.
        let declared = judged(&kernel(false, 1500), Some("chronyd"));
        assert_eq!(declared, Ok(Duration::from_micros(1500)));
        assert_eq!(judged(&kernel(false, 0), Some("chronyd")).unwrap_err().word, "undeclared");
        assert_eq!(judged(&kernel(false, 137), Some("ntpd")), Ok(Duration::from_micros(137)));
    }

    #[test]
    fn an_implausibly_small_error_is_none() {
        for maxerror in [1, 501, 32_001] {
            let refused = judged(&kernel(false, maxerror), Some("phc2sys")).unwrap_err();
            assert_eq!(refused.word, "undeclared", "{maxerror}");
        }
        assert_eq!(judged(&kernel(false, 1), Some("chronyd")).unwrap_err().word, "undeclared");
        assert!(judged(&kernel(false, 501), Some("chronyd")).is_ok());
    }

    #[test]
    fn a_maxerror_that_does_not_move_proves_nothing() {
        let at = |tenths: i64| Duration::from_millis(100 * tenths);
        let mut movement = Movement::Unknown;
        let mut judged = |now, value| {
            movement = movement.read(now, value);
            movement.judge(now).map_err(|refused| refused.word)
        };
        assert_eq!(judged(at(0), 700), Err("probing"));
        assert_eq!(judged(at(5), 700), Err("probing"));
        assert_eq!(judged(at(10), 1200), Ok(()), "the kernel has counted");
        assert_eq!(judged(at(20), 1700), Ok(()));
        assert_eq!(judged(at(35), 1700), Ok(()), "a step may be missed");
        assert_eq!(judged(at(46), 1700), Err("undeclared"), "somebody writes a constant");
        assert_eq!(judged(at(50), 300), Ok(()), "a keeper declares");
        let mut movement = Movement::Unknown;
        for tenths in 0..26 {
            movement = movement.read(at(tenths), 700);
        }
        assert_eq!(movement.judge(at(26)).unwrap_err().word, "undeclared");
        // Polled rarely, it has moved at every reading.
        let mut movement = Movement::Unknown.read(at(0), 700).read(at(10), 1200);
        for minute in 1..9 {
            movement = movement.read(at(600 * minute), 1200 + 30_000 * minute);
            assert_eq!(movement.judge(at(600 * minute)), Ok(()));
        }
    }

    #[test]
    fn the_lines_to_paste_are_a_configuration() {
        for keeper in [None, Some("systemd-timesyncd"), Some("phc2sys")] {
            let config = Config::parse(&suggestion(keeper)).unwrap();
            let kind = if keeper == Some("phc2sys") { "ptp" } else { "pool.ntp.org#1" };
            assert!(config.references[0].name().starts_with(kind), "{keeper:?}");
        }
        let unsynchronized = System::new(None);
        assert!(unsynchronized.suggestion(UNSYNCHRONIZED).unwrap().contains("pool.ntp.org"));
        assert_eq!(unsynchronized.suggestion("adjtimex"), None);
    }
}
