//! The planner: publishes where both arms shall be at which time, and proposes from when on.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use serde_json::json;
use timevisor::group::{Accept, Order, Proposed};
use timevisor_arms::clock::Source;
use timevisor_arms::message::{COMMANDS, STATUS, Status};
use timevisor_arms::plan::Plan;
use timevisor_arms::planner::{Action, Planner};
use timevisor_arms::talk::{Membership, parse, publish};

const TURN: Duration = Duration::from_millis(5);
/// A start is a function of the clock: who learns of it late is late and not wrong.
const LATE_AT_MOST: Duration = Duration::from_millis(200);
/// An answer that has not come by then does not come any more.
const UNDECIDED: Duration = Duration::from_secs(2);

/// Plans the motion of both arms on the group's timeline
#[derive(Debug, Parser)]
struct Arguments {
    /// What plan.py wrote
    plan: PathBuf,
    /// To inject a fault: each message is sent as late as this file says, ms
    #[arg(long, value_name = "FILE")]
    late: Option<PathBuf>,
    #[command(flatten)]
    membership: Membership,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut planner = Planner::new(Plan::read(&arguments.plan)?);
    let (group, timeline) = arguments.membership.join("planner")?;
    group.accept(Accept::All);
    let clock = Source::Timeline(timeline);
    let statuses = group.subscribe(STATUS, Order::Arrival, 0)?;
    let proposals = group.proposals();
    println!("{}", json!({"event": "joined"}));
    let begun = Instant::now();
    let (mut asked, mut said) = (None, String::new());
    loop {
        let elapsed_ns = i64::try_from(begun.elapsed().as_nanos()).unwrap_or(i64::MAX);
        while let Some(message) = statuses.try_next() {
            if let Some(status) = parse::<Status>(&message) {
                planner.status(status, elapsed_ns);
            }
        }
        while let Some(proposed) = proposals.try_next() {
            if let Proposed::Decided(id, agreed) = proposed
                && asked.is_some_and(|(other, _)| other == id)
            {
                asked = None;
                planner.decided(agreed);
                println!(
                    "{}",
                    json!({"event": "decided", "agreed": agreed, "start": planner.start()})
                );
            }
        }
        if asked.is_some_and(|(_, at): (_, Instant)| at.elapsed() > UNDECIDED) {
            asked = None;
            planner.decided(false);
        }
        let clock = clock.read().unwrap_or_default();
        let now_ns = clock.filter(|clock| clock.met).map(|clock| clock.now_ns);
        for action in planner.on_timer(now_ns, elapsed_ns) {
            match action {
                Action::Publish(commands) => {
                    std::thread::sleep(late(arguments.late.as_deref()));
                    publish(&group, COMMANDS, &commands);
                }
                Action::Propose(start) => {
                    let payload = serde_json::to_vec(&start)?;
                    match group.propose_with(start.at_ns, &payload, None, LATE_AT_MOST) {
                        Ok(pending) => asked = Some((pending.id(), Instant::now())),
                        Err(error) => {
                            println!(
                                "{}",
                                json!({"event": "cannot propose", "why": error.to_string()})
                            );
                            planner.decided(false);
                            std::thread::sleep(Duration::from_millis(100));
                        }
                    }
                }
            }
        }
        if planner.waits_for != said {
            said.clone_from(&planner.waits_for);
            println!("{}", json!({"event": "waits", "for": said}));
        }
        std::thread::sleep(TURN);
    }
}

fn late(file: Option<&Path>) -> Duration {
    let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    Duration::from_millis(text.trim().parse().unwrap_or(0))
}
