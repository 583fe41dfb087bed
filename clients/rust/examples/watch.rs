//! Degrades gracefully: says when the clock ceases to be within 1 ms, and until when it would be.

use std::time::Duration;

use timevisor::{BindOptions, Client, Requirement};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let requirement = Some(Requirement::within(Duration::from_millis(1)));
    let options = BindOptions { requirement, best_effort: true, ..BindOptions::default() };
    let tai = Client::connect()?.bind_with("tai", &options)?;
    for event in tai.watch()? {
        let event = event?;
        println!(
            "{:?}: status {}, within {:?} ns, {:?}",
            event.change,
            event.reading.status().name(),
            event.reading.half_width_ns(),
            event.valid_until
        );
    }
    Ok(())
}
