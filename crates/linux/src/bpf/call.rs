//! The bpf(2) calls that aya lacks: access to elements of any kind of map, freezing, programs
//! by name, and test runs of programs.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// include/uapi/linux/bpf.h, `enum bpf_cmd`.
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const PROG_TEST_RUN: libc::c_long = 10;
const PROG_GET_NEXT_ID: libc::c_long = 11;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const MAP_FREEZE: libc::c_long = 22;
const LINK_CREATE: libc::c_long = 28;
/// `enum bpf_attach_type`.
const ATTACH_PERF_EVENT: u32 = 41;
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

/// `union bpf_attr` for ids.
#[repr(C)]
struct Id {
    id: u32,
    next: u32,
    flags: u32,
}

/// `union bpf_attr.info`.
#[repr(C)]
struct Info {
    fd: u32,
    len: u32,
    address: u64,
}

/// `struct bpf_prog_info` up to the name.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: u64,
    lengths: [u32; 2],
    instructions: [u64; 2],
    load_time: u64,
    created_by: u32,
    maps: u32,
    map_ids: u64,
    name: [u8; 16],
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

/// `union bpf_attr.link_create`.
#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    kind: u32,
    flags: u32,
    cookie: u64,
}

/// `struct bpf_link_info` of a link to a kprobe.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct LinkInfo {
    pub(super) kind: u32,
    id: u32,
    program: u32,
    padding: u32,
    /// `enum bpf_perf_event_type`.
    pub(super) event: u32,
    more_padding: u32,
    name: u64,
    name_length: u32,
    offset: u32,
    address: u64,
    pub(super) missed: u64,
}

/// Runs a program at every hit of a perf event (BPF_LINK_CREATE, Linux 5.15 for these).
pub(super) fn link_perf_event(
    program: BorrowedFd<'_>,
    event: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        program: word(program.as_raw_fd()),
        target: word(event.as_raw_fd()),
        kind: ATTACH_PERF_EVENT,
        flags: 0,
        cookie: 0,
    };
    // SAFETY: the attributes are numbers; a new descriptor is returned.
    owned(unsafe { bpf(LINK_CREATE, &raw const attr) })
}

/// What the kernel says of a link, and how many bytes of it.
pub(super) fn link_info(link: BorrowedFd<'_>) -> io::Result<(LinkInfo, usize)> {
    let mut info = LinkInfo::default();
    let mut attr = Info {
        fd: word(link.as_raw_fd()),
        len: u32::try_from(size_of::<LinkInfo>()).unwrap_or(0),
        address: (&raw mut info).addr() as u64,
    };
    // SAFETY: `info` lives over the call and has the length that is stated; all its fields are numbers,
    // and the kernel fills what fits. Its pointer is zero, so nothing else is written.
    done(unsafe { bpf(OBJ_GET_INFO_BY_FD, &raw mut attr) })?;
    Ok((info, usize::try_from(attr.len).unwrap_or(0)))
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

/// From now on only programs can write the map: no system call, no mapping, nobody's (BPF_MAP_FREEZE,
/// Linux 5.2). There must be no writable mapping of it.
pub(super) fn freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    let map = word(map.as_raw_fd());
    // SAFETY: the one attribute is the descriptor.
    done(unsafe { bpf(MAP_FREEZE, &raw const map) })
}

/// The programs of this name that the kernel has, whoever loaded them. It takes CAP_SYS_ADMIN.
pub(super) fn programs_named(name: &str) -> io::Result<Vec<OwnedFd>> {
    let mut found = Vec::new();
    let mut last = 0;
    loop {
        let mut attr = Id { id: last, next: 0, flags: 0 };
        // SAFETY: the kernel reads three numbers and writes `next`.
        match done(unsafe { bpf(PROG_GET_NEXT_ID, &raw mut attr) }) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(found),
            done => done?,
        }
        last = attr.next;
        let attr = Id { id: last, next: 0, flags: 0 };
        // SAFETY: the kernel reads three numbers. It may have gone meanwhile.
        let Ok(fd) = owned(unsafe { bpf(PROG_GET_FD_BY_ID, &raw const attr) }) else { continue };
        let mut info = ProgramInfo::default();
        let attr = Info {
            fd: word(fd.as_raw_fd()),
            len: u32::try_from(size_of::<ProgramInfo>()).unwrap_or(0),
            address: (&raw mut info).addr() as u64,
        };
        // SAFETY: `info` lives over the call and has the length that is stated; all its fields are
        // numbers, and the kernel fills what fits. Its pointers are zero, so nothing else is written.
        done(unsafe { bpf(OBJ_GET_INFO_BY_FD, &raw const attr) })?;
        // Names have 15 characters at most.
        let wanted = name.as_bytes().iter().take(15).chain(&[0]);
        if info.name.iter().zip(wanted).all(|(a, b)| a == b) {
            found.push(fd);
        }
    }
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

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    done(result)?;
    let fd = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: a descriptor that the kernel has just returned, and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
