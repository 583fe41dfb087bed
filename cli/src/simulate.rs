//! `timevisor simulate`: scenario files through the production code in simulated worlds, judged by
//! their limits.
//!
//! | file | owns |
//! | --- | --- |
//! | this file | options, which files and seeds, threads |
//! | `simulate/table.rs` | the table for people, JSON and CSV for machines |
//! | `simulate/plot.rs` | the SVG of one run |

mod plot;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use timevisor_simulation::{Report, Scenario, Summary, Verdict, record, run as simulate};

/// How often a long run says how far it is, on stderr.
const PROGRESS: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct Options {
    /// Scenario files; a directory means all *.toml in it
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// This seed instead of the scenario's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// N runs with consecutive seeds from the scenario's, or the seeds A to B; the table shows the
    /// worst of each figure
    #[arg(long, value_name = "N|A..B", default_value = "1")]
    seeds: Seeds,
    /// JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Write the JSON to a file, beside the table
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Plot estimate and bounds against truth as SVG (one scenario, one seed)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write one line per true second as CSV (one scenario, one seed)
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Which seeds each scenario runs with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seeds {
    /// This many consecutive ones from the scenario's.
    Count(u64),
    /// From the first to the last, both included.
    Range(u64, u64),
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            part.parse::<u64>()
                .map_err(|_| "give a number of seeds, or A..B such as 1..20".to_owned())
        };
        let (seeds, count) = match text.split_once("..") {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                let beyond = last.checked_sub(first).ok_or("the last seed is below the first")?;
                (Self::Range(first, last), beyond.saturating_add(1))
            }
            None => (Self::Count(number(text)?), number(text)?),
        };
        if (1..=1_000_000).contains(&count) {
            Ok(seeds)
        } else {
            Err("1 to 1,000,000 seeds are possible".to_owned())
        }
    }
}

impl Seeds {
    fn count(self) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Range(first, last) => last - first + 1,
        }
    }
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let first = match options.seeds {
        Seeds::Count(_) => options.seed,
        Seeds::Range(first, _) => {
            ensure!(options.seed.is_none(), "--seeds A..B names the seeds; leave out --seed");
            Some(first)
        }
    };
    let scenarios = load(&options.files, first)?;
    let reports = if options.plot.is_some() || options.csv.is_some() {
        ensure!(
            scenarios.len() == 1 && options.seeds.count() == 1,
            "--plot and --csv show one run; name one scenario and no --seeds"
        );
        vec![vec![draw(&scenarios[0], options)?]]
    } else {
        run_all(&scenarios, options.seeds.count())
    };
    let rows: Vec<_> = scenarios.iter().zip(&reports).map(|(s, r)| Summary::new(s, r)).collect();
    let results = table::results(&rows)?;
    if options.json {
        print!("{}", results.text()?);
    } else {
        print!("{}", table::table(&rows));
    }
    if let Some(path) = &options.results {
        results.write(path)?;
    }
    let failed = rows.iter().any(|row| row.verdict == Verdict::Failed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The scenarios of all files, in order; those of a directory in the order of their names.
fn load(files: &[PathBuf], seed: Option<u64>) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for path in files {
        for file in expand(path)? {
            let mut scenario = Scenario::load(&file)?;
            scenario.seed = seed.unwrap_or(scenario.seed);
            scenarios.push(scenario);
        }
    }
    Ok(scenarios)
}

fn expand(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|e| e.path())).collect();
    let mut files = paths.with_context(|| format!("cannot read {}", path.display()))?;
    files.retain(|file| file.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    if files.is_empty() {
        bail!("{} holds no *.toml; name a scenario file or a directory of them", path.display());
    }
    Ok(files)
}

/// Every scenario with every seed, on all processors; the order of the results is that of the
/// scenarios and seeds.
fn run_all(scenarios: &[Scenario], seeds: u64) -> Vec<Vec<Report>> {
    let of = |scenario: &Scenario, n| Scenario {
        seed: scenario.seed.wrapping_add(n),
        ..scenario.clone()
    };
    let jobs: Vec<_> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(i, s)| (0..seeds).map(move |n| (i, of(s, n))))
        .collect();
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let workers = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let mut reports: Vec<Vec<Report>> = scenarios.iter().map(|_| Vec::new()).collect();
    thread::scope(|scope| {
        for _ in 0..workers {
            let (sender, jobs, next) = (sender.clone(), &jobs, &next);
            scope.spawn(move || {
                while let Some((index, scenario)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // The receiver lives as long as a worker does.
                    let _ = sender.send((*index, simulate(scenario)));
                }
            });
        }
        drop(sender);
        let mut told = Instant::now();
        for (done, (index, report)) in receiver.into_iter().enumerate() {
            reports[index].push(report);
            if told.elapsed() >= PROGRESS {
                eprintln!("simulated {} of {} runs", done + 1, jobs.len());
                told = Instant::now();
            }
        }
    });
    for (list, scenario) in reports.iter_mut().zip(scenarios) {
        list.sort_by_key(|report| report.seed.wrapping_sub(scenario.seed));
    }
    reports
}

