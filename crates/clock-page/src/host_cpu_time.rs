//! How much processor time the host has given each vCPU, as the VM's page tells it. A guest's own
//! clocks cannot tell: they also count the time for which its vCPU waited.
//!
//! A sample stays usable after it was taken: a vCPU can have run at most as long as the time that
//! has passed since. A reading is therefore an interval. Compare two readings only while the
//! disruption marker is the same, because another host runs the vCPUs in other threads. Limitation:
//! the page has room for [`vcpus::CAPACITY`] vCPUs; further ones are not told.

use core::ops::Deref;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::abi::vcpus;
use crate::page::{Page, WritablePage};
use crate::reader::{ReadError, Reader, Waiting};
use crate::seqlock::{read_begin, read_valid, write_begin, write_end};
use crate::{Counter, PageWriter};

/// One sample of the host; every time was read after `base`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample<'a> {
    /// The readers' counter, read before the first of `ran_ns`.
    pub base: u64,
    /// How far the kernel's account of a running thread may lag.
    pub lag_ns: u64,
    /// How long each vCPU's thread has run, by the vCPU's index; `None` where that is not known.
    pub ran_ns: &'a [Option<u64>],
}

/// The processor time that a vCPU has had since its thread began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCpuTime {
    /// Lower bound.
    pub least_ns: u64,
    /// Upper bound.
    pub most_ns: u64,
    /// Changes when earlier readings may be of other threads.
    pub disruption: u64,
}

/// The page's value for "not known". No thread runs for 584 years.
const NOT_KNOWN: u64 = u64::MAX;

impl<P: WritablePage> PageWriter<P> {
    /// Writes a sample; `None` takes it off the page.
    pub fn write_host_cpu_time(&self, sample: Option<&Sample<'_>>) {
        let words = self.page().vcpus();
        if sample.is_none() && words[vcpus::SEQUENCE].load(Relaxed) == 0 {
            return;
        }
        let odd = write_begin(&words[vcpus::SEQUENCE]);
        let (base, lag, ran) = sample.map_or((0, 0, &[][..]), |s| (s.base, s.lag_ns, s.ran_ns));
        let count = ran.len().min(vcpus::CAPACITY);
        words[vcpus::BASE].store(base, Relaxed);
        words[vcpus::LAG].store(lag, Relaxed);
        words[vcpus::COUNT].store(count as u64, Relaxed);
        for (word, ran) in words[vcpus::FIRST..].iter().zip(ran) {
            word.store(ran.unwrap_or(NOT_KNOWN), Relaxed);
        }
        write_end(&words[vcpus::SEQUENCE], odd);
    }
}

