//! Random schedules for the members of a group, until so many were judged:
//! `check-coordination SCHEDULES [FIRST] [RESULTS.json]`. Exit status 1 if anything happened that
//! must not.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use timevisor_results::Results;
use timevisor_simulation::coordination::{Judged, run};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| match arguments.next() {
        None => Some(default),
        Some(text) => text.parse().ok(),
    };
    let (Some(count), Some(first)) = (number(100_000), number(0)) else {
        eprintln!("usage: check-coordination SCHEDULES [FIRST] [RESULTS.json]");
        return ExitCode::from(2);
    };
    let results = arguments.next();
    let judged = all(count, first);
    print_table(&judged);
    for text in judged.wrong.iter().take(20) {
        println!("wrong: {text}");
    }
    if let Some(path) = results
        && let Err(error) = write(&path, &judged)
    {
        eprintln!("cannot write {path}: {error}");
        return ExitCode::FAILURE;
    }
    if judged.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// On all processors, with a line of progress every five seconds.
fn all(count: u64, first: u64) -> Judged {
    let next = AtomicU64::new(first);
    let sum = Mutex::new(Judged::default());
    let begun = std::time::Instant::now();
    let last_line = Mutex::new(begun);
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    let judged = run(seed);
                    sum.lock().unwrap_or_else(PoisonError::into_inner).add(judged);
                    let mut last = last_line.lock().unwrap_or_else(PoisonError::into_inner);
                    if last.elapsed().as_secs() >= 5 {
                        *last = std::time::Instant::now();
                        eprintln!("    {} of {count} schedules", seed - first);
                    }
                }
            });
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn rows(judged: &Judged) -> [(&'static str, u64); 11] {
    [
        ("schedules", judged.schedules),
        ("messages", judged.messages),
        ("proposals", judged.proposals),
        ("fired by all", judged.fired),
        ("fired by nobody", judged.quiet),
        ("fired by some, and said so", judged.split),
        ("fires", judged.fires),
        ("outcomes", judged.outcomes),
        ("outcomes with unknown members", judged.unknown),
        ("leases of leaders", judged.leases),
        ("releases from barriers", judged.releases),
    ]
}

fn print_table(judged: &Judged) {
    for (what, count) in rows(judged) {
        println!("{what:<32} {count:>12}");
    }
    println!("{:<32} {:>12}", "wrong", judged.wrong.len());
}

fn write(path: &str, judged: &Judged) -> std::io::Result<()> {
    let mut row: serde_json::Map<_, _> = rows(judged)
        .into_iter()
        .map(|(what, count)| (what.replace(", ", "_").replace(' ', "_"), count.into()))
        .collect();
    row.insert("wrong".into(), judged.wrong.len().into());
    Results::new("coordination", vec![row.into()]).write(std::path::Path::new(path))
}
