//! Chooses this host's source of elapsed time, with the reason: the counter if it is invariant,
//! else BPF programs if they load, else CLOCK_MONOTONIC_RAW.

#[cfg(all(feature = "bpf", target_arch = "x86_64"))]
pub use crate::bpf::ElapsedBpf as Programs;
use crate::counter::{Choice, HostCounter, HostMonotonicRaw, select};

/// The programs of a build without BPF: no value of this type exists.
#[cfg(not(all(feature = "bpf", target_arch = "x86_64")))]
pub type Programs = core::convert::Infallible;

/// The choice.
#[derive(Debug)]
pub enum ElapsedSource<P = Programs> {
    /// One counter, the same on all cores.
    Counter(HostCounter),
    /// Ages of cores and of registered threads; the programs are detached on drop.
    Bpf(P),
    /// CLOCK_MONOTONIC_RAW: a call instead of an instruction.
    MonotonicRaw(HostMonotonicRaw),
}

impl<P> ElapsedSource<P> {
    /// Its name in reports and JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Bpf(_) => "bpf",
            Self::MonotonicRaw(_) => "monotonic-raw",
        }
    }
}

/// Chooses a source and returns the reason. On hosts whose counter is not invariant, this loads the
/// programs, which run as long as the value lives.
#[must_use]
pub fn elapsed_source() -> (ElapsedSource, String) {
    // Auto never fails.
    let (counter, why) = select(Choice::Auto).unwrap_or_else(|error| {
        (HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL), error.to_string())
    });
    elapsed_source_beside(counter, &why)
}

/// As [`elapsed_source`], where this counter was chosen automatically, for this reason.
#[must_use]
pub fn elapsed_source_beside(counter: HostCounter, why: &str) -> (ElapsedSource, String) {
    decide(counter, why, start)
}

#[cfg(all(feature = "bpf", target_arch = "x86_64"))]
fn start() -> Result<Programs, String> {
    Programs::start().map_err(|error| crate::bpf::error::chain(&error))
}

#[cfg(not(all(feature = "bpf", target_arch = "x86_64")))]
fn start() -> Result<Programs, String> {
    Err("this timevisor was built without BPF programs, which x86-64 alone has".to_owned())
}

fn decide<P>(
    counter: HostCounter,
    why: &str,
    programs: impl FnOnce() -> Result<P, String>,
) -> (ElapsedSource<P>, String) {
    let HostCounter::MonotonicRaw(raw) = counter else {
        return (ElapsedSource::Counter(counter), why.to_owned());
    };
    // "monotonic-raw, because ...": what follows is the reason against the counter.
    let against = why.split_once("because ").map_or(why, |(_, reason)| reason);
    match programs() {
        Ok(programs) => (ElapsedSource::Bpf(programs), format!("bpf, because {against}")),
        Err(reason) => (
            ElapsedSource::MonotonicRaw(raw),
            format!("monotonic-raw, because {against}; and not bpf, because {reason}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: HostCounter = HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL);

    #[test]
    fn the_programs_are_asked_only_where_the_counter_is_not_trusted() {
        let (source, why) = decide(RAW, "monotonic-raw, because X", || Ok::<_, String>(7));
        assert!(matches!(source, ElapsedSource::Bpf(7)));
        assert_eq!(why, "bpf, because X");
        let refused = || Err::<u8, _>("Y".to_owned());
        let (source, why) = decide(RAW, "monotonic-raw, because X", refused);
        assert_eq!(source.name(), "monotonic-raw");
        assert_eq!(why, "monotonic-raw, because X; and not bpf, because Y");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn an_invariant_counter_needs_no_programs() {
        let tsc = HostCounter::Tsc(crate::counter::Tsc::unchecked());
        let (source, why) = decide::<()>(tsc, "tsc: invariant", || panic!("asked"));
        assert_eq!((source.name(), why.as_str()), ("counter", "tsc: invariant"));
    }
}
