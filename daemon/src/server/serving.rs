//! The server's thread: waits for requests, reads the page, answers.
//!
//! Time stamps are sound bounds: an arrival's stamp is never too early, and a departure's never too
//! late. The kernel's stamps move both closer to the truth, as far as the brackets around them
//! prove it (crates/linux, `stamps`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};

use anyhow::{Context, Result};
use timevisor_clock_page::reader::{check, counter_of};
use timevisor_clock_page::{ClockStatus, Counter, ReadError, Reader, Reading};
use timevisor_linux::clock::{Bracket, bracket, monotonic};
use timevisor_linux::counter::{Calibration, HostCounter};
use timevisor_linux::page::ReadPage;
use timevisor_linux::page_file;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::stamps::{KERNEL_SLEW_LIMIT, StampMap};
use timevisor_linux::udp_server::{BATCH, Batch, UdpServer};
use timevisor_protocols::ntp::precise::{Bounds, Errors, Name, Status};
use timevisor_protocols::ntp::server::{
    Action, Departure, LeapPlan, PreciseTime, ServedClock, ServedTime, Server, Unsynchronized,
};
use timevisor_time::{Duration, Instant, Utc};

use super::clients::ClientList;
use super::timeline::{self, Moments};
use super::{Counts, Facts, TimelineFacts, Told, nonnegative, nts};

/// How long the thread sleeps without requests. Then it reads new facts and renews the bracket
/// before the next request, which limits how far CLOCK_REALTIME can have been slewed meanwhile.
const IDLE: Duration = Duration::from_millis(500);
/// Upper limit of the time between composing a reply and its departure, unless the machine stalls.
/// The reply's error includes the bound's growth until then.
const SEND_HORIZON: Duration = Duration::from_millis(10);
/// Maximum number of batches served from one socket before the other sockets get their turn.
const BATCHES_IN_TURN: usize = 8;
/// A departure's time stamp that has not arrived after this many later departures is considered
/// lost.
const MAX_PENDING: usize = 256;
/// The reference id of a local clock that follows no NTP server (as in chronyd and ntpd).
const LOCAL_ID: [u8; 4] = [127, 127, 1, 1];

/// A departure for which a kernel time stamp was requested.
struct Pending {
    token: u64,
    departure: Departure,
    /// The bracket taken before the reply was composed.
    before: Bracket,
    /// The time at which the reply was composed.
    composed: u64,
}

pub(super) struct Serving {
    sockets: Vec<UdpServer>,
    clock: PageClock,
    server: Server,
    batch: Batch,
    /// CLOCK_REALTIME at a moment when no request was waiting on any socket.
    quiet: Bracket,
    pending: VecDeque<Pending>,
    next_token: u64,
    /// `None` where NTS is not served.
    keys: Option<nts::Keys>,
}

/// The page, and the facts that it lacks.
struct PageClock {
    reader: Reader<ReadPage, HostCounter>,
    calibration: Calibration,
    /// [`SEND_HORIZON`] in ticks.
    horizon: u64,
    precision: i8,
    stratum: u8,
    facts: Option<Facts>,
    /// Clusters' own.
    timelines: Vec<TimelineFacts>,
}

impl Serving {
    pub(super) fn new(
        sockets: Vec<UdpServer>,
        server: Server,
        page: &Path,
        calibration: Calibration,
        stratum: u8,
        keys: Option<nts::Keys>,
    ) -> Result<Self> {
        let clock = PageClock::open(page, calibration, stratum)?;
        let quiet = bracket(clock.reader.counter(), 3);
        Ok(Self {
            sockets,
            clock,
            server,
            batch: Batch::default(),
            quiet,
            pending: VecDeque::new(),
            next_token: 0,
            keys,
        })
    }

