//! `make bounds`: random worlds inside the assumptions, until the given number of readings was
//! judged; truth may not be outside in any.
//!
//! Exit status 1 if a bound excluded the truth, bounds did not nest, or an estimate went backwards.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use timevisor_results::Results;
use timevisor_simulation::random_worlds::{Judged, judge};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
    let (Some(readings), Some(seed)) = (number(), number()) else {
        eprintln!("usage: check-bounds READINGS SEED [FILE.json]");
        return ExitCode::from(2);
    };
    let file = arguments.next().map(PathBuf::from);
    let begun = Instant::now();
    let all = on_all_processors(readings, seed);
    for told in &all.wrong {
        println!("{told}");
    }
    let line = format!(
        "{} readings in {} random worlds from seed {seed}: {} outside, {} broken rules; {:.0} s",
        all.readings,
        all.worlds,
        all.outside,
        all.wrong.len(),
        begun.elapsed().as_secs_f64()
    );
    println!("{line}");
    let row = serde_json::json!({
        "worlds": all.worlds, "readings": all.readings, "outside": all.outside, "wrong": all.wrong,
    });
    let results = Results::new("bounds", vec![row]).with_caption(vec![line]);
    if let Some(file) = file
        && let Err(error) = results.write(&file)
    {
        eprintln!("check-bounds: {error}");
        return ExitCode::from(2);
    }
    if all.wrong.is_empty() && all.outside == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Each processor runs every nth world.
fn on_all_processors(readings: u64, seed: u64) -> Judged {
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let judged = AtomicU64::new(0);
    let told = AtomicU64::new(0);
    let begun = Instant::now();
    let run = |first: u64| {
        let mut all = Judged::default();
        let mut world = seed + first;
        while judged.load(Ordering::Relaxed) < readings {
            let one = judge(world);
            let so_far = judged.fetch_add(one.readings, Ordering::Relaxed) + one.readings;
            all += one;
            world += threads;
            let half_minutes = begun.elapsed().as_secs() / Duration::from_secs(30).as_secs();
            if told.fetch_max(half_minutes, Ordering::Relaxed) < half_minutes {
                println!("{so_far} of {readings} readings");
            }
        }
        all
    };
    let mut all = Judged::default();
    thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || run(n))).collect();
        for thread in running {
            all += thread.join().expect("a panic there has been printed");
        }
    });
    all
}
