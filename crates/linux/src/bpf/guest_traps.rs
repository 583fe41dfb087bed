//! Traps in a KVM guest: the programs of bpf/introspect.bpf.c, for one VM.
//!
//! Settings and events are bytes in the layout of bpf/introspect.h; crates/introspection encodes
//! and decodes them.

use core::fmt;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use aya::maps::{Map, MapError};
use aya::programs::{KProbe, ProgramError};
use aya::{Ebpf, EbpfLoader};

use super::error::BpfError;
use super::event_ring::EventRing;
use super::kprobe_link::KprobeLink;
use super::settings::{POINT, POINTS, SETTINGS, TARGET};

/// The object that build.rs compiled from bpf/introspect.bpf.c; empty if that failed.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/introspect.bpf.o"));
/// Why the compilation failed.
const MISSING: &str = env!("TIMEVISOR_BPF_INTROSPECT_MISSING");

/// The programs, named after the functions that they watch.
const HANDLE_UD: &str = "handle_ud";
const FAST_PIO: &str = "kvm_fast_pio";
const EMULATE: &str = "x86_emulate_instruction";

/// The KVM function that is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// KVM's prefix, AMD: `handle_ud`, by a kprobe.
    HandleUd,
    /// A write to a port, AMD: `kvm_fast_pio`, by a kprobe.
    FastPio,
    /// KVM's prefix, Intel: `x86_emulate_instruction`, by a kprobe. NOT VERIFIED ON HARDWARE.
    Emulate,
}

/// The programs, attached while this value lives.
pub struct GuestTraps {
    // Dropped first, which detaches the programs.
    /// `None` where the kernel has no such links; `ebpf` has attached the program then.
    link: Option<KprobeLink>,
    ebpf: Ebpf,
    ring: EventRing,
    program: OwnedFd,
}

impl fmt::Debug for GuestTraps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestTraps").field("ebpf", &self.ebpf).finish_non_exhaustive()
    }
}

impl GuestTraps {
    /// Watches the VM of `target` for these points, each with its address. `more` contains
    /// additional addresses, each with the index of its point.
    ///
    /// # Errors
    /// What prevents this on this host.
    pub fn start(
        target: [u8; TARGET],
        points: &[(u64, [u8; POINT])],
        more: &[(u64, u32)],
        watch: Watch,
    ) -> Result<Self, BpfError> {
        let what = "load BPF programs";
        if OBJECT.is_empty() {
            return Err(BpfError::NotBuilt(MISSING));
        }
        let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(|e| BpfError::of(what, e))?;
        for (address, point) in more {
            let map = ebpf.map_mut("more").ok_or_else(|| missing("more"))?;
            aya::maps::HashMap::try_from(map)
                .and_then(|mut map| map.insert(*address, *point, 0))
                .map_err(|e: MapError| BpfError::of(what, e))?;
        }
        let Some(Map::Array(shared)) = ebpf.map("shared") else { return Err(missing("shared")) };
        let shared = shared.fd().as_fd().try_clone_to_owned().map_err(|e| BpfError::of(what, e))?;
        let ring = EventRing::new(File::from(shared)).map_err(|e| BpfError::of(what, e))?;
        ring.ask(&settings(target, points));
        let (program, link) = attach(&mut ebpf, watch)?;
        Ok(Self { link, ebpf, ring, program })
    }

    /// Number of instructions that the kernel's verifier processed for each program; its limit is a
    /// million. Attaches no program. Before Linux 5.16 the kernel does not report the number, and
    /// this is 0.
    ///
    /// # Errors
    /// When the kernel rejects a program.
    pub fn verified() -> Result<[(&'static str, u32); 3], BpfError> {
        let failed = |e: ProgramError| BpfError::of("load BPF programs", e);
        if OBJECT.is_empty() {
            return Err(BpfError::NotBuilt(MISSING));
        }
        let mut ebpf =
            EbpfLoader::new().load(OBJECT).map_err(|e| BpfError::of("load BPF programs", e))?;
        let mut verified = [HANDLE_UD, FAST_PIO, EMULATE].map(|name| (name, 0));
        for (name, count) in &mut verified {
            let program = kprobe(&mut ebpf, name)?;
            program.load().map_err(failed)?;
            let info = program.info().map_err(failed)?;
            *count = info.verified_instruction_count().unwrap_or(0);
        }
        Ok(verified)
    }

    /// The next event's bytes, if there is one.
    pub fn next_event<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.ring.next().map(|bytes| take(&bytes))
    }

