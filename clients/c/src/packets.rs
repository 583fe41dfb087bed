//! [`timevisor_packet_stamps`]: the kernel's stamps of packets as counter values.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;

use timevisor::PacketStamps;

use crate::error::guard;
use crate::memory::{Number, Out, give, handle};
use crate::timeline::timevisor_timeline;

/// Watches CLOCK_REALTIME, so that stamps of packets can be placed on the counter. For any number
/// of threads at once.
pub struct timevisor_packet_stamps {
    stamps: PacketStamps,
}

/// Begins to watch CLOCK_REALTIME. Do this before the socket is opened: stamps from before cannot
/// be converted. The timeline may be freed first.
///
/// Returns 0; -ENOTSUP: a clock for tests, or a kernel that follows a pulse per second; -EMFILE and
/// others: the kernel refused a timer; otherwise as timevisor_now. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_packet_stamps_open(
    timeline: Option<&timevisor_timeline>,
    stamps: Out<'_, *mut timevisor_packet_stamps>,
) -> c_int {
    guard(|| {
        give(stamps, || {
            let stamps = handle(timeline, "timeline")?.timeline.packet_stamps()?;
            Ok(timevisor_packet_stamps { stamps })
        })
    })
}

/// The counter values between which the kernel stamped a packet. Call it soon: a stamp that is 1 ms
/// old is known to 0.25 ms, because of how fast CLOCK_REALTIME can be slewed. Give both values to
/// timevisor_convert_between, now or later.
///
/// realtime_ns: the software stamp of SCM_TIMESTAMPING or SCM_TIMESTAMPNS, tv_sec * 1000000000 +
/// tv_nsec.
/// Returns 0; -ESTALE: CLOCK_REALTIME was set, and every call from now on says so: discard the
/// packets that wait in the socket, and open new packet stamps; -ERANGE: a stamp from before they
/// were opened, or from the future; -EINVAL: also when `first` and `last` are the same pointer;
/// -EIO, -EIDRM. Any thread; a short lock.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_stamp_of_packet(
    stamps: Option<&timevisor_packet_stamps>,
    realtime_ns: i64,
    first: Number<'_, u64>,
    last: Number<'_, u64>,
) -> c_int {
    guard(|| {
        first.check_pair(&last)?;
        let found = handle(stamps, "packet stamps")?.stamps.stamp_of(realtime_ns)?;
        first.write(found.0);
        last.write(found.1);
        Ok(0)
    })
}

/// Frees them. NULL is allowed. Not while another thread uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_packet_stamps_free(stamps: Option<Box<timevisor_packet_stamps>>) {
    drop(stamps);
}
