//! Ten ticks a second on the timeline's grid: programs on different machines tick together.

use std::time::Duration;

use timevisor::{Client, MissedTicks};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tai = Client::connect()?.timeline("tai")?;
    for tick in tai.periodic(Duration::from_millis(100), 0, MissedTicks::Skip)?.take(20) {
        let tick = tick?;
        println!(
            "tick {} ns, {} ns late, {} missed, true time within {} ns",
            tick.scheduled_ns,
            tick.lateness_ns,
            tick.missed,
            tick.reading.half_width_ns().unwrap_or(u64::MAX)
        );
    }
    Ok(())
}