    /// Number of events that were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.ring.dropped()
    }

    /// How often the kernel skipped the program: because another one, or a change of a map, was under way
    /// on that processor, or a kprobe was. `None` before Linux 6.7, which does not count all of that.
    #[must_use]
    pub fn left_out(&self) -> Option<u64> {
        let missed = self.link.as_ref()?.missed()?;
        let name = format!("/proc/self/fdinfo/{}", self.program.as_fd().as_raw_fd());
        let text = std::fs::read_to_string(name).ok()?;
        Some(recursion_misses(&text)?.saturating_add(missed))
    }
}

/// The number of recursion misses that /proc shows for a program (kernel/bpf/syscall.c,
/// bpf_prog_show_fdinfo).
fn recursion_misses(fdinfo: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix("recursion_misses:")?.trim().parse().ok();
    fdinfo.lines().find_map(value)
}

fn missing(name: &str) -> BpfError {
    BpfError::of("load BPF maps", io::Error::other(format!("the object has no {name}")))
}

/// The settings in the layout of `struct shared`.
fn settings(target: [u8; TARGET], points: &[(u64, [u8; POINT])]) -> [u8; SETTINGS] {
    let mut all = [0; SETTINGS];
    all[..TARGET].copy_from_slice(&target);
    let (places, rest) = all[TARGET..].split_at_mut(POINTS * 8);
    let room = places.chunks_exact_mut(8).zip(rest.chunks_exact_mut(POINT));
    for ((place, room), (address, point)) in room.zip(points) {
        place.copy_from_slice(&address.to_le_bytes());
        room.copy_from_slice(point);
    }
    all
}

fn kprobe<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut KProbe, BpfError> {
    let failed = |e: ProgramError| BpfError::of("load BPF programs", e);
    ebpf.program_mut(name).ok_or_else(|| missing(name))?.try_into().map_err(failed)
}

fn attach(ebpf: &mut Ebpf, watch: Watch) -> Result<(OwnedFd, Option<KprobeLink>), BpfError> {
    let name = match watch {
        Watch::HandleUd => HANDLE_UD,
        Watch::FastPio => FAST_PIO,
        Watch::Emulate => EMULATE,
    };
    let failed = |e: ProgramError| BpfError::of("watch KVM by BPF programs", e);
    let program = kprobe(ebpf, name)?;
    program.load().map_err(failed)?;
    let fd = program.fd().map_err(failed)?.as_fd().try_clone_to_owned();
    let fd = fd.map_err(|e| BpfError::of("watch KVM by BPF programs", e))?;
    let function = CString::new(name).unwrap_or_default();
    let link = KprobeLink::new(fd.as_fd(), &function).ok();
    if link.is_none() {
        // Says why, if it is not for the kernel's age.
        program.attach(name, 0).map_err(failed)?;
    }
    Ok((fd, link))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's verifier accepts all programs with little effort. Whether there is a KVM to
    /// watch is not tested.
    #[test]
    fn the_verifier_takes_the_programs() {
        if OBJECT.is_empty() {
            assert!(!MISSING.is_empty());
            return;
        }
        for (name, count) in GuestTraps::verified().unwrap() {
            assert!(count < 50_000, "{name}: {count}");
        }
    }

    #[test]
    fn what_the_kernel_left_out() {
        let said =
            "pos:\t0\nprog_type:\t2\nrun_cnt:\t9\nrecursion_misses:\t12\nverified_insns:\t7\n";
        assert_eq!(recursion_misses(said), Some(12));
        assert_eq!(recursion_misses("pos:\t0\n"), None);
    }
}
