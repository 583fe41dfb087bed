//! `clusters`: the clocks of the clusters that this host belongs to.

use timevisor_clock_page::Counter;
use timevisor_linux::clock::monotonic;
use timevisor_protocols::control::{ClusterClock, Clusters};
use timevisor_time::Duration;

use crate::clock::HostClock;
use crate::config::{ClusterConfig, Config};
use crate::references::Reference;
use crate::timelines::ClusterTimelines;

/// UTC of every cluster first, then their own timelines.
pub fn clusters(
    config: &Config,
    clock: &HostClock,
    references: &[Reference],
    timelines: &ClusterTimelines,
) -> Clusters {
    let counter = clock.counter.read_ordered();
    let mut clocks: Vec<ClusterClock> =
        references.iter().filter_map(|reference| reference.cluster(counter)).collect();
    let is_served = |cluster: &&ClusterConfig| cluster.serve && cluster.seeds.is_empty();
    let roots =
        config.clusters.iter().filter(is_served).map(|cluster| root(cluster, clock, counter));
    clocks.extend(roots);
    clocks.extend(timelines.report(counter, monotonic()));
    for clock in &mut clocks {
        let served = config.clusters.iter().find(|cluster| cluster.name == clock.cluster);
        if served.is_some_and(|cluster| cluster.serve) {
            clock.serves = config.server.listen.iter().map(ToString::to_string).collect();
        }
    }
    Clusters { clusters: clocks }
}

/// Its clock is that of this host, which has other references.
fn root(cluster: &ClusterConfig, clock: &HostClock, counter: u64) -> ClusterClock {
    let at = clock.writer().in_force().map(|lines| lines.at(counter));
    let ns = |span: Duration| u64::try_from(span.ceil_nanos()).ok();
    ClusterClock {
        cluster: cluster.name.clone(),
        timeline: "utc".to_owned(),
        role: if at.is_some() { "root" } else { "asking" }.to_owned(),
        below_ns: at.as_ref().and_then(|at| ns(at.estimate - at.earliest)),
        above_ns: at.as_ref().and_then(|at| ns(at.latest - at.estimate)),
        ..ClusterClock::default()
    }
}
