//! The KVM backend: the wanted points, the traps in place, and events. A driver stops the VM,
//! writes to its memory, and delivers the events.

use std::collections::BTreeSet;

use timevisor_protocols::channel::bucket::{Bucket, interval};
use timevisor_time::Duration;

use super::codec;
use crate::backend::Site;
use crate::backend::{Action, Backend, Input, Refused, State};
use crate::point::{Point, limits};
use timevisor_time::CounterRatio;

/// Maximum events of one guest: per second, and in a burst.
const RATE_HZ: u32 = 20_000;
const BURST: u32 = 20_000;
/// Maximum number of addresses in total beyond the first of each point.
const MORE: usize = 1024;

/// One VM under KVM.
#[derive(Debug)]
pub struct Kvm {
    sites: Vec<Site>,
    points: Vec<Point>,
    state: State,
    ratio: CounterRatio,
    next: u64,
    dropped: u64,
    limit: Bucket,
}

impl Kvm {
    /// A backend for points at these sites, in the order of the points. The guest's counter runs at
    /// `ratio` times the host's rate.
    #[must_use]
    pub fn new(sites: Vec<Site>, ratio: CounterRatio) -> Self {
        Self {
            sites,
            points: Vec::new(),
            state: State::Away,
            ratio,
            next: 0,
            dropped: 0,
            limit: Bucket::new(interval(RATE_HZ), BURST),
        }
    }

    fn event(&mut self, bytes: &[u8], now: Duration) -> Vec<Action> {
        self.limit.charge(now);
        let Some(event) = codec::event(bytes, self.next, self.ratio) else {
            return vec![Action::Close("the kernel's programs told nonsense".to_owned())];
        };
        self.next += 1;
        vec![Action::Event(event)]
    }
}

