//! Clusters whose members this server answers: each is the server's own clock under a name, or a
//! timeline of the cluster's own, and knows whom to refer askers to.

use core::fmt::Debug;
use core::net::SocketAddr;

use timevisor_time::Duration;

use crate::ntp::precise::{Asker, Member, Name, Referrals};

/// Knows the servers of a cluster.
pub trait Referrer: Debug + Send {
    /// A member asks, which serves others at `by`. Returns other servers to name. With port 0 it answers
    /// nobody, and nobody is referred to it.
    fn asked(&mut self, by: SocketAddr, asker: Asker, now: Duration) -> Referrals;

    /// Somebody who is no member asks who its members are. Returns some, other ones each time.
    fn some(&mut self) -> Referrals;
}

/// A cluster that this server serves.
#[derive(Debug)]
pub struct Cluster {
    /// The name by which its members ask.
    pub name: Name,
    /// It is a timeline of its own: the server's clock is none of its time.
    pub is_timeline: bool,
    /// Only those are answered who ask with the secret that [`Protector::share`] was given under this
    /// name; `None`: everybody.
    ///
    /// [`Protector::share`]: crate::nts::server::Protector::share
    pub secret: Option<Name>,
    /// Whom they are referred to.
    pub referrer: Box<dyn Referrer>,
}

impl Cluster {
    /// Answers who asked from `from`, as a member or not.
    pub(super) fn asked(
        &mut self,
        from: SocketAddr,
        member: Option<Member>,
        now: Duration,
    ) -> Referrals {
        let Some(member) = member else { return self.referrer.some() };
        let Member { asker, port } = member;
        // With port 0 it serves nobody. It asks from another port each time, and is one member nevertheless.
        self.referrer.asked(SocketAddr::new(from.ip().to_canonical(), port), asker, now)
    }
}
