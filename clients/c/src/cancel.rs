//! [`timevisor_cancel_token`]: ends waits from another thread.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;

use timevisor::{Cancel, WaitError};

use crate::error::guard;
use crate::memory::{Out, give};

/// Ends waits from another thread; once cancelled it stays so, for later waits too. For any number
/// of threads at once.
pub struct timevisor_cancel_token {
    pub(crate) cancel: Cancel,
}

/// Makes a token; nothing is cancelled yet.
///
/// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_cancel_new(token: Out<'_, *mut timevisor_cancel_token>) -> c_int {
    guard(|| {
        give(token, || {
            let cancel = Cancel::new().map_err(WaitError::System)?;
            Ok(timevisor_cancel_token { cancel })
        })
    })
}

/// Ends all waits that have this token in their options, with -ECANCELED. NULL is allowed. Any
/// thread; allowed in a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_cancel(token: Option<&timevisor_cancel_token>) {
    // Without `guard`, which is not for signal handlers.
    if let Some(token) = token {
        token.cancel.cancel();
    }
}

/// Frees a token; waits that have it go on, and cannot be cancelled any more. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_cancel_free(token: Option<Box<timevisor_cancel_token>>) {
    drop(token);
}
