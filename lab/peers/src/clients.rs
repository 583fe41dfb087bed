//! Reads time with AWS ClockBound's own clients, beside CLOCK_REALTIME and our own reader.
//!
//! `clockbound-clients DIRECTORY COUNT PAUSE_US [PAGE]` prints COUNT lines per client that finds its segment,
//! PAUSE_US apart:
//!
//! `LAYOUT STATUS EARLIEST LATEST BEFORE AFTER FIRST LAST [OURS_STATUS OURS_EARLIEST OURS_LATEST]`
//!
//! all in ns of UTC. BEFORE and AFTER are CLOCK_REALTIME before and after the client's call, FIRST and LAST
//! are the page's counter around these (0 without a page). With PAGE, a file or a device, our reader tells the earliest time after the call and the latest before it: what the client's interval must
//! contain. At last, a line `LAYOUT speed NS` with the shortest time of a call, in the mean of a thousand.
//!
//! Independent of us: clock-bound-client 2.0.3 and clock-bound 3.0.0-rc.0 open, check and read the segments.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use timevisor_clock_page::reader::counter_of;
use timevisor_clock_page::{Counter, Reader, Reading};
use timevisor_linux::clock::realtime;
use timevisor_linux::counter::HostCounter;
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page::ReadPage;
use timevisor_linux::page_file;
use timevisor_time::TimescaleId;

/// How often the speed is measured; the best counts.
const ROUNDS: u32 = 20;
const CALLS: u32 = 1000;

/// What a client answers: status, earliest and latest.
type Answer = Result<(String, i64, i64), String>;
type Client = Box<dyn FnMut() -> Answer>;

fn ns(seconds: i64, rest: i64) -> i64 {
    seconds * 1_000_000_000 + rest
}

fn layout_2(directory: &str) -> Result<Client, String> {
    let path = format!("{directory}/shm0");
    let mut client = clock_bound_client::ClockBoundClient::new_with_path(&path)
        .map_err(|error| format!("{error:?}"))?;
    Ok(Box::new(move || {
        let now = client.now().map_err(|error| format!("{error:?}"))?;
        let ends = [
            ns(now.earliest.tv_sec(), now.earliest.tv_nsec()),
            ns(now.latest.tv_sec(), now.latest.tv_nsec()),
        ];
        Ok((format!("{:?}", now.clock_status), ends[0], ends[1]))
    }))
}

fn layout_3(directory: &str) -> Result<Client, String> {
    let path = format!("{directory}/shm1");
    let mut client =
        clock_bound::Client::new_with_path(&path).map_err(|error| format!("{error:?}"))?;
    Ok(Box::new(move || {
        let now = client.now().map_err(|error| format!("{error:?}"))?;
        let ends = [
            ns(now.earliest.tv_sec(), now.earliest.tv_nsec()),
            ns(now.latest.tv_sec(), now.latest.tv_nsec()),
        ];
        Ok((format!("{:?}", now.clock_status), ends[0], ends[1]))
    }))
}

/// Our own reader.
struct Ours(Reader<ReadPage, HostCounter>);

impl Ours {
    fn open(path: &str) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| format!("{path}: {error}");
        let mapping = if path.starts_with("/dev/") {
            SharedMapping::of_device(path.as_ref()).map_err(|error| text(&error))?
        } else {
            page_file::open(path.as_ref()).map_err(|error| text(&error))?
        };
        let page = ReadPage::new(mapping).map_err(|error| text(&error))?;
        let counter = HostCounter::for_reader(counter_of(&page, 0))
            .ok_or_else(|| format!("{path}: no such counter here"))?;
        Reader::open(page, counter, 0).map(Self).map_err(|error| text(&error))
    }

    /// The status, the earliest time at the later counter value, the latest time at the earlier one.
    fn between(&self, [before, after]: [u64; 2]) -> Result<String, String> {
        let at = |counter| self.0.convert(counter).map_err(|error| error.to_string());
        let (before, after) = (at(before)?, at(after)?);
        let earliest = after.earliest.floor_nanos() - offset_ns(&after);
        let latest = before.latest.ceil_nanos() - offset_ns(&before);
        Ok(format!("{} {earliest} {latest}", after.status().name()))
    }
}

fn offset_ns(reading: &Reading) -> i64 {
    let tai = reading.timescale() == TimescaleId::Tai;
    if tai { i64::from(reading.tai_offset().unwrap_or(0)) * 1_000_000_000 } else { 0 }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let [directory, count, pause, page @ ..] = arguments else {
        return Err("usage: clockbound-clients DIRECTORY COUNT PAUSE_US [PAGE]".to_owned());
    };
    let number = |text: &String| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let (count, pause) = (number(count)?, Duration::from_micros(number(pause)?));
    let ours = page.first().map(|page| Ours::open(page)).transpose()?;
    let counter = ours.as_ref().map(|ours| ours.0.counter());
    let stamp = || counter.map_or(0, Counter::read_ordered);
    let mut clients = Vec::new();
    for (layout, opened) in [(2, layout_2(directory)), (3, layout_3(directory))] {
        match opened {
            Ok(client) => clients.push((layout, client)),
            Err(reason) => println!("{layout} refused {reason}"),
        }
    }
    for _ in 0..count {
        for (layout, client) in &mut clients {
            let (first, before) = (stamp(), realtime());
            let answer = client();
            let (after, last) = (realtime(), stamp());
            let (before, after) = (before.ceil_nanos(), after.ceil_nanos());
            let own = ours.as_ref().map_or(Ok(String::new()), |own| own.between([first, last]))?;
            match answer {
                Ok((status, earliest, latest)) => {
                    println!(
                        "{layout} {status} {earliest} {latest} {before} {after} {first} {last} {own}"
                    );
                }
                Err(reason) => println!("{layout} refused {reason}"),
            }
        }
        std::thread::sleep(pause);
    }
    for (layout, client) in &mut clients {
        let mut shortest = Duration::MAX;
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            for _ in 0..CALLS {
                std::hint::black_box(client()).ok();
            }
            shortest = shortest.min(begun.elapsed() / CALLS);
        }
        println!("{layout} speed {}", shortest.as_nanos());
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("clockbound-clients: {reason}");
            ExitCode::FAILURE
        }
    }
}
