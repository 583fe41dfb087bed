//! Decides when each test starts. The longest tests start first; exclusive ones run alone, after
//! the others.

use std::time::{Duration, Instant};

use super::{Outcome, Verdict};
use crate::interrupt;
use crate::progress::{SILENCE, next_silence};
use crate::scenario::{Need, Test};

/// A test takes one slot, or two if it keeps two processors busy. Tests spend most of their time
/// waiting: run one after another, they used 0.7 of two processors.
const SLOTS: u32 = 4;
/// How often a late test is repeated.
const MORE_TRIES: u32 = 2;
const LOOK: Duration = Duration::from_millis(50);

/// Starts tests.
pub trait Start {
    /// A running test.
    type Running: Running;

    /// Starts a test; `again` keeps the log of the previous try.
    ///
    /// # Errors
    /// When it cannot start.
    fn start(&self, test: &Test, again: bool) -> anyhow::Result<Self::Running>;
}

/// A running test.
pub trait Running {
    /// Returns the outcome once the test has ended.
    fn poll(&mut self) -> Option<Outcome>;
    /// Asks the test to end.
    fn interrupt(&mut self);
}

/// The result of one test.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The test.
    pub test: Test,
    /// The verdict of the last try.
    pub verdict: Verdict,
    /// Duration of the last try.
    pub seconds: f64,
    /// Number of tries.
    pub tries: u32,
}

/// The slots of a running test.
struct Place<R> {
    test: Test,
    tries: u32,
    started: Instant,
    running: R,
}

/// Runs `tests` and prints their verdicts.
///
/// Late tests are repeated at the end, at most twice; every verdict is printed. Any other failure
/// is final.
pub fn run<S: Start>(tests: &[Test], starter: &S, seconds: impl Fn(&Test) -> f64) -> Vec<Ran> {
    let mut waiting: Vec<(Test, u32)> = tests.iter().map(|test| (*test, 1)).collect();
    waiting.sort_by(|(a, _), (b, _)| {
        is_exclusive(a).cmp(&is_exclusive(b)).then(seconds(b).total_cmp(&seconds(a)))
    });
    let (mut ran, mut places) = (Vec::new(), Vec::<Place<S::Running>>::new());
    let (began, mut said, mut silence) = (Instant::now(), Instant::now(), SILENCE);
    let mut told_to_end = false;
    while !places.is_empty() || !(waiting.is_empty() || interrupt::requested()) {
        if interrupt::requested() && !told_to_end {
            places.iter_mut().for_each(|place| place.running.interrupt());
            told_to_end = true;
        }
        while let Some(next) = next(&waiting, &places).filter(|_| !interrupt::requested()) {
            let (test, tries) = waiting.remove(next);
            match starter.start(&test, tries > 1) {
                Ok(running) => places.push(Place { test, tries, started: Instant::now(), running }),
                Err(error) => {
                    println!("FAILED {}: {error:#}", test.name);
                    ran.push(Ran { test, verdict: Verdict::Failed, seconds: 0.0, tries });
                }
            }
        }
        let mut index = 0;
        while index < places.len() {
            let Some(outcome) = places[index].running.poll() else {
                index += 1;
                continue;
            };
            let place = places.remove(index);
            let seconds = place.started.elapsed().as_secs_f64();
            print(&place.test, &outcome, seconds);
            said = Instant::now();
            let verdict = outcome.verdict;
            if verdict == Verdict::Late && place.tries <= MORE_TRIES && !interrupt::requested() {
                waiting.push((place.test, place.tries + 1));
            } else {
                ran.push(Ran { test: place.test, verdict, seconds, tries: place.tries });
            }
        }
        if said.elapsed() >= silence && !places.is_empty() {
            println!("  {}", progress(&places, ran.len(), tests.len(), began));
            said = Instant::now();
            silence = next_silence(silence);
        }
        std::thread::sleep(LOOK);
    }
    ran
}

fn is_exclusive(test: &Test) -> bool {
    test.needs.contains(&Need::ExclusiveCpu)
}

fn slots(test: &Test) -> u32 {
    if is_exclusive(test) {
        SLOTS
    } else if test.needs.contains(&Need::Processors) {
        2
    } else {
        1
    }
}

/// The first test that fits. A repeated test waits until no first try is left, and so does an
/// exclusive one.
fn next<R>(waiting: &[(Test, u32)], places: &[Place<R>]) -> Option<usize> {
    let taken: u32 = places.iter().map(|place| slots(&place.test)).sum();
    let fits = |test: &Test| taken + slots(test) <= SLOTS;
    let first = |(test, tries): &(Test, u32)| *tries == 1 && !is_exclusive(test);
    if waiting.iter().any(first) {
        return waiting.iter().position(|entry| first(entry) && fits(&entry.0));
    }
    // The cause of the load may be over by then, and late tests have the machine to themselves.
    if waiting.iter().any(|(_, tries)| *tries == 1) {
        return waiting.iter().position(|(test, tries)| *tries == 1 && fits(test));
    }
    (!waiting.is_empty() && places.is_empty()).then_some(0)
}

