//! `[[timeline]]` tables: timelines that the operator defines, in addition to `tai` and `utc`,
//! which always exist.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use timevisor_protocols::channel::Epoch;
use timevisor_timelines::{ClockId, Configured, Origin, Setup, Tenant, Visibility};

use super::ClusterConfig;

/// The clock that follows all references.
const HOST_CLOCK: ClockId = ClockId(0);

/// `[[timeline]]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineConfig {
    pub name: String,
    #[serde(default = "tai")]
    pub epoch: Epoch,
    /// The names of the references that it follows; if absent, it is the host's own clock, which
    /// follows all of them.
    pub references: Option<Vec<String>>,
    /// Who may bind: `uid:1000`, `vm:web`; if absent, everybody.
    pub tenants: Option<Vec<String>>,
    /// The member whose presence defines a local timeline; if absent, the host.
    pub master: Option<String>,
}

fn tai() -> Epoch {
    Epoch::Tai
}

/// The timelines' model as configured, with those of clusters, and for each clock besides the host's own, the references
/// that it follows.
pub fn setup(
    timelines: &[TimelineConfig],
    clusters: &[ClusterConfig],
    references: &[String],
) -> Result<(Setup, Vec<Vec<usize>>)> {
    let mut setup = Setup::new(HOST_CLOCK);
    let mut clocks = Vec::new();
    for timeline in timelines {
        let configured = timeline.configured(references, &mut clocks);
        setup
            .timelines
            .push(configured.with_context(|| format!("[[timeline]] {:?}", timeline.name))?);
    }
    // Their clocks come after those of references.
    let own = clusters.iter().filter_map(|cluster| cluster.timeline.as_deref());
    for (index, name) in own.enumerate() {
        let origin = Origin::Cluster(ClockId(1 + clocks.len() + index));
        let name = name.parse().with_context(|| format!("[[cluster]] timeline {name:?}"))?;
        setup.timelines.push(Configured { name, origin, visibility: Visibility::Everyone });
    }
    setup.validate()?;
    Ok((setup, clocks))
}

impl TimelineConfig {
    fn configured(
        &self,
        references: &[String],
        clocks: &mut Vec<Vec<usize>>,
    ) -> Result<Configured> {
        let visibility = match &self.tenants {
            None => Visibility::Everyone,
            Some(names) => {
                Visibility::Tenants(names.iter().map(|t| tenant(t)).collect::<Result<_>>()?)
            }
        };
        let origin = match self.epoch {
            Epoch::Local => {
                ensure!(
                    self.references.is_none(),
                    "a local timeline follows no references; remove `references` or `epoch`"
                );
                Origin::Local { master: self.master.as_deref().map(tenant).transpose()? }
            }
            epoch => {
                ensure!(
                    self.master.is_none(),
                    "only a local timeline has a master; set epoch = \"local\" or remove `master`"
                );
                let clock = self.clock(references, clocks)?;
                if epoch == Epoch::Utc { Origin::Utc(clock) } else { Origin::Tai(clock) }
            }
        };
        Ok(Configured { name: self.name.parse()?, origin, visibility })
    }

    /// Returns the clock for these references; timelines with the same references share it.
    fn clock(&self, references: &[String], clocks: &mut Vec<Vec<usize>>) -> Result<ClockId> {
        let Some(names) = &self.references else { return Ok(HOST_CLOCK) };
        ensure!(
            !names.is_empty(),
            "it follows no references; remove `references` to follow the host's clock"
        );
        let mut wanted = Vec::new();
        for name in names {
            let index = references.iter().position(|r| r == name).with_context(|| {
                format!("{name:?} is no reference here; there are: {}", references.join(", "))
            })?;
            wanted.push(index);
        }
        wanted.sort_unstable();
        wanted.dedup();
        let known = clocks.iter().position(|c| *c == wanted);
        let place = known.unwrap_or_else(|| {
            clocks.push(wanted);
            clocks.len() - 1
        });
        Ok(ClockId(place + 1))
    }
}

fn tenant(text: &str) -> Result<Tenant> {
    Ok(text.parse()?)
}