fn draw(scenario: &Scenario, options: &Options) -> Result<Report> {
    let (report, points) = record(scenario);
    if let Some(path) = &options.csv {
        write(path, &table::csv(&points))?;
    }
    if let Some(path) = &options.plot {
        write(path, &plot::svg(scenario, &points))?;
    }
    Ok(report)
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: &str = "description = 'x'\nduration_s = 300\nwarmup_s = 60\n";

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn options(files: Vec<PathBuf>) -> Options {
        Options {
            files,
            seed: None,
            seeds: Seeds::Count(1),
            json: true,
            results: None,
            plot: None,
            csv: None,
        }
    }

    #[test]
    fn a_directory_is_all_of_its_scenarios_in_order() {
        let folder = folder(&[("b.toml", SHORT), ("a.toml", SHORT), ("c.txt", "")]);
        let found = load(&[folder.path().to_owned()], Some(9)).unwrap();
        let names: Vec<_> = found.iter().map(|s| (s.name.as_str(), s.seed)).collect();
        assert_eq!(names, [("a", 9), ("b", 9)]);
        let empty = tempfile::tempdir().unwrap();
        let error = load(&[empty.path().to_owned()], None).unwrap_err().to_string();
        assert!(error.contains("no *.toml"), "{error}");
    }

    #[test]
    fn seeds_are_a_number_or_a_range() {
        let parse = |text: &str| text.parse::<Seeds>();
        assert_eq!((parse("3"), parse("4..23")), (Ok(Seeds::Count(3)), Ok(Seeds::Range(4, 23))));
        assert_eq!(parse("4..23").unwrap().count(), 20);
        for wrong in ["0", "x", "1..", "5..4", "0..18446744073709551615", "-1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let folder = folder(&[("a.toml", SHORT)]);
        let both = Options {
            seed: Some(1),
            seeds: Seeds::Range(1, 2),
            ..options(vec![folder.path().join("a.toml")])
        };
        assert!(run(&both).unwrap_err().to_string().contains("leave out --seed"));
    }

    #[test]
    fn seeds_run_side_by_side_give_what_they_give_alone() {
        let folder = folder(&[("a.toml", SHORT)]);
        let scenarios = load(&[folder.path().to_owned()], Some(5)).unwrap();
        let together = run_all(&scenarios, 3);
        let alone: Vec<_> =
            (5..8).map(|seed| simulate(&Scenario { seed, ..scenarios[0].clone() })).collect();
        assert_eq!(together, [alone]);
    }

    #[test]
    fn plots_and_lines_are_of_one_run() {
        let folder = folder(&[("a.toml", SHORT)]);
        let (svg, csv) = (folder.path().join("out/a.svg"), folder.path().join("out/a.csv"));
        let one = Options {
            plot: Some(svg.clone()),
            csv: Some(csv.clone()),
            ..options(vec![folder.path().join("a.toml")])
        };
        run(&one).unwrap();
        assert!(fs::read_to_string(svg).unwrap().contains("</svg>"));
        let lines = fs::read_to_string(csv).unwrap();
        assert!(lines.starts_with("t_s,offset_us,earliest_us,latest_us,sigma_us,status\n"));
        assert_eq!(lines.lines().count(), 301);
        let error = run(&Options { seeds: Seeds::Count(2), ..one }).unwrap_err().to_string();
        assert!(error.contains("one run"), "{error}");
    }

    #[test]
    fn a_missed_limit_is_an_exit_code() {
        let strict = format!("{SHORT}[limits]\nrms_us = 0.0001\n");
        let folder = folder(&[("a.toml", SHORT), ("b.toml", &strict)]);
        let code =
            |name: &str| format!("{:?}", run(&options(vec![folder.path().join(name)])).unwrap());
        assert_eq!(code("a.toml"), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code("b.toml"), format!("{:?}", ExitCode::FAILURE));
    }
}
