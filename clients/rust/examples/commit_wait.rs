//! Spanner's commit-wait: a stamp that has surely passed everywhere before anybody hears of it, so
//! that stamps order events that know of each other.

use timevisor::{Client, Status, Timeline};

fn commit(tai: &Timeline) -> Result<i64, Box<dyn std::error::Error>> {
    let now = tai.now()?;
    if now.status() == Status::Unreliable {
        return Err("the clock is unreliable; nothing is committed".into());
    }
    let stamp = now.latest_ns(); // no right clock is later now...
    tai.wait_past(stamp)?; // ...and after the wait every right clock is
    Ok(stamp)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tai = Client::connect()?.timeline("tai")?;
    for number in 1..=3 {
        let stamp = commit(&tai)?;
        println!("commit {number} at {stamp} ns; it is {} ns now", tai.now()?.estimate_ns());
    }
    Ok(())
}
