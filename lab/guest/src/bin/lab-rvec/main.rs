//! lab-rvec: the programs of RVEC's evaluation (Dutra, Whately, Amorim, "A highly effective system
//! clock", section 5), with a page's timeline `elapsed` in place of RVEC. Prints one line of JSON.
//!
//! | command | does | file |
//! | --- | --- | --- |
//! | `lab-rvec times PAGE RUNS` | an arithmetic program, timed by several clocks, with and without moves between processors (tables 1 and 2, figure 2) | `times.rs` |
//! | `lab-rvec steps PAGE` | readings at intervals of 0 to 1 s (figure 3) | `steps.rs` |
//! | `lab-rvec worker PAGE` | a memory benchmark that can be handed over in the middle of a measurement (table 4) | `worker.rs` |
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use timevisor_clock_page::Reader;
use timevisor_clock_page::reader::find;
use timevisor_linux::counter::Tsc;
use timevisor_linux::page::ReadPage;

#[path = "../../pages.rs"]
mod pages;
mod steps;
mod times;
mod worker;

type PageReader = Reader<ReadPage, Tsc>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["times", page, runs] => {
            println!("{}", times::times(&open(page, "elapsed")?, runs.parse()?)?);
        }
        ["steps", page] => println!("{}", steps::steps(&open(page, "elapsed")?)?),
        ["worker", page] => worker::work(&open(page, "")?)?,
        _ => bail!("usage: lab-rvec times PAGE RUNS | steps PAGE | worker PAGE"),
    }
    Ok(())
}

/// Opens a timeline's entry or, without a name, the page's own clock.
fn open(path: &str, timeline: &str) -> Result<PageReader> {
    let page = pages::open(Path::new(path))?;
    let index = if timeline.is_empty() {
        0
    } else {
        find(&page, timeline).context("nobody is bound to it")?
    };
    Ok(Reader::open(page, Tsc::unchecked(), index)?)
}
