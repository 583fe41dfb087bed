//! What a host takes from reservations: from options, from a file that `reserve measure --write` has written,
//! or defaults.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use timevisor_protocols::control::HostOverheads;
use timevisor_schedule::speed::Pace;
use timevisor_schedule::{Overheads, Speed};

use super::{ns, span};

/// Read where no file is named, if it is there.
pub const FILE: &str = "/etc/timevisor/overheads.toml";

#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// The host's overheads, as `reserve measure --write` has written them [default:
    /// /etc/timevisor/overheads.toml if it is there]
    #[arg(long, value_name = "FILE")]
    overheads: Option<PathBuf>,
    /// The timer tick by which the host enforces budgets (1 / CONFIG_HZ) [default: 4ms]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    tick: Option<Duration>,
    /// How late each of the host's timers may be [default: 500us]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    latency: Option<Duration>,
    /// The share of time that may go to the host's interrupts [default: 1%]
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    interference: Option<Share>,
    /// How much more of it may come at once [default: 500us]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    burst: Option<Duration>,
}

/// Parts per million, as `1%`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Share(pub u32);

fn share(text: &str) -> Result<Share> {
    let next = || anyhow!("{text:?} is no share below 100%, as in 1% or 0.25%");
    let number = text.strip_suffix('%').ok_or_else(next)?.trim_end();
    let (whole, places) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| text.len() < 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    ensure!(digits(whole) && digits(places), next());
    let whole: u32 = whole.parse().map_err(|_| next())?;
    let places: u32 = format!("{places:0<4}").parse().map_err(|_| next())?;
    let ppm = whole * 10_000 + places;
    ensure!(ppm < 1_000_000, next());
    Ok(Share(ppm))
}

impl TryFrom<String> for Share {
    type Error = anyhow::Error;
    fn try_from(text: String) -> Result<Self> {
        share(&text)
    }
}

impl From<Share> for String {
    fn from(share: Share) -> Self {
        format!("{}%", f64::from(share.0) / 1e4)
    }
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(with = "humantime_serde")]
    tick: Duration,
    #[serde(with = "humantime_serde")]
    latency: Duration,
    interference: Share,
    #[serde(with = "humantime_serde")]
    burst: Duration,
    /// Files of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    speed: Option<SpeedTable>,
}

/// Turns of the loops of `reserve measure` in a second; of the `slow` ones in the slowest hundredth.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedTable {
    compute: u64,
    compute_slow: u64,
    memory: u64,
    memory_slow: u64,
}

impl From<Speed> for SpeedTable {
    fn from(Speed { compute, memory }: Speed) -> Self {
        Self {
            compute: compute.typical,
            compute_slow: compute.slow,
            memory: memory.typical,
            memory_slow: memory.slow,
        }
    }
}

impl TryFrom<SpeedTable> for Speed {
    type Error = anyhow::Error;
    fn try_from(table: SpeedTable) -> Result<Self> {
        let SpeedTable { compute, compute_slow, memory, memory_slow } = table;
        let all = [compute, compute_slow, memory, memory_slow];
        ensure!(all.iter().all(|pace| *pace > 0), "[speed]: no host does 0 turns in a second");
        Ok(Self {
            compute: Pace { typical: compute, slow: compute_slow },
            memory: Pace { typical: memory, slow: memory_slow },
        })
    }
}

/// Overheads, and where they are from.
#[derive(Clone, Debug)]
pub struct Known {
    pub overheads: Overheads,
    /// How fast that host works; `None` if it was not measured.
    pub speed: Option<Speed>,
    pub from: String,
}

impl Known {
    /// As timevisord is told them.
    pub fn told(&self) -> HostOverheads {
        let Overheads { tick, latency, interference_ppm, burst } = self.overheads;
        HostOverheads { tick_ns: tick, latency_ns: latency, interference_ppm, burst_ns: burst }
    }
}

impl Options {
    /// Whether anything is said.
    pub fn is_given(&self) -> bool {
        let spans = [self.tick, self.latency, self.burst];
        self.overheads.is_some() || self.interference.is_some() || spans.iter().any(Option::is_some)
    }

    pub fn known(&self) -> Result<Known> {
        let default = Path::new(FILE);
        let path = match &self.overheads {
            Some(path) => Some(path.as_path()),
            None if default.exists() => Some(default),
            None => None,
        };
        let mut known = match path {
            Some(path) => measured(path)?,
            None => unmeasured(),
        };
        let all = &mut known.overheads;
        let mut options = Vec::new();
        for (name, option, to) in [
            ("--tick", self.tick, &mut all.tick),
            ("--latency", self.latency, &mut all.latency),
            ("--burst", self.burst, &mut all.burst),
        ] {
            if let Some(given) = option {
                *to = ns(given);
                options.push(name);
            }
        }
        if let Some(Share(ppm)) = self.interference {
            all.interference_ppm = ppm;
            options.push("--interference");
        }
        if !options.is_empty() {
            // Writing to a String does not fail.
            let _ = write!(known.from, "; {}", options.join(", "));
        }
        Ok(known)
    }
}