fn progress<R>(places: &[Place<R>], done: usize, all: usize, began: Instant) -> String {
    let running: Vec<String> = places
        .iter()
        .map(|place| format!("{} {} s", place.test.name, place.started.elapsed().as_secs()))
        .collect();
    format!(
        "{} s, {done} of {all} done; running: {}",
        began.elapsed().as_secs(),
        running.join(", ")
    )
}

fn print(test: &Test, outcome: &Outcome, seconds: f64) {
    let word = outcome.verdict.word();
    if outcome.verdict == Verdict::Ok {
        println!("{word} {} ({}; {seconds:.1} s)", test.name, outcome.text);
        return;
    }
    let (reason, details) = outcome.text.split_once('\n').unwrap_or((&outcome.text, ""));
    println!("{word} {}: {reason} (target/lab/{}; {seconds:.1} s)", test.name, test.name);
    for line in details.lines() {
        println!("    {line}");
    }
}

/// Prints the summary alone on its line, as CI expects it; returns true if all `wanted` tests have
/// passed.
pub fn print_sum(ran: &[Ran], wanted: usize) -> bool {
    let passed = ran.iter().filter(|ran| ran.verdict == Verdict::Ok).count();
    let late: Vec<&str> = ran.iter().filter(|ran| ran.tries > 1).map(|ran| ran.test.name).collect();
    if !late.is_empty() {
        println!("not in time at first: {}", late.join(" "));
    }
    if ran.len() < wanted {
        println!("interrupted: {} not run", wanted - ran.len());
    }
    println!("{passed} passed, {} failed", ran.len() - passed);
    passed == wanted
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::scenario::{Context, Tier};

    fn unused(_: &Context) -> anyhow::Result<String> {
        Ok(String::new())
    }

    fn test(name: &'static str, needs: &'static [Need], seconds: u32) -> Test {
        Test { name, about: "", tier: Tier::Test, needs, seconds, run: unused }
    }

    /// Each test "runs" for a few polls; its verdicts are encoded in its name.
    #[derive(Default)]
    struct Fake {
        order: RefCell<Vec<&'static str>>,
        now: std::rc::Rc<RefCell<Vec<&'static str>>>,
        alone: Cell<bool>,
        most: Cell<usize>,
    }

    struct FakeRun {
        name: &'static str,
        polls: u32,
        verdict: Verdict,
        now: std::rc::Rc<RefCell<Vec<&'static str>>>,
    }

    impl Start for Fake {
        type Running = FakeRun;

        fn start(&self, test: &Test, again: bool) -> anyhow::Result<FakeRun> {
            self.order.borrow_mut().push(test.name);
            self.now.borrow_mut().push(test.name);
            let running = self.now.borrow().len();
            self.most.set(self.most.get().max(running));
            if is_exclusive(test) {
                self.alone.set(running == 1);
            }
            let verdict = match test.name {
                "late-once" if again => Verdict::Ok,
                "late-once" | "always-late" => Verdict::Late,
                "wrong" => Verdict::Failed,
                _ => Verdict::Ok,
            };
            Ok(FakeRun { name: test.name, polls: 3, verdict, now: self.now.clone() })
        }
    }

    impl Running for FakeRun {
        fn poll(&mut self) -> Option<Outcome> {
            self.polls -= 1;
            (self.polls == 0).then(|| {
                self.now.borrow_mut().retain(|name| *name != self.name);
                Outcome { verdict: self.verdict, text: String::new() }
            })
        }

        fn interrupt(&mut self) {}
    }

    fn given(test: &Test) -> f64 {
        f64::from(test.seconds)
    }

    #[test]
    fn only_what_was_late_has_another_try() {
        let tests = [test("late-once", &[], 1), test("always-late", &[], 1), test("wrong", &[], 1)];
        let ran = run(&tests, &Fake::default(), given);
        let of = |name| ran.iter().find(|ran| ran.test.name == name).unwrap();
        assert_eq!((of("late-once").verdict, of("late-once").tries), (Verdict::Ok, 2));
        assert_eq!((of("always-late").verdict, of("always-late").tries), (Verdict::Late, 3));
        assert_eq!((of("wrong").verdict, of("wrong").tries), (Verdict::Failed, 1));
        assert!(!print_sum(&ran, 3));
        assert!(print_sum(&run(&tests[..1], &Fake::default(), given), 1));
    }

    #[test]
    fn the_longest_start_first_and_exclusive_ones_run_alone() {
        let tests = [
            test("short", &[], 1),
            test("alone", &[Need::ExclusiveCpu], 100),
            test("long", &[], 50),
            test("middle", &[Need::Processors], 20),
            test("a", &[], 2),
            test("b", &[], 3),
        ];
        let fake = Fake::default();
        assert_eq!(run(&tests, &fake, given).len(), tests.len());
        assert_eq!(*fake.order.borrow(), ["long", "middle", "b", "a", "short", "alone"]);
        assert!(fake.alone.get());
        assert_eq!(fake.most.get(), 3, "one of them takes two of the four slots");
    }
}
