//! What a liar says.

use std::net::SocketAddr;

use timevisor_cluster::children::{Asker, Children};
use timevisor_protocols::ntp::precise::Referrals as Wire;
use timevisor_protocols::ntp::server::Referrer;
use timevisor_time::Duration;

use super::plan::{Lie, Referrals};
use super::world::address;

/// By how much a liar is off for this host now; `None` if it is right about the time.
pub fn offset(lie: Lie, asker: usize, now: u64) -> Option<Duration> {
    let ns = match lie {
        Lie::Offset(ns) => ns,
        Lie::Ramp(ns) => (i128::from(ns) * i128::from(now) / 1_000_000_000).try_into().ok()?,
        Lie::TwoFaced(ns) => {
            let share = i64::try_from(asker * 7 % 5).ok()? - 2;
            ns / 2 * share
        }
        Lie::Level(_) | Lie::Silence | Lie::Referrals(_) => return None,
    };
    Some(Duration::from_nanos(ns))
}

/// Children who are named, or others instead.
#[derive(Debug)]
pub struct Misleading {
    pub children: Children<SocketAddr>,
    pub to: Option<Referrals>,
    pub own: SocketAddr,
}

impl Misleading {
    fn others(&self, right: Wire, asker: Option<SocketAddr>) -> Wire {
        match self.to {
            None => right,
            Some(Referrals::Nowhere) => Wire::new((200..208).map(address)),
            Some(Referrals::Itself) => Wire::new([self.own; 8]),
            Some(Referrals::TheAsker) => Wire::new(asker),
            Some(Referrals::Stranger) => Wire::new(["192.168.7.7:123".parse().unwrap()]),
        }
    }
}

impl Referrer for Misleading {
    fn asked(&mut self, by: SocketAddr, asker: Asker, now: Duration) -> Wire {
        let right = Referrer::asked(&mut self.children, by, asker, now);
        self.others(right, Some(by))
    }

    fn some(&mut self) -> Wire {
        let right = Referrer::some(&mut self.children);
        self.others(right, None)
    }
}
