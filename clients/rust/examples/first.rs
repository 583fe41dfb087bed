//! The first program: bind, read, wait. The same in every language, on a host and in a guest.
//!
//! `cargo run -p timevisor-client --example first [PAGE [CHANNEL]]`

use std::time::Duration;

use timevisor::{ChannelAddress, Options, Requirement};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = Options::new();
    let mut arguments = std::env::args().skip(1);
    if let Some(page) = arguments.next() {
        options = options.page(page);
    }
    if let Some(channel) = arguments.next() {
        options = options.channel(ChannelAddress::parse(&channel));
    }
    let client = options.connect()?;
    println!("page      {}", client.page().path.display());
    for other in &client.page().passed_over {
        println!("not       {}: {}", other.place, other.why);
    }

    let tai = client.bind("tai", &Requirement::within(Duration::from_secs(1)))?;
    let now = tai.now()?;
    println!("earliest  {} ns", now.earliest_ns());
    println!("estimate  {} ns", now.estimate_ns());
    println!("latest    {} ns", now.latest_ns());
    println!("status    {}", now.status().name());
    println!("met       {}", now.met());

    let waited = tai.wait_past(now.estimate_ns() + 10_000_000)?;
    println!("lateness  {} ns", waited.lateness_ns);
    Ok(())
}
