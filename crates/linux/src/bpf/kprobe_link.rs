//! A program at the start of a kernel function, by a link of our own: aya's does not tell what the
//! kernel has skipped.

use core::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::call::{LinkInfo, link_info, link_perf_event};

/// The first version of `struct perf_event_attr` (include/uapi/linux/perf_event.h); the kernel treats
/// missing fields as 0, among them the offset in the function.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    zero: [u64; 5],
    wakeup: [u32; 2],
    /// `config1`, for this kind of event `kprobe_func`.
    function: u64,
}

/// `BPF_LINK_TYPE_PERF_EVENT` and `BPF_PERF_EVENT_KPROBE`.
const PERF_EVENT: u32 = 7;
const KPROBE: u32 = 3;

/// The program runs while this value lives.
#[derive(Debug)]
pub(super) struct KprobeLink {
    link: OwnedFd,
    _event: File,
}

impl KprobeLink {
    /// Runs `program` whenever the function begins. Needs Linux 5.15.
    pub(super) fn new(program: BorrowedFd<'_>, function: &CStr) -> io::Result<Self> {
        let kind = fs::read_to_string("/sys/bus/event_source/devices/kprobe/type")?;
        let attributes = Attributes {
            kind: kind.trim().parse().map_err(io::Error::other)?,
            size: u32::try_from(size_of::<Attributes>()).unwrap_or(0),
            zero: [0; 5],
            wakeup: [0; 2],
            function: function.as_ptr().addr() as u64,
        };
        const EVERY_PROCESS: libc::c_long = -1;
        const ANY_CORE: libc::c_long = 0;
        const NO_GROUP: libc::c_long = -1;
        const CLOSE_ON_EXEC: libc::c_long = 8;
        // SAFETY: `attributes` and the name in it live over the call; the kernel reads both, the first
        // to the length that it states, and keeps neither.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                EVERY_PROCESS,
                ANY_CORE,
                NO_GROUP,
                CLOSE_ON_EXEC,
            )
        };
        let fd =
            i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: a descriptor that was just opened and belongs to nobody else.
        let event = unsafe { File::from_raw_fd(fd) };
        let link = link_perf_event(program, event.as_fd())?;
        Ok(Self { link, _event: event })
    }

    /// How often the function began and the kernel's kprobes did not run anything there. `None` before
    /// Linux 6.7, which does not tell; nor does it count the programs that it skips
    /// (kernel/trace/bpf_trace.c, `trace_call_bpf`).
    pub(super) fn missed(&self) -> Option<u64> {
        let (info, length) = link_info(self.link.as_fd()).ok()?;
        let tells = length >= core::mem::offset_of!(LinkInfo, missed) + size_of::<u64>();
        (tells && info.kind == PERF_EVENT && info.event == KPROBE).then_some(info.missed)
    }
}
