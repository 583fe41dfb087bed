//! The filters: lists of system calls, and of arguments where a call can do more than is needed.
//!
//! A call that has no rule fails with EPERM, so that a library that tries one goes on without it.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use super::ConfineError;

/// Rules by system call. No rules for a call that is there: any arguments.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Memory, time, locks, and the end.
const COMMON: [i64; 21] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Sending, receiving and waiting on sockets that are there.
const SOCKETS: [i64; 10] = [
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
];

/// Reading files, apart from opening them.
const FILES: [i64; 13] = [
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_write,
    libc::SYS_ppoll,
];

/// What getaddrinfo(3) and the modules of nsswitch.conf(5) do besides: sockets of their own, and
/// questions about this process.
const RESOLVER: [i64; 14] = [
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_writev,
    libc::SYS_readv,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
];

/// Of asm-generic/ioctls.h and linux/sockios.h; the C libraries disagree about the type.
const FIONBIO: u64 = 0x5421;
const FIONREAD: u64 = 0x541b;
/// An interface's number, for an address with a scope.
const SIOCGIFINDEX: u64 = 0x8933;

/// What a thread needs that is given bytes and gives back what they say: locks and memory. `write`
/// is for the log.
pub(super) fn memory() -> Result<BpfProgram, ConfineError> {
    program(&[&[libc::SYS_write]], Rules::new())
}

/// What a thread needs to receive and to send.
pub(super) fn sockets() -> Result<BpfProgram, ConfineError> {
    program(&[&SOCKETS, OLD_POLL], Rules::new())
}

/// The same, and to accept connections, and to ask whose a Unix socket's peer is.
pub(super) fn listeners() -> Result<BpfProgram, ConfineError> {
    let mut rules = Rules::new();
    rules.insert(libc::SYS_ioctl, vec![equal(1, FIONBIO)?]);
    rules.insert(libc::SYS_getsockopt, vec![equal(2, libc::SO_PEERCRED.unsigned_abs().into())?]);
    let accepting = [libc::SYS_accept4, libc::SYS_shutdown, libc::SYS_getsockname];
    program(&[&SOCKETS, OLD_POLL, &accepting], rules)
}

/// What getaddrinfo(3) needs.
pub(super) fn name_resolution() -> Result<BpfProgram, ConfineError> {
    let mut rules = for_reading_files()?;
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let of = |family: libc::c_int| equal(0, family.unsigned_abs().into());
    rules.insert(libc::SYS_socket, families.into_iter().map(of).collect::<Result<_, _>>()?);
    rules.insert(libc::SYS_ioctl, vec![equal(1, FIONREAD)?, equal(1, SIOCGIFINDEX)?]);
    program(&[&SOCKETS, &FILES, OLD_POLL, OLD_FILES, &RESOLVER], rules)
}

/// What a helper needs to read files and to speak through descriptors that it has.
pub(super) fn helper() -> Result<BpfProgram, ConfineError> {
    let speaking = [libc::SYS_sendto, libc::SYS_recvfrom];
    program(&[&FILES, &speaking, OLD_POLL, OLD_FILES], for_reading_files()?)
}

#[cfg(target_arch = "x86_64")]
const OLD_POLL: &[i64] = &[libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const OLD_POLL: &[i64] = &[];

#[cfg(target_arch = "x86_64")]
const OLD_FILES: &[i64] =
    &[libc::SYS_readlink, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_arch_prctl];
#[cfg(not(target_arch = "x86_64"))]
const OLD_FILES: &[i64] = &[];

/// These calls and [`COMMON`] with any arguments, and `rules`.
fn program(calls: &[&[i64]], mut rules: Rules) -> Result<BpfProgram, ConfineError> {
    // abort(3). A real user id that is root's may signal root's other processes too.
    rules.insert(libc::SYS_tgkill, vec![equal(0, std::process::id().into())?]);
    // Whether its own reads of the TSC trap: a library that gives a process another counter (the lab's
    // oscillator) answers them so.
    rules.insert(libc::SYS_prctl, vec![equal(0, u64::from(libc::PR_SET_TSC.unsigned_abs()))?]);
    for call in calls.iter().copied().flatten().chain(&COMMON) {
        rules.entry(*call).or_default();
    }
    let machine = std::env::consts::ARCH.try_into()?;
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, machine)?;
    Ok(filter.try_into()?)
}

/// Opening files, but neither to create nor to write.
fn for_reading_files() -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    rules.insert(libc::SYS_openat, vec![for_reading(2)?]);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, vec![for_reading(1)?]);
    Ok(rules)
}

/// The flags of open, in this argument, neither create nor write.
fn for_reading(argument: u8) -> Result<SeccompRule, BackendError> {
    let flags =
        libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY);
    let mask = SeccompCmpOp::MaskedEq(u64::from(flags.unsigned_abs()));
    condition(argument, mask, u64::from(libc::O_RDONLY.unsigned_abs()))
}

/// The lower 32 bits of this argument have this value.
fn equal(argument: u8, value: u64) -> Result<SeccompRule, BackendError> {
    condition(argument, SeccompCmpOp::Eq, value)
}

fn condition(argument: u8, how: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, how, value)?;
    SeccompRule::new(vec![condition])
}
