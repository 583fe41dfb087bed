//! lab-bind: how long it takes from connecting, and from binding, to a reading whose requirement is
//! met. Prints one line of JSON.
//!
//! `lab-bind TIMES` connects, binds and reads TIMES times, with a new connection each time; then it
//! binds TIMES times on one connection.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use timevisor::{Client, Options, Requirement};

fn main() -> Result<()> {
    let times: usize = std::env::args().nth(1).context("usage: lab-bind TIMES")?.parse()?;
    ensure!(times > 0, "TIMES: at least 1");
    let connect = || Options::new().name("lab-bind").connect();
    let anew = measure(times, || qualified(&connect()?))?;
    let client = connect()?;
    let again = measure(times, || qualified(&client))?;
    println!("{}", json!({"connect_us": anew, "bind_us": again}));
    Ok(())
}

fn qualified(client: &Client) -> Result<()> {
    let timeline = client.bind("tai", &Requirement::within(Duration::from_millis(10)))?;
    ensure!(timeline.now()?.met(), "the first reading is not qualified");
    Ok(())
}

/// The first, median and longest time, us.
fn measure(times: usize, mut body: impl FnMut() -> Result<()>) -> Result<serde_json::Value> {
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        let began = Instant::now();
        body()?;
        took.push(began.elapsed().as_secs_f64() * 1e6);
    }
    let first = took[0];
    took.sort_by(f64::total_cmp);
    Ok(json!({"first": first, "median": took[times / 2], "longest": took[times - 1]}))
}
