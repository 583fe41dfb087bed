//! Access to a caller's pointers: handles, texts, and structures that may be of another version
//! than this library's.
//!
//! Every structure that a caller makes begins with its size. An older program's is smaller: only so
//! much is read or written. A newer program's is larger: what this library does not know must be
//! zero when it is read, and is set to zero when it is written. The rules for callers are in the
//! header: a pointer is NULL or points to what its type says.
//!
//! [`In`], [`InOut`] and [`Text`] are such pointers as function arguments: they carry the rule, so
//! that functions are safe code.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::marker::PhantomData;
use core::mem::{MaybeUninit, align_of, size_of};
use core::ptr;
use std::time::Duration;

use crate::error::Failure;

/// Sizes beyond this are not of a structure that was initialized.
const MAX_STRUCT: usize = 4096;

/// A structure that C shares with us.
///
/// # Safety
/// `repr(C)`, begins with a u32 that is its size, made of integers, floats and raw pointers only
/// (all zeroes are a value, and so is every other pattern), without padding.
pub(crate) unsafe trait Shared: Copy {}

/// A structure that a caller lets us read, or NULL. Only C makes these. By the header's rules the
/// structure has as many bytes as it states, and nobody writes to it during the call.
#[repr(transparent)]
pub struct In<'a, T>(*const T, PhantomData<&'a T>);

/// A structure that a caller lets us fill in, or NULL. Only C makes these, likewise, and nobody
/// else looks at it during the call.
#[repr(transparent)]
pub struct InOut<'a, T>(*mut T, PhantomData<&'a mut T>);

/// A text that a caller lets us read, or NULL. Only C makes these: it ends with a zero byte and
/// stays as it is during the call.
#[repr(transparent)]
pub struct Text<'a>(*const c_char, PhantomData<&'a c_char>);

/// Room for one of several numbers, or NULL. Only C makes these: nobody else looks at it during the
/// call. Unlike two [`Out`]s, two of them may be the same by mistake.
#[repr(transparent)]
pub struct Number<'a, T>(*mut T, PhantomData<&'a mut T>);

/// The caller's size of a structure.
///
/// # Safety
/// Not NULL without pointing to a structure of at least its header.
unsafe fn size_of_callers<T: Shared>(at: *const T) -> Result<usize, Failure> {
    if at.is_null() {
        return Err(Failure::invalid("a pointer to a structure is NULL"));
    }
    if !at.addr().is_multiple_of(align_of::<T>()) {
        return Err(Failure::invalid("a pointer to a structure is not aligned"));
    }
    // SAFETY: not NULL, aligned, and a structure begins with this field (see Shared).
    let size = unsafe { at.cast::<u32>().read() } as usize;
    if (size_of::<u64>()..=MAX_STRUCT).contains(&size) {
        Ok(size)
    } else {
        Err(Failure::invalid(format!(
            "a structure's struct_size is {size}: initialize it with its TIMEVISOR_..._INIT"
        )))
    }
}

/// As much of a structure as there is.
///
/// # Safety
/// `at` points to `size` bytes.
unsafe fn read<T: Shared>(at: *const T, size: usize) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: `at` has `size` bytes and `value` has size_of::<T>(); both have `known`, and are not
    // the same.
    unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), value.as_mut_ptr().cast(), known) };
    // SAFETY: Shared: every pattern is a value, and zeroes are where the caller had nothing.
    unsafe { value.assume_init() }
}

impl<T: Shared> In<'_, T> {
    /// For pointers within structures, which have the same rules.
    ///
    /// # Safety
    /// NULL, or as [`Self`] says.
    pub(crate) unsafe fn new(at: *const T) -> Self {
        Self(at, PhantomData)
    }

    /// What the caller wants; NULL is the same as nothing.
    pub(crate) fn get(&self) -> Result<Option<T>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: not NULL, and a structure, as Self says.
        let size = unsafe { size_of_callers(self.0)? };
        for beyond in size_of::<T>()..size {
            // SAFETY: within the caller's structure of `size` bytes.
            if unsafe { self.0.cast::<u8>().add(beyond).read() } != 0 {
                return Err(Failure::new(
                    libc::E2BIG,
                    "a structure sets something that this version of libtimevisor does not know; install the version of its header",
                ));
            }
        }
        // SAFETY: as just checked.
        Ok(Some(unsafe { read(self.0, size) }))
    }

    /// The same where there must be something.
    pub(crate) fn require(&self, what: &'static str) -> Result<T, Failure> {
        self.get()?.ok_or_else(|| Failure::invalid(format!("the {what} is NULL")))
    }
}

