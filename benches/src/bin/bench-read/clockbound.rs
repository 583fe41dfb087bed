//! ClockBound's clients over shared memory that is written here, in the layouts that its daemon
//! writes.
//!
//! Layout 2 (clock-bound-client 2.0.3, `clock-bound-shm/src/lib.rs`): the bound on CLOCK_REALTIME's
//! error. Layout 3 (clock-bound 3.0.0-rc.0, `src/shm.rs`): a line over the TSC. Both clients also
//! read the disruption marker from a vmclock page, as they do on EC2; that page is one of ours.
//! Each client's first answer is checked against CLOCK_REALTIME, so that what is timed is a valid
//! read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use tempfile::TempDir;
use timevisor_linux::clock;
use timevisor_linux::counter::{Calibration, Tsc};
use timevisor_linux::page::WritePage;
use timevisor_linux::page_file::{self, PageSize};
use timevisor_time::{Instant, Period, Utc};

use crate::page;

/// `SHM_MAGIC` of `clock-bound-shm/src/shm_header.rs`.
const MAGIC: [u32; 2] = [0x414d_5a4e, 0x4342_0200];
/// `ClockStatus::Synchronized`.
const SYNCHRONIZED: i32 = 1;
/// Error bound at `as_of`: covers the calibration's error over the run.
const BOUND_NS: i64 = 1_000_000;
/// The daemon's default drift, `max_drift_ppb`.
const DRIFT_PPB: u32 = 15_000;
/// How long the segment is good for; the daemon says 1000 s too.
const VALID_SECS: i64 = 1000;

/// The files that both clients read; removed when dropped.
pub(crate) struct Files {
    folder: TempDir,
    marker: u64,
    period: Period,
}

impl Files {
    /// Writes the vmclock page.
    pub(crate) fn create(calibration: &Calibration) -> Result<Self> {
        let folder = scratch_folder()?;
        let mapping = page_file::create(&folder.path().join("vmclock"), PageSize::Page)?;
        let marker = page::publish(WritePage::new(mapping)?, calibration);
        Ok(Self { folder, marker, period: calibration.period })
    }

    /// A client of layout 2, ready to be asked.
    pub(crate) fn client_2(&self) -> Result<clock_bound_client::ClockBoundClient> {
        // as_of and void_after are read on CLOCK_MONOTONIC_COARSE, which is up to a jiffy behind.
        let as_of = clock::monotonic().floor_nanos().saturating_sub(20_000_000);
        let mut body = timespec(as_of);
        body.extend(timespec(as_of + VALID_SECS * 1_000_000_000));
        body.extend(BOUND_NS.to_le_bytes());
        body.extend(self.marker.to_le_bytes());
        body.extend(DRIFT_PPB.to_le_bytes());
        body.extend(SYNCHRONIZED.to_le_bytes());
        body.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        let (segment, vmclock) = self.write("shm0", 2, &body)?;
        let mut client = clock_bound_client::ClockBoundClient::new_with_paths(&segment, &vmclock)
            .map_err(|error| anyhow!("{error:?}"))?;
        let now = client.now().map_err(|error| anyhow!("{error:?}"))?;
        let valid = now.clock_status == clock_bound_client::ClockStatus::Synchronized;
        let bounds = [
            (now.earliest.tv_sec(), now.earliest.tv_nsec()),
            (now.latest.tv_sec(), now.latest.tv_nsec()),
        ];
        ensure!(valid && contains_now(bounds), "ClockBound 2 answers {now:?}");
        Ok(client)
    }

    /// A client of layout 3, ready to be asked.
    pub(crate) fn client_3(&self) -> Result<clock_bound::Client> {
        let now = clock::bracket(&Tsc::unchecked(), 16);
        let as_of = now.realtime.floor_nanos();
        let mut body = now.before.to_le_bytes().to_vec();
        body.extend(timespec(as_of));
        body.extend(timespec(as_of + VALID_SECS * 1_000_000_000));
        body.extend(self.period.to_bits().to_le_bytes());
        body.extend(1_000_000_000_000u64.to_le_bytes());
        body.extend(BOUND_NS.to_le_bytes());
        body.extend(self.marker.to_le_bytes());
        body.extend(DRIFT_PPB.to_le_bytes());
        body.extend(SYNCHRONIZED.to_le_bytes());
        // Disruption support; the shifts of the period and of its error (1e12 / 2^64: 54 ppb).
        body.extend([1, 20, 0, 0, 0, 0, 0, 0]);
        let (segment, vmclock) = self.write("shm1", 0x0303, &body)?;
        let mut client = clock_bound::Client::new_with_paths(&segment, &vmclock)
            .map_err(|error| anyhow!("{error:?}"))?;
        let now = client.now().map_err(|error| anyhow!("{error:?}"))?;
        let valid = now.clock_status == clock_bound::ClockStatus::Synchronized;
        let bounds = [
            (now.earliest.tv_sec(), now.earliest.tv_nsec()),
            (now.latest.tv_sec(), now.latest.tv_nsec()),
        ];
        ensure!(valid && contains_now(bounds), "ClockBound 3 answers {now:?}");
        Ok(client)
    }

    /// Writes a segment: magic, size, version, generation, body. Returns its path and the vmclock
    /// page's.
    fn write(&self, name: &str, version: u16, body: &[u8]) -> Result<(String, String)> {
        let mut bytes: Vec<u8> = MAGIC.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(u32::try_from(16 + body.len())?.to_le_bytes());
        bytes.extend(version.to_le_bytes());
        // Even: complete. Zero would mean that no daemon has written yet.
        bytes.extend(2u16.to_le_bytes());
        bytes.extend(body);
        let segment = self.folder.path().join(name);
        fs::write(&segment, bytes)
            .with_context(|| format!("cannot write {}", segment.display()))?;
        Ok((text(&segment), text(&self.folder.path().join("vmclock"))))
    }
}

/// The first place that can be written to: an initramfs need not have /tmp.
fn scratch_folder() -> Result<TempDir> {
    let places = [std::env::temp_dir(), PathBuf::from("/run"), PathBuf::from("/")];
    let found = places.iter().find_map(|place| tempfile::tempdir_in(place).ok());
    found.context("no writable folder for ClockBound's files: tried $TMPDIR or /tmp, /run and /")
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn timespec(nanos: i64) -> Vec<u8> {
    let parts = [nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000)];
    parts.iter().flat_map(|part| part.to_le_bytes()).collect()
}

fn contains_now([earliest, latest]: [(i64, i64); 2]) -> bool {
    let instant = |(secs, nanos): (i64, i64)| {
        Instant::<Utc>::from_unix_nanos(i128::from(secs) * 1_000_000_000 + i128::from(nanos))
    };
    let now = clock::realtime();
    instant(earliest) <= now && now <= instant(latest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_linux::counter;

    /// `create`, `client_2` and `client_3` check themselves that the clients answer, synchronized,
    /// around now.
    #[test]
    fn both_clients_accept_what_is_written_here() {
        let calibration = counter::calibrate(&Tsc::unchecked()).unwrap();
        let files = Files::create(&calibration).unwrap();
        files.client_2().unwrap();
        files.client_3().unwrap();
    }

    #[test]
    fn the_clients_look_at_our_page_for_disruptions() {
        let calibration = counter::calibrate(&Tsc::unchecked()).unwrap();
        let mut files = Files::create(&calibration).unwrap();
        files.marker += 1;
        assert!(files.client_2().err().unwrap().to_string().contains("Unknown"));
        assert!(files.client_3().err().unwrap().to_string().contains("Disrupted"));
    }
}