    /// Serves until the daemon ends.
    pub(super) fn run(mut self, told: &Receiver<Told>, counts: &Counts, clients: &ClientList) {
        loop {
            let mut fds: Vec<_> =
                self.sockets.iter().map(|s| PollFd::readable(s.as_fd())).collect();
            if let Err(error) = wait(&mut fds, Some(nonnegative(IDLE))) {
                tracing::error!("the NTP server cannot wait for requests and ends: {error}");
                return;
            }
            let ready: Vec<_> = fds.iter().map(PollFd::ready).collect();
            loop {
                match told.try_recv() {
                    Ok(Told { facts, timelines }) => {
                        (self.clock.facts, self.clock.timelines) = (Some(facts), timelines);
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            for (index, ready) in ready.iter().enumerate() {
                if ready.error {
                    self.take_departures(index, true);
                }
                if ready.readable {
                    self.serve(index);
                }
            }
            if !ready.iter().any(|ready| ready.readable) {
                self.quiet = bracket(self.clock.reader.counter(), 3);
            }
            clients.make(self.server.clients());
            for (count, value) in counts.iter().zip(self.server.counters().all()) {
                count.store(*value, Ordering::Relaxed);
            }
        }
    }

    fn serve(&mut self, index: usize) {
        for _ in 0..BATCHES_IN_TURN {
            let received = match self.sockets[index].receive(&mut self.batch) {
                Ok(received) => received,
                Err(error) => {
                    tracing::debug!("the NTP server cannot receive: {error}");
                    return;
                }
            };
            if received == 0 {
                return;
            }
            let arrived = self.clock.reader.counter().read_ordered();
            let after = bracket(self.clock.reader.counter(), 1);
            let map = self.clock.stamp_map(self.quiet, after);
            let now = monotonic();
            self.renew_keys();
            for request in 0..received {
                self.answer(request, now, arrived, map.as_ref(), after);
            }
            self.sockets[index].send(&mut self.batch);
            self.take_departures(index, false);
            if received < BATCH {
                // All later arrivals follow this bracket.
                self.quiet = after;
                return;
            }
        }
    }

    fn answer(
        &mut self,
        index: usize,
        now: Duration,
        arrived: u64,
        map: Option<&StampMap>,
        before: Bracket,
    ) {
        let Some(request) = self.batch.request(index).filter(|request| !request.truncated) else {
            return;
        };
        let stamped = request.stamp.and_then(|stamp| map?.receive_bound(stamp));
        let arrived = stamped.map_or(arrived, |stamped| stamped.min(arrived));
        let from: SocketAddr = request.from;
        let (clock, received, composed) = match self.server.asks_for(request.bytes) {
            Some(timeline) => self.clock.timeline_at(timeline, arrived, now),
            None => self.clock.at(arrived),
        };
        match self.server.respond(now, request.bytes, received, &clock, from) {
            Action::Reply { bytes, departure } => {
                let token = self.expect(departure, before, composed);
                self.batch.reply(index, &bytes, token);
            }
            Action::Protected { departure, .. } => {
                let token = self.expect(departure, before, composed);
                self.batch.reply(index, self.server.protected(), token);
            }
            Action::Kiss { bytes } => self.batch.reply(index, &bytes, None),
            Action::Drop(_) => {}
        }
    }

    /// Takes the keys of NTS cookies if there are new ones. A cookie of these requests may be sealed
    /// with the newest, so this comes after they have arrived.
    fn renew_keys(&mut self) {
        if let Some(keys) = self.keys.as_mut().and_then(nts::Keys::changed)
            && let Some(protector) = self.server.nts()
        {
            protector.set_keys(&keys);
        }
    }

    /// Returns the token by which the departure of a reply will be reported, if it is wanted.
    fn expect(
        &mut self,
        departure: Option<Departure>,
        before: Bracket,
        composed: u64,
    ) -> Option<u64> {
        let departure = departure?;
        self.next_token += 1;
        let token = self.next_token;
        self.pending.push_back(Pending { token, departure, before, composed });
        Some(token)
    }

    /// Tells the server when replies left, as far as the kernel has reported it. `woken`: poll
    /// reported a time stamp or an error on this socket.
    fn take_departures(&mut self, index: usize, woken: bool) {
        let stamps = self.sockets[index].departures();
        if stamps.is_empty() {
            if woken {
                // Read and drop any error, because otherwise poll would return immediately forever.
                self.sockets[index].forget_departures();
            }
        } else {
            let after = bracket(self.clock.reader.counter(), 1);
            for (token, stamp) in stamps {
                self.departed(token, stamp, after);
            }
        }
        while self.pending.len() > MAX_PENDING {
            self.pending.pop_front();
        }
    }

    fn departed(&mut self, token: u64, stamp: Instant<Utc>, after: Bracket) {
        let Some(at) = self.pending.iter().position(|pending| pending.token == token) else {
            return;
        };
        let Some(pending) = self.pending.remove(at) else { return };
        let Some(map) = self.clock.stamp_map(pending.before, after) else { return };
        let Some(left) = map.send_bound(stamp) else { return };
        if let Some((utc, errors)) = self.clock.utc_at(left.max(pending.composed)) {
            self.server.departed(pending.departure, utc, errors);
        }
    }
}

impl PageClock {
    fn open(page: &Path, calibration: Calibration, stratum: u8) -> Result<Self> {
        let page = ReadPage::new(page_file::open(page)?).context("the page cannot be used")?;
        check(&page)?;
        let id = counter_of(&page, 0);
        let counter = HostCounter::for_reader(id)
            .with_context(|| format!("the page counts {}, which is not here", id.name()))?;
        let reader = Reader::open(page, counter, 0)?;
        let precision = precision(&reader, &calibration)?;
        let horizon = calibration.period.ticks_in(SEND_HORIZON);
        Ok(Self {
            reader,
            calibration,
            horizon,
            precision,
            stratum,
            facts: None,
            timelines: Vec::new(),
        })
    }

    fn stamp_map(&self, before: Bracket, after: Bracket) -> Option<StampMap> {
        let limit = KERNEL_SLEW_LIMIT.plus(self.calibration.error);
        StampMap::new(before, after, self.calibration.period, limit)
    }

    /// Returns the clock to serve to a request that arrived at a counter value, UTC at its arrival,
    /// and the current counter value.
    fn at(&self, arrived: u64) -> (ServedClock, Instant<Utc>, u64) {
        let readings = || -> Result<_, ReadError> {
            let at_arrival = self.reader.convert(arrived)?;
            let now = self.reader.read()?;
            let later = self.reader.convert(now.counter.wrapping_add(self.horizon))?;
            Ok((at_arrival, now, later))
        };
        let Ok((at_arrival, now, later)) = readings() else {
            // The daemon died in the middle of an update.
            return (ServedClock::Unknown(Unsynchronized::Contradicted), EPOCH, 0);
        };
        let (clock, received) = self.served(&at_arrival, &now, &later);
        (clock, received, now.counter)
    }

    /// The same of a cluster's own timeline; UTC stands for it.
    fn timeline_at(
        &self,
        name: Name,
        arrived: u64,
        monotonic: Duration,
    ) -> (ServedClock, Instant<Utc>, u64) {
        let composed = self.reader.counter().read_ordered();
        let left = composed.wrapping_add(self.horizon);
        let facts = self.timelines.iter().find(|facts| facts.name == name);
        let at = Moments { arrived, composed, left };
        let served = facts.map(|facts| timeline::served(facts, at, self.precision, monotonic));
        let starting = (ServedClock::Unknown(Unsynchronized::Starting), EPOCH);
        let (clock, received) = served.unwrap_or(starting);
        (clock, received, composed)
    }

    fn served(
        &self,
        at_arrival: &Reading,
        now: &Reading,
        later: &Reading,
    ) -> (ServedClock, Instant<Utc>) {
        let unknown = |why| (ServedClock::Unknown(why), EPOCH);
        if !now.has_estimate() {
            return unknown(Unsynchronized::Starting);
        }
        let status = match now.status() {
            ClockStatus::Unreliable => return unknown(Unsynchronized::Contradicted),
            ClockStatus::Unknown => return unknown(Unsynchronized::Starting),
            ClockStatus::Initializing => Status::Initializing,
            ClockStatus::Synchronized => Status::Synchronized,
            ClockStatus::FreeRunning => Status::FreeRunning,
        };
        let Some((facts, leap)) = self.facts.and_then(|facts| Some((facts, facts.leap?))) else {
            return unknown(Unsynchronized::Starting);
        };
        let utc = |reading: &Reading| leap.utc(reading.estimate.relabel());
        let (Some((received, _)), Some((transmit, pending))) = (utc(at_arrival), utc(now)) else {
            return (ServedClock::Mute, EPOCH);
        };
        if at_arrival.disruption != now.disruption || later.disruption != now.disruption {
            return (ServedClock::Mute, EPOCH);
        }
        let bounds =
            Bounds { receive: errors(at_arrival), transmit: errors(now).hull(&errors(later)) };
        let (stratum, reference_id) = match facts.upstream {
            Some(upstream) => (upstream.stratum.saturating_add(1), upstream.id),
            None => (self.stratum, LOCAL_ID),
        };
        let time = ServedTime {
            transmit,
            error: bounds.largest(),
            leap: pending,
            stratum,
            reference_id,
            reference: self.updated(&facts, &leap, now),
            precision: self.precision,
            precise: Some(PreciseTime {
                bounds,
                status,
                epoch: now.disruption,
                generation: now.generation().into(),
                timeline: None,
            }),
        };
        (ServedClock::Known(time), received)
    }

    /// Returns when the newest exchange arrived, by the period alone: nothing is computed from this
    /// value.
    fn updated(&self, facts: &Facts, leap: &LeapPlan, now: &Reading) -> Instant<Utc> {
        let age = self.calibration.period.span(now.counter.saturating_sub(facts.as_of));
        leap.utc((now.estimate - age).relabel()).map_or(EPOCH, |(utc, _)| utc)
    }

    /// Returns UTC at a counter value and its errors.
    fn utc_at(&self, counter: u64) -> Option<(Instant<Utc>, Errors)> {
        let reading = self.reader.convert(counter).ok().filter(Reading::has_estimate)?;
        let (utc, _) = self.facts?.leap?.utc(reading.estimate.relabel())?;
        Some((utc, errors(&reading)))
    }
}

/// The page's interval around its estimate.
fn errors(reading: &Reading) -> Errors {
    let Reading { earliest, estimate, latest, .. } = *reading;
    Errors { below: estimate - earliest, above: latest - estimate }
}

const EPOCH: Instant<Utc> = Instant::from_bits(0);

/// Returns log2 of the duration of a reading in seconds, rounded up: the precision of RFC 5905
/// section 7.3. The duration is the shortest interval between consecutive readings out of many, or
/// one tick of the counter if that is longer.
fn precision(reader: &Reader<ReadPage, HostCounter>, calibration: &Calibration) -> Result<i8> {
    let mut least = u64::MAX;
    let mut before = reader.read()?.counter;
    for _ in 0..64 {
        let now = reader.read()?.counter;
        least = least.min(now.wrapping_sub(before).max(1));
        before = now;
    }
    let span = calibration.period.span(least).max(calibration.period.span(1));
    Ok(log2_ceil(span))
}

/// Returns the smallest n with 2^n s >= `span`, between -32 (the resolution of NTP's time stamps)
/// and 0.
fn log2_ceil(span: Duration) -> i8 {
    (-32..0).find(|n| span.to_bits() <= 1i128 << (64 + i32::from(*n))).unwrap_or(0)
}

#[cfg(test)]
pub(super) mod tests;