impl<T: Shared> InOut<'_, T> {
    /// For pointers within structures, which have the same rules.
    ///
    /// # Safety
    /// NULL, or as [`Self`] says.
    pub(crate) unsafe fn new(at: *mut T) -> Self {
        Self(at, PhantomData)
    }

    /// Whether [`Self::fill`] will find a structure; asked before something is done whose result
    /// must not be lost.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !self.0.is_null() {
            // SAFETY: not NULL, and a structure, as Self says.
            unsafe { size_of_callers(self.0)? };
        }
        Ok(())
    }

    /// Fills it in; what `change` leaves alone (pointers to further structures) stays.
    pub(crate) fn fill(
        &mut self,
        change: impl FnOnce(&mut T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // SAFETY: NULL or a structure, as Self says.
        let size = unsafe { size_of_callers(self.0)? };
        // SAFETY: as just checked.
        let mut value = unsafe { read(self.0, size) };
        change(&mut value)?;
        let (known, header) = (size.min(size_of::<T>()), size_of::<u32>());
        // SAFETY: both have `known` bytes, which is more than the header, and are not the same;
        // nobody else looks.
        unsafe {
            let (from, to) = (ptr::from_ref(&value).cast::<u8>(), self.0.cast::<u8>());
            ptr::copy_nonoverlapping(from.add(header), to.add(header), known - header);
            to.add(known).write_bytes(0, size - known);
        }
        Ok(())
    }

    /// The same where NULL means that the caller is not interested.
    pub(crate) fn fill_if_wanted(
        &mut self,
        change: impl FnOnce(&mut T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.0.is_null() { Ok(()) } else { self.fill(change) }
    }
}

impl<T: Copy> Number<'_, T> {
    /// Where the call's numbers belong: neither NULL nor the same place.
    pub(crate) fn check_pair(&self, other: &Self) -> Result<(), Failure> {
        if self.0.is_null() || other.0.is_null() {
            return Err(Failure::invalid("the pointer for a number is NULL"));
        }
        if self.0 == other.0 {
            return Err(Failure::invalid("two numbers cannot go to the same place"));
        }
        Ok(())
    }

    /// Gives it to the caller, unless the pointer is NULL.
    pub(crate) fn write(self, number: T) {
        if !self.0.is_null() {
            // SAFETY: not NULL, and room for it, as Self says.
            unsafe { self.0.write(number) };
        }
    }
}

impl<'a> Text<'a> {
    /// For pointers within structures, which have the same rules.
    ///
    /// # Safety
    /// NULL, or as [`Self`] says.
    pub(crate) unsafe fn new(at: *const c_char) -> Self {
        Self(at, PhantomData)
    }

    /// The text, unless it is NULL.
    pub(crate) fn get(&self, what: &'static str) -> Result<Option<&'a str>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: not NULL, and a text, as Self says.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(Some).map_err(|_| Failure::invalid(format!("the {what} is not UTF-8")))
    }

    /// The same where there must be something.
    pub(crate) fn require(&self, what: &'static str) -> Result<&'a str, Failure> {
        self.get(what)?.ok_or_else(|| Failure::invalid(format!("the {what} is NULL")))
    }
}

/// As snprintf does: as much as there is room for, and the whole length.
///
/// # Safety
/// `at` points to `room` bytes, or is NULL.
pub(crate) unsafe fn put_text(at: *mut c_char, room: usize, text: &str) -> Result<c_int, Failure> {
    if at.is_null() && room > 0 {
        return Err(Failure::invalid("the buffer is NULL"));
    }
    let fits = text.len().min(room.saturating_sub(1));
    if room > 0 {
        // SAFETY: not NULL; the buffer has `room` bytes, more than `fits`; `text` has at least
        // `fits`.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), at.cast(), fits);
            at.add(fits).write(0);
        }
    }
    Ok(c_int::try_from(text.len()).unwrap_or(c_int::MAX))
}

/// A caller's bytes.
///
/// # Safety
/// `at` points to `length` bytes that nobody writes to for as long as `'a`, or is NULL.
pub(crate) unsafe fn bytes<'a>(at: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(Failure::invalid("the payload is NULL; give 0 for its length"));
    }
    if isize::try_from(length).is_err() {
        return Err(Failure::invalid("the payload is longer than memory"));
    }
    // SAFETY: not NULL, and so many bytes, as the caller of this function says.
    Ok(unsafe { core::slice::from_raw_parts(at.cast(), length) })
}

/// Where a caller wants a new handle or a number.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Gives a new handle to the caller, who gets NULL when there is none.
pub(crate) fn give<T>(
    out: Out<'_, *mut T>,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<c_int, Failure> {
    let out = out.ok_or_else(|| Failure::invalid("the pointer for the new handle is NULL"))?;
    let out = out.write(ptr::null_mut());
    *out = Box::into_raw(Box::new(make()?));
    Ok(0)
}

/// A handle that must be there.
pub(crate) fn handle<'a, T>(given: Option<&'a T>, what: &'static str) -> Result<&'a T, Failure> {
    given.ok_or_else(|| Failure::invalid(format!("the {what} is NULL")))
}

/// A span from a caller.
pub(crate) fn span(ns: i64, what: &'static str) -> Result<Duration, Failure> {
    u64::try_from(ns)
        .map(Duration::from_nanos)
        .map_err(|_| Failure::invalid(format!("{what} is {ns} ns; it cannot be negative")))
}

/// A span for a caller.
pub(crate) fn ns(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
