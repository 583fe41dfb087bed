//! Survives SIGBUS on a page whose file was truncated.
//!
//! The owner of a file may truncate it at any time, and a load or store beyond the file's end then
//! raises SIGBUS, which ends the process. No check beforehand helps: the truncation may come
//! between the check and the access. [`survive`] installs a handler that puts zeroes in the place
//! of the lost mapping, so that the access goes on, and notes the loss
//! ([`crate::mapping::SharedMapping::is_lost`]).
//!
//! Behavior: only faults inside a [`crate::mapping::SharedMapping`] are handled, and only those
//! that the kernel reports as "no such address" (BUS_ADRERR); the process would have ended
//! otherwise. Everything else goes to the action that was installed before: another handler, or the
//! default. Mappings are registered without a lock, and the handler takes none.
//!
//! Limitations: a program that installs a handler of its own afterwards, and does not pass on what
//! it does not know, loses this protection. A library that is unloaded must not have called
//! [`survive`].

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize};
use std::io;
use std::sync::{Mutex, PoisonError};

/// Mappings start on a page, which leaves the low bits of the address for the length in pages.
const UNIT: usize = 4096;
/// A place that is being filled in: an address of zero, which no mapping has.
const RESERVED: usize = 1;
const PLACES: usize = 256;

/// One mapping, and whether its file lost it.
struct Place {
    /// The first address plus the length in pages; 0: free.
    range: AtomicUsize,
    lost: AtomicBool,
}

/// Some places, and those after them. They are never freed, because a handler may walk over them.
struct Places {
    here: [Place; PLACES],
    next: AtomicPtr<Places>,
}

impl Places {
    const fn new() -> Self {
        Self {
            here: [const { Place { range: AtomicUsize::new(0), lost: AtomicBool::new(false) } };
                PLACES],
            next: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Self> {
        // SAFETY: null, or leaked by `grown`, and then never changed again.
        unsafe { self.next.load(Acquire).as_ref() }
    }

    /// The places after these; made if there are none yet.
    fn grown(&self) -> &'static Self {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(Self::new()));
        match self.next.compare_exchange(core::ptr::null_mut(), new, AcqRel, Acquire) {
            // SAFETY: just leaked; nobody frees it.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: ours alone, because it was not put in; `other` was leaked by the winner.
                unsafe {
                    drop(Box::from_raw(new));
                    &*other
                }
            }
        }
    }
}

static FIRST: Places = Places::new();

/// A mapping in the register, for as long as this lives.
#[derive(Clone, Copy)]
pub(crate) struct Watched(&'static Place);

impl core::fmt::Debug for Watched {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Watched").field("lost", &self.is_lost()).finish()
    }
}

impl Watched {
    /// Registers `len` bytes at `start`. Mappings of 16 MiB or more are not watched, which nothing
    /// of ours is.
    pub(crate) fn new(start: usize, len: usize) -> Option<Self> {
        let pages = len.div_ceil(UNIT);
        if start % UNIT != 0 || start == 0 || pages >= UNIT {
            return None;
        }
        let mut places = &FIRST;
        loop {
            let free =
                |place: &&Place| place.range.compare_exchange(0, RESERVED, AcqRel, Relaxed).is_ok();
            if let Some(place) = places.here.iter().find(free) {
                place.lost.store(false, Relaxed);
                place.range.store(start | pages, Release);
                return Some(Self(place));
            }
            places = places.grown();
        }
    }

    /// Whether an access found that the file is too short.
    pub(crate) fn is_lost(self) -> bool {
        self.0.lost.load(Acquire)
    }

    /// Takes the mapping out of the register, before its addresses are given back.
    pub(crate) fn end(self) {
        self.0.range.store(0, Release);
    }
}

