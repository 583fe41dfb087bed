//! Burns and others, "KairosVM", figure 6: what a system call takes in a guest that is introspected, for calls that are trapped and for
//! others.
//!
//! On a host inside a guest: exits of the inner guest are emulated, and cost more, beside a call, than a processor's. The paper's other system,
//! Nitro, traps every call; nothing here does.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::report;
use crate::nested::NestedHost;
use crate::scenario::Context;
use crate::tests::introspect_kvm::{VM, attach, detach, host_with_guest};

const NAME: &str = "kairos-latency-kvm";
/// Calls of each kind for a minute that was asked for: the paper has 1000.
const CALLS: u64 = 1000;
/// For one program in the inner guest.
const PATIENCE: Duration = Duration::from_secs(200);
const CALLED: [&str; 6] =
    ["sched_setattr", "sched_yield", "sched_getattr", "getppid", "read", "write"];

pub(super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let program = ctx.program("timevisor-lab-guest", "lab-call-costs")?;
    let mut host =
        host_with_guest(ctx, "trixie-backports", "", |image| Ok(image.program(&program)))?;
    let line = format!("lab-call-costs {}", CALLS * (span.as_secs() / 60).max(1));
    let inside = |host: &mut NestedHost| -> anyhow::Result<Value> {
        let said = host.inner_sh(VM, &line, PATIENCE)?;
        serde_json::from_str(said.trim()).with_context(|| said.clone())
    };
    let native = host.json(&line)?;
    let none = inside(&mut host)?;
    let mut ways = vec![("the host itself", native), ("guest, not introspected", none.clone())];
    for (way, name) in [("kvm", "guest, --backend kvm"), ("port", "guest, --backend port")] {
        attach(&mut host, way)?;
        ways.push((name, inside(&mut host)?));
        detach(&mut host)?;
    }
    println!(
        "  median ticks of one call, and the ratio to the guest that is not introspected; * is trapped\n"
    );
    let head: String = CALLED.iter().map(|call| format!("{:>20}", mark(&none, call))).collect();
    println!("{:<24}{head}", "");
    let mut rows = Vec::new();
    for (name, costs) in &ways {
        let mut text = String::new();
        for call in CALLED {
            let of = |costs: &Value| costs[call]["median"].as_f64().context("no median");
            let (ticks, ratio) = (of(costs)?, of(costs)? / of(&none)?);
            text += &format!("{:>20}", format!("{ticks:.0} ({ratio:.2})"));
            rows.push(json!({"row": name, "call": call, "costs": costs[call], "ratio": ratio}));
        }
        println!("{name:<24}{text}");
    }
    println!(
        "\n  The paper, on hardware (figure 6 and its text): calls that are trapped take 7 to 10 times as long as under KVM alone (Nitro: 139 to 248), \
         others\n  the same (KairosVM); KVM alone takes 1 to 30 % more than no virtualization."
    );
    report::write(NAME, rows)
}

fn mark(costs: &Value, call: &str) -> String {
    let trapped = costs[call]["trapped"] == true;
    format!("{call}{}", if trapped { "*" } else { "" })
}