/// What is assumed of a host that was not measured.
pub fn unmeasured() -> Known {
    Known {
        overheads: Overheads::UNMEASURED,
        speed: None,
        from: "defaults; `timevisor reserve measure`".to_owned(),
    }
}

/// What a file says.
pub fn measured(path: &Path) -> Result<Known> {
    let (overheads, speed) = read(path)?;
    Ok(Known { overheads, speed, from: path.display().to_string() })
}

/// The speed of this host, if it is known.
pub fn own_speed() -> Result<Option<Speed>> {
    let path = Path::new(FILE);
    Ok(if path.exists() { measured(path)?.speed } else { None })
}

fn read(path: &Path) -> Result<(Overheads, Option<Speed>)> {
    let text = std::fs::read_to_string(path).with_context(|| {
        format!("cannot read {}; `timevisor reserve measure --write {0}`", path.display())
    })?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<(Overheads, Option<Speed>)> {
    let File { tick, latency, interference, burst, speed } = toml::from_str(text)?;
    let overheads = Overheads {
        tick: ns(tick),
        latency: ns(latency),
        interference_ppm: interference.0,
        burst: ns(burst),
    };
    Ok((overheads, speed.map(TryInto::try_into).transpose()?))
}

/// The file's text.
pub fn text(of: &Overheads, speed: Option<&Speed>) -> Result<String> {
    Ok(toml::to_string(&File {
        tick: Duration::from_nanos(of.tick),
        latency: Duration::from_nanos(of.latency),
        interference: Share(of.interference_ppm),
        burst: Duration::from_nanos(of.burst),
        speed: speed.copied().map(Into::into),
    })?)
}

/// For programs.
pub fn json(of: &Known) -> Value {
    let Overheads { tick, latency, interference_ppm, burst } = of.overheads;
    json!({
        "tick_ns": tick, "latency_ns": latency, "interference_ppm": interference_ppm,
        "burst_ns": burst, "from": of.from,
    })
}

/// For people.
pub fn words(of: &Overheads) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    format!(
        "tick {} ms, timers late by {} ms, interrupts {} and {} ms at once",
        ms(of.tick),
        ms(of.latency),
        String::from(Share(of.interference_ppm)),
        ms(of.burst)
    )
}

/// A speed, for people.
pub fn speed_words(of: &Speed) -> String {
    let million = |pace: u64| pace as f64 / 1e6;
    let words = |name: &str, pace: &Pace| {
        format!(
            "{name} {:.1} million turns/s, {:.1} when slow",
            million(pace.typical),
            million(pace.slow)
        )
    };
    format!("{}; {}", words("compute", &of.compute), words("memory", &of.memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let of = Overheads { tick: 4_010_000, latency: 70_000, interference_ppm: 1500, burst: 0 };
        assert_eq!(
            parse(&text(&of, None).unwrap()).unwrap(),
            (of, None),
            "as earlier versions write it"
        );
        let pace = |typical| Pace { typical, slow: typical - 1 };
        let speed = Speed { compute: pace(800_000_000), memory: pace(12_000_000) };
        assert_eq!(parse(&text(&of, Some(&speed)).unwrap()).unwrap(), (of, Some(speed)));
        let stands = text(&of, Some(&speed)).unwrap().replace("800000000", "0");
        assert!(parse(&stands).unwrap_err().to_string().contains("0 turns"), "{stands}");
        for bad in ["tick = 4", "", "tick = \"4ms\"\nhz = 250"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for bad in ["1", "%", "100%", "-1%", "nan%", "1.23456%", "1 %%", "99999%", ".%"] {
            assert!(share(bad).unwrap_err().to_string().contains("as in 1%"), "{bad}");
        }
        assert_eq!(
            ["1%", "0.5 %", "2.25%"].map(|text| share(text).unwrap().0),
            [10_000, 5000, 22_500]
        );
    }

    #[test]
    fn options_come_before_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.toml");
        let options = Options {
            overheads: Some(path.clone()),
            tick: None,
            latency: Some(Duration::from_micros(20)),
            interference: None,
            burst: None,
        };
        let error = format!("{:#}", options.known().unwrap_err());
        assert!(error.contains("reserve measure --write"), "{error}");
        std::fs::write(&path, text(&Overheads::UNMEASURED, None).unwrap()).unwrap();
        let known = options.known().unwrap();
        assert_eq!(known.overheads, Overheads { latency: 20_000, ..Overheads::UNMEASURED });
        assert!(known.from.ends_with("host.toml; --latency"), "{}", known.from);
    }
}