impl Backend for Kvm {
    fn name(&self) -> &'static str {
        "kvm"
    }

    fn state(&self) -> State {
        self.state
    }

    fn attach(&mut self, points: &[Point], _now: Duration) -> Result<Vec<Action>, Refused> {
        // Points that share an id are one point at several addresses.
        let kinds = points.iter().map(|point| point.id).collect::<BTreeSet<_>>().len();
        if kinds > limits::POINTS || points.len() - kinds > MORE {
            return Err(Refused::Points(points.len(), limits::POINTS + MORE));
        }
        let sites = points.iter().enumerate().map(|(index, point)| {
            let site = self.sites.get(index).filter(|site| site.point == point.id);
            let fits = point.reads.len() <= limits::READS
                && point.reads.iter().map(|read| usize::from(read.len)).sum::<usize>()
                    <= limits::DATA;
            site.filter(|_| fits).copied().ok_or(Refused::Reads(point.id))
        });
        let sites = sites.collect::<Result<Vec<_>, _>>()?;
        self.points = points.to_vec();
        self.state = State::Changing;
        Ok(vec![Action::Put(sites)])
    }

    fn detach(&mut self, _now: Duration) -> Vec<Action> {
        self.points.clear();
        self.state = State::Changing;
        vec![Action::Take]
    }

    fn handle(&mut self, input: Input<'_>, now: Duration) -> Vec<Action> {
        match input {
            Input::Connected | Input::Taken => {
                self.state = State::Detached;
                if input == Input::Taken { vec![Action::Detached] } else { Vec::new() }
            }
            Input::Put => {
                self.state = State::Attached;
                vec![Action::Attached(self.points.len())]
            }
            Input::Closed => {
                self.state = State::Away;
                Vec::new()
            }
            Input::Bytes(bytes) => self.event(bytes, now),
            Input::Dropped(dropped) if dropped > self.dropped => {
                self.dropped = dropped;
                vec![Action::Dropped(dropped)]
            }
            Input::Dropped(_) | Input::Timer => Vec::new(),
        }
    }

    fn may_read(&self, now: Duration) -> bool {
        self.limit.ready_at() <= now
    }

    fn poll_at(&self, now: Duration) -> Option<Duration> {
        Some(self.limit.ready_at()).filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::{Read, Register, SLOT};

    fn point(id: u16) -> Point {
        Point {
            id,
            symbol: "f".into(),
            address: 0x1000,
            expected: SLOT,
            reads: vec![Read::value(Register::Rdi)],
            filter: None,
        }
    }

    fn record(scaled: u64) -> Vec<u8> {
        let mut bytes = scaled.to_le_bytes().to_vec();
        bytes.extend([1, 0, 0, 0, 0, 0, 8, 0]);
        bytes.extend(7u64.to_le_bytes());
        bytes
    }

    const NOW: Duration = Duration::from_nanos(1);

    #[test]
    fn attach_and_detach() {
        let site = Site { point: 1, address: 0x2000 };
        let mut kvm = Kvm::new(vec![site], CounterRatio::ONE);
        assert_eq!(kvm.state(), State::Away);
        kvm.handle(Input::Connected, NOW);
        assert_eq!(kvm.attach(&[point(2)], NOW), Err(Refused::Reads(2)), "no site");
        let large = Point { reads: vec![Read::at(Register::Rsi, 0, 200); 2], ..point(1) };
        assert_eq!(kvm.attach(&[large], NOW), Err(Refused::Reads(1)));
        let many: Vec<Point> = (1..=33).map(point).collect();
        assert!(matches!(kvm.attach(&many, NOW), Err(Refused::Points(33, _))));
        let places = vec![point(1); MORE + 2];
        assert!(matches!(kvm.attach(&places, NOW), Err(Refused::Points(..))));
        assert_eq!(kvm.attach(&[point(1), point(1)], NOW), Err(Refused::Reads(1)), "one site");
        let sites = vec![site, Site { point: 1, address: 0x3000 }];
        let mut several = Kvm::new(sites.clone(), CounterRatio::ONE);
        assert_eq!(several.attach(&[point(1), point(1)], NOW), Ok(vec![Action::Put(sites)]));
        assert_eq!(kvm.attach(&[point(1)], NOW), Ok(vec![Action::Put(vec![site])]));
        assert_eq!(kvm.state(), State::Changing);
        assert_eq!(kvm.handle(Input::Put, NOW), [Action::Attached(1)]);
        assert_eq!(kvm.detach(NOW), [Action::Take]);
        assert_eq!(kvm.handle(Input::Taken, NOW), [Action::Detached]);
        assert_eq!(kvm.state(), State::Detached);
    }

    #[test]
    fn events_have_their_time_and_keep_their_order() {
        let half = CounterRatio { mul: 1 << 47, frac_bits: 48 };
        let mut kvm = Kvm::new(Vec::new(), half);
        for (number, scaled) in [(0, 1_500), (1, 2_500)] {
            let told = kvm.handle(Input::Bytes(&record(scaled)), NOW);
            let [Action::Event(event)] = &told[..] else { panic!("{told:?}") };
            assert_eq!((event.sequence, event.point), (number, 1));
            // Every counter that is scaled to this one.
            let (counter, error) = (event.counter.unwrap(), event.counter_error);
            assert!(counter - error <= 2 * scaled && 2 * scaled < counter + error && error < 3);
        }
        assert_eq!(kvm.handle(Input::Dropped(3), NOW), [Action::Dropped(3)]);
        assert!(kvm.handle(Input::Dropped(3), NOW).is_empty());
        assert!(matches!(kvm.handle(Input::Bytes(&[1]), NOW)[..], [Action::Close(_)]));
    }

    #[test]
    fn a_guest_that_floods_waits() {
        let mut kvm = Kvm::new(Vec::new(), CounterRatio::ONE);
        for _ in 0..BURST + 100 {
            kvm.handle(Input::Bytes(&record(9)), NOW);
        }
        assert!(!kvm.may_read(NOW) && kvm.poll_at(NOW).is_some());
    }
}
