//! A group on three hosts with a bus each: how long a proposal takes to be decided, and how exactly all fire.

use crate::host::ntp_reference;
use crate::lan::Lan;
use crate::scenario::{Context, number};
use crate::tests::groups::trio::Trio;

pub(crate) fn lan(ctx: &Context) -> anyhow::Result<String> {
    let proposals = usize::try_from(number("PROPOSALS", 100)?)?;
    let server = ctx.chronyd("server")?;
    let lan = Lan::before(ctx, server.namespace())?;
    let mut trio = Trio::new(ctx, &lan)?;
    let reference = ntp_reference(&server.address().ip().to_string());
    for host in &mut trio.hosts {
        host.start(&format!("[guests]\ndiscover = false\n{reference}"))?;
    }
    trio.hosts.iter().try_for_each(|host| host.wait_synchronized(1_000))?;
    trio.start_buses(&lan)?;
    let proposer = trio.join(0, "tai")?;
    let run = proposer.propose(proposals)?;
    proposer.leave();
    let judged = trio.judge(&run)?;
    Ok(format!(
        "three hosts with a bus each: {judged}; decided after {:.2} ms in the median, {} of {} proposals fired everywhere",
        run.decided_ms, run.everywhere, run.proposals
    ))
}
