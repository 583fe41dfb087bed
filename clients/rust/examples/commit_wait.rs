//! Spanner's commit-wait: a stamp that has surely passed everywhere before anybody hears of it, so that stamps order events
//! that know of each other.

use timevisor::{Client, Status};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tai = Client::connect()?.timeline("tai")?;
    for number in 1..=3 {
        let now = tai.now()?;
        if now.status() == Status::Unreliable {
            return Err("the clock is unreliable; nothing is committed".into());
        }
        // Not before any clock that is right; and after the wait, behind all of them.
        let stamp = now.latest_ns();
        let waited = tai.wait_past(stamp)?;
        println!(
            "commit {number} at {stamp} ns; waited {} ns",
            waited.reading.estimate_ns() - now.estimate_ns()
        );
    }
    Ok(())
}