/// The action that was there before ours.
static PREVIOUS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static PREVIOUS_FLAGS: AtomicI32 = AtomicI32::new(0);
/// The system's page size, in which the kernel maps.
static PAGE: AtomicUsize = AtomicUsize::new(UNIT);
/// Whether our handler was ever installed; held while that is decided.
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// From now on this process survives the truncation of a page that it has mapped. May be called any
/// number of times.
///
/// If another handler was installed over ours, it stays: it may call ours.
///
/// # Errors
/// When the kernel refuses the handler.
pub fn survive() -> io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    let now = action(None)?;
    if now.sa_sigaction == ours() {
        return Ok(());
    }
    let is_free = now.sa_sigaction == libc::SIG_DFL || now.sa_sigaction == libc::SIG_IGN;
    if *installed && !is_free {
        return Ok(());
    }
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE.store(usize::try_from(page).unwrap_or(UNIT).max(UNIT), Relaxed);
    // The previous handler runs inside ours, hence with its own mask. The alternate stack is used
    // where a thread has one: Go and others insist on it.
    let mut new = now;
    new.sa_sigaction = ours();
    let inherited = now.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | inherited;
    remember(&now);
    let replaced = action(Some(&new))?;
    if replaced.sa_sigaction != now.sa_sigaction && replaced.sa_sigaction != ours() {
        remember(&replaced);
    }
    *installed = true;
    Ok(())
}

fn remember(action: &libc::sigaction) {
    PREVIOUS_FLAGS.store(action.sa_flags, Release);
    PREVIOUS.store(action.sa_sigaction, Release);
}

fn ours() -> libc::sighandler_t {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
    handler as libc::sighandler_t
}

/// The action of SIGBUS; replaced by `new`, if there is one.
fn action(new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
    let mut old = core::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `new` is null or a complete action; the kernel fills in `old` when it returns 0.
    unsafe {
        if libc::sigaction(libc::SIGBUS, new, old.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(old.assume_init())
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo; errno belongs to this thread. Only system calls
    // and atomics follow.
    let (code, survived) = unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let code = (*info).si_code;
        // A signal that a process sent has no address.
        let survived = code == libc::BUS_ADRERR && replace((*info).si_addr() as usize);
        *errno = saved;
        (code, survived)
    };
    if !survived {
        pass_on(signal, code, info, context);
    }
}

/// Puts zeroes in the place of the registered mapping that has this address.
fn replace(address: usize) -> bool {
    let mut places = Some(&FIRST);
    while let Some(some) = places {
        for place in &some.here {
            let range = place.range.load(Acquire);
            let (start, pages) = (range & !(UNIT - 1), range % UNIT);
            if start == 0 || address < start || address - start >= pages * UNIT {
                continue;
            }
            let len = (pages * UNIT).next_multiple_of(PAGE.load(Relaxed));
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: the range is a live mapping of ours: the thread that faults inside of it
            // holds a reference to it, and a mapping leaves the register before it is unmapped.
            let new = unsafe {
                libc::mmap(core::ptr::without_provenance_mut(start), len, protection, flags, -1, 0)
            };
            if new == libc::MAP_FAILED {
                return false;
            }
            place.lost.store(true, Release);
            return true;
        }
        places = some.next();
    }
    false
}

/// What would have happened without our handler.
fn pass_on(signal: c_int, code: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let (previous, flags) = (PREVIOUS.load(Acquire), PREVIOUS_FLAGS.load(Acquire));
    // An instruction that faulted faults again when the handler returns.
    let repeats = code > 0 && code != libc::BUS_MCEERR_AO;
    if previous == libc::SIG_IGN && !repeats {
        return;
    }
    if previous == libc::SIG_DFL || previous == libc::SIG_IGN {
        // SAFETY: all zeroes is the default action; the signal is blocked here, and delivered when
        // the handler returns.
        unsafe {
            let default: libc::sigaction = core::mem::zeroed();
            libc::sigaction(signal, &raw const default, core::ptr::null_mut());
            if !repeats {
                libc::raise(signal);
            }
        }
        return;
    }
    if flags & libc::SA_RESETHAND != 0 {
        PREVIOUS.store(libc::SIG_DFL, Release);
    }
    // SAFETY: a handler that sigaction accepted, of the kind that its flags state.
    unsafe {
        if flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                core::mem::transmute(previous);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = core::mem::transmute(previous);
            handler(signal);
        }
    }
}

#[cfg(test)]
#[path = "truncation_tests.rs"]
mod tests;
