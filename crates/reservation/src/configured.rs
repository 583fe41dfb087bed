//! Reservations in the configuration. Each is made once for every start of its VM. A change or
//! release by hand stays in effect until the next start.

use crate::request::Request;

/// A configured reservation.
#[derive(Debug)]
pub(crate) struct Configured {
    pub(crate) request: Request,
    /// The process (pid and start time) for which it was made.
    pub(crate) made_for: Option<(u32, u64)>,
    /// Why the last attempt failed.
    pub(crate) refused: Option<String>,
}

impl Configured {
    pub(crate) fn new(request: Request) -> Self {
        Self { request, made_for: None, refused: None }
    }

    /// Why it could not be made, with the VM's name.
    pub(crate) fn problem(&self) -> Option<String> {
        let Request { vm, vcpu, .. } = &self.request;
        self.refused.as_ref().map(|why| format!("VM {vm} vCPU {vcpu}, as configured: {why}"))
    }

    /// Whether it is for this vCPU.
    pub(crate) fn is_for(&self, vm: &str, vcpu: u32) -> bool {
        self.request.vm == vm && self.request.vcpu == vcpu
    }

    /// Whether it has to be made for this process now.
    pub(crate) fn is_due(&self, process: Option<(u32, u64)>) -> bool {
        process.is_some() && self.made_for != process
    }
}