impl<P: Deref<Target = Page>, C: Counter> Reader<P, C> {
    /// How much processor time vCPU `index` has had; `None` while that or the counter's rate is
    /// unknown.
    ///
    /// # Errors
    /// [`ReadError::WriterStalled`] when the writer died inside an update.
    pub fn host_cpu_time(&self, index: usize) -> Result<Option<HostCpuTime>, ReadError> {
        if index >= vcpus::CAPACITY {
            return Ok(None);
        }
        let words: &[AtomicU64] = self.page().vcpus();
        let word = |index: usize| words[index].load(Relaxed);
        let mut waiting = Waiting::default();
        let (now, base, lag, ran) = loop {
            if let Some(even) = read_begin(&words[vcpus::SEQUENCE]) {
                let known = (index as u64) < word(vcpus::COUNT);
                let ran = if known { word(vcpus::FIRST + index) } else { NOT_KNOWN };
                let found =
                    (self.counter().read_ordered(), word(vcpus::BASE), word(vcpus::LAG), ran);
                if read_valid(&words[vcpus::SEQUENCE], even) {
                    break found;
                }
            }
            if self.gave_up(&mut waiting) {
                return Err(ReadError::WriterStalled);
            }
        };
        // The clock's reading tells whether the page is this host's, and the limits of the
        // counter's rate.
        let (reading, lines) = (self.convert(now)?, self.lines()?);
        if ran == NOT_KNOWN || !reading.has_estimate() {
            return Ok(None);
        }
        // Counters of two processors may differ slightly, so this one may be before the base.
        let ticks = if now.wrapping_sub(base) >> 63 == 0 { now.wrapping_sub(base) } else { 0 };
        let passed = lines.rate_limits().1.span_ceil(ticks).ceil_nanos();
        let most_ns =
            ran.saturating_add(lag).saturating_add(u64::try_from(passed).unwrap_or(u64::MAX));
        Ok(Some(HostCpuTime { least_ns: ran, most_ns, disruption: reading.disruption }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::tests::{identity, tsc, update};
    use core::sync::atomic::Ordering;

    #[test]
    fn what_was_sampled_is_read_with_what_may_have_run_since() {
        let page = Page::new();
        let mut writer = PageWriter::take_over(&page, identity(), Some(37));
        let reader = Reader::open(&page, tsc(5000), 0).unwrap();
        let ran = [Some(700), None, Some(u64::MAX - 1)];
        writer.write_host_cpu_time(Some(&Sample { base: 5000, lag_ns: 10, ran_ns: &ran }));
        assert_eq!(reader.host_cpu_time(0), Ok(None), "how fast it counts is not known yet");
        writer.publish(&update(5000, 0), &tsc(5000));
        // A tick is about 1 ns.
        let later = Reader::open(&page, tsc(6000), 0).unwrap();
        let found = later.host_cpu_time(0).unwrap().unwrap();
        assert_eq!(found.least_ns, 700);
        assert!((1710..1715).contains(&found.most_ns), "{found:?}");
        assert_eq!(later.host_cpu_time(1), Ok(None));
        assert_eq!(later.host_cpu_time(2).unwrap().unwrap().most_ns, u64::MAX);
        assert_eq!((later.host_cpu_time(3), later.host_cpu_time(99)), (Ok(None), Ok(None)));
        // Read on a processor whose counter is a little behind.
        let behind = Reader::open(&page, tsc(4990), 0).unwrap();
        assert_eq!(behind.host_cpu_time(0).unwrap().unwrap().most_ns, 710);
    }

    #[test]
    fn golden_words() {
        let page = Page::new();
        let writer = PageWriter::take_over(&page, identity(), Some(37));
        writer.write_host_cpu_time(Some(&Sample { base: 7, lag_ns: 8, ran_ns: &[Some(9), None] }));
        let bytes = page.bytes();
        let words = bytes[0xf80..].chunks_exact(8);
        let words: Vec<u64> = words.map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words[..7], [2, 7, 8, 2, 9, u64::MAX, 0]);
        writer.write_host_cpu_time(Some(&Sample { base: 0, lag_ns: 0, ran_ns: &[Some(1); 20] }));
        let bytes = page.bytes();
        assert_eq!((bytes[0xf98], bytes[0xff8]), (12, 1), "as many as there is room for");
    }

    #[test]
    fn what_is_not_of_this_host_is_not_read() {
        let page = Page::new();
        let mut writer = PageWriter::take_over(&page, identity(), Some(37));
        writer.publish(&update(0, 0), &tsc(0));
        let sample = Sample { base: 0, lag_ns: 0, ran_ns: &[Some(1)] };
        writer.write_host_cpu_time(Some(&sample));
        let reader = Reader::open(&page, tsc(10), 0).unwrap();
        let before = reader.host_cpu_time(0).unwrap().unwrap();
        // QEMU loads the page with the VM, and moves the marker on.
        let marker = page.word(crate::abi::vmclock::AT_DISRUPTION);
        marker.fetch_add(1, Ordering::Relaxed);
        assert_eq!(reader.host_cpu_time(0), Ok(None));
        marker.fetch_sub(1, Ordering::Relaxed);
        writer.disrupt();
        writer.publish(&update(0, 0), &tsc(0));
        assert_ne!(reader.host_cpu_time(0).unwrap().unwrap().disruption, before.disruption);
        writer.write_host_cpu_time(None);
        assert_eq!(reader.host_cpu_time(0), Ok(None));
        // Nor does a page keep it when a writer takes it over.
        writer.write_host_cpu_time(Some(&sample));
        writer.start_over(identity(), Some(37));
        writer.publish(&update(0, 0), &tsc(0));
        assert_eq!(reader.host_cpu_time(0), Ok(None));
    }

    #[test]
    fn a_writer_that_died_inside_is_told_and_repaired() {
        let page = Page::new();
        let mut writer = PageWriter::take_over(&page, identity(), Some(37));
        writer.publish(&update(0, 0), &tsc(0));
        write_begin(&page.vcpus()[vcpus::SEQUENCE]);
        let reader = Reader::open(&page, tsc(0), 0).unwrap();
        assert_eq!(reader.host_cpu_time(0), Err(ReadError::WriterStalled));
        writer.write_host_cpu_time(Some(&Sample { base: 0, lag_ns: 0, ran_ns: &[Some(1)] }));
        assert_eq!(reader.host_cpu_time(0).unwrap().unwrap().least_ns, 1);
    }
}
