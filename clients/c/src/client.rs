//! [`timevisor_client`]: which page, which channel; which timelines there are.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::{c_char, c_int};
use core::fmt::Write as _;
use core::ptr;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;

use timevisor::{
    ChannelAddress, Client, HostCpuTime, HostCpuTimeError, Options, Requirement, TimelineRow, Tried,
};

use crate::conversions::{epoch, reserved};
use crate::error::{Failure, guard};
use crate::memory::{In, InOut, Out, Text, give, handle, put_text, span};
use crate::types::{timevisor_achieved, timevisor_options, timevisor_timeline_row};

/// Reads timelines, and states requirements of them. For any number of threads at once.
///
/// After a fork the child must not use or free the parent's handles, but connect again: there,
/// calls that need the channel fail with -ENOTCONN, and freeing does nothing.
pub struct timevisor_client {
    pub(crate) client: Client,
    page: CString,
    pub(crate) process: Process,
}

/// The process that made a handle: only there is a thread behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    pub(crate) fn check(self) -> Result<(), Failure> {
        if self == Self::this() {
            return Ok(());
        }
        Err(Failure::new(
            libc::ENOTCONN,
            "this handle belongs to the process that forked this one; connect again",
        ))
    }

    /// Frees a handle in the process that made it. Elsewhere there is no thread to end.
    pub(crate) fn free<T>(given: Option<Box<T>>, process: impl FnOnce(&T) -> Self) {
        guard(|| {
            match given {
                Some(handle) if process(&handle) == Self::this() => drop(handle),
                Some(handle) => drop(Box::leak(handle)),
                None => {}
            }
            Ok(0)
        });
    }
}

/// Finds the page: /run/timevisor/clock, /dev/vmclock0, an ivshmem device with a page; the first
/// one that Timevisor fills. The channel to timevisord is opened at the first binding, and served
/// by one thread until the last handle is freed.
///
/// options: where to look, or NULL. A page that is named there may be truncated by its owner:
/// timevisor_survive_truncation is called for it.
/// Returns 0; -ENOENT: there is no page (timevisor_last_error says what was tried); -EINVAL. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_connect(
    options: In<'_, timevisor_options>,
    client: Out<'_, *mut timevisor_client>,
) -> c_int {
    guard(|| {
        give(client, || {
            let client = to_rust(&options)?.connect()?;
            let page = CString::new(client.page().path.as_os_str().as_bytes()).unwrap_or_default();
            Ok(timevisor_client { client, page, process: Process::this() })
        })
    })
}

fn to_rust(options: &In<'_, timevisor_options>) -> Result<Options, Failure> {
    let mut rust = Options::new();
    let Some(given) = options.get()? else { return Ok(rust) };
    reserved(given.reserved)?;
    // SAFETY: from a structure of the caller's; the header has the same rules for them as for
    // arguments.
    let [page, channel, name] =
        unsafe { [Text::new(given.page), Text::new(given.channel), Text::new(given.name)] };
    if let Some(page) = page.get("page")? {
        rust = rust.page(page);
    }
    if let Some(channel) = channel.get("channel")? {
        rust = rust.channel(ChannelAddress::parse(channel));
    }
    if let Some(name) = name.get("name")? {
        rust = rust.name(name);
    }
    if given.timeout_ns != 0 {
        rust = rust.timeout(span(given.timeout_ns, "timeout_ns")?);
    }
    Ok(rust)
}

/// Frees a client; timelines and lists of it go on working. NULL is allowed. Not while another
/// thread uses the client.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_client_free(client: Option<Box<timevisor_client>>) {
    Process::free(client, |client| client.process);
}

/// Which page is read. Valid as long as the client; NULL if the client is. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_client_page(client: Option<&timevisor_client>) -> *const c_char {
    client.map_or(ptr::null(), |client| client.page.as_ptr())
}

/// Which page and (after the first binding) which channel are used, and why others are not, in
/// lines of text.
///
/// Returns the length without the zero byte at the end; the buffer gets as much as there is room
/// for, as with snprintf. -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_client_describe(
    client: Option<&timevisor_client>,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    guard(|| {
        let text = describe(&handle(client, "client")?.client);
        // SAFETY: the caller says that the buffer has so many bytes.
        unsafe { put_text(buffer, size, &text) }
    })
}

impl timevisor_client {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn host_cpu_time(
        &self,
        vcpu: usize,
    ) -> Result<Option<HostCpuTime>, HostCpuTimeError> {
        self.client.host_cpu_time(vcpu)
    }
}

fn describe(client: &Client) -> String {
    let mut text = format!("page      {}\n", client.page().path.display());
    passed_over(&mut text, &client.page().passed_over);
    if let Some(channel) = client.channel() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "channel   {}, as {}", channel.address, channel.tenant);
        passed_over(&mut text, &channel.passed_over);
    }
    text
}

fn passed_over(text: &mut String, tried: &[Tried]) {
    for Tried { place, why } in tried {
        let _ = writeln!(text, "not       {place}: {why}");
    }
}

/// The timelines that a client may bind to, as they were when it asked. For any number of threads
/// at once.
pub struct timevisor_timeline_list {
    rows: Vec<(CString, TimelineRow)>,
}

/// Asks timevisord which timelines this client may bind to.
///
/// Returns 0, or as timevisor_bind. Any thread; waits for the answer.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timelines(
    client: Option<&timevisor_client>,
    list: Out<'_, *mut timevisor_timeline_list>,
) -> c_int {
    guard(|| {
        give(list, || {
            let client = handle(client, "client")?;
            client.process.check()?;
            let named =
                |row: TimelineRow| (CString::new(row.name.as_str()).unwrap_or_default(), row);
            let rows = client.client.timelines()?.into_iter().map(named).collect();
            Ok(timevisor_timeline_list { rows })
        })
    })
}

/// How many there are; 0 if the list is NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timeline_list_count(list: Option<&timevisor_timeline_list>) -> usize {
    list.map_or(0, |list| list.rows.len())
}

/// One of them.
///
/// Returns 0; -ENOENT: there are not so many; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timeline_list_get(
    list: Option<&timevisor_timeline_list>,
    index: usize,
    mut row: InOut<'_, timevisor_timeline_row>,
) -> c_int {
    guard(|| {
        let rows = &handle(list, "list")?.rows;
        let (name, found) = rows.get(index).ok_or_else(|| {
            Failure::new(libc::ENOENT, format!("there are {} timelines; index {index}", rows.len()))
        })?;
        row.fill(|row| {
            row.timescale = epoch(found.epoch) as i32;
            row.name = name.as_ptr();
            row.members = found.members;
            row.temporary = i32::from(found.temporary);
            timevisor_achieved::put(row.achieved, &found.achieved)?;
            // SAFETY: from a structure of the caller's; the header has the same rules for it.
            let mut required = unsafe { InOut::new(row.required) };
            required.fill_if_wanted(|required| {
                required.set(found.required.map(Requirement::from).as_ref());
                Ok(())
            })
        })?;
        Ok(0)
    })
}

/// Frees a list. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timeline_list_free(list: Option<Box<timevisor_timeline_list>>) {
    drop(list);
}
