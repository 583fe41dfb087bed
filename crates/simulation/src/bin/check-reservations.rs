//! `make reservations`: random task sets through `timevisor-schedule` and through the simulator, on
//! all processors; a table, and JSON.
//!
//! With `--crashes SCHEDULES SEED` it runs random schedules of the reservations' state machine
//! instead, on a host whose daemon dies at random moments.
//!
//! With `--vcpus SETS SEED` it examines guests that schedule over several vCPUs.
//!
//! Exit status 1 if a guarantee was broken.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use timevisor_results::Results;
use timevisor_simulation::reservations::crashes::schedule::{self, Counts};
use timevisor_simulation::reservations::{Tally, cross_check, global};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let crashes = arguments.next_if(|argument| argument == "--crashes").is_some();
    let vcpus = arguments.next_if(|argument| argument == "--vcpus").is_some();
    let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
    if crashes {
        let (Some(schedules), Some(seed)) = (number(), number()) else { return usage() };
        return crash(schedules, seed);
    }
    if vcpus {
        let (Some(sets), Some(seed)) = (number(), number()) else { return usage() };
        return several_vcpus(sets, seed);
    }
    let (Some(sets), Some(seed), Some(every @ 1..)) = (number(), number(), number()) else {
        return usage();
    };
    let file = arguments.next().map(PathBuf::from);
    let begun = Instant::now();
    let mut tally = on_all_processors(seed, sets, every);
    print!("{}", tally.table());
    let broken = tally.broken();
    println!(
        "{sets} sets from seed {seed} in {:.0} s; {broken} broken promises",
        begun.elapsed().as_secs_f64()
    );
    for told in &tally.told {
        println!("{told}");
    }
    let caption = vec![
        format!("{sets} sets from seed {seed}; {broken} broken promises"),
        format!("least budgets of every {every}th set"),
    ];
    let results = Results::new("reservations", tally.json_rows()).with_caption(caption);
    if let Some(file) = file
        && let Err(error) = results.write(&file)
    {
        eprintln!("check-reservations: {error}");
        return ExitCode::from(2);
    }
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: check-reservations SETS SEED EVERY [FILE.json]: least budgets of every EVERYth set\n       \
         check-reservations --vcpus SETS SEED: guests that schedule over several vCPUs\n       \
         check-reservations --crashes SCHEDULES SEED: the daemon dies at random moments"
    );
    ExitCode::from(2)
}

fn several_vcpus(sets: u64, seed: u64) -> ExitCode {
    let begun = Instant::now();
    let tally = global::cross_check(seed..seed + sets);
    println!(
        "{sets} sets from seed {seed} on two to four vCPUs in {:.0} s; {} schedulable, {} broken promises; the tightest response is {:.3} of what was seen",
        begun.elapsed().as_secs_f64(),
        tally.schedulable,
        tally.told.len(),
        tally.tightest
    );
    for told in tally.told.iter().take(10) {
        println!("{told}");
    }
    if tally.told.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn crash(schedules: u64, seed: u64) -> ExitCode {
    let begun = Instant::now();
    let mut counts = Counts::default();
    let mut wrong = 0;
    for schedule in (0..schedules).map(|n| schedule::run(seed + n)) {
        match schedule {
            Ok(more) => counts += more,
            Err(why) => {
                wrong += 1;
                println!("{why}");
            }
        }
    }
    println!(
        "{schedules} schedules from seed {seed} in {:.0} s; {wrong} wrong; {counts:?}",
        begun.elapsed().as_secs_f64()
    );
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn on_all_processors(seed: u64, sets: u64, every: u64) -> Tally {
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut all = Tally::default();
    thread::scope(|scope| {
        let one = |first: u64| {
            move || {
                cross_check((first..sets).step_by(threads).map(|n| seed + n), move |seed| {
                    seed.is_multiple_of(every)
                })
            }
        };
        let running: Vec<_> = (0..threads as u64).map(|first| scope.spawn(one(first))).collect();
        for thread in running {
            all.merge(thread.join().expect("a panic there has been printed"));
        }
    });
    all
}
