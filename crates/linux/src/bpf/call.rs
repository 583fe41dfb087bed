//! The bpf(2) calls that aya lacks: access to elements of any kind of map, and test runs of
//! programs.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};

/// include/uapi/linux/bpf.h, `enum bpf_cmd`.
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const PROG_TEST_RUN: libc::c_long = 10;
const TEST_RUN_ON_CPU: u32 = 1;

/// `union bpf_attr` for elements of maps.
#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `union bpf_attr.test`.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    result: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

fn word(fd: RawFd) -> u32 {
    u32::try_from(fd).unwrap_or(u32::MAX)
}

/// Sets a map's element; keys and values of four bytes.
pub(super) fn update(map: BorrowedFd<'_>, key: u32, value: u32) -> io::Result<()> {
    let attr = Element {
        map: word(map.as_raw_fd()),
        padding: 0,
        key: (&raw const key).addr() as u64,
        value: (&raw const value).addr() as u64,
        flags: 0,
    };
    // SAFETY: the addresses are those of `key` and `value`, which live over the call; the kernel
    // reads the four bytes each that the caller's maps have, and writes nothing.
    let result = unsafe { bpf(MAP_UPDATE_ELEM, &raw const attr) };
    done(result)
}

/// Removes a map's element.
pub(super) fn delete(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    let attr = Element {
        map: word(map.as_raw_fd()),
        padding: 0,
        key: (&raw const key).addr() as u64,
        value: 0,
        flags: 0,
    };
    // SAFETY: as in `update`; the kernel reads the key only.
    let result = unsafe { bpf(MAP_DELETE_ELEM, &raw const attr) };
    done(result)
}

/// Runs a raw tracepoint program once with these arguments, on `core` if one is given
/// (BPF_PROG_TEST_RUN, Linux 5.10). Returns the program's return value.
pub(super) fn test_run(
    program: BorrowedFd<'_>,
    arguments: &[u64; 5],
    core: Option<u32>,
) -> io::Result<u32> {
    let mut attr = TestRun {
        program: word(program.as_raw_fd()),
        context_size_in: u32::try_from(size_of_val(arguments)).unwrap_or(0),
        context_in: arguments.as_ptr().addr() as u64,
        flags: if core.is_some() { TEST_RUN_ON_CPU } else { 0 },
        cpu: core.unwrap_or(0),
        ..TestRun::default()
    };
    // SAFETY: the one address is that of `arguments`, which live over the call and have the size
    // that is stated; the kernel reads them and writes nothing but fields of `attr`.
    let result = unsafe { bpf(PROG_TEST_RUN, &raw mut attr) };
    done(result).map(|()| attr.result)
}

/// # Safety
/// `attr` must be what `command` expects, and all addresses in it must be valid for what the
/// command does with them.
unsafe fn bpf<T>(command: libc::c_long, attr: *const T) -> libc::c_long {
    // SAFETY: the caller answers for the attributes; their size is their type's.
    unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>()) }
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
